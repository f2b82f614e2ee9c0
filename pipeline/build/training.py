"""Configuration to training: model, objective, optimizer, scheduler.

What a callable takes by name and the configuration leaves out is supplied: facts of the dataset,
`params`, `total_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from penstock.build.data import DataParts
from penstock.config.instantiate import make
from penstock.config.nodes import SCHEDULE_KEYS, metrics
from penstock.config.schema import Config
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.order.randomness import hash64, scope, seed_global
from penstock.training.objective_base import Objective
from penstock.training.own_objective import adapted
from penstock.training.own_steps import Optimizers
from penstock.training.schedules import warmup_steps, with_warmup

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class TrainingParts:
    """The model, its training and the data for it.

    Args:
        config: checked by preflight.
        world: this process among the others; from the environment when None.
    """

    def __init__(self, config: Config, world: World | None = None) -> None:
        self.config = config
        self.data = DataParts(config, world)
        self.world = self.data.world

    def model(self) -> torch.nn.Module:
        """A new model on the CPU; its weights follow from the seed."""
        with scope():
            seed_global(hash64(self.config.seed, "weights"))
            made: torch.nn.Module = self.data.make_with_facts("model", self.config.model, False)
        return made

    def objective(self) -> Objective:
        """The objective with its metrics; one of a person's own, adapted."""
        node = self.config.objective
        if "metrics" in node:
            node = {**node, "metrics": metrics(node)}
        return adapted(self.data.make_with_facts("objective", node, nested=True))

    def optimizer(self, model: torch.nn.Module, total_steps: int = 0) -> Optimizer:
        """The optimizer of the model's weights; or several, each of a part that it is named for.

        Args:
            total_steps: how often its schedule will be stepped, as for `scheduler`.
        """
        node = self.config.optimizer
        if "_target_" in node:
            return _optimizer(node, "optimizer", model, total_steps)
        parts = dict(model.named_children())
        if unknown := node.keys() - parts.keys():
            name, known = min(unknown), ", ".join(parts) or "no parts"
            reason = f"is no part of {type(model).__name__}, which has {known}"
            raise ConfigError(Problem(f"optimizer.{name}", reason))
        return Optimizers(
            {
                name: _optimizer(of, f"optimizer.{name}", parts[name], total_steps)
                for name, of in node.items()
            }
        )

    def scheduler(self, optimizer: Optimizer, total_steps: int) -> LRScheduler | None:
        """The schedule with its warm-up, or None.

        Args:
            total_steps: how often it will be stepped: optimizer steps of the whole run, or its
                epochs where `scheduler.interval` is epoch.
        """
        node = self.config.scheduler
        if node is None:
            return None
        warm = warmup_steps(node.get("warmup", 0), total_steps)
        rest = total_steps - warm
        plain = {name: value for name, value in node.items() if name not in SCHEDULE_KEYS}
        steps = {"total_steps": rest, "T_max": rest, "total_iters": rest}
        return with_warmup(
            optimizer, warm, lambda inner: make(plain, "scheduler", {"optimizer": inner, **steps})
        )


def _optimizer(node: Mapping[str, Any], key: str, model: nn.Module, total_steps: int) -> Optimizer:
    params = [weight for weight in model.parameters() if weight.requires_grad]
    supply = {"params": params, "model": model, "total_steps": total_steps}
    made: Optimizer = make(node, key, supply)
    return made
