"""`task=lr_find`: a learning rate range test (Smith, "Cyclical learning rates", arXiv:1506.01186).

The learning rate of a new model rises exponentially from `lr_find.lowest` to `lr_find.highest` over
`steps` optimizer steps, with the batches of a run. The rate at which the loss falls fastest is
suggested for `optimizer.lr`, if it falls by more than noise. Only lr.csv is kept.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from torch.optim.lr_scheduler import ExponentialLR

from penstock.addons.tuning.profile import all_batches
from penstock.build.training import TrainingParts
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.distributed.group import Group
from penstock.distributed.world import World, from_environment
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.disk import write_atomically
from penstock.files.limits import PositiveFloat
from penstock.loading.loader import Loader
from penstock.runs.run_folder import RunFolder
from penstock.tasks.fit import make_options, spare_cores
from penstock.terminal import put, watched
from penstock.training.train_step import TrainStep

_STEPS = 100
_MEMORY = 0.9  # decay of the smoothed loss
_EXPLODED = 4.0  # times the lowest smoothed loss: larger rates are useless
_FEWEST = 5  # losses for a slope


def run(config: Config) -> None:
    """Try the learning rates.

    Raises:
        DataError: the loss exploded within the first steps.
    """
    parts = TrainingParts(config, World(device=from_environment(config.trainer.device).device))
    spare_cores(parts.world)
    with parts.data.train.loader() as train:
        objective, model = parts.objective(), parts.trained()
        how = replace(make_options(config, objective), max_steps=None, ema=None)
        train_step = TrainStep(
            model, objective, parts.optimizer(model), None, how, Group(parts.world), config.seed
        )
        steps = config.steps or _STEPS
        pairs = list(options(config, "lr_find", train_step, train, steps))
    if len(pairs) < _FEWEST:
        raise DataError(
            f"the loss exploded after {len(pairs)} steps; lower lr_find.lowest, take "
            "more steps, or look at the data (task=check)"
        )
    rates, losses = [rate for rate, _ in pairs], [loss for _, loss in pairs]
    smooth = smoothed(losses)
    best = suggestion(rates, losses)
    folder = RunFolder.claim(Path(config.run_dir), config.model_dump())
    text = io.StringIO(newline="")
    rows = zip(rates, losses, smooth, strict=True)
    csv.writer(text).writerows([("lr", "loss", "smoothed"), *rows])
    write_atomically(folder.path / "lr.csv", text.getvalue().encode())
    folder.finish("done", suggestion=best)
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
    for group in train_step.optimizer.param_groups:
        group["lr"] = lowest * (group["lr"] / base if base else 1.0)
        group.pop("initial_lr", None)
    factor = (highest / lowest) ** (1 / max(steps - 1, 1))
    scheduler = ExponentialLR(train_step.optimizer, factor)
    train_step.model.train()
    values: list[float] = []
    with closing(all_batches(train)) as batches:
        for _ in watched(range(steps), steps, "trying learning rates"):
            some = list(islice(batches, train_step.options.accumulate))
            losses = [loss for batch in some for loss in train_step.learn(batch).tolist()]
            if not losses:
                return
            value, rate = math.fsum(losses) / len(losses), train_step.lr
            values.append(value)
            smooth = smoothed(values)
            if not math.isfinite(value) or smooth[-1] > _EXPLODED * min(smooth):
                return
            yield rate, value
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
