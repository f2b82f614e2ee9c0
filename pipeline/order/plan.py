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
from penstock.files.limits import LARGEST, Count, Index, Seed
from penstock.order.address import Addressed, Skipped
from penstock.order.keys import FloatArray, IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.samplers import BatchStrategy, Order, Tail

# What rows cost: float[n], finite and not negative, of rows int64[n] and their `Request.parts`.
Costs = Callable[[IntArray, IntArray | None], FloatArray]


@dataclass(frozen=True, slots=True)
class Request(Addressed):
    """One rank's share of a global batch, as executors receive it.

    Attributes:
        epoch, step: the address.
        positions: places in the epoch's global order, int64[n]; with the seed and the epoch they
            are the samples' only source of randomness.
        indices: rows of the dataset, int64[n].
        valid: rows from this one on are padding: copies of earlier rows that are not counted.
        total: rows of the whole global batch, padding included; None: this is all of it.
        parts: where rows stand in blocks (`SequencePacking`), int64[n, 4]: the first token, one
            past the last, the tokens of the whole row (-1: unknown, as for one that stands in for
            another), and the block, ascending. None: rows are no parts of blocks.
    """

    epoch: int
    step: int
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
    start, stop = (min(groups * number // world * together, size) for number in (rank, rank + 1))
    valid = min(max(count - start, 0), stop - start)
    if start == stop:
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
        costs: of its rows. They are dealt out by cost then, in their order within a rank; None:
            contiguously.
    """
    if batch.parts is not None:
        return _deal_blocks(batch, batch.parts, rank, world, costs)
    count = len(batch)
    if costs is None:
        mine, valid = share_of(count, size, rank, world, together)
    else:
        groups, grouped = _grouped(costs, None, size, together)
        mine = np.flatnonzero(least_loaded(grouped, world)[groups] == rank)
        valid = int(np.searchsorted(mine, count))
        mine = mine % count if len(mine) else np.zeros(1, np.int64)
    return Request(batch.epoch, batch.step, batch.positions[mine], batch.indices[mine], valid, size)


def _deal_blocks(
    batch: Request, parts: IntArray, rank: int, world: int, costs: FloatArray | None
) -> Request:
    blocks = parts[:, 3]
    dealt = contiguous(int(blocks[-1]) + 1, world)
    if costs is not None:
        _, grouped = _grouped(costs, parts, len(parts), 1)
        dealt = least_loaded(grouped, world)
    mine = np.flatnonzero(dealt[blocks] == rank)
    valid = len(mine)
    if not valid:
        mine = np.zeros(1, np.int64)
    return Request(
        batch.epoch,
        batch.step,
        batch.positions[mine],
        batch.indices[mine],
        valid,
        len(batch),
        parts[mine],
    )


def _grouped(
    costs: FloatArray, parts: IntArray | None, size: int, together: int
) -> tuple[IntArray, FloatArray]:
    """Which rows stay together: the number of each one's group; and what each group costs."""
    if parts is not None:
        groups = parts[:, 3]
    else:
        groups = np.arange(size, dtype=np.int64) // together
        costs = costs[np.arange(size) % len(costs)]  # padding is copies
    return groups, np.asarray(np.bincount(groups, costs), np.float64)


def not_empty(plan: Plan, rows: int, sampler: str) -> Plan:
    """`plan`; raises ConfigError if its first epoch has no batch.

    Args:
        rows: of the dataset.
        sampler: its name, for the message.
    """
    if plan.steps(0):
        return plan
    size, forms = plan.batch_size, isinstance(plan.sampler, BatchStrategy)
    rows_given = rows if forms else plan.sampler.size(0)
    if plan.tail == "drop" and rows_given:
        less = "leaves out what is less than a batch"
        way = f"set batch.size={rows_given} or less, or batch.tail=keep"
        problem = Problem(
            "batch.size",
            f"{size} is more than the {rows_given} samples of an epoch, and "
            f"batch.tail=drop {less}, so nothing is left; {way}",
        )
        if forms:
            reason = f"drop {less} of {size}, and {sampler} forms no full one of {rows} rows; {way}"
            problem = Problem("batch.tail", reason)
        raise ConfigError(problem)
    gives = "forms no batch of" if forms else "gives none of"
    raise ConfigError(Problem("sampler", f"{sampler} {gives} the dataset's {rows} rows"))


class Plan:
    """Addresses to requests.

    Args:
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

    def __init__(
        self,
        sampler: Order | BatchStrategy,
        batch_size: int,
        tail: Tail = "keep",
        together: int = 1,
        most: int | None = None,
        again: bool = False,
        skipped: Skipped | None = None,
        costs: Costs | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(Problem("batch.size", f"{batch_size} is below 1"))
        self.sampler = sampler
        self.batch_size = batch_size
        self.tail = tail
        self.together = together
        self.most = most
        self.again = again
        self.skipped = skipped or Skipped()
        self.costs = costs

    def steps(self, epoch: int) -> int:
        """Number of global batches in `epoch`, the same on every rank."""
        steps = self.sampler.size(0 if self.again else epoch)
        if not isinstance(self.sampler, BatchStrategy):
            rest = 0 if self.tail == "drop" else self.batch_size - 1
            steps = (steps + rest) // self.batch_size
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
        evaluates the whole global batch and deals it, at 1 us a row.
        """
        if not 0 <= step < self.steps(epoch):
            raise IndexError(f"epoch {epoch} has steps 0 to {self.steps(epoch) - 1}, not {step}")
        if isinstance(self.sampler, BatchStrategy) or (self.costs is not None and world > 1):
            batch = self._whole(epoch, step)
            costs = None
            if self.costs is not None and world > 1:
                costs = self.costs(batch.indices, batch.parts)
            return deal(batch, self._padded(len(batch)), rank, world, self.together, costs)
        of = 0 if self.again else epoch
        first = step * self.batch_size
        count = min(self.batch_size, self.sampler.size(of) - first)
        size = self._padded(count)
        mine, valid = share_of(count, size, rank, world, self.together)
        low, high = int(mine.min()), int(mine.max()) + 1  # all of a share that is not padded
        indices = self.sampler.indices(of, first + low, first + high)[mine - low]
        return Request(epoch, step, first + mine, indices, valid, size)

    def steps_of(self, epoch: int, row: int) -> list[int]:
        """The steps of `epoch` whose batches have `row`, ascending, also behind its end: in a tail
        that is dropped, or behind a limit. Cost: the epoch is listed.
        """
        of = 0 if self.again else epoch
        if isinstance(self.sampler, BatchStrategy):
            return self.sampler.steps_of(of, row)
        positions = self.sampler.positions_of(of, row)
        return list(dict.fromkeys(position // self.batch_size for position in positions))

    def rows(self, indices: IntArray) -> Request:
        """Those rows in one batch, at the positions that validation, which reads in order, gives
        them; packed rows each begin a block of their own."""
        strategy, parts = self.sampler, None
        if isinstance(strategy, BatchStrategy):
            parts = strategy.beginnings(len(indices))
        return Request(0, 0, indices, indices, len(indices), parts=parts)

    def _whole(self, epoch: int, step: int) -> Request:
        """A global batch, without padding."""
        of, parts = 0 if self.again else epoch, None
        if isinstance(self.sampler, BatchStrategy):
            positions, indices = self.sampler.batch(of, step)
            parts = self.sampler.parts(of, step)
        else:
            first = step * self.batch_size
            stop = min(first + self.batch_size, self.sampler.size(of))
            positions = np.arange(first, stop, dtype=np.int64)
            indices = self.sampler.indices(of, first, stop)
        return Request(epoch, step, positions, indices, len(indices), parts=parts)

    def _padded(self, count: int) -> int:
        return max(count, self.batch_size) if self.tail == "pad" else count


# Rows of one global batch dealt to ranks so that none has much more work than the others.
#
# Longest processing time first (Graham: "Bounds on multiprocessing timing anomalies", 1969): the
# rows in descending order of cost, each to the rank that has least so far. The largest rank is at
# most 4/3 of the best that could be; with 16 rows a rank or more, usually 1.01 of the mean. The
# differencing method of Karmarkar and Karp came no closer on lengths of text, and took ten times as
# long.


def least_loaded(costs: npt.ArrayLike, ranks: int) -> IntArray:
    """The rank of each row: int64[n]; 1 us a row.

    Args:
        costs: float[n], finite and not negative. Of equal ones the earlier row is dealt first, so
            every rank finds the same. No rank is without rows if there are enough.
    """
    values = np.asarray(costs, np.float64)
    chosen = np.empty(len(values), np.int64)
    loads = [(0.0, 0, rank) for rank in range(ranks)]  # cost, rows, rank
    for row in np.argsort(-values, kind="stable").tolist():
        load, count, rank = loads[0]
        chosen[row] = rank
        heapq.heapreplace(loads, (load + float(values[row]), count + 1, rank))
    return chosen


def contiguous(count: int, ranks: int) -> IntArray:
    """The rank of each of `count` rows that are cut into as equal shares as there can be."""
    return ((np.arange(count, dtype=np.int64) + 1) * ranks - 1) // max(count, 1)


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
