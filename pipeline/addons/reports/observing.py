"""A fit's picture of predictions and its report: observers of the fit.

What draws and writes is imported at the end: it takes 50 ms, which no run waits for at its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.loading.batch import Batch
from penstock.runs.folder import Status
from penstock.runs.only_shown import only_shown
from penstock.training.adapter import Objective
from penstock.training.loop import Observer, OnlyShows, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit


def observers(fit: Fit) -> list[Observer]:
    """Those that `trainer.pictures` and `trainer.report` ask for."""
    trainer = fit.config.trainer
    if not (trainer.pictures or trainer.report):
        return []
    extremes = Extremes(fit.objective, fit.group.world.size)
    return [OnlyShows("the best and the worst samples", extremes), Shown(fit, extremes)]


class Shown(Observer):
    """Draws predictions of the best weights at the end, and writes the report."""

    def __init__(self, fit: Fit, extremes: Extremes) -> None:
        self.fit, self.extremes = fit, extremes

    def on_done(self) -> None:
        from penstock.addons.reports import facts, samples

        fit, trainer, chosen = self.fit, self.fit.config.trainer, list[facts.Sample]()
        best = self.extremes.best(int(fit.result.best["epoch"]) if fit.result.best else None)
        with only_shown("the picture of predictions"):
            if fit.config.data.validates:
                model, val = fit.best_model(), fit.data.val
                groups = best.groups if best else None
                chosen = samples.predictions(val, model, fit.objective, groups)
                if trainer.pictures:
                    folder = fit.folder.path
                    path = samples.draw(chosen, val, model, fit.objective, folder)
                    if path is not None:
                        fit.show("predictions", path)
        if trainer.report:
            with only_shown("what the report shows of samples and data"):
                losses = best.facts if best else None
                samples.write(fit.folder.path, fit.data, fit.objective, chosen, losses)

    def on_end(self, status: Status) -> None:
        if not self.fit.config.trainer.report:
            return
        from penstock.addons.reports import facts, report, samples

        folder = self.fit.folder.path
        if status != "done" and not (folder / facts.NAME).exists():
            with only_shown("what the report shows of the data"):
                samples.write(folder, self.fit.data, None, [], None)
        report.leave(folder, status == "done")


class ValidationLosses(NamedTuple):
    """What remains of a validation's losses: rows of the dataset by group, and a few numbers."""

    groups: dict[str, npt.NDArray[np.int64]]
    facts: dict[str, Any]


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

    def on_epoch_end(self, record: Record) -> None:
        if "val/loss" not in record or not self._count:
            return
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
        epoch = int(record["epoch"])
        facts = {
            "epoch": epoch,
            "samples": count,
            "quantiles": np.quantile(finite, (0, 0.5, 0.95, 1)).tolist() if len(finite) else [],
            "ranks": self.ranks,
        }
        by_group = {name: rows[places] for name, places in groups.items()}
        self.by_epoch[epoch] = ValidationLosses(by_group, facts)
        self._begin()

    def best(self, epoch: int | None) -> ValidationLosses | None:
        """Those of the given epoch, or of the last one of this process."""
        kept = self.by_epoch.get(-1 if epoch is None else epoch)
        return kept or next(reversed(self.by_epoch.values()), None)

    def _begin(self) -> None:
        self._rows: list[npt.NDArray[np.int64]] = []
        self._losses: list[Tensor] = []
        self._count = 0
