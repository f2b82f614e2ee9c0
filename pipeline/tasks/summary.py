"""What tasks print: the summary of a fit before its first step, its results, and tables.

data      SyntheticFaces: 800 samples to train on, 200 to validate; 25 batches of 32 an epoch
model     LandmarkNet: 1,171,336 parameters, fp32, on cpu
optimizer AdamW, learning rate 0.005
loader    2 worker processes
folder    outputs/2026-11-22/07-31-11
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from penstock.build.data import DataParts
from penstock.config.announcement import name_of
from penstock.config.schema import Config
from penstock.distributed.group import Group
from penstock.loading.loader import Loader
from penstock.loading.wrapped import unfiltered
from penstock.order.streams import length_of
from penstock.tasks import opening
from penstock.terminal import console, fitted, put
from penstock.training.observer import Record
from penstock.training.runner import Result

if TYPE_CHECKING:
    from rich.table import Table


def summary(
    config: Config, data: DataParts, model: nn.Module, train: Loader, group: Group, folder: Path
) -> str:
    """The lines of the summary for stderr, without a newline at their end."""
    rows = {
        "data": _data(data, train),
        "left out": _left_out(data),
        "model": _model(config, model, train.world.device, group),
        "optimizer": _optimizer(config),
        "loader": _loader(train, group),
        "skips": opening.describe(train.plan, config.trainer.max_epochs),
        "folder": folder,
    }
    lines = (f"{name:<9} {text}" for name, text in rows.items() if text)
    return "\n".join(fitted(line, hanging=10) for line in lines)


def known_by(data: DataParts) -> dict[str, dict[str, dict[str, str]]]:
    """The marks of each split that is not all Penstock's, for the manifest; else none."""
    facts = {
        split.name: split.identity.known_by for split in data.splits if split.identity.known_by
    }
    return {"identity": facts} if facts else {}


def left_out(data: DataParts) -> dict[str, dict[str, dict[str, int]]]:
    """How many rows of each split its filters leave out, by filter: for the manifest."""
    counts = {split.name: split.left_out for split in data.splits if split.left_out}
    return {"left_out": counts} if counts else {}


def _left_out(data: DataParts) -> str:
    counts = left_out(data).get("left_out", {})
    return "; ".join(
        f"{split}: " + ", ".join(f"{count:,} by {by}" for by, count in reasons.items())
        for split, reasons in counts.items()
    )


def _data(data: DataParts, loader: Loader) -> str:
    train = length_of(data.train.dataset)
    trained = "a stream of samples" if train is None else _count(train, "sample")
    validated = "none"
    if data.validates:
        val = length_of(data.val.dataset)
        validated = "a stream" if val is None else f"{val:,}"
    steps, size = loader.plan.steps(0), loader.plan.batch_size
    batches = f"batches of {size}"
    if steps is not None:
        batches = f"{_count(steps, 'batch')} of {size} an epoch"
    name = type(unfiltered(data.train.dataset)).__name__
    return f"{name}: {trained} to train on, {validated} to validate; {batches}"


def _model(config: Config, model: nn.Module, device: str, group: Group) -> str:
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    every, trained = sum(size for size, _ in sizes), sum(size for size, own in sizes if own)
    part = "" if every == trained else f", {trained:,} of them trained"
    compiled = ", compiled" if config.trainer.compile else ""
    ranks = "" if group.alone else f", {config.distributed.strategy} over {group.world.size} ranks"
    return (
        f"{type(model).__name__}: {_count(every, 'parameter')}{part}, "
        f"{config.trainer.precision}{compiled}, on {device}{ranks}"
    )


def _optimizer(config: Config) -> str:
    node = config.optimizer
    parts = {"": node} if "_target_" in node else {f"{name}: ": node[name] for name in node}
    return "; ".join(
        f"{part}{name_of(own)}, learning rate {own.get('lr')}" for part, own in parts.items()
    )


def _loader(train: Loader, group: Group) -> str:
    options = train.options
    if options.backend == "main" or not options.num_workers:
        return "in this process, between the steps (loader.num_workers=0)"
    workers = _count(options.num_workers, train.executor)
    return f"{workers}{'' if group.alone else ' a rank'}"


def _count(number: int, noun: str) -> str:
    plural = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{plural}"


def print_report(result: Result, levels: Mapping[str, Record], monitor: str | None) -> None:
    """Print to stdout the metrics of the best and the last epoch beside others; speed.

    Args:
        levels: of what they compare with, by name; first the constant.
    """
    last = result.history[-1]
    columns: dict[str, Record] = {}
    if result.best is not None and result.best is not last:
        columns[f"best, epoch {result.best['epoch']}"] = _measured(result.best)
    title = "best and last" if result.best is last else "last"
    columns[f"{title}, epoch {last['epoch']}"] = _measured(last)
    print_table({**columns, **levels}, monitor)
    if monitor is None:
        put("no validation, as dataset.val is null; the last checkpoint is the result")
    own = next(iter(columns.values())).get(monitor or "", math.nan)
    for name, level in levels.items():
        if monitor and level.get(monitor):
            put(
                f"{monitor} {own:.4f} | {name} {level[monitor]:.4f} | "
                f"ratio {own / level[monitor]:.2f}"
            )
    seconds = sum(record["seconds"] for record in result.history)
    speed = _over_time(result, "samples_per_second")
    waiting = _over_time(result, "wait_share")
    line = (
        f"epochs {len(result.history)}, steps {last['step']}, {seconds:.1f} s of training: "
        f"{speed:,.0f} samples/s, {waiting:.0%} of the time waiting for data; "
        f"ended by {result.reason}"
    )
    put(fitted(line, stream="stdout"))


def _measured(record: Record) -> Record:
    """The validation metrics, and the training loss for comparison."""
    values = {name[4:]: value for name, value in record.items() if name.startswith("val/")}
    return {**values, "training loss": record["train/loss"]}


def _over_time(result: Result, name: str) -> float:
    """The mean of a record's value, each epoch weighing as long as it took."""
    seconds = sum(record["seconds"] for record in result.history)
    return sum(record[name] * record["seconds"] for record in result.history) / seconds


def print_table(columns: Mapping[str, Mapping[str, float]], monitor: str | None) -> None:
    """Print metrics to stdout: a row a metric, a column a model; the monitored one stands out."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for title in columns:
        table.add_column(title, justify="right")
    for name in next(iter(columns.values())):
        values = [column.get(name) for column in columns.values()]
        cells = [
            "" if value is None else f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.3g}"
            for value in values
        ]
        table.add_row(name, *cells, style="bold" if name == monitor else None)
    console(sys.stdout, highlight=False).print(table)


def put_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in aligned columns, never cut to the width of a terminal.

    A narrow terminal gets several lines a row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        put(fitted("  ".join(map(str.ljust, row, widths)).rstrip(), stream="stdout"))


def new_table(title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.HORIZONTALS, padding=(0, 1, 0, 0))


def put_table(table: Table) -> None:
    # A file or a pipe has no width; rich would take 80 columns and break the headings.
    console(sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)
