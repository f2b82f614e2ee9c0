"""`task=profile` and `task=lr_find`: which loader is fastest, and which learning rate works.

Both train a model whose weights are thrown away, in one process, on whole batches.

profile: `steps` steps on a cached batch, which no loader can exceed (the ceiling); then with the
configured loader, without workers, and with a worker a core. It prints a table, what bounds the
run, and the fastest of these settings as a line to type. Times are seconds.

lr_find: the learning rate rises exponentially from `lr_find.lowest` to `lr_find.highest` over
`steps` optimizer steps (Smith 2015, "Cyclical learning rates for training neural networks", arXiv
1506.01186). The rate at which the loss falls fastest is suggested, if it falls by more than noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from torch.optim.lr_scheduler import ExponentialLR

from penstock import program
from penstock.build.training import TrainingParts
from penstock.config.hydra import of_run, overrides
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel, prepare
from penstock.distributed.world import World, resolve_device, usable_cpus
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.disk import write_atomically
from penstock.files.limits import PositiveFloat
from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.loading.worker_status import WAITS
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.address import Address
from penstock.runs.folder import RunFolder
from penstock.tasks.fit import make_options, spare_cores
from penstock.tasks.summary import put_rows
from penstock.terminal import put, say, watched
from penstock.training.step import TrainStep

_WARM_UP = 3  # steps until allocations, compilation and autotuning are done
_MOST_WORKERS = 16  # as num_workers=auto
_FASTER = 0.9  # of the time of a step: less gain is noise, and no reason to change
_MEMORY = 0.9  # decay of the smoothed loss
_EXPLODED = 4.0  # times the lowest smoothed loss: larger rates are useless
_FEWEST = 5  # losses for a slope


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


def profile(config: Config) -> None:
    """Profile training with the configured loader, and with others."""
    (parts, train_step), steps = _training(config), config.steps or 40
    with _loader(parts, 0) as loader, closing(all_batches(loader)) as batches:
        cached = next(batches)  # whole, and on the device
    for _ in range(_WARM_UP):
        _seconds(train_step, cached)
    measured = watched(range(steps), steps, "measuring the training step")
    # The median: one step may meet a pause of the system.
    ceiling = sorted(_seconds(train_step, cached) for _ in measured)[steps // 2]
    now = _trial(parts, train_step, None, steps)
    others = sorted({0, min(usable_cpus(), _MOST_WORKERS)} - {now.workers})
    trials = [now, *(_trial(parts, train_step, workers, steps) for workers in others)]
    trials.sort(key=lambda trial: trial.workers)
    best, samples = min(trials, key=lambda trial: trial.pace), len(cached.indices)
    stages = dict.fromkeys(name for trial in trials for name in trial.stages)
    work = [[1000 * trial.stages.get(name, 0) / samples for trial in trials] for name in stages]
    paces = [*(trial.pace for trial in trials), ceiling]
    put_rows(
        [
            ["ms per sample", *(f"{trial.workers} workers" for trial in trials), "cached batch"],
            *(
                [name, *(f"{ms:.3f}" for ms in row), ""]
                for name, row in zip(stages, work, strict=True)
            ),
            ["time waited", *(f"{trial.waited:.0%}" for trial in trials), "0%"],
            ["samples/s", *(f"{samples / pace:,.0f}" for pace in paces)],
            ["first batch after", *(f"{trial.first:.2f} s" for trial in trials), ""],
        ]
    )
    stage = max(now.stages, key=lambda name: now.stages[name])
    bound = "training" if now.waited < WAITS else stage
    put(f"bound by     {bound}: the training loop waits for data {now.waited:.0%} of the time")
    gain = f"{now.pace / ceiling:.2f} times as many as now"
    put(f"ceiling      {samples / ceiling:,.0f} samples/s without loading, {gain}")
    words: list[str] = []
    if best.pace < _FASTER * now.pace:
        words = ["loader=debug"] if not best.workers else [f"loader.num_workers={best.workers}"]
        if best.workers and not now.workers:
            words.insert(0, "loader.backend=process")
        put(f"to paste     {' '.join(words)}")
        put(f"             {program.text(*of_run(overrides()), *words)}")
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    folder.finish("done", bound=bound, overrides=words)
    folder.release()


def _training(config: Config) -> tuple[TrainingParts, TrainStep]:
    parts = TrainingParts(config, World(device=resolve_device(config.trainer.device)))
    spare_cores(parts.world)
    objective, group = parts.objective(), Group(parts.world)
    model = prepare(parts.trained(), Parallel(), group)
    # Without averages of weights, which would be thrown away with them.
    how = replace(make_options(config, objective), max_steps=None, ema=None)
    train_step = TrainStep(model, objective, parts.optimizer(model), None, how, group, config.seed)
    train_step.model.train()
    return parts, train_step


def _loader(parts: TrainingParts, workers: int | None) -> Loader:
    """Batches of the training split, by as many workers; None: as configured."""
    with parts.data.train.loader() as made:
        how, rest = made.options, (made.world, made.fingerprint, made.budget, made.batch_transform)
    if workers == 0:
        how = LoaderOptions(pin_memory=how.pin_memory)
    elif workers:
        backend = "process" if how.backend == "main" else how.backend
        how = replace(how, backend=backend, num_workers=workers)
    return Loader(made.plan, made.fetch, how, *rest)


def _seconds(train_step: TrainStep, batch: Batch) -> float:
    """Train on a batch, up to the step's end on the device."""
    began = time.perf_counter()
    train_step.learn(batch)
    if train_step.batches % train_step.options.accumulate == 0:
        train_step.update()
    if train_step.device.type == "cuda":
        # A kernel that is only queued would be counted in the next step's wait.
        torch.cuda.synchronize(train_step.device)
    return time.perf_counter() - began


def _trial(parts: TrainingParts, train_step: TrainStep, workers: int | None, steps: int) -> Trial:
    """Train on `steps` batches of a loader."""
    waits, trained, stages = list[float](), 0.0, dict[str, float]()
    with _loader(parts, workers) as loader, closing(all_batches(loader)) as batches:
        workers = 0 if loader.options.backend == "main" else loader.options.num_workers
        say(f"profiling {steps} steps with {workers} workers")
        for _ in range(steps):
            began = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - began)
            trained += _seconds(train_step, batch)
            for stage, seconds in batch.timing.items():
                stages[stage] = stages.get(stage, 0.0) + seconds / steps
    # The wait for the first batch, while workers start, is no part of a step.
    steady = trained + sum(waits[1:])
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


def find_rate(config: Config) -> None:
    """Try learning rates, and leave them with their losses in lr.csv.

    Raises:
        DataError: the loss exploded within the first steps.
    """
    (parts, train_step), steps = _training(config), config.steps or 100
    with parts.data.train.loader() as train:
        pairs = list(options(config, "lr_find", train_step, train, steps))
    if len(pairs) < _FEWEST:
        raise DataError(
            f"the loss exploded after {len(pairs)} steps; lower lr_find.lowest, take "
            "more steps, or look at the data (task=check)"
        )
    rates, losses = [rate for rate, _ in pairs], [loss for _, loss in pairs]
    best, rows = suggestion(rates, losses), zip(rates, losses, smoothed(losses), strict=True)
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    text = "\n".join(["lr,loss,smoothed", *(",".join(map(str, row)) for row in rows)])
    write_atomically(folder.path / "lr.csv", f"{text}\n".encode())
    folder.finish("done", suggestion=best)
    folder.release()
    end = "where the loss exploded" if len(pairs) < steps else "to the end"
    put(f"{len(pairs)} learning rates, {rates[0]:.3g} to {rates[-1]:.3g}, {end}")
    put(f"losses       {folder.path / 'lr.csv'}")
    if best is None:
        put("no suggestion: the loss fell by no more than its noise; take more steps: steps=300")
    else:
        put(f"the loss falls fastest at about optimizer.lr={best:.2g}")


def rates_and_losses(
    train_step: TrainStep,
    train: Loader,
    steps: int,
    /,
    lowest: PositiveFloat = 1e-7,
    highest: PositiveFloat = 1.0,
) -> Iterator[tuple[float, float]]:
    """The learning rate and the mean loss before each optimizer step, until the loss explodes.

    Args:
        lowest, highest: the first and the last learning rate.

    Raises:
        ConfigError: they do not rise.
    """
    if highest <= lowest:
        reason = f"{highest:g} is not above lr_find.lowest, {lowest:g}"
        raise ConfigError(Problem("lr_find.highest", reason))
    base = train_step.optimizer.defaults.get("lr")
    for group in train_step.optimizer.param_groups:  # those of trainer.groups keep their ratios
        group["lr"] = lowest * (group["lr"] / base if base else 1.0)
        # ExponentialLR would begin with it and not with the rate set here.
        group.pop("initial_lr", None)
    factor = (highest / lowest) ** (1 / max(steps - 1, 1))
    scheduler = ExponentialLR(train_step.optimizer, factor)
    values: list[float] = []
    with closing(all_batches(train)) as batches:
        for _ in watched(range(steps), steps, "trying learning rates"):
            some = islice(batches, train_step.options.accumulate)
            losses = [loss for batch in some for loss in train_step.learn(batch).tolist()]
            if not losses:
                return
            values.append(math.fsum(losses) / len(losses))
            means = smoothed(values)
            if not math.isfinite(values[-1]) or means[-1] > _EXPLODED * min(means):
                return
            yield train_step.lr, values[-1]
            train_step.update()
            scheduler.step()


def smoothed(losses: Sequence[float]) -> list[float]:
    """The running mean of losses, with its beginning corrected (as Adam's moments are)."""
    means, mean = [], 0.0
    for step, loss in enumerate(losses, start=1):
        mean = _MEMORY * mean + (1 - _MEMORY) * loss
        means.append(mean / (1 - _MEMORY**step))
    return means


def suggestion(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The rate at which the loss has fallen half of its way, with which it falls about fastest.

    The steepest slope by itself is noise: of losses that do not fall yet, at the smallest rates.
    None where the whole fall could be noise: less than four deviations of the means it is made of.
    """
    values, half = np.array(losses), max(len(losses) // 20, 1)
    early = values[: max(len(values) // 5, 3)]
    means = np.array(
        [values[max(at - half, 0) : at + half + 1].mean() for at in range(len(values))]
    )
    lowest = int(means.argmin())
    fall = early.mean() - means[lowest]
    noise = early.std(ddof=1) * math.sqrt(1 / len(early) + 1 / (2 * half + 1))
    if fall <= 4 * noise:
        return None
    return rates[int(np.flatnonzero(means[: lowest + 1] > early.mean() - fall / 2)[-1])]
