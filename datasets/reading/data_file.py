"""The files of a dataset, as named where their content is hashed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import DataError
from penstock.files.addresses import is_remote, local_path

if TYPE_CHECKING:
    from penstock.datasets.files import Files


class DataFile(NamedTuple):
    """A file that samples come from.

    Attributes:
        name: relative to the root, so it stays the same when the root is moved.
        path: or address.
        version: its content's version in its store; empty for a file of this machine.
    """

    name: str
    path: str
    version: str = ""


def data_file(name: str, address: str, files: Files) -> DataFile:
    """The file at a path or an address; DataError if its store gives no checksum or version."""
    if not is_remote(address):
        return DataFile(name, str(Path(local_path(address)).expanduser()))
    info = files.remote.look(address)
    if not info.version:
        raise DataError(
            f"{address!r}: its store gives neither a checksum nor a version, so a changed content "
            "would not be noticed. Set dataset.fingerprint=sizes, or copy the data here first."
        )
    return DataFile(name, address, f"{info.version} {info.size}")
