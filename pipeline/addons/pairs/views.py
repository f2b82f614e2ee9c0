"""Several views of a sample, which a contrastive loss compares: `transform.views`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from penstock.errors import ConfigError, Problem
from penstock.loading.compose import Compose
from penstock.order.keys import begin_sample, hash64, key_at_hand


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
