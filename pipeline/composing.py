"""Transforms of a sample by name, one after the other; imports no torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Compose:
    """Transforms by name, applied in the order of the map; None leaves a step out.

    Attributes:
        keyed: whether no step draws from a generator: each says of itself that it is `keyed`.
    """

    def __init__(self, steps: Mapping[str, Callable[[Any], Any] | None]) -> None:
        self.steps = {name: step for name, step in steps.items() if step is not None}
        self.keyed = all(getattr(step, "keyed", False) for step in self.steps.values())

    def __call__(self, sample: Any) -> Any:
        for name, step in self.steps.items():
            try:
                sample = step(sample)
            except Exception as error:
                error.add_note(f"in the transform {name!r}")
                raise
        return sample
