"""Documents that are tokens already: Megatron's `.bin/.idx` pairs, and flat files.

    NAME.bin, NAME.idx      Megatron's; the index, all numbers little-endian:
                            9 bytes    MMIDIDX\\0\\0
                            uint64     version, 1
                            uint8      type of the tokens, see `_TYPES`
                            uint64     S, number of sequences
                            uint64     D, number of the entries of the last table
                            int32[S]   tokens of each sequence
                            int64[S]   byte of the `.bin` file at which each begins
                            int64[D]   sequence at which each document begins, and at the end S
                            int8[S]    mode of each sequence; optional, and not used here
    NAME.bin or NAME.npy    flat: one document after the other; a `.bin` file has no header
    NAME.offsets.npy        [N + 1]: document i is tokens offsets[i] to offsets[i + 1]; without it
                            documents end with a given token, which is looked for once

A row is a span of a file's tokens. Several files are one dataset, in the order of their names. They
are mapped, so a row takes no memory; offsets that are computed are kept in a cache and mapped, too.
At an address the spans of rows are fetched; indices, and files whose documents are looked for, as a
whole.
"""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.addons.storage.rows import RowSplit
from penstock.datasets.files import DataFile, Files, Root, open_root
from penstock.datasets.reading.base import FileDataset, Part, Split, fingerprint
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Seed
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

native: Any
try:
    from penstock.native import tokens as native
except ImportError:  # not built
    native = None

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
# Of Megatron; 6 and 7 are floats, which are no tokens.
_TYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_OF_FLAT = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_OFFSETS = ".offsets.npy"
_KEY = "dataset.tokens"
_PIECE = 1 << 22  # tokens that are looked through at once


class TokenFiles(FileDataset, Dataset[dict[str, object]]):
    """One sample: `tokens` (int64 [T]), a document, or a sequence of Megatron's.

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test".
        tokens: names of the files of tokens below `root`: one, several, or a pattern such as
            "web/*.bin"; None takes all `.bin` and `.npy` files.
        val_tokens: the same for files that validate; None: rows of `tokens` do.
        dtype: of the tokens in `.bin` files without an index, such as "uint16".
        eod: the token that ends a document, and belongs to it.
        append_eod: end every row with it, for data that was written without.
        vocab_size: tokens from this one on are refused; a fact for models.
        val_fraction, split_seed: share of the rows that validate, evenly spread over them, and the
            seed of their choice.
        cache_dir: for where documents end, if no file says it.
        files: access to addresses.
        test_fraction: share of the rows to keep for a test.

    Raises:
        DataError: a file is missing, damaged or of another kind. Where a row lies is compared with
            its file when it is read.
        ConfigError: there is no such file, or a needed argument is missing.
    """

    columns: ClassVar[tuple[str, ...]] = ("length",)

    def __init__(
        self,
        root: str,
        split: Split = "train",
        tokens: str | Sequence[str] | None = None,
        val_tokens: str | Sequence[str] | None = None,
        dtype: str | None = None,
        eod: int | None = None,
        append_eod: bool = False,
        vocab_size: Count | None = None,
        val_fraction: Fraction = 0.01,
        split_seed: Seed = 0,
        cache_dir: str = "data/cache/tokens",
        files: Files | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        if append_eod and eod is None:
            raise ConfigError(Problem("dataset.eod", "say which token dataset.append_eod appends"))
        folder = open_root(root, "the files of tokens", files)
        own = split == "val" and val_tokens is not None
        key = "dataset.val_tokens" if own else _KEY
        names = _names(folder, val_tokens if own else tokens, key)
        self.files = [_File(folder, name, dtype, eod, cache_dir) for name in names]
        self._first = np.cumsum([0, *(file.count for file in self.files)])
        total = int(self._first[-1])
        if not total:
            raise DataError(f"{key}: the files in {str(folder)!r} have no rows.")
        share = val_fraction if val_tokens is None else float(split == "val")
        test_fraction = 0.0 if own else test_fraction
        self._split = RowSplit(total, split, share, split_seed, test_fraction)
        self._identity = [split, share, split_seed, "sequences", bool(append_eod), eod]
        self._identity += [test_fraction] if test_fraction else []
        self._end = eod if append_eod else None
        self.vocab_size = vocab_size

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch, in one piece of memory."""
        chosen = np.asarray(indices, dtype=np.int64)
        lengths = self._lengths(chosen)
        tokens = np.empty(lengths.sum(), np.int64)
        places = np.cumsum(lengths) - lengths
        self.read_tokens(tokens, places, chosen, np.zeros_like(lengths), lengths)
        return [{"tokens": row} for row in torch.from_numpy(tokens).split(lengths.tolist())]

    def read_tokens(
        self, into: IntArray, places: IntArray, indices: IntArray, starts: IntArray, stops: IntArray
    ) -> IntArray:
        """Write the tokens `starts` to `stops` of each row to `places` of `into`.

        Returns:
            The tokens of each whole row: int64[n].

        Raises:
            DataError: a row is damaged, or has no such tokens.
        """
        of, begins, ends = self._spans(indices)
        last = ends - begins + (self._end is not None)
        wrong = (starts < 0) | (stops < starts) | (stops > last)
        if wrong.any():
            first = int(wrong.argmax())
            raise DataError(
                f"{self._where(int(indices[first]))} has {last[first]} tokens, and not those from "
                f"{starts[first]} to {stops[first]}."
            )
        firsts, counts = begins + starts, np.minimum(stops, ends - begins) - starts
        for number in np.unique(of).tolist():
            mine = of == number
            self.files[number].tokens.gather(into, places[mine], firsts[mine], counts[mine])
        if self._end is not None:
            closed = (stops == last) & (stops > starts)
            into[(places + stops - starts)[closed] - 1] = self._end
        if self.vocab_size is not None and into.size:
            self._check(into, places, indices, stops - starts)
        return last

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of each row: int64[rows], from the files' own tables."""
        return self._lengths(np.arange(len(self)))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: length (tokens)."""
        import pandas as pd

        return pd.DataFrame({"length": self.lengths}, copy=False)

    @property
    def facts(self) -> dict[str, int]:
        """`vocab_size`, if it is set."""
        return {} if self.vocab_size is None else {"vocab_size": self.vocab_size}

    def path(self, index: int) -> str:
        """The file of a row."""
        return str(self.files[int(self._spans(np.array([index]))[0][0])])

    def want(self, indices: IntArray) -> float:
        """Rows are read soon; see `RecordFiles.want`."""
        of, begins, ends = self._spans(np.asarray(indices, np.int64))
        parts = ((self.files[number].tokens, of == number) for number in np.unique(of).tolist())
        return sum(tokens.want(begins[mine], ends[mine]) for tokens, mine in parts)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How files are divided, their names and sizes, and evenly spread blocks of them."""
        of_files = [part for file in self.files for part in file.fingerprint_parts(sized)]
        return ["token_files", *map(repr, self._identity), *of_files]

    def data_files(self) -> list[DataFile]:
        return [one for file in self.files for one in file.data_files()]

    def _spans(self, indices: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The file, the first token and one past the last of each row, as they are stored."""
        rows = self._split.rows(indices)
        of = np.searchsorted(self._first, rows, side="right") - 1
        rows = rows - self._first[of]  # they may be the caller's
        begins, ends = np.empty((2, len(rows)), np.int64)
        for number in np.unique(of).tolist():
            mine, file = of == number, self.files[number]
            begins[mine], ends[mine] = file.spans(rows[mine])
            wrong = mine & ((begins < 0) | (ends < begins) | (ends > len(file.tokens)))
            if wrong.any():
                row = int(wrong.argmax())
                raise DataError(
                    f"{str(file)!r}, row {rows[row]} of the file: its index places it at tokens "
                    f"{begins[row]} to {ends[row]}, and the file has {len(file.tokens)}. The index "
                    "is damaged, or of another file: write both again."
                )
        return of, begins, ends

    def _lengths(self, indices: IntArray) -> IntArray:
        _, begins, ends = self._spans(indices)
        return ends - begins + (self._end is not None)

    def _where(self, index: int) -> str:
        row = int(self._split.rows(np.array([index]))[0])
        of = int(np.searchsorted(self._first, row, side="right")) - 1
        return f"{str(self.files[of])!r}, row {row - self._first[of]} of the file,"

    def _check(
        self, into: IntArray, places: IntArray, indices: IntArray, lengths: IntArray
    ) -> None:
        """Raise DataError for a token outside of the vocabulary."""
        size = self.vocab_size or 0
        if int(into.min()) >= 0 and int(into.max()) < size:
            return
        for start, index, length in zip(places, indices, lengths, strict=True):  # padding may be
            tokens = into[start : start + length]
            wrong = (tokens < 0) | (tokens >= size)
            if wrong.any():
                raise DataError(
                    f"{self._where(int(index))} has the token {tokens[wrong.argmax()]}, and "
                    f"dataset.vocab_size={size}. Set it to that of the tokenizer, and "
                    "dataset.dtype to what is stored."
                )


class _File:
    """A file of tokens, and where its rows lie.

    Cost: nothing where the files say it; else a pass over the tokens (about 1 GB/s), whose result
    is kept. Where a row lies is compared with the file when it is read.
    """

    def __init__(
        self, folder: Root, name: str, dtype: str | None, eod: int | None, cache_dir: str
    ) -> None:
        stem, self._name, self._searched = name.rsplit(".", 1)[0], name, ""
        is_raw = name.endswith(".bin")
        self._is_pair = is_raw and folder.first_missing([stem + ".idx"]) is None
        if self._is_pair:
            self._index = _Numbers(folder, stem + ".idx", np.dtype(np.uint8))
            stored, self.count = self._header()
            self.tokens = _Numbers(folder, name, stored, mapped=False)
            return
        if is_raw and dtype not in _OF_FLAT:
            reason = f"{dtype!r} is no type of tokens; {name!r} has no header, so say one of "
            raise ConfigError(Problem("dataset.dtype", reason + ", ".join(_OF_FLAT)))
        # Of `str`: the native order by the name that C knows.
        raw = np.dtype(np.dtype(dtype).newbyteorder("<").str) if is_raw else None
        says = folder.first_missing([stem + _OFFSETS]) is None
        # Where documents are looked for, all is read.
        self.tokens = _Numbers(folder, name, raw, mapped=not says)
        if says:
            self._index = _Numbers(folder, stem + _OFFSETS)
        elif eod is not None:
            self._index = self._search(eod, cache_dir)
        else:
            reason = (
                f"nothing says where documents end in {str(self)!r}: put {stem + _OFFSETS} beside "
                "it, or set dataset.eod to the token that ends them"
            )
            raise ConfigError(Problem("dataset.eod", reason))
        first, last = self._index.array[[0, -1]].tolist() if len(self._index) else (0, 0)
        if (first, last) != (0, len(self.tokens)):
            raise DataError(
                f"{_KEY}: {str(self._index)!r} bounds tokens {first} to {last}, and "
                f"{str(self)!r} has {len(self.tokens)}, from 0 on. Write both again."
            )
        self.count = len(self._index) - 1

    def __str__(self) -> str:
        return str(self.tokens)

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The first token of each row, and one past its last: int64[n] each, as stored."""
        numbers = self._index.array
        if not self._is_pair:
            return numbers[rows].astype(np.int64), numbers[rows + 1].astype(np.int64)
        ends = _HEADER.size + np.array([0, 4, 12]) * self.count
        lengths = numbers[ends[0] : ends[1]].view("<i4")  # need not be aligned
        pointers = numbers[ends[1] : ends[2]].view("<i8")
        starts, inside = np.divmod(pointers[rows], self.tokens.dtype.itemsize)
        starts[inside != 0] = -1
        return starts, starts + lengths[rows]

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        dtype = self.tokens.dtype.str
        kind = (
            ["megatron", "sequences", self._name] if self._is_pair else ["flat", self._name, dtype]
        )
        if not sized:
            return [*kind]
        index = [self._searched] if self._searched else map(bytes, self._index.sample())
        counts = [len(self.tokens), self.count, dtype]
        return [*kind, *counts, *index, *map(bytes, self.tokens.sample())]

    def data_files(self) -> list[DataFile]:
        own = self.tokens.files.data_files()
        return own if self._searched else own + self._index.files.data_files()

    def _header(self) -> tuple[np.dtype[Any], int]:
        """The type of the tokens, and the number of sequences."""
        name = f"{_KEY}: {str(self._index)!r}"
        size, head = len(self._index), self._index.array[: _HEADER.size].tobytes()
        if not head.startswith(_MAGIC) or size < _HEADER.size:
            raise DataError(f"{name} begins with {head[:9]!r}, and an index with {_MAGIC!r}.")
        _, version, code, sequences, documents = _HEADER.unpack(head)
        if version != 1 or code not in _TYPES:
            raise DataError(
                f"{name}: its version is {version}, the type of its tokens {code}; known are "
                f"version 1 and types {', '.join(map(str, _TYPES))} (whole numbers)."
            )
        tables = _HEADER.size + 12 * sequences + 8 * documents
        if size not in (tables, tables + sequences):
            raise DataError(
                f"{name} has {size} bytes, and {sequences} sequences and {documents} entries of "
                f"documents need {tables} (or {sequences} more, with modes). Write it again."
            )
        return np.dtype(_TYPES[code]), sequences

    def _search(self, eod: int, cache_dir: str) -> _Numbers:
        """Where documents begin and end, each with its last token; kept in the cache."""
        total, dtype = len(self.tokens), self.tokens.dtype.str
        key = fingerprint([1, total, dtype, *map(bytes, self.tokens.sample()), "eod", eod])[:16]
        self._searched = f"{self._name.rpartition('/')[2][:60]}-{key}"

        def made() -> dict[str, IntArray]:
            starts, array = range(0, total, _PIECE), self.tokens.array
            shown = watched(starts, len(starts), f"looking for documents in {self}")
            ends = [np.flatnonzero(array[at : at + _PIECE] == eod) + at + 1 for at in shown]
            offsets = np.concatenate([[0], *ends])
            if len(offsets) == 1:
                raise DataError(
                    f"dataset.eod: {str(self)!r} has no token {eod}, so nothing says where "
                    "documents end. Set the token that ends them, and dataset.dtype to what is "
                    "stored."
                )
            return {"offsets": offsets if offsets[-1] == total else np.append(offsets, total)}

        cache = CacheFolder(cache_dir, self._searched)
        cache.arrays("documents", made)
        return _Numbers(Root(cache.path / "documents"), "offsets.npy")


class _Numbers:
    """Whole numbers of one type in a file: mapped, or at an address read as they are needed.

    Args:
        dtype: None for a `.npy` file, which says it.
        mapped: map it also at an address, where all of it is fetched.

    Raises:
        DataError: the file is missing, was cut off, or holds something else.
    """

    def __init__(
        self, folder: Root, name: str, dtype: np.dtype[Any] | None = None, mapped: bool = True
    ) -> None:
        self.files, self._start, shape = RecordFiles.named(folder, [name]), 0, None
        try:
            if dtype is None:
                with self.files.open(0) as file:
                    # Versions 2 and 3 differ in the encoding of field names, which arrays lack.
                    is_old = np.lib.format.read_magic(file) == (1, 0)
                    form = np.lib.format
                    read = form.read_array_header_1_0 if is_old else form.read_array_header_2_0
                    shape, _, dtype = read(file)
                    self._start = file.tell()
                if dtype.kind not in "iu" or len(shape) != 1:
                    raise ValueError(f"it is {dtype} {shape}, not whole numbers in one dimension")
            self.dtype, size = dtype, int(self.files.sizes[0])
            self._count, rest = divmod(size - self._start, dtype.itemsize)
            if rest or (shape and shape[0] != self._count):
                raise ValueError(
                    f"it has {size} bytes, no multiple of the {dtype.itemsize} bytes of a number "
                    f"({dtype.name}): it was cut off, or its type is another one"
                )
        except ValueError as error:
            raise DataError(f"{_KEY}: {str(self)!r} cannot be read: {error}.") from error
        self._is_mapped = mapped or not self.files.is_remote
        self._array: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        return self.files.addresses[0]

    @property
    def array(self) -> npt.NDArray[Any]:
        """All of them, mapped."""
        if self._array is None:  # set once, as other threads look at it meanwhile
            made: Any = np.empty(0, self.dtype)
            if self._count:  # an empty file cannot be mapped
                path, shape = self.files.path(0), (self._count,)
                made = np.memmap(path, self.dtype, "r", self._start, shape)
            # A plain array: every slice of a memmap makes an object of that slow class.
            self._array = made.view(np.ndarray)
        return self._array

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}  # a copy in a worker maps the file again

    def gather(self, into: IntArray, places: IntArray, firsts: IntArray, counts: IntArray) -> None:
        """Write the numbers of each span to its place."""
        if self._is_mapped and native is not None and self.array.flags.aligned:
            native.gather(into, self.array, places, firsts, counts)
            return
        contents = self.files.read(self._spans(firsts, firsts + counts))
        for at, count, content in zip(places.tolist(), counts.tolist(), contents, strict=True):
            into[at : at + count] = np.frombuffer(content, self.dtype)

    def want(self, firsts: IntArray, stops: IntArray) -> float:
        """Spans are read soon; see `RecordFiles.want`."""
        return 0.0 if self._is_mapped else self.files.want(self._spans(firsts, stops))

    def sample(self) -> list[bytes | memoryview]:
        """64 pieces of 4 KiB, evenly spread; all of a smaller file."""
        size = self._count * self.dtype.itemsize
        starts, stops = np.zeros(1, np.int64), np.array([size])
        if size > 64 * 4096:
            starts = (size - 4096) * np.arange(64) // 63
            stops = starts + 4096
        whole = Spans(np.zeros_like(starts), self._start + starts, self._start + stops)
        return self.files.read(whole)

    def _spans(self, firsts: IntArray, stops: IntArray) -> Spans:
        width = self.dtype.itemsize
        starts = self._start + firsts * width
        return Spans(np.zeros_like(firsts), starts, self._start + stops * width)


def _names(folder: Root, pattern: str | Sequence[str] | None, key: str) -> list[str]:
    """The files of tokens that are wanted: their names, sorted, or in the order of a list."""
    if isinstance(pattern, str) and not set(pattern) & set("*?["):
        return [pattern]
    if pattern is not None and not isinstance(pattern, str):
        if not pattern:
            raise ConfigError(Problem(key, "names no file"))
        return list(pattern)
    files = [name for name in folder.files() if name.endswith((".bin", ".npy"))]
    files = [name for name in files if not name.endswith(_OFFSETS)]
    names = files if pattern is None else fnmatch.filter(files, pattern)
    if not names:
        some = f" like {pattern!r}; there are {', '.join(files[:5])}" if files else ""
        raise DataError(f"{key}: there is no .bin or .npy file in {str(folder)!r}{some}.")
    return names
