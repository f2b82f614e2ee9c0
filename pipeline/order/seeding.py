"""Seeding the generators that a sample's code draws from: the global ones, or those of a thread.

Seeding three generators takes 8 us, reading a row of a tensor takes 1, and most data draws nothing:
`Seeding` finds out which generators are drawn from and seeds no others. `ThreadRandomness` gives a
thread a generator of torch's to itself; `probe` and `Watch` refuse draws from what threads share.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from penstock.errors import PenstockError
from penstock.order.generator_states import States, moved, put_back, take
from penstock.order.keys import begin_sample
from penstock.order.randomness import GLOBAL, SEEDERS, Draws, GlobalDraws, scope
from penstock.torch_internals import DRAWING

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
    """The global generators, all seeded; `drawn` names those that something has drawn from."""

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
    """Finds out which generators a dataset and its transforms draw from.

    1. The first batch is seeded sample by sample, and watched.
    2. For later batches only the generators that it drew from are seeded. The states of the others
       before and after a batch tell whether they were drawn from. If so, all are put back, and the
       batch is made again with these seeded too, as for all batches from then on.

    So draws are the same as if everything were seeded for every sample. Data that draws for the
    first time after its first batch is asked for one batch twice. Code that reads a seed or a state
    (`torch.initial_seed()`) counts as code that draws.

    Cost: 6 us a batch; for each sample 1 us where it draws from torch, 2 for numpy, 5 for `random`.

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
        """The result of `make`, called with the generators to seed; it may be called again."""
        if self.names is None:
            watched = _Watched()
            with _listening():
                made = make(watched)
            watched.look()
            self.know(watched.drawn | _asked)
            return made
        if self._draws is GLOBAL:
            return make(GLOBAL)
        before = take()
        try:
            with _listening():
                made = make(self._draws)
        except Exception:
            if not self._has_missed(before):
                raise
        else:
            if not self._has_missed(before):
                return made
        with scope():  # making a batch again must not seed anything for others
            return self.run(make)  # with other numbers it may draw from yet another generator

    def _has_missed(self, before: States) -> bool:
        """Whether a batch drew from what was not seeded for it; then the states are put back."""
        names = (self.names or frozenset()).union(_asked, moved(before))
        if names == self.names:
            return False
        put_back(before)
        self.know(names)
        return True

    def know(self, names: Iterable[str]) -> None:
        """Seed these from now on."""
        self.names = frozenset(names)
        some = Some(sorted(self.names)) if self.names else UNSEEDED
        self._draws = GLOBAL if len(self.names) == len(SEEDERS) else some


# Substitutes, in place while a batch is made, notice code that asks for a seed or a state.
# Functions that others have imported by name are not noticed.


@contextmanager
def _listening() -> Iterator[None]:
    """Put the substitutes in place."""
    kept = random.getstate, np.random.get_state
    try:
        _substituted.begin()
        if kept[0] is not _SUBSTITUTES[0]:  # else within a batch of another loader
            _asked.clear()
            random.getstate, np.random.get_state = _SUBSTITUTES
        yield
    finally:
        _substituted.end()
        random.getstate, np.random.get_state = kept


def _noticed(name: str, function: Callable[..., T], *args: object, **kwargs: object) -> T:
    _asked.add(name)
    return function(*args, **kwargs)


class _Generator:
    """torch's default generator, as the functions of `torch.random` see it: a thread's own where it
    has one, so that `torch.manual_seed` and `torch.random.fork_rng` stay within the thread.
    """

    def __getattr__(self, name: str) -> Any:
        own = getattr(_of_thread, "generator", None)
        if own is not None:
            return getattr(own, name)
        _asked.add("torch")
        return getattr(torch.default_generator, name)


class _Substituted:
    """Has `_Generator` in place as long as anybody wants it, in whichever thread."""

    def __init__(self) -> None:
        self._lock, self._wanted, self._generator = threading.Lock(), 0, _Generator()

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            _torch_random.default_generator = self._generator

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                _torch_random.default_generator = torch.default_generator


_asked: set[str] = set()  # names of generators
_of_thread = threading.local()  # `generator`, within `ThreadRandomness`
_substituted = _Substituted()
_SUBSTITUTES = (
    partial(_noticed, "random", random.getstate),
    partial(_noticed, "numpy.random", np.random.get_state),
)

# Everything in torch that draws and takes a generator. Functions that draw and take none
# (dropout, rrelu) belong to models; `probe` refuses data code that calls them.
_DRAWING = frozenset(
    [torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli]
    + [torch.multinomial, torch.poisson, torch.binomial]
    + [*DRAWING]  # torch.distributions.Gamma, Beta ...
    + [torch.nn.init.uniform_, torch.nn.init.normal_, torch.nn.init.trunc_normal_]
    + [torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.random_, torch.Tensor.bernoulli]
    + [torch.Tensor.bernoulli_, torch.Tensor.exponential_, torch.Tensor.geometric_]
    + [torch.Tensor.cauchy_, torch.Tensor.log_normal_, torch.Tensor.multinomial]
)

# The `_like` functions take a generator only in newer versions of torch; filling an empty tensor
# is what they do inside, with the same numbers.
_FILLING: dict[object, Callable[..., torch.Tensor]] = {
    torch.rand_like: torch.Tensor.uniform_,
    torch.randn_like: torch.Tensor.normal_,
    torch.randint_like: torch.Tensor.random_,
}


class SharedGeneratorError(PenstockError):
    """Data code draws from a generator that threads share."""


def _refusal(what: str) -> SharedGeneratorError:
    return SharedGeneratorError(
        f"loader.backend: {what}, so a batch would depend on which thread runs when. Use "
        "loader.backend=process or loader.backend=main, or draw with torch.rand and the like"
    )


def held_by_parts(names: list[str]) -> SharedGeneratorError:
    """The error for generators that parts hold; `names` tell where they are."""
    where = " and in ".join(names)
    return _refusal(f"there is a generator in {where}, which threads would share")


def opened_by_parts(names: list[str]) -> SharedGeneratorError:
    """The error for open files that parts hold; `names` tell where they are."""
    return _refusal(
        f"{' and '.join(names)} is a file opened before, whose position threads would share"
    )


def _drawn_from(names: list[str]) -> SharedGeneratorError:
    drawn = " and ".join(names)
    return _refusal(
        f"the dataset or a transform draws from the global state of {drawn}, which threads share"
    )


class ThreadRandomness(TorchFunctionMode):
    """While active, torch's draws in this thread come from a generator of this thread.

    It has the engine and the seed of the global generator, so the numbers are the same, also where
    data code seeds (`torch.manual_seed`). `random` and `numpy.random` offer no such hook. Cost:
    about 1 us for every torch function that is called.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()

    def __enter__(self) -> ThreadRandomness:
        _substituted.begin()
        _of_thread.generator = self._generator
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        _of_thread.generator = None
        _substituted.end()

    def seed(self, key: int) -> None:
        begin_sample(key)
        self._generator.manual_seed(key)

    def save(self) -> torch.Tensor:
        return self._generator.get_state()

    def restore(self, states: torch.Tensor) -> None:
        self._generator.set_state(states)

    def moved(self, before: torch.Tensor) -> list[str]:
        return [] if torch.equal(self._generator.get_state(), before) else ["torch"]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLING and kwargs.get("generator") is None:
            return self._fill(_FILLING[func], *args, **kwargs)
        if func in _DRAWING and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)

    def _fill(
        self, fill: Callable[..., torch.Tensor], like: torch.Tensor, *bounds: int, **kwargs: Any
    ) -> torch.Tensor:
        bounds += tuple(kwargs.pop(name) for name in ("low", "high") if name in kwargs)
        if len(bounds) == 1:
            bounds = (0, *bounds)
        return fill(torch.empty_like(like, **kwargs), *bounds, generator=self._generator)


def probe(run: Callable[[ThreadRandomness], Any]) -> None:
    """Refuse data code that draws where threads cannot follow.

    Args:
        run: works on a sample or two in this thread, under the mode it is given.

    Raises:
        SharedGeneratorError: one of the three global generators was drawn from all the same.
    """
    before = take()
    run(ThreadRandomness())
    names = moved(before)
    if names:
        raise _drawn_from(["torch's global generator" if n == "torch" else n for n in names])


class Watch:
    """Notices draws from `random` and `numpy.random` while threads load; about 50 us a look.

    It cannot tell who drew. A training loop that draws from them while threads load looks the same,
    and should use a generator of its own.
    """

    def __init__(self) -> None:
        self._seen = self._look()

    def check(self) -> None:
        """Raise SharedGeneratorError if a global generator has moved since the watch began."""
        now = self._look()
        names = [name for name, old in self._seen.items() if now[name] != old]
        if names:
            raise _drawn_from(names)

    @staticmethod
    def _look() -> dict[str, object]:
        state: Any = np.random.get_state()
        return {
            "random": hash(random.getstate()),
            "numpy.random": (state[2:], hash(state[1].tobytes())),
        }
