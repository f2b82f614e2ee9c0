"""Inputs and targets in two `.npy` files, a row a sample.

    inputs.npy     [N, ...]            numbers of any kind
    targets.npy    [N] of integers     classes; a file `classes.txt` may name them, one a line
                   [N, ...] else       values to predict

The files are mapped, not loaded, and fetched whole from an address. Rows have no names, so their
numbers decide the split. Cost: a page or two read a sample; labels take 8 bytes of memory a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import DataFile, FileDataset, Part, Sample
from penstock.datasets.reading.labels import class_names, read_labels
from penstock.datasets.reading.mapped_array import MappedArray, not_finite, plain_numbers
from penstock.datasets.reading.root import FolderFile, open_root
from penstock.datasets.reading.split import Split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd


class Arrays(FileDataset, Dataset[Sample]):
    """One sample: `input` (Tensor [...]) and `target` (int for a class, else Tensor [...]).

    Floats of any width become float32; integers keep theirs (uint16 to uint64 become signed).

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test"; with classes, each gives its share to both.
        inputs, targets, classes: names of the files, relative to `root`.
        val_fraction, split_seed: share of the rows that validate, and the seed of the split.
        files: access to addresses.
        limits: bytes of a row, number of rows and of classes.
        test_fraction: share of the rows that are kept for a test.

    Raises:
        DataError: a file is missing, damaged or holds objects; the lengths differ; a label is
            negative. A value that is not finite is refused when its row is read.
    """

    draws = False  # reading a sample takes no random numbers
    columns: ClassVar[tuple[str, ...]] = ("row", "label")  # no label when targets are values

    def __init__(
        self,
        root: str,
        split: Split = "train",
        inputs: str = "inputs.npy",
        targets: str = "targets.npy",
        classes: str = "classes.txt",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        folder = open_root(root, f"{inputs!r} and {targets!r}", files, limits)
        self._inputs = MappedArray(FolderFile(folder, inputs), "dataset.inputs", limits)
        self._targets = MappedArray(FolderFile(folder, targets), "dataset.targets", limits)
        if len(self._inputs) != len(self._targets):
            raise DataError(
                f"{str(self._inputs.path)!r} has {len(self._inputs)} rows and "
                f"{str(self._targets.path)!r} {len(self._targets)}: both need a row a sample."
            )
        labels: IntArray | None = None
        self.classes: list[str] = []
        if self._targets.dtype.kind in "biu" and len(self._targets.shape) == 1:
            labels = read_labels(self._targets, "dataset.targets", limits)
            self.classes = class_names(FolderFile(folder, classes), labels, limits)
        self.rows = split_rows(
            len(self._inputs), split, val_fraction, split_seed, labels, test_fraction
        )
        self.labels = None if labels is None else labels[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Samples of a whole batch, read at once."""
        fields = self.fetch_batch(np.asarray(indices, dtype=np.int64))
        targets = fields["target"].tolist() if self.classes else _apart(fields["target"])
        pairs = zip(_apart(fields["input"]), targets, strict=True)
        return [{"input": input_, "target": target} for input_, target in pairs]

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
    def metadata(self) -> pd.DataFrame:
        """A row per sample: row (of the files), and label if the targets are classes."""
        import pandas as pd

        table = {"row": self.rows}
        return pd.DataFrame(table if self.labels is None else table | {"label": self.labels})

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models: num_outputs; num_classes; num_features of inputs [N, (T,) F]."""
        facts = super().facts or {"num_outputs": math.prod(self._targets.shape[1:])}
        if len(self._inputs.shape) in (2, 3):
            facts["num_features"] = self._inputs.shape[-1]
        return facts

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The rows of this split, and both files (of large ones, evenly spread blocks)."""
        files = self._inputs.fingerprint_parts(sized) + self._targets.fingerprint_parts(sized)
        return ["arrays", self.rows, *files]

    def data_files(self) -> list[DataFile]:
        return [self._inputs.data_file(), self._targets.data_file()]


def block(source: MappedArray, rows: IntArray) -> torch.Tensor:
    """Rows as one tensor, checked for NaN and infinity."""
    # A copy; indexing by rows would take three times as long.
    values = source.array.take(rows, axis=0)
    position = not_finite(values)
    if position is not None:
        raise DataError(
            f"{str(source.path)!r}, row {rows[position[0]]}, place {position[1:]}: "
            f"{values[tuple(position)]} is not finite. Repair the value or remove the row."
        )
    return torch.from_numpy(plain_numbers(values))


def _apart(rows: torch.Tensor) -> list[torch.Tensor]:
    """Rows of a block as tensors with storages of their own size."""
    return [torch.from_numpy(np.asarray(row)) for row in rows.numpy()]
