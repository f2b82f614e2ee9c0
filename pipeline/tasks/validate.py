"""`task=validate run=<run folder>`: loss and metrics of saved weights on a split.

Prints a table to stdout, with the best constant prediction, and writes nothing. The configuration
is that of the folder, and the weights are its best ones, or those of `checkpoint`. A checkpoint
alone is in its run's folder, or it needs the overrides of its run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from penstock import seams
from penstock.build.data import DataParts, Split
from penstock.build.training import TrainingParts
from penstock.config.hydra_loader import overrides
from penstock.config.identity import NOT_SET, differences, identity
from penstock.config.schema import Config
from penstock.distributed.group import Group, join
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading.collate import List
from penstock.loading.loader import Loader
from penstock.loading.stream_fetch import StreamFetch
from penstock.order.plan import Plan
from penstock.order.randomness import scope
from penstock.order.samplers import Subset
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamPlan
from penstock.runs import checkpoint
from penstock.runs.only_shown import only_shown
from penstock.runs.resumption import run_of
from penstock.tasks.folder_config import asked_of, may_be_typed
from penstock.tasks.observers import Display
from penstock.tasks.summary import print_table
from penstock.terminal import one_line, put, say, watched
from penstock.training.objective_base import Objective
from penstock.training.observer import Observer, Record
from penstock.training.own_objective import OwnObjective
from penstock.training.runner import validate
from penstock.training.train_step import Mode, TrainOptions, autocast

BASELINE_SAMPLES = 1000
_NAMED = 5  # keys and tensors that differ


def run(config: Config) -> float:
    """Validate saved weights on `config.split`; returns the monitored metric."""
    where = config.checkpoint or config.run
    if where is None:
        raise ConfigError(Problem("run", "is missing: the folder of a run, or checkpoint=FILE"))
    path, folder, words = checkpoint.find(Path(where)), run_of(Path(where)), overrides()
    if config.run is None and folder is not None and words and all(map(may_be_typed, words)):
        config = config.model_copy(update={"run": str(folder)})
        say(f"the configuration is that of {one_line(folder)}")
    config, _ = asked_of(config)
    parts = seams.parts_of_run(config, path)
    wanted = config.distributed
    with join(parts.world, wanted.backend, wanted.timeout) as group:
        return _run(config, parts, group, path)


def _run(config: Config, parts: TrainingParts, group: Group, path: Path) -> float:
    model, objective = parts.model(), parts.objective()
    load_weights(model, path, config)
    model.to(parts.world.device)
    name, _ = monitored(config, objective)
    precision = config.trainer.precision
    with (
        parts.data.split(config.split).loader() as loader,
        closing(
            Display(loader, 0, config.trainer.progress if group.is_first else "none")
        ) as display,
    ):
        watching = [display]
        measured = validate(model, objective, loader, precision, group, observers=watching)
        columns = {str(config.split): measured}
        if config.trainer.baseline:
            split = parts.data.split(config.split)
            columns |= baselines(parts.data, split, objective, name, loader, group, watching)
    if group.is_first:
        print_table(columns, name)
        put(f"checkpoint   {path}")
    value = next(iter(columns.values())).get(name)
    if value is None:
        raise PenstockError(f"trainer.monitor is {name!r}, which validation does not give")
    return value


def load_weights(model: nn.Module, path: Path, config: Config | None = None) -> None:
    """Load a checkpoint's weights, or their running mean if the run had one.

    Args:
        config: of the model, to name the keys that differ.

    Raises:
        PenstockError: they are of another model.
    """
    state = checkpoint.load(path)
    try:
        model.load_state_dict(state["averaged" if "averaged" in state else "model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        folder = run_of(path)
        way = f"run={folder}" if folder is not None else "the overrides of its run"
        reasons = [*_other_keys(state, config), *_other_tensors(state, model)][:_NAMED]
        raise PenstockError(
            f"{path} does not fit the model of this configuration; give {way}. "
            + "; ".join(reasons)
        ) from error


def _other_keys(state: checkpoint.State, config: Config | None) -> Iterator[str]:
    """The keys by which the model of a checkpoint is another one."""
    saved = state.get("fingerprint")
    if config is None or not isinstance(saved, Mapping):
        return
    own = identity(config)
    for key in differences(saved, own):
        if key.startswith(("model.", "dataset.facts.")):
            yield (
                f"{one_line(key)} is {one_line(own.get(key, NOT_SET))[:80]} here and was "
                f"{one_line(saved.get(key, NOT_SET))[:80]}"
            )


def _other_tensors(state: checkpoint.State, model: nn.Module) -> Iterator[str]:
    """The tensors of a checkpoint that a model lacks or has in another shape, and the reverse."""
    saved = state.get("model")
    saved = saved if isinstance(saved, Mapping) else {}
    own = {name: list(value.shape) for name, value in model.state_dict().items()}
    there = {str(name): list(getattr(value, "shape", ())) for name, value in saved.items()}
    for name in {**there, **own}:
        if there.get(name) != own.get(name):
            yield (
                f"{one_line(name)[:80]} is {own.get(name, 'not there')} in the model and "
                f"{there.get(name, 'not there')} in the file"
            )


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
    monitor: str,
    loader: Loader,
    group: Group,
    observers: Sequence[Observer] = (),
) -> dict[str, Record]:
    """The baselines of a result on `split`, by name: a constant, and the objective's own.

    The latter on the first rank only. One that cannot be measured costs a warning.
    """
    found: dict[str, Record] = {}
    if objective.baseline_name:
        with only_shown("the baseline"):
            level = baseline(data, split, objective, monitor, loader, group, observers)
            found[objective.baseline_name] = level
    if group.is_first and data.validates:
        with only_shown("what else the result is compared with"):
            found |= objective.comparisons(data.train.dataset, data.val.dataset)
    return found


def baseline(
    data: DataParts,
    split: Split,
    objective: Objective,
    monitor: str,
    loader: Loader,
    group: Group | None = None,
    observers: Sequence[Observer] = (),
) -> Record:
    """Loss and metrics over `loader`, of `split`, of the objective's baseline: a constant, say.

    A constant is the best one for the rows that are measured: that of training rows may lose to
    others, and a model that has learned nothing would seem better than it. It is made of about 1000
    of them, with the transforms of validation: rows spread over the split, or the first ones of a
    stream, or as many blocks of packed rows. A person's own baseline is made of training rows. All
    ranks find the same one.
    """
    split = data.train if isinstance(objective, OwnObjective) else split
    dataset, plan = split.dataset, split.plan
    fetch = replace(
        split.fetch(),
        transform=data.val.transform,
        batch_transform=data.val.batch_transform or None,
    )
    if isinstance(plan, StreamPlan):  # the first records, whatever trainer.skip leaves out
        plan = StreamPlan(plan.sampler, plan.batch_size, plan.tail, plan.length, plan.most)
    elif getattr(plan.sampler, "packs", False):
        plan = Plan(plan.sampler, plan.batch_size, plan.tail, plan.together, plan.most)
    else:  # not in the sampler's order, which may weigh samples
        measured = min(len(dataset), (plan.most or len(dataset)) * plan.batch_size)
        count = min(measured, BASELINE_SAMPLES)
        rows = np.linspace(0, measured - 1, count).round().astype(np.int64).tolist()
        plan = Plan(Subset(len(dataset), 0, indices=rows, shuffle=False), plan.batch_size)
    options = replace(loader.options, persistent_workers=False)
    alone = replace(loader.world, rank=0, size=1)
    with (group or Group()).all_or_none(), Loader(plan, fetch, options, alone) as batches:
        count, what = math.ceil(BASELINE_SAMPLES / plan.batch_size), objective.baseline_name
        some = islice(batches.epoch(0), count)
        model = objective.baseline(watched(some, count, f"finding the {what}"), monitor)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of constant predictions
        return validate(
            model.to(loader.world.device), objective, loader, group=group, observers=observers
        )


@torch.no_grad()
def try_one_batch(
    val: Split, model: nn.Module, objective: Objective, loader: Loader, options: TrainOptions
) -> None:
    """Put the first batch of validation through loss and metrics.

    An objective of a person's own takes the model itself, before its first step; the others take
    their baseline. A worker makes the batch if `loader` has workers: what a dataset opens at its
    first read must not be open in the process that forks them.

    Raises:
        ConfigError: a metric does not take the predictions, or none is called as the monitored one.
    """
    plan = copy(val.plan)
    plan.most = 1
    workers, device = min(loader.options.num_workers, 1), torch.device(loader.world.device)
    one_worker = replace(loader.options, num_workers=workers, persistent_workers=False)
    objective.to(device).reset()
    with Loader(plan, val.fetch(), one_worker, loader.world) as batches:
        for batch in batches.epoch(0):
            if isinstance(objective, OwnObjective):
                # No draw may change those of the training.
                with scope(), autocast(device, options.precision):
                    outputs = objective.measure(model.to(device).eval(), batch)[1]
            elif not batch.request.valid:  # a rank's share is all padding
                continue
            else:
                try:
                    constant = objective.baseline([batch])
                except PenstockError:
                    raise
                except Exception:  # an objective of a person's own that knows no constant
                    break
                outputs = objective.measure(constant.to(device), batch)[1]
            objective.update(outputs, batch)
            try:
                with warnings.catch_warnings(action="ignore"):  # of what few rows lack
                    measured = objective.compute()
            except ConfigError:
                raise
            except Exception:
                if val.plan.steps(0) == 1:
                    raise
                break  # a metric may need more rows than these
            losses = [f"loss/{name}" for name in objective.named]
            given = [*(["loss", *losses] if objective.validates_loss else []), *measured]
            if options.monitor not in given and batch.request.valid:
                raise ConfigError(
                    Problem(
                        "trainer.monitor",
                        f"is {options.monitor!r}, which validation"
                        f" does not give; it gives {', '.join(given)}",
                    )
                )
    objective.reset()


def try_stream(split: Split, loader: Loader) -> None:
    """Read the first batch of a stream, whose emptiness shows only so; nothing for other datasets.

    Raises:
        ConfigError: it has no batch.
    """
    if not isinstance(split.plan, StreamPlan):
        return
    plan, order = copy(split.plan), copy(split.plan.sampler)
    order.buffer = 0  # to find its first records, none have to be shuffled
    plan.most, plan.skipped, plan.sampler = 1, Skipped(), order
    fetch = split.fetch()
    assert isinstance(fetch, StreamFetch)
    fetch = replace(fetch, transform=None, batch_transform=None, collate=List(), order=order)
    workers = min(loader.options.num_workers, 1)
    options = replace(loader.options, num_workers=workers, persistent_workers=False)
    with Loader(plan, fetch, options, loader.world) as batches:
        for _ in batches.epoch(0):
            pass
