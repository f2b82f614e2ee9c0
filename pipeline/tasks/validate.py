"""`task=validate checkpoint=<run folder or file>`: loss and metrics of saved weights on a split.

Prints a table to stdout, with the best constant prediction, and writes nothing. A run's folder
stands for its best checkpoint. For the run's own configuration, give its overrides again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.build.data import DataParts, Split
from pipeline.build.sharing import share_of
from pipeline.build.training import TrainingParts
from pipeline.config.schema import Config
from pipeline.distributed.group import Group, join
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.loading.loader import Loader
from pipeline.order.plan import Plan
from pipeline.order.samplers import Subset
from pipeline.order.streams import StreamPlan
from pipeline.runs import checkpoint
from pipeline.tasks import progress
from pipeline.terminal import console, put, watched
from pipeline.training.objective import Constant, Objective
from pipeline.training.observer import Observer, Record
from pipeline.training.runner import validate
from pipeline.training.train_step import Mode

BASELINE_SAMPLES = 1000


def run(config: Config) -> float:
    """Validate `config.checkpoint` on `config.split`; returns the monitored metric."""
    if config.checkpoint is None:
        raise ConfigError(Problem("checkpoint", "is missing: the folder of a run, or a file"))
    path = checkpoint.find(Path(config.checkpoint))
    parts = TrainingParts(config)
    wanted = config.distributed
    with join(parts.world, wanted.backend, wanted.timeout) as group:
        return _run(config, parts, group, path)


def _run(config: Config, parts: TrainingParts, group: Group, path: Path) -> float:
    model, objective = parts.model(), parts.objective()
    load_weights(model, path)
    model.to(parts.world.device)
    name, _ = monitored(config, objective)
    precision = config.trainer.precision
    with (
        parts.data.split(config.split).loader() as loader,
        closing(progress.make(config.trainer.progress if group.is_first else "none", loader, 0))
        as display,
    ):  # fmt: skip
        watching = [display]
        measured = validate(model, objective, loader, precision, group, observers=watching)
        columns = {str(config.split): measured}
        if config.trainer.baseline:
            columns |= baselines(parts.data, objective, loader, group, watching)
    if group.is_first:
        print_table(columns, name)
        put(f"checkpoint   {path}")
    value = next(iter(columns.values())).get(name)
    if value is None:
        raise PenstockError(f"trainer.monitor is {name!r}, which validation does not give")
    return value


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint's weights, or their running mean if the run had one.

    Raises:
        PenstockError: they are of another model.
    """
    try:
        state = checkpoint.load(path)
        model.load_state_dict(state["averaged" if "averaged" in state else "model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise PenstockError(f"{path} does not fit the model of this configuration; give the "
                            f"overrides of its run. {error}") from error  # fmt: skip


def monitored(config: Config, objective: Objective) -> tuple[str, Mode]:
    """The metric to monitor and its mode: as configured, or the objective's first metric."""
    if config.trainer.monitor is not None:
        return config.trainer.monitor.removeprefix("val/"), config.trainer.mode
    name, metric = next(iter(objective.metrics.items()), ("loss", None))
    if metric is None or metric.higher_is_better is None:
        return name, config.trainer.mode
    return name, "max" if metric.higher_is_better else "min"


def baselines(
    data: DataParts, objective: Objective, loader: Loader, group: Group,
    observers: Sequence[Observer] = (),
) -> dict[str, Record]:  # fmt: skip
    """What a result is compared with, by name: the best constant, and the objective's own.

    The latter on the first rank only.
    """
    constant = baseline(data, objective, loader, group, observers)
    others = objective.comparisons(data.train.dataset, data.val.dataset) if group.is_first else {}
    return {objective.baseline_name: constant, **others}


def baseline(
    data: DataParts, objective: Objective, loader: Loader, group: Group | None = None,
    observers: Sequence[Observer] = (),
) -> Record:  # fmt: skip
    """Loss and metrics over `loader` of the constant that is best on the training split.

    The constant is that of about 1000 training samples, with the transforms of validation: rows
    spread over the split, or the first ones of a stream, or as many blocks of packed rows. All
    ranks find the same one.
    """
    dataset, plan = data.train.dataset, data.train.plan
    fetch = replace(
        data.train.fetch(), transform=data.val.transform,
        batch_transform=data.val.batch_transform or None,
    )  # fmt: skip
    if isinstance(plan, StreamPlan):  # the first records, whatever trainer.skip leaves out
        plan = StreamPlan(plan.sampler, plan.batch_size, plan.tail, plan.length, plan.most)
    elif getattr(plan.sampler, "packs", False):
        plan = Plan(plan.sampler, plan.batch_size, plan.tail, plan.together, plan.most)
    else:  # not in the sampler's order, which may weigh samples
        count = min(len(dataset), BASELINE_SAMPLES)
        rows = np.linspace(0, len(dataset) - 1, count).round().astype(np.int64).tolist()
        plan = Plan(Subset(len(dataset), 0, indices=rows, shuffle=False), plan.batch_size)
    options = replace(loader.options, persistent_workers=False)
    alone = replace(loader.world, rank=0, size=1)
    share = share_of(data.train, use="baseline", world=alone)
    with Loader(plan, fetch, options, alone, share=share) as batches:
        count = math.ceil(BASELINE_SAMPLES / plan.batch_size)
        some = islice(batches.epoch(0), count)
        constant = objective.constant(watched(some, count, "finding the best constant"))
    constant_model = Constant(constant).to(loader.world.device)
    return validate(constant_model, objective, loader, group=group, observers=observers)


@torch.no_grad()
def try_one_batch(val: Split, objective: Objective, loader: Loader) -> None:
    """Put the first batch of validation through loss and metrics, with a constant for a model.

    A worker makes the batch if `loader` has workers: what a dataset opens at its first read must
    not be open in the process that forks them.
    """
    plan = copy(val.plan)
    plan.most = 1
    workers = min(loader.options.num_workers, 1)
    options = replace(loader.options, num_workers=workers, auto=None, persistent_workers=False)
    objective.to(loader.world.device).reset()
    with Loader(plan, val.fetch(), options, loader.world, share=share_of(val)) as batches:
        for batch in batches.epoch(0):
            if batch.request.valid:  # else a rank's share is all padding
                constant = Constant(objective.constant([batch])).to(loader.world.device)
                objective.update(objective(constant, batch)[1], batch)
    objective.reset()


def print_table(columns: Mapping[str, Mapping[str, float]], monitor: str) -> None:
    """Print metrics to stdout: a row a metric, a column a model; the monitored one stands out."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for title in columns:
        table.add_column(title, justify="right")
    for name in next(iter(columns.values())):
        values = [column.get(name) for column in columns.values()]
        cells = ["" if value is None else f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.3g}"
                 for value in values]  # fmt: skip
        table.add_row(name, *cells, style="bold" if name == monitor else None)
    console(sys.stdout, highlight=False).print(table)
