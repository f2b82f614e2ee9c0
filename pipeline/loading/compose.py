"""Transforms of a sample by name, one after the other; imports no torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import ConfigError, Problem
from penstock.loading.collate import kinds_of


class Compose:
    """Transforms by name, applied in the order of the map; None leaves a step out.

    Attributes:
        keyed: whether no step draws from a generator: each has `keyed = True`.
    """

    def __init__(self, steps: Mapping[str, Callable[[Any], object] | None]) -> None:
        self.steps = {name: step for name, step in steps.items() if step is not None}
        self.keyed = all(getattr(step, "keyed", False) for step in self.steps.values())

    def __call__(self, sample: Any) -> Any:
        for name, step in self.steps.items():
            try:
                sample = step(sample)
            except Exception as error:
                if type(step).__module__.startswith("torchvision.") and not kinds_of(sample):
                    reason = (
                        f"the step {name!r} ({type(step).__name__}) is for pictures, and a sample "
                        f"has none: {', '.join(sample)}. Choose another, e.g. transform=none"
                    )
                    raise ConfigError(Problem("transform", reason)) from error
                error.add_note(f"in the transform {name!r}")
                raise
        return sample
