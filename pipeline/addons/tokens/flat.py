"""Flat files of tokens, one after the other, and the documents in them.

    NAME.bin or NAME.npy    uint16, uint32 or other whole numbers; a `.bin` file has no header
    NAME.offsets.npy        [N + 1]: document i is tokens offsets[i] to offsets[i + 1]; or
    NAME.lengths.npy        [N]: tokens of each document; or
    neither                 documents end with a given token, and Penstock looks for it once

Offsets that are computed are kept in a cache, and mapped as those in a file are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.record_files.cache_folder import CacheFolder, NamedArrays
from penstock.addons.tokens.token_file import MappedNumbers, RemoteNumbers, samples_of
from penstock.datasets.arrays import MappedArray
from penstock.datasets.files import DataFile, FolderFile, Root
from penstock.datasets.reading.base import Part, fingerprint
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray
from penstock.terminal import progress

OFFSETS, LENGTHS = ".offsets.npy", ".lengths.npy"
_PIECE = 1 << 22  # tokens that are looked through at once
_VERSION = 1


class FlatFile:
    """A flat file of tokens; see `TokenFile`.

    Cost: nothing where there are offsets; else a pass over the lengths, or over the tokens (about
    1 GB/s), whose result is kept.

    Args:
        folder, name: of the file of tokens.
        dtype: of a `.bin` file.
        eod: the token that ends documents, where no file says where they lie; it belongs to them.
        cache_dir: where computed offsets are kept.
        limits: `files` of the documents whose offsets are computed, 8 bytes each.

    Raises:
        DataError: a file is missing, damaged or of another kind, or has too many documents.
        ConfigError: `dtype` or `eod` is needed and missing.
    """

    def __init__(
        self,
        folder: Root,
        name: str,
        dtype: str | None,
        eod: int | None,
        cache_dir: str,
        limits: Limits = DEFAULT,
    ) -> None:
        self.name, self._cache_dir = name, cache_dir
        stem = name.rsplit(".", 1)[0]
        offsets, lengths = (FolderFile(folder, stem + suffix) for suffix in (OFFSETS, LENGTHS))
        # Where documents are looked for, all is read.
        in_parts = offsets.exists() or lengths.exists()
        self._tokens = _tokens(FolderFile(folder, name), dtype, in_parts)
        self.dtype, self.total = self._tokens.dtype, len(self.tokens)
        self._bounds: MappedArray | None = None
        self._key, self._found = "", np.empty(0, np.int64)
        if offsets.exists():
            self._bounds = _integers(offsets)
            self._check_ends(self._bounds.array, str(offsets))
        elif lengths.exists():
            counts = _integers(lengths)
            self._find(
                ["lengths", *counts.fingerprint_parts(True)], lambda: _summed(counts, limits)
            )
            self._check_ends(self._offsets, str(lengths))
        elif eod is not None:
            tokens = self.tokens
            assert not isinstance(tokens, RemoteNumbers)
            self._find(["eod", eod], lambda: _ends_of(tokens, eod, str(self), limits))
        else:
            reason = (
                f"nothing says where documents end in {str(self)!r}: put {stem + OFFSETS} or "
                f"{stem + LENGTHS} beside it, or set dataset.eod to the token that ends them"
            )
            raise ConfigError(Problem("dataset.eod", reason))
        self.count = len(self._offsets) - 1

    def __str__(self) -> str:
        return str(self._file)

    @property
    def tokens(self) -> npt.NDArray[Any] | RemoteNumbers:
        if isinstance(self._tokens, RemoteNumbers):
            return self._tokens
        return self._tokens.array.view(np.ndarray)  # a memmap makes slow slices

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        offsets = self._offsets
        return offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Names and sizes of the files, and evenly spread blocks of them."""
        if not sized:
            return ["flat", self.name, self.dtype.str]
        blocks = samples_of(self.tokens) if self.total else []
        bounds = [self._key] if self._bounds is None else self._bounds.fingerprint_parts(True)
        return ["flat", self.name, self.total, self.dtype.str, *blocks, *bounds]

    def data_files(self) -> Iterable[DataFile]:
        files = [self._file.folder.data_file(self.name)]
        return files if self._bounds is None else [*files, self._bounds.data_file()]

    @property
    def _file(self) -> FolderFile:
        return self._tokens.path if isinstance(self._tokens, MappedArray) else self._tokens.file

    @property
    def _offsets(self) -> npt.NDArray[Any]:
        return self._found if self._bounds is None else self._bounds.array.view(np.ndarray)

    def _check_ends(self, offsets: npt.NDArray[Any], name: str) -> None:
        if len(offsets) and int(offsets[0]) == 0 and int(offsets[-1]) == self.total:
            return
        ends = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "nothing"
        raise DataError(
            f"dataset.tokens: {name!r} bounds tokens {ends}, and {str(self)!r} has {self.total}, "
            "from 0 on. Write both again."
        )

    def _find(self, of: list[Part], make: Callable[[], IntArray]) -> None:
        """Offsets from the cache, or from `make`."""
        parts = [_VERSION, self.total, self.dtype.str, *samples_of(self.tokens), *of]
        self._key = f"{self.name.rpartition('/')[2][:60]}-{fingerprint(parts)[:16]}"

        def sealed() -> NamedArrays:
            offsets = make()
            check = np.frombuffer(fingerprint([offsets]).encode(), np.uint8)
            return {"offsets": offsets, "check": check}

        def is_sound(arrays: NamedArrays) -> bool:
            return fingerprint([arrays["offsets"]]).encode() == arrays["check"].tobytes()

        folder = CacheFolder(self._cache_dir, self._key)
        self._found = folder.arrays("documents", sealed, is_sound)["offsets"]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_found": np.empty(0, np.int64)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self._bounds is None:
            cache = CacheFolder(self._cache_dir, self._key)
            self._found = cache.arrays("documents", self._gone, lambda _: True)["offsets"]

    def _gone(self) -> NamedArrays:
        raise DataError(
            f"dataset.cache_dir: {self._key!r} in {self._cache_dir!r} is gone, and it was there "
            "when the run began. Start the run again."
        )


def _tokens(
    file: FolderFile, dtype: str | None, in_parts: bool
) -> MappedArray | MappedNumbers | RemoteNumbers:
    if file.name.endswith(".npy"):
        remote = RemoteNumbers.of(file, None) if in_parts else None
        return remote if remote is not None and remote.dtype.kind in "iu" else _integers(file)
    if dtype is None:
        reason = f"{str(file)!r} has no header; say what its tokens are, such as uint16"
        raise ConfigError(Problem("dataset.dtype", reason))
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        kind = np.dtype(object)
    if kind.kind not in "iu":
        known = "uint8, uint16, uint32, int16, int32, int64"
        raise ConfigError(Problem("dataset.dtype", f"{dtype!r} is no type of tokens; use {known}"))
    stored = np.dtype(kind.newbyteorder("<").str)
    remote = RemoteNumbers.of(file, stored) if in_parts else None
    return remote or MappedNumbers(file, "dataset.tokens", stored)


def _integers(file: FolderFile) -> MappedArray:
    numbers = MappedArray(file, "dataset.tokens")
    if numbers.dtype.kind not in "iu" or len(numbers.shape) != 1:
        raise DataError(
            f"dataset.tokens: {str(file)!r} is {numbers.dtype} {numbers.shape}; it must be whole "
            "numbers in one dimension."
        )
    return numbers


def _summed(counts: MappedArray, limits: Limits) -> IntArray:
    _check_count(len(counts), str(counts.path), limits)
    ends = np.zeros(len(counts) + 1, np.int64)
    for start in range(0, len(counts), _PIECE):
        lengths = counts.array[start : start + _PIECE].astype(np.int64)
        if int(lengths.min()) < 0:
            row = start + int(lengths.argmin())
            raise DataError(
                f"dataset.tokens: {str(counts.path)!r}, row {row}: {lengths.min()} tokens."
            )
        ends[start + 1 :][: len(lengths)] = ends[start] + np.cumsum(lengths)
    return ends


def _ends_of(tokens: npt.NDArray[Any], eod: int, name: str, limits: Limits) -> IntArray:
    """Where documents begin and end, each with its last token, `eod`."""
    ends, count = np.zeros(1, np.int64), 1
    with progress(f"looking for documents in {name}", tokens.nbytes, "bytes") as show:
        for start in range(0, len(tokens), _PIECE):
            ends_here = np.flatnonzero(tokens[start : start + _PIECE] == eod)
            _check_count(count + len(ends_here) - 1, name, limits)
            if count + len(ends_here) >= len(ends):
                ends.resize(max(count + len(ends_here) + 1, 9 * len(ends) // 8), refcheck=False)
            ends[count : count + len(ends_here)] = ends_here + (start + 1)
            count += len(ends_here)
            show(start * tokens.itemsize)
    if count == 1 and len(tokens):
        raise DataError(
            f"dataset.eod: {name!r} has no token {eod}, so nothing says where documents end. Set "
            "the token that ends them, and dataset.dtype to what is stored."
        )
    if ends[count - 1] != len(tokens):
        ends[count], count = len(tokens), count + 1
    return ends[:count]


def _check_count(documents: int, name: str, limits: Limits) -> None:
    """Raise DataError for so many documents that their offsets take too much memory."""
    if documents > limits.files:
        refusal = limits.refusal("files", f"{documents} documents")
        raise DataError(f"dataset.tokens: {name!r} has {refusal}; or put {OFFSETS} beside it.")
