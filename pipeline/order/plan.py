"""The addresses of a run: which samples batch (epoch, step) has, and which rank gets which of them.

The global batch is formed from the sampler alone, then dealt out in contiguous shares. So every
sampler works for any number of ranks, and all ranks know the number of steps in advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.errors import ConfigError, Problem
from pipeline.order.address import Addressed
from pipeline.order.randomness import IntArray
from pipeline.order.samplers import BatchStrategy, Order, Tail


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
            past the last, the tokens of the whole row (-1: unknown, as of one that stands in for
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


class Place(NamedTuple):
    """Where a row stands in an epoch: its batch, its position, and the rank that works on it."""

    step: int
    position: int
    rank: int


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
    start, stop = (min(groups * one // world * together, size) for one in (rank, rank + 1))
    valid = min(max(count - start, 0), stop - start)
    if start == stop:
        start, stop = 0, 1
    return np.arange(start, stop, dtype=np.int64) % count, valid


def deal(batch: Request, size: int, rank: int, world: int, together: int = 1) -> Request:
    """The share of `rank` in a global batch that has no padding yet; see `share_of`. Blocks stay
    whole.
    """
    if batch.parts is not None:
        return _deal_blocks(batch, batch.parts, rank, world)
    mine, valid = share_of(len(batch), size, rank, world, together)
    return Request(batch.epoch, batch.step, batch.positions[mine], batch.indices[mine], valid, size)


def _deal_blocks(batch: Request, parts: IntArray, rank: int, world: int) -> Request:
    blocks = parts[:, 3]
    count = int(blocks[-1]) + 1
    start, stop = np.searchsorted(blocks, [count * one // world for one in (rank, rank + 1)])
    mine = slice(start, stop) if start < stop else slice(0, 1)
    return Request(batch.epoch, batch.step, batch.positions[mine], batch.indices[mine],
                   int(stop - start), len(batch), parts[mine])  # fmt: skip


def not_empty(plan: Plan) -> Plan:
    """`plan`; raises ConfigError if its first epoch has no batch, since the tail is dropped."""
    size, rows = plan.batch_size, 0
    if not isinstance(plan.sampler, BatchStrategy):
        rows = plan.sampler.size(0)
    if rows and not plan.steps(0):
        raise ConfigError(
            Problem("batch.size", f"{size} is more than the {rows} samples of an epoch, and "
                    "batch.tail=drop leaves out what is less than a batch, so nothing is left; set "
                    f"batch.size={rows} or less, or batch.tail=keep")
        )  # fmt: skip
    return plan


class Plan:
    """Addresses to requests.

    Args:
        sampler: an order, cut into batches here, or a strategy that forms its own.
        batch_size: rows in a global batch.
        tail: for an order's last, smaller batch: "keep" it, "drop" it, or "pad" it to full size
            with copies of its own rows, marked as such.
        together: rows of a global batch that stay on one rank; 2 keeps the pairs of mixing.
        most: batches in an epoch; None: all that the sampler gives.
        again: every epoch has the samples of epoch 0 in its order, but its own augmentation.
    """

    def __init__(
        self,
        sampler: Order | BatchStrategy,
        batch_size: int,
        tail: Tail = "keep",
        together: int = 1,
        most: int | None = None,
        again: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(Problem("batch.size", f"{batch_size} is below 1"))
        self.sampler = sampler
        self.batch_size = batch_size
        self.tail = tail
        self.together = together
        self.most = most
        self.again = again

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
        own rows are evaluated, so that many ranks cost no more than one.
        """
        if not 0 <= step < self.steps(epoch):
            raise IndexError(f"epoch {epoch} has steps 0 to {self.steps(epoch) - 1}, not {step}")
        of = 0 if self.again else epoch
        if isinstance(self.sampler, BatchStrategy):
            positions, indices = self.sampler.batch(of, step)
            parts = self.sampler.parts(of, step)
            if parts is not None:
                whole = Request(epoch, step, positions, indices, len(indices), parts=parts)
                return _deal_blocks(whole, parts, rank, world)
            size = self._padded(len(indices))
            mine, valid = share_of(len(indices), size, rank, world, self.together)
            return Request(epoch, step, positions[mine], indices[mine], valid, size)
        first = step * self.batch_size
        count = min(self.batch_size, self.sampler.size(of) - first)
        size = self._padded(count)
        mine, valid = share_of(count, size, rank, world, self.together)
        low, high = int(mine.min()), int(mine.max()) + 1  # all of a share that is not padded
        indices = self.sampler.indices(of, first + low, first + high)[mine - low]
        return Request(epoch, step, first + mine, indices, valid, size)

    def addresses_of(self, epoch: int, row: int, world: int = 1) -> list[Place]:
        """Where `row` stands in `epoch`, in the order of training; a row in parts once for each.

        Positions behind the epoch's steps (the tail that is dropped, a limit) are not among them.
        Cost: the sampler's inverse, and for each batch found one request a rank.
        """
        of, steps = 0 if self.again else epoch, self.steps(epoch)
        if isinstance(self.sampler, BatchStrategy):
            found = self.sampler.steps_of(of, row)
        else:
            positions = self.sampler.positions_of(of, row)
            found = list(dict.fromkeys(position // self.batch_size for position in positions))
        places = []
        for step in found:
            for rank in range(world if step < steps else 0):
                share = self.request(epoch, step, rank, world)
                here = share.positions[: share.valid][share.indices[: share.valid] == row]
                places += [Place(step, position, rank) for position in here.tolist()]
        return places

    def _padded(self, count: int) -> int:
        return max(count, self.batch_size) if self.tail == "pad" else count
