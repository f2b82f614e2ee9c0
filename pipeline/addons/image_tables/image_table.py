"""Images in a folder, and a table that says what is known of each.

    root/table.csv      path,label,age,caption,patient
                        cats/0001.jpg,cat,3.5,a cat on a mat,p17
    root/cats/0001.jpg  (the path is relative to root, or to `images`)

Which column is what says the configuration; the others stand in `metadata`, for filters and
samplers. Cost: the table in memory; one listing of each folder that it names, no image opened; and
one image read a sample.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.addons.tables.read import exact
from penstock.addons.tabular.frames import Frame, read_frame
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import Files, open_root
from penstock.datasets.reading.base import FolderDataset, Part, Sample, Split, split_rows
from penstock.datasets.reading.image import (
    Orientation,
    Reader,
    check_reader,
    encoded_image,
    read_image,
)
from penstock.errors import ConfigError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

_FLAGS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
_SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}


class ImageTable(FolderDataset):
    """One sample: `image` (uint8 [3, H, W], or as `lazy` says), and of the columns that are named:

    `label` (int), `labels` (float32 [C] of 0 and 1), `numbers` (float32 [K]), `caption` (str).

    Samples are in the order of their paths, and rows of one file in that of the table.

    Args:
        root: folder of the table; a path or an address.
        table: name of the table in it: .csv, .tsv, .parquet, .arrow or .feather.
        split: "train", "val" or "test".
        path: the column of paths.
        images: the folder that paths start from, relative to `root`.
        label: the column of a class; null: none.
        labels: columns of 0 and 1, a class each; or one column of the names of all classes that a
            row has, between `separator`s.
        separator: of names in one column of `labels`.
        classes: names of the classes of `label`, or of one column of `labels`, in order; null:
            those of the whole table, by name.
        numbers: columns of numbers.
        caption: the column of a text.
        group: the column of what is not divided: rows of one patient, say, are in one split.
        split_column: the column that says train, val (or validation) or test; null: by
            `val_fraction`.
        repeated: a file may be in several rows, as one with several captions; all are in one
            split.
        reader: "torchvision", "pillow" or "skimage".
        val_fraction: share of the rows that validate, of each class alike (of several labels, of
            the rarest that a row has); of groups, if there are any.
        split_seed: another seed, another split.
        delimiter: of columns; null: a tab for .tsv, else a comma.
        encoding: of a CSV or TSV.
        files: access to addresses.
        lazy: give `image` as an EncodedImage, undecoded, for a transform of
            `penstock.transforms.image_decoding`; the build sets it for those.
        limits: what a file and the table may claim.
        test_fraction: share of the rows, or groups, to keep for a test.
        orientation: "apply" turns images as their EXIF says; "ignore" takes them as they are
            stored, for `numbers` that are positions in these; None: "apply", and with several
            `numbers` a line with the count of such images.

    Raises:
        DataError: the table or an image is missing, or the table has a mistake: a path twice or one
            that leads out of the folder, a class that is not in `classes`, a number that is not
            finite. Names the row and the column.
        ConfigError: there is no such column, or an argument is invalid.
    """

    def __init__(
        self,
        root: str,
        table: str,
        split: Split = "train",
        path: str = "path",
        images: str = ".",
        label: str | None = None,
        labels: Sequence[str] | str | None = None,
        separator: str = "|",
        classes: Sequence[str] | None = None,
        numbers: Sequence[str] | None = None,
        caption: str | None = None,
        group: str | None = None,
        split_column: str | None = None,
        repeated: bool = False,
        reader: Reader = "torchvision",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        orientation: Orientation | None = None,
    ) -> None:
        if label is not None and labels is not None:
            reason = "beside dataset.label: a sample has one class or several; set one to null"
            raise ConfigError(Problem("dataset.labels", reason))
        self.reader, self.lazy, self.limits = check_reader(reader, orientation), lazy, limits
        several = [labels] if isinstance(labels, str) else labels
        roles: dict[str, Sequence[str | None]] = {
            "path": [path],
            "label": [label],
            "labels": several or (),
            "caption": [caption],
        }
        roles |= {"group": [group], "split_column": [split_column], "numbers": numbers or ()}
        named = {key: [name for name in names if name] for key, names in roles.items()}
        # These are names even where all cells of a CSV look like numbers: 0001 is no 1.
        texts = [path, label, labels, caption]
        folder = open_root(root, f"the table {table!r}", files)
        frame = read_frame(
            folder.path(table),
            named,
            texts=[name for name in texts if isinstance(name, str)],
            files=files,
            delimiter=delimiter,
            encoding=encoding,
            separator=separator,
        )
        self.folder = folder.below(images)
        names = frame.texts(path)
        self._check_files(frame, path, names, repeated)
        self.classes: list[str] = []
        self.fields, strata = dict[str, npt.NDArray[Any]](), None
        if label is not None:
            rows_of = [[name] for name in frame.texts(label)]
            self.classes = _classes(frame, label, rows_of, classes, limits)
            codes = {name: code for code, name in enumerate(self.classes)}
            self.fields["label"] = strata = np.array([codes[name] for (name,) in rows_of], np.int64)
        if labels is not None:
            flags: Any
            if isinstance(labels, str):
                cells = [(cell or "").split(separator) for cell in frame.words(labels)]
                rows_of = [[name for name in map(str.strip, cell) if name] for cell in cells]
                self.classes = _classes(frame, labels, rows_of, classes, limits)
                flags = [[name in own for name in self.classes] for own in rows_of]
            else:
                self.classes = [*labels]
                flags = np.stack([_flags(frame, column) for column in labels], 1)
            self.fields["labels"] = np.array(flags, np.float32)
            # A row of several labels has no class of its own to be divided by.
            strata = _rarest(self.fields["labels"])
        if numbers:
            made = np.stack([frame.numbers(column) for column in numbers], 1)
            # A missing number is NaN, and no comparison holds for it. Compared before the cast,
            # which would make infinity of what is too large.
            for row, place in np.argwhere(~(np.abs(made) <= np.finfo(np.float32).max))[:1].tolist():
                raise frame.error(
                    row, numbers[place], "is no float32. Correct it, or remove the row"
                )
            self.fields["numbers"] = made.astype(np.float32)
        if caption is not None:
            self.fields["caption"] = np.array(frame.texts(caption), object)
        if split_column is not None:
            parts = [_SPLITS.get(name.lower()) for name in frame.texts(split_column)]
            if None in parts:
                wrong = "is none of train, val, test. Correct it"
                raise frame.error(parts.index(None), split_column, wrong)
            chosen = np.array(parts) == split
        else:
            # Of rows without groups, those of one file belong together.
            together = names if group is None else frame.texts(group)
            shares = val_fraction, test_fraction
            chosen = _divided(together, split, shares, split_seed, strata)
        # Bytes: names of files need not be text.
        encoded = np.array([os.fsencode(name) for name in names])
        # In the order of paths, so that another order of the table changes no sample.
        by_name = np.argsort(encoded, kind="stable")
        self.rows: IntArray = by_name[chosen[by_name]]
        self.names = encoded[self.rows]
        self.fields = {name: values[self.rows] for name, values in self.fields.items()}
        # Of this split only; workers share it, as it is never written to.
        self._table = frame.table.take(self.rows)

    def __getitem__(self, index: int) -> Sample:
        read = encoded_image if self.lazy else read_image
        image = self._read(index, lambda path, shown: read(path, self.reader, shown, self.limits))
        return {"image": image, **self.facts_of(index)}

    def facts_of(self, index: int) -> Sample:
        """The table's entries for a sample."""
        sample: Sample = {name: values[index] for name, values in self.fields.items()}
        if "label" in sample:
            # A whole number of Python, as the samples of all datasets have for a class.
            sample["label"] = int(sample["label"])
        for name in {"labels", "numbers"} & sample.keys():
            # A copy: a transform may write to its sample, and the table stays.
            sample[name] = torch.from_numpy(sample[name].copy())
        return sample

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: all columns of the table, as numbers where all cells are numbers.

        With the columns `path` (of the file), and with a label also `label` (its number) and
        `class`, instead of columns that are called so.
        """
        import pandas as pd

        cells = {name: exact(self._table[name]) for name in self._table.column_names}
        cells["path"] = self._paths()
        if "label" in self.fields:
            cells["label"], names = self.fields["label"], pd.Index(self.classes)
            cells["class"] = pd.Categorical.from_codes(cells["label"], categories=names)
        return pd.DataFrame(cells)

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_classes, num_outputs."""
        numbers = self.fields.get("numbers")
        return super().facts or ({} if numbers is None else {"num_outputs": numbers.shape[1]})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and columns."""
        parts: list[Part] = ["image_table", self.reader, len(self.classes), *self.classes]
        parts += [*self._file_parts(sized), *self.fields.get("caption", [])]
        return [*parts, *(self.fields.get(name, "none") for name in ("label", "labels", "numbers"))]

    def _check_files(self, frame: Frame, path: str, names: Sequence[str], repeated: bool) -> None:
        """Refuse a row whose file is missing, or in another row too."""
        rows = dict[str, int]()
        for row, name in enumerate(names):
            if rows.setdefault(name, row) != row and not repeated:
                wrong = f"is already in row {rows[name]}. Remove one of the rows, or set "
                wrong += "dataset.repeated=true if a file may be in several"
                raise frame.error(row, path, wrong)
        # One listing a folder, and no look at each file: by much the faster on a network's disk.
        missing = self.folder.first_missing(names)
        if missing is not None:
            where = self.folder.path(names[missing])
            wrong = f"is missing ({where!r}). Put it there or remove the row (or set "
            wrong += "dataset.images to the folder that paths start from)"
            raise frame.error(missing, path, wrong)


def _flags(frame: Frame, column: str) -> list[Any]:
    """A column of 0 and 1, or of truth values, as numbers."""
    flags = [_FLAGS.get(str(word).lower()) for word in frame.words(column)]
    if None in flags:
        wrong = "is neither 0 nor 1. Correct it, or take the column out of dataset.labels"
        raise frame.error(flags.index(None), column, wrong)
    return flags


def _classes(
    frame: Frame,
    column: str,
    rows_of: Sequence[Sequence[str]],
    classes: Sequence[str] | None,
    limits: Limits,
) -> list[str]:
    """The classes: those that are given, or else all names that the rows have."""
    found = {name for names in rows_of for name in names}
    made = sorted(found) if classes is None else [*map(str, classes)]
    # Before the arrays that have a column a class.
    check_classes(len(made), f"{frame.name!r}, column {column!r}", limits)
    if other := found.difference(made):
        # The first such row, for the message; of all rows only if there is one.
        row = next(row for row, names in enumerate(rows_of) if other.intersection(names))
        raise frame.error(row, column, f"is none of the classes {', '.join(made[:8])}")
    return made


def _rarest(labels: npt.NDArray[np.float32]) -> IntArray:
    """The rarest label of each row, int64[N]; the number of classes where it has none."""
    # The added column is that of no label, and counts as the commonest: any label is rarer.
    counts = np.append(labels.sum(0), len(labels) + 1)
    present = np.append(labels, np.ones((len(labels), 1), np.float32), axis=1) > 0
    rarest: IntArray = np.where(present, counts, np.inf).argmin(1).astype(np.int64)
    return rarest


def _divided(
    together: Sequence[str],
    split: str,
    shares: tuple[float, float],
    seed: int,
    strata: IntArray | None,
) -> npt.NDArray[np.bool_]:
    """Which rows are of a split, where rows of one name in `together` stay together."""
    names, firsts, inverse = np.unique(
        np.array([os.fsencode(name) for name in together]), return_index=True, return_inverse=True
    )
    # Groups of several rows have no class of their own.
    alike = strata[firsts] if strata is not None and len(names) == len(together) else None
    groups = split_rows(names, split, shares[0], seed, alike, shares[1])
    return np.isin(inverse, groups)
