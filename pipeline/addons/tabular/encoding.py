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
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from penstock.addons.tabular.frames import Floats, Frame, Kind
from penstock.errors import ConfigError, Problem
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

_log = logging.getLogger(__name__)

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
        missing = np.isnan(values)
        made = {self.name: (values - self.mean) / self.scale}
        for cycle in [*_CYCLES][: 2 + self.daily] if self.is_date else ():
            angle = values * (2 * np.pi / _CYCLES[cycle])
            made[f"{self.name} sine of {cycle}"] = np.sin(angle)
            made[f"{self.name} cosine of {cycle}"] = np.cos(angle)
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
            codes: dict[str | None, int] = {None: MISSING} | {
                text: FIRST + number for number, text in enumerate(known)
            }
            texts = frame.words(name)[rows].tolist()
            indices[:, place] = [codes.get(text, UNKNOWN) for text in texts]
            new = Counter(text for text in texts if text not in codes)
            if new and is_new:
                wrong = "cells have categories that training rows don't have"
                shown = ", ".join(sorted(map(repr, new))[:10]) + " ..." * (len(new) > 10)
                _log.warning(
                    "%s, column %r: %d %s: %s", frame.name, name, new.total(), wrong, shown
                )
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
        if name not in chosen and len(counts) > max(_MANY, counts.total() // 2):
            reason = (
                f"column {name!r} of {frame.name!r} has {len(counts)} different texts in "
                f"{counts.total()} rows, so a model learns nothing of it: leave it out, "
                f"dataset.exclude=[{name}]; or name it in dataset.categories to keep it. If it has "
                "numbers, say how they are written: dataset.missing, dataset.decimal"
            )
            raise ConfigError(Problem("dataset.categories", reason))
        made.categories[name] = sorted(text for text, count in counts.items() if count >= rare)
    return made


def _values(frame: Frame, name: str, is_date: bool, date_format: str | None) -> Floats:
    """Numbers of a column, or days since 1970, float64[N]; NaN where a value is missing."""
    if not is_date:
        return frame.numbers(name)
    dates = frame.dates(name, date_format)
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
    scale = float(scales(deviation, np.abs(present).max(initial=0.0), noise))
    daily = is_date and bool((present % 1).any())
    flagged = len(present) < len(values)
    return Scaled(name=name, is_date=is_date, mean=mean, scale=scale, flagged=flagged, daily=daily)
