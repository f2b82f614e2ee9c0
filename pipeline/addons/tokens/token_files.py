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
    NAME.offsets.npy        [N + 1]: document i is tokens offsets[i] to offsets[i + 1]

A row is a span of a file's tokens. Several files are one dataset, in the order of their names. They
are mapped, so a row takes no memory. At an address spans are fetched, and indices whole.
"""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.storage.files import RecordFiles, Spans
from penstock.addons.storage.rows import RowSplit
from penstock.datasets.files import DataFile, Files, Root, open_root
from penstock.datasets.reading.base import FileDataset, Part, Shares, Split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.order.keys import IntArray

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
# Of Megatron; 6 and 7 are floats, which are no tokens.
_TYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
# Not float32 and the like, which numpy would read as well: the wrong type makes tokens of anything.
_OF_FLAT = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_OFFSETS = ".offsets.npy"
_KEY = "dataset.tokens"


class TokenFiles(FileDataset, Dataset[dict[str, object]]):
    """One sample: `tokens` (int64 [T]), a document, or a sequence of Megatron's.

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test".
        tokens: names of the files of tokens below `root`: one, several, or a pattern such as
            "web/*.bin"; None takes all `.bin` and `.npy` files.
        val_tokens: the same for files that validate; None: rows of `tokens` do.
        dtype: of the tokens in `.bin` files without an index, such as "uint16".
        vocab_size: tokens from this one on are refused; a fact for models.
        shares: of the rows that validate and test, evenly spread over them.
        files: access to addresses.

    Raises:
        DataError: a file is missing, damaged or of another kind. Where a row lies is compared with
            its file when it is read.
        ConfigError: there is no such file, or a needed argument is missing.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        tokens: str | Sequence[str] | None = None,
        val_tokens: str | Sequence[str] | None = None,
        dtype: str | None = None,
        vocab_size: Count | None = None,
        shares: Shares = Shares(0.01),
        files: Files | None = None,
    ) -> None:
        folder = open_root(root, "the files of tokens", files)
        # Files that validate belong to that split as a whole, and those of `tokens` then all train.
        own = split == "val" and val_tokens is not None
        key = "dataset.val_tokens" if own else _KEY
        names = _names(folder, val_tokens if own else tokens, key)
        self.files = [_File(folder, name, dtype) for name in names]
        self._first = np.cumsum([0, *(file.count for file in self.files)])
        total = int(self._first[-1])
        if not total:
            raise DataError(f"{key}: the files in {str(folder)!r} have no rows.")
        if val_tokens is not None:
            shares = Shares(1.0) if own else shares.without("val")
        self._split, self._identity = RowSplit(total, split, shares), [split, shares, "sequences"]
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
            The tokens of each whole row, int64[n], by which the caller sees that a row has not the
            tokens that it asks for.

        Raises:
            DataError: a row is damaged.
        """
        of, begins, ends = self._spans(indices)
        # Not compared with the rows' ends: whoever asks compares the lengths that come back, and
        # names the column that says others.
        firsts, counts = begins + starts, stops - starts
        for number in np.unique(of).tolist():
            mine = of == number
            pieces = self.files[number].tokens.read(firsts[mine], counts[mine])
            for at, piece in zip(places[mine].tolist(), pieces, strict=True):
                into[at : at + len(piece)] = piece
        size = self.vocab_size
        # One pass over all tokens, as rows are looked at one by one only to find the wrong one: a
        # token out of range is an IndexError of the model, or stops a GPU without a word.
        if size is not None and into.size and not 0 <= into.min() <= into.max() < size:
            for at, index, count in zip(places, indices, counts, strict=True):  # may be padding
                tokens = into[at : at + count]
                wrong = (tokens < 0) | (tokens >= size)
                if wrong.any():
                    raise DataError(
                        f"row {index}, in {self.path(int(index))!r}, has the token "
                        f"{tokens[wrong.argmax()]}, and dataset.vocab_size={size}. Set it to that "
                        "of the tokenizer, and dataset.dtype to what is stored."
                    )
        return ends - begins

    @cached_property
    def lengths(self) -> IntArray:
        """Tokens of each row: int64[rows], from the files' own tables."""
        return self._lengths(np.arange(len(self)))

    @property
    def facts(self) -> dict[str, int]:
        """`vocab_size`, if it is set."""
        return {} if self.vocab_size is None else {"vocab_size": self.vocab_size}

    def path(self, index: int) -> str:
        """The file of a row."""
        return self.files[int(self._spans(np.array([index]))[0][0])].tokens.name

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
            # Here and not when the index is opened, since that would read all of it.
            wrong = mine & ((begins < 0) | (ends < begins) | (ends > file.tokens.count))
            if wrong.any():
                row = int(wrong.argmax())
                raise DataError(
                    f"{file.tokens.name!r}, row {rows[row]} of the file: its index places it at "
                    f"tokens {begins[row]} to {ends[row]}, and the file has {file.tokens.count}. "
                    "The index is damaged, or of another file: write both again."
                )
        return of, begins, ends

    def _lengths(self, indices: IntArray) -> IntArray:
        _, begins, ends = self._spans(indices)
        return ends - begins


class _File:
    """A file of tokens, and where its rows lie, which is compared with it when one is read."""

    def __init__(self, folder: Root, name: str, dtype: str | None) -> None:
        stem, self._name = name.rsplit(".", 1)[0], name
        is_raw = name.endswith(".bin")
        self._is_pair = is_raw and folder.first_missing([stem + ".idx"]) is None
        if self._is_pair:
            self._index = _Numbers(folder, stem + ".idx", np.dtype(np.uint8), mapped=True)
            # The header of the index says the type, so `dtype` is for files without one.
            stored, self.count = self._header()
            self.tokens = _Numbers(folder, name, stored)
            return
        if is_raw and dtype not in _OF_FLAT:
            reason = f"{dtype!r} is no type of tokens; {name!r} has no header, so say one of "
            raise ConfigError(Problem("dataset.dtype", reason + ", ".join(_OF_FLAT)))
        # Little-endian on every machine, as files travel.
        raw = np.dtype(dtype).newbyteorder("<") if is_raw else None
        self.tokens = _Numbers(folder, name, raw)
        if folder.first_missing([stem + _OFFSETS]) is not None:
            raise DataError(
                f"{_KEY}: nothing says where documents end in {self.tokens.name!r}. Put "
                f"{stem + _OFFSETS} beside it (docs/text.md has the lines that make one)."
            )
        self._index = _Numbers(folder, stem + _OFFSETS, mapped=True)
        # Offsets of another version of the file would shift all documents by some tokens, unseen.
        bounds = self._index.array[[0, -1]].tolist() if self._index.count else []
        if bounds != [0, self.tokens.count]:
            raise DataError(
                f"{_KEY}: {self._index.name!r} has the bounds {bounds}, and {self.tokens.name!r} "
                f"{self.tokens.count} tokens, from 0 on. Write both again."
            )
        self.count = self._index.count - 1

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The first token of each row, and one past its last: int64[n] each, as stored."""
        numbers = self._index.array
        if not self._is_pair:
            return numbers[rows].astype(np.int64), numbers[rows + 1].astype(np.int64)
        ends = _HEADER.size + np.array([0, 4, 12]) * self.count
        lengths = numbers[ends[0] : ends[1]].view("<i4")  # need not be aligned
        pointers = numbers[ends[1] : ends[2]].view("<i8")
        starts, inside = np.divmod(pointers[rows], self.tokens.dtype.itemsize)
        starts[inside != 0] = -1  # a pointer into a token is refused as one in front of the file
        return starts, starts + lengths[rows]

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        dtype, counts = self.tokens.dtype.str, [self.tokens.count, self.count]
        parts: list[Part] = ["megatron" if self._is_pair else "flat", self._name, dtype]
        if sized:
            parts += [*counts, *self._index.sample(), *self.tokens.sample()]
        return parts

    def data_files(self) -> list[DataFile]:
        return self.tokens.files.data_files() + self._index.files.data_files()

    def _header(self) -> tuple[np.dtype[Any], int]:
        """The type of the tokens, and the number of sequences."""
        name = f"{_KEY}: {self._index.name!r}"
        size, head = self._index.count, self._index.array[: _HEADER.size].tobytes()
        # A file that is cut off is refused by what it lacks, like one of another kind.
        head = head.ljust(_HEADER.size, b"\0")
        magic, version, code, sequences, documents = _HEADER.unpack(head)
        if (magic, version) != (_MAGIC, 1) or code not in _TYPES:
            raise DataError(
                f"{name} begins with {magic!r}, its version is {version}, the type of its tokens "
                f"{code}; an index has {_MAGIC!r}, version 1 and a type of whole numbers "
                f"({', '.join(map(str, _TYPES))})."
            )
        tables = _HEADER.size + 12 * sequences + 8 * documents
        if size not in (tables, tables + sequences):
            raise DataError(
                f"{name} has {size} bytes, and {sequences} sequences and {documents} entries of "
                f"documents need {tables} (or {sequences} more, with modes). Write it again."
            )
        return np.dtype(_TYPES[code]), sequences


class _Numbers:
    """Whole numbers of one type in a file: mapped, or at an address read as they are needed.

    Args:
        dtype: None for a `.npy` file, which says it.
        mapped: map it also at an address, where all of it is fetched.

    Raises:
        DataError: the file is missing, was cut off, or holds something else.
    """

    def __init__(
        self, folder: Root, name: str, dtype: np.dtype[Any] | None = None, mapped: bool = False
    ) -> None:
        self.files = RecordFiles.named(folder, [name])
        self.name, self._start, shape = self.files.addresses[0], 0, None
        try:
            if dtype is None:
                with self.files.open(0) as file:
                    # By hand: np.load maps files of this machine only, and of one at an address
                    # just the header is to be fetched.
                    np.lib.format.read_magic(file)
                    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                    self._start = file.tell()
                if dtype.kind not in "iu" or len(shape) != 1:
                    raise ValueError(f"it is {dtype} {shape}, not whole numbers in one dimension")
            size = int(self.files.sizes[0])
            self.count, rest = divmod(size - self._start, dtype.itemsize)
            if rest or (shape and shape[0] != self.count):
                raise ValueError(
                    f"it has {size} bytes, no multiple of the {dtype.itemsize} bytes of a number "
                    f"({dtype.name}): it was cut off, or its type is another one"
                )
        except ValueError as error:
            raise DataError(f"{_KEY}: {self.name!r} cannot be read: {error}.") from error
        self.dtype, self._is_mapped = dtype, mapped or not self.files.is_remote
        self._array: npt.NDArray[Any] | None = None

    @property
    def array(self) -> npt.NDArray[Any]:
        """All of them, mapped."""
        if self._array is None:
            made: Any = np.empty(0, self.dtype)
            if self.count:  # an empty file cannot be mapped
                made = np.memmap(self.files.path(0), self.dtype, "r", self._start, (self.count,))
            # Set once, as other threads look at it meanwhile. A plain array: every slice of a
            # memmap makes an object of that slow class.
            self._array = made.view(np.ndarray)
        return self._array

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}  # a copy in a worker maps the file again

    def read(self, firsts: IntArray, counts: IntArray) -> list[npt.NDArray[Any]]:
        """The numbers of each span."""
        # Slices of the map, which cost no system call; a read of each row takes 2 us.
        if self._is_mapped:
            bounds = zip(firsts.tolist(), (firsts + counts).tolist(), strict=True)
            return [self.array[first:stop] for first, stop in bounds]
        contents = self.files.read(self._spans(firsts, firsts + counts))
        return [np.frombuffer(content, self.dtype) for content in contents]

    def want(self, firsts: IntArray, stops: IntArray) -> float:
        """Spans are read soon; see `RecordFiles.want`."""
        return 0.0 if self._is_mapped else self.files.want(self._spans(firsts, stops))

    def sample(self) -> list[bytes]:
        """Pieces of the file, for a fingerprint."""
        return [*map(bytes, self.files.sample([0], 64))]

    def _spans(self, firsts: IntArray, stops: IntArray) -> Spans:
        bounds = self._start + np.stack([firsts, stops]) * self.dtype.itemsize
        return Spans(np.zeros_like(firsts), bounds[0], bounds[1])


def _names(folder: Root, pattern: str | Sequence[str] | None, key: str) -> list[str]:
    """The files of tokens that are wanted: their names, sorted, or in the order of a list."""
    wanted = [pattern] if isinstance(pattern, str) else pattern
    # A list stays in its order, which numbers the rows.
    if wanted is not None and not set("".join(wanted)) & set("*?["):
        return list(wanted)  # a store need not be able to list what it has
    files = [name for name in folder.files() if name.endswith((".bin", ".npy"))]
    files = [name for name in files if not name.endswith(_OFFSETS)]
    names = [name for each in wanted or "*" for name in fnmatch.filter(files, each)]
    if not names:
        some = f" like {pattern!r}; there are {', '.join(files[:5])}" if files else ""
        raise DataError(f"{key}: there is no .bin or .npy file in {str(folder)!r}{some}.")
    return [*dict.fromkeys(names)]
