"""One hash of everything that makes a dataset what it is, for manifests and for caches.

Two datasets with equal fingerprints give equal samples under equal indices, as far as names and
sizes can tell: `runs/identity/fingerprints.py` hashes the files' content too where that is wanted.
Where the data lies on the disk and when it was written do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipeline.datasets.reading.data_file import DataFile

Part = int | float | str | bytes | npt.NDArray[np.generic]


class Fingerprinted:
    """A dataset of files, and what tells it from others."""

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """What is hashed: how files are read and divided, and their names.

        Args:
            sized: also their sizes; of a few large files, a spread of their blocks.
        """
        raise NotImplementedError

    def data_files(self) -> Iterable[DataFile]:
        """The files that samples of this split come from, in their order."""
        raise NotImplementedError

    @cached_property
    def fingerprint(self) -> str:
        """Hash of how files are read and divided, of their names and sizes."""
        return fingerprint(self.fingerprint_parts(sized=True))

    def names_fingerprint(self) -> str:
        """The same without sizes: no file is opened or looked at."""
        return fingerprint(["names", *self.fingerprint_parts(sized=False)])


def fingerprint(parts: Iterable[Part]) -> str:
    """Hash `parts` in order: 32 hex digits; about 1 GB/s for arrays.

    Every part goes in with its kind and its length, so that no two lists of parts run together.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        kind, content = _encoded(part)
        digest.update(f"{kind}:{len(content)};".encode())
        digest.update(content)
    return digest.hexdigest()


def _encoded(part: Part) -> tuple[str, bytes]:
    if isinstance(part, np.ndarray):
        # The byte order is part of `dtype.str`, so a machine of the other kind hashes differently.
        return f"array{part.dtype.str}{part.shape}", np.ascontiguousarray(part).tobytes()
    if isinstance(part, bytes):
        return "bytes", part
    return type(part).__name__, str(part).encode("utf-8", "surrogateescape")
