"""The generators that code of others draws from: seeded by a sample's key, and put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from penstock.order.generator_states import States, moved, put_back, take
from penstock.order.keys import begin_sample


def seed_global(key: int) -> None:
    """Seed `random`, `numpy.random` and torch's CPU generator of this process; about 8 us.

    `torch.default_generator` is seeded directly: `torch.manual_seed` also visits the
    accelerators and costs 100 times as much.
    """
    for seed in SEEDERS.values():
        seed(key)


# By the names that `generator_states.moved` gives; 5, 2 and 1 us.
SEEDERS: dict[str, Callable[[int], Any]] = {
    "random": lambda key: random.seed(key),
    "numpy.random": lambda key: np.random.seed(key & 0xFFFFFFFF),
    "torch": lambda key: torch.default_generator.manual_seed(key),
}


class Draws(Protocol):
    """The generators that a sample's code draws from in this process or thread."""

    def seed(self, key: int) -> None:
        """Begin a sample, whose draws depend on `key` alone."""

    def save(self) -> object:
        """The generators' states."""

    def restore(self, states: Any) -> None:
        """Put back what `save` gave."""

    def moved(self, before: Any) -> list[str]:
        """Names of the generators that were drawn from since `save` gave `before`."""


class GlobalDraws:
    """The global generators of this process."""

    def seed(self, key: int) -> None:
        begin_sample(key)
        seed_global(key)

    def save(self) -> States:
        return take()

    def restore(self, states: States) -> None:
        put_back(states)

    def moved(self, before: States) -> list[str]:
        return moved(before)


GLOBAL = GlobalDraws()


@contextmanager
def scope() -> Iterator[None]:
    """Put the three global generators back on exit, whatever was seeded or drawn inside."""
    states = take()
    try:
        yield
    finally:
        put_back(states)
