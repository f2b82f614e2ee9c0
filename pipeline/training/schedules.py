"""Learning rate schedules: a linear warm-up before any of torch's, and new ones later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from pipeline.errors import ConfigError, Problem

# The first step of a warm-up is not taken at zero, where it would change nothing.
_START = 0.01


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Steps of warm-up: `warmup` is a share of all steps below 1, and a number of steps from 1.

    Raises:
        ConfigError: nothing would be left after it, or there is no step at all.
    """
    if total_steps < 1:
        raise ConfigError(
            Problem("batch", "the training split has less than one batch, and batch.tail=drop "
                    "leaves that out; set a smaller batch.size, or batch.tail=keep")
        )  # fmt: skip
    steps = round(warmup * total_steps) if warmup < 1 else int(warmup)
    if steps >= total_steps:
        raise ConfigError(
            Problem("scheduler.warmup", f"{steps} of {total_steps} steps leave none after it")
        )
    return steps


def with_warmup(
    optimizer: Optimizer, steps: int, main: Callable[[Optimizer], LRScheduler]
) -> LRScheduler:
    """`main`, preceded by `steps` steps in which the learning rate rises linearly to its value."""
    if steps == 0:
        return main(optimizer)
    rise = LinearLR(optimizer, start_factor=_START, total_iters=steps)
    return SequentialLR(optimizer, [rise, main(optimizer)], milestones=[steps])


def renewed(
    state: Mapping[str, Any], optimizer: Optimizer, scheduler: LRScheduler
) -> dict[str, Any]:
    """A checkpoint's state with a new schedule, and the learning rates that it begins with.

    Args:
        optimizer: new; its groups are those of the state.
        scheduler: of `optimizer`.
    """
    groups = zip(
        optimizer.state_dict()["param_groups"], state["optimizer"]["param_groups"], strict=True
    )
    now = [{**new, "params": old["params"]} for new, old in groups]
    return {
        **state,
        "optimizer": {**state["optimizer"], "param_groups": now},
        "scheduler": scheduler.state_dict(),
    }
