"""Real training steps to measure loaders with, for `task=profile` and `task=tune`."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from penstock.addons.tuning.timeline import StepTiming
from penstock.build.training import TrainingParts
from penstock.config.schema import Config
from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel, prepare
from penstock.distributed.world import World, resolve_device
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.loading.stage_timer import delayed
from penstock.loading.workers.options import LoaderOptions
from penstock.order.address import Address
from penstock.order.plan import Request
from penstock.order.randomness import scope
from penstock.order.seeding import SharedGeneratorError, ThreadRandomness, probe
from penstock.order.streams import End
from penstock.tasks.fit import make_options, spare_cores
from penstock.terminal import ProgressDisplay
from penstock.training.own_steps import make_train_step

WARM_UP = 3  # steps until allocations, compilation and autotuning are done


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
        self.train_step = make_train_step(
            model, objective, optimizer, None, options, group, config.seed
        )
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
        with ProgressDisplay("measuring the training step", steps) as shown:
            while len(times) < steps and (len(times) < WARM_UP or sum(times) < most):
                began = time.perf_counter()
                self.train(self.cached)
                times.append(time.perf_counter() - began)
                shown.to(len(times))
        return sorted(times)[len(times) // 2]

    def loader(self, options: LoaderOptions | None = None, traced: bool = False) -> Loader:
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
        loader.fetch.traced = traced
        return loader

    def batches(self, loader: Loader) -> Generator[Batch]:
        """Batches of one epoch after the other; closes the loader."""
        with loader:
            yield from all_batches(loader)

    def threads_refused(self) -> str | None:
        """Why threads cannot load this data; None if they can."""
        fetch = self.loader(LoaderOptions()).fetch
        try:
            request: object = self.parts.data.train.plan.request(0, 0)
            if isinstance(request, Request):
                request = Request(0, 0, request.positions[:2], request.indices[:2], 2)

            def run(mode: ThreadRandomness) -> None:
                with mode:
                    fetch(request, draws=mode)

            with scope():
                probe(run)
        except SharedGeneratorError as error:
            return str(error)
        return None


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
    with closing(batches), ProgressDisplay("profiling", steps) as shown:
        asked, late = time.perf_counter(), delayed()
        for batch in batches:
            assert isinstance(batch, Batch)
            so_far = delayed()
            came, late = time.perf_counter(), so_far - late
            course.train(batch)
            done, starved = time.perf_counter(), delayed() - so_far
            timings.append(
                StepTiming(
                    *batch.request.address,
                    len(batch.indices),
                    asked,
                    came,
                    done,
                    dict(batch.timing),
                    batch.trace,
                    late,
                    starved,
                )
            )
            if len(timings) == steps:
                break
            shown.to(len(timings))
            asked, late = time.perf_counter(), delayed()
    return timings


def fixed(options: LoaderOptions, **changes: Any) -> LoaderOptions:
    """Options with changes, and without tuning while the loader runs."""
    return replace(options, auto=None, **changes)
