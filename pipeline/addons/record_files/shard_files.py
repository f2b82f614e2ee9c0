"""The files of a dataset of many files: a folder, one file, or a pattern of braces.

    data/digits                           the files in it with the right suffixes
    data/digits.parquet                   this file
    s3://digits/train-{000..127}.tar      128 files
    data/{train,val}-{00..07}.tar         16 files

If names begin with `train` and `val` (`train-0.tar`, `validation/0.tar`), they divide the data, and
other files, such as `test-0.tar`, are ignored. Otherwise the dataset divides its rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.addons.storage.rows import RowSplit
from penstock.datasets.files import DataFile, open_root
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.paths import is_remote, local_path

if TYPE_CHECKING:
    from penstock.datasets.files import Files
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, Generic, TypeVar

from penstock.files.limits import Limits

_TRAIN = re.compile(r"train(ing)?([^a-z]|$)", re.IGNORECASE)
_VAL = re.compile(r"val(id|idation)?([^a-z]|$)", re.IGNORECASE)
_TEST = re.compile(r"test(ing)?([^a-z]|$)", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST_FILES = 1_000_000  # that a pattern may stand for
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


@dataclass(frozen=True)
class ShardFiles:
    """The files of one split.

    Attributes:
        addresses: paths or addresses, sorted unless a pattern orders them.
        names: the same, relative to the root, so they stay the same when it is moved.
        divided: whether names tell training from validation; else the dataset divides its rows.
        tested: whether names tell the files of a test.
        whole: whether the split has all rows of these files.
    """

    addresses: list[str]
    names: list[str]
    divided: bool
    tested: bool = False
    whole: bool = False

    @classmethod
    def of(cls, root: str, split: str, suffixes: Sequence[str], files: Files) -> ShardFiles:
        """The files of `split` at `root`.

        Raises:
            DataError: the root is missing, or has no file with one of the suffixes.
            ConfigError: a pattern of braces is invalid.
        """
        addresses = _found(root, tuple(suffixes), files)
        if not addresses:
            raise DataError(
                f"dataset.root: {root!r} has no file that ends in {', '.join(suffixes)}. Set it "
                "to a folder that does, or to a file."
            )
        kinds = {name: split_of(name) for name in addresses}
        divided, tested = "val" in kinds.values(), {"train", "test"} <= set(kinds.values())
        if not tested:  # files of a test alone are data like any others
            kinds = {name: None if kind == "test" else kind for name, kind in kinds.items()}
        whole = divided if split == "val" else tested and split == "test"
        kind: str | None = split if whole else "train"
        if not divided and "train" not in kinds.values():
            kind = None
        names = [name for name in addresses if kinds[name] == kind]
        if not names:
            first = next(name for name in addresses if kinds[name] == "val")
            raise DataError(
                f"dataset.root: {root!r} has files for validation ({first!r}) and none whose name "
                "begins with 'train'. Add or rename them."
            )
        return cls([addresses[name] for name in names], names, divided, tested, whole)

    def shares(self, val_fraction: float, test_fraction: float) -> tuple[float, float]:
        """The shares of the rows that validate and test; 0 where names of files say it."""
        return 0.0 if self.divided else val_fraction, 0.0 if self.tested else test_fraction

    def rows(
        self, total: int, split: str, val_fraction: float, seed: int, test_fraction: float
    ) -> RowSplit:
        """The rows of a split, of so many in these files."""
        if self.whole:
            return RowSplit(total)
        val_fraction, test_fraction = self.shares(val_fraction, test_fraction)
        return RowSplit(total, split, val_fraction, seed, test_fraction)


def _found(root: str, suffixes: tuple[str, ...], files: Files) -> dict[str, str]:
    """Name, relative to the root -> address."""
    if "{" in root:
        before = root[: root.rfind("/", 0, root.index("{")) + 1]
        return {address[len(before) :]: address for address in expand_braces(root)}
    if root.lower().endswith(suffixes):
        return {root.rpartition("/")[2]: root}
    folder = open_root(root, "the files", files)
    names = [name for name in folder.files() if name.lower().endswith(suffixes)]
    return {name: folder.path(name) for name in names if name.rpartition("/")[2][0] != "_"}


def data_file(name: str, address: str, files: Files) -> DataFile:
    """The file at a path or an address; DataError if its store gives no checksum or version."""
    if not is_remote(address):
        return DataFile(name, str(Path(local_path(address)).expanduser()))
    info = files.remote.look(address)
    if not info.version:
        raise DataError(
            f"{address!r}: its store gives neither a checksum nor a version, so a changed content "
            "would not be noticed. Set data.fingerprint=sizes, or copy the data here first."
        )
    return DataFile(name, address, f"{info.version} {info.size}")


def expand_braces(pattern: str) -> list[str]:
    """`x-{00..02}.{a,b}` -> x-00.a, x-00.b, x-01.a ...

    Raises:
        ConfigError: a brace is not closed, or a range goes down.
    """
    pieces = _BRACES.split(pattern)  # text, inside of braces, text, inside ...
    if any(brace in text for text in pieces[::2] for brace in "{}"):
        raise ConfigError(Problem("dataset.root", f"{pattern!r}: its braces do not match"))
    choices = [piece.split(",") if odd % 2 else [piece] for odd, piece in enumerate(pieces)]
    for number, inside in enumerate(pieces):
        bounds = _RANGE.fullmatch(inside) if number % 2 else None
        if bounds:
            first, last = int(bounds[1]), int(bounds[2])
            if last < first:
                reason = f"goes from {first} down to {last}; write the lower number first"
            elif last - first >= _MOST_FILES:
                reason = f"stands for more than {_MOST_FILES} files"
            else:
                width = len(bounds[1])
                choices[number] = [str(value).zfill(width) for value in range(first, last + 1)]
                continue
            reason = f"{pattern!r}: the range {{{inside}}} {reason}"
            raise ConfigError(Problem("dataset.root", reason))
    if math.prod(map(len, choices)) > _MOST_FILES:
        reason = f"{pattern!r} stands for more than {_MOST_FILES} files"
        raise ConfigError(Problem("dataset.root", reason))
    return ["".join(parts) for parts in product(*choices)]


def split_of(name: str) -> str | None:
    """The split that the name of a file, or else of a folder above it, begins with, or None."""
    for part in reversed(name.split("/")):
        if _TRAIN.match(part):
            return "train"
        if _VAL.match(part):
            return "val"
        if _TEST.match(part):
            return "test"
    return None


T = TypeVar("T")


class OpenFiles(Generic[T]):
    """Number of a file -> the result of `open_one(number)`.

    An open file is used by one thread only and never moves to another process: a fork or a copy
    begins with none. It closes when nobody holds it any longer.

    Args:
        open_one: number -> an open file.
        limit: files that a thread keeps.
    """

    def __init__(self, open_one: Callable[[int], T], limit: int = 32) -> None:
        self._open_one = open_one
        self._limit = limit
        # Without a reference to `open_one`: a thread that lives on would keep the dataset alive.
        self._local = threading.local()

    def __getitem__(self, number: int) -> T:
        if getattr(self._local, "process", None) != os.getpid():
            self._local.files, self._local.process = OrderedDict(), os.getpid()
        files: OrderedDict[int, T] = self._local.files
        if number in files:
            files.move_to_end(number)
            return files[number]
        opened = files[number] = self._open_one(number)
        while len(files) > self._limit:
            files.popitem(last=False)
        return opened

    def __reduce__(self) -> tuple[type[OpenFiles[T]], tuple[Callable[[int], T], int]]:
        return type(self), (self._open_one, self._limit)


Buffer = Any  # bytes, or what gives them without a copy
FREE = 64 << 20  # bytes that any file may expand to, however small it is
PADDING = 64 << 20  # zeros behind a member of gzip, as tapes leave them; more is refused


def allowed(packed: int, limits: Limits) -> int:
    """Bytes that may come out of `packed` bytes."""
    return FREE + int(limits.expansion * packed)


def check_expansion(unpacked: int, packed: int, limits: Limits, name: str) -> None:
    """Raise DataError if `unpacked` bytes are too many for `packed` compressed ones."""
    if unpacked > allowed(packed, limits):
        shown = f"its {packed} compressed bytes expand to {unpacked} or more"
        raise DataError(f"{name}: {limits.refusal('expansion', shown)}.")


class DamagedError(Exception):
    """Compressed data is damaged."""


class Decompressed:
    """Reads concatenated members of gzip, or frames of zstd, forwards.

    Args:
        raw: at the first byte of the first member.
        new: a decompressor of one member, with `decompress`, `eof` and `unused_data`.
        errors: what that raises.
        padding: what may stand between members, and behind the last one.
        fed: bytes that it gets at once, so that what comes out at once is bounded.
    """

    def __init__(
        self,
        raw: BinaryIO,
        new: Callable[[], Any],
        errors: type[Exception],
        padding: bytes = b"",
        fed: int = 2048,
    ) -> None:
        self._raw, self._new, self._errors, self._padding = raw, new, errors, padding
        self._fed = fed
        self._member = new()
        self._begun = False  # whether the current member has any bytes
        self._skipped = 0  # bytes of padding since the last member
        self._left = b""  # compressed, of the next member
        self._content = memoryview(b"")  # decompressed, and not returned yet

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end.

        Raises:
            EOFError: the last member is not complete.
            DamagedError: the data is damaged.
        """
        parts, missing = [], size
        while missing:
            packed = b"" if self._content else self._left or self._raw.read(self._fed)
            if packed:
                self._decompress(packed)
            elif not self._content:
                break
            parts.append(bytes(self._content[:missing]))
            self._content = self._content[missing:]
            missing -= len(parts[-1])
        if missing and self._begun:
            raise EOFError("it ends in the middle of its compressed data")
        return b"".join(parts)

    def _decompress(self, packed: bytes) -> None:
        if self._padding and not self._begun and self._member.eof:
            size = len(packed)
            packed = packed.lstrip(self._padding)
            self._skipped += size - len(packed)
            if self._skipped > PADDING:
                raise DamagedError(f"more than {PADDING} bytes of padding follow its content")
            if not packed:
                self._left = b""
                return
        if self._member.eof:
            self._member, self._skipped = self._new(), 0
        try:
            self._content = memoryview(self._member.decompress(packed[: self._fed]))
        except self._errors as error:
            raise DamagedError(str(error)) from error
        self._begun = not self._member.eof
        unused = self._member.unused_data if self._member.eof else b""
        self._left = unused + packed[self._fed :]


def decompressed_gzip(raw: BinaryIO) -> Decompressed:
    """Concatenated members of gzip, whose checksums and lengths are verified."""
    wbits = 16 + zlib.MAX_WBITS  # a header and a trailer of gzip
    return Decompressed(raw, lambda: zlib.decompressobj(wbits), zlib.error, b"\0", 64 << 10)
