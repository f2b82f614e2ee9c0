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

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch.utils.data import Dataset

from penstock.addons.storage.files import data_file
from penstock.addons.tabular.frames import FRAME, Floats, Frame, check_roles, read_frame
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Shares,
    Split,
    check_split,
    rows_of_share,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Index, Limits
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

Scale = Literal["series", "global", "none"]


class SeriesTable(FileDataset, Dataset[Sample]):
    """Series in memory, N rows sorted by series and by time in each; a sample is a window of one.

    Attributes:
        names: of the series, sorted; "" where there is only one.
        codes: int64[N], the series of each row.
        order: int64[N], the row of the file.
        times: int64[N] or datetime64[N].
        cells: float64[N, C + K], values and what is known, as in the file; NaN where one is
            missing.
        starts: int64[n], the first row of each window.
        location, spread: float64[S or more, C + K], means and deviations by series.
    """

    def _read(
        self, source: str | pd.DataFrame, reading: Mapping[str, Any], files: Files | None
    ) -> Frame:
        """Read a table; `reading` is what `Windows.learned` says of it.

        Raises:
            DataError: a time is missing, no date or whole number, or not one step after the one
                before; a series has no name. The message names file, row and series.
        """
        self._reading, self._files, roles = reading, files or Files(), reading["roles"]
        self.past, self.horizon = reading["past"], reading["horizon"]
        (time,), texts, values, known = (roles[of] for of in ("time", "series", "values", "known"))
        wanted, how = [time, *texts, *values, *known], reading["format"]
        frame = read_frame(source, roles, wanted, texts=texts, files=files, **how)
        self._name, self._count = frame.name, len(values)
        named = frame.texts(texts[0]) if texts else [""] * frame.table.num_rows
        # Sorted by name, so that the order of rows in the file changes no number of a series.
        names, codes = np.unique(np.array(named), return_inverse=True)
        # Stable: the rows of a series keep their order in the file, which has to be that of time.
        self.order = np.argsort(codes, kind="stable").astype(np.int64)
        self.names, self.codes = names.tolist(), codes[self.order]
        self.cells = np.stack([*map(frame.numbers, (*values, *known))], 1)[self.order]
        is_number = frame.kind(time) == "number"
        times: Any = frame.numbers(time) if is_number else frame.dates(time, reading["date_format"])
        wrong = times % 1 != 0 if is_number else np.isnat(times)
        if wrong.any():
            raise frame.error(
                int(wrong.argmax()),
                time,
                "is no time; times are dates, or whole numbers. Correct it",
            )
        self.times = times[self.order].astype(np.int64 if is_number else times.dtype)
        # Months have 28 to 31 days, and are steps of one length all the same.
        units = ["int64"] if is_number else ["M8[us]", "M8[M]"]
        wrong = min((_uneven(self.times.astype(unit), self.codes) for unit in units), key=np.sum)
        if wrong.any():
            row = int(wrong.argmax())
            raise frame.error(
                int(self.order[row]),
                time,
                f"of series {self.names[self.codes[row]]!r} does not come one step after "
                f"{self.times[row - 1]} (row {self.order[row - 1]}). Sort the rows of a series by "
                "time, name dataset.series, remove times that occur twice, and add those that are "
                "missing, with empty values and dataset.fill=carry",
            )
        return frame

    def _set_windows(
        self, starts: IntArray, location: Floats, spread: Floats, about: Sequence[Any]
    ) -> None:
        """Scale the cells; `about` is the identity of the windows, plain values."""
        self.starts, self.location, self.spread, self._about = starts, location, spread, about
        scaled = pd.DataFrame((self.cells - location[self.codes]) / spread[self.codes])
        # The last value of one series is never carried on into the next; before the first is the
        # mean. Rows behind the last series, as what is known may end with its last value.
        carried = scaled.groupby(self.codes).ffill().fillna(0.0)
        self._inputs = np.zeros((len(carried) + self.horizon, carried.shape[1]), np.float32)
        self._inputs[: len(carried)] = carried

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Sample:
        start, count = int(self.starts[index]), self._count
        inputs, code = self._inputs[start : start + self.past + self.horizon], self.codes[start]
        return {
            "past": torch.from_numpy(inputs[: self.past].copy()),
            "future": torch.from_numpy(inputs[self.past :, count:].copy()),
            "location": torch.from_numpy(self.location[code, :count].astype(np.float32)),
            "spread": torch.from_numpy(self.spread[code, :count].astype(np.float32)),
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The identity of the samples: cells, scales and windows."""
        arrays = [self.starts, self.cells, self.location, self.spread]
        return ["windows", *self._about, *(arrays if sized else [self._name.rpartition("/")[2]])]

    def data_files(self) -> list[DataFile]:
        name = self._name
        return [data_file(name.rpartition("/")[2], name, self._files)] if name != FRAME else []


class Windows(SeriesTable):
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
        shares: of the steps that validate, behind those that train, and of the last ones, which are
            kept for a test.
        gap: steps between two parts that are in no window.
        scale: whose mean and deviation are taken: each series', all series', or none.
        fill: what becomes of missing values: refuse; or carry the last one before into `past` and
            `future`, and leave it out of loss and metrics.
        date_format: of strptime; None: ISO 8601.
        delimiter, decimal, encoding, missing: how a CSV is written, see
            `penstock.addons.tabular.frames.read_frame`.
        files: access to addresses.

    Raises:
        DataError: the table is missing, damaged or has no rows; a time is missing, there twice, out
            of order or out of step; a value is missing or no number. It names row and column.
        ConfigError: there is no such column, or no window fits.
    """

    # Windows overlap: rows dealt out would train on what validates.
    undivided = "windows are divided by time already: set val, test and dataset.gap alone"

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
        shares: Shares = Shares(),
        gap: Index = 0,
        scale: Scale = "series",
        fill: Literal["refuse", "carry"] = "refuse",
        date_format: str | None = None,
        delimiter: str | None = None,
        decimal: str = ".",
        encoding: str = "utf-8",
        missing: Sequence[str] | None = None,
        files: Files | None = None,
    ) -> None:
        check_split(split)
        if season > past:
            raise ConfigError(
                Problem(
                    "dataset.season",
                    f"{season}, more than dataset.past={past}: the naive forecast looks so far "
                    "back",
                )
            )
        roles = {
            "time": [time],
            "series": [series] if series else [],
            "values": [values] if isinstance(values, str) else [*values],
            "known": [*known],
        }
        # A value that is known in advance as well would give the answer away.
        check_roles(roles)
        reading = {
            "roles": roles,
            "date_format": date_format,
            "format": {
                "delimiter": delimiter,
                "decimal": decimal,
                "encoding": encoding,
                "missing": missing,
            },
            "past": past,
            "horizon": horizon,
            "fill": fill,
        }
        source = f"{root.rstrip('/')}/{file}" if isinstance(root, str) and file else root
        frame, size = self._read(source, reading, files), past + horizon
        if fill == "refuse" and np.isnan(self.cells).any():
            row, column = np.argwhere(np.isnan(self.cells))[0].tolist()
            raise frame.error(
                int(self.order[row]),
                [*roles["values"], *known][column],
                "is refused. Fill it in; or carry the last value before it on, and leave it out "
                "of loss and metrics: dataset.fill=carry",
            )
        parts = _parts(self.times, shares, gap)
        # Whatever the split, there is something to train on.
        for part in ("train", split):
            rows = np.flatnonzero(parts[part])
            own = pd.Series(rows).groupby(self.codes[rows])
            before, behind = own.cumcount().to_numpy(), own.cumcount(ascending=False).to_numpy()
            # A window has all its steps in one part, so none of validation is seen in training.
            starts = rows[(before % stride == 0) & (behind >= size - 1)]
            if not len(starts) and (len(rows) or part == "train"):
                raise ConfigError(
                    Problem(
                        "dataset.past",
                        f"a window has {size} steps (dataset.past + dataset.horizon), and the "
                        f"longest series {behind.max(initial=-1) + 1} in the part for {part}: take "
                        f"fewer, or another data.split.{'test' if part == 'test' else 'val'}",
                    )
                )
        self.season, how = season, (shares.val, gap, scale, fill, shares.test)
        # By the training part alone, for every split alike.
        location, spread, self.naive_error = self._learned(parts["train"], scale)
        self._set_windows(starts, location, spread, [split, past, horizon, stride, season, *how])

    def _learned(self, is_training: npt.NDArray[np.bool_], scale: Scale) -> Floats:
        """Means, deviations and naive errors of the training part, float64[3, S + 1, C + K]; the
        last row is of all series together, for new ones and those that have none of the part."""
        training, codes = pd.DataFrame(self.cells)[is_training], self.codes[is_training]
        sizes, series = training.abs(), range(len(self.names) + 1)
        mean = training.mean().fillna(0.0).to_numpy()
        deviation = scales(training.std(ddof=0), sizes.max())
        own, largest = training.groupby(codes), sizes.groupby(codes).max().reindex(series)
        # One value has no deviation.
        is_own = own.count().reindex(series, fill_value=0).to_numpy() > 1
        is_own[:, self._count if scale == "series" else 0 :] = False
        location = np.where(is_own, own.mean().reindex(series), mean)
        spread = np.where(is_own, scales(own.std(ddof=0).reindex(series), largest), deviation)
        # Values stay as they are; what is known in advance is scaled in all cases.
        if scale == "none":
            location[:, : self._count], spread[:, : self._count] = 0.0, 1.0
        # Steps that are missing on either side are left out of the mean.
        errors = own.diff(self.season).abs().groupby(codes).mean().reindex(series).to_numpy()
        # A season that repeats but for rounding would make any error a huge one.
        naive = np.where(scales(errors, largest) == errors, errors, np.nan)
        return np.array([location, spread, naive])

    def __getitem__(self, index: int) -> Sample:
        now = int(self.starts[index]) + self.past
        # Not scaled and not filled: metrics are on the scale of the file, and NaN counts nowhere.
        target = self.cells[now : now + self.horizon, : self._count]
        naive = self.naive_error[self.codes[now], : self._count]
        return {
            **super().__getitem__(index),
            "target": torch.from_numpy(target.astype(np.float32)),
            "naive_error": torch.from_numpy(naive.astype(np.float32)),
        }

    @property
    def learned(self) -> dict[str, Any]:
        """Means and deviations of the training part, and how the file is read; plain values."""
        return {
            **self._reading,
            "names": self.names,
            "location": self.location.tolist(),
            "spread": self.spread.tolist(),
        }

    @classmethod
    def unlabelled(
        cls, root: str, learned: Mapping[str, Any], files: Files | None, limits: Limits
    ) -> Ahead:
        """The last window of each series of another file, and the steps that follow it."""
        return Ahead(root, learned, files)

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: series (its name), time and row (in the file, from 0) of the first step
        to forecast."""
        rows, index = self.starts + self.past, pd.Index(self.names)
        names = pd.Categorical.from_codes(self.codes[rows], categories=index)
        return pd.DataFrame({"series": names, "time": self.times[rows], "row": self.order[rows]})

    @property
    def facts(self) -> dict[str, int]:
        """For models and objectives: past, horizon and season in steps, num_values, num_known."""
        return {
            "past": self.past,
            "horizon": self.horizon,
            "season": self.season,
            "num_values": self._count,
            "num_known": self.cells.shape[1] - self._count,
        }


class Ahead(SeriesTable):
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

    def __init__(self, root: str, learned: Mapping[str, Any], files: Files | None) -> None:
        self._read(root, learned, files)
        # By name and not by position: another file may have fewer series, or more.
        codes = pd.Index(learned["names"]).get_indexer(self.names)
        location, spread = (np.array(learned[of])[codes] for of in ("location", "spread"))
        # Several values may end at different steps; the last of any counts.
        there, by = pd.DataFrame(self.cells[:, : self._count]).notna(), pd.Series(self.codes)
        numbers = by.groupby(by).cumcount() + 1
        self.steps = numbers.where(there.any(axis=1), 0).groupby(by).max().to_numpy()
        ends = np.searchsorted(self.codes, np.arange(len(self.names))) + self.steps
        self._set_windows(ends - self.past, location, spread, ["ahead", *self.names])

    def __getitem__(self, index: int) -> Sample:
        steps, name = self.steps[index], f"series {self.names[index]!r}"
        now, known = self.starts[index] + self.past, self._reading["roles"]["known"]
        # Raised where the sample is read: one series that is too short leaves the others a
        # forecast.
        if steps < self.past:
            raise DataError(
                f"{name} has {steps} steps with a value, and a forecast needs {self.past} "
                "(dataset.past)"
            )
        if self._reading["fill"] == "refuse" and np.isnan(self.cells[now - self.past : now]).any():
            raise DataError(f"{name}: a value of its last {self.past} steps is missing")
        # Rows behind the last value say what is known of the steps to forecast.
        ahead = slice(now, now + self.horizon)
        there = ~np.isnan(self.cells[ahead, self._count :]).any(1) & (self.codes[ahead] == index)
        if known and there.sum() < self.horizon:
            raise DataError(
                f"{name}: {', '.join(known)} must be known of the {self.horizon} steps to "
                "forecast; add rows without a value behind its last one"
            )
        return super().__getitem__(index)

    def about(self, index: int) -> dict[str, str]:
        """For a table of forecasts: the series, and the time after which they begin."""
        after = str(self.times[self.starts[index] + self.past - 1]) if self.steps[index] else ""
        return {"series": self.names[index], "after": after.removesuffix("T00:00:00.000000")}


def _uneven(times: npt.NDArray[Any], codes: IntArray) -> npt.NDArray[np.bool_]:
    """Where a time is not one step after the one before it in its series: bool[N]."""
    steps = pd.Series(times.astype(np.int64)).groupby(codes).diff()
    # The commonest step: one gap does not make all others wrong.
    usual = steps[steps > 0].mode()[:1]
    return (steps.notna() & ~steps.isin(usual)).to_numpy()


def _parts(times: npt.NDArray[Any], shares: Shares, gap: int) -> dict[str, npt.NDArray[np.bool_]]:
    """The rows of each split, bool[N]."""
    # All series are cut at the same time: else one would tell another what comes.
    steps, at = np.unique(times, return_inverse=True)
    # The last steps are the test, and those before them validate, as forecasts are made in use.
    test = len(steps) - rows_of_share(len(steps), shares.test)
    val = max(test - rows_of_share(len(steps), shares.val), 0)
    ends = [end - gap if end < len(steps) else end for end in (val, test)]
    return {"train": at < ends[0], "val": (at >= val) & (at < ends[1]), "test": at >= test}
