"""A run's model with its best weights, and the data for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import nn

from penstock.addons.predicting.learned import Learned, parts_of_run
from penstock.build.training import TrainingParts
from penstock.config.schema import Config
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.runs import checkpoint
from penstock.tasks.validate import load_weights
from penstock.training.objective_base import Objective


class Trained(NamedTuple):
    """The trained part of a run: `path` is the checkpoint of the weights."""

    parts: TrainingParts
    model: nn.Module
    objective: Objective
    path: Path
    learned: Learned | None = None


def trained(config: Config, elsewhere: bool = False) -> Trained:
    """The model of `config.run` on the device, with its best weights or those of `checkpoint`.

    Args:
        elsewhere: without the training data, by what the run's folder says of it.

    Raises:
        ConfigError: it is no run's folder, or what it names is not allowed.
    """
    if config.run is None:
        raise ConfigError(Problem("run", "is missing: the folder of a run"))
    path = checkpoint.find(Path(config.checkpoint or config.run))
    learned = Learned.read(path) if elsewhere else None
    return loaded(config, path, learned=learned)


def loaded(
    config: Config, path: Path, world: World | None = None, learned: Learned | None = None
) -> Trained:
    """The same of the configuration of a run, and the path of a checkpoint.

    Args:
        world: this process among the others; from the environment when None.
        learned: of the training data, which is not opened then.
    """
    if learned is None:
        parts = parts_of_run(config, path, world)
    else:
        parts = TrainingParts(learned.completed(config), world)
        parts.data.recorded, parts.data.train.dataset = learned.classes, learned
    model, objective = parts.model(), parts.objective()
    load_weights(model, path)
    device = parts.world.device
    return Trained(parts, model.to(device).eval(), objective.to(device), path, learned)
