"""Sequences of different lengths with a class each, in three `.npy` files; and drawn ones.

    values.npy     [sum of lengths, F]    float: all sequences, one after the other
    offsets.npy    [N + 1] of integers    sequence i is values[offsets[i] : offsets[i + 1]]
    labels.npy     [N] of integers        its class; `classes.txt` may name them, one a line

The values are mapped, not loaded, and fetched whole from an address; offsets and labels take 24
bytes of memory a sequence. Sequences have no names, so their numbers decide the split.

A drawn stroke is a moving pen: each step is its displacement (x, y), with noise. Its class is the
way it turns: not at all, left, right, or to and fro. Cost: 25 us a stroke, once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch.utils.data import Dataset

from penstock.datasets.arrays import MappedArray, class_names, not_finite, read_labels
from penstock.datasets.files import DataFile, Files, FolderFile, generated_data, open_root
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    table,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits, Seed
from penstock.order.keys import IntArray, hash64

Steps = Annotated[int, Field(ge=3)]
VERSION = 1  # raise it when the strokes change
CLASSES = ("straight", "left", "right", "zigzag")
SHARES = (0.5, 0.25, 0.15, 0.1)  # of the strokes


class Sequences(FileDataset, Dataset[Sample]):
    """One sample: `sequence` (float32 [T, F]) and `label` (int).

    Args:
        root: folder of the files; a path or an address.
        split: "train", "val" or "test"; each class gives its share to both.
        values, offsets, labels, classes: names of the files, relative to `root`.
        shares: of the sequences that validate and test.
        files: access to addresses.
        limits: bytes of a sequence, number of sequences and of classes.

    Raises:
        DataError: a file is missing, damaged or of the wrong shape; the offsets do not go up from 0
            to the end; a label is negative. A value that is not finite is refused when it is read.
    """

    columns: ClassVar[tuple[str, ...]] = ("length", "label", "class")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        values: str = "values.npy",
        offsets: str = "offsets.npy",
        labels: str = "labels.npy",
        classes: str = "classes.txt",
        shares: Shares = Shares(),
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        folder = open_root(root, f"{values!r}, {offsets!r} and {labels!r}", files)
        self._values = MappedArray(FolderFile(folder, values), "dataset.values", limits)
        # Whole numbers would be ids, which a network of floats misreads without a word.
        if self._values.dtype.kind != "f" or len(self._values.shape) != 2:
            raise DataError(
                f"dataset.values: {str(self._values.path)!r} is {self._values.dtype} "
                f"{self._values.shape}; it must be floats, [sum of lengths, features]."
            )
        bounds = MappedArray(FolderFile(folder, offsets), "dataset.offsets", limits)
        places = _read_offsets(bounds, self._values)
        classed = MappedArray(FolderFile(folder, labels), "dataset.labels", limits)
        all_labels = read_labels(classed, "dataset.labels", limits)
        if (total := len(all_labels)) != len(places) - 1:
            raise DataError(
                f"{str(classed.path)!r} has {total} labels, but "
                f"{str(bounds.path)!r} bounds {len(places) - 1} sequences."
            )
        self.classes = class_names(FolderFile(folder, classes), all_labels, limits)
        self.rows = shares.rows(split, total, all_labels)
        self.starts, self.ends = places[:-1][self.rows], places[1:][self.rows]
        self.labels = all_labels[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        start, end = int(self.starts[index]), int(self.ends[index])
        # A copy: the map is read-only, and transforms write into samples.
        values = np.array(self._values.array[start:end], dtype=np.float32)
        if (position := not_finite(values)) is not None:
            step, feature = position
            raise DataError(
                f"{str(self._values.path)!r}, row {start + step} (sequence {self.rows[index]}, "
                f"step {step}), feature {feature}: {values[step, feature]} is not finite. "
                "Repair the value or remove the sequence."
            )
        return {"sequence": torch.from_numpy(values), "label": int(self.labels[index])}

    @property
    def metadata(self) -> Table:
        """A row per sample: length (steps), label, class (its name)."""
        return table({"length": self.ends - self.starts, "label": self.labels}, self.classes)

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_features, num_classes, num_outputs."""
        return {"num_features": self._values.shape[1], **super().facts}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """This split's bounds and labels, and the values (evenly spread blocks of them)."""
        values = self._values.fingerprint_parts(sized)
        return ["sequences", self.starts, self.ends, self.labels, *values]

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
    # The smallest step: if that one goes up, all do.
    row = int(np.argmin(np.diff(places)))
    if places[0] != 0 or places[-1] != len(values) or places[row + 1] <= places[row]:
        raise DataError(
            f"{name} goes from {places[0]} to {places[-1]}, and for sequence {row} from "
            f"{places[row]} to {places[row + 1]}; offsets must go up from 0 to the {len(values)} "
            f"rows of {str(values.path)!r}, and every sequence needs a step at least."
        )
    return places


class SyntheticSequences(Sequences):
    """Strokes; samples as in `Sequences`: `sequence` (float32 [T, 2]) and `label` (0 to 3).

    The first use writes them into a folder of `root` that is named by its arguments.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        split: "train", "val" or "test".
        count: number of strokes of all splits, 8 or more.
        shortest, longest: bounds of the lengths, in steps; 3 or more.
        seed: other strokes for another seed.
        shares: as in `Sequences`.

    Raises:
        ConfigError: a number is out of range.
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Annotated[int, Field(ge=8)] = 2000,
        shortest: Steps = 5,
        longest: Steps = 120,
        seed: Seed = 0,
        shares: Shares = Shares(),
    ) -> None:
        if not shortest <= longest:
            reason = f"lengths from {shortest} to {longest}; shortest is the larger one"
            raise ConfigError(Problem("dataset.shortest", reason))
        name = f"{count}x{shortest}-{longest}-seed{seed}-v{VERSION}"
        with generated_data(
            root,
            "synthetic_sequences",
            name,
            lambda folder: _write(folder, count, (shortest, longest), seed),
        ) as made:
            super().__init__(made, split, shares=shares)


def _write(folder: Path, count: int, lengths: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(hash64(seed, "strokes"))
    # Exact shares, so that every class occurs; the order is random.
    bounds = np.round(np.cumsum(SHARES) * count).astype(np.int64)
    labels = np.searchsorted(bounds, random.permutation(count), side="right")
    strokes = [_stroke(int(label), lengths, random) for label in labels]
    offsets = np.cumsum([0, *(len(stroke) for stroke in strokes)], dtype=np.int64)
    np.save(folder / "values.npy", np.concatenate(strokes))
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "labels.npy", labels.astype(np.int64))
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


def _stroke(
    label: int, lengths: tuple[int, int], random: np.random.Generator
) -> npt.NDArray[np.float32]:
    """The displacements of one stroke, float32[T, 2], each about 1 long."""
    # Short strokes are more frequent than long ones, as in most data.
    shortest, longest = np.log(lengths[0]), np.log(lengths[1] + 1)
    steps = min(int(np.exp(random.uniform(shortest, longest))), lengths[1])
    turn = random.uniform(0.25, 0.6)
    turns = {
        "straight": np.zeros(steps),
        "left": np.full(steps, -turn),
        "right": np.full(steps, turn),
        "zigzag": np.where(np.arange(steps) % 2, 2.2 * turn, -2.2 * turn),
    }[CLASSES[label]]
    heading = random.uniform(0, 2 * np.pi) + np.cumsum(turns + random.normal(0, 0.04, steps))
    speed = random.uniform(0.8, 1.2)
    moves = speed * np.stack([np.cos(heading), np.sin(heading)], axis=1)
    return (moves + random.normal(0, 0.05, moves.shape)).astype(np.float32)
