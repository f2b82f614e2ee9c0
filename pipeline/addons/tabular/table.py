"""Rows of a table for a model: numbers, categories, and a class or numbers to predict.

    age,income,plan,since,left
    34,51200,basic,2024-03-01,no
    51,,family,2021-11-20,yes

    numbers       less their mean, by their deviation; a missing one is 0, the mean. Where training
                  rows miss some, a flag says so in a column of its own, 1 for missing
    dates         days since the mean date as a number, and where in the year, the week and (if any
                  has a time) the day it lies, as sine and cosine; missing as for numbers
    categories    0 for a missing one, 1 for one that training rows don't have, then a number for
                  each value, by name

`learned` reads training rows alone; `Encoding` then takes any rows. Samples are kept as arrays: 4
bytes a number and 8 a category. Reading 100,000 rows of 10 columns takes about a second for each
split, and a sample 15 us; batches are gathered at once.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel
from torch.utils.data import Dataset

from penstock.addons.storage.files import data_file
from penstock.addons.tables.kinds import is_text
from penstock.addons.tables.read import exact
from penstock.addons.tabular.frames import FRAME, Floats, Frame, Kind, check_roles, read_frame
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, split_rows
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)

TargetKind = Literal["auto", "class", "number"]
WithoutTarget = Literal["refuse", "skip"]
_FEW = 20  # different whole numbers of a target that are classes
_OWN = ("row", "path", "predicted", "error")  # columns of a table of predictions
MISSING, UNKNOWN, FIRST = 0, 1, 2  # indices of categories
_MANY = 100  # texts, all different, that are names of rows and no categories
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}  # days


class Scaled(BaseModel):
    """A column of numbers or dates: what its training rows say."""

    name: str
    is_date: bool
    mean: float
    scale: float
    flagged: bool
    daily: bool = False

    def encoded(self, values: Floats) -> dict[str, Floats]:
        """The numbers that it becomes, float64[N] each, by their names."""
        # A missing value is still NaN here, and NaN in all that is computed from it.
        missing = np.isnan(values)
        made = {self.name: (values - self.mean) / self.scale}
        for cycle in [*_CYCLES][: 2 + self.daily] if self.is_date else ():
            # From the values and not from their differences to the mean: the same day of the year
            # or week has the same angle in every table.
            angle = values * (2 * np.pi / _CYCLES[cycle])
            made[f"{self.name} sine of {cycle}"] = np.sin(angle)
            made[f"{self.name} cosine of {cycle}"] = np.cos(angle)
        # Zero is the mean of a number, and no day at all of a cycle: sine and cosine are never both
        # 0.
        made = {name: np.where(missing, 0.0, numbers) for name, numbers in made.items()}
        flags = {f"{self.name} missing": missing.astype(np.float64)}
        return made | flags if self.flagged else made


class Encoding(BaseModel):
    """All columns that a model gets; see the module. `model_dump` gives plain values.

    Attributes:
        numbers: columns of numbers and dates, in the order of the table.
        categories: those of the training rows, by column.
        date_format: of strptime; None: ISO 8601.
    """

    numbers: list[Scaled]
    categories: dict[str, list[str]]
    date_format: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of the numbers, in order."""
        return [name for column in self.numbers for name in column.encoded(np.zeros(0))]

    def encoded(
        self, frame: Frame, rows: IntArray, is_new: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Numbers [n, F] and indices of categories [n, C] of rows of a table.

        Args:
            is_new: whether categories that training rows don't have are logged.

        Raises:
            DataError: a cell is no number, or no date.
        """
        columns = list[Floats]()
        for column in self.numbers:
            values = _values(frame, column.name, column.is_date, self.date_format)[rows]
            columns += column.encoded(values).values()
        indices = np.zeros((len(rows), len(self.categories)), np.int64)
        for place, (name, known) in enumerate(self.categories.items()):
            # Categories that training rows lack share one index: a model cannot learn more of them
            # than that they are new, and its embedding has no place for them.
            codes: dict[str | None, int] = {None: MISSING} | {
                text: FIRST + number for number, text in enumerate(known)
            }
            texts = frame.words(name)[rows].tolist()
            indices[:, place] = [codes.get(text, UNKNOWN) for text in texts]
            # Validation rows of the same table have a few such by chance; those of another file may
            # have another spelling of all of them.
            new = Counter(text for text in texts if text not in codes)
            if new and is_new:
                wrong = "cells have categories that training rows don't have"
                shown = ", ".join(sorted(map(repr, new))[:10]) + " ..." * (len(new) > 10)
                _log.warning(
                    "%s, column %r: %d %s: %s", frame.name, name, new.total(), wrong, shown
                )
        # In rows of C order, so that a batch is one gather of neighbouring bytes a row.
        numbers = np.array(columns, np.float32).reshape(-1, len(rows)).T
        return np.ascontiguousarray(numbers), indices


def learned(
    frame: Frame,
    rows: IntArray,
    kinds: Mapping[str, Kind],
    chosen: Sequence[str],
    rare: int,
    date_format: str | None,
) -> Encoding:
    """The facts of a table's training rows.

    Args:
        rows: those that train.
        kinds: of the columns, in order.
        chosen: columns of categories that a person has named, of which any number may be.
        rare: categories of fewer training rows count as unknown.

    Raises:
        DataError: a cell is no number, or no date.
        ConfigError: nearly all texts of a column differ.
    """
    made = Encoding(numbers=[], categories={}, date_format=date_format)
    for name, kind in kinds.items():
        if kind != "category":
            values = _values(frame, name, kind == "date", date_format)[rows]
            made.numbers.append(_scaled(frame, name, values, kind == "date"))
            continue
        counts = Counter(text for text in frame.words(name)[rows] if text is not None)
        # An embedding of names or numbers of rows learns each training row by heart, and validation
        # rows are then all unknown: refused, unless a person asks for it.
        if name not in chosen and len(counts) > max(_MANY, counts.total() // 2):
            reason = (
                f"column {name!r} of {frame.name!r} has {len(counts)} different texts in "
                f"{counts.total()} rows, so a model learns nothing of it: leave it out, "
                f"dataset.exclude=[{name}]; or name it in dataset.categories to keep it. If it has "
                "numbers, say how they are written: dataset.missing, dataset.decimal"
            )
            raise ConfigError(Problem("dataset.categories", reason))
        # By name and not by frequency, so that one more row moves no other index.
        made.categories[name] = sorted(text for text, count in counts.items() if count >= rare)
    return made


def _values(frame: Frame, name: str, is_date: bool, date_format: str | None) -> Floats:
    """Numbers of a column, or days since 1970, float64[N]; NaN where a value is missing."""
    if not is_date:
        return frame.numbers(name)
    dates = frame.dates(name, date_format)
    # Days and not seconds: float64 then holds microseconds exactly for ten thousand years.
    days = (dates - np.datetime64("1970-01-01", "us")) / np.timedelta64(1, "D")
    return np.where(np.isnat(dates), np.nan, days)


def _scaled(frame: Frame, name: str, values: Floats, is_date: bool) -> Scaled:
    present = values[~np.isnan(values)]
    # Deviations from the first value: squares of dates or of large numbers would lose their digits.
    shift = float(present[0]) if len(present) else 0.0
    mean = shift + float((present - shift).mean()) if len(present) else 0.0
    deviation = float((present - mean).std()) if len(present) else 0.0
    # Floats of 32 bits differ from each other by rounding where those of 64 do not.
    noise = 1e-6 if str(frame.table[name].type) == "float" else 1e-11
    # A constant divided by its own rounding would be noise in training, and another value later
    # any number of deviations away.
    scale = float(scales(deviation, np.abs(present).max(initial=0.0), noise))
    daily = is_date and bool((present % 1).any())
    flagged = len(present) < len(values)
    return Scaled(name=name, is_date=is_date, mean=mean, scale=scale, flagged=flagged, daily=daily)


class Rows(FileDataset, Dataset[Sample]):
    """Rows of a table for a prediction. One sample: `numbers` (float32 [F]) and `categories`
    (int64 [C]).

    Args:
        frame: the table.
        rows: int64[N], those of the table that are samples.
        encoding: how they become numbers.
        files: access to addresses.
        is_new: whether categories that training rows don't have are logged.
    """

    # The loader gathers a whole batch: 0.1 us a row and column, where samples cost 15 us each.
    fetches_batches = True
    kinds: ClassVar[dict[str, str]] = {}

    def __init__(
        self, frame: Frame, rows: IntArray, encoding: Encoding, files: Files, is_new: bool = True
    ) -> None:
        self.frame, self.rows, self.encoding, self._files = frame, rows, encoding, files
        self._numbers, self._categories = encoding.encoded(frame, rows, is_new)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        fields = self.fetch_batch(np.array([index]))
        return {name: values[0] for name, values in fields.items()}

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, torch.Tensor]:
        """Rows as the fields of a batch: [B, F], [B, C]."""
        return {
            "numbers": torch.from_numpy(self._numbers[indices]),
            "categories": torch.from_numpy(self._categories[indices]),
        }

    def about(self, index: int) -> dict[str, Any]:
        """The cells of a row as they stand in the file, for a table of predictions."""
        return {
            # Columns that a table of predictions has by itself keep their names, those of the file
            # give way.
            f"table/{name}" if name in _OWN or name.startswith("score/") else name: value
            for name, value in self.frame.plain(int(self.rows[index])).items()
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The arrays."""
        arrays: list[Part] = [self._numbers, self._categories]
        return ["unlabelled", *(arrays if sized else [self.frame.name])]

    def data_files(self) -> list[DataFile]:
        name = self.frame.name
        return [data_file(name.rpartition("/")[2], name, self._files)] if name != FRAME else []


class Table(Rows):
    """One sample: `numbers` (float32 [F]), `categories` (int64 [C]) and `target` (int for a class,
    float32 [] for a number, float32 [K] for several).

    Args:
        root: a CSV, TSV, Parquet or Arrow file, or its folder; a path or an address. Or a pandas
            frame.
        target: the column to predict, or several of numbers.
        split: "train", "val" or "test"; with a class, each gives its share to all.
        file: name of the file in the folder `root`.
        val_file: another file that validates; without one, rows of `file` do.
        kind: what the target is; auto: a class if it is a text or a truth value, or whole numbers
            of which there are at most 20 different ones.
        classes: their names in order; None: as found, by name (numbers by size).
        columns: those that the model gets; None: all but the target.
        exclude: columns that it does not.
        numbers, categories, dates: columns that are these, whatever they look like.
        rare: categories of fewer training rows count as unknown.
        date_format: of strptime, as "%d.%m.%Y"; None: ISO 8601.
        without_target: what becomes of rows whose target is missing.
        delimiter, decimal, encoding, missing: how a CSV is written, see `read_frame`.
        val_fraction, split_seed: share of the rows that validate, and the seed of the split.
        files: access to addresses.
        test_fraction: share of the rows of `file` that are kept for a test.

    Raises:
        DataError: the table is missing, damaged or has no rows; a cell is no number, date or class:
            the message names file, row and column.
        ConfigError: there is no such column, or arguments contradict each other.
    """

    def __init__(
        self,
        root: str | pd.DataFrame,
        target: str | Sequence[str],
        split: Split = "train",
        file: str | None = None,
        val_file: str | None = None,
        kind: TargetKind = "auto",
        classes: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        numbers: Sequence[str] = (),
        categories: Sequence[str] = (),
        dates: Sequence[str] = (),
        rare: Count = 1,
        date_format: str | None = None,
        without_target: WithoutTarget = "refuse",
        delimiter: str | None = None,
        decimal: str = ".",
        encoding: str = "utf-8",
        missing: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._split = (split, val_fraction, split_seed, test_fraction)
        how = dict[str, Any](delimiter=delimiter, decimal=decimal, encoding=encoding)
        self._format = how | {"missing": missing}
        self._names = targets = [target] if isinstance(target, str) else list(target)
        roles = {"target": targets, "exclude": exclude}
        roles |= {"numbers": numbers, "categories": categories, "dates": dates}
        # A target that is an input as well would be predicted by copying it.
        check_roles(roles)
        # A person says that these are names, so 007 is not 7, whatever all cells look like.
        texts = [*categories, *dates, *(targets if kind == "class" or classes else [])]

        def read(file: str | None, columns: Sequence[str] | None) -> Frame:
            source = f"{root.rstrip('/')}/{file}" if isinstance(root, str) and file else root
            # Targets are read beside the columns that a person chose for the model.
            wanted = None if columns is None else [*columns, *targets]
            named = roles | {"columns": columns or ()}
            return read_frame(source, named, wanted, exclude, texts, files, **self._format)

        frame = read(file, columns)
        said: tuple[tuple[Kind, Sequence[str]], ...]
        said = ("number", numbers), ("category", categories), ("date", dates)
        of = {name: kind for kind, names in said for name in names}
        inputs = [name for name in frame.table.column_names if name not in targets]
        kinds = {name: of.get(name) or frame.kind(name) for name in inputs}
        if not kinds:
            raise ConfigError(Problem("dataset.columns", "leaves no column for the model"))
        self.classes = _classes(frame, targets, kind, classes)
        rows, self._targets = _targets(frame, targets, self.classes, without_target)
        # With a file for validation, every row of the first one trains, but for a test.
        share = 0.0 if val_file is not None else val_fraction
        labels = self._targets if self.classes else None
        training, own = (
            split_rows(len(rows), part, share, split_seed, labels, test_fraction)
            # Training rows are known to every split: all are encoded by what these say.
            for part in ("train", split)
        )
        if not len(training):
            raise ConfigError(Problem("dataset.val_fraction", "leaves no row to train on"))
        self._learning = kinds, categories, rare, date_format
        known = learned(frame, rows[training], *self._learning)
        # Before the targets of another file take their place.
        self._scale_targets(training)
        is_new = split == "val" and val_file is not None
        # What was text in the first file is text in this one, where all cells may look like
        # numbers: a category "1.50" would become "1.5", which training rows do not have.
        if is_new:
            texts += [name for name in kinds if is_text(frame.table[name].type)]
            frame = read(val_file, list(kinds))
            rows, self._targets = _targets(frame, targets, self.classes, without_target)
            own = np.arange(len(rows))
        self._targets = self._targets[own]
        super().__init__(frame, rows[own], known, files or Files(), is_new)

    def __getitem__(self, index: int) -> Sample:
        # A whole number, as classes of all datasets are: collating makes int64 [B] of it.
        sample = super().__getitem__(index)
        return {**sample, "target": int(sample["target"])} if self.classes else sample

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, torch.Tensor]:
        """Rows as the fields of a batch: [B, F], [B, C], and the targets of the samples."""
        targets = self._targets[indices].astype(np.int64 if self.classes else np.float32)
        return {**super().fetch_batch(indices), "target": torch.from_numpy(targets)}

    def learn_from(self, rows: IntArray) -> None:
        """Encode by what these samples say, int64[n]: `data.split` has them train."""
        known = learned(self.frame, self.rows[rows], *self._learning)
        self._scale_targets(rows)
        super().__init__(self.frame, self.rows, known, self._files, is_new=False)

    def _scale_targets(self, rows: IntArray) -> None:
        """Mean and deviation of each target that is a number, of rows that train."""
        # Classes have no scale, and leave both lists empty.
        values = self._targets[rows].reshape(len(rows), -1)[:, : 0 if self.classes else None]
        largest = np.abs(values).max(0)
        self.target_mean: list[float] = values.mean(0).tolist()
        self.target_scale: list[float] = scales(values.std(0), largest, 1e-6).tolist()

    @property
    def learned(self) -> dict[str, Any]:
        """The facts of the training rows, as plain values, and how the file is written."""
        return {"encoding": self.encoding.model_dump(exclude_none=True), "format": self._format}

    @classmethod
    def unlabelled(
        cls, root: str, learned: Mapping[str, Any], files: Files | None, limits: Limits
    ) -> Rows:
        """Rows of another table, which may lack the target, encoded by what training rows said."""
        # These facts come from the manifest of the run: nothing is learned of the new rows.
        encoding = Encoding(**learned["encoding"])
        # As texts: a new file may have only such names as look like numbers.
        texts = [*encoding.categories, *(of.name for of in encoding.numbers if of.is_date)]
        inputs = [*encoding.categories, *(of.name for of in encoding.numbers)]
        how = learned["format"]
        frame = read_frame(root, {"root": inputs}, texts=texts, files=files, **how)
        return Rows(frame, np.arange(len(frame)), encoding, files or Files())

    def about(self, index: int) -> dict[str, Any]:
        """The cells that a model gets of a sample, as they stand in the file."""
        cells = self.frame.plain(int(self.rows[index]))
        return {name: value for name, value in cells.items() if name not in self._names}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: row (of the file, from 0), label and class of a class, and the columns
        as they stand in the file."""
        import pandas as pd

        table, added = self.frame.table.take(self.rows), dict[str, Any](row=self.rows)
        if self.classes:
            names = pd.Categorical.from_codes(self._targets, categories=pd.Index(self.classes))
            added |= {"label": self._targets, "class": names}
        others = [name for name in table.column_names if name not in added]
        return pd.DataFrame(added | {name: exact(table[name]) for name in others})

    @property
    def facts(self) -> dict[str, Any]:
        """For models and objectives: num_numbers, cardinalities (of each column of categories),
        num_outputs; num_classes, or target_mean and target_scale of each number."""
        categories = self.encoding.categories.values()
        facts = {
            "num_numbers": len(self.encoding.names),
            "cardinalities": [FIRST + len(values) for values in categories],
        }
        scales = {"target_mean": self.target_mean, "target_scale": self.target_scale}
        numbers = {"num_outputs": len(self.target_mean), **scales}
        return facts | (super().facts if self.classes else numbers)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The identity of the samples: the facts of the training rows, and this split's arrays."""
        if not sized:
            return ["table", self.frame.name.rpartition("/")[2], *self._split]
        # Not the file: the same rows from CSV and Parquet are the same data.
        about = [self.learned["encoding"], self.classes, self.target_mean]
        return ["table", json.dumps(about), self._numbers, self._categories, self._targets]


def _classes(
    frame: Frame, targets: Sequence[str], kind: TargetKind, classes: Sequence[str] | None
) -> list[str]:
    """Names of the classes of the target, in order; none if it is a number, or several."""
    if classes is None and (kind == "number" or (kind == "auto" and len(targets) > 1)):
        return []
    if len(targets) > 1:
        reason = "several targets have to be numbers; name one column for a class"
        raise ConfigError(Problem("dataset.target", reason))
    if classes is None and kind == "auto":
        looks = frame.kind(targets[0])
        if looks == "date":
            reason = f"{targets[0]!r} has dates, which are no target; give numbers or classes"
            raise ConfigError(Problem("dataset.target", reason))
        # Few whole numbers are codes of classes more often than amounts; dataset.kind decides
        # otherwise.
        values = np.unique(frame.numbers(targets[0])) if looks == "number" else np.zeros(0)
        present = values[~np.isnan(values)]
        if len(present) > _FEW or (present % 1).any():
            return []
    if classes is not None:
        return [*map(str, classes)]
    # All rows and not only those that train: a class that only validation rows have is then a
    # class that is never right, and no error in the middle of a run.
    texts = {*frame.words(targets[0])} - {None}
    try:
        return sorted(texts, key=lambda text: (int(text), text))  # whole numbers by size
    except ValueError:
        return sorted(texts)


def _targets(
    frame: Frame, names: Sequence[str], classes: Sequence[str], without: WithoutTarget
) -> tuple[IntArray, npt.NDArray[Any]]:
    """The rows that have a target, and those targets: int64[n] of classes, float64[n] of a number,
    float64[n, K] of several."""
    if classes:
        texts = frame.words(names[0])
        missing: Any = np.array([text is None for text in texts])
        codes: dict[str | None, int] = {text: code for code, text in enumerate(classes)}
        # Rows without a target are taken out below, or refused.
        codes[None] = -1
        for row in np.flatnonzero([text not in codes for text in texts])[:1].tolist():
            wrong = f"is not one of the classes {', '.join(classes[:12])}"
            raise frame.error(row, names[0], f"{wrong}. Correct it, or add it to dataset.classes")
        values = np.array([codes[text] for text in texts], np.int64)
    else:
        values = np.stack([frame.numbers(name) for name in names], 1)
        missing = np.isnan(values).any(1)
        values = values[:, 0] if len(names) == 1 else values
    rows: IntArray = np.flatnonzero(~missing)
    if not len(rows) or (without == "refuse" and missing.any()):
        where = f"row {int(missing.argmax())}, column {', '.join(map(repr, names))}"
        raise DataError(
            f"{frame.name!r}, {where}: the target is missing. Fill it in, or leave such rows out: "
            "dataset.without_target=skip."
        )
    return rows, values[rows]
