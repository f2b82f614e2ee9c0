"""`task=profile`: the bottleneck of this run, measured on real training steps.

`steps` steps on a cached batch (the ceiling), then with num_workers=0, then with the configured
loader. Prints a table and a verdict. All times are seconds per batch unless said otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch

from penstock import program
from penstock.build.training import TrainingParts
from penstock.config.hydra import of_run, overrides
from penstock.config.schema import Config
from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel, prepare
from penstock.distributed.world import World, resolve_device, usable_cpus
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.loading.stage_timer import WAITS, slower_side
from penstock.loading.workers.options import LoaderOptions
from penstock.order.address import Address
from penstock.order.plan import End, StreamPlan
from penstock.runs.run_folder import RunFolder
from penstock.tasks.fit import make_options, spare_cores
from penstock.tasks.summary import put_rows
from penstock.terminal import progress, put, say
from penstock.training.train_step import TrainStep

DEFAULT_STEPS = 40
STAGES = ("read", "transform", "collate", "batch", "transfer")
WARM_UP = 3  # steps until allocations, compilation and autotuning are done
SLOWED = 1.25  # times as long as alone from which on a step counts as slowed
MARGIN = 0.85  # usable share of a worker's time

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
Bound = Literal["training", "decoding", "reading", "transfer", "start-up", "hand-over", "cores"]


def run(config: Config) -> None:
    """Profile training with the configured loader."""
    course = Course(config)
    steps = config.steps or DEFAULT_STEPS
    ceiling = course.step_seconds(steps)
    options = course.loader().options
    alone = record(course, replace(options, **ALONE), steps)
    timelines = [alone]
    if options.backend != "main" and options.num_workers:
        timelines.append(record(course, None, steps))
    measured = measure(course, ceiling, alone, timelines[-1], options)
    judged = judge(measured)
    print_table(timelines, ceiling, measured.samples)
    print_verdict(judged, measured)
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    folder.finish("done", bound=judged.bound, overrides=list(judged.overrides))


# Those of the configured options that need workers.
ALONE: dict[str, Any] = {
    "backend": "main",
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
}


def record(course: Course, options: LoaderOptions | None, steps: int) -> Timeline:
    """Train with a loader, as configured if `options` is None."""
    loader = course.loader(options)
    used = loader.options
    kind = {"thread": "threads", "process": "processes", "ray": "Ray actors", "main": ""}[
        used.backend
    ]
    several = used.backend != "main" and used.num_workers > 0
    title = f"{used.num_workers} {kind}" if several else "num_workers=0"
    say(f"profiling {steps} steps: {title}")
    timings = steps_of(course, course.batches(loader), steps)
    return Timeline(title, used.num_workers if several else 0, timings)


def measure(
    course: Course, ceiling: float, alone: Timeline, configured: Timeline, options: LoaderOptions
) -> Measured:
    """The measurements for a verdict."""
    plan, config = course.parts.data.train.plan, course.config
    epoch = plan.steps(0) if not isinstance(plan, StreamPlan) else plan.limit(0)
    kept = options.persistent_workers or options.backend != "process"
    epochs = config.trainer.max_epochs if kept else 1
    samples = sum(step.samples for step in alone.steps) / len(alone.steps)
    return Measured(
        samples=samples,
        ceiling=ceiling,
        pace=configured.pace,
        waited=configured.waited,
        waited_at_starts=configured.waited_at_starts,
        first=configured.first,
        run_steps=max((epoch or 1000) * epochs, len(configured.steps)),
        stages=alone.per_step(),
        computing=alone.computing,
        blocked=alone.blocked,
        transfer=configured.per_step().get("transfer", 0.0),
        busy=configured.busy,
        workers=configured.workers,
        prefetch=options.prefetch_factor or 2,
        cores=usable_cpus(),
    )


def print_table(timelines: Sequence[Timeline], ceiling: float, samples: float) -> None:
    """Print milliseconds per sample and stage, and the speed."""

    def each(seconds: float) -> str:
        return f"{1000 * seconds / samples:.3f}"

    stages = [timeline.per_step() for timeline in timelines]
    rows = [["ms per sample", *(timeline.title for timeline in timelines), "cached batch"]]
    for stage in [*STAGES, *(set().union(*stages) - set(STAGES))]:
        if any(stage in times for times in stages):
            rows.append([stage, *(each(times.get(stage, 0.0)) for times in stages), ""])
    rows += [
        ["training", *(each(timeline.training) for timeline in timelines), each(ceiling)],
        ["time waited", *(f"{timeline.waited:.0%}" for timeline in timelines), "0%"],
        [
            "samples/s",
            *(f"{timeline.samples_per_second:,.0f}" for timeline in timelines),
            f"{samples / ceiling:,.0f}",
        ],
        ["first batch after", *(f"{timeline.first:.2f} s" for timeline in timelines), ""],
    ]
    put_rows(rows)


def print_verdict(judged: Verdict, measured: Measured) -> None:
    """Print the bottleneck, the ceiling, and what to change."""
    now = measured.samples / measured.pace
    ceiling = measured.samples / measured.ceiling
    put(f"bound by     {judged.bound}: {judged.reason}")
    put(
        f"ceiling      {ceiling:,.0f} samples/s without loading, {ceiling / now:.2f} times as "
        "many as now"
    )
    put(f"to change    {judged.advice}")
    if judged.overrides:
        put(f"to paste     {' '.join(judged.overrides)}")
        put(f"             {program.text(*of_run(overrides()), *judged.overrides)}")


@dataclass(frozen=True)
class Measured:
    """The measurements that a verdict is based on."""

    samples: float  # in a batch
    ceiling: float  # training on a cached batch
    pace: float  # a step as configured, once batches come
    waited: float  # share of that in which the training loop waited
    waited_at_starts: float  # the part of `waited` for the first batches of epochs
    first: float  # seconds until the first batch came
    run_steps: int  # steps for which workers, once started, will work
    stages: Mapping[str, float]  # work on a batch without workers, by stage
    computing: float  # the part of it on a core
    blocked: float  # the part of it that waits, but not for a core
    transfer: float  # to the device
    busy: float  # share of the time in which a worker had work, as configured
    workers: int
    prefetch: int
    cores: int  # that this process may use


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a run, why, and what to change, in words and as overrides to paste."""

    bound: Bound
    reason: str
    advice: str
    overrides: tuple[str, ...] = ()


def judge(measured: Measured) -> Verdict:
    """The bottleneck, and what to change."""
    now, waited = measured, measured.waited
    computing = now.computing
    work, total = computing + now.blocked, now.first + now.run_steps * now.pace
    waits = f"the training loop waits for data {waited:.0%} of the time"
    late = now.first > 0.2 * total and now.first > waited * (total - now.first)
    if late or (waited >= WAITS and now.waited_at_starts > 0.5 * waited):
        reason = f"the first batch came after {now.first:.2f} s, and {waits}, "
        reason += f"{now.waited_at_starts:.0%} at the start of epochs"
        return Verdict("start-up", reason, "threads start sooner; or let epochs be longer",
                       ("loader=threads",))  # fmt: skip
    if waited >= WAITS and now.transfer > 0.5 * waited * now.pace:
        reason = f"copying a batch to the device takes {_ms(now.transfer)} of each {_ms(now.pace)}"
        return Verdict("transfer", reason, "pin the memory of batches, and send bytes",
                       ("loader.pin_memory=true", "transform.batch_on=device"))  # fmt: skip
    # Workers that would make a batch in the time of a training step.
    enough = max(1, math.ceil(work / (MARGIN * now.ceiling)))
    side = slower_side(waited, work, now.ceiling, now.workers, now.busy)
    if side == "training":
        step = now.pace * (1 - waited)
        if step > SLOWED * now.ceiling:
            fewer = min(enough, max(now.workers - 1, 0))
            reason = f"a training step takes {_ms(now.ceiling)} alone and {_ms(step)} here"
            return Verdict("cores", reason, "workers or other programs take its cores",
                           (f"loader.num_workers={fewer}",))  # fmt: skip
        reason = f"training takes {_ms(now.ceiling)} a batch, and {waits}"
        if waited < WAITS:
            return Verdict("training", reason, "make the training step faster")
        more = f"loader.num_workers={min(enough, now.cores)}"
        if now.workers:
            more = f"loader.prefetch_factor={2 * now.prefetch}"
        return Verdict("training", reason, "keep more batches ready", (more,))
    if now.blocked > computing:
        workers = max(min(enough, 64), now.workers + 1)
        reason = f"a batch takes {_ms(work)} to make, of which {_ms(now.blocked)} are spent "
        reason += "waiting for the data to arrive, with the core free"
        return Verdict("reading", reason, "ask for more at a time: workers that wait need no core",
                       (f"loader.num_workers={workers}",))  # fmt: skip
    if side == "neither":
        reason = f"workers are busy {now.busy:.0%} of the time, and still {waits}"
        return Verdict("hand-over", reason, "threads hand batches over without a copy",
                       ("loader=threads",))  # fmt: skip
    stage = max(now.stages, key=lambda name: now.stages[name])
    reason = f"a batch takes {_ms(computing)} of a core to make, most of it in {stage}, "
    reason += f"and training {_ms(now.ceiling)}"
    if now.workers < min(enough, now.cores):
        return Verdict("decoding", reason, f"let more of the {now.cores} cores work",
                       (f"loader.num_workers={min(enough, now.cores)}",))  # fmt: skip
    return Verdict("decoding", reason, "the cores are busy: make the transforms cheaper, or keep "
                   "what they begin with decoded", ("data.packed=auto",))  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


class Course:
    """A model in training whose weights are thrown away, and a cached batch.

    With `distributed` this is one rank by itself, which gets whole batches.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.parts = TrainingParts(config, World(device=resolve_device(config.trainer.device)))
        spare_cores(self.parts.world)
        objective = self.parts.objective()
        options = make_options(config, objective)
        group = Group(self.parts.world)
        model = prepare(self.parts.trained(False), Parallel(), group)
        optimizer = self.parts.optimizer(model)
        self.train_step = TrainStep(model, objective, optimizer, None, options, group, config.seed)
        self.train_step.model.train()
        self.options = self.parts.data.train.loader().options
        with closing(self.batches(self.loader(LoaderOptions()))) as batches:
            self.cached = next(batches)  # whole, and on the device
        for _ in range(WARM_UP):
            self.train(self.cached)

    def train(self, batch: Batch) -> None:
        """A training step, up to its end on the device."""
        self.train_step.learn(batch)
        if self.train_step.batches % self.train_step.options.accumulate == 0:
            self.train_step.update()
        if self.train_step.device.type == "cuda":
            torch.cuda.synchronize(self.train_step.device)

    def step_seconds(self, steps: int, most: float = float("inf")) -> float:
        """Median seconds of a step on the cached batch, of `steps` or as many as fit in `most`."""
        times: list[float] = []
        with progress("measuring the training step", steps) as show:
            while len(times) < steps and (len(times) < WARM_UP or sum(times) < most):
                began = time.perf_counter()
                self.train(self.cached)
                times.append(time.perf_counter() - began)
                show(len(times))
        return sorted(times)[len(times) // 2]

    def loader(self, options: LoaderOptions | None = None) -> Loader:
        """Batches of the training split; as configured if `options` is None."""
        loader = self.parts.data.train.loader()
        if options is not None:
            loader.close()
            loader = Loader(
                loader.plan,
                loader.fetch,
                options,
                loader.world,
                loader.fingerprint,
                loader.budget,
                loader.batch_transform,
            )
        return loader

    def batches(self, loader: Loader) -> Generator[Batch]:
        """Batches of one epoch after the other; closes the loader."""
        with loader:
            yield from all_batches(loader)


def all_batches(loader: Loader) -> Generator[Batch]:
    """Batches of the training split, one epoch after the other."""
    for epoch in count():
        batch = None
        with closing(loader.epoch(epoch)) as batches:
            for batch in batches:
                yield batch
        if batch is None and Address(epoch, 0) not in loader.plan.skipped:
            raise ConfigError(
                Problem("batch", "an epoch of the training split has no batch; set batch.tail=keep")
            )


def steps_of(course: Course, batches: Generator[Batch | End], steps: int) -> list[StepTiming]:
    """Train on `steps` batches; the times of each."""
    timings: list[StepTiming] = []
    with closing(batches), progress("profiling", steps) as show:
        asked, late, computed = time.perf_counter(), delayed(), time.thread_time()
        for batch in batches:
            assert isinstance(batch, Batch)
            computed, late = time.thread_time() - computed, delayed() - late
            came = time.perf_counter()
            course.train(batch)
            done = time.perf_counter()
            timings.append(
                StepTiming(
                    *batch.request.address,
                    len(batch.indices),
                    asked,
                    came,
                    done,
                    dict(batch.timing),
                    computed,
                    late,
                )
            )
            if len(timings) == steps:
                break
            show(len(timings))
            asked, late, computed = time.perf_counter(), delayed(), time.thread_time()
    return timings


def delayed() -> float:
    """Seconds for which this thread has waited for a core so far, 0 if not counted; 20 us."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass
class StepTiming:
    """The times of one batch in the training loop, in seconds."""

    epoch: int
    step: int
    samples: int
    asked: float  # when it was requested, received and trained on
    came: float
    done: float
    stages: Mapping[str, float]  # time by stage
    computed: float  # of the wait for it, in which this thread was on a core
    delayed: float  # of the wait for it, in which other programs had the core

    @property
    def waited(self) -> float:
        """Seconds of waiting for the batch."""
        return max(self.came - self.asked - self.delayed, 0.0)

    @property
    def work(self) -> float:
        """Seconds of work on the batch, without moving it."""
        return sum(self.stages.values()) - self.stages.get("transfer", 0.0)


@dataclass
class Timeline:
    """Consecutive steps with a loader; 0 workers: the training loop makes batches itself."""

    title: str
    workers: int
    steps: list[StepTiming] = field(default_factory=list)

    @property
    def begin(self) -> float:
        return self.steps[0].asked

    @property
    def first(self) -> float:
        """Seconds to the first batch."""
        return self.steps[0].came - self.begin

    @property
    def steady(self) -> float:
        """Seconds from the first batch on, including the first step's training."""
        return self.steps[-1].done - self.steps[0].came

    @property
    def pace(self) -> float:
        """Seconds per step once batches come."""
        return self.steady / len(self.steps)

    @property
    def samples_per_second(self) -> float:
        return sum(step.samples for step in self.steps) / max(self.steady, 1e-9)

    @property
    def waited(self) -> float:
        """Share of the steady time in which the training loop waited."""
        return sum(step.waited for step in self.steps[1:]) / max(self.steady, 1e-9)

    @property
    def waited_at_starts(self) -> float:
        """The part of `waited` for the first batches of epochs."""
        starts = (step.waited for step in self.steps[1:] if step.step == 0)
        return sum(starts) / max(self.steady, 1e-9)

    @property
    def training(self) -> float:
        """Seconds of training per step."""
        return sum(step.done - step.came for step in self.steps) / len(self.steps)

    def per_step(self) -> dict[str, float]:
        """Seconds of work per step, by stage."""
        times, count = [step.stages for step in self.steps], len(self.steps)
        stages = dict.fromkeys(stage for spent in times for stage in spent)
        return {stage: sum(spent.get(stage, 0.0) for spent in times) / count for stage in stages}

    @property
    def computing(self) -> float:
        """Seconds per step on a core while the training loop waited: without workers, the work."""
        return sum(step.computed for step in self.steps) / len(self.steps)

    @property
    def blocked(self) -> float:
        """Seconds per step of waiting, but not for a core: without workers, for data to arrive."""
        spent = (
            step.waited - step.computed - step.stages.get("transfer", 0.0) for step in self.steps
        )
        return sum(max(seconds, 0.0) for seconds in spent) / len(self.steps)

    @property
    def busy(self) -> float:
        """Share of the steady time in which a worker had a batch to work on, on average."""
        return sum(step.work for step in self.steps[1:]) / max(self.steady * self.workers, 1e-9)
