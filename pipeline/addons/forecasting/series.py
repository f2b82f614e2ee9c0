"""Series of a table in long form, a row a step: which rows they are, and when.

    time,shop,sold,promotion
    2026-01-01,north,12,0
    2026-01-02,north,15,1
    2026-01-01,south,31,0

The steps of a series go up in the file and lie equally far apart: so many seconds, or months.
Anything else is an error that names the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.tabular.frames import Frame, floats, moments, words
from penstock.errors import DataError
from penstock.order.keys import IntArray

_WHOLE = "us"  # dates are told apart by so much


@dataclass(frozen=True)
class Series:
    """The rows of a table by series, and by time in each.

    Attributes:
        names: of the series, sorted; "" where there is only one.
        order: int64[N], the row of the table at each place.
        bounds: int64[S + 1], the places of each series.
        times: int64[N] or datetime64[N], by place.
    """

    names: Sequence[str]
    order: IntArray
    bounds: IntArray
    times: npt.NDArray[Any]


def series_of(frame: Frame, time: str, series: str | None, date_format: str | None) -> Series:
    """The series of a table.

    Raises:
        DataError: a time is missing, no date or number, there twice, or not in order; steps are
            unequal; the message names file, row and series.
    """
    count = len(frame)
    texts = np.full(count, "", dtype=object) if series is None else words(frame, series)
    for row in np.flatnonzero([text is None for text in texts])[:1]:
        raise DataError(f"{frame.where(int(row))}, column {series!r}: the series has no name.")
    names, codes = np.unique(texts.astype(str), return_inverse=True)
    order = np.argsort(codes, kind="stable").astype(np.int64)
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1)).astype(np.int64)
    times = _times(frame, time, date_format)[order]
    _check_steps(frame, names.tolist(), order, codes[order], times, time)
    return Series(names.tolist(), order, bounds, times)


def _times(frame: Frame, column: str, date_format: str | None) -> npt.NDArray[Any]:
    if frame.table[column].dtype.kind in "iuf":
        values = floats(frame, column)
        for row in np.flatnonzero(np.isnan(values) | (values % 1 != 0))[:1]:
            raise frame.error(int(row), column, "is no time; times are dates, or whole numbers")
        return values.astype(np.int64)
    dates = moments(frame, column, date_format).astype(f"datetime64[{_WHOLE}]")
    for row in np.flatnonzero(np.isnat(dates))[:1]:
        raise DataError(f"{frame.where(int(row))}, column {column!r}: the time is missing.")
    return dates


def _check_steps(
    frame: Frame,
    names: Sequence[str],
    order: IntArray,
    codes: IntArray,
    times: npt.NDArray[Any],
    column: str,
) -> None:
    within = np.diff(codes) == 0
    steps = np.diff(times).astype(np.int64)
    if not within.any():
        return

    def error(place: int, wrong: str) -> DataError:
        of = f" of series {names[codes[place + 1]]!r}" if names != [""] else ""
        before, after = frame.where(int(order[place])), frame.where(int(order[place + 1]))
        return DataError(
            f"{after}, column {column!r}: the time {times[place + 1]}{of} {wrong} "
            f"{times[place]} ({before.rpartition(', ')[2]}). "
        )

    for place in np.flatnonzero(within & (steps == 0))[:1]:
        text = f"{error(int(place), 'occurs twice, after')}Remove one, or name dataset.series."
        raise DataError(text)
    for place in np.flatnonzero(within & (steps < 0))[:1]:
        text = f"{error(int(place), 'comes after the later')}Sort the rows of a series by time."
        raise DataError(text)
    if times.dtype.kind == "M" and len(np.unique(steps[within])) > 1:
        months = _months(times)
        steps = steps if months is None else np.diff(months)
    lengths, counts = np.unique(steps[within], return_counts=True)
    usual = lengths[counts.argmax()]
    for place in np.flatnonzero(within & (steps != usual))[:1]:
        far = steps[place] / usual
        raise DataError(
            f"{error(int(place), 'does not come one step after')}That is {far:.6g} of the usual "
            "steps: add the rows in between, with empty values and dataset.fill=carry, or leave "
            "the series out."
        )


def _months(times: npt.NDArray[Any]) -> IntArray | None:
    """The months of dates that lie alike in theirs: the same day and time, or the last day."""
    months = times.astype("datetime64[M]")
    since = times - months.astype(times.dtype)
    until = (months + 1).astype(times.dtype) - times
    if (since != since[0]).any() and (until != until[0]).any():
        return None
    numbers: IntArray = months.astype(np.int64)
    return numbers
