"""How many samples of an epoch may be left out before the run stops.

Cost: under 1 us a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.errors import DataError
from pipeline.loading.bad_samples import LeftOut
from pipeline.order.plan import Plan
from pipeline.order.samplers import Order
from pipeline.order.streams import StreamPlan

_NAMED = 5  # samples that a message names
_UNKNOWN_LENGTH = 10  # samples of a stream of unknown length that a share always allows


class Budget:
    """How many samples of an epoch may be left out; those that a quarantine names are free.

    Args:
        limit: a count, or a share of the epoch's samples as a float in (0, 1], of which at least
            one is allowed.
        split: "train" or "val".
        length: samples in an epoch, by its number; None where only reading will tell. A share is
            then one of the samples so far, and allows ten in any case.
    """

    def __init__(self, limit: int | float, split: str, length: Callable[[int], int | None]) -> None:
        self.limit = limit
        self._length = length
        self._split = split
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Count anew."""
        self._epoch = epoch
        self._seen = 0
        self._left_out: list[LeftOut] = []
        self._count = 0

    def add(self, samples: int, left_out: Sequence[LeftOut]) -> None:
        """Count a batch of `samples`, and what was left out of it.

        Raises:
            DataError: that is too much; names some of them and says what to do.
        """
        self._seen += samples
        if not left_out:
            return
        new = [one for one in left_out if not one.known]
        self._count += len(new)
        self._left_out += new[: _NAMED - len(self._left_out)]
        allowed, of = self._allowed()
        if self._count > allowed:
            raise DataError(self._message(allowed, of))

    def _allowed(self) -> tuple[int, str]:
        length = self._length(self._epoch)
        of = f"{self._seen} so far" if length is None else str(length)
        if isinstance(self.limit, int):
            return self.limit, of
        if length is None:
            return max(_UNKNOWN_LENGTH, math.ceil(self.limit * self._seen)), of
        return math.ceil(self.limit * length), of

    def _message(self, allowed: int, of: str) -> str:
        named = "".join(f"\n  {one}" for one in self._left_out)
        more = f"\n  and {self._count - _NAMED} more" if self._count > _NAMED else ""
        return (
            f"{self._count} bad samples in epoch {self._epoch} of the {self._split} split ({of} "
            f"samples), and bad_samples.budget={self.limit} allows {allowed}:{named}{more}\n"
            "Repair or remove them (task=check lists all that is wrong), or raise "
            "bad_samples.budget"
        )


def epoch_length(plan: Plan | StreamPlan, dataset: Any) -> Callable[[int], int | None]:
    """Samples in an epoch, by its number, as a `Budget` wants it."""
    if isinstance(plan, StreamPlan):
        return lambda epoch: plan.length
    sampler = plan.sampler
    return sampler.size if isinstance(sampler, Order) else lambda epoch: len(dataset)
