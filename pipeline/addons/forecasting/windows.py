"""Windows of series: so many steps of the past, and the steps after them, to be forecast.

    |<-- training part ---------------------->|  gap  |<-- validation part ------->|  gap  | test
      [past        |horizon]                            [past        |horizon]
          [past        |horizon]                            [past        |horizon]

A window lies in one part with all its steps, so that nothing of validation is seen in training, and
no target of training in validation. Means, deviations and the errors of the naive forecast are
those of the training part. All series are in memory: 12 bytes a value; a sample is two slices.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.storage.files import data_file
from penstock.addons.tabular.encoding import oddities
from penstock.addons.tabular.frames import (
    Frame,
    TextFormat,
    check_columns,
    floats,
    moments,
    read_frame,
    words,
)
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split, val_count
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Count, Fraction, Index, Limits
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

if TYPE_CHECKING:
    import pandas as pd

    from penstock.addons.forecasting.ahead import Ahead

Scale = Literal["series", "global", "none"]
Fill = Literal["refuse", "carry"]
Floats = npt.NDArray[np.float64]

_log = logging.getLogger(__name__)


class Windows(FileDataset, Dataset[Sample]):
    """One sample: `past` (float32 [P, C + K]: values and what is known, scaled), `future` (float32
    [H, K]: what is known of the steps to forecast), `target` (float32 [H, C], as in the file; NaN
    where it is missing), and of its series `location`, `spread` and `naive_error` (float32 [C]).

    Args:
        root: a CSV, TSV, Parquet or Arrow file in long form, or its folder; a path or an address.
            Or a pandas frame.
        time: the column of dates or whole numbers.
        values: the column to forecast, or several.
        split: "train", "val" or "test".
        file: name of the file in the folder `root`.
        series: the column that names the series; None: there is one.
        known: columns of numbers that are known for the steps to forecast, too.
        past, horizon, stride: steps of a window, steps to forecast, steps between two windows.
        season: steps after which a series resembles itself; at most `past`.
        val_fraction, gap: share of the steps that validate, behind those that train; and how many
            between two parts are in no window.
        scale: whose mean and deviation are taken: each series', all series', or none.
        fill: what becomes of missing values: refuse; or carry the last one before into `past` and
            `future`, and leave it out of loss and metrics.
        date_format: of strptime; None: ISO 8601.
        delimiter, decimal, encoding, missing: how a CSV is written, see `TextFormat`.
        files: access to addresses.
        limits: number of rows, of columns; characters of a line.
        test_fraction: share of the steps, the last ones, that are kept for a test.

    Raises:
        DataError: the table is missing, damaged or has no rows; a time is missing, there twice, out
            of order or out of step; a value is missing or no number. It names row and column.
        ConfigError: there is no such column, or no window fits.
    """

    # Windows overlap: rows dealt out would train on what validates.
    undivided = "windows are divided by time: set val_fraction, test_fraction and gap instead"
    columns = ("series", "time", "row")

    def __init__(
        self,
        root: str | pd.DataFrame,
        time: str,
        values: str | Sequence[str],
        split: Split = "train",
        file: str | None = None,
        series: str | None = None,
        known: Sequence[str] = (),
        past: Count = 48,
        horizon: Count = 12,
        stride: Count = 1,
        season: Count = 1,
        val_fraction: Fraction = 0.2,
        gap: Index = 0,
        scale: Scale = "series",
        fill: Fill = "refuse",
        date_format: str | None = None,
        delimiter: str | None = None,
        decimal: str = ".",
        encoding: str = "utf-8",
        missing: Sequence[str] | None = None,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        self._values = [values] if isinstance(values, str) else list(values)
        roles = {"time": [time], "series": [series] if series else [], "values": self._values}
        roles["known"] = list(known)
        _check_options(roles, past, season, scale, fill)
        self._files, self._source = files or Files(), root
        if isinstance(root, str) and file is not None:
            self._source = f"{root.rstrip('/')}/{file}"

        def chosen(names: Sequence[str], name: str) -> list[str]:
            for key, wanted in roles.items():
                check_columns(names, wanted, f"dataset.{key}", name)
            return [column for wanted in roles.values() for column in wanted]

        format = TextFormat(delimiter, decimal, encoding, missing)
        texts = roles["series"]
        frame = read_frame(self._source, chosen, texts, format, self._files)
        if split == "train":
            kinds = dict.fromkeys([*self._values, *known], "number") | dict.fromkeys(
                texts, "category"
            )
            for name, kind in kinds.items():
                for oddity in oddities(frame, name, kind, True):
                    _log.warning("%s, column %r: %s", frame.name, name, oddity)
        self.series = series_of(frame, time, series, date_format)
        self.past, self.horizon, self.season = past, horizon, season
        self._known = len(known)
        cells = cells_of(frame, [*self._values, *known], fill)[self.series.order]
        parts = _parts(self.series.times, val_fraction, test_fraction, gap)
        training = parts["train"]
        if not training.any():
            reason = f"{val_fraction} and a gap of {gap} leave no step to train on"
            raise ConfigError(Problem("dataset.val_fraction", reason))
        self._learn(cells, training, scale, split == "train")
        self._reading = {
            "time": time,
            "series": series,
            "values": self._values,
            "known": list(known),
            "past": past,
            "horizon": horizon,
            "fill": fill,
            "date_format": date_format,
            "format": vars(format),
        }
        self.starts, self.codes = self._windows(parts[split], stride, split)
        targets = cells[:, : len(self._values)]
        self._targets = targets.astype(np.float32)
        self._inputs = self._scaled(cells)
        self._split = (
            split,
            past,
            horizon,
            stride,
            season,
            val_fraction,
            gap,
            scale,
            fill,
            test_fraction,
        )

    def _learn(
        self, cells: Floats, training: npt.NDArray[np.bool_], scale: Scale, says: bool
    ) -> None:
        """Means, deviations and naive errors of each series, float64[S, C + K], by the training
        part; those of a series that has none of it are all series' together."""
        count, columns = len(self.series.names), cells.shape[1]
        whole = _moments(cells[training])
        self.location = np.tile(whole[0], (count, 1))
        self.spread = np.tile(whole[1], (count, 1))
        self.naive_error = np.full((count, columns), np.nan)
        for code in range(count):
            part = slice(*self.series.bounds[code : code + 2])
            own = cells[part][training[part]]
            for column in range(len(self._values)):
                if scale == "series" and np.isfinite(own[:, column]).sum() > 1:
                    mean, deviation = _moments(own[:, column : column + 1])
                    self.location[code, column] = mean[0]
                    self.spread[code, column] = deviation[0]
                values = np.abs(own[:, column])
                errors = np.abs(own[self.season :, column] - own[: -self.season, column])
                errors = errors[np.isfinite(errors)]
                error = errors.mean() if len(errors) else 0.0
                largest = np.max(values, where=np.isfinite(values), initial=0.0)
                if scales(error, largest) == error:
                    self.naive_error[code, column] = error
        without = np.isnan(self.naive_error[:, : len(self._values)]).any(1)
        if without.any() and says:
            names = [repr(self.series.names[code]) for code in np.flatnonzero(without).tolist()]
            _log.warning(
                "MASE %s: in the training part, %d of %d series do not depart from what they were "
                "a season (dataset.season) before, but for rounding (%s%s); monitor mae: "
                "trainer.monitor=mae",
                "will be nan" if without.all() else "leaves series out",
                len(names),
                count,
                ", ".join(names[:10]),
                " ..." * (len(names) > 10),
            )
        self._whole = whole
        if scale == "none":
            own_values = np.arange(columns) < len(self._values)
            self._whole = np.where(own_values, 0.0, whole[0]), np.where(own_values, 1.0, whole[1])
            self.location[:, : len(self._values)] = 0.0
            self.spread[:, : len(self._values)] = 1.0

    def _windows(
        self, inside: npt.NDArray[np.bool_], stride: int, split: str
    ) -> tuple[IntArray, IntArray]:
        """The first place of each window, and its series."""
        size, starts, codes, longest = self.past + self.horizon, [], [], 0
        for code, (begin, end) in enumerate(pairwise(self.series.bounds.tolist())):
            places = begin + np.flatnonzero(inside[begin:end])
            if not len(places):
                continue
            longest = max(longest, len(places))
            own = np.arange(places[0], places[-1] + 2 - size, stride, dtype=np.int64)
            starts.append(own)
            codes.append(np.full(len(own), code, np.int64))
        made = np.concatenate(starts) if starts else np.zeros(0, np.int64)
        if not len(made) and inside.any():
            part = {"train": "training", "val": "validation", "test": "a test"}[split]
            reason = (
                f"a window has {size} steps (dataset.past + dataset.horizon), and the longest "
                f"series {longest} in the part for {part}: take fewer, or another "
                f"dataset.{'test' if split == 'test' else 'val'}_fraction"
            )
            raise ConfigError(Problem("dataset.past", reason))
        return made, np.concatenate(codes) if codes else made

    def _scaled(self, cells: Floats) -> npt.NDArray[np.float32]:
        """Inputs of the model, float32[N, C + K]; what is missing is carried on."""
        made = np.empty(cells.shape, np.float32)
        for code, (begin, end) in enumerate(pairwise(self.series.bounds.tolist())):
            scaled = (cells[begin:end] - self.location[code]) / self.spread[code]
            made[begin:end] = carried(scaled)
        return made

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Sample:
        start, code = int(self.starts[index]), int(self.codes[index])
        now, end, count = start + self.past, start + self.past + self.horizon, len(self._values)
        return {
            "past": torch.from_numpy(self._inputs[start:now].copy()),
            "future": torch.from_numpy(self._inputs[now:end, count:].copy()),
            "target": torch.from_numpy(self._targets[now:end].copy()),
            "location": torch.tensor(self.location[code, :count], dtype=torch.float32),
            "spread": torch.tensor(self.spread[code, :count], dtype=torch.float32),
            "naive_error": torch.tensor(self.naive_error[code, :count], dtype=torch.float32),
        }

    @property
    def learned(self) -> dict[str, Any]:
        """Means and deviations of the training part, and how the file is read; plain values."""
        scales = {"location": self.location.tolist(), "spread": self.spread.tolist()}
        whole = [part.tolist() for part in self._whole]
        return {**self._reading, "names": list(self.series.names), "whole": whole, **scales}

    @classmethod
    def unlabelled(
        cls, root: str, learned: Mapping[str, Any], files: Files | None, limits: Limits
    ) -> Ahead:
        """The last window of each series of another file, and the steps that follow it."""
        from penstock.addons.forecasting.ahead import Ahead

        return Ahead(root, learned, files or Files(), limits)

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: series (its name), time and row (in the file, from 0) of the first step
        to forecast."""
        import pandas as pd

        places = self.starts + self.past
        names = pd.Categorical.from_codes(self.codes, categories=pd.Index(self.series.names))
        row = self.series.order[places]
        return pd.DataFrame({"series": names, "time": self.series.times[places], "row": row})

    @property
    def facts(self) -> dict[str, int]:
        """For models and objectives: past, horizon and season in steps, num_values, num_known."""
        return {
            "past": self.past,
            "horizon": self.horizon,
            "season": self.season,
            "num_values": len(self._values),
            "num_known": self._known,
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The identity of the samples: the arrays of all series, and this split's windows."""
        name = self._source.rpartition("/")[2] if isinstance(self._source, str) else "frame"
        if not sized:
            return ["windows", name, json.dumps(self._split)]
        learned = [self.location, self.spread, self.naive_error]
        windows: list[Part] = [json.dumps(self._split), self.starts, self.codes]
        return ["windows", *windows, *learned, self._inputs, self._targets]

    def data_files(self) -> list[DataFile]:
        if not isinstance(self._source, str):
            return []
        return [data_file(self._source.rpartition("/")[2], self._source, self._files)]


def _check_options(
    roles: dict[str, list[str]], past: int, season: int, scale: str, fill: str
) -> None:
    if not roles["values"]:
        raise ConfigError(Problem("dataset.values", "[]; name a column"))
    taken: dict[str, str] = {}
    for key, names in roles.items():
        for name in names:
            if name in taken:
                reason = f"column {name!r} is also dataset.{taken[name]}"
                raise ConfigError(Problem(f"dataset.{key}", reason))
            taken[name] = key
    if season > past:
        reason = f"{season}, more than dataset.past={past}: the naive forecast looks so far back"
        raise ConfigError(Problem("dataset.season", reason))
    for key, value, allowed in (
        ("scale", scale, ("series", "global", "none")),
        ("fill", fill, ("refuse", "carry")),
    ):
        if value not in allowed:
            reason = f"{value!r}; allowed: {', '.join(allowed)}"
            raise ConfigError(Problem(f"dataset.{key}", reason))


def cells_of(frame: Frame, names: Sequence[str], fill: Fill) -> Floats:
    """Columns of numbers, float64[N, n]; DataError for a missing one, unless it is filled."""
    columns = [floats(frame, name) for name in names]
    for name, values in zip(names, columns, strict=True):
        missing = np.isnan(values)
        if missing.all():
            raise DataError(f"{frame.name!r}, column {name!r} has no value.")
        if missing.any() and fill == "refuse":
            where = frame.where(int(missing.argmax()))
            raise DataError(
                f"{where}, column {name!r}: a value is missing. Fill it in; or carry the last one "
                "before it on, and leave it out of loss and metrics: dataset.fill=carry."
            )
    return np.stack(columns, 1)


def _parts(
    times: npt.NDArray[Any], val_fraction: float, test_fraction: float, gap: int
) -> dict[str, npt.NDArray[np.bool_]]:
    """The places of each split, bool[N]; all series are cut at the same times."""
    steps, places = np.unique(times, return_inverse=True)
    test = len(steps) - val_count(len(steps), test_fraction)
    val = max(test - val_count(len(steps), val_fraction), 0)
    ends = [end - gap if end < len(steps) else end for end in (val, test)]
    return {
        "train": places < ends[0],
        "val": (places >= val) & (places < ends[1]),
        "test": places >= test,
    }


def _moments(cells: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation of each column, of what is there; 0 and 1 where that says nothing."""
    there = np.isfinite(cells)
    count = np.maximum(there.sum(0), 1)
    mean = np.where(there, cells, 0).sum(0) / count
    spread = np.sqrt((np.where(there, cells - mean, 0.0) ** 2).sum(0) / count)
    return mean, scales(spread, np.where(there, np.abs(cells), 0).max(0))


def carried(values: Floats) -> Floats:
    """The last value before each that is missing, by column; 0, the mean, before the first."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    rows = np.where(missing, 0, np.arange(len(values))[:, None])
    rows = np.maximum.accumulate(rows, axis=0)
    filled: Floats = np.nan_to_num(np.take_along_axis(values, rows, axis=0))
    return filled


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
    dates = moments(frame, column, date_format).astype("datetime64[us]")
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
