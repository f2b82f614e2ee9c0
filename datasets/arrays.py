"""Numbers in `.npy` files: one that is read in place, and a dataset of two, a row a sample.

    inputs.npy     [N, ...]            numbers of any kind
    targets.npy    [N] of integers     classes; a file `classes.txt` may name them, one a line
                   [N, ...] else       values to predict

The files are mapped, not loaded, and fetched whole from an address. Rows have no names, so their
numbers decide the split. Cost: a page or two read a sample; labels take 8 bytes of memory a row.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.datasets.files import DataFile, Files, FolderFile, open_root
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    table,
)
from penstock.errors import DataError
from penstock.files.data import read_file
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray


class Arrays(FileDataset, Dataset[Sample]):
    """One sample: `input` (Tensor [...]) and `target` (int for a class, else Tensor [...]).

    Floats of any width become float32; integers keep theirs (uint16 to uint64 become signed).

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test"; with classes, each gives its share to both.
        inputs, targets, classes: names of the files, relative to `root`.
        shares: of the rows that validate and test.
        files: access to addresses.
        limits: bytes of a row, number of rows and of classes.

    Raises:
        DataError: a file is missing, damaged or holds objects; the lengths differ; a label is
            negative. A value that is not finite is refused when its row is read.
    """

    columns: ClassVar[tuple[str, ...]] = ("row", "label")  # no label when targets are values

    def __init__(
        self,
        root: str,
        split: Split = "train",
        inputs: str = "inputs.npy",
        targets: str = "targets.npy",
        classes: str = "classes.txt",
        shares: Shares = Shares(),
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        folder = open_root(root, f"{inputs!r} and {targets!r}", files)
        self._inputs = MappedArray(FolderFile(folder, inputs), "dataset.inputs", limits)
        self._targets = MappedArray(FolderFile(folder, targets), "dataset.targets", limits)
        total, labels = len(self._inputs), None
        if total != len(self._targets):
            raise DataError(
                f"{str(self._inputs.path)!r} has {total} rows and {str(self._targets.path)!r} "
                f"{len(self._targets)}: both need a row a sample."
            )
        self.classes: list[str] = []
        # Whole numbers in one dimension are classes; anything else is a value to predict.
        if self._targets.dtype.kind in "biu" and len(self._targets.shape) == 1:
            labels = read_labels(self._targets, "dataset.targets", limits)
            self.classes = class_names(FolderFile(folder, classes), labels, limits)
        self.rows = shares.rows(split, total, labels)
        self.labels = None if labels is None else labels[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        fields = self.fetch_batch(np.array([index]))
        # A row goes the way of a batch, so the two cannot differ in a bit.
        target = fields["target"][0]
        return {"input": fields["input"][0], "target": target.item() if self.classes else target}

    fetches_batches = True
    kinds: ClassVar[dict[str, str]] = {}

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, torch.Tensor]:
        """Rows as the fields of a batch: tensors [B, ...] and the classes, int64[B]."""
        rows = self.rows[indices]
        labels = None if self.labels is None else torch.from_numpy(self.labels[indices])
        return {
            "input": block(self._inputs, rows),
            "target": block(self._targets, rows) if labels is None else labels,
        }

    @property
    def metadata(self) -> Table:
        """A row per sample: row (of the files), and label if the targets are classes."""
        return table({"row": self.rows} | ({} if self.labels is None else {"label": self.labels}))

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models: num_outputs; num_classes; num_features of inputs [N, (T,) F]."""
        # Pictures have no num_features: their channels and sides are none.
        facts = super().facts or {"num_outputs": math.prod(self._targets.shape[1:])}
        if len(self._inputs.shape) in (2, 3):
            facts["num_features"] = self._inputs.shape[-1]
        return facts

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The rows of this split, and both files (of large ones, evenly spread blocks)."""
        files = self._inputs.fingerprint_parts(sized) + self._targets.fingerprint_parts(sized)
        # The rows, so that two splits of one file differ.
        return ["arrays", self.rows, *files]

    def data_files(self) -> list[DataFile]:
        return [self._inputs.data_file(), self._targets.data_file()]


def block(source: MappedArray, rows: IntArray) -> torch.Tensor:
    """Rows as one tensor, checked for NaN and infinity."""
    # A copy; indexing by rows would take three times as long.
    values = source.array.take(rows, axis=0)
    if (position := not_finite(values)) is not None:
        raise DataError(
            f"{str(source.path)!r}, row {rows[position[0]]}, place {position[1:]}: "
            f"{values[tuple(position)]} is not finite. Repair the value or remove the row."
        )
    return torch.from_numpy(plain_numbers(values))


class MappedArray:
    """Numbers in a `.npy` file, mapped; at an address, the whole file is fetched first.

    Cost: about 0.1 ms whatever the size. Processes on one machine share the pages; a copy sent to a
    worker opens the file again.

    Args:
        path: the file.
        key: the configuration key that names it, for messages.
        limits: `record_bytes` of a row.

    Attributes:
        path: the file; `str(path)` is its path or address.
        shape, dtype: of the whole array.

    Raises:
        DataError: the file is missing, cut short, not a `.npy` file, has rows that are too large,
            or holds Python objects (a pickle, which is never opened) or anything but numbers.
    """

    def __init__(self, path: FolderFile, key: str, limits: Limits = DEFAULT) -> None:
        self.path, self._key = path, key
        self.shape, self.dtype = self.array.shape, self.array.dtype
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        if row_bytes > limits.record_bytes:
            refusal = limits.refusal("record_bytes", f"rows of {row_bytes} bytes")
            raise DataError(f"{key}: {str(path)!r} has {refusal}.")

    def __len__(self) -> int:
        return len(self.array)

    @cached_property
    def array(self) -> npt.NDArray[Any]:
        """The whole array, read-only; only accessed pages are read."""
        name = f"{self._key}: {str(self.path)!r}"
        try:
            array: npt.NDArray[Any] = self.path.read(lambda path: np.load(path, mmap_mode="r"))
        except (OSError, ValueError, EOFError) as error:
            wrong = f"it is no .npy file of numbers ({error}); write it with numpy.save"
            raise DataError(
                f"{name} cannot be read: {getattr(error, 'strerror', None) or wrong}."
            ) from error
        # Complex numbers and dates have no type in torch that models take.
        if array.dtype.kind not in "biuf":
            raise DataError(f"{name} holds {array.dtype}; save numbers with numpy.save.")
        if array.ndim == 0 or len(array) == 0:
            raise DataError(f"{name} has the shape {array.shape}: it has no rows.")
        return array

    def __getstate__(self) -> dict[str, object]:
        # A pickled map would hold all of the array.
        return {name: value for name, value in self.__dict__.items() if name != "array"}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Shape, dtype and, if `sized`, 1024 blocks of 4 KiB, evenly spread, else the name."""
        if not sized:
            return [str(self.shape), self.dtype.str, self.path.name]
        return [str(self.shape), self.dtype.str, *self.path.read(_blocks)]

    def data_file(self) -> DataFile:
        """The file, for hashing its content."""
        return self.path.folder.data_file(self.path.name)


def _blocks(path: str) -> list[Part]:
    """The size of a file, and 1024 blocks of 4 KiB of it, evenly spread; all of a smaller one."""
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        # 1,024 blocks of a page: a changed value in between goes unseen; data.fingerprint=content
        # sees it.
        starts = range(0, size, max(-(-size // 1024), 4096))
        return [size, *(file.read(4096) for start in starts if file.seek(start) >= 0)]


def plain_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of numbers that torch has a type for: floats as float32, wide unsigned ones signed.

    Raises:
        ValueError: the values are not numbers.
    """
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind not in "biuf":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    if kind == "f" or (kind == "u" and width > 1):
        return values.astype(np.float32 if kind == "f" else np.int32 if width == 2 else np.int64)
    # torch takes numbers of this machine's byte order only.
    return values.astype(values.dtype.newbyteorder("="))


def not_finite(values: npt.NDArray[Any]) -> list[int] | None:
    """The place of the first float that is NaN or infinite; None if there is none."""
    # One NaN makes every weight NaN, and by then nothing tells which row it was.
    if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
        return None
    return [int(number) for number in np.unravel_index(finite.argmin(), finite.shape)]


def read_labels(labels: MappedArray, key: str, limits: Limits = DEFAULT) -> IntArray:
    """Labels as int64[N]; DataError unless all are integers from 0 to below `limits.classes`."""
    name = f"{key}: {str(labels.path)!r}"
    if labels.dtype.kind not in "bui" or len(labels.shape) != 1:
        raise DataError(
            f"{name} is {labels.dtype} {labels.shape}; labels must be integers, one a row."
        )
    # In memory: samplers and splits read all of them.
    stored = np.array(labels.array, dtype=np.int64)
    lowest, highest = int(stored.argmin()), int(stored.argmax())
    if stored[lowest] < 0:
        raise DataError(f"{name}, row {lowest}: label {stored[lowest]}; labels start at 0.")
    last = int(stored[highest])
    check_classes(last + 1, f"{name}, row {highest}: label {last}", limits)
    return stored


def check_classes(count: int, where: str, limits: Limits) -> None:
    """Raise DataError for more classes than `limits.classes`; `where` begins the message."""
    if count > limits.classes:
        raise DataError(f"{where} makes {limits.refusal('classes', f'{count} classes')}.")


def class_names(file: FolderFile, labels: IntArray, limits: Limits = DEFAULT) -> list[str]:
    """A name a line from `file`, or "0", "1" ... if it is missing."""
    count = int(labels.max()) + 1
    if file.folder.first_missing([file.name]) is not None:
        return [str(number) for number in range(count)]
    try:
        names = file.read(lambda path: read_file(path, limits)).decode("utf-8").rstrip().split("\n")
    except (OSError, UnicodeDecodeError, DataError) as error:
        raise DataError(
            f"dataset.classes: {str(file)!r} cannot be read: {error}. Give it a name a line, in "
            "UTF-8."
        ) from error
    if len(names) < count:
        raise DataError(
            f"dataset.classes: {str(file)!r} names {len(names)} classes, but there is a label "
            f"{count - 1}. Give it a line for each of 0 to {count - 1}."
        )
    return [name.strip() for name in names]
