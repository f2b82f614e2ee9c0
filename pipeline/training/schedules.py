"""Learning rate schedules: a linear warm-up before any of torch's, and renewal on resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from penstock.errors import ConfigError, Problem

_START = 0.01  # of the rate, at the first step of a warm-up: a step at zero would change nothing


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Steps of warm-up: `warmup` below 1 is a share of all steps, otherwise a number of steps.

    Raises:
        ConfigError: no step remains after it, or there is no step at all.
    """
    if total_steps < 1:
        raise ConfigError(
            Problem(
                "batch",
                "the training split has less than one batch, and batch.tail=drop "
                "leaves that out; set a smaller batch.size, or batch.tail=keep",
            )
        )
    if warmup >= 1 and warmup != int(warmup):
        reason = f"{warmup} is neither a share below 1 nor a whole number"
        raise ConfigError(Problem("schedule.warmup", reason))
    steps = round(warmup * total_steps) if warmup < 1 else int(warmup)
    if steps >= total_steps:
        raise ConfigError(
            Problem("schedule.warmup", f"{steps} of {total_steps} steps leave none after it")
        )
    return steps


def with_warmup(
    optimizer: Optimizer, steps: int, main: Callable[[Optimizer], LRScheduler]
) -> LRScheduler:
    """`main`, preceded by `steps` steps in which the learning rate rises linearly to its value."""
    if steps == 0:
        return main(optimizer)
    rise, follows = LinearLR(optimizer, start_factor=_START, total_iters=steps), main(optimizer)
    if isinstance(follows, (OneCycleLR, ReduceLROnPlateau)):
        why = "warms up itself" if isinstance(follows, OneCycleLR) else "follows no step"
        reason = f"nothing can come before {type(follows).__name__}, which {why}; set it to 0"
        raise ConfigError(Problem("schedule.warmup", reason))
    return SequentialLR(optimizer, [rise, follows], milestones=[steps])


def of_each_group(node: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A schedule's arguments, with a rate for each group where the groups' rates differ.

    A rate of the node is that of `optimizer.lr`, and groups have as many times of it.
    """
    base, rates = optimizer.defaults.get("lr"), [group["lr"] for group in optimizer.param_groups]
    if not base or all(rate == base for rate in rates):
        return dict(node)
    return {
        name: [value * rate / base for rate in rates]
        if name in ("max_lr", "base_lr") and isinstance(value, int | float)
        else value
        for name, value in node.items()
    }


def renewed(
    state: Mapping[str, Any], optimizer: Optimizer, scheduler: LRScheduler
) -> dict[str, Any]:
    """A checkpoint's state with the state of a new `scheduler` and its `optimizer`'s rates."""
    before, now = state["optimizer"], optimizer.state_dict()["param_groups"]
    groups = [
        {**new, "params": old["params"]}
        for new, old in zip(now, before["param_groups"], strict=True)
    ]
    return {
        **state,
        "optimizer": {**before, "param_groups": groups},
        "scheduler": scheduler.state_dict(),
    }
