"""What a fit says and draws at its end: a table to stdout, pictures in the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from pipeline.build.training import TrainingParts
from pipeline.runs.pictures import confusion_matrix, learning_curves
from pipeline.runs.tracker import Tracker
from pipeline.tasks import predictions
from pipeline.tasks.recording import Confusions
from pipeline.tasks.validate import print_table
from pipeline.terminal import put
from pipeline.training.objective import Classification, Objective
from pipeline.training.observer import Record
from pipeline.training.runner import Result


def print_report(result: Result, constant: Record, monitor: str, baseline_name: str) -> None:
    """Print to stdout the metrics of the best and the last epoch beside the baseline's; speed."""
    last = result.history[-1]
    columns: dict[str, Record] = {}
    if result.best is not None and result.best is not last:
        columns[f"best, epoch {result.best['epoch']}"] = _measured(result.best)
    title = "best and last" if result.best is last else "last"
    columns[f"{title}, epoch {last['epoch']}"] = _measured(last)
    if constant:
        columns[baseline_name] = constant
    print_table(columns, monitor)
    own = next(iter(columns.values())).get(monitor, math.nan)
    if constant.get(monitor):
        put(f"{monitor} {own:.4f} | {baseline_name} {constant[monitor]:.4f} | "
              f"ratio {own / constant[monitor]:.2f}")  # fmt: skip
    seconds = sum(record["seconds"] for record in result.history)
    speed = _over_time(result, "samples_per_second")
    waiting = _over_time(result, "wait_share")
    put(f"epochs {len(result.history)}, steps {last['step']}, {seconds:.1f} s of training: "
          f"{speed:,.0f} samples/s, {waiting:.0%} of the time waiting for data; "
          f"ended by {result.reason}")  # fmt: skip


def _measured(record: Record) -> Record:
    """What validation gave; and the training loss for comparison."""
    values = {name[4:]: value for name, value in record.items() if name.startswith("val/")}
    return {**values, "training loss": record["train/loss"]}


def _over_time(result: Result, name: str) -> float:
    """The mean of a record's value, each epoch weighing as long as it took."""
    seconds = sum(record["seconds"] for record in result.history)
    return sum(record[name] * record["seconds"] for record in result.history) / seconds


def draw_pictures(
    parts: TrainingParts, model: nn.Module, objective: Objective, result: Result, constant: Record,
    folder: Path,
) -> dict[str, Path | None]:  # fmt: skip
    """Draw the learning curves, and predictions of validation samples."""
    return {
        "curves": learning_curves(
            result.history, folder / "curves.png", constant, objective.baseline_name
        ),
        "predictions": predictions.draw(
            parts.data.val, model, objective, folder / "predictions.png"
        ),
    }


def draw_confusion(
    objective: Objective, confusions: Confusions, result: Result, folder: Path
) -> Path | None:
    """Draw which classes are taken for which, in the epoch of the best weights."""
    found = confusions.best(int(result.best["epoch"]) if result.best else None)
    if found is None or not isinstance(objective, Classification):
        return None
    epoch, counts = found
    return confusion_matrix(
        counts, objective.names, folder / "confusion.png", f"validation, epoch {epoch}"
    )


def show_files(files: Mapping[str, Path | None], tracker: Tracker, step: int) -> None:
    """Say on stdout where to look; pictures go to the tracker, too."""
    for name, path in files.items():
        if path is not None:
            put(f"{name:<12} {path}")
            if path.suffix == ".png":
                tracker.picture(name, path, step)
