"""Orders and plans of streams: data that can only be read forwards.

Every executor reads the same raw records in the same order. Batch (epoch, step) is the records from
position step x size on, and only the executor that was asked for it decodes, transforms and
collates them (`pipeline/loading/stream_fetch.py`). `pipeline/protocols.py` says what a dataset may
offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isgeneratorfunction
from itertools import repeat
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import LARGEST, Count, Index, Seed
from penstock.order.address import Addressed
from penstock.order.permutation import Permutation
from penstock.order.randomness import IntArray, hash64
from penstock.order.samplers import Tail
from penstock.order.skipped import Skipped


def is_stream(dataset: object) -> bool:
    """Whether `dataset` (an object, a class, a function that yields) can only be read forwards."""
    if isgeneratorfunction(dataset):
        return True
    kind = dataset if isinstance(dataset, type) else type(dataset)
    return issubclass(kind, IterableDataset) or (
        hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")
    )


class Yielded(IterableDataset[Any]):
    """The samples that a function's iterators give; each epoch calls it again."""

    def __init__(self, function: Callable[[], Iterator[object]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[object]:
        return self.function()


class StreamOrder:
    """The order of a stream's records in an epoch; the sampler of a stream.

    Records are shuffled within blocks, each read whole and put into a keyed order. Blocks begin at
    other records in each epoch. A block needs no records before it, as a sliding buffer would.

    Args:
        seed: of the run.
        buffer: records in a block, held as raw records by every executor; 0 leaves the order.
        shuffle_shards: read the shards in another order each epoch, if the dataset has any.
        steps: batches in an epoch, for streams that never end; None goes to the end.
    """

    def __init__(
        self,
        seed: Seed,
        buffer: Index = 0,
        shuffle_shards: bool = False,
        steps: Count | None = None,
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
        """The order inside the block at `start`, which has `size` records: int64[size]."""
        return Permutation(max(size, 1), hash64(self.seed, "block", epoch, start))(np.arange(size))


@dataclass(frozen=True, slots=True)
class StreamRequest(Addressed):
    """An address, and the rank whose share of it is wanted.

    Attributes:
        is_tried: only some of the batch's samples are made, and nobody gets them.
    """

    epoch: int
    step: int
    rank: int = 0
    world: int = 1
    is_tried: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Stands for a batch: the epoch has no such step. Every rank finds the same."""

    request: StreamRequest


class StreamPlan:
    """Addresses of a stream.

    Args:
        order: the sampler.
        batch_size: records in a global batch.
        tail: for the last, smaller batch.
        length: records in an epoch, where the dataset has a length.
        most: batches in an epoch; None: all.
        again: every epoch should have the samples of the first, which a stream cannot do.
        skipped: addresses that training leaves out: their records are read and not decoded.

    Raises:
        ConfigError: `again` is set.
    """

    def __init__(
        self,
        order: StreamOrder,
        batch_size: int,
        tail: Tail = "keep",
        length: int | None = None,
        most: int | None = None,
        again: bool = False,
        skipped: Skipped | None = None,
    ) -> None:
        if again:
            reason = (
                "needs samples by index, and a stream has none; set trainer.limit_batches.train"
            )
            raise ConfigError(Problem("trainer.overfit_batches", reason))
        self.most = min((limit for limit in (order.steps, most) if limit is not None), default=None)
        self.sampler = order
        self.batch_size = batch_size
        self.tail = tail
        self.length = length
        self.skipped = skipped or Skipped()

    def steps(self, epoch: int) -> int | None:
        """Batches in `epoch`; None if unknown until they are read."""
        if self.length is None:
            return self.most
        size = self.batch_size
        count = self.length // size if self.tail == "drop" else -(-self.length // size)
        return count if self.most is None else min(count, self.most)

    def limit(self, epoch: int) -> int | None:
        """The step at which to stop asking; None: until an `End` comes.

        `__len__` is not used for this: records would be lost where it is too small.
        """
        return self.most

    def __len__(self) -> int:
        steps = self.steps(0)
        if steps is None:
            raise TypeError("this stream does not say how long it is; set sampler.steps")
        return steps

    def request(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> StreamRequest:
        return StreamRequest(epoch, step, rank, world)


def length_of(dataset: object) -> int | None:
    """`len(dataset)`, or None if it has no length.

    Raises:
        DataError: what `__len__` gives is no number of rows.
    """
    length = getattr(type(dataset), "__len__", None)
    try:
        rows = None if length is None else length(dataset)
    except (TypeError, NotImplementedError):  # as classes say that they have none
        return None
    if rows is None:
        return None
    if not hasattr(rows, "__index__") or not 0 <= rows <= LARGEST:
        raise DataError(
            f"{type(dataset).__name__}.__len__ gives {rows!r}; it must be a whole number below "
            "2^63, and not negative"
        )
    return int(rows)


def forwards(records: Iterator[Any]) -> Iterator[Any]:
    """The rest of `records`, without calling `iter()` on it, as `for` and `islice` do; 30 ns each.

    Datasets whose `__iter__` starts over and returns `self` are common, and would give their first
    records for ever. An error that `records` raises does not end the iteration.
    """
    return map(next, repeat(records))
