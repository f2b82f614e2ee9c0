"""What a fit has been made of, in a few lines before its first step.

data      SyntheticFaces: 800 samples to train on, 200 to validate; 25 batches of 32 an epoch
model     LandmarkNet: 1,171,336 parameters, fp32, on cpu
loader    2 worker processes
folder    outputs/2026-11-22/07-31-11
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from pipeline.build.data import DataParts
from pipeline.config.schema import Config
from pipeline.distributed.group import Group
from pipeline.loading.loader import Loader
from pipeline.loading.workers.backends import LoaderOptions
from pipeline.order.streams import length_of


def of_fit(
    config: Config, data: DataParts, model: nn.Module, train: Loader, group: Group, folder: Path
) -> str:
    """The lines, without a newline at their end.

    Args:
        train: the training split's loader.
        folder: of the run.
    """
    rows = {
        "data": _data(data, train),
        "model": _model(config, model, train.world.device, group),
        "loader": _loader(train.options, group),
        "folder": str(folder),
    }
    return "\n".join(f"{name:<9} {text}" for name, text in rows.items())


def _data(data: DataParts, loader: Loader) -> str:
    train, val = (length_of(split.dataset) for split in (data.train, data.val))
    learned = "a stream of samples" if train is None else _count(train, "sample")
    held = "a stream" if val is None else f"{val:,}"
    steps, size = loader.plan.steps(0), loader.plan.batch_size
    batches = f"batches of {size}" if steps is None else f"{_count(steps, 'batch')} of {size}"
    name = type(data.train.dataset).__name__
    return (f"{name}: {learned} to train on, {held} to validate; "
            f"{batches}{' an epoch' * (steps is not None)}")  # fmt: skip


def _model(config: Config, model: nn.Module, device: str, group: Group) -> str:
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    every, learned = sum(size for size, _ in sizes), sum(size for size, own in sizes if own)
    part = "" if every == learned else f", {learned:,} of them trained"
    ways = [config.trainer.precision, "compiled"][: 1 + config.trainer.compile]
    ranks = "" if group.alone else f", {config.distributed.strategy} over {group.world.size} ranks"
    return (f"{type(model).__name__}: {_count(every, 'parameter')}{part}, {', '.join(ways)}, "
            f"on {device}{ranks}")  # fmt: skip


def _loader(options: LoaderOptions, group: Group) -> str:
    if options.backend == "main" or not options.num_workers:
        return "in this process, between the steps (loader.num_workers=0)"
    kind = "worker process" if options.backend == "process" else "thread"
    number = _count(options.num_workers, kind)
    return (f"{number}{'' if group.alone else ' a rank'}"
            f"{', to begin with' * (options.auto is not None)}")  # fmt: skip


def _count(number: int, noun: str) -> str:
    plural = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{plural}"
