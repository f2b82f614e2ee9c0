"""Options that are each allowed but contradict each other.

Those that torch's DataLoader refuses, those that it lets through, and those between a dataset, a
sampler and the machine. A rule sees plain values and the callables that the configuration names;
nothing has been built. It yields messages, `full.key: what contradicts what; how to resolve it`.
Add-ons have rules of their own (`penstock.seams`).
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock import seams
from penstock.config import allow_list, data_rules, order_rules
from penstock.config.messages import nearest, show
from penstock.config.nodes import (
    Parts,
    by_name,
    called,
    datasets_found,
    direction,
    metrics,
    walk,
)
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.distributed import world
from penstock.errors import ConfigError, Problem
from penstock.order.samplers import Sequential
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamOrder, is_stream

Messages = Iterator[str]


def find(config: Config, parts: Parts, partly: bool = False) -> list[Problem]:
    """All contradictions in a configuration.

    Args:
        parts: callable by key of its part, as far as they could be resolved.
        partly: the Config lacks attributes that were wrong; rules that need one are skipped.
    """
    problems: list[Problem] = []
    for rule in RULES:
        try:
            for text in rule(config, parts):
                key, _, message = text.partition(": ")
                problems.append(Problem(key, message))
        except AttributeError:
            if not partly:
                raise
    return problems


def _has_workers(config: Config) -> bool:
    return config.loader.backend != "main" and config.loader.num_workers != 0


def no_workers(config: Config, parts: Parts) -> Messages:
    loader = config.loader
    if _has_workers(config):
        return
    why = "loader.backend=main" if loader.backend == "main" else "loader.num_workers=0"
    for name in (
        "prefetch_factor",
        "persistent_workers",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
    ):
        value, off = getattr(loader, name), "false" if name == "persistent_workers" else "null"
        if value:
            yield (
                f"loader.{name}: {show(value)} needs workers, but {why}; set loader.{name}={off}, "
                "or loader.backend=process with loader.num_workers=1 or more"
            )


def threads(config: Config, parts: Parts) -> Messages:
    loader = config.loader
    if loader.backend != "thread" or not _has_workers(config):
        return
    for name in ("worker_init_fn", "multiprocessing_context", "persistent_workers"):
        value = getattr(loader, name)
        if value:
            yield (
                f"loader.{name}: {show(value)} is for processes, but loader.backend=thread; set "
                f"loader.{name}=null or loader.backend=process"
            )


def start_method(config: Config, parts: Parts) -> Messages:
    name = config.loader.multiprocessing_context
    known = multiprocessing.get_all_start_methods()
    if name is not None and name not in known:
        yield (
            f"loader.multiprocessing_context: this platform has no {name!r}{nearest(name, known)}; "
            f"it has {', '.join(known)}"
        )


def worker_function(config: Config, parts: Parts) -> Messages:
    name = config.loader.worker_init_fn
    try:
        if name is not None:
            allow_list.resolve(name, "loader.worker_init_fn")
    except ConfigError as error:
        yield from map(str, error.problems)


def unordered(config: Config, parts: Parts) -> Messages:
    resumable = config.task == "fit" and config.trainer.checkpoint is not None
    if not config.loader.in_order and _has_workers(config) and resumable:
        yield (
            "loader.in_order: false cannot be resumed: a checkpoint is an address, and batches "
            "that came out of order lie on both sides of it; set loader.in_order=true or "
            "trainer.checkpoint=null"
        )


def ranks(config: Config, parts: Parts) -> Messages:
    """Options that several ranks cannot share."""
    size, strategy = world.launched_size(), config.distributed.strategy
    if strategy == "none":
        if size > 1:
            yield (
                f"distributed.strategy: none, but {size} processes were started "
                f"({world.launcher_name()}={size}): each would train alone on all of the data; set "
                "distributed=ddp, or start one process"
            )
        return
    if config.batch.size is None:
        yield (
            f"batch.size: null passes samples through one by one, which distributed={strategy} "
            "cannot share out; set batch.size to the samples of a global batch"
        )
    if strategy == "fsdp" and config.trainer.precision == "fp16":
        yield (
            "trainer.precision: fp16 scales the loss, which distributed=fsdp cannot; set "
            "trainer.precision=bf16"
        )
    if strategy == "fsdp" and config.trainer.ema is not None:
        yield "trainer.ema: averages whole weights, and distributed=fsdp has parts; set it to null"
    if not config.loader.in_order and _has_workers(config):
        yield (
            f"loader.in_order: false would give the ranks of distributed={strategy} shares of "
            "different batches in the same step; set loader.in_order=true"
        )


def streams(config: Config, parts: Parts) -> Messages:
    """A stream has an order of its own kind, and only a stream has."""
    sampler: Any = parts.get("sampler")
    ordered = isinstance(sampler, type) and issubclass(sampler, StreamOrder)
    for key, dataset in datasets_found(config, parts):
        stream = is_stream(dataset)
        if key == "data.val_dataset" or not (stream or isinstance(dataset, type)):
            continue
        name = dataset.__name__
        if stream and sampler is not None and not ordered and sampler is not Sequential:
            yield (
                f"sampler: {sampler.__name__} chooses rows, but {name} is a stream, which can only "
                "be read forwards; set sampler=stream, which shuffles with a buffer"
            )
        if stream and not config.loader.in_order:
            yield (
                f"loader.in_order: false, but {name} is a stream, whose end is found in order; set "
                "loader.in_order=true"
            )
        if ordered and not stream:
            yield (
                f"sampler: {sampler.__name__} is for streams, but {name} has rows that can be "
                "chosen; set sampler=random or sampler=sequential"
            )


def same_data_twice(config: Config, parts: Parts) -> Messages:
    dataset, data = parts.get("dataset"), config.data
    if data.divides or data.val_dataset is not None or not data.validate:
        return
    if dataset is None or config.task not in ("fit", "validate"):
        return
    for _, node in walk(config.dataset, ""):
        taken = arguments(called(node) or dataset)
        if taken.open or {"split", "train"} & set(taken.names):
            return
    yield (
        f"dataset: {dataset.__name__} takes no argument `split` (or `train`), so training and "
        "validation would read the same samples; add it, or write a node for validation under "
        "data.val_dataset; or divide its rows: data.split.val=0.2"
    )


def no_validation(config: Config, parts: Parts) -> Messages:
    """The keys that ask for a validation that `data.validate=false` leaves out."""
    if config.data.validate:
        return
    why = "there is no validation, as data.validate is false"
    if config.split == "val":
        yield f"split: val, but {why}; set split=train"
    if config.task != "fit":
        return
    trainer, scheduler = config.trainer, config.scheduler or {}
    if trainer.monitor is not None:
        yield f"trainer.monitor: {trainer.monitor}, but {why}; set trainer.monitor=null"
    if trainer.patience is not None:
        yield f"trainer.patience: {trainer.patience}, but {why}; set trainer.patience=null"
    if config.sweep.optuna is not None:
        yield f"sweep.optuna: chooses by a metric, but {why}; set sweep=grid"
    if str(scheduler.get("_target_", "")).endswith(".ReduceLROnPlateau"):
        yield f"scheduler: ReduceLROnPlateau follows a metric, but {why}; set scheduler=none"


def device(config: Config, parts: Parts) -> Messages:
    if config.task not in ("fit", "validate"):
        return
    try:
        chosen = world.resolve_device(config.trainer.device)
    except ConfigError as error:
        yield from map(str, error.problems)
        return
    if config.trainer.precision == "fp16" and chosen == "cpu":
        yield (
            "trainer.precision: fp16 needs an accelerator, and this run is on the CPU; set "
            "trainer.precision=bf16 or fp32"
        )


def monitor(config: Config, parts: Parts) -> Messages:
    """The monitored metric has to be the loss or one of the objective's."""
    name, measured = config.trainer.monitor, metrics(config.objective)
    if name is None or not isinstance(measured, Mapping) or config.task != "fit":
        return
    known = ["loss", *measured]
    metric = name.removeprefix("val/").split("/")[0]
    # What an objective of a person's own measures shows on the first batch.
    objective = parts.get("objective")
    own = any(callable(getattr(objective, member, None)) for member in ("loss", "step"))
    if metric not in known and not own:
        yield (
            f"trainer.monitor: the objective measures no {name!r}{nearest(name, known)}; it has "
            f"{', '.join(known)}"
        )
    better, mode = direction(config, metric), config.trainer.mode
    if better is not None and better != mode:
        word = "more" if better == "max" else "less"
        yield (
            f"trainer.mode: {mode} would keep the worst: of {name}, {word} is better: "
            f"trainer.mode={better}"
        )


def schedule(config: Config, parts: Parts) -> Messages:
    node = config.scheduler
    if node is None:
        return
    warmup = config.schedule.warmup
    if warmup >= 1 and warmup != int(warmup):
        yield f"schedule.warmup: {warmup} is neither a share below 1 nor a whole number"
    name = str(node.get("_target_", "")).rpartition(".")[2]
    if name == "OneCycleLR" and warmup:
        yield (
            "schedule.warmup: OneCycleLR has a warm-up of its own (pct_start); set "
            "schedule.warmup=0"
        )
    if name == "ReduceLROnPlateau" and warmup:
        yield (
            "schedule.warmup: ReduceLROnPlateau follows a metric and not the step, so nothing can "
            "come before it; set schedule.warmup=0"
        )


def both_splits(config: Config, parts: Parts) -> Messages:
    if config.split == "both" and config.task not in ("check", "pack"):
        yield (
            f"split: both is for task=check and task=pack; task={config.task} reads one of them: "
            "set split=train or split=val"
        )


def bad_samples(config: Config, parts: Parts) -> Messages:
    section = config.bad_samples
    if section.on_error == "raise" and section.budget not in (0, 0.01):
        yield (
            f"bad_samples.budget: {section.budget} would leave some bad samples out, but "
            "bad_samples.on_error=raise leaves out none; set bad_samples.on_error=skip or "
            "substitute"
        )
    if section.quarantine is not None and not Path(section.quarantine).is_file():
        yield (
            f"bad_samples.quarantine: there is no file {section.quarantine!r}; give the "
            "quarantine.csv of an earlier run, or null"
        )


def skipped_ranges(config: Config, parts: Parts) -> Messages:
    try:
        Skipped.of(config.trainer.skip)
    except ValueError as error:
        yield f"trainer.skip: {error}"


def chosen_rows(config: Config, parts: Parts) -> Messages:
    yield from seams.data_rules(config, parts)


def unused_actors(config: Config, parts: Parts) -> Messages:
    loader = config.loader
    for name in loader.ray.model_fields_set if loader.backend != "ray" else ():
        value = getattr(loader.ray, name)
        if value != type(loader.ray).model_fields[name].default:
            yield (
                f"loader.ray.{name}: {show(value)} is for Ray actors, but "
                f"loader.backend={loader.backend}; set loader.backend=ray or leave it out"
            )


def tracker_packages(config: Config, parts: Parts) -> Messages:
    """Packages of trackers that are not installed."""
    for key, node in by_name(config.tracker, "tracker").items() if config.task == "fit" else ():
        package = getattr(called(node), "needs", None)
        # A folder of that name, as W&B makes one, has no loader of its own.
        spec = importlib.util.find_spec(package) if package else None
        if package and (spec is None or spec.origin is None):
            yield (
                f"{key}: needs the package {package}, which is not installed: pip install -e "
                f"'.[{package}]', or leave it out (tracker=none)"
            )


RULES: tuple[Callable[[Config, Parts], Messages], ...] = (
    no_workers,
    threads,
    start_method,
    worker_function,
    unordered,
    ranks,
    streams,
    same_data_twice,
    no_validation,
    both_splits,
    bad_samples,
    device,
    monitor,
    schedule,
    skipped_ranges,
    *order_rules.RULES,
    *data_rules.RULES,
    chosen_rows,
    seams.training_rules,
    unused_actors,
    tracker_packages,
)
