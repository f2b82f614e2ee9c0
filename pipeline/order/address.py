"""The address of a batch, of which everything that is in the batch is a function."""

from __future__ import annotations

from typing import NamedTuple


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
