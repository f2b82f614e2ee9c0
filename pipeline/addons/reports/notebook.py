"""A run's folder as an object, for notebooks and scripts: `from penstock import Run`.

torch and the run's dataset are imported when a batch is asked for, pandas for a table.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import PenstockError
from penstock.order.address import Address
from penstock.runs.record import DIGESTS, RunRecord, digests
from penstock.terminal import one_line

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from penstock.addons.predicting import Trained
    from penstock.build.data import DataParts
    from penstock.loading.batch import Batch
    from penstock.runs.record import Series

Row = dict[str, Any]


class Run:
    """A run that has ended, or goes on at this moment; read once, when this is made.

        run = Run("outputs/2026-11-22/10-00-00")
        run.metrics["val/loss"].min()
        run.batch(0, 17)["image"]

    Args:
        folder: of the run.

    Raises:
        ConfigError: it is not a run's folder, or a file of it is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._record = RunRecord.read(Path(folder), "folder")

    @property
    def path(self) -> Path:
        """The folder."""
        return self._record.path

    @property
    def state(self) -> str:
        """done, running, failed, preempted, interrupted, or killed."""
        return self._record.state

    @property
    def config(self) -> Mapping[str, Any]:
        """The whole configuration, as nested dicts."""
        return self._record.config

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Command, versions, git state, hardware, hashes, starts and results."""
        return self._record.manifest

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row an epoch: step, losses, metrics, seconds, speed ...; empty before the first."""
        return _frame(self._record.epochs)

    @cached_property
    def logs(self) -> pd.DataFrame:
        """A row for every `trainer.log_every` steps within the epochs."""
        return _frame(self._record.logs)

    def batch(self, epoch: int, step: int, split: Literal["train", "val"] = "train") -> Batch:
        """The very batch that the run had at an address, as `task=replay` makes it.

        It is made from the stored configuration, with the rules for what that may call, from this
        process's working folder. If the run wrote digests.jsonl, the batch is compared with it.
        Cost: the dataset is opened at the first call.

        Raises:
            ConfigError: the configuration is refused or does not fit here, or there is no such
                batch.
            DataError: the data is missing or damaged.
            PenstockError: the batch is not the one that the run had: data or code have changed.
        """
        from penstock.loading.batch import batch_hash
        from penstock.tasks.replay import recompute

        asked = {"split": split, "epoch": epoch, "step": step}
        batch = recompute(getattr(self._data, split), self._data.config.model_copy(update=asked))
        kept = self._digests.get(Address(epoch, step)) if split == "train" else None
        made = batch_hash([batch])
        if kept not in (None, made):
            raise PenstockError(
                f"batch ({epoch}, {step}) has the hash {made}, and {kept} in "
                f"{self.path / DIGESTS}: since the run, the data or the code has changed"
            )
        return batch

    def report(self) -> ReportFile:
        """The path of report.html, which is made anew; in a notebook, it is shown below the cell.

        Raises:
            PenstockError: the report cannot be written.
        """
        from penstock.addons.reports import report

        record = RunRecord.read(self.path, "folder")
        page = report.make(record)
        return ReportFile(report.save(record, page), page)

    def model(self) -> nn.Module:
        """The run's module in evaluation mode, with its best weights, on the CPU.

        Raises:
            ConfigError: the configuration is refused or does not fit here.
            PenstockError: there are no weights, or they are damaged or of another model.
        """
        return self._trained.model

    def predict(
        self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    ) -> list[Row]:
        """A row for each sample, without labels, as `task=predict` writes it: `row`, `path`, and
        what the objective says; or `error` for a file that is damaged.

        Args:
            paths: a folder or file, or a list of files.

        Raises:
            ConfigError: the objective has no rows, or the dataset reads none without labels.
        """
        from penstock.addons.predicting import predicted

        listed = isinstance(paths, Sequence) and not isinstance(paths, str)
        root = [os.fspath(path) for path in paths] if listed else os.fspath(paths)  # type: ignore
        return predicted(self._trained, root)

    @cached_property
    def _trained(self) -> Trained:
        from penstock.addons.predicting import trained

        config = self._data.config.model_copy(update={"run": str(self.path)})
        return trained(config, self._data.world, elsewhere=True)

    @cached_property
    def _data(self) -> DataParts:
        from penstock.build.data import DataParts
        from penstock.config import compose
        from penstock.distributed.world import World

        # A batch needs no tracker, whose package or server may not be there, and nothing is
        # written to the run's folder.
        without: dict[str, object] = {"tracker": {}, "resume": None, "run_dir": "outputs"}
        return DataParts(compose.accept({**self.config, **without}), World())

    @cached_property
    def _digests(self) -> dict[Address, str]:
        return digests(self.path / DIGESTS)

    def __repr__(self) -> str:
        facts = ", ".join(" ".join(pair) for pair in self._facts()[1:])
        return f"Run({str(self.path)!r}: {self.state}, {facts})"

    def _repr_html_(self) -> str:
        facts = [("run", str(self.path)), *self._facts()]
        facts.append(("command", str(self.manifest.get("command", ""))))
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(one_line(name))}</th>"
            f"<td style='text-align:left'>{html.escape(one_line(value))}</td></tr>"
            for name, value in facts
        )
        return f"<table>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        from penstock.addons.reports.verdict import monitored

        name, best, *_ = monitored(self._record)
        steps = [str(self._record.epochs[-1]["step"])] if self._record.epochs else []
        facts = [("state", self.state), ("epochs", str(len(self._record.epochs)))]
        facts += [("steps", count) for count in steps]
        return facts + ([] if best is None else [(name, f"{best:.4g}")])


@dataclass(frozen=True)
class ReportFile(os.PathLike[str]):
    """A report's path; a notebook shows the report itself, cut off from the notebook's page.

    Attributes:
        page: what was written there.
    """

    path: Path
    page: str = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = html.escape(self.page.encode(errors="backslashreplace").decode())
        style = "width: 100%; height: 80vh; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def _frame(series: Series) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: series.column(name) for name in series.names})
