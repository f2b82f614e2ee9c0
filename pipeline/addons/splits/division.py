"""The split of each row, as a function of its name, its columns and a seed.

Rows come in units that are not divided: a row; the rows of a group; the rows of a moment. Units are
put in order, by a keyed hash or by time, and an order is cut into validation, training and test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.config.targets import arguments, called, options, walk
from penstock.datasets.reading.base import Shares, ranked, rows_of_share
from penstock.errors import ConfigError, Problem
from penstock.loading.facts import classes_of, table_of, unfiltered
from penstock.order.keys import IntArray
from penstock.order.plan import is_stream

SPLITS = ("train", "val", "test")
WAYS = ("group", "stratify", "time")


@dataclass(frozen=True)
class Division(Shares):
    """How rows are divided; see docs/sampling.md.

    Datasets that take `shares` divide their rows by these alone. By a column, in folds, and of
    other datasets the build divides them, in the order of the same ranks.

    Attributes:
        group: column; rows with one value are on one side.
        stratify: column; each value gives its share.
        time: column; the latest rows test, those before validate.
    """

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
        tests, vals = rows_of_share(rows, self.test), rows_of_share(rows, self.val)
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
    if len(wrong := np.flatnonzero(times.isna())):
        raise ConfigError(
            Problem(
                "data.split.time",
                f"row {wrong[0]} has '{values[wrong[0]]}', and every row needs a number or a date",
            )
        )
    return times.to_numpy()


def in_build(config: Any) -> bool:
    """Whether the build divides the rows: by a column, in folds, and of a dataset of which no part
    takes `shares`."""
    return (
        config.data.folds is not None
        or any(config.data.split.get(name) for name in WAYS)
        or (any(config.data.split.values()) and not _usual(config))
    )


def shares_of(split: Any) -> Shares:
    """The shares by which the datasets of a split divide their rows themselves."""
    own = [name for name in ("val", "test") if getattr(split.config.data, f"{name}_dataset")]
    if split.name in own or in_build(split.config):  # all rows are of the split that is read
        return Shares(float(split.name == "val"), float(split.name == "test"))
    said = {name: of for name, of in split.config.data.split.items() if of is not None}
    return replace([*_usual(split.config), Shares()][0], **said).without(*own)


def _usual(config: Any) -> list[Shares]:
    """The shares that parts of the dataset have by default, of those that divide their rows."""
    known = (arguments(called(node)).get("shares") for _, node in walk(config.dataset, "dataset"))
    return [one.default if isinstance(one.default, Shares) else Shares() for one in known if one]


def opened(split: Any) -> Any:
    """The dataset with all its rows: those that train where it divides none itself."""
    if refused := _problems(split.config):
        raise ConfigError(refused)
    return split.data.train.read(split.decodes)


def divided(split: Any, dataset: Any) -> Any:
    """The rows of one split, of the dataset with all of them or those that filters leave."""
    from penstock.addons.filters.rows import KeptRows

    every, data = unfiltered(dataset), split.config.data
    if why := getattr(every, "undivided", "") or (
        is_stream(every) and f"{type(every).__name__} is a stream, which has no rows to divide"
    ):
        raise ConfigError(Problem("data.split", why))
    kept = dataset is every or np.isin(np.arange(len(every)), dataset.rows)
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
        return np.asarray(table[name])

    of = options(split.config, "data.split").of(
        len(every),
        column,
        names if isinstance(names, np.ndarray) and len(names) == len(every) else None,
        data.folds,
        data.fold,
    )
    # Of all rows, so that training and validation have none in common, whatever filters they have.
    mask = kept & (of == SPLITS.index(split.name))
    if not mask.any():
        raise ConfigError(
            Problem("data.split", f"leaves no row to the {split.name} split, of {np.sum(kept)}")
        )
    if hasattr(every, "learn_from"):  # else it would know rows that validate
        every.learn_from(np.flatnonzero(kept & (of == SPLITS.index("train"))))
    return KeptRows(every, mask, getattr(dataset, "reasons", {}))


def _problems(config: Any) -> list[Problem]:
    """What excludes each other."""
    data, of = config.data, options(config, "data.split")
    ways = [name for name in WAYS if data.split.get(name)]
    checks = (
        (
            data.val_dataset or data.test_dataset,
            "data.split",
            "splits with datasets of their own are divided already; leave it out",
        ),
        (data.packed, "data.split", "a pack is of one split; set data.packed=null"),
        (ways[1:], "data.split", f"rows are divided by {' and '.join(ways)}; choose one of them"),
        (
            data.validates and not (of.val or data.folds),
            "data.split",
            "says no share that validates; set data.split.val or data.folds",
        ),
        (
            (data.folds or data.fold is not None) and data.fold not in range(data.folds or 0),
            "data.fold",
            f"got {data.fold}, and data.folds={data.folds}; the folds count from 0: "
            f"-m 'data.fold=range({data.folds})' runs all of them",
        ),
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
