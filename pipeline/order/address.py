"""The address of a batch, of which everything in the batch is a function; and ranges of addresses.

`trainer.skip` names the half-open ranges that training leaves out:

    [[3, 1200], [3, 1210]]                        ten batches of epoch 3
    [[[3, 1200], [3, 1210]], [[4, 0], [5, 0]]]    those, and all of epoch 4

All other batches keep their addresses, and with them their samples and their augmentation.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any, NamedTuple

from penstock.files.limits import LARGEST


class Address(NamedTuple):
    """An epoch and a step of it, both from 0; addresses compare in the order of training."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"({self.epoch}, {self.step})"


class Addressed:
    """Something that belongs to one global batch, by its `epoch` and `step`."""

    __slots__ = ()
    epoch: int
    step: int

    @property
    def address(self) -> Address:
        return Address(self.epoch, self.step)


Range = tuple[Address, Address]

_FORM = "[[epoch, step], [epoch, step]], or a list of such ranges"


class Skipped:
    """Ranges of addresses, each without its end; those that touch or overlap become one.

    Attributes:
        ranges: in order.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        merged: list[Range] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                start, stop = merged[-1][0], max(stop, merged.pop()[1])
            merged.append((start, stop))
        self.ranges = tuple(merged)
        self._starts = [start for start, _ in merged]

    @classmethod
    def of(cls, value: Any) -> Skipped:
        """The ranges that a configuration or a file names; None: none.

        Raises:
            ValueError: it names something else; with the first range that is wrong.
        """
        if value is None:
            return cls()
        if not isinstance(value, list | tuple):
            raise ValueError(f"got {_shown(value)}, expected {_FORM}")
        return cls(map(_range, [value] if _is_range(value) else value))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skipped) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __or__(self, other: Skipped) -> Skipped:
        return Skipped(self.ranges + other.ranges)

    def __repr__(self) -> str:
        return f"Skipped({self})"

    def __str__(self) -> str:
        """As `of` reads it, after JSON, and as the command line takes it."""
        return json.dumps(self.ranges, separators=(",", ":"))

    def __contains__(self, address: Address) -> bool:
        return self.first(address) != address

    def first(self, address: Address) -> Address:
        """The first address from `address` on that is not left out; cost: a bisection."""
        number = bisect_right(self._starts, address) - 1
        return max(address, self.ranges[number][1]) if number >= 0 else address

    def steps(self, epoch: int, start: int, stop: int | None) -> Iterator[int]:
        """The steps of an epoch that are not left out, from `start` to before `stop`.

        Args:
            stop: None: the epoch's end is not known, and steps do not end.
        """
        pieces: list[Iterable[int]] = []
        for low, high in self._in(epoch):
            end = low if stop is None else min(low, stop)
            pieces.append(range(start, end))
            if high is None:
                return chain(*pieces)
            start = max(start, high)
        return chain(*pieces, count(start) if stop is None else range(start, stop))

    def count(self, epoch: int, start: int, stop: int) -> int:
        """How many steps of an epoch are left out, from `start` to before `stop`."""
        spans = (
            (max(low, start), stop if high is None else min(high, stop))
            for low, high in self._in(epoch)
        )
        return sum(max(high - low, 0) for low, high in spans)

    def ends_group(self, address: Address, size: int) -> bool:
        """Whether no later batch of the epoch in the same group of `size` steps is trained on."""
        epoch, step = self.first(Address(address.epoch, address.step + 1))
        return epoch != address.epoch or step // size != address.step // size

    def before(self, address: Address) -> Skipped:
        """The batches before `address`."""
        return Skipped(
            (start, min(stop, address)) for start, stop in self.ranges if start < address
        )

    def starting(self, first: Address, last: Address) -> list[Range]:
        """The ranges that start from `first` on and before `last`."""
        return [span for span in self.ranges if first <= span[0] < last]

    def _in(self, epoch: int) -> Iterator[tuple[int, int | None]]:
        """First and one past last step of each range in an epoch; None: to its end."""
        for start, stop in self.ranges:
            if start.epoch <= epoch <= stop.epoch and stop != (epoch, 0):
                low = start.step if start.epoch == epoch else 0
                yield low, stop.step if stop.epoch == epoch else None


def _is_range(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether it is rather one range than a list of them."""
    depth, inner = 0, value
    while isinstance(inner, list | tuple) and len(inner):
        inner, depth = inner[0], depth + 1
    return depth == 2


def _range(value: object) -> Range:
    ends = value if isinstance(value, list | tuple) else ()
    if len(ends) != 2 or not all(isinstance(end, list | tuple) and len(end) == 2 for end in ends):
        raise ValueError(f"{_shown(value)} is not a range of addresses; expected {_FORM}")
    for number in chain(*ends):
        if type(number) is not int or not 0 <= number <= LARGEST:
            raise ValueError(
                f"{_shown(value)} has {_shown(number)}, and epochs and steps are "
                "whole numbers from 0 to 2^63 - 1"
            )
    start, stop = Address(*ends[0]), Address(*ends[1])
    if start >= stop:
        raise ValueError(
            f"{_shown(value)} ends before or where it starts, so it leaves out "
            "nothing; its end is the first address after it"
        )
    return start, stop


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
