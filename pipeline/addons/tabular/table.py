"""Rows of a table for a model: numbers, categories, and a class or numbers to predict.

    age,income,plan,since,left
    34,51200,basic,2024-03-01,no
    51,,family,2021-11-20,yes

The table is read into memory whole (`frames.py`), encoded by what its training rows say
(`encoding.py`), and kept as arrays: 4 bytes a number and 8 a category. Reading 100,000 rows of 10
columns takes about a second for each split, and a sample 5 us.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.storage.files import data_file
from penstock.addons.tabular.encoding import (
    Encoding,
    Kind,
    encoding_of,
    kind_of,
    learned,
    oddities,
    summary,
)
from penstock.addons.tabular.frames import (
    Frame,
    TextFormat,
    check_columns,
    floats,
    listed,
    read_frame,
    words,
)
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, split_rows
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)

TargetKind = Literal["auto", "class", "number"]
WithoutTarget = Literal["refuse", "skip"]
_FEW = 20  # different whole numbers of a target that are classes


class Table(FileDataset, Dataset[Sample]):
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
        delimiter, decimal, encoding, missing: how a CSV is written, see `TextFormat`.
        val_fraction, split_seed: share of the rows that validate, and the seed of the split.
        files: access to addresses.
        limits: number of rows, of columns, of classes and categories; characters of a line.
        test_fraction: share of the rows of `file` that are kept for a test.

    Raises:
        DataError: the table is missing, damaged or has no rows; a cell is no number, date or class:
            the message names file, line (of Parquet: row) and column.
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
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._files = files or Files()
        self._split = (split, val_fraction, split_seed, test_fraction)
        self._names = targets = [target] if isinstance(target, str) else list(target)
        roles = _Roles(targets, columns, exclude, numbers, categories, dates)
        goal = _Goal(targets, kind, classes, without_target, limits)
        format = TextFormat(delimiter, decimal, encoding, missing)
        texts = [*categories, *dates, *(targets if goal.is_named else [])]

        def read(name: str | None, roles: _Roles) -> Frame:
            self._source: Any = root
            if isinstance(root, str) and name is not None:
                self._source = f"{root.rstrip('/')}/{name}"
            return read_frame(self._source, roles.chosen, texts, format, self._files)

        self._reading = format, limits
        frame = read(file, roles)
        goals = goal.learned(frame)
        share = 0.0 if val_file is not None else val_fraction
        labels = goals.values if goals.classes else None

        def divided(split: Split) -> IntArray:
            return split_rows(len(goals.rows), split, share, split_seed, labels, test_fraction)

        places = divided("train")
        if not len(places):
            raise ConfigError(Problem("dataset.val_fraction", "leaves no row to train on"))
        kinds, training = roles.kinds(frame), goals.rows[places]
        if split == "train":
            of_targets = dict.fromkeys(targets, "category" if goals.classes else "number")
            for name, column in [*of_targets.items(), *kinds.items()]:
                for oddity in oddities(frame, name, column, name in [*numbers, *texts]):
                    _log.warning("%s, column %r: %s", frame.name, name, oddity)
        self._learning = kinds, categories, rare, date_format, limits, split == "train"
        self.encoding = learned(frame, training, *self._learning)
        self.classes: list[str] = goals.classes
        self.target_mean, self.target_scale = _scale(
            frame, targets, goals.values[places], split == "train"
        )
        if split == "val" and val_file is not None:
            frame = read(val_file, replace(roles, columns=list(kinds)))
            goals = goal.encoded(frame, goals.classes)
            places = np.arange(len(goals.rows))
        elif split != "train":
            places = divided(split)
        self.rows = goals.rows[places]
        self._targets = goals.values[places]
        is_new = split == "val" and val_file is not None
        self._numbers, self._categories = self.encoding.encoded(frame, self.rows, is_new)
        self._frame = frame
        own = {"row", "label", "class"}
        self.columns = ["row", *(["label", "class"] if self.classes else [])]
        self.columns += [name for name in frame.table.columns if name not in own]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        target = self._targets[index]
        return {
            "numbers": torch.from_numpy(self._numbers[index].copy()),
            "categories": torch.from_numpy(self._categories[index].copy()),
            "target": int(target) if self.classes else torch.tensor(target, dtype=torch.float32),
        }

    fetches_batches = True
    kinds: ClassVar[dict[str, str]] = {}

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, torch.Tensor]:
        """Rows as the fields of a batch: [B, F], [B, C], and the targets of the samples."""
        targets = self._targets[indices]
        return {
            "numbers": torch.from_numpy(self._numbers[indices]),
            "categories": torch.from_numpy(self._categories[indices]),
            "target": torch.from_numpy(targets.astype(np.int64 if self.classes else np.float32)),
        }

    def learn_from(self, rows: IntArray) -> None:
        """Encode by what these samples say, int64[n]: `data.split` has them train."""
        self.encoding = learned(self._frame, self.rows[rows], *self._learning)
        self.target_mean, self.target_scale = _scale(
            self._frame, self._names, self._targets[rows], self._split[0] == "train"
        )
        self._numbers, self._categories = self.encoding.encoded(self._frame, self.rows)

    @property
    def learned(self) -> dict[str, Any]:
        """The facts of the training rows, as plain values, and how the file is written."""
        return {"encoding": summary(self.encoding), "format": vars(self._reading[0])}

    @classmethod
    def unlabelled(
        cls, root: str, learned: Mapping[str, Any], files: Files | None, limits: Limits
    ) -> Unlabelled:
        """Rows of another table, which may lack the target, encoded by what training rows said."""
        if not isinstance(root, str):
            reason = "a table is one file: name its path"
            raise ConfigError(Problem("dataset.root", reason))
        format, encoding = TextFormat(**learned["format"]), encoding_of(learned["encoding"])
        return Unlabelled(root, encoding, format, limits, files or Files())

    def about(self, index: int) -> dict[str, Any]:
        """The cells that a model gets of a sample, as they stand in the file."""
        cells, row = self._frame.plain, int(self.rows[index])
        return {name: of[row] for name, of in cells.items() if name not in self._names}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: row (of the file, from 0), label and class of a class, and the columns
        as they stand in the file."""
        import pandas as pd

        table = self._frame.table.iloc[self.rows].reset_index(drop=True)
        own: dict[str, Any] = {"row": self.rows}
        if self.classes:
            names = pd.Categorical.from_codes(self._targets, categories=pd.Index(self.classes))
            own |= {"label": self._targets, "class": names}
        return table.assign(**own)[self.columns]

    @property
    def facts(self) -> dict[str, Any]:
        """For models and objectives: num_numbers, cardinalities (of each column of categories),
        num_outputs; num_classes, or target_mean and target_scale of each number."""
        about = {
            "num_numbers": len(self.encoding.names),
            "cardinalities": self.encoding.cardinalities,
        }
        if self.classes:
            return {**about, **super().facts}
        outputs = len(self.target_mean)
        scales = {"target_mean": self.target_mean, "target_scale": self.target_scale}
        return {**about, "num_outputs": outputs, **scales}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The identity of the samples: the facts of the training rows, and this split's arrays."""
        name = self._source.rpartition("/")[2] if isinstance(self._source, str) else "frame"
        if not sized:
            return ["table", name, *self._split]
        about = json.dumps([summary(self.encoding), self.classes, self.target_mean])
        return ["table", about, self._numbers, self._categories, self._targets]

    def data_files(self) -> list[DataFile]:
        if not isinstance(self._source, str):
            return []
        return [data_file(self._source.rpartition("/")[2], self._source, self._files)]


class Unlabelled(FileDataset, Dataset[Sample]):
    """One sample: `numbers` and `categories` as in `Table`, for a prediction.

    Raises:
        DataError: as for `Table`.
        ConfigError: a column is missing that the model was trained on.
    """

    columns = ("row",)

    def __init__(
        self,
        root: str,
        encoding: Encoding,
        format: TextFormat,
        limits: Limits,
        files: Files,
    ) -> None:
        wanted = [*(column.name for column in encoding.numbers), *encoding.categories]

        def chosen(names: Sequence[str], name: str) -> list[str]:
            check_columns(names, wanted, "dataset.root", name)
            return wanted

        texts = [*encoding.categories, *(of.name for of in encoding.numbers if of.is_date)]
        self._frame = read_frame(root, chosen, texts, format, files, beside=True)
        rows = np.arange(len(self._frame))
        self._numbers, self._categories = encoding.encoded(self._frame, rows, is_new=True)
        self._root, self._files = root, files

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Sample:
        return {
            "numbers": torch.from_numpy(self._numbers[index].copy()),
            "categories": torch.from_numpy(self._categories[index].copy()),
        }

    def about(self, index: int) -> dict[str, Any]:
        """The cells of a row as they stand in the file, for a table of predictions."""
        return {
            f"table/{name}" if name in _OWN or name.startswith("score/") else name: cells[index]
            for name, cells in self._frame.plain.items()
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The arrays."""
        return ["unlabelled", *([self._numbers, self._categories] if sized else [self._root])]

    def data_files(self) -> list[DataFile]:
        return [data_file(self._root.rpartition("/")[2], self._root, self._files)]


_OWN = ("row", "path", "predicted", "error")  # columns of a table of predictions


@dataclass(frozen=True)
class _Roles:
    """Which columns a model gets, and as what."""

    targets: Sequence[str]
    columns: Sequence[str] | None
    exclude: Sequence[str]
    numbers: Sequence[str]
    categories: Sequence[str]
    dates: Sequence[str]

    def chosen(self, names: Sequence[str], name: str) -> list[str]:
        """The columns to read, in the order of the table: inputs and targets."""
        for key in ("target", "columns", "exclude", "numbers", "categories", "dates"):
            wanted = self.targets if key == "target" else getattr(self, key)
            check_columns(names, wanted or (), f"dataset.{key}", name)
        inputs = names if self.columns is None else self.columns
        kept = {name for name in inputs if name not in self.exclude} | set(self.targets)
        if kept <= set(self.targets):
            reason = "leaves no column for the model"
            raise ConfigError(Problem("dataset.columns", reason))
        return [name for name in names if name in kept]

    def kinds(self, frame: Frame) -> dict[str, Kind]:
        """The kind of each column that a model gets."""
        named: dict[str, list[Kind]] = {}
        roles: tuple[tuple[Kind, Sequence[str]], ...] = (
            ("number", self.numbers),
            ("category", self.categories),
            ("date", self.dates),
        )
        for kind, names in roles:
            for name in names:
                named.setdefault(name, []).append(kind)
        for name, kinds in named.items():
            if len(kinds) > 1 or name in self.targets:
                reason = f"column {name!r} is also a {'target' if kinds[1:] == [] else kinds[0]}"
                raise ConfigError(Problem(f"dataset.{_KEYS[kinds[-1]]}", reason))
        inputs = [name for name in frame.table.columns if name not in self.targets]
        return {name: named[name][0] if name in named else kind_of(frame, name) for name in inputs}


_KEYS: dict[Kind, str] = {"number": "numbers", "category": "categories", "date": "dates"}


@dataclass(frozen=True)
class _Goals:
    """Targets of rows: int64[n] of classes, float64[n] of a number, float64[n, K] of several."""

    rows: IntArray  # those that have one
    values: npt.NDArray[Any]
    classes: list[str]


@dataclass(frozen=True)
class _Goal:
    """The column to predict."""

    targets: Sequence[str]
    kind: TargetKind
    classes: Sequence[str] | None
    without: WithoutTarget
    limits: Limits

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError(Problem("dataset.target", "[]; name a column"))
        if len(self.targets) > 1 and self.is_named:
            reason = "several targets have to be numbers; name one column for a class"
            raise ConfigError(Problem("dataset.target", reason))
        if self.classes is not None and self.kind == "number":
            reason = "number, but dataset.classes names classes; leave one of them out"
            raise ConfigError(Problem("dataset.kind", reason))
        if self.without not in ("refuse", "skip"):
            reason = f"{self.without!r}; allowed: refuse, skip"
            raise ConfigError(Problem("dataset.without_target", reason))
        if self.kind not in ("auto", "class", "number"):
            reason = f"{self.kind!r}; allowed: auto, class, number"
            raise ConfigError(Problem("dataset.kind", reason))

    @property
    def is_named(self) -> bool:
        """Whether a person says that it is a class."""
        return self.kind == "class" or self.classes is not None

    def learned(self, frame: Frame) -> _Goals:
        """The targets of a table that trains, with the classes in it."""
        if not self._is_class(frame):
            return self._numbers(frame)
        name = self.targets[0]
        texts = words(frame, name)
        names = [str(text) for text in self.classes or _in_order(set(texts) - {None})]
        if len(set(names)) < len(names) or not names:
            reason = f"{listed(names)}; allowed: a list of different texts"
            raise ConfigError(Problem("dataset.classes", reason))
        check_classes(len(names), f"{frame.name!r}, column {name!r}", self.limits)
        return self._codes(frame, texts, names)

    def encoded(self, frame: Frame, classes: list[str]) -> _Goals:
        """The targets of another table, with the same classes; without any, numbers."""
        if not classes:
            return self._numbers(frame)
        return self._codes(frame, words(frame, self.targets[0]), classes)

    def _is_class(self, frame: Frame) -> bool:
        if self.is_named or self.kind == "number" or len(self.targets) > 1:
            return self.is_named
        kind = kind_of(frame, self.targets[0])
        if kind == "date":
            reason = f"{self.targets[0]!r} has dates, which are no target; give numbers or classes"
            raise ConfigError(Problem("dataset.target", reason))
        if kind == "category":
            return True
        values = floats(frame, self.targets[0])
        present = np.unique(values[~np.isnan(values)])
        return len(present) <= _FEW and bool((present % 1 == 0).all())

    def _codes(self, frame: Frame, texts: npt.NDArray[np.object_], names: list[str]) -> _Goals:
        codes: dict[object, int] = {text: code for code, text in enumerate(names)}
        rows = self._kept(frame, self.targets[0], np.array([text is None for text in texts]))
        for row in rows:
            if texts[row] not in codes:
                raise frame.error(
                    int(row),
                    self.targets[0],
                    f"is not one of the classes {listed(names)}. Correct it, or add it to "
                    "dataset.classes",
                )
        return _Goals(rows, np.array([codes[texts[row]] for row in rows], np.int64), names)

    def _numbers(self, frame: Frame) -> _Goals:
        values = np.stack([floats(frame, name) for name in self.targets], 1)
        rows = np.arange(len(frame))
        for place, name in enumerate(self.targets):
            rows = np.intersect1d(rows, self._kept(frame, name, np.isnan(values[:, place])))
        values = values[rows]
        return _Goals(rows, values[:, 0] if len(self.targets) == 1 else values, [])

    def _kept(self, frame: Frame, name: str, missing: npt.NDArray[np.bool_]) -> IntArray:
        """Rows whose target is there."""
        if missing.any() and self.without == "refuse":
            row = int(missing.argmax())
            raise DataError(
                f"{frame.where(row)}, column {name!r}: the target is missing. Fill it in, or leave "
                "such rows out: dataset.without_target=skip."
            )
        rows: IntArray = np.flatnonzero(~missing)
        if not len(rows):
            raise DataError(f"{frame.name!r}, column {name!r}: no row has a target.")
        return rows


def _in_order(texts: set[Any]) -> list[str]:
    """Classes by name; whole numbers by size."""
    try:
        return sorted(texts, key=lambda text: (int(text), text))
    except ValueError:
        return sorted(texts)


def _scale(
    frame: Frame, names: Sequence[str], values: npt.NDArray[Any], says: bool
) -> tuple[list[float], list[float]]:
    """Mean and deviation of each target that is a number."""
    if values.dtype.kind == "i":
        return [], []
    columns = values.reshape(len(values), -1)
    deviations, noise = columns.std(0), 8 * float(np.finfo(np.float32).eps)  # as samples hold them
    usable = scales(deviations, np.abs(columns).max(0), noise)
    for position in np.flatnonzero((usable != deviations) & says).tolist():
        wrong = "training rows differ by no more than rounding: there is nothing to learn"
        _log.warning("%s, column %r: %s", frame.name, names[position], wrong)
    return columns.mean(0).tolist(), usable.tolist()
