"""Images in a folder, and a table that says what is known of each.

    root/table.csv      path,label,age,caption,patient
                        cats/0001.jpg,cat,3.5,a cat on a mat,p17
    root/cats/0001.jpg  (the path is relative to root, or to `images`)

The table is CSV, TSV, Parquet or Arrow. Which column is what says the configuration; the others
stand in `metadata`, for filters and samplers. Cost: the table in memory, about 60 bytes a cell;
one listing of each folder that it names, no image opened; and one image read a sample.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from penstock.addons.image_tables.cells import Cell, Cells, read_cells
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import Files, FolderFile, open_root
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Split,
    check_split,
    split_rows,
)
from penstock.datasets.reading.image import (
    Orientation,
    Reader,
    check_reader,
    encoded_image,
    read_image,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

_FLAGS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "0.0": 0.0, "1.0": 1.0}
_MOST = float(np.finfo(np.float32).max)
_SPLITS = {"validation": "val", "valid": "val"}


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
            finite. Names the line and the column.
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
        self.reader = check_reader(reader, orientation)
        check_split(split, val_fraction, test_fraction)
        self.lazy, self.limits = lazy, limits
        self._columns = _Roles(label, labels, numbers, caption)
        folder = open_root(root, f"the table {table!r}", files)
        cells = read_cells(FolderFile(folder, table), delimiter, encoding)
        self.folder = folder.below(images)
        names = self._paths_of(cells, path, repeated)
        facts = _Facts(cells, self._columns, separator, classes, limits)
        self.classes = facts.classes
        by_name = np.argsort(np.array([os.fsencode(name) for name in names]), kind="stable")
        groups = None if group is None else cells.texts(group, "dataset.group")
        if split_column is not None:
            column = cells.texts(split_column, "dataset.split_column")
            said = [_SPLITS.get(cell.lower(), cell.lower()) for cell in column]
            for row, name in enumerate(said):
                if name not in ("train", "val", "test"):
                    allowed = "is none of train, val, test. Correct it"
                    raise cells.error(row, split_column, allowed)
            chosen = np.flatnonzero(np.array(said) == split)
        else:
            # Of rows without groups, those of one file belong together.
            together = names if groups is None else groups
            shares = val_fraction, test_fraction
            chosen = _divided(together, split, shares, split_seed, facts.strata)
        rows = by_name[np.isin(by_name, chosen)]
        self.names = np.array([os.fsencode(name) for name in names])[rows]
        self.rows: IntArray = rows
        self.labels = None if facts.label is None else facts.label[rows]
        self.flags = None if facts.labels is None else facts.labels[rows]
        self.numbers = None if facts.numbers is None else facts.numbers[rows]
        self.captions = None if facts.captions is None else [facts.captions[row] for row in rows]
        self._cells = {
            name: [column[row] for row in rows] for name, column in cells.columns.items()
        }

    def __getitem__(self, index: int) -> Sample:
        read = encoded_image if self.lazy else read_image
        image = self._read(index, lambda path, shown: read(path, self.reader, shown, self.limits))
        return {"image": image, **self.facts_of(index)}

    def facts_of(self, index: int) -> Sample:
        """The table's entries for a sample."""
        sample: Sample = {}
        if self.labels is not None:
            sample["label"] = int(self.labels[index])
        if self.flags is not None:
            sample["labels"] = torch.from_numpy(self.flags[index].copy())
        if self.numbers is not None:
            sample["numbers"] = torch.from_numpy(self.numbers[index].copy())
        if self.captions is not None:
            sample["caption"] = self.captions[index]
        return sample

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: all columns of the table, as numbers where all cells are numbers.

        With the columns `path` (of the file), and with a label also `label` (its number) and
        `class`, instead of columns that are called so.
        """
        import pandas as pd

        table = pd.DataFrame({name: _as_column(cells) for name, cells in self._cells.items()})
        table["path"] = self._paths()
        if self.labels is not None:
            names = pd.Index(self.classes)
            table["label"] = self.labels
            table["class"] = pd.Categorical.from_codes(self.labels, categories=names)
        return table

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_classes, num_outputs."""
        count = 0 if self.numbers is None else self.numbers.shape[1]
        return super().facts or ({"num_outputs": count} if count else {})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and columns."""
        parts: list[Part] = ["image_table", self.reader, len(self.classes), *self.classes]
        parts += [*self._file_parts(sized), *(self.captions or [])]
        arrays = (self.labels, self.flags, self.numbers)
        return [*parts, *("none" if array is None else array for array in arrays)]

    def _paths_of(self, cells: Cells, path: str, repeated: bool) -> list[str]:
        """The file of each row, all of which are there."""
        names = cells.texts(path, "dataset.path")
        rows: dict[str, int] = {}
        for row, name in enumerate(names):
            if not name:
                raise cells.error(row, path, "is empty. Fill it in or remove the row")
            if rows.setdefault(name, row) != row and not repeated:
                first = f"row {rows[name]}"
                raise cells.error(
                    row,
                    path,
                    f"is already in {first}. Remove one of the rows, or set dataset.repeated=true "
                    "if a file may be in several",
                )
        missing = self.folder.first_missing(names)
        if missing is not None:
            where = self.folder.path(names[missing])
            raise cells.error(
                missing,
                path,
                f"is missing ({where!r}). Put it there or remove the row (or set dataset.images to "
                "the folder that paths start from)",
            )
        return names


class _Roles:
    """Which columns are what."""

    def __init__(
        self,
        label: str | None,
        labels: Sequence[str] | str | None,
        numbers: Sequence[str] | None,
        caption: str | None,
    ) -> None:
        self.label, self.caption = label, caption
        self.flags = [] if labels is None or isinstance(labels, str) else list(labels)
        self.names = labels if isinstance(labels, str) else None
        self.numbers = [] if numbers is None else list(numbers)
        if labels is not None and label is not None:
            reason = "a sample has either one class or several; set one of them to null"
            raise ConfigError(Problem("dataset.labels", f"beside dataset.label: {reason}"))
        if isinstance(numbers, str):
            raise ConfigError(Problem("dataset.numbers", f"{numbers!r}; write a list: [{numbers}]"))
        if labels is not None and not labels:
            raise ConfigError(Problem("dataset.labels", "names no column"))


class _Facts:
    """The content of a table's columns for all its rows.

    Attributes:
        classes: their names.
        label: int64[N], or None.
        labels: float32[N, C] of 0 and 1, or None.
        numbers: float32[N, K], or None.
        captions: N texts, or None.
        strata: int64[N], of which each split gets its share; or None.
    """

    def __init__(
        self,
        cells: Cells,
        roles: _Roles,
        separator: str,
        classes: Sequence[str] | None,
        limits: Limits,
    ) -> None:
        self._cells, self._limits = cells, limits
        self.classes = [] if classes is None else [str(name) for name in classes]
        self.label = self.labels = self.numbers = self.captions = self.strata = None
        if roles.label is not None:
            self.label = self.strata = self._codes(roles.label)
        if roles.names is not None:
            self.labels = self._several(roles.names, separator)
        elif roles.flags:
            self.classes = roles.flags
            check_classes(len(self.classes), "dataset.labels", limits)
            self.labels = self._table(roles.flags, "labels", _FLAGS)
        if self.labels is not None:
            self.strata = _rarest(self.labels)
        if roles.numbers:
            self.numbers = self._table(roles.numbers, "numbers", None)
        if roles.caption is not None:
            self.captions = cells.texts(roles.caption, "dataset.caption")
            if "" in self.captions:
                row = self.captions.index("")
                raise cells.error(row, roles.caption, "is empty. Fill it in or remove the row")

    def _codes(self, column: str) -> IntArray:
        names = self._cells.texts(column, "dataset.label")
        codes = self._numbered(column, ((row, name) for row, name in enumerate(names)))
        return np.array([codes[name] for name in names], np.int64)

    def _several(self, column: str, separator: str) -> npt.NDArray[np.float32]:
        if not separator:
            raise ConfigError(Problem("dataset.separator", "is empty; allowed: a sign or more"))
        cells = self._cells.column(column, "dataset.labels")
        rows = [_parts(cell, separator) for cell in cells]
        codes = self._numbered(
            column, ((row, name) for row, own in enumerate(rows) for name in own)
        )
        if not codes:
            raise DataError(f"{self._cells.name!r}, column {column!r}: no row has a label.")
        labels = np.zeros((len(rows), len(codes)), np.float32)
        for row, own in enumerate(rows):
            for name in own:
                labels[row, codes[name]] = 1.0
        return labels

    def _numbered(self, column: str, names: object) -> dict[str, int]:
        """The number of each class; those that are given, or else all that there are."""
        codes = {name: code for code, name in enumerate(self.classes)}
        first: dict[str, int] = {}
        for row, name in names:  # type: ignore[attr-defined]
            if name not in first:
                first[name] = row
                if not name:
                    raise self._cells.error(row, column, "is empty: it needs a class")
                if self.classes and name not in codes:
                    known = ", ".join(self.classes[:8])
                    wrong = f"has the class {name!r}, and dataset.classes has {known}"
                    raise self._cells.error(row, column, wrong)
                where = f"{self._cells.name!r}, row {row}"
                check_classes(max(len(first), len(codes)), where, self._limits)
        if not self.classes:
            self.classes = sorted(first)
            codes = {name: code for code, name in enumerate(self.classes)}
        return codes

    def _table(
        self, columns: Sequence[str], key: str, allowed: dict[str, float] | None
    ) -> npt.NDArray[np.float32]:
        """Columns as numbers, float32[N, K]."""
        table = np.empty((len(next(iter(self._cells.columns.values()))), len(columns)), np.float32)
        for place, column in enumerate(columns):
            for row, cell in enumerate(self._cells.texts(column, f"dataset.{key}")):
                if allowed is None:
                    table[row, place] = self._number(row, column, cell)
                elif cell.lower() in allowed:
                    table[row, place] = allowed[cell.lower()]
                else:
                    wrong = "is neither 0 nor 1. Correct it, or take the column out of"
                    raise self._cells.error(row, column, f"{wrong} dataset.labels")
        return table

    def _number(self, row: int, column: str, cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            wrong = "is not a number. Correct it" if cell else "is empty. Fill it in"
            comma = "; write 1.5, not 1,5" if cell.count(",") == 1 else ""
            wrong = f"{wrong}, remove the row, or take the column out of dataset.numbers{comma}"
            raise self._cells.error(row, column, wrong) from None
        if not abs(value) <= _MOST:
            raise self._cells.error(row, column, "is not finite. Correct it or remove the row")
        return value


def _parts(cell: Cell, separator: str) -> list[str]:
    """The names in a cell."""
    names = cell if isinstance(cell, list) else cell.split(separator)
    return [name for name in map(str.strip, names) if name]


def _rarest(labels: npt.NDArray[np.float32]) -> IntArray:
    """The rarest label of each row, int64[N]; the number of classes where it has none."""
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
) -> IntArray:
    """The rows of a split, where rows of one name in `together` stay together."""
    names, firsts, inverse = np.unique(
        np.array([os.fsencode(name) for name in together]), return_index=True, return_inverse=True
    )
    # Groups of several rows have no class of their own.
    alike = strata[firsts] if strata is not None and len(names) == len(together) else None
    groups = split_rows(names, split, shares[0], seed, alike, shares[1])
    return np.flatnonzero(np.isin(inverse, groups))


def _as_column(cells: list[Cell]) -> object:
    """Numbers where all cells are, and text."""
    import pandas as pd

    texts = ["|".join(cell) if isinstance(cell, list) else cell for cell in cells]
    try:
        return pd.to_numeric(pd.Series(texts))
    except (ValueError, TypeError):
        return texts
