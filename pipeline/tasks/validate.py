"""`task=validate run=<run folder>`: loss and metrics of saved weights on a split.

Prints a table to stdout, with the best constant prediction, and writes nothing. The configuration
is that of the folder, with what is typed on top; the weights are its best ones, or those of
`checkpoint`. A checkpoint that is in no run's folder needs the overrides of its run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.group import Group, join
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading.loader import Loader
from penstock.order.plan import Plan, StreamPlan
from penstock.order.samplers import Subset
from penstock.order.seeding import scope
from penstock.runs import checkpoint
from penstock.runs.only_shown import only_shown
from penstock.runs.resume import run_of
from penstock.tasks.observers import Display
from penstock.tasks.summary import print_table
from penstock.terminal import one_line, put, watched
from penstock.training.adapter import Objective, explained
from penstock.training.loop import Observer, Record, validate
from penstock.training.step import Mode, TrainOptions, autocast

if TYPE_CHECKING:
    from penstock.addons.predicting import Trained

BASELINE_SAMPLES = 1000
_NAMED = 5  # tensors that differ


def run(config: Config, note: Callable[[Trained, Record], None] = lambda *_: None) -> float:
    """Validate saved weights on `config.split`; returns the monitored metric.

    Args:
        note: called by the first rank with what was measured.
    """
    from penstock.addons.predicting import trained

    if config.checkpoint is config.run is None:
        raise ConfigError(Problem("run", "is missing: the folder of a run, or checkpoint=FILE"))
    ready, wanted = trained(config), config.distributed
    data, objective = ready.parts.data, ready.objective
    split, world = getattr(data, config.split), ready.parts.world
    name, _ = monitored(config, objective)
    with join(world, wanted.backend, wanted.timeout) as group, split.loader() as loader:
        columns = measured(config, data, ready.model, objective, split, loader, group)
        if group.is_first:
            note(ready, columns[split.name])
            print_table(columns)
            put(f"checkpoint   {ready.path}")
    if name not in columns[split.name]:
        raise PenstockError(f"trainer.monitor is {name!r}, which validation does not give")
    return columns[split.name][name]


def measured(
    config: Config,
    data: DataParts,
    model: nn.Module,
    objective: Objective,
    split: Split,
    loader: Loader,
    group: Group,
) -> dict[str, Record]:
    """Loss and metrics of a model over `loader`, of `split`, and of what they compare with."""
    precision, shows = config.trainer.precision, config.trainer.progress
    with closing(Display(loader, 0, shows if group.is_first else "none")) as display:
        of_model = validate(model, objective, loader, precision, group, observers=[display])
        columns = {split.name: of_model}
        if config.trainer.baseline:
            columns |= baselines(data, split, objective, loader, group, [display])
    return columns


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint's weights, or their running mean if the run had one.

    Raises:
        PenstockError: they are of another model.
    """
    state = checkpoint.load(path)
    # With trainer.ema, validation measured the mean, so the best checkpoint is the mean's.
    weights: Any = state.get("averaged", state.get("model"))
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        own, saved = (
            {name: list(getattr(value, "shape", ())) for name, value in one.items()}
            for one in (model.state_dict(), weights if isinstance(weights, dict) else {})
        )
        other = (
            f"{one_line(name)[:80]} is {own.get(name, 'not there')} in the model and "
            f"{saved.get(name, 'not there')} in the file"
            # In the order of the file, so that the first layer that differs comes first.
            for name in {**saved, **own}
            if own.get(name) != saved.get(name)
        )
        way = f"run={folder}" if (folder := run_of(path)) else "the overrides of its run"
        raise PenstockError(
            f"{path} does not fit the model of this configuration; give {way}. "
            + "; ".join(islice(other, _NAMED))
        ) from error


def monitored(config: Config, objective: Objective) -> tuple[str, Mode]:
    """The metric to monitor and its mode: as configured, or the objective's first metric."""
    if config.trainer.monitor is not None:
        return config.trainer.monitor.removeprefix("val/"), config.trainer.mode
    name, metric = next(iter(objective.metrics.items()), ("loss", None))
    if shown := getattr(metric, "shown", None):  # of several values, the first one
        name = f"{name}/{shown[0]}"
    if metric is None or metric.higher_is_better is None:
        return name, config.trainer.mode
    return name, "max" if metric.higher_is_better else "min"


def baselines(
    data: DataParts,
    split: Split,
    objective: Objective,
    loader: Loader,
    group: Group,
    observers: Sequence[Observer] = (),
) -> dict[str, Record]:
    """The baselines of a result on `split`, by name: a constant, and the objective's own.

    The latter on the first rank only. One that cannot be measured costs a warning.
    """
    levels: dict[str, Record] = {}
    if objective.baseline_name:
        with only_shown("the baseline"):
            model = _constant(data, split, objective, loader, group)
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # of constants
                level = validate(model, objective, loader, group=group, observers=observers)
            levels[objective.baseline_name] = level
    if group.is_first and data.config.data.validates:
        with only_shown("what else the result is compared with"):
            # These read all rows of training, once is enough.
            levels |= objective.comparisons(data.train.dataset, data.val.dataset)
    return levels


def _constant(
    data: DataParts, split: Split, objective: Objective, loader: Loader, group: Group
) -> nn.Module:
    """The objective's baseline on `split`, which `loader` measures; a constant, say.

    A constant is the best one for the rows that are measured: that of training rows may lose to
    others, and a model that has learned nothing would seem better than it. It is made of about 1000
    of them, with the transforms of validation: rows spread over the split, or the first ones of a
    stream, or as many blocks of packed rows. A person's own baseline is made of training rows. All
    ranks find the same one.
    """
    split = split if objective.fits_validation else data.train
    plan, val = split.plan, data.val
    fetch = replace(
        split.fetch(), transform=val.transform, batch_transform=val.batch_transform or None
    )
    if isinstance(plan, StreamPlan):  # the first records, whatever trainer.skip leaves out
        plan = StreamPlan(
            plan.sampler, plan.batch_size, plan.tail, plan.together, plan.length, plan.most
        )
    elif getattr(plan.sampler, "packs", False):
        plan = Plan(plan.sampler, plan.batch_size, plan.tail, plan.together, plan.most)
    else:  # not in the sampler's order, which may weigh samples
        length = len(split.dataset)
        last = min(length, (plan.most or length) * plan.batch_size) - 1
        # Spread evenly: files are often sorted by class.
        rows = np.linspace(0, last, min(last + 1, BASELINE_SAMPLES)).round().astype(int).tolist()
        plan = Plan(Subset(length, 0, indices=rows, shuffle=False), plan.batch_size)
    options = replace(loader.options, persistent_workers=False)
    alone = replace(loader.world, rank=0, size=1)
    with Loader(plan, fetch, options, alone) as batches:
        count, what = math.ceil(BASELINE_SAMPLES / plan.batch_size), objective.baseline_name
        some = watched(islice(batches.epoch(0), count), count, f"finding the {what}")
        return objective.baseline(some).to(loader.world.device)


@torch.no_grad()
def try_one_batch(
    val: Split, model: nn.Module, objective: Objective, loader: Loader, options: TrainOptions
) -> None:
    """Put the first batch of validation through loss and metrics.

    The model is measured as it is before its first step. A worker makes the batch if `loader` has
    workers: what a dataset opens at its first read must not be open in the process that forks them.

    Raises:
        ConfigError: the model does not take the batch, a metric does not take the predictions, or
            none is called as the monitored one.
    """
    plan, device = copy(val.plan), torch.device(loader.world.device)
    plan.most, workers = 1, min(loader.options.num_workers, 1)
    one_worker = replace(loader.options, num_workers=workers, persistent_workers=False)
    objective.to(device).reset()
    with (
        Loader(plan, val.fetch(), one_worker, loader.world) as batches,
        # No draw may change those of the training; metrics warn of what few rows lack.
        scope(),
        warnings.catch_warnings(action="ignore"),
    ):
        for batch in batches.epoch(0):
            model.to(device).eval()
            inputs = partial(objective.inputs_of, batch)
            with autocast(device, options.precision), explained("model", model, inputs):
                outputs = objective.measure(model, batch)[1]
            objective.update(outputs, batch)
            try:
                measured = objective.compute()
            except Exception as error:  # a metric may need more rows than these
                if isinstance(error, ConfigError) or val.plan.steps(0) == 1:
                    raise
                continue
            losses = ["loss", *(f"loss/{name}" for name in objective.named)]
            names = [*(losses if objective.validates_loss else []), *measured]
            if options.monitor not in names and batch.request.valid:
                reason = f"is {options.monitor!r}, which validation does not give"
                known = f"{reason}; it gives {', '.join(names)}"
                raise ConfigError(Problem("trainer.monitor", known))
    objective.reset()
