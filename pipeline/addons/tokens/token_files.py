"""Documents that are tokens already, in Megatron's `.bin/.idx` pairs and in flat files.

    NAME.bin, NAME.idx            pipeline/addons/tokens/megatron.py
    NAME.npy, or NAME.bin         pipeline/addons/tokens/flat.py, with NAME.offsets.npy,
                                  NAME.lengths.npy, or a token that ends documents

Several files are one dataset, in the order of their names. They are mapped, not loaded. At an
address, large files of tokens are read by blocks of 64 KiB; all others, and those whose documents
are looked for, are fetched whole when the dataset is made. Memory: none a row, but for where the
documents of flat files are looked for once.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.record_files.remote_bytes import side_by_side
from penstock.addons.record_files.rows import RowSplit, TableRows
from penstock.addons.tokens.flat import LENGTHS, OFFSETS, FlatFile
from penstock.addons.tokens.megatron import MegatronFile, Rows
from penstock.addons.tokens.token_file import RemoteNumbers, TokenFile, checked_spans
from penstock.datasets.files import DataFile, Files, FolderFile, Root, open_root
from penstock.datasets.reading.base import FileDataset, Part, Split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

    from penstock.addons.stores.remote_files import RemoteFiles

native: Any
try:
    from penstock.native import tokens as native
except ImportError:  # not built
    native = None

_MOST_SPLIT = 1 << 31  # rows, of which some validate


class TokenFiles(FileDataset, Dataset[dict[str, object]]):
    """One sample: `tokens` (int64 [T]), a sequence or a document.

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test".
        tokens: names of the files of tokens below `root`: one, several, or a pattern such as
            "web/*.bin"; None takes all `.bin` and `.npy` files.
        val_tokens: the same for files that validate; None: rows of `tokens` do.
        dtype: of the tokens in `.bin` files without an index, such as "uint16".
        eod: the token that ends a document.
        append_eod: end every row with it, for data that was written without.
        rows: "sequences", or "documents", which in Megatron's files join several sequences.
        vocab_size: tokens from this one on are refused; a fact for models.
        val_fraction, split_seed: share of the rows that validate, evenly spread over them, and the
            seed of their choice.
        cache_dir: for where documents end, if they are looked for.
        files: access to addresses.
        limits: bytes of a row, as int64, and files in a listing.
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
        rows: Rows = "sequences",
        vocab_size: Count | None = None,
        val_fraction: Fraction = 0.01,
        split_seed: Seed = 0,
        cache_dir: str = "data/cache/tokens",
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        if rows not in ("sequences", "documents"):
            raise ConfigError(Problem("dataset.rows", f"{rows!r}; allowed: sequences, documents"))
        if append_eod and eod is None:
            raise ConfigError(Problem("dataset.eod", "say which token dataset.append_eod appends"))
        folder = open_root(root, "the files of tokens", files)
        own = split == "val" and val_tokens is not None
        key = "dataset.val_tokens" if own else "dataset.tokens"
        names = _names(folder, val_tokens if own else tokens, key)
        self.files: list[TokenFile] = []
        for name in names:
            index = FolderFile(folder, name.removesuffix(".bin") + ".idx")
            if name.endswith(".bin") and index.exists():
                self.files.append(MegatronFile(FolderFile(folder, name), index, rows))
            else:
                self.files.append(FlatFile(folder, name, dtype, eod, cache_dir, limits))
        self._first = np.cumsum([0, *(file.count for file in self.files)])
        total = int(self._first[-1])
        if not total:
            raise DataError(f"{key}: the files in {str(folder)!r} have no {rows}: {_some(names)}.")
        share = val_fraction if val_tokens is None else float(split == "val")
        if (0 < share < 1 or test_fraction) and total > _MOST_SPLIT:
            reason = f"{total} rows are too many to be divided; set dataset.val_tokens, or 0"
            raise ConfigError(Problem("dataset.val_fraction", reason))
        test_fraction = 0.0 if own else test_fraction
        self._split: TableRows = RowSplit(total, split, share, split_seed, test_fraction)
        if len(self._split) == total:
            self._split = RowSplit(total)
        self._identity = [split, share, split_seed, rows, bool(append_eod), eod]
        self._identity += [test_fraction] if test_fraction else []
        self._end = eod if append_eod else None
        self.vocab_size, self.limits = vocab_size, limits

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch, in one piece of memory."""
        chosen = np.asarray(indices, dtype=np.int64)
        lengths = self._lengths(chosen)
        ends = np.cumsum(lengths)
        self._check_size(lengths, chosen)
        total = int(ends[-1]) if len(ends) else 0
        tokens = np.empty(total, np.int64)
        self.read_tokens(tokens, ends - lengths, chosen, np.zeros_like(lengths), lengths)
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
        if len(self.files) == 1:
            _copy(self.files[0].tokens, into, places, firsts, counts)
        else:
            for number in np.unique(of).tolist():
                mine = of == number
                _copy(self.files[number].tokens, into, places[mine], firsts[mine], counts[mine])
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
        return str(self.files[int(self._file_of(np.array([index]))[0][0])])

    @property
    def remote_files(self) -> RemoteFiles | None:
        """The fetcher of the tokens, if it reads some of their files by blocks."""
        tokens = (file.tokens for file in self.files)
        return next((each.remote for each in tokens if isinstance(each, RemoteNumbers)), None)

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of the blocks that each row is read from."""
        of, begins, ends = self._spans(np.asarray(indices, np.int64))
        addresses = []
        for number, begin, end in zip(of.tolist(), begins.tolist(), ends.tolist(), strict=True):
            tokens = self.files[number].tokens
            blocks = tokens.blocks(begin, end) if isinstance(tokens, RemoteNumbers) else []
            addresses.append(blocks)
        return addresses

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How files are divided, their names and sizes, and evenly spread blocks of them."""
        parts: list[Part] = ["token_files", *map(repr, self._identity)]
        remote = sized and self.remote_files is not None
        of_files = (side_by_side if remote else map)(
            lambda file: file.fingerprint_parts(sized), self.files
        )
        return [*parts, *itertools.chain.from_iterable(of_files)]

    def data_files(self) -> list[DataFile]:
        return [data_file for file in self.files for data_file in file.data_files()]

    def _file_of(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """The file of each row, and the row in it."""
        rows = self._split.rows(indices)
        if len(self.files) == 1:
            return np.zeros_like(rows), rows
        of = np.searchsorted(self._first, rows, side="right") - 1
        return of, rows - self._first[of]

    def _spans(self, indices: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The file, the first token and one past the last of each row, as they are stored."""
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(f"a row is outside of [0, {len(self)})")
        of, rows = self._file_of(indices)
        if len(self.files) == 1:
            return of, *checked_spans(self.files[0], rows)
        begins, ends = np.empty((2, len(rows)), np.int64)
        for number in np.unique(of).tolist():
            mine = of == number
            begins[mine], ends[mine] = checked_spans(self.files[number], rows[mine])
        return of, begins, ends

    def _lengths(self, indices: IntArray) -> IntArray:
        _, begins, ends = self._spans(indices)
        return ends - begins + (self._end is not None)

    def _where(self, index: int) -> str:
        of, row = self._file_of(np.array([index]))
        return f"{str(self.files[int(of[0])])!r}, row {int(row[0])} of the file,"

    def _check_size(self, lengths: IntArray, indices: IntArray) -> None:
        """Raise DataError for a row that is too long."""
        size = 8 * int(lengths.max(initial=0))
        if size > self.limits.record_bytes:
            row = self._where(int(indices[lengths.argmax()]))
            refusal = self.limits.refusal("record_bytes", f"{size} bytes, as int64")
            raise DataError(f"{row} has {refusal}.")

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


def _copy(
    tokens: npt.NDArray[Any] | RemoteNumbers,
    into: IntArray,
    places: IntArray,
    firsts: IntArray,
    counts: IntArray,
) -> None:
    """Copy each row's tokens to its place."""
    if isinstance(tokens, RemoteNumbers):
        tokens.gather(into, places, firsts, counts)
        return
    if native is not None and tokens.dtype.isnative and tokens.flags.aligned:
        native.gather(into, tokens, places, firsts, counts)
        return
    # Slices: indices of every token would take three times as long.
    for at, first, count in zip(places.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        into[at : at + count] = tokens[first : first + count]


def _names(folder: Root, pattern: str | Sequence[str] | None, key: str) -> list[str]:
    """The files of tokens that are asked for: their names, sorted, or in the order of a list."""
    if isinstance(pattern, str) and not set(pattern) & set("*?["):
        return [pattern]
    if pattern is not None and not isinstance(pattern, str):
        if not pattern:
            raise ConfigError(Problem(key, "names no file"))
        return list(pattern)
    files = [
        name
        for name in folder.files()
        if name.endswith((".bin", ".npy")) and not name.endswith((OFFSETS, LENGTHS))
    ]
    names = files if pattern is None else [name for name in files if fnmatch.fnmatch(name, pattern)]
    if not names:
        of = "" if pattern is None else f" like {pattern!r}"
        known = f": {_some(files)}" if files else ""
        raise DataError(f"{key}: there is no .bin or .npy file{of} in {str(folder)!r}{known}.")
    return names


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
