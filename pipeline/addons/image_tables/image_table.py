"""Images in a folder, and a table that says what is known of each.

    root/table.csv      path,label,age,caption,patient
                        cats/0001.jpg,cat,3.5,a cat on a mat,p17
    root/cats/0001.jpg  (the path is relative to root, or to `images`)

The table is any that `tables/read.py` reads. Which column is what says the configuration; the
others stand in `metadata`, for filters and samplers. Cost: the table in memory, about 60 bytes a
cell; one listing of each folder that it names, no image opened; and one image read a sample.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from penstock.addons.tables.read import Csv, TableFile
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import Files, open_root
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

Cell = str | list[str]  # a list where a column of Parquet has lists
_FLAGS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "0.0": 0.0, "1.0": 1.0}
_MOST = float(np.finfo(np.float32).max)
_SPLITS = {"validation": "val", "valid": "val"}


class _Cells:
    """A table as texts, "" where a value is missing."""

    def __init__(self, path: str, name: str, text: Csv) -> None:
        self.name, opened = name, TableFile(path, name, text)
        table = opened.table(opened.schema.names)
        self.columns = {of: [*map(_text, table[of].to_pylist())] for of in table.column_names}

    def column(self, name: str, key: str) -> list[Cell]:
        """The cells of a column; ConfigError for `key` if there is none of that name."""
        if name not in self.columns:
            names = [*self.columns]
            near = get_close_matches(name, names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            if len(names) == 1 and any(sign in names[0] for sign in ";\t"):
                hint = "; its columns are divided by another sign: set dataset.delimiter"
            reason = f"{self.name!r} has no column {name!r}{hint}; it has {', '.join(names[:12])}"
            raise ConfigError(Problem(key, reason))
        return self.columns[name]

    def texts(self, name: str, key: str, needed: bool = False) -> list[str]:
        """The same of a column without lists; DataError for an empty cell that is `needed`."""
        cells = self.column(name, key)
        for row, cell in enumerate(cells):
            if not isinstance(cell, str):
                raise self.error(row, name, "is a list, and one value is needed")
            if needed and not cell:
                raise self.error(row, name, "is empty. Fill it in or remove the row")
        return cells  # type: ignore[return-value]

    def error(self, row: int, column: str, wrong: str) -> DataError:
        """The error of a cell, which `wrong` completes: "is empty. Fill it in"."""
        shown = repr(self.columns[column][row])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return DataError(f"{self.name!r}, row {row}, column {column!r}: {shown} {wrong}.")

    def coded(
        self, column: str, rows: Sequence[Sequence[str]], classes: Sequence[str], limits: Limits
    ) -> list[str]:
        """The classes: those that are given, or else all names that the rows have."""
        first = {name: row for row, names in reversed([*enumerate(rows)]) for name in names}
        for name, row in first.items():
            if not name:
                raise self.error(row, column, "is empty: it needs a class")
            if classes and name not in classes:
                wrong = f"has the class {name!r}, and dataset.classes has {', '.join(classes[:8])}"
                raise self.error(row, column, wrong)
        check_classes(max(len(first), len(classes)), f"{self.name!r}, column {column!r}", limits)
        return [*classes] or sorted(first)

    def numbers(self, columns: Sequence[str], key: str, flags: bool) -> npt.NDArray[np.float32]:
        """Columns as numbers, or as 0 and 1: float32[N, K]."""
        made = []
        for column in columns:
            made.append(np.empty(len(self.column(column, key)), np.float32))
            for row, cell in enumerate(self.texts(column, key)):
                try:
                    value = _FLAGS[cell.lower()] if flags else float(cell)
                except KeyError:
                    wrong = "is neither 0 nor 1. Correct it, or take the column out of"
                    raise self.error(row, column, f"{wrong} dataset.labels") from None
                except ValueError:
                    wrong = "is not a number. Correct it" if cell else "is empty. Fill it in"
                    comma = "; write 1.5, not 1,5" if cell.count(",") == 1 else ""
                    wrong += f", remove the row, or take the column out of dataset.numbers{comma}"
                    raise self.error(row, column, wrong) from None
                if not abs(value) <= _MOST:
                    raise self.error(row, column, "is not finite. Correct it or remove the row")
                made[-1][row] = value
        return np.stack(made, 1)


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
        _check_roles(label, labels, numbers, separator)
        folder, text = (
            open_root(root, f"the table {table!r}", files),
            Csv(delimiter, True, encoding=encoding),
        )
        cells = folder.read(table, lambda path, shown: _Cells(path, shown, text))
        self.folder = folder.below(images)
        names = self._paths_of(cells, path, repeated)
        self.classes = [] if classes is None else [str(name) for name in classes]
        codes = flags = values = strata = None
        if label is not None:
            texts = cells.texts(label, "dataset.label")
            self.classes = cells.coded(label, [[name] for name in texts], self.classes, limits)
            numbered = {name: code for code, name in enumerate(self.classes)}
            codes = strata = np.array([numbered[name] for name in texts], np.int64)
        if isinstance(labels, str):
            rows_of = [_parts(cell, separator) for cell in cells.column(labels, "dataset.labels")]
            self.classes = cells.coded(labels, rows_of, self.classes, limits)
            if not self.classes:
                raise DataError(f"{cells.name!r}, column {labels!r}: no row has a label.")
            flags = np.array(
                [[name in own for name in self.classes] for own in rows_of], np.float32
            )
        elif labels is not None:
            self.classes = [*labels]
            check_classes(len(labels), "dataset.labels", limits)
            flags = cells.numbers(labels, "dataset.labels", True)
        if flags is not None:
            strata = _rarest(flags)
        if numbers:
            values = cells.numbers(numbers, "dataset.numbers", False)
        captions = None
        if caption is not None:
            captions = cells.texts(caption, "dataset.caption", needed=True)
        by_name = np.argsort(np.array([os.fsencode(name) for name in names]), kind="stable")
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
            together = names if group is None else cells.texts(group, "dataset.group")
            shares = val_fraction, test_fraction
            chosen = _divided(together, split, shares, split_seed, strata)
        rows = by_name[np.isin(by_name, chosen)]
        self.names = np.array([os.fsencode(name) for name in names])[rows]
        self.rows: IntArray = rows
        self.labels = None if codes is None else codes[rows]
        self.flags = None if flags is None else flags[rows]
        self.numbers = None if values is None else values[rows]
        self.captions = None if captions is None else [captions[row] for row in rows]
        self._cells = {name: [of[row] for row in rows] for name, of in cells.columns.items()}

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

    def _paths_of(self, cells: _Cells, path: str, repeated: bool) -> list[str]:
        """The file of each row, all of which are there."""
        names = cells.texts(path, "dataset.path", needed=True)
        rows: dict[str, int] = {}
        for row, name in enumerate(names):
            if rows.setdefault(name, row) != row and not repeated:
                wrong = f"is already in row {rows[name]}. Remove one of the rows, or set "
                wrong += "dataset.repeated=true if a file may be in several"
                raise cells.error(row, path, wrong)
        missing = self.folder.first_missing(names)
        if missing is not None:
            where = self.folder.path(names[missing])
            wrong = f"is missing ({where!r}). Put it there or remove the row (or set "
            wrong += "dataset.images to the folder that paths start from)"
            raise cells.error(missing, path, wrong)
        return names


def _check_roles(label: str | None, labels: object, numbers: object, separator: str) -> None:
    """Refuse columns that cannot be what they are named for."""
    if labels is not None and label is not None:
        reason = "a sample has either one class or several; set one of them to null"
        raise ConfigError(Problem("dataset.labels", f"beside dataset.label: {reason}"))
    if isinstance(numbers, str):
        raise ConfigError(Problem("dataset.numbers", f"{numbers!r}; write a list: [{numbers}]"))
    if labels is not None and not labels:
        raise ConfigError(Problem("dataset.labels", "names no column"))
    if isinstance(labels, str) and not separator:
        raise ConfigError(Problem("dataset.separator", "is empty; allowed: a sign or more"))


def _text(value: object) -> Cell:
    """A cell as text."""
    if value is None:
        return ""
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))  # a label, where a column of whole numbers has gaps
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).strip()


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
