"""Which worker a request goes to, so that files and shards are read where they were read before.

Each shard has a home: the worker with the highest hash of (worker, shard) (rendezvous hashing;
Thaler and Ravishankar, 1998), so one worker more or less moves only the shards that it wins or had.
Each row of a request votes for the home of its shard. The node with the most votes gets the request
and on it the worker with the most, among those that have less than LOAD times the average to do
(Mirrokni, Thorup, Zadimoghaddam: "Consistent hashing with bounded loads", 2016).

It decides who makes a batch, never what is in it. Cost for a request of 64 rows: 20 us with 8
workers, 50 us with 64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import ConfigError
from penstock.order.plan import Request
from penstock.order.randomness import IntArray, KeyArray, hash64, hash64_each
from penstock.order.streams import StreamRequest

LOAD = (5, 4)  # a worker has at most 5/4 of the average, rounded up


class Placement:
    """Requests to workers.

    Args:
        dataset: without a `locality` (`penstock.protocols.Located`), or a stream, requests go to
            the worker with the least to do.
        nodes: the name of each worker's machine. A worker is known by it and by its number there,
            so another run on the same machines finds what this one has left in their caches.
    """

    def __init__(self, dataset: Any, nodes: Sequence[str]) -> None:
        self._locality: Callable[[IntArray], Any] | None = getattr(dataset, "locality", None)
        self._kind = type(dataset).__name__
        names = sorted(set(nodes))
        self._nodes = np.array([names.index(node) for node in nodes])
        self._keys = keys_of(nodes)

    def worker(self, request: Request | StreamRequest, loads: Sequence[int]) -> int:
        """The number of the worker to make `request`.

        Args:
            loads: requests that each worker has and has not answered.

        Raises:
            ConfigError: the dataset's `locality` fails, or gives other than a number a row.
        """
        votes = np.zeros(len(self._keys), np.int64)
        if self._locality is not None and isinstance(request, Request) and len(votes) > 1:
            shards = self._shards(request.indices[: max(request.valid, 1)])
            votes = np.bincount(homes(shards, self._keys), minlength=len(votes))
        of_nodes = np.bincount(self._nodes, weights=votes)[self._nodes]
        limit = bound(loads)
        free = [worker for worker, load in enumerate(loads) if load < limit]
        return min(free, key=lambda worker: (-of_nodes[worker], -votes[worker], loads[worker]))

    def _shards(self, rows: IntArray) -> IntArray:
        assert self._locality is not None
        try:
            numbers = np.asarray(self._locality(rows))
        except Exception as error:
            raise ConfigError(
                f"{self._kind}.locality failed: {type(error).__name__}: {error}. Repair it, or "
                "take it out: it only keeps caches warm"
            ) from error
        if numbers.dtype.kind not in "iu" or numbers.shape != rows.shape:
            raise ConfigError(
                f"{self._kind}.locality gave {numbers.dtype}{list(numbers.shape)} for {len(rows)} "
                "rows; it has to give a whole number for each of them"
            )
        return numbers.astype(np.int64)


def bound(loads: Sequence[int]) -> int:
    """The load at which a worker gets no more; at least one of `loads` is below it."""
    above, below = LOAD
    return -(-above * (sum(loads) + 1) // (below * len(loads)))


def keys_of(nodes: Sequence[str]) -> KeyArray:
    """A key for each worker, of its node and its number there: uint64[workers]."""
    seen: Counter[str] = Counter()
    keys = []
    for node in nodes:
        keys.append(hash64("locality", node, seen[node]))
        seen[node] += 1
    return np.array(keys, np.uint64)


def homes(shards: IntArray, keys: KeyArray) -> IntArray:
    """The worker of each shard, int64[n]: the one whose key and the shard's have the highest hash.

    Depends on the keys alone: with another worker, a shard stays or goes to that one.
    """
    scores = hash64_each(keys[:, None], shards[None, :])
    return scores.argmax(axis=0)
