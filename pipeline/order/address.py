"""The address of a batch, of which everything in the batch is a function; and ranges of addresses.

`trainer.skip` names the half-open ranges that training leaves out:

    [[3, 1200], [3, 1210]]                        ten batches of epoch 3
    [[[3, 1200], [3, 1210]], [[4, 0], [5, 0]]]    those, and all of epoch 4

All other batches keep their addresses, and with them their samples and their augmentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.files.limits import LARGEST


class Address(NamedTuple):
    """An epoch and a step of it, both from 0; addresses compare in the order of training."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"({self.epoch}, {self.step})"


@dataclass(frozen=True, slots=True)
class Addressed:
    """Something that belongs to one global batch, by its `epoch` and `step`."""

    epoch: int
    step: int

    @property
    def address(self) -> Address:
        return Address(self.epoch, self.step)


Range = tuple[Address, Address]


@dataclass(frozen=True)
class Skipped:
    """Ranges of addresses, each without its end, in order; those that touch or overlap are one."""

    ranges: tuple[Range, ...] = ()

    def __post_init__(self) -> None:
        # Apart from each other, so that the end of a range is an address that is not left out.
        merged: list[Range] = []
        for start, stop in sorted(self.ranges):
            if merged and start <= merged[-1][1]:
                start, stop = merged[-1][0], max(stop, merged.pop()[1])
            merged.append((start, stop))
        object.__setattr__(self, "ranges", tuple(merged))

    @classmethod
    def of(cls, value: Any) -> Skipped:
        """The ranges that a configuration or a file names; None: none.

        Raises:
            ValueError: it names something else.
        """
        try:
            # A single range may stand without the list around it.
            ranges = [value] if value and isinstance(value[0][0], int) else value or ()
            parsed = tuple((Address(*start), Address(*stop)) for start, stop in ranges)
            # Not isinstance: `true` is an int, too.
            good = all(start < stop for start, stop in parsed) and all(
                type(number) is int and 0 <= number <= LARGEST
                for start, stop in parsed
                for number in start + stop
            )
        except (TypeError, ValueError, LookupError):
            good = False
        if not good:
            raise ValueError(
                f"{str(value)[:80]} names no ranges of addresses; expected [[epoch, step], [epoch, "
                "step]] or a list of such: whole numbers from 0 to 2^63 - 1, and the end of each "
                "is the first address after it"
            )
        return cls(parsed)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: Skipped) -> Skipped:
        return Skipped(self.ranges + other.ranges)

    def __str__(self) -> str:
        """As `of` reads it, after JSON, and as the command line takes it."""
        return json.dumps(self.ranges, separators=(",", ":"))

    def __contains__(self, address: Address) -> bool:
        return self.first(address) != address

    def first(self, address: Address) -> Address:
        """The first address from `address` on that is not left out."""
        return next((stop for start, stop in self.ranges if start <= address < stop), address)

    def steps(self, epoch: int, start: int, stop: int | None) -> Iterator[int]:
        """The steps of an epoch that are not left out, from `start` to before `stop`; 1 us each.

        Args:
            stop: None: the epoch's end is not known, and steps do not end.
        """
        address = self.first(Address(epoch, start))
        while address.epoch == epoch and (stop is None or address.step < stop):
            yield address.step
            address = self.first(Address(epoch, address.step + 1))

    def count(self, epoch: int, start: int, stop: int) -> int:
        """How many steps of an epoch are left out, from `start` to before `stop`."""
        # Ranges may begin or end in other epochs.
        ends = ((max(low, (epoch, start)), min(high, (epoch, stop))) for low, high in self.ranges)
        return sum(high[1] - low[1] for low, high in ends if low < high)

    def ends_group(self, address: Address, size: int) -> bool:
        """Whether no later batch of the epoch in the same group of `size` steps is trained on."""
        epoch, step = self.first(Address(address.epoch, address.step + 1))
        return epoch != address.epoch or step // size != address.step // size

    def before(self, address: Address) -> Skipped:
        """The batches before `address`."""
        spans = ((start, min(stop, address)) for start, stop in self.ranges if start < address)
        return Skipped(tuple(spans))


NONE = Skipped()


PLACE = "(a file or folder)"  # an argument of a dataset for which the data's fingerprint stands


def differing(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """The keys under which they differ; a file or folder may have moved, or come to be since."""
    return sorted(
        key
        for key in {**first, **second}
        if first.get(key) != second.get(key) and PLACE not in (first.get(key), second.get(key))
    )
