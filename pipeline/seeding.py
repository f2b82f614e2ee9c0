"""Seeding the generators for each sample, as long as that makes a difference.

Seeding three generators takes 8 us, where reading a row of a tensor takes 1, and most data draws
nothing. A `Seeding` finds out instead of being told:

1. The first batch is seeded sample by sample, and watched.
2. If nothing was drawn, the next ones are made without seeding. The generators' states before and
   after a batch tell whether that stayed true; if not, they are put back, and the batch is made
   again with a key for each sample, as all are from then on.

So what is drawn is the same as if every sample had been seeded. Data that draws for the first time
after its first batch is asked for one batch twice. In the first batch, code that asks for a seed or
a state (`torch.initial_seed()`) counts as code that draws.

Cost: 5 us a batch for data that draws nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from pipeline.generator_states import States, moved, put_back, take
from pipeline.randomness import GLOBAL, Draws, GlobalDraws, begin_sample, scope

T = TypeVar("T")


class Unseeded(GlobalDraws):
    """The global generators, left alone: a sample is told its key and nothing else."""

    def seed(self, key: int) -> None:
        begin_sample(key)


UNSEEDED = Unseeded()


class _Watched(GlobalDraws):
    """The global generators, seeded and watched.

    Attributes:
        drew: whether something has drawn from them, or asked for their states.
    """

    def __init__(self) -> None:
        self.drew = False
        self._states: States | None = None

    def seed(self, key: int) -> None:
        self.look()
        super().seed(key)
        self._states = take()

    def look(self) -> None:
        if not self.drew and self._states is not None:
            self.drew = bool(moved(self._states))

    def noticed(self) -> None:
        self.drew = True


class Seeding:
    """What is known of the draws of one dataset and its transforms.

    Attributes:
        draws: whether they draw; None: not known yet.
    """

    def __init__(self) -> None:
        self.draws: bool | None = None

    def run(self, make: Callable[[Draws], T]) -> T:
        """What `make` makes with the generators that it is given; it may be called twice."""
        if self.draws is None:
            return self._first(make)
        if self.draws:
            return make(GLOBAL)
        before = take()
        try:
            made = make(UNSEEDED)
        except Exception:
            if not moved(before):
                raise
        else:
            if not moved(before):
                return made
        put_back(before)
        self.draws = True
        with scope():
            return make(GLOBAL)

    def _first(self, make: Callable[[Draws], T]) -> T:
        watched = _Watched()
        with _asking_noticed(watched.noticed):
            made = make(watched)
        watched.look()
        self.draws = watched.drew
        return made


@contextmanager
def _asking_noticed(noticed: Callable[[], None]) -> Iterator[None]:
    """Call `noticed` when somebody asks for a seed or a state of the global generators."""
    of_torch: Any = torch.random
    asked = [
        (random, "getstate", _noticing(random.getstate, noticed)),
        (np.random, "get_state", _noticing(np.random.get_state, noticed)),
        (of_torch, "default_generator", _Asked(torch.default_generator, noticed)),
    ]
    with ExitStack() as until:
        for owner, name, stand_in in asked:
            until.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in)
        yield


def _noticing(function: Callable[..., T], noticed: Callable[[], None]) -> Callable[..., T]:
    def called(*args: Any, **kwargs: Any) -> T:
        noticed()
        return function(*args, **kwargs)

    return called


class _Asked:
    """torch's default generator to those that ask it for its seed or its state."""

    def __init__(self, generator: torch.Generator, noticed: Callable[[], None]) -> None:
        self._generator, self._noticed = generator, noticed

    def __getattr__(self, name: str) -> Any:
        self._noticed()
        return getattr(self._generator, name)
