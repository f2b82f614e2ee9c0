"""Transforms of a sample by name, one after the other; imports no torchvision."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.errors import ConfigError, Problem


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
                if _wants_pictures(step) and not _has_pictures(sample):
                    raise _no_pictures(name, step, sample) from error
                error.add_note(f"in the transform {name!r}")
                raise
        return sample


def _wants_pictures(step: Any) -> bool:
    return type(step).__module__.startswith("torchvision.transforms.")


def _has_pictures(sample: Any) -> bool:
    tv_tensors, pillow = (sys.modules.get(name) for name in ("torchvision.tv_tensors", "PIL.Image"))
    kinds = [module.TVTensor for module in (tv_tensors,) if module is not None]
    kinds += [module.Image for module in (pillow,) if module is not None]
    values = sample.values() if isinstance(sample, Mapping) else ()
    return any(isinstance(value, tuple(kinds)) for value in values)


def _no_pictures(name: str, step: Any, sample: Any) -> ConfigError:
    fields = sample.items() if isinstance(sample, Mapping) else ()
    held = ", ".join(f"{field} ({type(value).__name__})" for field, value in fields)
    return ConfigError(
        Problem("transform", f"the step {name!r} ({type(step).__name__}) is for pictures, and a "
                f"sample holds none: {held}. Choose another transform, e.g. transform=none")
    )  # fmt: skip
