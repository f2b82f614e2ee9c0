"""A fit's pictures and its report: observers that keep what they show until the fit's end.

Two keep what validation finds: confused classes, the best and the worst samples.

What draws and writes is imported then: it takes 50 ms, which no run waits for at its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from penstock.loading.batch import Batch
from penstock.runs.only_shown import only_shown
from penstock.runs.run_folder import Status
from penstock.training.objective import Classification
from penstock.training.objective_base import Objective
from penstock.training.observer import Observer, OnlyShows, Record

if TYPE_CHECKING:
    from penstock.addons.reports.facts import LossFacts
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
        from penstock.addons.reports import data_section, pairs, pictures, predictions

        fit, folder, files = self.fit, self.fit.folder.path, dict[str, Path | None]()
        with only_shown("the picture of the learning curves"):
            curves = folder / "curves.png"
            files["curves"] = pictures.learning_curves(fit.result.history, curves, fit.levels)
        with only_shown("the picture of predictions"):
            if model is not None and fit.data.validates:
                drawn = folder / "predictions.png"
                files["predictions"] = predictions.draw(fit.data.val, model, fit.objective, drawn)
        with only_shown("the picture of pairs"):
            if model is not None and fit.data.validates:
                drawn = folder / data_section.PAIRS
                files["pairs"] = pairs.draw(fit.data.val, model, fit.objective, drawn)
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


class Confusions(Observer):
    """Keeps `Classification.confusion` of each validation, by epoch."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.by_epoch: dict[int, Tensor] = {}

    def on_epoch_end(self, record: Record) -> None:
        confusion = self.objective.confusion
        if confusion is not None and "val/loss" in record:
            self.by_epoch[int(record["epoch"])] = confusion

    def best(self, epoch: int | None) -> tuple[int, Tensor] | None:
        """An epoch and its counts: the given one, or the last one of this process."""
        if not self.by_epoch:
            return None
        epoch = epoch if epoch in self.by_epoch else max(self.by_epoch)
        return epoch, self.by_epoch[epoch]


@dataclass(frozen=True)
class ValidationLosses:
    """What remains of a validation's losses: rows of the dataset by group, and LossFacts."""

    groups: dict[str, npt.NDArray[np.int64]]
    facts: LossFacts


class Extremes(Observer):
    """Keeps which rows each validation found best, median and worst, by epoch.

    With several ranks, those of the first one's shares. Cost: 12 bytes a sample, up to `MOST`.
    """

    MOST = 1 << 20  # samples
    EACH = 4  # rows in a group

    def __init__(self, objective: Objective, ranks: int = 1) -> None:
        self.objective, self.ranks = objective, ranks
        self.by_epoch: dict[int, ValidationLosses] = {}
        self._begin()

    def on_validation(self, done: int, steps: int | None) -> None:
        if done == 0:
            self._begin()

    def on_validation_batch(self, batch: Batch, losses: Tensor) -> None:
        if self._count >= self.MOST:
            return
        places, losses = self.objective.by_sample(losses, batch)
        self._rows.append(batch.indices[places.cpu().numpy()])
        self._losses.append(losses)
        self._count += len(losses)
        self._by_batch |= len(losses) > 1 and losses.stride(0) == 0  # one number, expanded

    def on_epoch_end(self, record: Record) -> None:
        if "val/loss" not in record or not self._count:
            return
        from penstock.addons.reports.facts import QUANTILES, LossFacts  # builds models: 20 ms

        rows, losses = np.concatenate(self._rows), torch.cat(self._losses).double().cpu().numpy()
        order, count = np.argsort(losses, kind="stable"), len(losses)  # not a number comes last
        each, middle = min(self.EACH, -(-count // 3)), (count - 1) // 2
        first = max(each, middle - (each - 1) // 2)
        last = max(count - each, first)
        groups = {
            "best": order[:each],
            "median": order[first : min(first + each, last)],
            "worst": order[last:][::-1],
        }
        finite = losses[np.isfinite(losses)]
        quantiles = np.quantile(finite, QUANTILES).tolist() if len(finite) else []
        epoch = int(record["epoch"])
        self.by_epoch[epoch] = ValidationLosses(
            {name: rows[places] for name, places in groups.items()},
            LossFacts(epoch, count, tuple(quantiles), self._by_batch, self.ranks),
        )
        self._begin()

    def best(self, epoch: int | None) -> ValidationLosses | None:
        """Those of the given epoch, or of the last one of this process."""
        kept = self.by_epoch.get(-1 if epoch is None else epoch)
        return kept or next(reversed(self.by_epoch.values()), None)

    def _begin(self) -> None:
        self._rows: list[npt.NDArray[np.int64]] = []
        self._losses: list[Tensor] = []
        self._count, self._by_batch = 0, False
