"""A fit's pictures and its report: observers that keep what they show until the fit's end.

What draws and writes is imported then: it takes 50 ms, which no run waits for at its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from penstock.addons.reports.recording import Confusions, Extremes
from penstock.runs.only_shown import only_shown
from penstock.runs.run_folder import Status
from penstock.training.objective import Classification
from penstock.training.observer import Observer, OnlyShows

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit


def observers(fit: Fit) -> list[Observer]:
    """Those that `trainer.pictures` and `trainer.report` ask for."""
    trainer = fit.config.trainer
    confusions, extremes = Confusions(fit.objective), Extremes(fit.objective, fit.group.world.size)
    made: list[Observer] = []
    if trainer.pictures:
        made.append(OnlyShows("the confusion of classes", confusions))
    if trainer.report:
        made.append(OnlyShows("the best and the worst samples", extremes))
    return [*made, Shown(fit, confusions, extremes)] if made else []


class Shown(Observer):
    """Draws pictures with the best weights at the end, and writes the report."""

    def __init__(self, fit: Fit, confusions: Confusions, extremes: Extremes) -> None:
        self.fit, self.confusions, self.extremes = fit, confusions, extremes

    def on_done(self) -> None:
        fit, result, model = self.fit, self.fit.result, None
        with only_shown("what the best weights predict"):
            model = fit.best_model()
        if fit.config.trainer.pictures:
            for name, path in self._pictures(model).items():
                if path is not None:
                    fit.show(name, path)
        if fit.config.trainer.report and model is not None:
            with only_shown("what the report shows of samples and data"):
                from penstock.addons.reports import report_facts

                losses = self.extremes.best(int(result.best["epoch"]) if result.best else None)
                data = fit.data
                report_facts.write_facts(
                    fit.folder.path, data, fit.objective, model, losses, result.history
                )

    def on_end(self, status: Status) -> None:
        if not self.fit.config.trainer.report:
            return
        from penstock.addons.reports import report

        folder = self.fit.folder.path
        if status != "done":
            with only_shown("what the report shows of the data"):
                from penstock.addons.reports import report_facts

                report_facts.write_data_facts(folder, self.fit.data)
        report.leave(folder, status == "done", self.fit.train_loader.plan)

    def _pictures(self, model: nn.Module | None) -> dict[str, Path | None]:
        """The drawn ones by name; None for one that this kind of run does not have."""
        from penstock.addons.reports import pictures, predictions

        fit, folder, files = self.fit, self.fit.folder.path, dict[str, Path | None]()
        with only_shown("the picture of the learning curves"):
            curves = folder / "curves.png"
            files["curves"] = pictures.learning_curves(fit.result.history, curves, fit.levels)
        with only_shown("the picture of predictions"):
            if model is not None and fit.data.validates:
                drawn = folder / "predictions.png"
                files["predictions"] = predictions.draw(fit.data.val, model, fit.objective, drawn)
        with only_shown("the picture of confused classes"):
            best = fit.result.best
            confused = self.confusions.best(int(best["epoch"]) if best else None)
            if confused is not None and isinstance(fit.objective, Classification):
                epoch, counts = confused
                files["confusion"] = pictures.confusion_matrix(
                    counts,
                    fit.objective.names,
                    folder / "confusion.png",
                    f"validation, epoch {epoch}",
                )
        return files
