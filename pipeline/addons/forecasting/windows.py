"""Windows of series: so many steps of the past, and the steps after them, to be forecast.

    |<-- training part ---------------------->|  gap  |<-- validation part ------->|  gap  | test
      [past        |horizon]                            [past        |horizon]
          [past        |horizon]                            [past        |horizon]

A window lies in one part with all its steps, so that nothing of validation is seen in training, and
no target of training in validation. Means, deviations and the errors of the naive forecast are
those of the training part. All series are in memory: 12 bytes a value; a sample is two slices.

`Ahead` has the last window of each series of another file, and forecasts the steps that follow:

    time,shop,sold,promotion
    2026-01-31,north,15,1
    2026-02-01,north,,1      (rows behind the last value say what is known of the steps to forecast)
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
from penstock.addons.tabular.frames import FRAME, Floats, Frame, check_roles, read_frame
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split, val_count
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Index, Limits
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

if TYPE_CHECKING:
    import pandas as pd

Scale = Literal["series", "global", "none"]
Fill = Literal["refuse", "carry"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Series:
    """The rows of a table by series, and by time in each.

    Attributes:
        names: of the series, sorted; "" where there is only one.
        order: int64[N], the row of the table at each place.
        bounds: int64[S + 1], the places of each series.
        times: int64[N] or datetime64[N], by place.
        cells: float64[N, n], columns of numbers, by place; NaN where a value is missing.
    """

    names: list[str]
    order: IntArray
    bounds: list[int]
    times: npt.NDArray[Any]
    cells: Floats


def series_of(
    frame: Frame, time: str, series: str | None, numbers: Sequence[str], date_format: str | None
) -> Series:
    """The series of a table.

    Raises:
        DataError: a time is missing, no date or whole number, or not one step after the one before;
            a series has no name. The message names file, row and series.
    """
    texts = [""] * len(frame) if series is None else frame.texts(series)
    # Sorted by name, so that the order of rows in the file changes no number of a series.
    names, codes = np.unique(np.array(texts), return_inverse=True)
    # Stable: the rows of a series keep their order in the file, which has to be that of time.
    order = np.argsort(codes, kind="stable").astype(np.int64)
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1)).tolist()
    if frame.kind(time) == "number":
        times: npt.NDArray[Any] = frame.numbers(time)
        wrong = ~(times % 1 == 0)
    else:
        times = frame.dates(time, date_format)
        wrong = np.isnat(times)
    for row in np.flatnonzero(wrong)[:1].tolist():
        raise frame.error(row, time, "is no time; times are dates, or whole numbers. Correct it")
    if times.dtype.kind == "f":  # once none is missing
        times = times.astype(np.int64)
    times = times[order]
    cells = np.stack([frame.numbers(name) for name in numbers], 1)[order]
    made = Series(names.tolist(), order, bounds, times, cells)
    _check_steps(frame, made, codes[order], time)
    return made


def _check_steps(frame: Frame, series: Series, codes: IntArray, column: str) -> None:
    """Refuse a time that is not one step, or one month, after the time before it."""
    # Where a series ends and the next begins there is no step.
    within, times = np.diff(codes) == 0, series.times
    steps = np.diff(times).astype(np.int64)
    if times.dtype.kind == "M" and len(times):
        # Months have 28 to 31 days, and are steps of one length all the same.
        months = times.astype("datetime64[M]")
        since, until = times - months, (months + 1) - times
        # The same day and time of their months, or the last day of each.
        if (since == since[0]).all() or (until == until[0]).all():
            steps = np.diff(months).astype(np.int64)
    lengths, counts = np.unique(steps[within], return_counts=True)
    # The commonest step: one gap does not make all others wrong.
    usual = lengths[counts.argmax()] if len(lengths) else 1
    for place in np.flatnonzero(within & ((steps != usual) | (steps <= 0)))[:1].tolist():
        before, row = series.order[place : place + 2].tolist()
        name = series.names[codes[place]]
        raise frame.error(
            row,
            column,
            f"of series {name!r} does not come one step after {times[place]} (row {before}). Sort "
            "the rows of a series by time, name dataset.series, remove times that occur twice, and "
            "add those that are missing, with empty values and dataset.fill=carry",
        )


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
        delimiter, decimal, encoding, missing: how a CSV is written, see
            `penstock.addons.tabular.frames.read_frame`.
        files: access to addresses.
        test_fraction: share of the steps, the last ones, that are kept for a test.

    Raises:
        DataError: the table is missing, damaged or has no rows; a time is missing, there twice, out
            of order or out of step; a value is missing or no number. It names row and column.
        ConfigError: there is no such column, or no window fits.
    """

    # Windows overlap: rows dealt out would train on what validates.
    undivided = "windows are divided by time: set val_fraction, test_fraction and gap instead"

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
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        self._values = [values] if isinstance(values, str) else list(values)
        roles = {"time": [time], "series": [series] if series else [], "values": self._values}
        roles["known"] = list(known)
        # A value that is known in advance as well would give the answer away.
        check_roles(roles)
        if season > past:
            reason = (
                f"{season}, more than dataset.past={past}: the naive forecast looks so far back"
            )
            raise ConfigError(Problem("dataset.season", reason))
        source = f"{root.rstrip('/')}/{file}" if isinstance(root, str) and file else root
        how = dict[str, Any](delimiter=delimiter, decimal=decimal, encoding=encoding)
        how["missing"] = missing
        wanted = [column for names in roles.values() for column in names]
        frame = read_frame(source, roles, wanted, texts=roles["series"], files=files, **how)
        self._files, self._name = files or Files(), frame.name
        self.series = series_of(frame, time, series, [*self._values, *known], date_format)
        cells = self.series.cells
        if fill == "refuse" and np.isnan(cells).any():
            place, column = np.argwhere(np.isnan(cells))[0].tolist()
            wrong = (
                "is refused. Fill it in; or carry the last value before it on, and leave it out "
            )
            wrong += "of loss and metrics: dataset.fill=carry"
            name = [*self._values, *known][column]
            raise frame.error(int(self.series.order[place]), name, wrong)
        self.past, self.horizon, self.season = past, horizon, season
        parts = _parts(self.series.times, val_fraction, test_fraction, gap)
        if not parts["train"].any():
            reason = f"{val_fraction} and a gap of {gap} leave no step to train on"
            raise ConfigError(Problem("dataset.val_fraction", reason))
        # By the training part alone, for every split alike.
        self._learn(parts["train"], scale)
        self.starts, self.codes = self._windows(parts[split], stride, split)
        # Not scaled and not filled: metrics are on the scale of the file, and NaN counts nowhere.
        self._targets = cells[:, : len(self._values)].astype(np.float32)
        self._inputs = np.empty(cells.shape, np.float32)
        for code, (begin, end) in enumerate(pairwise(self.series.bounds)):
            # Series by series: the last value of one is never carried on into the next.
            scaled = (cells[begin:end] - self.location[code]) / self.spread[code]
            self._inputs[begin:end] = _carried(scaled)
        self._reading = dict[str, Any](
            time=time,
            series=series,
            values=self._values,
            known=list(known),
            past=past,
            horizon=horizon,
            fill=fill,
            date_format=date_format,
            format=how,
        )
        shares = val_fraction, gap, scale, fill, test_fraction
        self._split = [split, past, horizon, stride, season, *shares]

    def _learn(self, training: npt.NDArray[np.bool_], scale: Scale) -> None:
        """Means, deviations and naive errors of each series, float64[S, C + K], by the training
        part; those of a series that has none of it are all series' together."""
        cells, count = self.series.cells, len(self._values)
        # Of all series together, for those that have no training part, and for new ones.
        self._whole = whole = _moments(cells[training])
        # Values stay as they are; what is known in advance is scaled in all cases.
        if scale == "none":
            whole[0][:count], whole[1][:count] = 0.0, 1.0
        shape = (len(self.series.names), 1)
        self.location, self.spread = np.tile(whole[0], shape), np.tile(whole[1], shape)
        self.naive_error = np.full(self.location.shape, np.nan)
        for code, (begin, end) in enumerate(pairwise(self.series.bounds)):
            own = cells[begin:end][training[begin:end]]
            for column in range(count):
                # One value has no deviation.
                if scale == "series" and np.isfinite(own[:, column]).sum() > 1:
                    mean, deviation = _moments(own[:, column : column + 1])
                    self.location[code, column], self.spread[code, column] = mean[0], deviation[0]
                # Steps that are missing on either side are left out of the mean.
                errors = np.abs(own[self.season :, column] - own[: -self.season, column])
                error = errors[np.isfinite(errors)].mean() if np.isfinite(errors).any() else 0.0
                # A season that repeats but for rounding would make any error a huge one.
                if scales(error, np.nanmax(np.abs(own[:, column]), initial=0.0)) == error:
                    self.naive_error[code, column] = error
        without = np.flatnonzero(np.isnan(self.naive_error[:, :count]).any(1))
        if len(without):
            reason = "their training part repeats what it was a season before; monitor mae instead"
            first = self.series.names[without[0]]
            _log.warning("MASE leaves out %d series, the first %r: %s", len(without), first, reason)

    def _windows(
        self, inside: npt.NDArray[np.bool_], stride: int, split: str
    ) -> tuple[IntArray, IntArray]:
        """The first place of each window, and its series."""
        size, starts, longest = self.past + self.horizon, list[IntArray](), 0
        for begin, end in pairwise(self.series.bounds):
            places = begin + np.flatnonzero(inside[begin:end])
            longest = max(longest, len(places))
            # A window has all its steps in one part, so none of validation is seen in training.
            starts.append(places[: max(len(places) - size + 1, 0) : stride])
        if inside.any() and longest < size:
            reason = (
                f"a window has {size} steps (dataset.past + dataset.horizon), and the longest "
                f"series {longest} in the part for {split}: take fewer, or another "
                f"dataset.{'test' if split == 'test' else 'val'}_fraction"
            )
            raise ConfigError(Problem("dataset.past", reason))
        # Windows of one series stand together, in the order of time.
        codes = np.repeat(np.arange(len(starts)), [*map(len, starts)])
        return np.concatenate(starts).astype(np.int64), codes.astype(np.int64)

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
        return Ahead(root, learned, files or Files())

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
            "num_known": len(self._reading["known"]),
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The identity of the samples: the arrays of all series, and this split's windows."""
        if not sized:
            return ["windows", self._name.rpartition("/")[2], json.dumps(self._split)]
        learned = [self.location, self.spread, self.naive_error]
        windows: list[Part] = [json.dumps(self._split), self.starts, self.codes]
        return ["windows", *windows, *learned, self._inputs, self._targets]

    def data_files(self) -> list[DataFile]:
        name = self._name
        return [data_file(name.rpartition("/")[2], name, self._files)] if name != FRAME else []


class Ahead(FileDataset, Dataset[Sample]):
    """One sample, the last window of a series: `past`, `future`, `location` and `spread`, as in
    `Windows`.

    Series are scaled by what the training said of them; one that it did not have, by all series'
    mean and deviation.

    Args:
        root: a CSV, TSV, Parquet or Arrow file in long form.
        learned: of `Windows`.
        files: access to addresses.

    Raises:
        DataError: as for `Windows`; and when a sample is read, of a series that is too short, or
            whose file does not say what is known of the steps to forecast.
    """

    def __init__(self, root: str, learned: Mapping[str, Any], files: Files) -> None:
        self._files, self._learned = files, learned
        time, series = learned["time"], learned["series"]
        numbers = [*learned["values"], *learned["known"]]
        texts = [series] if series else []
        wanted, how = [time, *texts, *numbers], learned["format"]
        frame = read_frame(root, {"root": wanted}, wanted, texts=texts, files=files, **how)
        self._name = frame.name
        self.series = series_of(frame, time, series, numbers, learned["date_format"])
        # By name and not by position: another file may have fewer series, or more.
        codes = {name: code for code, name in enumerate(learned["names"])}
        new = [name for name in self.series.names if name not in codes]
        if new:
            _log.warning("%d series are new to the model, the first %r", len(new), new[0])
        self.location, self.spread = (
            np.array([learned[of][codes[n]] if n in codes else whole for n in self.series.names])
            for of, whole in zip(("location", "spread"), learned["whole"], strict=True)
        )

    def __len__(self) -> int:
        return len(self.series.names)

    def __getitem__(self, index: int) -> Sample:
        past, horizon = self._learned["past"], self._learned["horizon"]
        cells, last = self._cells(index)
        count, known = len(self._learned["values"]), self._learned["known"]
        name = f"series {self.series.names[index]!r}"
        # Rows behind the last value say what is known of the steps to forecast.
        ahead = cells[last : last + horizon, count:]
        # Raised where the sample is read: one series that is too short leaves the others a
        # forecast.
        if last < past:
            raise DataError(
                f"{name} has {last} steps with a value, and a forecast needs {past} (dataset.past)"
            )
        if np.isnan(cells[last - past : last]).any() and self._learned["fill"] != "carry":
            raise DataError(f"{name}: a value of its last {past} steps is missing")
        if known and (len(ahead) < horizon or np.isnan(ahead).any()):
            raise DataError(
                f"{name}: {', '.join(known)} must be known of the {horizon} steps to forecast; add "
                "rows without a value behind its last one"
            )
        # As in training: the model knows scaled numbers only.
        location, spread = self.location[index], self.spread[index]
        scaled = _carried((cells[:last] - location) / spread)[-past:]
        if not known:
            ahead = np.zeros((horizon, 0))
        future = (ahead - location[count:]) / spread[count:]
        return {
            "past": torch.from_numpy(scaled.astype(np.float32)),
            "future": torch.from_numpy(future.astype(np.float32)),
            "location": torch.tensor(location[:count], dtype=torch.float32),
            "spread": torch.tensor(spread[:count], dtype=torch.float32),
        }

    def _cells(self, index: int) -> tuple[Floats, int]:
        """The numbers of a series, and how many steps it has up to its last value."""
        cells = self.series.cells[slice(*self.series.bounds[index : index + 2])]
        # Several values may end at different steps; the last of any counts.
        there = np.isfinite(cells[:, : len(self._learned["values"])]).any(1)
        return cells, int(np.flatnonzero(there)[-1]) + 1 if there.any() else 0

    def about(self, index: int) -> dict[str, str]:
        """For a table of forecasts: the series, and the time after which they begin."""
        _, last = self._cells(index)
        after = str(self.series.times[self.series.bounds[index] + last - 1]) if last else ""
        named = {"series": self.series.names[index]} if self._learned["series"] else {}
        return {**named, "after": after.removesuffix("T00:00:00.000000")}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The arrays of all series, and their scales."""
        arrays: list[Part] = [self.series.cells, self.location, self.spread]
        return ["ahead", *self.series.names, *arrays] if sized else ["ahead", self._name]

    def data_files(self) -> list[DataFile]:
        return [data_file(self._name.rpartition("/")[2], self._name, self._files)]


def _parts(
    times: npt.NDArray[Any], val_fraction: float, test_fraction: float, gap: int
) -> dict[str, npt.NDArray[np.bool_]]:
    """The places of each split, bool[N]; all series are cut at the same times."""
    # All series are cut at the same time: else one would tell another what comes.
    steps, places = np.unique(times, return_inverse=True)
    # The last steps are the test, and those before them validate, as forecasts are made in use.
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
    # Sums in place of numpy.nanmean, which warns of columns without a value.
    there = np.isfinite(cells)
    count = np.maximum(there.sum(0), 1)
    mean = np.where(there, cells, 0).sum(0) / count
    spread = np.sqrt((np.where(there, cells - mean, 0.0) ** 2).sum(0) / count)
    return mean, scales(spread, np.where(there, np.abs(cells), 0).max(0))


def _carried(values: Floats) -> Floats:
    """The last value before each that is missing, by column; 0, the mean, before the first."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    rows = np.where(missing, 0, np.arange(len(values))[:, None])
    # The position of the last value that is there, by column.
    rows = np.maximum.accumulate(rows, axis=0)
    filled: Floats = np.nan_to_num(np.take_along_axis(values, rows, axis=0))
    return filled
