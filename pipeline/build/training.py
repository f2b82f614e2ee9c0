"""Configuration to training: model, objective, optimizer, scheduler.

The build supplies arguments that a callable takes by name and a configuration leaves out: facts of
the dataset, `params`, `total_steps`.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from penstock.build.data import DataParts
from penstock.config.schema import Config
from penstock.config.targets import make
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.order.keys import hash64
from penstock.order.seeding import scope, seed_global
from penstock.training.adapter import Objective
from penstock.training.step import Optimizers, warmup_steps, with_warmup


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

    def model(self) -> nn.Module:
        """A new model on the CPU; its weights follow from the seed."""
        with scope():
            # A purpose of its own: more draws by the data change no weight.
            seed_global(hash64(self.config.seed, "weights"))
            return self.data.make_with_facts("model", self.config.model, nested=False)

    def trained(self, begins: bool = True) -> nn.Module:
        """A new model to be trained, as trainer.warm_start and freeze prepare it.

        Args:
            begins: whether a run begins with its weights.
        """
        model, trainer = self.model(), self.config.trainer
        half = trainer.precision == "fp16"
        if self.config.distributed.strategy == "fsdp" and (half or trainer.ema is not None):
            raise ConfigError(
                Problem(
                    "trainer.precision" if half else "trainer.ema",
                    "distributed=fsdp has parts of weights, fp16 scales the loss by all of them, "
                    "and an average is of whole ones; set trainer.precision=bf16, trainer.ema=null",
                )
            )
        if any([*trainer.warm_start.values(), *trainer.freeze.values()]):
            from penstock.training import finetuning

            # Imported late: most runs train all weights from scratch.
            finetuning.prepare(self.config, model, begins)
        return model

    def objective(self) -> Objective:
        """The objective with its metrics."""
        return Objective(self.data.make_with_facts("objective", self.config.objective, nested=True))

    def optimizer(self, model: nn.Module, total_steps: int = 0) -> Optimizer:
        """The optimizer of the model's weights; or several, each for the part of its name.

        Args:
            total_steps: how often its schedule will be stepped, as for `scheduler`.
        """
        nodes, parts = self.config.optimizer, dict(model.named_children())
        if "_target_" in nodes:
            nodes, parts = {"": nodes}, {"": model}
        made = {}
        for name, node in nodes.items():
            key = f"optimizer.{name}".rstrip(".")
            if name not in parts:
                raise ConfigError(
                    Problem(
                        key,
                        f"is no part of {type(model).__name__}, which has "
                        f"{', '.join(parts) or 'no parts'}",
                    )
                )
            # Frozen weights without gradients would still decay under AdamW.
            params = [weight for weight in parts[name].parameters() if weight.requires_grad]
            if any(self.config.trainer.freeze.values()) or self.config.trainer.groups:
                from penstock.training import finetuning

                params = finetuning.arranged(self.config, key, parts[name], model)
            made[name] = make(
                node, key, {"params": params, "model": parts[name], "total_steps": total_steps}
            )
        return made.get("") or Optimizers(made)

    def scheduler(self, optimizer: Optimizer, total_steps: int) -> LRScheduler | None:
        """The schedule with its warm-up, or None.

        Args:
            total_steps: how often it will be stepped: optimizer steps of the whole run, or its
                epochs where `schedule.interval` is epoch.
        """
        node = self.config.scheduler
        if node is None:
            return None
        # The scheduler begins after the warm-up and gets the number of steps after it, under
        # torch's three names.
        warm = warmup_steps(self.config.schedule.warmup, total_steps)
        supply = dict.fromkeys(("total_steps", "T_max", "total_iters"), total_steps - warm)
        base, rates = optimizer.defaults.get("lr"), [each["lr"] for each in optimizer.param_groups]
        is_scaled = base and {*rates} != {base}
        # A rate of the schedule is that of `optimizer.lr`; groups have as many times of it.
        own = {
            name: [value * rate / base for rate in rates]
            if name in ("max_lr", "base_lr") and isinstance(value, int | float) and is_scaled
            else value
            for name, value in node.items()
        }
        return with_warmup(
            optimizer, warm, lambda inner: make(own, "scheduler", {"optimizer": inner, **supply})
        )
