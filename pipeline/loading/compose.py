"""Transforms of a sample by name, one after the other; imports no torchvision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from penstock.errors import ConfigError, Problem
from penstock.loading.collate import kinds_of
from penstock.order.keys import begin_sample, hash64, key_at_hand


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


class Views(Compose):
    """The same steps, several times over one sample, as one step: `transform.views`.

    The first view keeps the names of its fields, so all that takes a sample without views takes
    one with them. Tensors and arrays of the others are added as `image_2`, `image_3` ... Each view
    has draws of its own, which follow from the sample's key; those of the first are the draws that
    there would be without views. Cost: the steps once a view, and a copy of what they start from.

    Args:
        views: how many, 1 or more.
    """

    def __init__(self, steps: Mapping[str, Callable[[Any], object] | None], views: int) -> None:
        super().__init__(steps)
        self.views = views

    def __call__(self, sample: Any) -> Any:
        key, copies = key_at_hand(), [deepcopy(sample) for _ in range(self.views - 1)]
        result = dict(super().__call__(sample))
        fields = [name for name, value in result.items() if hasattr(value, "ndim")]
        for number, copied in enumerate(copies, start=2):
            # Generators go on from the view before; what is derived from the key has another one.
            begin_sample(hash64(key, "view", number))
            view = super().__call__(copied)
            added = {f"{name}_{number}": view[name] for name in fields}
            for name in added.keys() & result.keys():
                reason = f"a sample has a field {name} already; rename it"
                raise ConfigError(Problem("transform.views", reason))
            result |= added
        begin_sample(key)
        return result


def further_views(names: Iterable[str], field: str) -> list[str]:
    """The fields that are further views of `field`, in their order: `image_2`, `image_3` ..."""
    numbers = (name.removeprefix(f"{field}_") for name in names if name.startswith(f"{field}_"))
    return [f"{field}_{n}" for n in sorted(int(text) for text in numbers if text.isdecimal())]
