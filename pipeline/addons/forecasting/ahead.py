"""The steps that a model forecasts: those after the last value of each series of a file.

    time,shop,sold,promotion
    2026-01-30,north,12,0
    2026-01-31,north,15,1
    2026-02-01,north,,1      (rows behind the last value say what is known of the steps to forecast)

Series are scaled by what the training said of them; one that it did not have, by all series' mean
and deviation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.addons.forecasting.windows import Floats, carried, series_of
from penstock.addons.storage.files import data_file
from penstock.addons.tabular.frames import TextFormat, check_columns, floats, read_frame
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)


class Ahead(FileDataset, Dataset[Sample]):
    """One sample, a series: `past`, `future`, `location` and `spread`, as in `Windows`.

    Args:
        root: a CSV, TSV, Parquet or Arrow file in long form.
        learned: of `Windows`.

    Raises:
        DataError: as for `Windows`; and when a sample is read, of a series that is too short, or
            whose file does not say what is known of the steps to forecast.
    """

    columns = ("series", "time")

    def __init__(self, root: str, learned: Mapping[str, Any], files: Files, limits: Limits) -> None:
        if not isinstance(root, str):
            raise ConfigError(Problem("dataset.root", "series are in one file: name its path"))
        self._root, self._files = root, files
        self._past, self._horizon = learned["past"], learned["horizon"]
        self._carries = learned["fill"] == "carry"
        self._values, self._known = learned["values"], learned["known"]
        time, series = learned["time"], learned["series"]
        wanted = [time, *([series] if series else []), *self._values, *self._known]

        def chosen(names: Sequence[str], name: str) -> list[str]:
            check_columns(names, wanted, "dataset.root", name)
            return wanted

        format = TextFormat(**learned["format"])
        texts = [series] if series else []
        self._frame = read_frame(root, chosen, texts, format, files)
        self.series = series_of(self._frame, time, series, learned["date_format"])
        columns = [floats(self._frame, name) for name in [*self._values, *self._known]]
        self._cells: Floats = np.stack(columns, 1)[self.series.order]
        codes = {name: code for code, name in enumerate(learned["names"])}
        new = [name for name in self.series.names if name not in codes]
        if new:
            _log.warning("%d series are new to the model, the first %r", len(new), new[0])
        scales = zip(("location", "spread"), learned["whole"], strict=True)
        self.location, self.spread = (
            np.array([learned[of][codes[n]] if n in codes else whole for n in self.series.names])
            for of, whole in scales
        )

    def __len__(self) -> int:
        return len(self.series.names)

    def __getitem__(self, index: int) -> Sample:
        start, last, end = self._places(index)
        count, now = len(self._values), last + 1
        cells = self._cells[start:end]
        name = repr(self.series.names[index])
        if now - start < self._past:
            raise DataError(
                f"series {name} has {now - start} steps with a value, and a forecast needs "
                f"{self._past} (dataset.past)"
            )
        window = cells[now - self._past - start : now - start]
        ahead = cells[now - start : now - start + self._horizon, count:]
        if np.isnan(window).any() and not self._carries:
            raise DataError(f"series {name}: a value of its last {self._past} steps is missing")
        if self._known and (len(ahead) < self._horizon or np.isnan(ahead).any()):
            raise DataError(
                f"series {name}: {', '.join(self._known)} must be known of the {self._horizon} "
                "steps to forecast; add rows without a value behind its last one"
            )
        location, spread = self.location[index], self.spread[index]
        scaled = carried((cells[: now - start] - location) / spread)[-self._past :]
        if not self._known:
            ahead = np.zeros((self._horizon, 0))
        ahead = (ahead - location[count:]) / spread[count:]
        return {
            "past": torch.from_numpy(scaled.astype(np.float32)),
            "future": torch.from_numpy(ahead.astype(np.float32)),
            "location": torch.tensor(location[:count], dtype=torch.float32),
            "spread": torch.tensor(spread[:count], dtype=torch.float32),
        }

    def _places(self, index: int) -> tuple[int, int, int]:
        """The first place of a series, its last one with a value, and its end."""
        start, end = self.series.bounds[index : index + 2].tolist()
        there = np.isfinite(self._cells[start:end, : len(self._values)]).any(1)
        last = start + int(np.flatnonzero(there)[-1]) if there.any() else start - 1
        return start, last, end

    def about(self, index: int) -> dict[str, str]:
        """For a table of forecasts: the series, and the time after which they begin."""
        start, last, _ = self._places(index)
        after = str(self.series.times[last]) if last >= start else ""
        named = {"series": self.series.names[index]} if self.series.names != [""] else {}
        return {**named, "after": after.removesuffix("T00:00:00.000000")}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per series: its name, and the time of its last value."""
        import pandas as pd

        about = [self.about(index) for index in range(len(self))]
        times = [row["after"] for row in about]
        return pd.DataFrame({"series": self.series.names, "time": times})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The arrays of all series, and their scales."""
        if not sized:
            return ["ahead", self._root]
        return ["ahead", *self.series.names, self._cells, self.location, self.spread]

    def data_files(self) -> list[DataFile]:
        return [data_file(self._root.rpartition("/")[2], self._root, self._files)]
