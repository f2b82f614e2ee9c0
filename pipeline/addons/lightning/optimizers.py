"""The optimizers and schedules of a module's `configure_optimizers`, as training uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from penstock.addons.lightning.trainer import trainer_of
from penstock.errors import ConfigError, Problem
from penstock.training.own_steps import Optimizers

_FORMS = (
    "configure_optimizers has to give an optimizer, a list of them, a list of optimizers and one "
    "of schedulers, or mappings with optimizer and lr_scheduler"
)


class ConfiguredOptimizers(Optimizers):
    """The optimizers of a module, numbered from "0" on.

    Args:
        total_steps: moves of the schedule in the run: `trainer.estimated_stepping_batches`.

    Attributes:
        schedules: of the optimizers, each with "step" or "epoch".

    Raises:
        ConfigError: `configure_optimizers` gives something else, or several optimizers to a
            module with automatic optimization.
    """

    def __init__(self, model: nn.Module, total_steps: int = 0) -> None:
        trainer = trainer_of(model)
        trainer.estimated_stepping_batches = total_steps
        optimizers, schedules = _configured(model.configure_optimizers())  # type: ignore[operator]
        if len(optimizers) > 1 and getattr(model, "automatic_optimization", True):
            reason = (
                f"{type(model).__name__} has {len(optimizers)} optimizers; set "
                "self.automatic_optimization = False and step with them in training_step"
            )
            raise ConfigError(Problem("model", reason))
        super().__init__({str(number): each for number, each in enumerate(optimizers)})
        self.schedules = schedules
        trainer.optimizers, trainer.schedules = optimizers, [each for each, _ in schedules]
        self.manual = not getattr(model, "automatic_optimization", True)


class ConfiguredSchedule(LRScheduler):
    """The schedules of a module's optimizers; in manual optimization the module moves them.

    Args:
        every: when training moves them.

    Raises:
        ConfigError: the optimizer is another one, or a schedule is moved at other times.
    """

    def __init__(self, optimizer: Optimizer, every: Literal["step", "epoch"] = "epoch") -> None:
        if not isinstance(optimizer, ConfiguredOptimizers):
            raise ConfigError(Problem("scheduler", "needs optimizer=lightning"))
        for schedule, interval in optimizer.schedules:
            if isinstance(schedule, ReduceLROnPlateau) and not optimizer.manual:
                reason = (
                    "configure_optimizers gives a ReduceLROnPlateau; set scheduler to it instead: "
                    "{_target_: torch.optim.lr_scheduler.ReduceLROnPlateau}"
                )
                raise ConfigError(Problem("scheduler", reason))
            if interval != every and not optimizer.manual:
                reason = f"is {every}, but configure_optimizers says {interval}; set it to that"
                raise ConfigError(Problem("scheduler.interval", reason))
        self.optimizer = optimizer
        self.schedules = [schedule for schedule, _ in optimizer.schedules]

    def step(self, epoch: int | None = None) -> None:
        optimizer = self.optimizer
        assert isinstance(optimizer, ConfiguredOptimizers)
        for schedule in () if optimizer.manual else self.schedules:
            # torch warns where an optimizer was not stepped; fp16 may have left it out.
            schedule.optimizer._opt_called = True
            schedule.step()

    def state_dict(self) -> dict[str, Any]:
        return {"schedules": [schedule.state_dict() for schedule in self.schedules]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for schedule, state in zip(self.schedules, state_dict["schedules"], strict=True):
            schedule.load_state_dict(state)

    def get_last_lr(self) -> list[float | Tensor]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


def _configured(given: Any) -> tuple[list[Optimizer], list[tuple[Any, str]]]:
    """Optimizers, and schedules with "step" or "epoch", of any form that Lightning takes."""
    schedules: Any = []
    if isinstance(given, (list, tuple)) and len(given) == 2 and isinstance(given[0], (list, tuple)):
        given, schedules = given
    optimizers = []
    schedules = [_schedule(each) for each in _listed(schedules)]
    for each in _listed(given):
        if isinstance(each, Mapping):
            if each.get("lr_scheduler") is not None:
                schedules.append(_schedule(each["lr_scheduler"]))
            each = each.get("optimizer")
        if not isinstance(each, Optimizer):
            reason = f"{_FORMS}; it gives {type(each).__name__}"
            raise ConfigError(Problem("model", reason))
        optimizers.append(each)
    if not optimizers:
        raise ConfigError(Problem("model", f"{_FORMS}; it gives none"))
    return optimizers, schedules


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _schedule(given: Any) -> tuple[Any, str]:
    """A schedule, and when it moves."""
    options = given if isinstance(given, Mapping) else {"scheduler": given}
    schedule, interval = options.get("scheduler"), options.get("interval", "epoch")
    if not isinstance(schedule, LRScheduler) or interval not in ("step", "epoch"):
        reason = f"{_FORMS}; a scheduler of it is a {type(schedule).__name__}, every {interval}"
        raise ConfigError(Problem("model", reason))
    if options.get("frequency", 1) != 1:
        reason = f"has a scheduler with frequency {options['frequency']}; only 1 is possible"
        raise ConfigError(Problem("model", reason))
    return schedule, interval
