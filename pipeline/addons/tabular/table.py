"""Rows of a table for a model: numbers, categories, and a class or numbers to predict.

    age,income,plan,since,left
    34,51200,basic,2024-03-01,no
    51,,family,2021-11-20,yes

The table is read into memory whole (`frames.py`), encoded by what its training rows say
(`encoding.py`), and kept as arrays: 4 bytes a number and 8 a category. Reading 100,000 rows of 10
columns takes about a second for each split, and a sample 15 us; batches are gathered at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.storage.files import data_file
from penstock.addons.tables.read import exact
from penstock.addons.tabular.encoding import FIRST, Encoding, learned
from penstock.addons.tabular.frames import FRAME, Frame, Kind, check_roles, read_frame
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, split_rows
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

if TYPE_CHECKING:
    import pandas as pd

TargetKind = Literal["auto", "class", "number"]
WithoutTarget = Literal["refuse", "skip"]
_FEW = 20  # different whole numbers of a target that are classes
_OWN = ("row", "path", "predicted", "error")  # columns of a table of predictions


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
        check_roles(roles)
        texts = [*categories, *dates, *(targets if kind == "class" or classes else [])]

        def read(file: str | None, columns: Sequence[str] | None) -> Frame:
            source = f"{root.rstrip('/')}/{file}" if isinstance(root, str) and file else root
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
        share = 0.0 if val_file is not None else val_fraction
        labels = self._targets if self.classes else None
        training, own = (
            split_rows(len(rows), part, share, split_seed, labels, test_fraction)
            for part in ("train", split)
        )
        if not len(training):
            raise ConfigError(Problem("dataset.val_fraction", "leaves no row to train on"))
        self._learning = kinds, categories, rare, date_format
        known = learned(frame, rows[training], *self._learning)
        self._scale_targets(training)
        is_new = split == "val" and val_file is not None
        if is_new:
            frame = read(val_file, list(kinds))
            rows, self._targets = _targets(frame, targets, self.classes, without_target)
            own = np.arange(len(rows))
        self._targets = self._targets[own]
        super().__init__(frame, rows[own], known, files or Files(), is_new)

    def __getitem__(self, index: int) -> Sample:
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
        encoding = Encoding(**learned["encoding"])
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
        values = np.unique(frame.numbers(targets[0])) if looks == "number" else np.zeros(0)
        present = values[~np.isnan(values)]
        if len(present) > _FEW or (present % 1).any():
            return []
    if classes is not None:
        return [*map(str, classes)]
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
        missing: npt.NDArray[np.bool_] = np.array([text is None for text in texts])
        codes: dict[str | None, int] = {text: code for code, text in enumerate(classes)}
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
