"""Options that are each allowed but contradict each other.

Those that torch's DataLoader refuses, those that it lets through, and those between a dataset, a
sampler and the machine. A rule sees plain values and the callables that the configuration names;
nothing has been built. It yields messages, `full.key: what contradicts what; how to resolve it`.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.addons.ray.access import refuse_client
from penstock.addons.ray.cluster import require_installed
from penstock.addons.ray.options import RaySection
from penstock.config import allow_list, data_rules, order_rules
from penstock.config.messages import nearest, show
from penstock.config.nodes import called, datasets, direction, metrics, trackers, validates, walk
from penstock.config.order_rules import datasets_found
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.distributed import world
from penstock.errors import ConfigError, Problem
from penstock.order.samplers import Sequential
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamOrder, is_stream

Found = Mapping[str, Any]  # the callable of each part, by key
Messages = Iterator[str]


def find(config: Config, found: Found, partly: bool = False) -> list[Problem]:
    """All contradictions in a configuration.

    Args:
        found: callable by key of its part, as far as they could be resolved.
        partly: the Config lacks attributes that were wrong; rules that need one are skipped.
    """
    problems: list[Problem] = []
    for rule in RULES:
        try:
            for text in rule(config, found):
                key, _, message = text.partition(": ")
                problems.append(Problem(key, message))
        except AttributeError:
            if not partly:
                raise
    return problems


def _has_workers(config: Config) -> bool:
    return config.loader.backend != "main" and config.loader.num_workers != 0


def no_workers(config: Config, found: Found) -> Messages:
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


def threads(config: Config, found: Found) -> Messages:
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


def actors(config: Config, found: Found) -> Messages:
    loader, given = config.loader, RaySection.of(config)
    if loader.backend != "ray":
        for name, value in given.model_dump().items():
            if value != getattr(RaySection(), name):
                yield (
                    f"loader.ray.{name}: {show(value)} is for Ray actors, but "
                    f"loader.backend={loader.backend}; set loader.backend=ray or leave it out"
                )
        return
    try:
        require_installed()
        refuse_client(given.address)
    except ConfigError as error:
        yield from map(str, error.problems)
    if loader.multiprocessing_context:
        yield (
            f"loader.multiprocessing_context: {show(loader.multiprocessing_context)} is for "
            "processes, but loader.backend=ray, and Ray starts its own; set it to null"
        )
    if not _has_workers(config) and given.num_actors != "auto":
        yield (
            f"loader.ray.num_actors: {given.num_actors} needs actors, but loader.num_workers=0, "
            "which means none; leave that out, or set loader.backend=main"
        )


def start_method(config: Config, found: Found) -> Messages:
    name = config.loader.multiprocessing_context
    known = multiprocessing.get_all_start_methods()
    if name is not None and name not in known:
        yield (
            f"loader.multiprocessing_context: this platform has no {name!r}{nearest(name, known)}; "
            f"it has {', '.join(known)}"
        )


def worker_function(config: Config, found: Found) -> Messages:
    name = config.loader.worker_init_fn
    try:
        if name is not None:
            allow_list.resolve(name, "loader.worker_init_fn")
    except ConfigError as error:
        yield from map(str, error.problems)


def share(config: Config, found: Found) -> Messages:
    loader = config.loader
    if loader.option("share") is None:
        if loader.option("share_size") is not None:
            yield "loader.share_size: nothing is shared; set loader.share=auto, or this to null"
        return
    if not hasattr(os, "geteuid"):
        yield "loader.share: needs locks that only Linux and macOS have; set it to null"
    if loader.worker_init_fn is not None:
        yield (
            f"loader.share: {loader.option('share')} hands batches to other runs, but what "
            f"loader.worker_init_fn={loader.worker_init_fn} does to them is not known; set one of "
            "the two to null"
        )


def unordered(config: Config, found: Found) -> Messages:
    resumable = config.task == "fit" and config.trainer.checkpoint is not None
    if not config.loader.in_order and _has_workers(config) and resumable:
        yield (
            "loader.in_order: false cannot be resumed: a checkpoint is an address, and batches "
            "that came out of order lie on both sides of it; set loader.in_order=true or "
            "trainer.checkpoint=null"
        )


def tracker_packages(config: Config, found: Found) -> Messages:
    """Packages of trackers that are not installed."""
    for key, node in trackers(config.tracker).items() if config.task == "fit" else ():
        package = getattr(called(node), "needs", None)
        # A folder of that name, as W&B makes one, has no loader of its own.
        spec = importlib.util.find_spec(package) if package else None
        if package and (spec is None or spec.origin is None):
            yield (
                f"{key}: needs the package {package}, which is not installed: pip install -e "
                f"'.[{package}]', or leave it out (tracker=none)"
            )


def pinned_device(config: Config, found: Found) -> Messages:
    name = config.loader.pin_memory_device
    if name and config.loader.pin_memory is False:
        yield f"loader.pin_memory_device: {name!r} is never used with loader.pin_memory=false"


def ranks(config: Config, found: Found) -> Messages:
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


def streams(config: Config, found: Found) -> Messages:
    """A stream has an order of its own kind, and only a stream has."""
    sampler: Any = found.get("sampler")
    ordered = isinstance(sampler, type) and issubclass(sampler, StreamOrder)
    for key, dataset in datasets_found(config, found):
        stream = is_stream(dataset)
        if key == "dataset.val" or not (stream or isinstance(dataset, type)):
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


def same_data_twice(config: Config, found: Found) -> Messages:
    dataset = found.get("dataset")
    if not validates(config.dataset):
        return
    if dataset is None or config.task not in ("fit", "validate"):
        return
    for _, node in walk(dict(datasets(config.dataset)), ""):
        taken = arguments(called(node) or dataset)
        if taken.open or {"split", "train"} & set(taken.names):
            return
    yield (
        f"dataset: {dataset.__name__} takes no argument `split` (or `train`), so training and "
        "validation would read the same samples; add it, or write one node under dataset.train and "
        "one under dataset.val"
    )


def no_validation(config: Config, found: Found) -> Messages:
    """What asks for a validation that `dataset.val=null` leaves out."""
    if validates(config.dataset):
        return
    why = "there is no validation, as dataset.val is null"
    if config.split == "val":
        yield f"split: val, but {why}; set split=train"
    if config.task != "fit":
        return
    trainer, scheduler = config.trainer, config.scheduler or {}
    if trainer.monitor is not None:
        yield f"trainer.monitor: {trainer.monitor}, but {why}; set trainer.monitor=null"
    if trainer.patience is not None:
        yield f"trainer.patience: {trainer.patience}, but {why}; set trainer.patience=null"
    if str(scheduler.get("_target_", "")).endswith(".ReduceLROnPlateau"):
        yield f"scheduler: ReduceLROnPlateau follows a metric, but {why}; set scheduler=none"
    if config.option("sweep") is not None and config.option("sweep").optuna is not None:
        yield f"sweep.optuna: chooses by a metric, but {why}; set sweep=grid"


def device(config: Config, found: Found) -> Messages:
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


def monitor(config: Config, found: Found) -> Messages:
    """The monitored metric has to be the loss or one of the objective's."""
    name, measured = config.trainer.monitor, metrics(config.objective)
    if name is None or not isinstance(measured, Mapping) or config.task != "fit":
        return
    known = ["loss", *measured]
    metric = name.removeprefix("val/").split("/")[0]
    if metric not in known:
        yield (
            f"trainer.monitor: the objective measures no {name!r}{nearest(name, known)}; it has "
            f"{', '.join(known)}"
        )
    better, mode = direction(config, metric), config.trainer.mode
    if better is not None and better != mode:
        wanted = "more" if better == "max" else "less"
        yield (
            f"trainer.mode: {mode} would keep the worst: of {name}, {wanted} is better: "
            f"trainer.mode={better}"
        )


def schedule(config: Config, found: Found) -> Messages:
    node = config.scheduler
    if node is None:
        return
    warmup, interval = node.get("warmup", 0), node.get("interval", "step")
    if isinstance(warmup, bool) or not isinstance(warmup, (int, float)) or warmup < 0:
        yield (
            f"scheduler.warmup: got {warmup!r}, expected a share of all steps below 1, or a whole "
            "number of steps"
        )
    elif warmup >= 1 and warmup != int(warmup):
        yield f"scheduler.warmup: {warmup} is neither a share below 1 nor a whole number"
    if interval not in ("step", "epoch"):
        near = nearest(str(interval), ("step", "epoch"))
        yield f"scheduler.interval: got {interval!r}, expected step | epoch{near}"
    name = str(node.get("_target_", "")).rpartition(".")[2]
    if name == "OneCycleLR" and warmup:
        yield (
            "scheduler.warmup: OneCycleLR has a warm-up of its own (pct_start); set "
            "scheduler.warmup=0"
        )
    if name == "ReduceLROnPlateau" and warmup:
        yield (
            "scheduler.warmup: ReduceLROnPlateau follows a metric and not the step, so nothing can "
            "come before it; set scheduler.warmup=0"
        )


def both_splits(config: Config, found: Found) -> Messages:
    if config.split == "both" and config.task not in ("check", "pack"):
        yield (
            f"split: both is for task=check and task=pack; task={config.task} reads one of them: "
            "set split=train or split=val"
        )


def bad_samples(config: Config, found: Found) -> Messages:
    given = config.bad_samples
    if given.on_error == "raise" and given.budget not in (0, 0.01):
        yield (
            f"bad_samples.budget: {given.budget} would leave some bad samples out, but "
            "bad_samples.on_error=raise leaves out none; set bad_samples.on_error=skip or "
            "substitute"
        )
    if given.quarantine is not None and not Path(given.quarantine).is_file():
        yield (
            f"bad_samples.quarantine: there is no file {given.quarantine!r}; give the "
            "quarantine.csv of an earlier run, or null"
        )


def skipped_ranges(config: Config, found: Found) -> Messages:
    try:
        Skipped.of(config.trainer.skip)
    except ValueError as error:
        yield f"trainer.skip: {error}"


RULES: tuple[Callable[[Config, Found], Messages], ...] = (
    no_workers,
    threads,
    actors,
    start_method,
    worker_function,
    share,
    unordered,
    pinned_device,
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
    tracker_packages,
    *order_rules.RULES,
    *data_rules.RULES,
)
