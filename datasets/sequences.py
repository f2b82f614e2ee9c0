"""Sequences of different lengths with a class each, in three `.npy` files.

    values.npy     [sum of lengths, F]    float: all sequences, one after the other
    offsets.npy    [N + 1] of integers    sequence i is values[offsets[i] : offsets[i + 1]]
    labels.npy     [N] of integers        its class; `classes.txt` may name them, one a line

The values are mapped, not loaded, and fetched whole from an address; offsets and labels take 24
bytes of memory a sequence. Sequences have no names, so their numbers decide the split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import DataFile, FileDataset, Part, Sample
from penstock.datasets.reading.labels import class_names, read_labels
from penstock.datasets.reading.mapped_array import MappedArray, not_finite
from penstock.datasets.reading.root import FolderFile, open_root
from penstock.datasets.reading.split import Split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd


class Sequences(FileDataset, Dataset[Sample]):
    """One sample: `sequence` (float32 [T, F]) and `label` (int).

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test"; each class gives its share to both.
        values, offsets, labels, classes: names of the files, relative to `root`.
        val_fraction, split_seed: share of the sequences that validate, and the seed of the split.
        files: access to addresses.
        limits: bytes of a sequence, number of sequences and of classes.
        test_fraction: share of the sequences that are kept for a test.

    Raises:
        DataError: a file is missing, damaged or of the wrong shape; the offsets do not go up from 0
            to the end; a label is negative. A value that is not finite is refused when it is read.
    """

    draws = False  # reading a sample takes no random numbers
    columns: ClassVar[tuple[str, ...]] = ("length", "label", "class")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        values: str = "values.npy",
        offsets: str = "offsets.npy",
        labels: str = "labels.npy",
        classes: str = "classes.txt",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        folder = open_root(root, f"{values!r}, {offsets!r} and {labels!r}", files, limits)
        self._values = MappedArray(FolderFile(folder, values), "dataset.values", limits)
        if self._values.dtype.kind != "f" or len(self._values.shape) != 2:
            raise DataError(
                f"dataset.values: {str(self._values.path)!r} is {self._values.dtype} "
                f"{self._values.shape}; it must be floats, [sum of lengths, features]."
            )
        bounds = MappedArray(FolderFile(folder, offsets), "dataset.offsets", limits)
        places = _read_offsets(bounds, self._values)
        classed = MappedArray(FolderFile(folder, labels), "dataset.labels", limits)
        all_labels = read_labels(classed, "dataset.labels", limits)
        if len(all_labels) != len(places) - 1:
            raise DataError(
                f"{str(classed.path)!r} has {len(all_labels)} labels, but "
                f"{str(bounds.path)!r} bounds {len(places) - 1} sequences."
            )
        self.classes = class_names(FolderFile(folder, classes), all_labels, limits)
        self.limits = limits
        self.rows = split_rows(
            len(all_labels), split, val_fraction, split_seed, all_labels, test_fraction
        )
        self.starts, self.ends = places[:-1][self.rows], places[1:][self.rows]
        self.labels = all_labels[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        start, end = int(self.starts[index]), int(self.ends[index])
        size = (end - start) * self._values.shape[1] * 4  # as float32
        if size > self.limits.record_bytes:
            raise DataError(
                f"{str(self._values.path)!r}, sequence {self.rows[index]} has {end - start} steps: "
                f"{self.limits.refusal('record_bytes', f'{size} bytes')}."
            )
        values = np.array(self._values.array[start:end], dtype=np.float32)
        position = not_finite(values)
        if position is not None:
            step, feature = position
            raise DataError(
                f"{str(self._values.path)!r}, row {start + step} (sequence {self.rows[index]}, "
                f"step {step}), feature {feature}: {values[step, feature]} is not finite. "
                "Repair the value or remove the sequence."
            )
        return {"sequence": torch.from_numpy(values), "label": int(self.labels[index])}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: length (steps), label, class (its name)."""
        import pandas as pd

        names = pd.Categorical.from_codes(self.labels, categories=pd.Index(self.classes))
        lengths = self.ends - self.starts
        return pd.DataFrame({"length": lengths, "label": self.labels, "class": names})

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_features, num_classes, num_outputs."""
        return {"num_features": self._values.shape[1], **super().facts}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """This split's bounds and labels, and the values (evenly spread blocks of them)."""
        bounds = [self.starts, self.ends, self.labels]
        return ["sequences", *bounds, *self._values.fingerprint_parts(sized)]

    def data_files(self) -> list[DataFile]:
        return [self._values.data_file()]


def _read_offsets(offsets: MappedArray, values: MappedArray) -> IntArray:
    """The bounds of the sequences, int64[N + 1]."""
    name = f"dataset.offsets: {str(offsets.path)!r}"
    if offsets.dtype.kind not in "ui" or len(offsets.shape) != 1 or len(offsets) < 2:
        raise DataError(
            f"{name} is {offsets.dtype} {offsets.shape}; it must be integers, one more than "
            "there are sequences."
        )
    places = np.array(offsets.array, dtype=np.int64)
    if places[0] != 0 or places[-1] != len(values):
        raise DataError(
            f"{name} goes from {places[0]} to {places[-1]}; it must go from 0 to the "
            f"{len(values)} rows of {str(values.path)!r}."
        )
    row = int(np.argmin(np.diff(places)))
    if places[row + 1] <= places[row]:
        raise DataError(
            f"{name}, sequence {row}: it goes from {places[row]} to {places[row + 1]}; offsets "
            "must go up, and every sequence needs a step at least."
        )
    return places
