"""The epochs of a fit that is a trial: reported to its study, which may end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.addons.sweeps.job_result import PRUNING
from penstock.addons.sweeps.options import SweepSection
from penstock.addons.sweeps.study import JOURNAL, Study
from penstock.config.schema import Config
from penstock.terminal import say
from penstock.training.observer import Observer, Record


class Pruning(Observer):
    """Reports the monitored value of every validated epoch, and ends a fit that falls behind.

    Args:
        study, number: of the trial.
        manifest: of the run, which is told why it ended.
        max_epochs: of the fit, which ends of itself after those.
    """

    def __init__(
        self, study: Study, number: int, manifest: dict[str, Any], max_epochs: int
    ) -> None:
        self.study, self.number, self.max_epochs = study, number, max_epochs
        self.manifest, self.monitor = manifest, str(manifest["monitor"])
        if study.reported(number):  # before it was killed
            self._judge()

    def on_epoch_end(self, record: Record) -> None:
        name, epochs = f"val/{self.monitor}", int(record["epoch"]) + 1
        if name in record and epochs > self.study.reported(self.number):
            self.study.report(self.number, epochs, record[name])
            self._judge()

    def _judge(self) -> None:
        epochs = self.study.reported(self.number)
        if self.study.is_hopeless(self.number) and epochs < self.max_epochs:
            self.enough = PRUNING
            said = (
                f"ended after {epochs} epoch{'s' * (epochs != 1)}, as {self.monitor} is behind "
                "that of other trials"
            )
            self.manifest["pruned"] = said
            say(said)


def of_trial(config: Config, folder: Path, manifest: dict[str, Any]) -> Pruning | None:
    """The observer of a run that is an unfinished trial of a study beside it; else None."""
    options, sweep = SweepSection.of(config).optuna, folder.parent
    if options is None or not folder.name.isdecimal() or not (sweep / JOURNAL).exists():
        return None
    study = Study(sweep, options)
    if int(folder.name) not in [one.number for one in study.unfinished]:
        return None
    return Pruning(study, int(folder.name), manifest, config.trainer.max_epochs)
