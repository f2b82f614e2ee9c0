"""The addresses of a run: which samples batch (epoch, step) has, and which rank gets which of them.

The global batch is formed from the sampler alone, then dealt out: in contiguous shares, or by what
its rows cost. So every sampler works for any number of ranks, and all ranks know the number of
steps in advance.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isgeneratorfunction
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Index, Seed
from penstock.order.address import NONE, Addressed, Skipped
from penstock.order.keys import FloatArray, IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.samplers import BatchStrategy, Order, Tail

# What rows cost: float[n], finite and not negative, of rows int64[n] and their `Request.parts`.
Costs = Callable[[IntArray, IntArray | None], FloatArray]


@dataclass(frozen=True, slots=True)
class Request(Addressed):
    """One rank's share of a global batch, as executors receive it.

    Attributes:
        positions: places in the epoch's global order, int64[n]; with the seed and the epoch they
            are the samples' only source of randomness.
        indices: rows of the dataset, int64[n].
        valid: rows from this one on are padding: copies of earlier rows that are not counted.
        total: rows of the whole global batch, padding included; None: this is all of it.
        parts: where rows stand in blocks (`SequencePacking`), int64[n, 4]: the first token, one
            past the last, the tokens of the whole row (-1: unknown, as for one that stands in for
            another), and the block, ascending. None: rows are no parts of blocks.
    """

    positions: IntArray
    indices: IntArray
    valid: int
    total: int | None = None
    parts: IntArray | None = None

    def __len__(self) -> int:
        return len(self.indices)


def share_of(
    count: int, size: int, rank: int, world: int, together: int = 1
) -> tuple[IntArray, int]:
    """Which rows of a global batch `rank` gets, cut contiguously; and how many are no padding.

    Args:
        count: rows of the batch, at least 1.
        size: rows to pad it to first, with copies of its own rows; at least `count`.
        together: rows are shared out in groups of this many; the last group may be smaller.
    """
    groups = -(-size // together)
    # Each rank ends where the next one begins, so that all groups are covered once.
    start, stop = (min(groups * number // world * together, size) for number in (rank, rank + 1))
    valid = min(max(count - start, 0), stop - start)
    if start == stop:  # more ranks than groups: one without rows would leave the others waiting
        start, stop = 0, 1
    return np.arange(start, stop, dtype=np.int64) % count, valid


def deal(
    batch: Request,
    size: int,
    rank: int,
    world: int,
    together: int = 1,
    costs: FloatArray | None = None,
) -> Request:
    """The share of `rank` in a global batch that has no padding yet.

    Args:
        size, together: as for `share_of`. Blocks stay whole, and are not padded.
        costs: of its rows. Groups or blocks are dealt out by cost then, in their order within a
            rank; None: contiguously.
    """
    count, parts = len(batch), batch.parts
    size = size if parts is None else count
    groups = np.arange(size, dtype=np.int64) // together if parts is None else parts[:, 3]
    # A copy that pads costs as much as its row.
    loads = None if costs is None else np.bincount(groups, costs[np.arange(size) % count])
    ranks = contiguous(groups[-1] + 1, world) if loads is None else least_loaded(loads, world)
    mine = np.flatnonzero(ranks[groups] == rank)  # ascending, so that padding comes last
    valid = int(np.searchsorted(mine, count))
    mine = mine % count if len(mine) else np.zeros(1, np.int64)
    return Request(
        batch.epoch,
        batch.step,
        batch.positions[mine],
        batch.indices[mine],
        valid,
        size,
        None if parts is None else parts[mine],
    )


def contiguous(count: int, ranks: int) -> IntArray:
    """The rank of each of `count` groups that are cut into as equal shares as there can be."""
    return ((np.arange(count, dtype=np.int64) + 1) * ranks - 1) // max(count, 1)


def least_loaded(costs: npt.ArrayLike, ranks: int) -> IntArray:
    """The rank of each group so that none has much more work than the others: int64[n].

    Longest processing time first (Graham: "Bounds on multiprocessing timing anomalies", 1969): in
    descending order of cost, each to the rank that has least so far. The largest rank is at most
    4/3 of the best that could be; with 16 rows a rank or more, usually 1.01 of the mean. The
    differencing method of Karmarkar and Karp came no closer on lengths of text, and took ten times
    as long. Cost: 0.5 us a group.

    Args:
        costs: float[n], finite and not negative. Of equal ones the earlier is dealt first, so
            every rank finds the same. No rank is without rows if there are enough.
    """
    values = np.asarray(costs, np.float64)
    chosen = np.empty(len(values), np.int64)
    # (cost, groups, rank): of equal cost the rank with fewer groups is next, or rows that cost
    # nothing would all go to the first.
    loads = [(0.0, 0, rank) for rank in range(ranks)]
    for group in np.argsort(-values, kind="stable").tolist():
        load, count, rank = loads[0]
        chosen[group] = rank
        heapq.heapreplace(loads, (load + float(values[group]), count + 1, rank))
    return chosen


@dataclass(eq=False)
class Plan:
    """Addresses to requests.

    Attributes:
        sampler: an order, cut into batches here, or a strategy that forms its own.
        batch_size: rows in a global batch.
        tail: for an order's last, smaller batch: "keep" it, "drop" it, or "pad" it to full size
            with copies of its own rows, marked as copies.
        together: rows of a global batch that stay on one rank; 2 keeps the pairs of mixing.
        most: batches in an epoch; None: all that the sampler gives.
        again: every epoch has the samples of epoch 0 in its order, but its own augmentation.
        skipped: addresses that training leaves out; they stay addresses, so `steps` counts them.
        costs: of rows, by which global batches are dealt to ranks; None: contiguously.
    """

    sampler: Order | BatchStrategy
    batch_size: int
    tail: Tail = "keep"
    together: int = 1
    most: int | None = None
    again: bool = False
    skipped: Skipped = NONE
    costs: Costs | None = None

    def steps(self, epoch: int) -> int:
        """Number of global batches in `epoch`, the same on every rank."""
        # A strategy counts batches, an order rows.
        size = 1 if isinstance(self.sampler, BatchStrategy) else self.batch_size
        up = 0 if self.tail == "drop" else size - 1
        steps = (self.sampler.size(0 if self.again else epoch) + up) // size
        return steps if self.most is None else min(steps, self.most)

    def limit(self, epoch: int) -> int | None:
        """The step at which to stop asking: `steps`. See `StreamPlan.limit`."""
        return self.steps(epoch)

    def __len__(self) -> int:
        return self.steps(0)

    def request(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> Request:
        """The share of `rank` in batch (epoch, step).

        A rank whose share is empty gets one row of the batch as padding, so that it takes part
        in every step. An address outside the epoch is an IndexError. Of an order only the rank's
        own rows are evaluated, so that many ranks cost no more than one; with `costs` each rank
        evaluates the whole global batch and deals it, at 0.5 us a row.
        """
        if not 0 <= step < self.steps(epoch):
            raise IndexError(f"epoch {epoch} has steps 0 to {self.steps(epoch) - 1}, not {step}")
        of, parts = 0 if self.again else epoch, None
        costs = self.costs if world > 1 else None  # a single rank has all rows anyhow
        if isinstance(self.sampler, BatchStrategy):
            positions, indices = self.sampler.batch(of, step)
            parts = self.sampler.parts(of, step)
        else:
            first = step * self.batch_size
            count = min(self.batch_size, self.sampler.size(of) - first)
            if costs is None:
                size = self._padded(count)
                mine, valid = share_of(count, size, rank, world, self.together)
                low, high = int(mine.min()), int(mine.max()) + 1  # all of it that is not padded
                indices = self.sampler.indices(of, first + low, first + high)[mine - low]
                return Request(epoch, step, first + mine, indices, valid, size)
            positions = np.arange(first, first + count, dtype=np.int64)
            indices = self.sampler.indices(of, first, first + count)
        batch = Request(epoch, step, positions, indices, len(indices), parts=parts)
        loads = None if costs is None else costs(indices, parts)
        return deal(batch, self._padded(len(indices)), rank, world, self.together, loads)

    def rows(self, indices: IntArray) -> Request:
        """Those rows in one batch, at the positions that validation, which reads in order, gives
        them; packed rows each begin a block of their own."""
        packed = getattr(self.sampler, "beginnings", lambda count: None)
        return Request(0, 0, indices, indices, len(indices), parts=packed(len(indices)))

    def _padded(self, count: int) -> int:
        return max(count, self.batch_size) if self.tail == "pad" else count


def not_empty(plan: Plan, rows: int, sampler: str) -> Plan:
    """`plan`; raises ConfigError if its first epoch has no batch.

    Args:
        rows: of the dataset.
        sampler: its name, for the message.
    """
    if plan.steps(0):
        return plan
    forms = isinstance(plan.sampler, BatchStrategy)
    samples = rows if forms else plan.sampler.size(0)
    if plan.tail == "drop" and samples:
        reason = (
            f"{plan.batch_size} is more than {sampler} can fill with the {samples} samples of an "
            f"epoch, and batch.tail=drop leaves out what is less; set batch.size={samples} or "
            "less, or batch.tail=keep"
        )
        raise ConfigError(Problem("batch.size", reason))
    raise ConfigError(
        Problem(
            "sampler",
            f"{sampler} {'forms no batch of' if forms else 'gives none of'} the dataset's "
            f"{rows} rows",
        )
    )


def is_stream(dataset: object) -> bool:
    """Whether `dataset` (an object, a class, a function that yields) can only be read forwards."""
    # Of the class, as Python's own calls: an instance may hand on the attributes of another object.
    kind = dataset if isinstance(dataset, type) else type(dataset)
    iterates = hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")
    return iterates or issubclass(kind, IterableDataset) or isgeneratorfunction(dataset)


@dataclass(eq=False)
class Yielded(IterableDataset[Any]):
    """The samples that a function's iterators give; each epoch calls it again."""

    function: Callable[[], Iterator[object]]

    def __iter__(self) -> Iterator[object]:
        return self.function()


@dataclass(eq=False)
class StreamOrder:
    """The order of a stream's records in an epoch; the sampler of a stream.

    Records are shuffled within blocks, each read whole and put into a keyed order. Blocks begin at
    other records in each epoch. A block needs no records before it, as a sliding buffer would.

    Attributes:
        seed: of the run.
        buffer: records in a block, held as raw records by every executor; 0 leaves the order.
        shuffle_shards: read the shards in another order each epoch, if the dataset has any.
        steps: batches in an epoch, for streams that never end; None goes to the end.
    """

    seed: Seed
    buffer: Index = 0
    shuffle_shards: bool = False
    steps: Count | None = None

    def shards(self, epoch: int, count: int) -> IntArray:
        """Numbers of the shards in the order in which `epoch` reads them: int64[count]."""
        numbers, key = np.arange(count, dtype=np.int64), hash64(self.seed, "shards", epoch)
        return Permutation(count, key)(numbers) if self.shuffle_shards else numbers

    def block(self, epoch: int, position: int) -> tuple[int, int]:
        """First and one past last position of the block that `position` is in."""
        size = max(self.buffer, 1)
        # Without it, the same records would be in one block in every epoch. The first block is cut.
        shift = hash64(self.seed, "blocks", epoch) % size
        number = (position + shift) // size
        return max(number * size - shift, 0), (number + 1) * size - shift

    def within(self, epoch: int, start: int, size: int, first: int, stop: int) -> IntArray:
        """What stands at `first` .. `stop` - 1 of the block at `start`, which has `size` records:
        numbers in the block, int64, none beyond its end."""
        slots = np.arange(first, min(stop, size))
        return Permutation(max(size, 1), hash64(self.seed, "block", epoch, start))(slots)


@dataclass(frozen=True, slots=True)
class StreamRequest(Addressed):
    """An address, and the rank whose share of it is wanted."""

    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class End:
    """Stands for a batch: the epoch has no such step. Every rank finds the same."""

    request: Addressed


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


@dataclass(eq=False)
class StreamPlan:
    """Addresses of a stream.

    Attributes:
        sampler: the order of its records.
        batch_size: records in a global batch.
        tail: for the last, smaller batch.
        together: rows of a batch that stay on one rank.
        length: records in an epoch, where the dataset has a length.
        most: batches in an epoch, also by the order's own `steps`; None: all.
        again: every epoch should have the samples of the first, which a stream cannot do.
        skipped: addresses that training leaves out: their records are read and not decoded.

    Raises:
        ConfigError: `again` is set.
    """

    sampler: StreamOrder
    batch_size: int
    tail: Tail = "keep"
    together: int = 1
    length: int | None = None
    most: int | None = None
    again: bool = False
    skipped: Skipped = NONE

    def __post_init__(self) -> None:
        if self.again:
            raise ConfigError(
                Problem(
                    "trainer.overfit_batches",
                    "needs samples by index, and a stream has none; set "
                    "trainer.limit_batches.train",
                )
            )
        self.most = _least(self.sampler.steps, self.most)

    def steps(self, epoch: int) -> int | None:
        """Batches in `epoch`; None if unknown until they are read."""
        up = 0 if self.tail == "drop" else self.batch_size - 1
        count = None if self.length is None else (self.length + up) // self.batch_size
        return _least(count, self.most)

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


def length_of(dataset: Any) -> int | None:
    """`len(dataset)`, or None if it has no length.

    Raises:
        DataError: it is negative, or 2^63 and more.
    """
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # as classes say that they have none
        return None
    except (ValueError, OverflowError) as error:
        raise DataError(f"{type(dataset).__name__}.__len__: {error}") from error


def forwards(records: Iterator[Any]) -> Iterator[Any]:
    """The rest of `records`, without calling `iter()` on it, as `for` and `islice` do; 30 ns each.

    Datasets whose `__iter__` starts over and returns `self` are common, and would give their first
    records for ever. An error that `records` raises does not end the iteration.
    """
    return map(next, repeat(records))
