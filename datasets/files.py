"""Access to files at paths of this machine, and at addresses such as `s3://bucket/folder`.

The add-on `stores` fetches files from addresses; it is imported with the first one. Cost: nothing
for paths of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import AfterValidator, ByteSize, Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from penstock import seams
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Count, Index, Limits, PositiveFloat
from penstock.files.paths import is_remote, local_path

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles

T = TypeVar("T")


def _public(name: str) -> str:
    if re.search("secret|password|token|key", name, re.IGNORECASE):
        raise ValueError("a run's folder keeps it: put it into the environment, or the tool's file")
    return name


class WholeFilesError(DataError):
    """The server of a file sends all of it to a reader that asks for a part."""


@dataclass
class Files:
    """Access to files at paths and addresses. Can be pickled, forked and used by many threads.

    Attributes:
        cache_dir: folder of the cache, made when it is needed; several runs may use the same.
        cache_size: of the cache, as "20GB", "500 MB", "4GiB" or a number of bytes.
        retries: further attempts when a store doesn't answer or is busy.
        first_wait: seconds before the first of them; each next wait is twice as long.
        timeout: seconds after which a silent connection counts as broken.
        options: for the store's fsspec file system: `endpoint_url`, `anon`, `profile` ... No
            credentials: these are found by the store's own means.
        limits: `files` of a listing.
        concurrency: the most requests open at once, over all processes of a machine that share the
            cache. Each reader begins with 32, and takes more while they bring more.
        ahead: bytes that are fetched before they are needed, as `cache_size`; 0 fetches nothing.

    Raises:
        ValidationError: a value is out of range, or an option looks like a credential.
    """

    cache_dir: str = "data/cache/files"
    cache_size: Annotated[ByteSize, Field(ge=1)] = ByteSize(20 * 10**9)
    retries: Index = 5
    first_wait: NonNegativeFloat = 1.0
    timeout: PositiveFloat = 60.0
    options: Mapping[Annotated[str, AfterValidator(_public)], object] | None = None
    limits: Limits = DEFAULT
    concurrency: Count = 128
    ahead: ByteSize = ByteSize(256 * 10**6)

    @cached_property
    def remote(self) -> RemoteFiles:
        """Access to addresses.

        Raises:
            ConfigError: an option looks like a credential.
        """
        made: RemoteFiles = seams.function("penstock.addons.stores.remote_files:RemoteFiles")(self)
        return made

    def local(self, address: str) -> Path:
        """A path on this machine with the content of `address`; a local path is not checked.

        Open it soon: a cached file can be evicted, though rarely before all others. `read` fetches
        it again then; a file that is open stays readable.

        Raises:
            DataError: it is missing in its store, may not be read, or the store didn't answer.
        """
        return self.remote.local(address) if is_remote(address) else _path(address)

    def read(self, address: str, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with the content of `address`.

        It is called again if the file was evicted before it was opened.
        """
        if is_remote(address):
            return self.remote.read(address, function)
        return function(str(_path(address)))


def _path(address: str) -> Path:
    return Path(local_path(address)).expanduser()
