"""Requirements of a configuration with a module's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.config.schema import Config

_OURS = "penstock.addons.lightning."


def together(config: Config, parts: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """The steps, the optimizers and the schedules of a module go together."""
    steps = str(config.objective.get("_target_", "")).startswith(_OURS)
    own = str(config.optimizer.get("_target_", "")).startswith(_OURS)
    schedule = str((config.scheduler or {}).get("_target_", "")).startswith(_OURS)
    if own and not steps:
        yield "optimizer: lightning is for objective=lightning; add that, or choose another"
    if schedule and not own:
        yield "scheduler: lightning is for optimizer=lightning; add that, or scheduler=none"
    if own and config.scheduler is not None and not schedule:
        yield (
            "scheduler: configure_optimizers has the schedules of its optimizers; set "
            "scheduler=lightning"
        )
