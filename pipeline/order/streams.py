"""Streams: read by all, worked on by one.

What can only be read forwards keeps the promise of addresses by another rule. Every executor reads
the same raw records in the same order. Batch (epoch, step) is the records at positions step x size
to (step + 1) x size - 1, and only the executor that was asked for it decodes, transforms and
collates them. Requests, shares and backends are those of map-style data.

    StreamOrder    how records are shuffled: whole shards, and within blocks of `buffer` records
    StreamPlan     addresses -> requests, without knowing how many there will be
    StreamFetch    request -> batch, or `End` (pipeline/loading/stream_fetch.py)

A dataset needs `__iter__` alone: all records, in the same order each time. It may offer more, each
of which makes it cheaper:

    decode(record) -> sample            only the owner of a record runs it
    shards(), read_shard(shard, start)  pieces in order; with `shard_lengths()` those that lie
                                        before the wanted record are never opened
    seek(record)                        an iterator over the records from that number on
    set_epoch(epoch)                    called before an epoch is read
    __len__                             lets `len(loader)` be known

`get_worker_info()` is None while records are read, so a dataset that would divide itself among
workers gives everything. Random numbers drawn while reading come from (seed, epoch), the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isgeneratorfunction
from itertools import repeat
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from pipeline.errors import ConfigError, Problem
from pipeline.order.address import Addressed
from pipeline.order.randomness import IntArray, Permutation, hash64
from pipeline.order.samplers import Tail


def is_stream(dataset: Any) -> bool:
    """Whether `dataset` (an object, a class, a function that yields) can only be read forwards."""
    if isgeneratorfunction(dataset):
        return True
    kind = dataset if isinstance(dataset, type) else type(dataset)
    return issubclass(kind, IterableDataset) or (
        hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")
    )


class StreamOrder:
    """In which order the records of an epoch come; the sampler of a stream.

    Shuffling is a buffer over raw records, cut into blocks: each block is read whole and comes out
    in a keyed order. Where the blocks begin differs from epoch to epoch. Unlike a sliding buffer, a
    block can be evaluated without the records before it.

    Args:
        seed: of the run.
        buffer: records in a block, held as raw records by every executor; 0 leaves the order.
        shuffle_shards: read the shards in another order each epoch, if the dataset has any.
        steps: batches in an epoch, for streams that never end; None goes to the end.
    """

    def __init__(
        self, seed: int, buffer: int = 0, shuffle_shards: bool = False, steps: int | None = None
    ) -> None:
        self.seed = seed
        self.buffer = buffer
        self.shuffle_shards = shuffle_shards
        self.steps = steps

    def shards(self, epoch: int, count: int) -> IntArray:
        """Numbers of the shards in the order in which `epoch` reads them: int64[count]."""
        numbers = np.arange(count, dtype=np.int64)
        if not self.shuffle_shards:
            return numbers
        return Permutation(count, hash64(self.seed, "shards", epoch))(numbers)

    def block(self, epoch: int, position: int) -> tuple[int, int]:
        """First and one past last position of the block that `position` is in."""
        if not self.buffer:
            return position, position + 1
        shift = hash64(self.seed, "blocks", epoch) % self.buffer
        number = (position + shift) // self.buffer
        return max(number * self.buffer - shift, 0), (number + 1) * self.buffer - shift

    def within(self, epoch: int, start: int, size: int) -> IntArray:
        """The order inside the block at `start`, which turned out to have `size` records."""
        return Permutation(max(size, 1), hash64(self.seed, "block", epoch, start))(np.arange(size))


@dataclass(frozen=True, slots=True)
class StreamRequest(Addressed):
    """What an executor of a stream is handed: an address, and whose share of it."""

    epoch: int
    step: int
    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """In place of a batch: the epoch has no such step. Every rank finds the same."""

    request: StreamRequest


class StreamPlan:
    """Addresses of a stream.

    Args:
        order: the sampler.
        batch_size: records in a global batch.
        tail: what becomes of the last, smaller batch.
        length: records in an epoch where the dataset says so.
        most: batches of an epoch; those after them have no address. None: all.
        again: every epoch should have the samples of the first, which a stream cannot do.

    Raises:
        ConfigError: `again` is set.
    """

    def __init__(
        self, order: StreamOrder, batch_size: int, tail: Tail = "keep", length: int | None = None,
        most: int | None = None, again: bool = False,
    ) -> None:  # fmt: skip
        if again:
            reason = (
                "needs samples by index, and a stream has none; set trainer.limit_batches.train"
            )
            raise ConfigError(Problem("trainer.overfit_batches", reason))
        limits = [one for one in (order.steps, most) if one is not None]
        self.most = min(limits, default=None)
        self.sampler = order
        self.batch_size = batch_size
        self.tail = tail
        self.length = length

    def steps(self, epoch: int) -> int | None:
        """Batches in `epoch`, or None if only reading will tell."""
        if self.length is None:
            return self.most
        size = self.batch_size
        count = self.length // size if self.tail == "drop" else -(-self.length // size)
        return count if self.most is None else min(count, self.most)

    def limit(self, epoch: int) -> int | None:
        """The step at which to stop asking; None: the end shows itself, as `End`.

        What `__len__` says is not trusted: nothing may be lost where it says too little.
        """
        return self.most

    def __len__(self) -> int:
        steps = self.steps(0)
        if steps is None:
            raise TypeError("this stream does not say how long it is; set sampler.steps")
        return steps

    def request(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> StreamRequest:
        return StreamRequest(epoch, step, rank, world)


def length_of(dataset: Any) -> int | None:
    """`len(dataset)`, or None if it doesn't say."""
    try:
        return len(dataset)
    except TypeError:
        return None


def forwards(records: Iterator[Any]) -> Iterator[Any]:
    """What is left of `records`, without ever calling `iter()` on it; 30 ns a record.

    `islice`, `for` and the like call it each time they are handed an iterator. Datasets whose
    `__iter__` begins again and returns `self` are common, and would give their first records for
    ever. An error that `records` raises does not end it.
    """
    return map(next, repeat(records))
