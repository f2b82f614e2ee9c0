"""How many samples of an epoch may be left out before the run stops; under 1 us a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import DataError
from penstock.loading.bad_samples import LeftOut
from penstock.order.plan import Plan
from penstock.order.samplers import Order
from penstock.order.streams import StreamPlan

_NAMED = 5  # samples that a message names
_UNKNOWN_LENGTH = 10  # samples of a stream of unknown length that a share always allows


class Budget:
    """How many samples of an epoch may be left out; those that a quarantine names are free.

    Args:
        limit: a count, or a share of the epoch's samples as a float in (0, 1], of which at least
            one is allowed.
        split: "train" or "val".
        length: samples in an epoch, by its number; None if unknown. A share is then one of the
            samples so far, and allows ten in any case.
    """

    def __init__(self, limit: int | float, split: str, length: Callable[[int], int | None]) -> None:
        self.limit = limit
        self._length = length
        self._split = split
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._seen = 0
        self._left_out: list[LeftOut] = []
        self._count = 0

    def add(self, samples: int, left_out: Sequence[LeftOut]) -> None:
        """Count a batch of `samples`, and what was left out of it.

        Raises:
            DataError: that is too much; names some of them.
        """
        self._seen += samples
        if not left_out:
            return
        new = [one for one in left_out if not one.known]
        self._count += len(new)
        self._left_out += new[: _NAMED - len(self._left_out)]
        length = self._length(self._epoch)
        if isinstance(self.limit, int):
            allowed = self.limit
        elif length is None:
            allowed = max(_UNKNOWN_LENGTH, math.ceil(self.limit * self._seen))
        else:
            allowed = math.ceil(self.limit * length)
        if self._count > allowed:
            of = f"{self._seen} so far" if length is None else str(length)
            named = "".join(f"\n  {one}" for one in self._left_out)
            more = f"\n  and {self._count - _NAMED} more" if self._count > _NAMED else ""
            raise DataError(
                f"{self._count} bad samples in epoch {self._epoch} of the {self._split} split "
                f"({of} samples), and bad_samples.budget={self.limit} allows {allowed}:"
                f"{named}{more}\nRepair or remove them (task=check lists all that is wrong), or "
                "raise bad_samples.budget"
            )


def epoch_length(plan: Plan | StreamPlan, dataset: Any) -> Callable[[int], int | None]:
    """Samples in an epoch, by its number, as a `Budget` wants it."""
    if isinstance(plan, StreamPlan):
        return lambda epoch: plan.length
    sampler = plan.sampler
    return sampler.size if isinstance(sampler, Order) else lambda epoch: len(dataset)
