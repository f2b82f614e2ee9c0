"""The base class of wrappers of a split's data, which add-ons name in `AddOn.wrapper`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.build.data import Split
    from penstock.order.plan import Costs


class SplitWrapper:
    """Made once for each split; every method leaves things as they are unless it is overridden.

    A module that has one imports what it works with in its methods, so that a run which does not
    ask for it does not pay for it.

    Attributes:
        split: whose data it is; its `config` says what is asked for.
        left_out: how many rows of the dataset the wrapper leaves out, by why; for the manifest.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self.left_out: dict[str, int] = {}

    def opened(self) -> Any:
        """A dataset that is read instead of the configured one; None: that one is built."""
        return None

    def wrapped(self, dataset: object) -> object:
        """The dataset that samplers, workers and reports see, given the one that is read."""
        return dataset

    def node(self, key: str, node: Mapping[str, Any], supply: dict[str, Any]) -> Mapping[str, Any]:
        """The node of a dataset, a step or the sampler, before it is built.

        Args:
            key: its full key; "dataset...", "transform..." or "sampler".
            supply: arguments for what is built, by name; the wrapper may add some.
        """
        return node

    def costs(self) -> Costs | None:
        """The costs of rows, where `batch.balance` deals them to ranks by it."""
        return None

    def recorded(self) -> dict[str, str]:
        """Entries of the split's fingerprint: what batches depend on besides the configuration."""
        return {}
