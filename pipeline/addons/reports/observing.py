"""A fit's predictions and its report: one observer.

It keeps which rows each validation found best, median and worst; at the end it draws them with the
best weights, and writes the report. With several ranks, those of the first one's shares. Cost: 12
bytes a sample, up to `MOST`. What draws and writes is imported at the end: it takes 50 ms, which no
run waits for at its start.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.loading.batch import Batch
from penstock.runs.folder import Status
from penstock.runs.only_shown import only_shown
from penstock.training.loop import Observer, Record

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

MOST = 1 << 20  # samples of a validation
EACH = 4  # rows in a group


def observers(fit: Fit) -> list[Observer]:
    """The one that `trainer.pictures` and `trainer.report` ask for."""
    return [Shown(fit)]


class Shown(Observer):
    """Keeps the losses of validations, draws predictions and writes the report.

    Attributes:
        by_epoch: of each validation, rows of the dataset with their losses by group, and a few
            numbers.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.by_epoch: dict[int, tuple[dict[str, dict[int, float]], dict[str, Any]]] = {}
        self._rows: list[npt.NDArray[np.int64]] = []
        self._losses: list[Tensor] = []
        self._works = True

    def on_validation(self, done: int, steps: int | None) -> None:
        if done == 0:
            self._rows, self._losses = [], []

    def on_validation_batch(self, batch: Batch, losses: Tensor) -> None:
        if self._works and sum(map(len, self._rows)) < MOST:
            with only_shown("the best and the worst samples") as failed:
                places, losses = self.fit.objective.by_sample(losses, batch)
                self._rows.append(batch.indices[places.cpu().numpy()])
                self._losses.append(losses)
            # A warning for each batch would bury all else.
            self._works = not failed

    def on_epoch_end(self, record: Record) -> None:
        if "val/loss" not in record or not sum(map(len, self._rows)):
            return
        rows, losses = np.concatenate(self._rows), torch.cat(self._losses).double().cpu().numpy()
        order, count = np.argsort(losses, kind="stable"), len(losses)  # not a number comes last
        # With few samples, groups must not overlap, or the worst would be among the best.
        each, middle = min(EACH, -(-count // 3)), (count - 1) // 2
        first = max(each, middle - (each - 1) // 2)
        last = max(count - each, first)
        chosen = {
            "best": order[:each],
            "median": order[first : min(first + each, last)],
            "worst": order[last:][::-1],
        }
        groups = {
            name: dict(zip(rows[of].tolist(), losses[of].tolist(), strict=True))
            for name, of in chosen.items()
        }
        epoch, ranks = int(record["epoch"]), self.fit.group.world.size
        self.by_epoch[epoch] = groups, {"epoch": epoch, "samples": count, "ranks": ranks}

    def on_done(self) -> None:
        from penstock.addons.reports import samples, tiles
        from penstock.addons.reports.run_page import lines_of

        fit, chosen, examples = self.fit, list[dict[str, Any]](), None
        # After a resume the best epoch may be an earlier one, whose losses are gone.
        latest = next(reversed(self.by_epoch), -1)
        best = int(fit.result.best["epoch"]) if fit.result.best else latest
        groups, facts = self.by_epoch.get(best) or self.by_epoch.get(latest) or (None, None)
        if fit.config.trainer.pictures and fit.config.data.validates:
            with only_shown("the picture of predictions"):
                model, val = fit.best_model(), fit.data.val
                chosen = samples.predictions(val, model, fit.objective, groups)
                examples = fit.objective.examples(model, val.dataset, val.transform, len(chosen))
                drawn = [
                    (b64decode(one["uri"].partition(",")[2]), lines_of(one), bool(one.get("wrong")))
                    for one in chosen
                    if "uri" in one
                ]
                if drawn:
                    path = fit.folder.path / "predictions.jpg"
                    fit.show("predictions", tiles.sheet(drawn, path))
        if fit.config.trainer.report:
            with only_shown("what the report shows of samples and data"):
                shown = {"predictions": chosen, "losses": facts, "examples": examples}
                samples.write(fit.folder.path, fit.data, fit.objective, **shown)

    def on_end(self, status: Status) -> None:
        if not self.fit.config.trainer.report:
            return
        from penstock.addons.reports import report, run_page, samples

        folder = self.fit.folder.path
        # An earlier start may have left facts, which show more than these would.
        if status != "done" and not (folder / run_page.FACTS).exists():
            with only_shown("what the report shows of the data"):
                samples.write(folder, self.fit.data)
        report.leave(folder, status == "done")
