"""Encodes a table's columns for a model, by the training rows.

    numbers       less their mean, by their deviation; a missing one is 0, the mean. Where training
                  rows miss some, a flag says so in a column of its own, 1 for missing
    dates         days since the mean date as a number, and where in the year, the week and (if any
                  has a time) the day it lies, as sine and cosine; missing as for numbers
    categories    0 for a missing one, 1 for one that training rows don't have, then a number for
    each value, by name

`learned` reads training rows alone; `encoded` then takes any rows.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.addons.tabular.frames import (
    MARKS,
    PADDED,
    Frame,
    floats,
    kinds_in,
    moments,
    noise_of,
    short,
    words,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

_log = logging.getLogger(__name__)

Kind = Literal["number", "category", "date"]
Floats = npt.NDArray[np.float64]

MISSING, UNKNOWN, FIRST = 0, 1, 2  # indices of categories
_ISO = re.compile(r"\d{4}-\d\d?-\d\d?([T ]\d\d?:\d\d.*)?")
_LOOKED_AT = 200  # cells by which a text is taken for a date
_LIKE_DAY = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
_LIKE_NUMBER = re.compile(
    r"[^\w.,]{0,3}\d[\d.,_' \u00a0\u202f]*([eE][+-]?\d+)?[^\w.,]{0,3}|[?.*-]+"
)
_MANY = 100  # texts, all different, that are names of rows and no categories
_DAY = np.timedelta64(1, "D")
_NUMBERS = (int, float, Decimal, time, timedelta, np.number)
_YEAR, _WEEK = 365.2425, 7.0  # days


def kind_of(frame: Frame, column: str) -> Kind:
    """The kind of a column, by its type, and of texts by their first cells."""
    cells = frame.table[column]
    if cells.dtype.kind == "M":
        return "date"
    if cells.dtype.kind in "iufm":
        return "number"
    if cells.dtype.kind == "b" or hasattr(cells, "cat"):
        return "category"
    kinds = kinds_in(cells)
    if kinds and all(issubclass(kind, date) for kind in kinds):  # dates of Arrow
        return "date"
    if not kinds or all(issubclass(kind, _NUMBERS) and kind is not bool for kind in kinds):
        return "number"  # or an empty column
    texts = cells[~cells.isin(frame.marks)].dropna().head(_LOOKED_AT)
    if not len(texts):
        return "number" if len(frame.marks) else "category"
    if all(isinstance(cell, str) and _ISO.fullmatch(cell.strip()) for cell in texts):
        return "date"
    return "category"


@dataclass(frozen=True)
class Scaled:
    """A column of numbers or dates: what its training rows say."""

    name: str
    is_date: bool
    mean: float
    scale: float
    flagged: bool
    daily: bool = False

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers that it becomes."""
        names = [self.name]
        if self.is_date:
            cycles = ("year", "week", "day") if self.daily else ("year", "week")
            names += [f"{self.name} {part} of {cycle}" for cycle in cycles for part in _PARTS]
        return names + [f"{self.name} missing"] * self.flagged

    def encoded(self, values: Floats) -> list[Floats]:
        """The same numbers, float64[N] each."""
        missing = np.isnan(values)
        made = [(values - self.mean) / self.scale]
        if self.is_date:
            cycles = (_YEAR, _WEEK, 1.0) if self.daily else (_YEAR, _WEEK)
            for days in cycles:
                angle = values * (2 * np.pi / days)
                made += [np.sin(angle), np.cos(angle)]
        made = [np.where(missing, 0.0, column) for column in made]
        return made + [missing.astype(np.float64)] * self.flagged


NOISE = (
    "%s, column %r: training rows differ by %.1e, which is no more than rounding, so it counts as "
    "constant; subtract what they have in common, or leave it out"
)
TINY = "%s, column %r: no training row has more than %.1e; if that is rounding, leave it out"
_TINY = 1e-12
_PARTS = ("sine", "cosine")


@dataclass(frozen=True)
class Encoding:
    """All columns that a model gets; see the module."""

    numbers: Sequence[Scaled]
    categories: Mapping[str, Sequence[str]]  # those of the training rows, by column
    date_format: str | None

    @property
    def names(self) -> list[str]:
        """Names of the numbers, in order."""
        return [name for column in self.numbers for name in column.outputs]

    @property
    def cardinalities(self) -> list[int]:
        """How many indices each column of categories has."""
        return [FIRST + len(values) for values in self.categories.values()]

    def encoded(
        self, frame: Frame, rows: IntArray, is_new: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Numbers [n, F] and indices of categories [n, C] of rows of a table.

        Args:
            is_new: whether categories that training rows don't have are logged.

        Raises:
            DataError: a cell is no number, or no date.
        """
        columns: list[Floats] = []
        for column in self.numbers:
            columns += column.encoded(_values(frame, column.name, self, column.is_date)[rows])
        numbers = np.zeros((len(rows), len(columns)), np.float32)
        for place, values in enumerate(columns):
            numbers[:, place] = values
        indices = np.zeros((len(rows), len(self.categories)), np.int64)
        for place, (name, known) in enumerate(self.categories.items()):
            codes = {text: FIRST + number for number, text in enumerate(known)}
            texts = words(frame, name)[rows]
            indices[:, place] = [
                MISSING if text is None else codes.get(text, UNKNOWN) for text in texts
            ]
            new = set(texts[indices[:, place] == UNKNOWN].tolist()) if is_new else set()
            if new:
                shown = ", ".join(sorted(map(repr, new))[:10]) + " ..." * (len(new) > 10)
                count = int((indices[:, place] == UNKNOWN).sum())
                message = (
                    "%s, column %r: %d cells have categories that training rows don't have: %s"
                )
                _log.warning(message, frame.name, name, count, shown)
        return numbers, indices


def learned(
    frame: Frame,
    rows: IntArray,
    kinds: Mapping[str, Kind],
    chosen: Sequence[str],
    rare: int,
    date_format: str | None,
    limits: Limits,
    says: bool,
) -> Encoding:
    """The facts of a table's training rows.

    Args:
        rows: those that train.
        kinds: of the columns, in order.
        chosen: columns of categories that a person has named, of which any number may be.
        rare: categories of fewer training rows count as unknown.
        says: whether columns that are constant but for rounding are logged.

    Raises:
        DataError: a cell is no number, or no date; there are more categories than `limits.classes`.
        ConfigError: nearly all texts of a column differ.
    """
    plain = Encoding((), {}, date_format)
    numbers, categories = [], {}
    for name, kind in kinds.items():
        if kind != "category":
            numbers.append(_scaled(frame, name, rows, plain, kind == "date", says))
            continue
        texts = [text for text in words(frame, name)[rows] if text is not None]
        counts: dict[str, int] = {}
        for text in texts:
            counts[text] = counts.get(text, 0) + 1
        if name not in chosen and len(counts) > max(_MANY, len(texts) // 2):
            reason = (
                f"column {name!r} of {frame.name!r} has {len(counts)} different texts in "
                f"{len(texts)} rows, so a model learns nothing of it: leave it out, "
                f"dataset.exclude=[{name}]; or name it in dataset.categories to keep it"
            )
            raise ConfigError(Problem("dataset.categories", reason))
        if len(counts) > limits.classes:
            claim = limits.refusal("classes", f"{len(counts)} categories")
            raise DataError(f"{frame.name!r}, column {name!r} has {claim}.")
        categories[name] = sorted(text for text, count in counts.items() if count >= rare)
    return Encoding(numbers, categories, date_format)


def _values(frame: Frame, name: str, encoding: Encoding, is_date: bool) -> Floats:
    """Numbers of a column, or days since 1970, float64[N]; NaN where a value is missing."""
    if not is_date:
        return floats(frame, name)
    dates = moments(frame, name, encoding.date_format)
    days = (dates - np.datetime64("1970-01-01", "us")) / _DAY
    return np.where(np.isnat(dates), np.nan, days)


def _scaled(
    frame: Frame, name: str, rows: IntArray, encoding: Encoding, is_date: bool, says: bool
) -> Scaled:
    values = _values(frame, name, encoding, is_date)[rows]
    present = values[~np.isnan(values)]
    # Deviations from the first value: squares of dates or of large numbers would lose their digits.
    shift = float(present[0]) if len(present) else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean = shift + float((present - shift).mean()) if len(present) else 0.0
        deviation = float((present - mean).std()) if len(present) else 0.0
    if not (np.isfinite(mean) and np.isfinite(deviation)):
        raise DataError(f"column {name!r}: its values are too large to be standardised.")
    daily = is_date and bool((present % 1).any())
    flagged = len(present) < len(values)
    largest = float(np.abs(present).max(initial=0.0))
    scale = float(scales(deviation, largest, noise_of(frame, name)))
    if says and scale != deviation and frame.table[name].iloc[rows].nunique() > 1:
        _log.warning(NOISE, frame.name, name, deviation)
    elif says and deviation and largest < _TINY:
        _log.warning(TINY, frame.name, name, largest)
    return Scaled(name, is_date, mean, scale, flagged, daily)


def summary(encoding: Encoding) -> dict[str, Any]:
    """All that the training rows said, as plain values; `encoding_of` takes them."""
    return {
        "numbers": [vars(column) for column in encoding.numbers],
        "categories": {name: list(values) for name, values in encoding.categories.items()},
    } | ({} if encoding.date_format is None else {"date_format": encoding.date_format})


def encoding_of(said: Mapping[str, Any]) -> Encoding:
    """The encoding that `summary` describes.

    Raises:
        KeyError, TypeError: it did not.
    """
    categories = {str(name): [*map(str, of)] for name, of in said["categories"].items()}
    numbers = [Scaled(**column) for column in said["numbers"]]
    return Encoding(numbers, categories, said.get("date_format"))


def oddities(frame: Frame, column: str, kind: str, is_named: bool) -> Iterator[str]:
    """What of a column that is read as of a kind ("number", "category", "date") may be otherwise.

    Args:
        is_named: whether a person says the kind.
    """
    cells = frame.table[column]
    marked = dict(frame.marked.get(column, {}))
    texts = Counter[str]()
    if cells.dtype.kind == "O":
        texts.update(cell.strip() for cell in cells if isinstance(cell, str))
    marks = {text: count for text, count in texts.items() if text in MARKS}
    if kind == "category" and marks:
        yield f"{_counted(marks)} are names; if they stand for no value, say so: dataset.missing"
    elif kind != "category":
        marked |= {text: count for text, count in texts.items() if text in frame.marks}
    if any(marked):
        yield f"{_counted(marked)} stand for no value (dataset.missing says which texts do)"
    if is_named:
        return
    whole = kind == "number" and cells.dtype.kind in "iuO"
    days = cells.dropna().unique()[:1000] if whole else ()
    if len(days) and all(_LIKE_DAY.fullmatch(str(day)) for day in days):
        yield (
            "its numbers look like days, such as 20260131; to read them so: "
            f"dataset.dates=[{column}] dataset.date_format='%Y%m%d'"
        )
    if kind != "category":
        return
    texts -= Counter(marks)
    padded = {text: count for text, count in texts.items() if PADDED.fullmatch(text)}
    like = {text: count for text, count in texts.items() if _LIKE_NUMBER.fullmatch(text)}
    if padded or 2 * sum(like.values()) > sum(texts.values()):
        shown = padded or {text: n for text, n in texts.items() if not _is_number(text)} or like
        yield (
            f"it looks like numbers and is read as names, for {_counted(shown)}; for numbers: "
            f"dataset.numbers=[{column}], with dataset.missing or dataset.decimal, or other cells; "
            f"for names: dataset.categories=[{column}]"
        )
    alike = Counter(text.casefold() for text in texts)
    twins = {text: count for text, count in texts.items() if alike[text.casefold()] > 1}
    if twins:
        yield f"{_counted(twins)} are different names, though only by upper and lower case"


def _is_number(text: str) -> bool:
    try:
        return text.isascii() and "_" not in text and float(text) is not None
    except ValueError:
        return False


def _counted(texts: Mapping[str, int]) -> str:
    """Up to ten texts, each with how often it occurs."""
    shown = ", ".join(f"{short(text)} ({count})" for text, count in list(texts.items())[:10])
    return shown + (f" and {len(texts) - 10} more" if len(texts) > 10 else "")
