"""Configuration to training: model, objective, optimizer, scheduler.

This module supplies arguments that a callable takes by name and a configuration leaves out: facts
of the dataset, `params`, `total_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from penstock.build.data import DataParts
from penstock.config import targets
from penstock.config.schema import Config
from penstock.config.targets import make
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.order.randomness import hash64, scope, seed_global
from penstock.terminal import say
from penstock.training.objective_base import Objective
from penstock.training.own_objective import adapted
from penstock.training.own_steps import Optimizers, unused_steps
from penstock.training.schedules import of_each_group, warmup_steps, with_warmup

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

    def trained(self, begins: bool = True) -> nn.Module:
        """A new model to be trained, as add-ons prepare it.

        Args:
            begins: whether a run begins with its weights.
        """
        model, trainer = self.model(), self.config.trainer
        if self.config.distributed.strategy == "fsdp" and trainer.ema is not None:
            reason = "averages whole weights, and distributed=fsdp has parts; set it to null"
            raise ConfigError(Problem("trainer.ema", reason))
        if self.config.distributed.strategy == "fsdp" and trainer.precision == "fp16":
            reason = (
                "fp16 scales the loss, which distributed=fsdp cannot; set trainer.precision=bf16"
            )
            raise ConfigError(Problem("trainer.precision", reason))
        if any([*trainer.warm_start.values(), *trainer.freeze.values()]) or trainer.recompute:
            from penstock.addons.finetuning import fitting

            fitting.prepared(self.config, model, begins)
        return model

    def objective(self) -> Objective:
        """The objective with its metrics; one of a person's own, adapted."""
        node = self.config.objective
        metrics = node.get("metrics")
        if isinstance(metrics, Mapping) and "_target_" not in metrics:  # null leaves one out
            kept = {name: metric for name, metric in metrics.items() if metric is not None}
            node = {**node, "metrics": kept}
        made = self.data.make_with_facts("objective", node, nested=True)
        if unused := unused_steps(targets.resolve(self.config.model["_target_"], "model"), made):
            say(unused)
        return adapted(made)

    def optimizer(self, model: torch.nn.Module, total_steps: int = 0) -> Optimizer:
        """The optimizer of the model's weights; or several, each of a part that it is named for.

        Args:
            total_steps: how often its schedule will be stepped, as for `scheduler`.
        """
        node = self.config.optimizer
        if "_target_" in node:
            return self._optimizer("optimizer", model, model, total_steps)
        parts = dict(model.named_children())
        if unknown := node.keys() - parts.keys():
            name, known = min(unknown), ", ".join(parts) or "no parts"
            reason = f"is no part of {type(model).__name__}, which has {known}"
            raise ConfigError(Problem(f"optimizer.{name}", reason))
        return Optimizers(
            {
                name: self._optimizer(f"optimizer.{name}", parts[name], model, total_steps)
                for name in node
            }
        )

    def scheduler(self, optimizer: Optimizer, total_steps: int) -> LRScheduler | None:
        """The schedule with its warm-up, or None.

        Args:
            total_steps: how often it will be stepped: optimizer steps of the whole run, or its
                epochs where `schedule.interval` is epoch.
        """
        node = self.config.scheduler
        if node is None:
            return None
        warm = warmup_steps(self.config.schedule.warmup, total_steps)
        rest = total_steps - warm
        plain = of_each_group(node, optimizer)
        steps = {"total_steps": rest, "T_max": rest, "total_iters": rest}
        return with_warmup(
            optimizer, warm, lambda inner: make(plain, "scheduler", {"optimizer": inner, **steps})
        )

    def _optimizer(
        self, key: str, part: nn.Module, model: nn.Module, total_steps: int
    ) -> Optimizer:
        """The optimizer of a part of the model, whose node stands at `key`."""
        node = self.config.optimizer
        node = node if key == "optimizer" else node[key.removeprefix("optimizer.")]
        params: list[Any] = [weight for weight in part.parameters() if weight.requires_grad]
        if any(self.config.trainer.freeze.values()) or self.config.trainer.groups:
            from penstock.addons.finetuning import groups

            params = groups.arranged(self.config, key, part, model, params)
        supply = {"params": params, "model": part, "total_steps": total_steps}
        made: Optimizer = make(node, key, supply)
        return made
