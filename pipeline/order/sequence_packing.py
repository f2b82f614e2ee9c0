"""Blocks of whole or cut rows: which tokens of which rows stand together, from lengths alone.

Rows of unequal length are put into blocks of at most `tokens` tokens; a block is one row of the
batch that the model sees. To know what stands at an address, only the lengths of the rows around it
are read, and no sample:

1. An epoch's order is cut into windows of `window` positions. Each window is packed by itself, by
   best fit in decreasing length, or with `split="tail"` by cutting its rows, one after the other.
2. So many windows as give enough blocks for 16 batches are a stretch. Its blocks are put into a
   keyed order and shared out evenly among its batches, of which every stretch but the last has the
   same number. So a batch has `batch_size` blocks give or take a few, the number of an epoch's
   batches needs no counting, and any address is found in the time that one stretch takes.

Cost: 1 us a row of a stretch, once for its 16 or more batches; the two last ones are kept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.order.permutation import Permutation
from pipeline.order.randomness import IntArray, hash64
from pipeline.order.samplers import BatchStrategy, Order, Random, Tail, column_of

Split = Literal["never", "tail"]

_BATCHES = 16  # of a stretch, at least
_TAIL_WINDOW = 1 << 16  # rows: the end of each window leaves a block that is not full
_KEPT = 2  # stretches


class Pieces(NamedTuple):
    """Rows, or parts of them, in their blocks: int64[n] each, ascending by block.

    Attributes:
        positions: in the epoch's order; pieces of one row have the same.
        rows: of the dataset.
        starts, stops: the tokens of the row, `starts <= token < stops`.
        lengths: tokens of the whole row.
        blocks: numbers of the blocks, from 0.
    """

    positions: IntArray
    rows: IntArray
    starts: IntArray
    stops: IntArray
    lengths: IntArray
    blocks: IntArray

    def take(self, places: npt.NDArray[np.int64] | slice) -> Pieces:
        return Pieces(*(values[places] for values in self))


class SequencePacking(BatchStrategy):
    """Batches of blocks.

    Args:
        batch_size: blocks in a batch, about.
        tokens: of a block, at most.
        tail: "keep" the epoch's last, smaller batch, or "drop" it.
        column: metadata column of lengths in tokens.
        window: positions that are packed together.
        split: "never": a row stands in one block as a whole. "tail": rows follow one another and
            are cut where a block is full, so that all but a window's last block are full.
        long: what becomes of rows of more than `tokens` tokens where rows are not split: "cut" into
            blocks of their own, the last part packed as a row is, or "refuse".
        order: which rows an epoch has, and in which order; None: each once, at random.

    Raises:
        ConfigError: a value is out of range.
        DataError: a length is negative, or a row is too long.
    """

    column_arguments = ("column",)
    packs = True

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: Any,
        batch_size: int,
        tokens: int,
        tail: Tail = "keep",
        column: str = "length",
        window: int = 4096,
        split: Split = "never",
        long: Literal["cut", "refuse"] = "cut",
        order: Order | None = None,
    ) -> None:
        for name, value in (("tokens", tokens), ("window", window)):
            if value < 1:
                raise ConfigError(Problem(f"sampler.{name}", f"{value}; allowed: 1 or more"))
        if tail == "pad":
            raise ConfigError(
                Problem("batch.tail", "pads with rows, and a batch of blocks has no fixed number "
                        "of them; set keep or drop")
            )  # fmt: skip
        lengths = column_of(metadata, column, "column")
        if not np.issubdtype(lengths.dtype, np.integer):
            raise DataError(f"column {column!r} does not hold whole numbers, so rows cannot be "
                            "packed by it")  # fmt: skip
        self.order = order or Random(length, seed)
        self.seed, self.tokens, self.split = seed, tokens, split
        self.batch_size, self._drops = batch_size, tail == "drop"
        self._lengths, self._long = lengths, long
        self._window = window if split == "never" else max(window, _TAIL_WINDOW)
        self._stretches: dict[tuple[int, int], Pieces] = {}
        self._positions = self._window  # of a stretch
        self._batches = 1  # of every stretch but the last
        if self.order.size(0) > self._window:
            first = self._window_at(0, 0, self._window).blocks
            blocks = int(first[-1]) + 1 if len(first) else 1
            windows = -(-_BATCHES * batch_size // blocks)
            self._positions = windows * self._window
            # Never more than rows, so that no batch is without any.
            self._batches = max(1, min(round(windows * blocks / batch_size), self._positions))

    def size(self, epoch: int) -> int:
        whole, rest = self._cut(epoch)
        return whole * self._batches + (self._batches_of_rest(epoch) if rest else 0)

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        pieces = self.pieces(epoch, step)
        return pieces.positions, pieces.rows

    def parts(self, epoch: int, step: int) -> IntArray:
        pieces = self.pieces(epoch, step)
        return np.stack([pieces.starts, pieces.stops, pieces.lengths, pieces.blocks], axis=1)

    def pieces(self, epoch: int, step: int) -> Pieces:
        """The pieces of one global batch, whose blocks are numbered from 0."""
        whole, _ = self._cut(epoch)
        stretch, batch = min(step // self._batches, whole), step
        batch -= stretch * self._batches
        found = self._stretch(epoch, stretch)
        blocks = _blocks_of(found)
        if stretch < whole:
            first, last = (blocks * one // self._batches for one in (batch, batch + 1))
        else:
            first = batch * self.batch_size
            last = min(first + self.batch_size, blocks)
        start, stop = np.searchsorted(found.blocks, [first, last])
        mine = found.take(slice(int(start), int(stop)))
        return mine._replace(blocks=mine.blocks - first)

    def steps_of(self, epoch: int, position: int) -> list[int]:
        """The steps of `epoch` whose batches have pieces of the row at `position`, ascending."""
        whole, _ = self._cut(epoch)
        stretch = position // self._positions
        found = self._stretch(epoch, stretch)
        blocks = np.unique(found.blocks[found.positions == position])
        if stretch == whole:
            batches = blocks // self.batch_size
        else:
            edges = _blocks_of(found) * np.arange(self._batches + 1) // self._batches
            batches = np.searchsorted(edges, blocks, side="right") - 1
        return [stretch * self._batches + int(batch) for batch in np.unique(batches)]

    def _cut(self, epoch: int) -> tuple[int, int]:
        """Stretches of full length, and the positions behind them."""
        return divmod(self.order.size(epoch), self._positions)

    def _batches_of_rest(self, epoch: int) -> int:
        whole, _ = self._cut(epoch)
        rest = 0 if self._drops else self.batch_size - 1
        return (_blocks_of(self._stretch(epoch, whole)) + rest) // self.batch_size

    def _stretch(self, epoch: int, number: int) -> Pieces:
        """All pieces of a stretch, its blocks in their keyed order."""
        key = epoch, number
        if key not in self._stretches:
            end = min((number + 1) * self._positions, self.order.size(epoch))
            starts = range(number * self._positions, end, self._window)
            windows = [self._window_at(epoch, at, min(at + self._window, end)) for at in starts]
            found = _joined(windows)
            if end == (number + 1) * self._positions:
                found = _spread(found, self._batches)
            found = _shuffled(found, hash64(self.seed, "packed", epoch, number))
            while len(self._stretches) >= _KEPT:
                del self._stretches[next(iter(self._stretches))]
            self._stretches[key] = found
        return self._stretches[key]

    def _window_at(self, epoch: int, start: int, stop: int) -> Pieces:
        rows = self.order.indices(epoch, start, stop)
        lengths = np.asarray(self._lengths[rows], dtype=np.int64)
        if lengths.size and int(lengths.min()) < 0:
            row = int(rows[lengths.argmin()])
            raise DataError(f"row {row} has a length of {int(lengths.min())} tokens")
        places = np.arange(len(rows))
        if self.split == "tail":
            place, starts, stops, blocks = cut_in_turn(lengths, self.tokens)
        else:
            place, starts, stops = self._whole(rows, places, lengths)
            blocks = best_fit(stops - starts, self.tokens)
        order = np.lexsort((starts, place, blocks))
        return Pieces(place + start, rows[place], starts, stops, lengths[place], blocks).take(order)

    def _whole(
        self, rows: IntArray, places: IntArray, lengths: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Rows as they are, but for those longer than a block."""
        parts = np.maximum(-(-lengths // self.tokens), 1)
        if self._long == "refuse" and parts.max(initial=1) > 1:
            worst = int(lengths.argmax())
            raise DataError(
                f"row {int(rows[worst])} has {int(lengths[worst])} tokens, and a block "
                f"{self.tokens} (sampler.tokens). Set sampler.long=cut, or leave such rows out"
            )
        place = np.repeat(places, parts)
        number = np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = number * self.tokens
        return place, starts, np.minimum(starts + self.tokens, lengths[place])


def best_fit(lengths: IntArray, capacity: int) -> IntArray:
    """The block of each row, by best fit in decreasing length: int64[n], from 0 on.

    Each row goes where least room is left after it, else into a new block (Johnson: "Near-optimal
    bin packing algorithms", 1973).

    Args:
        lengths: int64[n], each at most `capacity`.
    """
    blocks = np.empty(len(lengths), np.int64)
    rooms: list[tuple[int, int]] = []  # room left and number of each block, ascending
    count = 0
    order = np.argsort(-lengths, kind="stable").tolist()
    sizes = lengths.tolist()
    for place in order:
        size = sizes[place]
        at = bisect_left(rooms, (size, 0))
        if at == len(rooms):
            block, room = count, capacity
            count += 1
        else:
            room, block = rooms.pop(at)
        blocks[place] = block
        insort(rooms, (room - size, block))
    return blocks


def cut_in_turn(lengths: IntArray, capacity: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Rows one after the other, cut at every multiple of `capacity` tokens.

    Returns:
        place (of the row in `lengths`), start, stop and block of each piece: int64[m] each. A row
        of no tokens is one empty piece.
    """
    ends = np.cumsum(lengths)
    begins = ends - lengths
    first = begins // capacity
    last = np.maximum((ends - 1) // capacity, first)
    parts = last - first + 1
    place = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
    blocks = first[place] + number
    starts = np.maximum(blocks * capacity, begins[place]) - begins[place]
    stops = np.minimum((blocks + 1) * capacity, ends[place]) - begins[place]
    if len(blocks) > 1 and lengths[-1] == 0:  # nothing begins a block of its own
        blocks = np.minimum(blocks, max(int(ends[-1]) - 1, 0) // capacity)
    return place, starts, np.maximum(stops, starts), blocks


def _blocks_of(pieces: Pieces) -> int:
    return int(pieces.blocks[-1]) + 1 if len(pieces.blocks) else 0


def _joined(windows: list[Pieces]) -> Pieces:
    if len(windows) == 1:
        return windows[0]
    before = np.cumsum([0, *map(_blocks_of, windows)])
    moved = [one._replace(blocks=one.blocks + int(first))
             for one, first in zip(windows, before, strict=False)]  # fmt: skip
    return Pieces(*(np.concatenate(values) for values in zip(*moved, strict=True)))


def _spread(pieces: Pieces, least: int) -> Pieces:
    """The same in at least so many blocks: those of most pieces are halved, where there are fewer.

    That is where the lengths of a stretch have little in common with those of the first one.
    """
    count = _blocks_of(pieces)
    if count >= least:
        return pieces
    blocks = pieces.blocks.copy()
    sizes = np.bincount(blocks).tolist()
    fullest = [(-size, block) for block, size in enumerate(sizes)]
    heapify(fullest)
    for new in range(count, least):
        _, block = heappop(fullest)
        places = np.flatnonzero(blocks == block)
        blocks[places[len(places) // 2 :]] = new
        for one, part in ((block, len(places) // 2), (new, -(-len(places) // 2))):
            heappush(fullest, (-part, one))
    return pieces._replace(blocks=blocks).take(np.argsort(blocks, kind="stable"))


def _shuffled(pieces: Pieces, key: int) -> Pieces:
    """The same with the blocks in a keyed order."""
    count = _blocks_of(pieces)
    if not count:
        return pieces
    blocks = Permutation(count, key)(np.arange(count))[pieces.blocks]
    order = np.argsort(blocks, kind="stable")
    return pieces._replace(blocks=blocks).take(order)
