"""The split of each row, as a function of its name, its columns and a seed.

Rows come in units that are not divided: a row; the rows of a group; the rows of a moment. Units are
put in order, by a keyed hash or by time, and an order is cut into test, validation and training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.addons.filters.kept import KeptRows, Selection, kept_rows
from penstock.config.schema import Config
from penstock.config.targets import arguments, called, options
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Fraction, Index
from penstock.loading.facts import table_of, unfiltered
from penstock.order.keys import IntArray, hash64, hash64_array
from penstock.order.plan import is_stream

if TYPE_CHECKING:
    from penstock.build.data import Split


SPLITS = ("train", "val", "test")

_SAID = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}

_SAID["test"] = "test"


Columns = Callable[[str, str], npt.NDArray[Any]]  # (column, key) -> its values


@dataclass(frozen=True)
class Division:
    """How rows are divided; see docs/splits.md.

    Attributes:
        val, test: shares of all rows, in [0, 1).
        seed: another seed, another order.
        by: column that names rows, so that their order changes nothing.
        group: column; rows with one value are on one side.
        stratify: column; each value gives its share.
        time: column; the latest rows test, those before validate.
        column: column that says train, val or test.
        files: by split, files that list row numbers or names; all other rows train.
    """

    val: Fraction = 0.0
    test: Fraction = 0.0
    seed: Index = 0
    by: str | None = None
    group: str | None = None
    stratify: str | None = None
    time: str | None = None
    column: str | None = None
    files: dict[Literal["train", "val", "test"], str] | None = None

    def of(
        self,
        rows: int,
        columns: Columns,
        names: npt.NDArray[Any] | None = None,
        folds: int | None = None,
        fold: int | None = None,
    ) -> IntArray:
        """The split of each of `rows` as a place in `SPLITS`, int64[rows].

        Args:
            columns: gives a column; raises ConfigError if there is none.
            names: of the rows, if they are not `by`; None: their numbers.
            folds, fold: parts of the rows that do not test, and the one that validates.

        Raises:
            ConfigError: a column or a file does not fit.
        """
        if self.by is not None:
            names = columns(self.by, "data.split.by")
        if self.column is not None:
            return _by_column(columns(self.column, "data.split.column"), self.column)
        if self.files:
            return self._by_files(self.files, rows, names)
        units, order = self._units(rows, columns, names)
        sizes = np.bincount(units, minlength=len(order))[order]
        middles = np.cumsum(sizes) - sizes / 2
        of_order = np.zeros(len(order), np.int64)
        tests = _count(rows, self.test)
        cut = _cut(middles, rows - tests, bool(tests))
        if self.val or folds:  # which needs a unit, and so does the training
            cut = max(cut, min(2, len(order) - bool(tests)))
        of_order[cut:] = SPLITS.index("test")
        before, left = middles[:cut], int(sizes[:cut].sum())
        if folds is None:
            of_order[self._validating(before, left, rows)] = SPLITS.index("val")
        else:
            place = np.minimum(before * folds / max(left, 1), folds - 1).astype(np.int64)
            of_order[np.flatnonzero(place == fold)] = SPLITS.index("val")
        of_units = np.empty_like(of_order)
        of_units[order] = of_order
        return of_units[units]

    def _validating(self, middles: npt.NDArray[np.float64], left: int, rows: int) -> IntArray:
        """Which of the units that do not test validate, by their place in the order."""
        count = _count(rows, self.val)
        if self.time is not None:
            return np.arange(_cut(middles, left - count, bool(count)), len(middles))
        last = len(middles) - _cut(left - middles[::-1], left - count, bool(count))
        return np.arange(last)

    def _units(
        self, rows: int, columns: Columns, names: npt.NDArray[Any] | None
    ) -> tuple[IntArray, IntArray]:
        """The unit of each row, and the units in order."""
        if self.time is not None:
            times = _comparable(columns(self.time, "data.split.time"), self.time)
            moments, units = np.unique(times, return_inverse=True)
            return units, np.arange(len(moments))
        if self.group is not None:
            texts = columns(self.group, "data.split.group").astype(str)
            groups, units = np.unique(texts, return_inverse=True)
            return units, np.argsort(self._keys(groups), kind="stable")
        keys = self._keys(np.arange(rows) if names is None else names)
        if self.stratify is None:
            return np.arange(rows), np.argsort(keys, kind="stable")
        texts = columns(self.stratify, "data.split.stratify").astype(str)
        kinds, labels = np.unique(texts, return_inverse=True)
        by_label = np.lexsort((keys, labels))
        sizes = np.bincount(labels, minlength=len(kinds))
        ranks = np.arange(rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = np.empty(rows)
        places[by_label] = (ranks + 0.5) / np.repeat(sizes, sizes)
        return np.arange(rows), np.lexsort((keys, places))

    def _keys(self, names: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        if names.dtype.kind in "iu":
            numbers = names.astype(np.uint64)
        else:
            texts = (name if isinstance(name, bytes) else str(name).encode("utf-8", "replace")
                     for name in names.tolist())  # fmt: skip
            digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
            numbers = np.frombuffer(b"".join(digests), dtype="<u8")
        return hash64_array(hash64(self.seed, "division"), numbers)

    def _by_files(
        self, files: Mapping[Any, str], rows: int, names: npt.NDArray[Any] | None
    ) -> IntArray:
        known: dict[str, int] | None = None
        made, said = np.zeros(rows, np.int64), np.zeros(rows, bool)
        for split, path in files.items():
            key = f"data.split.files.{split}"
            for number, line in enumerate(_lines(path, key), start=1):
                if line.isdecimal() and len(line) < 19 and (names is None or int(line) < rows):
                    row = int(line)
                else:
                    if known is None:
                        texts = [] if names is None else map(_text, names.tolist())
                        known = {text: place for place, text in enumerate(texts)}
                    row = known.get(line, -1)
                if not 0 <= row < rows:
                    reason = f"{path!r}, line {number}: there is no row {line[:80]!r} among {rows}"
                    raise ConfigError(Problem(key, reason))
                if said[row]:
                    reason = f"{path!r}, line {number}: row {line[:80]!r} is listed already"
                    raise ConfigError(Problem(key, reason))
                made[row], said[row] = SPLITS.index(split), True
        if "train" in files and not said.all():
            row = int(np.argmin(said))
            name = row if names is None else _text(names[row])
            reason = f"none of the files lists row {name}; leave train out to train on the rest"
            raise ConfigError(Problem("data.split.files.train", reason))
        return made


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _lines(path: str, key: str) -> Sequence[str]:
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(Problem(key, reason)) from error
    return [line.strip() for line in content.splitlines() if line.strip()]


def _count(rows: int, share: float) -> int:
    """How many of `rows` a share is: to the nearest, and one at least."""
    return max(round(rows * share), 1) if share and rows > 1 else 0


def _cut(middles: npt.NDArray[np.float64], at: float, behind: bool) -> int:
    """How many units lie before `at`; one at least lies behind it, if any shall."""
    cut = int(np.searchsorted(middles, at))
    return min(cut, len(middles) - 1) if behind and len(middles) > 1 else cut


def _by_column(values: npt.NDArray[Any], name: str) -> IntArray:
    texts = np.array([str(value).strip().lower() for value in values.tolist()], dtype=object)
    made = np.array([SPLITS.index(_SAID[text]) if text in _SAID else -1 for text in texts])
    if (made < 0).any():
        row = int(np.argmax(made < 0))
        reason = f"{name!r} of row {row} is {str(values[row])[:80]!r}; it says train, val or test"
        raise ConfigError(Problem("data.split.column", reason))
    return made.astype(np.int64)


def _comparable(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Numbers or dates, without missing ones; texts are read as dates."""
    import pandas as pd

    if values.dtype.kind not in "iufM":
        try:
            values = pd.to_datetime(pd.Series(values), utc=True).to_numpy()
        except (ValueError, TypeError, OverflowError) as error:
            reason = f"{name!r} is neither numbers nor dates: {str(error)[:150]}"
            raise ConfigError(Problem("data.split.time", reason)) from error
    missing = pd.isna(values)
    if missing.any():
        reason = f"{name!r} of row {int(np.argmax(missing))} is missing; every row needs a time"
        raise ConfigError(Problem("data.split.time", reason))
    return values


def opened(split: Split) -> Any:
    """The dataset with all its rows: those that train where it divides none itself."""
    if refused := list(problems(split.config)):
        raise ConfigError(refused)
    train = split.data.train
    names = arguments(called(train.node[1]))
    none: dict[str, Any] = {
        name: 0.0 for name in ("val_fraction", "test_fraction") if name in names
    }
    dataset = train.read(split.decodes, **none)
    if is_stream(dataset):
        reason = f"{type(dataset).__name__} is a stream, which has no rows to divide"
        raise ConfigError(Problem("data.split", reason))
    return dataset


def divided(split: Split, dataset: Any) -> Any:
    """The rows of one split, of the dataset with all of them or those that filters leave."""
    every = unfiltered(dataset)
    kept = np.arange(len(every))
    if isinstance(dataset, KeptRows):
        kept = dataset.selection.rows
    table: Any = table_of(every, split.data.fields)

    def column(name: str, key: str) -> Any:
        known = [] if table is None else list(map(str, table.columns))
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has no table of metadata"
            raise ConfigError(Problem(key, f"the dataset has no column {name!r}; {has}"))
        return np.asarray(table[name])[kept]

    names: Any = getattr(every, "names", None)
    is_named = isinstance(names, np.ndarray) and len(names) == len(every)
    if reason := getattr(every, "undivided", ""):
        raise ConfigError(Problem("data.split", reason))
    data = split.config.data
    own = names[kept] if is_named else None
    division: Division = options(split.config, "data.split")
    of = division.of(len(kept), column, own, data.folds, data.fold)
    chosen = of == SPLITS.index(split.name)
    mask = np.zeros(len(every), np.bool_)
    mask[kept[chosen]] = True
    if not chosen.any():
        reason = f"leaves no row to the {split.name} split, of {len(kept)}"
        raise ConfigError(Problem("data.split", reason))
    if hasattr(every, "learn_from"):  # else it would know rows that validate
        every.learn_from(kept[of == SPLITS.index("train")])
    if hasattr(every, "serve"):  # else its samples would be those of training
        every.serve(split.name)
    reasons = dataset.reasons if isinstance(dataset, KeptRows) else {}
    return kept_rows(every, Selection([mask]), reasons)


def problems(config: Config) -> Iterator[Problem]:
    """What excludes each other."""
    data, of = config.data, options(config, "data.split")
    ways = [way for way in ("group", "stratify", "time", "column", "files") if getattr(of, way)]
    if data.val_dataset is not None or data.test_dataset is not None:
        yield Problem(
            "data.split", "splits with datasets of their own are divided already; leave it out"
        )
    if data.packed is not None:
        yield Problem("data.split", "a pack is of one split; set data.packed=null")
    if of.val + of.test >= 1:
        yield Problem("data.split.test", "val and test together leave no rows to train on")
    if len(ways) > 1:
        yield Problem(
            f"data.split.{ways[1]}", f"rows are divided by {ways[0]} already; choose one of the two"
        )
    if data.folds is None:
        if data.fold is not None:
            yield Problem("data.folds", f"is missing, and data.fold is {data.fold}")
        elif data.validates and not of.val and not {"column", "files"} & set(ways):
            yield Problem(
                "data.split", "says no share that validates; set data.split.val or data.folds"
            )
        return
    if data.fold is None or data.fold >= data.folds:
        every = f"-m 'data.fold=range({data.folds})' runs all of them"
        yield Problem("data.fold", f"got {data.fold}, expected 0 to {data.folds - 1}; {every}")
    if of.val:
        yield Problem("data.split.val", "a fold validates; leave it out, or data.folds")
    for name in {"time", "column", "files"} & set(ways):
        yield Problem("data.folds", f"rows are divided by {name}, which makes no folds")
