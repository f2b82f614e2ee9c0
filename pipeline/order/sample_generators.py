"""A row of random numbers for each sample of a batch, from the samples' keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.order.randomness import KeyArray, as_uniform, hash64, hash64_array, hash64_rows

FloatArray = npt.NDArray[np.float64]
Size = tuple[int, ...]

_TRIES = 8  # of a rejection method at once; one is enough for 95 rows in 100 and more


class KeyedRandom:
    """Draws of one row a sample, as torch tensors [B, *size] on the CPU.

    Each call takes the next numbers of every row. Row b depends on its own key and the number of
    the call, and not on the other rows, their order or a device; so a batch is augmented alike
    however it is shared out, padded or sorted. Bounds and probabilities are numbers, or tensors [B]
    with one a row. Cost: 40 us a call of 64 rows and 15 ns a number; `beta` takes ten times that.

    Args:
        keys: uint64[B].
    """

    def __init__(self, keys: npt.ArrayLike) -> None:
        self.keys: KeyArray = np.asarray(keys, dtype=np.uint64)
        self._calls = 0

    @classmethod
    def of(cls, seed: int, epoch: int, positions: npt.ArrayLike, purpose: int | str) -> KeyedRandom:
        """The numbers of the samples at `positions` (int64[B]) of an epoch, for one purpose."""
        return cls(hash64_array(hash64(seed, "keyed", epoch, purpose), positions))

    def __len__(self) -> int:
        return len(self.keys)

    def child(self, purpose: int | str) -> KeyedRandom:
        """Other numbers for the same rows; every child of one purpose has the same."""
        return KeyedRandom(hash64_rows(self.keys, [hash64("child", purpose)])[:, 0])

    def uniform(
        self, low: float | Tensor = 0.0, high: float | Tensor = 1.0, size: Size = ()
    ) -> Tensor:
        """float64 from [low, high)."""
        draws = self._uniform(math.prod(size))
        lows, highs = self._bound(low), self._bound(high)
        return self._shaped(lows + (highs - lows) * draws, size)

    def normal(
        self, mean: float | Tensor = 0.0, std: float | Tensor = 1.0, size: Size = ()
    ) -> Tensor:
        """float64 of the normal distribution."""
        draws = _normal(self, math.prod(size))
        return self._shaped(self._bound(mean) + self._bound(std) * draws, size)

    def integers(self, low: int | Tensor, high: int | Tensor, size: Size = ()) -> Tensor:
        """int64 from [low, high); bounds of less than 2^53."""
        draws = self._uniform(math.prod(size))
        lows, highs = self._bound(low), self._bound(high)
        # A product may round up to the bound itself.
        drawn = np.minimum(np.floor(lows + (highs - lows) * draws), highs - 1)
        return self._shaped(drawn.astype(np.int64), size)

    def bernoulli(self, p: float | Tensor = 0.5, size: Size = ()) -> Tensor:
        """bool, True with probability `p`."""
        return self._shaped(self._uniform(math.prod(size)) < self._bound(p), size)

    def beta(self, a: float, b: float, size: Size = ()) -> Tensor:
        """float64 from [0, 1] of the beta distribution; `a` and `b` above 0."""
        inner = KeyedRandom(self._next())
        count = math.prod(size)
        first, second = _log_gamma(inner, a, count), _log_gamma(inner, b, count)
        # By logarithms, since with a small shape both may be too small for a float.
        with np.errstate(over="ignore"):
            return self._shaped(1 / (1 + np.exp(second - first)), size)

    def permutation(self, length: int) -> Tensor:
        """int64[B, length]: each row has 0 .. length-1 in an order of its own."""
        hashes = hash64_rows(self._next(), np.arange(length))
        return torch.from_numpy(np.argsort(hashes, axis=1, kind="stable"))

    def _next(self) -> KeyArray:
        """The keys of this call."""
        self._calls += 1
        return hash64_rows(self.keys, [self._calls])[:, 0]

    def _uniform(self, count: int) -> FloatArray:
        return as_uniform(hash64_rows(self._next(), np.arange(count)))

    def _bound(self, value: float | Tensor) -> npt.NDArray[Any]:
        if not isinstance(value, Tensor):
            return np.asarray(value)
        if value.shape != (len(self),):
            raise ValueError(f"a bound of shape {list(value.shape)}; it needs one a row, "
                             f"[{len(self)}], or to be a number")  # fmt: skip
        return value.numpy()[:, None]

    def _shaped(self, values: npt.NDArray[Any], size: Size) -> Tensor:
        return torch.from_numpy(values.reshape(len(self), *size))


def _normal(random: KeyedRandom, count: int) -> FloatArray:
    """Standard normal [B, count], by Box and Muller."""
    radius, angle = random._uniform(count), random._uniform(count)
    return np.asarray(np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle))


def _log_gamma(random: KeyedRandom, shape: float, count: int) -> FloatArray:
    """Logarithms of gamma draws [B, count].

    Marsaglia, Tsang: "A simple method for generating gamma variables", 2000; shapes below 1 are
    brought above it by a power of a uniform draw, as they propose.
    """
    boost = np.log1p(-random._uniform(count)) / shape if shape < 1 else 0.0
    d = (shape + 1 if shape < 1 else shape) - 1 / 3
    drawn = np.full((len(random), count), np.nan)
    # A row takes the first of its own tries that is accepted; further rounds don't change it.
    while np.isnan(drawn).any():
        tries = (len(random), count, _TRIES)
        normal = _normal(random, count * _TRIES).reshape(tries)
        cube = (1 + normal / math.sqrt(9 * d)) ** 3
        level = np.log1p(-random._uniform(count * _TRIES)).reshape(tries)
        log_cube = np.log(cube, where=cube > 0, out=np.full(tries, -np.inf))
        accepted = level < normal**2 / 2 + d - d * cube + d * log_cube
        first = np.argmax(accepted, axis=-1)[..., None]
        found = np.take_along_axis(accepted, first, -1)[..., 0] & np.isnan(drawn)
        drawn[found] = np.take_along_axis(log_cube, first, -1)[..., 0][found]
    return np.asarray(drawn + math.log(d) + boost)
