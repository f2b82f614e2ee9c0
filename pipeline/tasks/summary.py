"""What tasks print: the summary of a fit before its first step, its results, and tables.

data      SyntheticFaces: 800 samples to train on, 200 to validate; 25 batches of 32 an epoch
model     LandmarkNet: 1,171,336 parameters, fp32, on cpu
optimizer AdamW, learning rate 0.005
loader    2 workers (process)
folder    outputs/2026-11-22/07-31-11
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import program
from penstock.terminal import put

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit
    from penstock.training.loop import Record, Result


def summary(fit: Fit) -> str:
    """The lines of the summary for stderr, without a newline at their end."""
    from penstock.loading.facts import unfiltered  # which import torch, and lists of runs do not
    from penstock.order.plan import length_of

    config, data, train = fit.config, fit.data, fit.train_loader
    lengths = [length_of(split.dataset) for split in data.splits]
    counts = ["a stream" if length is None else f"{length:,}" for length in lengths]
    trained, validated = [*counts, "none"][:2]
    steps, size = train.plan.steps(0), train.plan.batch_size
    sizes = [(weight.numel(), weight.requires_grad) for weight in fit.model.parameters()]
    every, learn = sum(size for size, _ in sizes), sum(size for size, own in sizes if own)
    part = "" if every == learn else f", {learn:,} of them trained"
    world, node = fit.group.world, config.optimizer
    ranks = "" if world.size == 1 else f", {config.distributed.strategy} over {world.size} ranks"
    optimizers: dict[str, Any] = (
        {"": node} if "_target_" in node else {f"{name}: ": node[name] for name in node}
    )
    rates = [
        f"{key}{program.name_of(own)}, learning rate {own.get('lr')}"
        for key, own in optimizers.items()
    ]
    options, out, gathered = train.options, [], config.trainer.accumulate
    for split in data.splits:
        out += [f"{split.name}: {count:,} by {by}" for by, count in split.left_out.items()]
    rows = {
        "data": f"{type(unfiltered(data.train.dataset)).__name__}: {trained} samples to train on, "
        f"{validated} to validate; {'' if steps is None else f'{steps:,} '}batch"
        f"{'' if steps == 1 else 'es'} of {size} an epoch",
        "left out": "; ".join(out),
        "model": f"{type(fit.model).__name__}: {every:,} parameters{part}, "
        f"{config.trainer.precision}, on {train.world.device}{ranks}",
        "optimizer": "; ".join(rates),
        "steps": f"of {gathered} batches (trainer.accumulate); none is carried into the next "
        f"epoch, and an epoch has {'no known number' if steps is None else f'{steps:,}'}"
        if gathered > 1 and (steps is None or steps % gathered)
        else "",
        "loader": f"{options.num_workers} worker"
        f"{'' if options.num_workers == 1 else 's'} ({options.backend})"
        if options.num_workers and options.backend != "main"
        else "in this process, between the steps (loader.num_workers=0)",
        "skips": train.plan.skipped and str(train.plan.skipped),
        "folder": fit.folder.path,
    }
    return "\n".join(f"{name:<9} {text}" for name, text in rows.items() if text)


def print_report(
    result: Result, levels: Mapping[str, Record], monitor: str | None, mode: str
) -> None:
    """Print the metrics of the best and the last epoch, the levels to compare with, and the speed.

    Args:
        levels: of what they compare with, by name; first the constant.
        mode: whether less ("min") or more ("max") of the monitor is better.
    """
    history, best, last = result.history, result.best, result.history[-1]
    shown = [("best and last", last)] if best is last else [("best", best), ("last", last)]
    columns: dict[str, Record] = {}
    for title, record in shown:
        if record is not None:
            values = {name[4:]: value for name, value in record.items() if name[:4] == "val/"}
            columns[f"{title}, epoch {record['epoch']}"] = {
                **values,
                "training loss": record["train/loss"],
            }
    print_table({**columns, **levels})
    if monitor is None:
        put("no validation, as data.validate is false; the last checkpoint is the result")
    own = next(iter(columns.values())).get(monitor or "", math.nan)
    for name, level in levels.items():
        if monitor in level:
            other = level[monitor]
            is_better = own > other if mode == "max" else own < other
            side = "better" if is_better else "no better" if own == other else "worse"
            # Of two scores the larger may be the worse one; the word behind says which side this
            # is.
            ratio = f"ratio {own / other:.2f}, " if other else ""
            put(f"{monitor} {own:.4f} | {name} {other:.4f} | {ratio}{side}")
    seconds = sum(record["seconds"] for record in history)
    speed, waiting = (  # each epoch weighs as long as it took
        sum(record[name] * record["seconds"] for record in history) / seconds
        for name in ("samples_per_second", "wait_share")
    )
    put(
        f"epochs {len(history)}, steps {last['step']}, {seconds:.1f} s of training: "
        f"{speed:,.0f} samples/s, {waiting:.0%} of the time waiting for data; "
        f"ended by {result.reason}"
    )


def print_table(columns: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics to stdout: a row a metric, a column a model."""
    rows = [["", *columns]]
    for name in next(iter(columns.values())):
        values = [column.get(name) for column in columns.values()]
        cells = [
            "" if value is None else f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.3g}"
            for value in values
        ]
        rows.append([name, *cells])
    put_rows(rows)


def put_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in aligned columns, never cut to the width of a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        put("  ".join(map(str.ljust, row, widths)).rstrip())
