"""Seeding those generators for each sample that its code draws from, and no others.

Seeding three generators takes 8 us, where reading a row of a tensor takes 1; most data draws
nothing, and most of the rest draws from one generator. A `Seeding` finds out instead of being told:

1. The first batch is seeded sample by sample, and watched: which generators does it draw from?
2. In the next ones only those are seeded. The other generators' states before and after a batch
   tell whether they are still left alone. If not, all are put back, and the batch is made again
   with these seeded too, as in all batches from then on.

So what is drawn is the same as if everything had been seeded for every sample. Data that draws for
the first time after its first batch is asked for one batch twice. Code that asks for a seed or a
state (`torch.initial_seed()`) counts as code that draws.

Cost: 6 us a batch; for each sample 1 us where it draws from torch, 2 for numpy, 5 for `random`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from pipeline.order.generator_states import States, moved, put_back, take
from pipeline.order.randomness import GLOBAL, SEEDERS, Draws, GlobalDraws, begin_sample, scope

T = TypeVar("T")
_torch_random: Any = torch.random


class Some(GlobalDraws):
    """The global generators, of which only those with the given names are seeded."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._seeders = [SEEDERS[name] for name in names]

    def seed(self, key: int) -> None:
        begin_sample(key)
        for seed in self._seeders:
            seed(key)


UNSEEDED = Some()


class _Watched(GlobalDraws):
    """The global generators, all seeded and watched.

    Attributes:
        drawn: the names of those that something has drawn from.
    """

    def __init__(self) -> None:
        self.drawn: set[str] = set()
        self._states: States | None = None

    def seed(self, key: int) -> None:
        self.look()
        super().seed(key)
        self._states = take()

    def look(self) -> None:
        if self._states is not None and len(self.drawn) < len(SEEDERS):
            self.drawn.update(moved(self._states))


class Seeding:
    """What is known of the draws of one dataset and its transforms.

    Attributes:
        names: of the generators that they draw from; None: not known yet.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        self._draws: Draws = GLOBAL

    @property
    def draws(self) -> bool | None:
        """Whether anything is drawn; None: not known yet."""
        return None if self.names is None else bool(self.names)

    def run(self, make: Callable[[Draws], T]) -> T:
        """What `make` makes with the generators that it is given; it may be called again."""
        if self.names is None:
            return self._first(make)
        made = self._try(make)
        if not made:
            with scope():  # a batch that is made again shall seed nothing for others
                while not made:  # with other numbers it may draw from yet another generator
                    made = self._try(make)
        return made[0]

    def _try(self, make: Callable[[Draws], T]) -> tuple[T] | tuple[()]:
        """What `make` makes; nothing where it draws from what was not seeded for it."""
        if self._draws is GLOBAL:
            return (make(GLOBAL),)
        before, kept = take(), _listen()
        try:
            made = make(self._draws)
        except Exception:
            if self._learns(before):
                return ()
            raise
        finally:
            _put(kept)
        return () if self._learns(before) else (made,)

    def _learns(self, before: States) -> bool:
        names = (self.names or frozenset()).union(_asked, moved(before))
        if names == self.names:
            return False
        put_back(before)
        self.know(names)
        return True

    def _first(self, make: Callable[[Draws], T]) -> T:
        watched, kept = _Watched(), _listen()
        try:
            made = make(watched)
        finally:
            _put(kept)
        watched.look()
        self.know(watched.drawn | _asked)
        return made

    def know(self, names: Iterable[str]) -> None:
        """Seed these from now on."""
        self.names = frozenset(names)
        some = Some(sorted(self.names)) if self.names else UNSEEDED
        self._draws = GLOBAL if len(self.names) == len(SEEDERS) else some


# Who asks for a seed or a state is noticed by substitutes, in place while a batch is made.
# Functions that others have imported by name are not heard.


def _listen() -> tuple[Any, ...]:
    """Put the substitutes in place; what stood there."""
    kept = random.getstate, np.random.get_state, _torch_random.default_generator
    if kept[0] is not _STAND_INS[0]:  # else within a batch of another loader
        _asked.clear()
        _put(_STAND_INS)
    return kept


def _put(those: tuple[Any, ...]) -> None:
    random.getstate, np.random.get_state, _torch_random.default_generator = those


def _heard(name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    _asked.add(name)
    return function(*args, **kwargs)


class _Generator:
    """torch's default generator, as its functions in `torch.random` ask it."""

    def __getattr__(self, name: str) -> Any:
        _asked.add("torch")
        return getattr(torch.default_generator, name)


_asked: set[str] = set()  # names of generators
_STAND_INS = (
    partial(_heard, "random", random.getstate),
    partial(_heard, "numpy.random", np.random.get_state), _Generator(),
)  # fmt: skip
