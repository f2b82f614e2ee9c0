"""The split of each row, as a function of its name, its columns and a seed.

Rows come in units that are not divided: a row; the rows of a group; the rows of a moment. Units are
put in order, by a keyed hash or by time, and an order is cut into validation, training and test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.filters.rows import KeptRows
from penstock.config.targets import arguments, called, options
from penstock.datasets.reading.base import ranked, val_count
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Fraction, Index
from penstock.loading.facts import classes_of, table_of, unfiltered
from penstock.order.keys import IntArray
from penstock.order.plan import is_stream

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Division:
    """How rows are divided; see docs/sampling.md.

    Attributes:
        val, test: shares of all rows, in [0, 1).
        seed: another seed, another order.
        group: column; rows with one value are on one side.
        stratify: column; each value gives its share.
        time: column; the latest rows test, those before validate.
    """

    val: Fraction = 0.0
    test: Fraction = 0.0
    seed: Index = 0
    group: str | None = None
    stratify: str | None = None
    time: str | None = None

    def of(
        self,
        rows: int,
        columns: Callable[[str], npt.NDArray[Any]],
        names: npt.NDArray[Any] | None = None,
        folds: int | None = None,
        fold: int = 0,
    ) -> IntArray:
        """The split of each of `rows`: as a place in `SPLITS`, int64[rows].

        Args:
            columns: gives a column; raises ConfigError if there is none.
            names: of the rows; None: their numbers.
            folds, fold: parts of the rows that do not test, and the one that validates.

        Raises:
            ConfigError: a column does not fit.
        """
        if self.time is not None:
            moments, units = np.unique(_comparable(columns(self.time)), return_inverse=True)
            order = np.arange(len(moments))
        elif self.group is not None:
            groups, units = np.unique(columns(self.group).astype(str), return_inverse=True)
            order = ranked(groups, self.seed)
        else:
            labels = None if self.stratify is None else columns(self.stratify).astype(str)
            order = ranked(rows if names is None else names, self.seed, labels)
            units = np.arange(rows)
        sizes = np.bincount(units, minlength=len(order))[order]
        middles = np.cumsum(sizes) - sizes / 2  # rows before the middle of each unit
        tests, vals = val_count(rows, self.test), val_count(rows, self.val)
        last = min(int(np.searchsorted(middles, rows - tests)), len(order) - bool(tests))
        before, left = middles[:last], sizes[:last].sum()
        if folds is not None:
            validates = np.minimum(before * folds / left, folds - 1).astype(int) == fold
        elif self.time is not None:  # the last of those that are left; of any share a unit at least
            validates = before >= min([left - vals, *before[-1:]] if vals else [left])
        else:
            validates = before <= max([vals, *before[:1]] if vals else [0])
        made = np.full(len(order), SPLITS.index("test"))
        made[order[:last]] = validates  # 1 is "val", and 0 "train"
        return made[units]


def _comparable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers or dates; texts are read as dates."""
    import pandas as pd

    times = pd.Series(values)
    if times.dtype.kind not in "iufM":
        times = pd.to_datetime(times, utc=True, errors="coerce", format="mixed")
    if times.isna().any():
        row = int(times.isna().argmax())
        raise ConfigError(
            Problem(
                "data.split.time",
                f"row {row} has '{values[row]}', and every row needs a number or a date",
            )
        )
    return times.to_numpy()


def opened(split: Any) -> Any:
    """The dataset with all its rows: those that train where it divides none itself."""
    if refused := _problems(split.config):
        raise ConfigError(refused)
    train = split.data.train
    shares = {"val_fraction", "test_fraction"}.intersection(arguments(called(train.node[1])))
    return train.read(split.decodes, **dict.fromkeys(shares, 0.0))


def divided(split: Any, dataset: Any) -> Any:
    """The rows of one split, of the dataset with all of them or those that filters leave."""
    every, data = unfiltered(dataset), split.config.data
    streams = f"{type(every).__name__} is a stream, which has no rows to divide"
    if why := streams if is_stream(every) else getattr(every, "undivided", ""):
        raise ConfigError(Problem("data.split", why))
    kept = dataset.rows if isinstance(dataset, KeptRows) else np.arange(len(every))
    table, names = table_of(every, split.data.fields), getattr(every, "names", None)

    def column(name: str) -> npt.NDArray[Any]:
        known = [] if table is None else [str(one) for one in table.columns]
        if name not in known:
            raise ConfigError(
                Problem(
                    "data.split",
                    f"the dataset has no column {name!r}; it has {', '.join(known) or 'no table'}",
                )
            )
        return np.asarray(table[name])[kept]

    own = names[kept] if isinstance(names, np.ndarray) and len(names) == len(every) else None
    of = options(split.config, "data.split").of(len(kept), column, own, data.folds, data.fold)
    mask = np.zeros(len(every), np.bool_)
    mask[kept[of == SPLITS.index(split.name)]] = True
    if not mask.any():
        raise ConfigError(
            Problem("data.split", f"leaves no row to the {split.name} split, of {len(kept)}")
        )
    if hasattr(every, "learn_from"):  # else it would know rows that validate
        every.learn_from(kept[of == SPLITS.index("train")])
    if hasattr(every, "serve"):  # else its samples would be those of training
        every.serve(split.name)
    return KeptRows(every, mask, getattr(dataset, "reasons", {}))


def _problems(config: Any) -> list[Problem]:
    """What excludes each other."""
    data, of = config.data, options(config, "data.split")
    ways = [name for name in ("group", "stratify", "time") if getattr(of, name)]
    checks = (
        (
            data.val_dataset or data.test_dataset,
            "data.split",
            "splits with datasets of their own are divided already; leave it out",
        ),
        (data.packed, "data.split", "a pack is of one split; set data.packed=null"),
        (of.val + of.test >= 1, "data.split", "val and test leave no rows to train on"),
        (ways[1:], "data.split", f"rows are divided by {' and '.join(ways)}; choose one of them"),
        (
            data.validates and not of.val and not data.folds,
            "data.split",
            "says no share that validates; set data.split.val or data.folds",
        ),
        (
            (data.folds or data.fold is not None) and data.fold not in range(data.folds or 0),
            "data.fold",
            f"got {data.fold}, and data.folds={data.folds}; the folds count from 0: "
            f"-m 'data.fold=range({data.folds})' runs all of them",
        ),
        (data.folds and of.val, "data.split.val", "a fold validates; leave it or data.folds out"),
        (data.folds and of.time, "data.folds", "rows that are divided by time make no folds"),
    )
    return [Problem(key, reason) for fails, key, reason in checks if fails]


def check_classes(split: Any, dataset: Any) -> None:
    """Refuse a split whose classes are not those of training, or of the weights that are tried,
    and a `ConcatDataset` of such.

    Raises:
        ConfigError: as `same_classes`.
    """
    data, parts = split.data, getattr(unfiltered(dataset), "datasets", ())
    same_classes({f"part {n}": classes_of(part) for n, part in enumerate(parts)}, split.node[0])
    if own := classes_of(dataset):
        known = data.recorded or (own if split.is_train else classes_of(data.train.dataset))
        same_classes({"training": known, f"the {split.name} split": own}, split.node[0])


def same_classes(names: Mapping[str, Sequence[str]], key: str) -> None:
    """Refuse datasets that number their classes in different ways; where names lack, nothing.

    Args:
        names: of the classes in the order of their numbers, by what has them.
        key: of the configuration, for the message.
    """
    (first, known), *others = [(what, [*own]) for what, own in names.items() if own] or [("", [])]
    for what, own in others:
        if own != known:
            differ = sorted({*own} ^ {*known})[:10] or ["their order"]
            raise ConfigError(
                Problem(
                    key,
                    f"{what} and {first} have different classes ({', '.join(differ)}), so a number "
                    "would mean two of them; give both the same names in the same order, by the "
                    "dataset's `classes` or an empty folder",
                )
            )
