"""Keyed draws inside threads, where the global generators belong to everybody.

Under worker processes a sample's key is put into the global generators. Threads share those with
each other and with the training loop, so each thread runs under a `TorchFunctionMode` (which is
thread-local) that hands torch's drawing functions a generator of its own: the same numbers, since
it is the same engine with the same seed. `random` and `numpy.random` offer no such hook, so code
that draws from them is refused under threads: `probe` finds it before the first batch, and
`Watch` notices it later on.

Cost: about 1 us for every torch function called in the thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from pipeline.errors import PenstockError
from pipeline.order.generator_states import moved, take
from pipeline.order.randomness import begin_sample
from pipeline.torch_internals import DRAWING

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
_FILLING: dict[Any, Callable[..., torch.Tensor]] = {
    torch.rand_like: torch.Tensor.uniform_,
    torch.randn_like: torch.Tensor.normal_,
    torch.randint_like: torch.Tensor.random_,
}


class SharedGeneratorError(PenstockError):
    """Data code draws from a generator that threads cannot have to themselves."""


def _refusal(names: list[str]) -> SharedGeneratorError:
    drawn = " and ".join(f"torch's {n}" if n == "global generator" else n for n in names)
    return SharedGeneratorError(
        f"loader.backend: the dataset or a transform draws from the global state of {drawn}, which "
        "threads share, so a batch would depend on who runs when. Use loader.backend=process or "
        "loader.backend=main, or draw with torch.rand and its kin instead"
    )


def held_by_parts(names: list[str]) -> SharedGeneratorError:
    """What to raise for generators that parts hold, by where they are, of which threads share."""
    return SharedGeneratorError(
        f"loader.backend: there is a generator in {' and in '.join(names)}, which threads would "
        "share, so a batch would depend on who runs when. Use loader.backend=process or "
        "loader.backend=main, or draw with torch.rand and its kin instead"
    )


class ThreadRandomness(TorchFunctionMode):
    """While active, torch's draws in this thread come from a generator of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()

    def seed(self, key: int) -> None:
        """Begin a sample: its draws depend on `key` alone."""
        begin_sample(key)
        self._generator.manual_seed(key)

    def save(self) -> torch.Tensor:
        """The state of this thread's generator."""
        return self._generator.get_state()

    def restore(self, states: torch.Tensor) -> None:
        """Put back what `save` gave."""
        self._generator.set_state(states)

    def moved(self, before: torch.Tensor) -> list[str]:
        """["torch"] if this thread's generator was drawn from since `save` gave `before`."""
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
    names = ["global generator" if name == "torch" else name for name in moved(before)]
    if names:
        raise _refusal(names)


class Watch:
    """Notices draws from `random` and `numpy.random` while threads load; about 20 us a look.

    It cannot tell who drew. A training loop that draws from them while threads load looks the same,
    and should use a generator of its own.
    """

    def __init__(self) -> None:
        self._seen = self._look()

    def check(self) -> None:
        """Raise SharedGeneratorError if a global generator has moved since the watch began."""
        names = [name for name, old in self._seen.items() if self._look()[name] != old]
        if names:
            raise _refusal(names)

    @staticmethod
    def _look() -> dict[str, Any]:
        state: Any = np.random.get_state()
        return {
            "random": hash(random.getstate()),
            "numpy.random": (state[2:], hash(state[1].tobytes())),
        }
