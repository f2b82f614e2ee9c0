"""Options that are each allowed but cannot be meant together.

Those that torch's DataLoader refuses, those that it lets through, and those between a dataset, a
sampler and the machine. Each rule yields problems that name the full key and the ways out. A rule
sees plain values and the classes that the configuration names; nothing has been built.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import allow_list, batch_rules, data_rules, pack_rules
from pipeline.config.messages import nearest, show
from pipeline.config.nodes import datasets, direction, walk
from pipeline.config.schema import Config
from pipeline.config.signatures import arguments
from pipeline.distributed import world
from pipeline.errors import ConfigError, Problem
from pipeline.order.samplers import BatchStrategy, Sequential
from pipeline.order.streams import StreamOrder, is_stream


@dataclass(frozen=True)
class Case:
    """What a rule looks at: the configuration, and the callable found for each part by key."""

    config: Config
    found: Mapping[str, Any]

    @property
    def workers(self) -> bool:
        loader = self.config.loader
        return loader.backend != "main" and loader.num_workers != 0

    @property
    def sampler(self) -> Any:
        return self.found.get("sampler")

    @property
    def is_batch_strategy(self) -> bool:
        sampler = self.sampler
        if not isinstance(sampler, type):
            return False
        from torch.utils.data import BatchSampler

        return issubclass(sampler, (BatchStrategy, BatchSampler))


Rule = Callable[[Case], Iterator[Problem]]


def find(config: Config, found: Mapping[str, Any], partly: bool = False) -> list[Problem]:
    """All contradictions in a configuration.

    Args:
        found: callable by key of its part, as far as they could be resolved.
        partly: the Config lacks attributes that were wrong; rules that need one are skipped.
    """
    case = Case(config, found)
    problems: list[Problem] = []
    for rule in RULES:
        try:
            problems += rule(case)
        except AttributeError:
            if not partly:
                raise
    return problems


def loader_without_workers(case: Case) -> Iterator[Problem]:
    if case.workers:
        return
    loader = case.config.loader
    why = "loader.backend=main" if loader.backend == "main" else "loader.num_workers=0"
    worthless = {
        "prefetch_factor": (loader.prefetch_factor is not None, "null"),
        "persistent_workers": (bool(loader.persistent_workers), "false"),
        "timeout": (bool(loader.timeout), "null"),
        "worker_init_fn": (loader.worker_init_fn is not None, "null"),
        "multiprocessing_context": (loader.multiprocessing_context is not None, "null"),
    }
    for name, (given, off) in worthless.items():
        if given:
            value = getattr(loader, name)
            yield Problem(
                f"loader.{name}",
                f"{show(value)} needs workers, but {why}; set loader.{name}={off}, or "
                "loader.backend=process with loader.num_workers=1 or more",
            )


def loader_of_threads(case: Case) -> Iterator[Problem]:
    loader = case.config.loader
    if loader.backend != "thread" or not case.workers:
        return
    for name in ("worker_init_fn", "multiprocessing_context", "persistent_workers"):
        if getattr(loader, name):
            yield Problem(
                f"loader.{name}",
                f"{show(getattr(loader, name))} is for processes, but loader.backend=thread; "
                f"set loader.{name}=null or loader.backend=process",
            )


def start_method(case: Case) -> Iterator[Problem]:
    name = case.config.loader.multiprocessing_context
    known = multiprocessing.get_all_start_methods()
    if name is not None and name not in known:
        yield Problem(
            "loader.multiprocessing_context",
            f"this platform has no {name!r}{nearest(name, known)}; it has {', '.join(known)}",
        )


def worker_function(case: Case) -> Iterator[Problem]:
    name = case.config.loader.worker_init_fn
    if name is None:
        return
    try:
        allow_list.resolve(name, "loader.worker_init_fn")
    except ConfigError as error:
        yield from error.problems


def unordered(case: Case) -> Iterator[Problem]:
    config = case.config
    if config.loader.in_order or not case.workers:
        return
    if config.task == "fit" and config.trainer.checkpoint is not None:
        yield Problem(
            "loader.in_order",
            "false cannot be resumed: a checkpoint is an address, and batches that came out of "
            "order lie on both sides of it; set loader.in_order=true or trainer.checkpoint=null",
        )


def pinned_device(case: Case) -> Iterator[Problem]:
    loader = case.config.loader
    if loader.pin_memory_device and loader.pin_memory is False:
        yield Problem(
            "loader.pin_memory_device",
            f"{loader.pin_memory_device!r} is never used with loader.pin_memory=false",
        )


def ranks(case: Case) -> Iterator[Problem]:
    """What several ranks cannot share."""
    config, size = case.config, world.launched_size()
    strategy = config.distributed.strategy
    if strategy == "none":
        if size > 1:
            yield Problem(
                "distributed.strategy",
                f"none, but {size} processes were started ({world.launcher_name()}={size}): each "
                "would train alone on all of the data; set distributed=ddp, or start one process",
            )
        return
    if config.batch.size is None:
        yield Problem(
            "batch.size",
            f"null hands samples through one by one, which distributed={strategy} cannot share "
            "out; set batch.size to the samples of a global batch",
        )
    if strategy == "fsdp" and config.trainer.precision == "fp16":
        yield Problem(
            "trainer.precision",
            "fp16 scales the loss, which distributed=fsdp cannot; set trainer.precision=bf16",
        )
    if strategy == "fsdp" and config.trainer.ema is not None:
        reason = "averages whole weights, and distributed=fsdp has parts; set it to null"
        yield Problem("trainer.ema", reason)
    if not config.loader.in_order and case.workers:
        yield Problem(
            "loader.in_order",
            f"false would give the ranks of distributed={strategy} shares of different batches in "
            "the same step; set loader.in_order=true",
        )


def columns(case: Case) -> Iterator[Problem]:
    """A metadata column that a sampler reads has to be one that the dataset says it has."""
    sampler = case.sampler
    for key, dataset in _datasets(case):
        known = getattr(dataset, "columns", None)
        if key == "dataset.val" or known is None or not hasattr(sampler, "column_arguments"):
            continue
        for name in _column_arguments(sampler, case.config.sampler):
            column = _value(sampler, case.config.sampler, name)
            if isinstance(column, str) and column not in known:
                yield Problem(
                    f"sampler.{name}",
                    f"{dataset.__name__} has no metadata column {column!r}{nearest(column, known)};"
                    f" it has {', '.join(known)}",
                )


def _column_arguments(sampler: Any, node: Mapping[str, Any]) -> tuple[str, ...]:
    names: tuple[str, ...] = sampler.column_arguments
    if "weights" in names and _value(sampler, node, "weights") is not None:
        return ("weights",)  # explicit weights stand in place of a column to balance
    return names


def _value(function: Any, node: Mapping[str, Any], name: str) -> Any:
    """An argument as given, or its default."""
    return node[name] if name in node else arguments(function).defaults.get(name)


def _resolved(name: str) -> Any:
    try:
        return allow_list.resolve(name, "")
    except ConfigError:
        return None


def _datasets(case: Case) -> list[tuple[str, Any]]:
    keys = [key for key, _ in datasets(case.config.dataset)]
    return [(key, case.found[key]) for key in keys if case.found.get(key) is not None]


def streams(case: Case) -> Iterator[Problem]:
    """A stream has an order of its own kind, and only a stream has."""
    sampler = case.sampler
    ordered = isinstance(sampler, type) and issubclass(sampler, StreamOrder)
    for key, dataset in _datasets(case):
        kind = isinstance(dataset, type) or is_stream(dataset)
        if key == "dataset.val" or not kind:
            continue
        if is_stream(dataset) and sampler is not None and not ordered and sampler is not Sequential:
            yield Problem(
                "sampler",
                f"{sampler.__name__} chooses rows, but {dataset.__name__} is a stream, which can "
                "only be read forwards; set sampler=stream, which shuffles with a buffer",
            )
        if is_stream(dataset) and not case.config.loader.in_order:
            yield Problem(
                "loader.in_order",
                f"false, but {dataset.__name__} is a stream, whose end is found in order; set "
                "loader.in_order=true",
            )
        if ordered and not is_stream(dataset):
            yield Problem(
                "sampler",
                f"{sampler.__name__} is for streams, but {dataset.__name__} has rows that can be "
                "chosen; set sampler=random or sampler=sequential",
            )


def same_data_twice(case: Case) -> Iterator[Problem]:
    dataset = case.found.get("dataset")
    if dataset is None or case.config.task not in ("fit", "validate"):
        return
    inside = [node["_target_"] for _, node in walk(dict(datasets(case.config.dataset)), "")]
    taken = [arguments(_resolved(name) or dataset) for name in inside]
    if not any({"split", "train"} & set(one.names) or one.open for one in taken):
        yield Problem(
            "dataset",
            f"{dataset.__name__} takes no argument `split` (or `train`), so training and "
            "validation would read the same samples; add it, or write one node under "
            "dataset.train and one under dataset.val",
        )


def tail_of_strategies(case: Case) -> Iterator[Problem]:
    tail = case.config.batch.tail
    if not case.is_batch_strategy or tail == "keep":
        return
    name = case.sampler.__name__
    if tail == "pad":
        yield Problem("batch.tail", f"pad cannot fill {name}'s batches, which it forms itself; "
                      "set batch.tail=keep")  # fmt: skip
    elif "tail" not in arguments(case.sampler).names:
        yield Problem("batch.tail", f"drop has nothing to drop: {name} forms its batches itself; "
                      "set batch.tail=keep")  # fmt: skip


def tail_of_single_samples(case: Case) -> Iterator[Problem]:
    """As torch refuses `batch_size=None` with `drop_last=True`."""
    batch = case.config.batch
    if batch.size is None and batch.tail != "keep":
        yield Problem("batch.tail", f"{batch.tail} is for batches, but batch.size=null hands "
                      "samples through one by one; set batch.tail=keep, or batch.size")  # fmt: skip


def distributed_sampler(case: Case) -> Iterator[Problem]:
    from torch.utils.data import DistributedSampler

    if isinstance(case.sampler, type) and issubclass(case.sampler, DistributedSampler):
        yield Problem(
            "sampler._target_",
            "DistributedSampler would share the data out a second time: every global batch is "
            "formed first and then dealt out to the ranks; set sampler=random",
        )


def device(case: Case) -> Iterator[Problem]:
    trainer = case.config.trainer
    if case.config.task not in ("fit", "validate"):
        return
    try:
        chosen = world.resolve_device(trainer.device)
    except ConfigError as error:
        yield from error.problems
        return
    if trainer.precision == "fp16" and chosen == "cpu":
        yield Problem(
            "trainer.precision",
            "fp16 needs an accelerator, and this run is on the CPU; set trainer.precision=bf16 or "
            "fp32",
        )


def monitor(case: Case) -> Iterator[Problem]:
    """What is monitored has to be the loss or a metric of the objective."""
    name, metrics = case.config.trainer.monitor, case.config.objective.get("metrics")
    if name is None or not isinstance(metrics, Mapping) or case.config.task != "fit":
        return
    known = ["loss", *metrics]
    metric = name.removeprefix("val/").split("/")[0]
    if metric not in known:
        yield Problem(
            "trainer.monitor",
            f"the objective measures no {name!r}{nearest(name, known)}; it has {', '.join(known)}",
        )
    better, mode = direction(case.config, metric), case.config.trainer.mode
    if better is not None and better != mode:
        wanted = "more" if better == "max" else "less"
        yield Problem(
            "trainer.mode",
            f"{mode} would keep the worst: of {name}, {wanted} is better: trainer.mode={better}",
        )


def schedule(case: Case) -> Iterator[Problem]:
    node = case.config.scheduler
    if node is None:
        return
    warmup, interval = node.get("warmup", 0), node.get("interval", "step")
    if isinstance(warmup, bool) or not isinstance(warmup, (int, float)) or warmup < 0:
        yield Problem("scheduler.warmup", f"got {warmup!r}, expected a share of all steps below 1, "
                      "or a whole number of steps")  # fmt: skip
    elif warmup >= 1 and warmup != int(warmup):
        yield Problem("scheduler.warmup", f"{warmup} is neither a share below 1 nor a whole number")
    if interval not in ("step", "epoch"):
        yield Problem("scheduler.interval", f"got {interval!r}, expected step | epoch"
                      f"{nearest(str(interval), ('step', 'epoch'))}")  # fmt: skip
    name = str(node.get("_target_", "")).rpartition(".")[2]
    if name == "OneCycleLR" and warmup:
        yield Problem("scheduler.warmup", "OneCycleLR has a warm-up of its own (pct_start); set "
                      "scheduler.warmup=0")  # fmt: skip
    if name == "ReduceLROnPlateau" and warmup:
        yield Problem("scheduler.warmup", "ReduceLROnPlateau follows a metric and not the step, so "
                      "nothing can come before it; set scheduler.warmup=0")  # fmt: skip


def batch_steps(case: Case) -> Iterator[Problem]:
    yield from batch_rules.find(case.config, case.found)


def packing(case: Case) -> Iterator[Problem]:
    yield from pack_rules.find(case.config, case.found)


def data_told(case: Case) -> Iterator[Problem]:
    yield from data_rules.find(case.config, case.found)


def both_splits(case: Case) -> Iterator[Problem]:
    if case.config.split == "both" and case.config.task not in ("check", "pack"):
        yield Problem("split", f"both is for task=check and task=pack; task={case.config.task} "
                      "reads one of them: set split=train or split=val")  # fmt: skip


def bad_samples(case: Case) -> Iterator[Problem]:
    given = case.config.bad_samples
    if given.on_error == "raise" and given.budget not in (0, 0.01):
        yield Problem(
            "bad_samples.budget",
            f"{given.budget} would leave some bad samples out, but bad_samples.on_error=raise "
            "leaves out none; set bad_samples.on_error=skip or substitute",
        )
    if given.quarantine is not None and not Path(given.quarantine).is_file():
        yield Problem(
            "bad_samples.quarantine",
            f"there is no file {given.quarantine!r}; give the quarantine.csv of an earlier run, or "
            "null",
        )


RULES: tuple[Rule, ...] = (
    loader_without_workers, loader_of_threads, start_method, worker_function, unordered,
    pinned_device, ranks, columns, streams, same_data_twice, tail_of_strategies,
    tail_of_single_samples,
    both_splits, bad_samples, distributed_sampler, device, monitor, schedule, batch_steps,
    packing, data_told,
)  # fmt: skip
