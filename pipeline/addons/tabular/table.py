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

Samples are kept as arrays: 4 bytes a number and 8 a category. Reading 100,000 rows of 10 columns
takes about a second for each split, and a sample 15 us; batches are gathered at once.

`num_numbers` and `cardinalities` of the models are facts of `dataset=table`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from penstock.addons.storage.files import data_file
from penstock.addons.tables.read import exact
from penstock.addons.tabular.frames import (
    FIRST,
    FRAME,
    Frame,
    check_roles,
    encoded,
    learned,
    read_frame,
)
from penstock.datasets.files import DataFile, Files, generated_data
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Shares,
    Split,
    table,
)
from penstock.files.limits import Count, Limits, Seed
from penstock.loading.batch import Batch
from penstock.order.keys import IntArray, hash64
from penstock.training.objective import Loss, Regression
from penstock.transforms.statistics import scales

if TYPE_CHECKING:
    from torchmetrics import Metric

_FEW = 20  # different whole numbers of a target that are classes
_OWN = ("row", "path", "predicted", "error")  # columns of a table of predictions


class Rows(FileDataset, Dataset[Sample]):
    """Rows of a table for a prediction. One sample: `numbers` (float32 [F]) and `categories`
    (int64 [C]).

    Args:
        frame: the table.
        rows: int64[N], those of the table that are samples.
        encoding: how they become numbers, see `learned`.
        files: access to addresses.
        targets: the field `target` of each row.

    Attributes:
        names: of the numbers, in order.
    """

    # The loader gathers a whole batch: 0.1 us a row and column, where samples cost 15 us each.
    fetches_batches = True
    kinds: ClassVar[dict[str, str]] = {}
    _hidden: Sequence[str] = ()

    def __init__(
        self,
        frame: Frame,
        rows: IntArray,
        encoding: Mapping[str, Any],
        files: Files,
        targets: npt.NDArray[Any] | None = None,
    ) -> None:
        self.frame, self.rows, self.encoding, self._files = frame, rows, encoding, files
        self.names, self._fields = encoded(frame, rows, encoding)
        if targets is not None:
            self._fields["target"] = targets.astype(
                np.float32 if targets.dtype.kind == "f" else np.int64
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        # A class is a whole number, as of all datasets: collating makes int64 [B] of it.
        return {
            name: of[0] if of.ndim > 1 or of.is_floating_point() else of.item()
            for name, of in self.fetch_batch(np.array([index])).items()
        }

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, torch.Tensor]:
        """Rows as the fields of a batch: [B, F], [B, C], and the targets of the samples."""
        return {name: torch.from_numpy(values[indices]) for name, values in self._fields.items()}

    def about(self, index: int) -> dict[str, Any]:
        """The cells of a row that a model may see, as they stand in the file: numbers, truth values
        or texts. Columns that a table of predictions has by itself get names of their own."""
        (cells,) = self.frame.table.slice(int(self.rows[index]), 1).to_pylist()
        return {
            f"table/{name}" if name in _OWN or name.startswith("score/") else name: value
            for name, value in json.loads(json.dumps(cells, default=str)).items()
            if name not in self._hidden
        }

    def data_files(self) -> list[DataFile]:
        name = self.frame.name
        return [data_file(name.rpartition("/")[2], name, self._files)] if name != FRAME else []


class Table(Rows):
    """One sample: `numbers` (float32 [F]), `categories` (int64 [C]) and `target` (int for a class,
    float32 [] for a number).

    Args:
        root: a CSV, TSV, Parquet or Arrow file, or its folder; a path or an address. Or a pandas
            frame.
        target: the column to predict.
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
        shares: of the rows of `file` that validate and test.
        files: access to addresses.

    Raises:
        DataError: the table is missing, damaged or has no rows; a cell is no number, date or class:
            the message names file, row and column.
        ConfigError: there is no such column, or arguments contradict each other.
    """

    def __init__(
        self,
        root: str | pd.DataFrame,
        target: str,
        split: Split = "train",
        file: str | None = None,
        val_file: str | None = None,
        kind: Literal["auto", "class", "number"] = "auto",
        classes: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        numbers: Sequence[str] = (),
        categories: Sequence[str] = (),
        dates: Sequence[str] = (),
        rare: Count = 1,
        date_format: str | None = None,
        without_target: Literal["refuse", "skip"] = "refuse",
        delimiter: str | None = None,
        decimal: str = ".",
        encoding: str = "utf-8",
        missing: Sequence[str] | None = None,
        shares: Shares = Shares(),
        files: Files | None = None,
    ) -> None:
        self._split = split, repr(shares)
        self._format: dict[str, Any] = {
            "delimiter": delimiter,
            "decimal": decimal,
            "encoding": encoding,
            "missing": missing,
        }
        self._hidden = named = [target]
        roles = {
            "target": named,
            "exclude": exclude,
            "numbers": numbers,
            "categories": categories,
            "dates": dates,
        }
        # A target that is an input as well would be predicted by copying it.
        check_roles(roles)
        # A person says that these are names, so 007 is not 7, whatever all cells look like.
        texts = [*categories, *dates, *(named if kind == "class" or classes else [])]
        first, second = (
            f"{root.rstrip('/')}/{name}" if isinstance(root, str) and name else root
            for name in (file, val_file)
        )
        frame = read_frame(
            first,
            {**roles, "columns": columns},
            # The target is read beside the columns that a person chose for the model.
            None if columns is None else [*columns, *named],
            exclude,
            texts,
            files,
            **self._format,
        )
        known: dict[str, Any] = {
            **dict.fromkeys(numbers, "number"),
            **dict.fromkeys(categories, "category"),
            **dict.fromkeys(dates, "date"),
        }
        kinds = {
            name: known.get(name) or frame.kind(name)
            for name in frame.table.column_names
            if name not in named
        }
        self.classes = _classes(frame, target, kind, classes)
        rows, targets = _targets(frame, target, self.classes, without_target)
        training, own = (
            # With a file for validation, every row of the first one trains, but for a test.
            (shares if val_file is None else shares.without("val")).rows(
                part, len(rows), targets if self.classes else None
            )
            # Training rows are known to every split: all are encoded by what these say.
            for part in ("train", split)
        )
        self._learning = kinds, categories, rare, date_format
        learnt = self._learn(frame, rows[training], targets[training])
        if split == "val" and val_file is not None:
            frame = _like(second, learnt, {"target": named}, files, self._format, texts)
            rows, targets = _targets(frame, target, self.classes, without_target)
            own = np.arange(len(rows))
        self._targets = targets[own]
        super().__init__(frame, rows[own], learnt, files or Files(), self._targets)

    def _learn(self, frame: Frame, rows: IntArray, targets: npt.NDArray[Any]) -> dict[str, Any]:
        """The encoding by rows that train, and mean and deviation of their targets."""
        # Classes have no scale, and leave both lists empty.
        values = targets.reshape(len(targets), -1)[:, : 0 if self.classes else None]
        self.target_mean: list[float] = values.mean(0).tolist()
        self.target_scale: list[float] = scales(
            values.std(0), np.abs(values).max(0, initial=0.0), 1e-6
        ).tolist()
        return learned(frame, rows, *self._learning)

    def learn_from(self, rows: IntArray) -> None:
        """Encode by what these samples say, int64[n]: `data.split` has them train."""
        super().__init__(
            self.frame,
            self.rows,
            self._learn(self.frame, self.rows[rows], self._targets[rows]),
            self._files,
            self._targets,
        )

    @property
    def learned(self) -> dict[str, Any]:
        """The facts of the training rows, as plain values, and how the file is written."""
        return {"encoding": self.encoding, "format": self._format}

    @classmethod
    def unlabelled(
        cls, root: str, learned: Mapping[str, Any], files: Files | None, limits: Limits
    ) -> Rows:
        """Rows of another table, which may lack the target, encoded by what training rows said."""
        # These facts come from the manifest of the run: nothing is learned of the new rows.
        encoding = learned["encoding"]
        frame = _like(root, encoding, {}, files, learned["format"])
        return Rows(frame, np.arange(frame.table.num_rows), encoding, files or Files())

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: row (of the file, from 0), label and class of a class, and the columns
        as they stand in the file."""
        own = {"row": self.rows} | ({"label": self._targets} if self.classes else {})
        cells = self.frame.table.take(self.rows)
        # Twice: in front, and instead of columns that are called so.
        return table(
            {**own, **{name: exact(cells[name]) for name in cells.column_names}, **own},
            self.classes,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """For models and objectives: num_numbers, cardinalities (of each column of categories),
        num_outputs; num_classes, or target_mean and target_scale of a number."""
        targets = {
            "num_outputs": len(self.target_mean),
            "target_mean": self.target_mean,
            "target_scale": self.target_scale,
        }
        return {
            "num_numbers": len(self.names),
            "cardinalities": [FIRST + len(of) for of in self.encoding["categories"].values()],
            **(super().facts if self.classes else targets),
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The identity of the samples: the facts of the training rows, and this split's arrays."""
        if not sized:
            return ["table", self.frame.name.rpartition("/")[2], *self._split]
        # Not the file: the same rows from CSV and Parquet are the same data.
        return [
            "table",
            json.dumps([self.encoding, self.classes, self.target_mean]),
            *(self._fields["numbers"], self._fields["categories"], self._targets),
        ]


def _like(
    root: Any,
    encoding: Mapping[str, Any],
    roles: Mapping[str, Sequence[str]],
    files: Files | None,
    how: Mapping[str, Any],
    texts: Sequence[str] = (),
) -> Frame:
    """Another table with the columns of an encoding."""
    # What was text in the first file is text in this one, where all cells may look like numbers: a
    # category "1.50" would become "1.5", which training rows do not have.
    dates = [of["name"] for of in encoding["numbers"] if of["is_date"]]
    return read_frame(
        root,
        {"root": [*encoding["categories"], *(of["name"] for of in encoding["numbers"])], **roles},
        texts=[*texts, *encoding["categories"], *dates],
        files=files,
        **how,
    )


def _classes(frame: Frame, target: str, kind: str, classes: Sequence[str] | None) -> list[str]:
    """Names of the classes of the target, in order; none if it is a number."""
    if classes is not None:
        return [*map(str, classes)]
    if kind == "number":
        return []
    # All rows and not only those that train: a class that only validation rows have is then a
    # class that is never right, and no error in the middle of a run.
    texts = {*frame.words(target)} - {None}
    # Few whole numbers are codes of classes more often than amounts; dataset.kind decides
    # otherwise.
    whole = all(re.fullmatch(r"[+-]?\d+", text) for text in texts)
    few = frame.kind(target) == "category" or (whole and len(texts) <= _FEW)
    if not few and kind != "class":
        return []
    # Whole numbers by size.
    return sorted(texts, key=lambda text: (int(text) if whole else 0, text))


def _targets(
    frame: Frame, name: str, classes: Sequence[str], without: str
) -> tuple[IntArray, npt.NDArray[Any]]:
    """The rows that have a target, and these: int64[n] of classes, float64[n] of numbers."""
    values: npt.NDArray[Any] = (
        frame.codes(name, classes, all_known=True) if classes else frame.numbers(name)
    )
    missing = values < 0 if classes else np.isnan(values)
    if without == "refuse" or missing.all():
        frame.refuse(
            name,
            missing,
            "is no target. Fill it in, or leave such rows out: dataset.without_target=skip",
        )
    rows: IntArray = np.flatnonzero(~missing)
    return rows, values[rows]


class DrawnTable(Table):
    """Drawn customers; samples as in `Table`: whether they left (a class), or what they spent (a
    number).

        age         a whole number
        income      a number, which one in ten does not say
        plan        basic, family or plus
        city        one of 30, some of them rare; one in twenty does not say
        since       a date
        calls       a whole number: how often the customer has complained
        left        yes or no: likelier after complaints, for new customers, by plan and city
        spent       a number: by income, age, plan and season of the first day

    The first use writes `customers.csv` into a folder of `root` that is named by its arguments: 15
    us a row.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        split: "train", "val" or "test".
        target: "left" or "spent".
        count: number of rows of all splits.
        seed: other rows for another seed.
        columns, exclude, rare, shares: as in `Table`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        target: Literal["left", "spent"] = "left",
        count: Count = 4000,
        seed: Seed = 0,
        columns: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        rare: Count = 1,
        shares: Shares = Shares(),
    ) -> None:
        name = f"{count}-seed{seed}-v1"  # another version when the rows change
        with generated_data(
            root, "drawn_table", name, lambda folder: _write(folder, count, seed)
        ) as made:
            super().__init__(
                made,
                target,
                split,
                "customers.csv",
                columns=columns,
                exclude=[*exclude, "spent" if target == "left" else "left"],
                rare=rare,
                shares=shares,
            )


def _write(folder: Path, count: int, seed: int) -> None:
    random = np.random.default_rng(hash64(seed, "customers"))
    age = random.integers(18, 90, count)
    income = np.exp(random.normal(10.5, 0.5, count)) * (0.7 + 0.6 * (age > 30))
    plan = random.choice(3, count, p=[0.5, 0.3, 0.2])
    shares = 1.0 / np.arange(2, 32)
    city = random.choice(30, count, p=shares / shares.sum())
    days = random.integers(0, 3000, count)
    calls = random.poisson(0.6 + 0.5 * (plan == 0), count)
    # Interactions that a linear model misses: complaints count for new customers, and a season that
    # only the cycle of the year shows.
    of_city = random.normal(0, 0.8, 30)[city]
    new = days > 2000
    logit = (
        1.6 * calls * new - 2.6 + of_city + np.array([0.8, 0.0, -0.6])[plan] * (1 + new)
    ) + 0.03 * (age - 50) * np.where(plan == 1, 1, -1)
    left = random.random(count) < 1 / (1 + np.exp(-logit))
    season = 1 + 0.3 * np.sin(2 * np.pi * days / 365.2425)
    spent = (
        0.02 * income * (1 + 0.5 * (plan == 2)) * season
        + 4.0 * age
        + 20 * of_city
        + random.normal(0, 40, count)
    )
    # The gaps are drawn last, those of incomes first.
    pd.DataFrame(
        {
            "age": age,
            "income": np.where(
                random.random(count) < 0.1, "", [f"{number:.0f}" for number in income]
            ),
            "plan": np.array(["basic", "family", "plus"])[plan],
            "city": np.where(
                random.random(count) < 0.05, "", [f"city {number + 1}" for number in city]
            ),
            "since": np.datetime64("2018-01-01") + days,
            "calls": calls,
            "left": np.where(left, "yes", "no"),
            "spent": [f"{number:.2f}" for number in spent],
        }
    ).to_csv(folder / "customers.csv", index=False, lineterminator="\n")


class TableMlp(nn.Module):
    """Categories become vectors that are learnt, and go with the numbers through linear layers.

    Forward: numbers float[B, num_numbers], categories int64[B, C] -> float[B, num_outputs].
    Cost at width 16 and two layers of 128, for 10 numbers and 5 categories: 30,000 weights, 0.1 ms
    a batch of 256 forwards and backwards a core.

    Args:
        num_numbers: columns of numbers.
        cardinalities: how many indices each column of categories has.
        num_outputs: classes, or numbers to predict.
        width: of a category's vector; a column of few categories has a smaller one.
        hidden: sizes of the layers; none is logistic or linear regression.
        dropout: after each of them.
    """

    def __init__(
        self,
        num_outputs: int,
        num_numbers: int,
        cardinalities: Sequence[int],
        width: int = 16,
        hidden: Sequence[int] = (128, 128),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        # Half of the categories are enough to tell them apart, and fewer weights learn faster.
        widths = [min(width, (count + 1) // 2) for count in cardinalities]
        self.embeddings = nn.ModuleList(map(nn.Embedding, cardinalities, widths))
        for weight, size in zip(self.embeddings.parameters(), widths, strict=True):
            # So that a vector has about the length of one scaled number.
            nn.init.normal_(weight, std=size**-0.5)
            # Training rows hold no unknown category, so its row gets no gradient: noise there would
            # stay. A missing one starts from 0, too.
            nn.init.zeros_(weight[:FIRST])
        layers, sizes = list[nn.Module](), [num_numbers + sum(widths), *hidden]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_outputs))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        vectors = [
            embedding(categories[:, column]) for column, embedding in enumerate(self.embeddings)
        ]
        outputs: Tensor = self.layers(torch.cat([numbers, *vectors], 1))
        return outputs


class TableRegression(Regression):
    """Numbers of a table: the model gives them less their mean, by their deviation.

    The loss compares on that scale, so that learning rates stay what they are; metrics compare on
    the table's own. Both numbers are those of the training rows.

    Args:
        loss, metrics, inputs, target: as in `Supervised`.
        target_mean, target_scale: one of each; facts of `dataset=table`.
    """

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        target_mean: Sequence[float],
        target_scale: Sequence[float],
    ) -> None:
        super().__init__(loss, metrics, inputs, target)
        # No buffers: they are facts of the data, and stand in the manifest and not in checkpoints.
        self._mean, self._scale = torch.tensor(target_mean), torch.tensor(target_scale)

    def rows(self, outputs: Tensor, batch: Batch) -> Tensor:
        """`predicted`: the number as the table would have it."""
        return outputs * self._scale.to(outputs) + self._mean.to(outputs)

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The same in the shape of the targets."""
        return self.rows(outputs, batch).reshape(self.targets(batch).shape)

    def goals(self, batch: Batch) -> Tensor:
        target = super().goals(batch)
        return (target - self._mean.to(target)) / self._scale.to(target)
