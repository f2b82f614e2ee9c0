"""Transforms of a sample by name, one after the other; imports no torchvision."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import ConfigError, Problem


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
                if type(step).__module__.startswith("torchvision.transforms."):
                    _require_pictures(name, step, sample, error)
                error.add_note(f"in the transform {name!r}")
                raise
        return sample


def _require_pictures(name: str, step: object, sample: object, error: Exception) -> None:
    tv_tensors, pillow = sys.modules.get("torchvision.tv_tensors"), sys.modules.get("PIL.Image")
    kinds: tuple[type, ...] = (tv_tensors.TVTensor,) if tv_tensors is not None else ()
    kinds += (pillow.Image,) if pillow is not None else ()
    fields = sample if isinstance(sample, Mapping) else {}
    if not any(isinstance(value, kinds) for value in fields.values()):
        held = ", ".join(f"{field} ({type(value).__name__})" for field, value in fields.items())
        raise ConfigError(
            Problem(
                "transform",
                f"the step {name!r} ({type(step).__name__}) is for pictures, and "
                f"a sample has none: {held}. Choose another transform, e.g. transform=none",
            )
        ) from error
