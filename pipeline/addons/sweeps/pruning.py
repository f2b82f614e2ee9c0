"""The epochs of a fit that is a trial: reported to its study, which may end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.addons.sweeps.job_result import PRUNING
from penstock.addons.sweeps.study import JOURNAL, Study
from penstock.terminal import say
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit


class Pruning(Observer):
    """Reports the monitored value of every validated epoch, and ends a fit that falls behind.

    Args:
        study, number: of the trial.
        manifest: of the run, which records why it ended.
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


class Unpruned(Observer):
    """Takes back that a run was ended as a hopeless trial, when it has reached another end."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def on_done(self) -> None:
        if self.fit.result.reason != PRUNING:
            self.fit.folder.manifest.pop("pruned", None)


def observers(fit: Fit) -> list[Observer]:
    """The observers of a run; if it is an unfinished trial of the study beside it, of that too."""
    options, folder = fit.config.sweep.optuna, fit.folder.path
    unpruned, sweep = Unpruned(fit), folder.parent
    if options is None or not folder.name.isdecimal() or not (sweep / JOURNAL).exists():
        return [unpruned]
    study, number = Study(sweep, options), int(folder.name)
    if number not in [trial.number for trial in study.unfinished]:
        return [unpruned]
    epochs = fit.config.trainer.max_epochs
    return [unpruned, Pruning(study, number, fit.folder.manifest, epochs)]
