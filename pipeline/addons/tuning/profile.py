"""`task=profile`: what bounds this run, measured on real training steps.

`steps` steps on a cached batch, which no loader can exceed (the ceiling); then with the configured
loader, without workers, and with a worker a core. Prints a table, what bounds the run, and the
fastest of these settings as a line to type. Times are seconds.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

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
from penstock.loading.worker_status import WAITS
from penstock.loading.workers.options import LoaderOptions
from penstock.order.address import Address
from penstock.runs.run_folder import RunFolder
from penstock.tasks.fit import make_options, spare_cores
from penstock.tasks.summary import put_rows
from penstock.terminal import progress, put, say
from penstock.training.train_step import TrainStep

DEFAULT_STEPS = 40
WARM_UP = 3  # steps until allocations, compilation and autotuning are done
_MOST_WORKERS = 16  # as num_workers=auto
_FASTER = 0.9  # of the time of a step: less gain is noise, and no reason to change
# Those of the configured options that need workers.
_ALONE: dict[str, Any] = {
    "backend": "main",
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": 2,
    "timeout": 0,
    "worker_init_fn": None,
    "multiprocessing_context": None,
}


def run(config: Config) -> None:
    """Profile training with the configured loader, and with others."""
    course, steps = Course(config), config.steps or DEFAULT_STEPS
    ceiling = course.ceiling(steps)
    now = course.trial(course.options, steps)
    trials = [now]
    for workers in sorted({0, min(usable_cpus(), _MOST_WORKERS)} - {now.workers}):
        trials.append(course.trial(with_workers(course.options, workers), steps))
    trials.sort(key=lambda trial: trial.workers)
    best = min(trials, key=lambda trial: trial.pace)
    samples = len(course.cached.indices)
    print_table(trials, ceiling, samples)
    stage = max(now.stages, key=lambda name: now.stages[name])
    bound = "training" if now.waited < WAITS else stage
    put(f"bound by     {bound}: the training loop waits for data {now.waited:.0%} of the time")
    put(
        f"ceiling      {samples / ceiling:,.0f} samples/s without loading, "
        f"{now.pace / ceiling:.2f} times as many as now"
    )
    words: list[str] = []
    if best.pace < _FASTER * now.pace:
        backend = ["loader.backend=process"] if course.options.backend == "main" else []
        words = (
            [*backend, f"loader.num_workers={best.workers}"] if best.workers else ["loader=debug"]
        )
        put(f"to paste     {' '.join(words)}")
        put(f"             {program.text(*of_run(overrides()), *words)}")
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    folder.finish("done", bound=bound, overrides=words)


def with_workers(options: LoaderOptions, workers: int) -> LoaderOptions:
    """The options with another number of workers."""
    if not workers:
        return replace(options, **_ALONE)
    backend = "process" if options.backend == "main" else options.backend
    return replace(options, backend=backend, num_workers=workers)


@dataclass(frozen=True)
class Trial:
    """What some steps with a loader took.

    Attributes:
        workers: that made batches; 0: the training loop did.
        first: seconds until the first batch came.
        pace: seconds of a step from then on.
        waited: share of that in which the training loop waited for data.
        stages: work on a batch by stage, in seconds.
    """

    workers: int
    first: float
    pace: float
    waited: float
    stages: Mapping[str, float]


def print_table(trials: Sequence[Trial], ceiling: float, samples: int) -> None:
    """Print milliseconds a sample by stage, and the speed."""
    stages = dict.fromkeys(stage for trial in trials for stage in trial.stages)
    rows = [["ms per sample", *(f"{trial.workers} workers" for trial in trials), "cached batch"]]
    for stage in stages:
        spent = (1000 * trial.stages.get(stage, 0.0) / samples for trial in trials)
        rows.append([stage, *(f"{value:.3f}" for value in spent), ""])
    rows += [
        ["time waited", *(f"{trial.waited:.0%}" for trial in trials), "0%"],
        [
            "samples/s",
            *(f"{samples / trial.pace:,.0f}" for trial in trials),
            f"{samples / ceiling:,.0f}",
        ],
        ["first batch after", *(f"{trial.first:.2f} s" for trial in trials), ""],
    ]
    put_rows(rows)


class Course:
    """A model in training whose weights are thrown away, and a cached batch.

    With `distributed` this is one rank by itself, which gets whole batches.
    """

    def __init__(self, config: Config) -> None:
        self.parts = TrainingParts(config, World(device=resolve_device(config.trainer.device)))
        spare_cores(self.parts.world)
        objective, group = self.parts.objective(), Group(self.parts.world)
        model = prepare(self.parts.trained(False), Parallel(), group)
        how = make_options(config, objective)
        self.train_step = TrainStep(
            model, objective, self.parts.optimizer(model), None, how, group, config.seed
        )
        self.train_step.model.train()
        with self.parts.data.train.loader() as loader:
            self.options = loader.options
        with self.loader(LoaderOptions()) as loader, closing(all_batches(loader)) as batches:
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

    def ceiling(self, steps: int) -> float:
        """Median seconds of a step on the cached batch."""
        times = []
        with progress("measuring the training step", steps) as show:
            for number in range(steps):
                began = time.perf_counter()
                self.train(self.cached)
                times.append(time.perf_counter() - began)
                show(number + 1)
        return sorted(times)[steps // 2]

    def loader(self, options: LoaderOptions) -> Loader:
        """Batches of the training split."""
        with self.parts.data.train.loader() as made:
            parts = made.world, made.fingerprint, made.budget, made.batch_transform
            return Loader(made.plan, made.fetch, options, *parts)

    def trial(self, options: LoaderOptions, steps: int) -> Trial:
        """Train on `steps` batches of a loader."""
        workers = 0 if options.backend == "main" else options.num_workers
        say(f"profiling {steps} steps with {workers} workers")
        waits, stages = list[float](), dict[str, float]()
        began = asked = time.perf_counter()
        with self.loader(options) as loader, closing(all_batches(loader)) as batches:
            for batch in batches:
                waits.append(time.perf_counter() - asked)
                for stage, seconds in batch.timing.items():
                    stages[stage] = stages.get(stage, 0.0) + seconds / steps
                self.train(batch)
                asked = time.perf_counter()
                if len(waits) == steps:
                    break
        steady = asked - began - waits[0]
        return Trial(workers, waits[0], steady / steps, sum(waits[1:]) / steady, stages)


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
