"""Keyed random orders of a range, evaluated at positions instead of listed, and their inverse."""

from __future__ import annotations

from functools import lru_cache
from itertools import cycle

import numpy as np
import numpy.typing as npt

from penstock.order.keys import IntArray, KeyArray, hash64, hash64_array, mix_array


class Permutation:
    """A keyed random order of `range(length)`, evaluated at positions instead of listed.

    Short orders are a sort of hashes, so that every order is possible; longer ones are an
    alternating Feistel network on the next power of two, walked until it lands inside
    (Black, Rogaway: "Ciphers with arbitrary finite domains", 2002).

    Args:
        length: number of elements, at most 2^62.
        key: from `hash64`.

    Cost: constant memory; about 1 us an element in batches of 256. Once as many elements were asked
    for as its tables have (8 x 1024 for 10^6), 0.1 us: the values of each round's function.
    """

    SORTED_BELOW = 4096
    ROUNDS = 8  # even, so that the halves come back to their places
    TABLED = 15  # bits of a half, at most, for tables: 2 MiB

    def __init__(self, length: int, key: int) -> None:
        self.length = length
        self.key = key
        bits = max(2, (length - 1).bit_length())
        self._low_bits, self._high_bits = (bits + 1) // 2, bits // 2
        self._round_keys = [hash64(key, "feistel", number) for number in range(self.ROUNDS)]
        self._asked = 0
        self._tables: list[IntArray] = []  # of the rounds, once they are worth it

    def __len__(self) -> int:
        return self.length

    def __call__(self, positions: npt.ArrayLike) -> IntArray:
        """Elements at `positions` (int64[n], each in [0, length)): int64[n]."""
        numbers = self._inside(positions)
        if self.length < self.SORTED_BELOW:
            return _sorted_permutation(self.length, self.key)[numbers]
        return self._walk(numbers, back=False)

    def inverse(self, elements: npt.ArrayLike) -> IntArray:
        """Positions of `elements` (int64[n], each in [0, length)): int64[n]; costs as a call."""
        numbers = self._inside(elements)
        if self.length < self.SORTED_BELOW:
            return np.argsort(_sorted_permutation(self.length, self.key))[numbers].astype(np.int64)
        return self._walk(numbers, back=True)

    def _inside(self, places: npt.ArrayLike) -> IntArray:
        numbers = np.asarray(places, dtype=np.int64)
        if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= self.length):
            raise IndexError(f"a place is outside [0, {self.length})")
        return numbers

    def _walk(self, start: IntArray, back: bool) -> IntArray:
        self._asked += len(start)
        if self._low_bits <= self.TABLED and self._asked >= self.ROUNDS << self._low_bits:
            return self._walk_by_tables(start, back)
        values = self._network(start.astype(np.uint64), back)
        outside = values >= np.uint64(self.length)
        while outside.any():
            values[outside] = self._network(values[outside], back)
            outside = values >= np.uint64(self.length)
        return values.astype(np.int64)

    def _walk_by_tables(self, start: IntArray, back: bool) -> IntArray:
        """The same with each round's function looked up."""
        if not self._tables:
            widths = [self._low_bits, self._high_bits]
            self._tables = [
                (
                    mix_array(np.arange(1 << widths[number % 2], dtype=np.uint64) + np.uint64(key))
                    & np.uint64((1 << widths[1 - number % 2]) - 1)
                ).astype(np.int64)
                for number, key in enumerate(self._round_keys)
            ]
        values = self._looked_up(start, back)
        outside = values >= self.length
        while outside.any():
            values[outside] = self._looked_up(values[outside], back)
            outside = values >= self.length
        return values

    def _looked_up(self, values: IntArray, back: bool) -> IntArray:
        """`_network` by tables."""
        order = -1 if back else 1
        left, right = [values >> self._low_bits, values & ((1 << self._low_bits) - 1)][::order]
        for table in self._tables[::order]:
            left, right = right, left ^ table.take(right)
        high, low = (left, right)[::order]
        return (high << self._low_bits) | low

    def _network(self, values: KeyArray, back: bool) -> KeyArray:
        """Backwards it is the same with the halves swapped, and the rounds in reverse."""
        low_bits = np.uint64(self._low_bits)
        halves = [values >> low_bits, values & np.uint64((1 << self._low_bits) - 1)]
        order = -1 if back else 1
        left, right = halves[::order]
        widths = cycle([self._high_bits, self._low_bits][::order])  # of the left half
        for key, width in zip(self._round_keys[::order], widths, strict=False):
            mask = np.uint64((1 << width) - 1)
            left, right = right, (left ^ mix_array(right + np.uint64(key))) & mask
        high, low = (left, right)[::order]
        return (high << low_bits) | low


@lru_cache(maxsize=64)
def _sorted_permutation(length: int, key: int) -> IntArray:
    order = np.argsort(hash64_array(key, np.arange(length)), kind="stable")
    return order.astype(np.int64)
