"""`task=lr_find`: how large the learning rate may be, by trying all of them in one short run.

The learning rate rises exponentially from `lr_find.lowest` to `lr_find.highest` over `steps`
optimizer steps of a new model (Smith, "Cyclical learning rates", arXiv:1506.01186). The loss falls
fastest somewhere below the rate at which it explodes; that rate is suggested, for
`optimizer.lr`. Nothing is kept but lr.png and lr.csv: a run begins with weights of its own.

Batches are those of a run of the same configuration, at the same addresses, epoch after epoch.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from pipeline.build.training import TrainingParts
from pipeline.config.schema import Config
from pipeline.distributed.group import Group
from pipeline.distributed.world import World, from_environment
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.disk import write_atomically
from pipeline.loading.batch import Batch
from pipeline.loading.loader import Loader
from pipeline.runs.pictures import rate_curve
from pipeline.runs.run_folder import RunFolder
from pipeline.tasks.fit import make_options, spare_cores
from pipeline.terminal import put
from pipeline.training.train_step import TrainStep

_STEPS = 100
_MEMORY = 0.9  # what the smoothed loss keeps of itself from one step to the next
_EXPLODED = 4.0  # times the lowest smoothed loss: nothing is learned at larger rates
_FEWEST = 5  # losses that a slope is looked for in


def run(config: Config) -> None:
    """Go through the learning rates.

    Raises:
        DataError: the loss was not finite from the beginning, or there were too few batches.
    """
    given, steps = config.lr_find, config.steps or _STEPS
    if given.highest <= given.lowest:
        raise ConfigError(Problem("lr_find.highest", f"{given.highest:g} is not above "
                                  f"lr_find.lowest, {given.lowest:g}"))  # fmt: skip
    parts = TrainingParts(config, World(device=from_environment(config.trainer.device).device))
    spare_cores(parts.world)
    with parts.data.train.loader() as train:
        train_step = _learner(config, parts)
        found = list(rates_and_losses(train_step, train, given.lowest, given.highest, steps))
    if len(found) < _FEWEST:
        raise DataError(f"the loss exploded after {len(found)} steps; lower lr_find.lowest, take "
                        "more steps, or look at the data (task=check)")  # fmt: skip
    rates, losses = [rate for rate, _ in found], [loss for _, loss in found]
    smooth = smoothed(losses)
    best = suggestion(rates, smooth)
    folder = RunFolder.claim(Path(config.run_dir), config.written())
    _write(folder.path / "lr.csv", rates, losses, smooth)
    picture = rate_curve(rates, losses, smooth, best, folder.path / "lr.png")
    folder.finish("done", suggestion=best)
    end = "where the loss exploded" if len(found) < steps else "to the end"
    put(f"{len(found)} learning rates, {rates[0]:.3g} to {rates[-1]:.3g}, {end}")
    put(f"picture      {picture}")
    put(f"the loss falls fastest at optimizer.lr={best:.2g}")


def _learner(config: Config, parts: TrainingParts) -> TrainStep:
    objective = parts.objective()
    model = parts.model()
    optimizer = parts.optimizer(model)
    options = replace(make_options(config, objective), max_steps=None, ema=None)
    group = Group(parts.world)
    return TrainStep(model, objective, optimizer, None, options, group, config.seed)


def rates_and_losses(
    train_step: TrainStep, train: Loader, lowest: float, highest: float, steps: int
) -> Iterator[tuple[float, float]]:
    """The learning rate and the mean loss of each optimizer step, until the loss explodes.

    The loss is that before the step is taken. It ends with the data where epochs have no batch.
    """
    scheduler = _rising(train_step.optimizer, lowest, highest, steps)
    train_step.model.train()
    lowest_loss, mean = math.inf, 0.0
    with closing(_batches(train)) as batches:
        for step in range(steps):
            some = list(islice(batches, train_step.options.accumulate))
            losses = [loss for batch in some for loss in train_step.learn(batch).tolist()]
            if not losses:
                return
            value, rate = math.fsum(losses) / len(losses), train_step.lr
            mean = _MEMORY * mean + (1 - _MEMORY) * value
            now = mean / (1 - _MEMORY ** (step + 1))
            lowest_loss = min(lowest_loss, now)
            if not math.isfinite(value) or now > _EXPLODED * lowest_loss:
                return
            yield rate, value
            train_step.update()
            scheduler.step()


def _rising(optimizer: Optimizer, lowest: float, highest: float, steps: int) -> ExponentialLR:
    for group in optimizer.param_groups:
        group["lr"] = lowest
        group.pop("initial_lr", None)
    return ExponentialLR(optimizer, (highest / lowest) ** (1 / max(steps - 1, 1)))


def _batches(train: Loader) -> Generator[Batch, None, None]:
    """All batches of epoch 0, then of epoch 1, and so on; ends at an epoch without any."""
    for epoch in count():
        empty = True
        with closing(train.epoch(epoch)) as batches:
            for batch in batches:
                empty = False
                yield batch
        if empty:
            return


def smoothed(losses: Sequence[float]) -> list[float]:
    """The running mean of losses, with its beginning corrected (as Adam's moments are)."""
    found, mean = [], 0.0
    for step, loss in enumerate(losses, start=1):
        mean = _MEMORY * mean + (1 - _MEMORY) * loss
        found.append(mean / (1 - _MEMORY**step))
    return found


def suggestion(rates: Sequence[float], smooth: Sequence[float]) -> float:
    """The rate at which the smoothed loss falls fastest, over the logarithm of the rate."""
    logs = [math.log(rate) for rate in rates]
    places = range(1, len(rates) - 1)
    slopes = {
        at: (smooth[at + 1] - smooth[at - 1]) / (logs[at + 1] - logs[at - 1]) for at in places
    }
    return rates[min(slopes, key=lambda at: slopes[at])]


def _write(
    path: Path, rates: Sequence[float], losses: Sequence[float], smooth: Sequence[float]
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["lr", "loss", "smoothed"])
    writer.writerows(zip(rates, losses, smooth, strict=True))
    write_atomically(path, text.getvalue().encode())
