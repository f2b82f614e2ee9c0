"""Blocks of whole or cut rows: which tokens of which rows stand together, from lengths alone.

Rows of unequal length are put into blocks of at most `tokens` tokens; a block is one row of the
batch that the model sees. To know what stands at an address, only the lengths of the rows around it
are read, and no sample. An epoch's order is cut into windows of `window` positions:

    split="never"   each window is packed by itself, by best fit in decreasing length; its blocks
                    are put into a keyed order, so that long rows do not stand together
    split="tail"    rows follow one another, and are cut where a block is full

Batches are `batch_size` blocks of the sequence that this makes. Where they begin depends on all
lengths before. So an epoch of few rows is packed as a whole at its first batch, and so is one whose
lengths change on the way (not `Order.even`): 1 us a row, 0.1 us where rows are cut, and 50 bytes.

Other epochs are cut into stretches of so many windows as give 16 batches or more, each packed as if
it were alone. All stretches but the last have the same number of batches, among which a stretch's
blocks are shared out evenly, so any address is found in the time that one stretch takes. There are
so many batches that one has `batch_size` blocks at most, but in one stretch of about a thousand,
and up to 10 % fewer on average. Where rows are cut, only the last block of a stretch is not full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DataError
from penstock.files.limits import Count
from penstock.order.columns import column_of
from penstock.order.keys import IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.samplers import BatchStrategy, Order, Random, Tail

Split = Literal["never", "tail"]

_FEW = {"never": 1 << 17, "tail": 1 << 20}  # rows of an epoch that is one stretch: about 0.1 s
_LEAST = {"never": 0, "tail": 1 << 17}  # rows of a stretch
_BATCHES = 16  # of a stretch, at least
_SAMPLED = 1 << 14  # rows, from which the number of batches is taken
_MARGIN = 0.06  # of blocks above their mean that a stretch is to have room for, about
_LONGEST = 1 << 20  # rows of a stretch
_KEPT = 2  # stretches, and epochs whose last one is counted
_WHOLE = 1 << 62  # positions of a stretch that is an epoch


class _Pieces(NamedTuple):
    """Rows, or parts of them, in their blocks: int64[n] each, ascending by block.

    Attributes:
        positions: in the epoch's order; pieces of one row have the same.
        rows: of the dataset.
        starts, stops: the tokens of the row, `starts <= token < stops`.
        lengths: tokens of the whole row.
        blocks: numbers of the blocks.
    """

    positions: IntArray
    rows: IntArray
    starts: IntArray
    stops: IntArray
    lengths: IntArray
    blocks: IntArray

    def take(self, places: npt.NDArray[np.int64] | slice) -> _Pieces:
        return _Pieces(*(values[places] for values in self))


class SequencePacking(BatchStrategy):
    """Batches of blocks.

    Args:
        batch_size: blocks in a batch; see the module for what has fewer.
        tokens: of a block, at most.
        tail: "keep" the epoch's last, smaller batch, or "drop" it.
        column: metadata column of lengths in tokens, or the lengths themselves: whole numbers, a
            memory map as well.
        window: positions that are packed together.
        split: "never": a row stands in one block as a whole. "tail": rows follow one another and
            are cut where a block is full.
        long: what becomes of rows of more than `tokens` tokens where rows are not split: "cut" into
            blocks of their own, the last part packed as a row is, or "refuse".
        order: which rows an epoch has, and in which order; None: each once, at random.

    Raises:
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
        tokens: Count,
        tail: Tail = "keep",
        column: str | IntArray = "length",
        window: Count = 4096,
        split: Split = "never",
        long: Literal["cut", "refuse"] = "cut",
        order: Order | None = None,
    ) -> None:
        lengths: Any = column
        if isinstance(column, str):
            lengths = column_of(metadata, column, "column")
        if lengths.dtype.kind not in "iu" or len(lengths) != length:
            raise DataError(
                f"column {column!r} does not hold a whole number for each of {length} rows, so "
                "they cannot be packed by it"
            )
        self.order = order or Random(length, seed)
        self.seed, self.tokens, self.split, self.window = seed, tokens, split, window
        self.batch_size, self._drops = batch_size, tail == "drop"
        self._lengths, self._long = lengths, long
        # Replaced and never changed, as copies in other threads share them.
        self._packed: dict[tuple[int, int], _Pieces] = {}  # stretches, by epoch
        self._rest: dict[int, int] = {}  # by epoch: blocks behind all whole stretches
        self._stretch = self._batches = _WHOLE  # positions and batches of all but the last
        # The first rows of an order that goes from short to long say nothing of the rest.
        if self.order.even and self.order.size(0) > _FEW[split]:
            self._lay_out()

    def _lay_out(self) -> None:
        """Choose the stretches, by the first rows of an order that is even."""
        sampled = max(_SAMPLED // self.window, 1) * self.window
        if sampled > self.order.size(0):
            return
        starts = range(0, sampled, self.window)
        lengths = self._lengths_at(0, 0, sampled)[1]
        if self.split == "tail":
            blocks = -(-int(lengths.sum()) // self.tokens)
        else:
            blocks = sum(count_of(self._window(0, at, at + self.window)) for at in starts)
        deviation = 3 * float(lengths.std()) / max(float(lengths.mean()), 1e-9)
        least = max(
            _BATCHES * self.batch_size * sampled / max(blocks, 1),
            (deviation / _MARGIN) ** 2,
            _LEAST[self.split],
        )
        stretch = -(-int(max(1, min(least, _LONGEST))) // self.window) * self.window
        if stretch >= self.order.size(0):
            return
        self._stretch = stretch
        margin = deviation * (1 / self._stretch + 1 / sampled) ** 0.5
        expected = blocks / sampled * self._stretch * (1 + margin)
        # Never more than rows, so that no batch is without any.
        self._batches = max(1, min(int(-(-expected // self.batch_size)), self._stretch))

    def size(self, epoch: int) -> int:
        whole = self.order.size(epoch) // self._stretch
        if epoch not in self._rest:
            rest = {epoch: count_of(self._stretch_of(epoch, whole))}
            self._rest = _latest(self._rest, 16 * _KEPT) | rest
        up = 0 if self._drops else self.batch_size - 1
        return whole * self._batches + (self._rest[epoch] + up) // self.batch_size

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        pieces = self.pieces(epoch, step)
        return pieces.positions, pieces.rows

    def parts(self, epoch: int, step: int) -> IntArray:
        pieces = self.pieces(epoch, step)
        return np.stack([pieces.starts, pieces.stops, pieces.lengths, pieces.blocks], axis=1)

    def beginnings(self, count: int) -> IntArray:
        return np.array([[0, self.tokens, -1, block] for block in range(count)])

    def pieces(self, epoch: int, step: int) -> _Pieces:
        """The pieces of one global batch, whose blocks are numbered from 0."""
        stretch = min(step // self._batches, self.order.size(epoch) // self._stretch)
        packed = self._stretch_of(epoch, stretch)
        first = (step - stretch * self._batches) * self.batch_size
        last = min(first + self.batch_size, count_of(packed))
        if (stretch + 1) * self._stretch <= self.order.size(epoch):
            numbers = step - stretch * self._batches + np.arange(2)
            first, last = (count_of(packed) * numbers // self._batches).tolist()
        start, stop = np.searchsorted(packed.blocks, [first, last]).tolist()
        pieces = packed.take(slice(start, stop))
        return pieces._replace(blocks=pieces.blocks - first)

    def _stretch_of(self, epoch: int, number: int) -> _Pieces:
        key = epoch, number
        packed = self._packed.get(key)
        if packed is None:
            start = number * self._stretch
            stop = min(start + self._stretch, self.order.size(epoch))
            if self.split == "tail":
                rows, lengths = self._lengths_at(epoch, start, stop)
                row, starts, stops, numbers = cut_in_turn(lengths, self.tokens)
                packed = _Pieces(start + row, rows[row], starts, stops, lengths[row], numbers)
            else:
                parts, blocks = [], 0
                for at in range(start, stop, self.window):
                    window = self._window(epoch, at, min(at + self.window, stop))
                    parts.append(window._replace(blocks=window.blocks + blocks))
                    blocks += count_of(window)
                nothing = _Pieces(*np.empty((len(_Pieces._fields), 0), np.int64))
                packed = _Pieces(*map(np.concatenate, zip(nothing, *parts, strict=True)))
            # Only whole stretches owe a number of batches; the last one has as many as it fills.
            if stop == start + self._stretch:
                packed = spread(packed, self._batches)
            self._packed = _latest(self._packed, _KEPT) | {key: packed}
        return packed

    def _window(self, epoch: int, start: int, stop: int) -> _Pieces:
        """Whole rows start .. stop-1 packed by themselves, blocks from 0 in a keyed order."""
        rows, lengths = self._lengths_at(epoch, start, stop)
        if self._long == "refuse" and int(lengths.max(initial=0)) > self.tokens:
            worst = int(lengths.argmax())
            raise DataError(
                f"row {int(rows[worst])} has {int(lengths[worst])} tokens, and a block "
                f"{self.tokens} (sampler.tokens). Set sampler.long=cut, or leave such rows out"
            )
        row, starts, stops = whole_rows(lengths, self.tokens)
        blocks = best_fit(stops - starts, self.tokens)
        # Best fit gives the blocks of the longest rows first, and batches would go from long to
        # short.
        key, count = hash64(self.seed, "packed", epoch, start), int(blocks.max(initial=-1)) + 1
        blocks = Permutation(max(count, 1), key)(np.arange(count))[blocks]
        # Rows of a block in the order of the epoch: a curriculum stays one inside of a window.
        order = np.lexsort((starts, row, blocks))
        pieces = _Pieces(start + row, rows[row], starts, stops, lengths[row], blocks)
        return pieces.take(order)

    def _lengths_at(self, epoch: int, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Rows and their lengths, int64[stop - start] each."""
        rows = self.order.indices(epoch, start, stop)
        lengths = np.asarray(self._lengths[rows], dtype=np.int64)
        if lengths.size and int(lengths.min()) < 0:
            row = int(rows[lengths.argmin()])
            raise DataError(f"row {row} has a length of {int(lengths.min())} tokens")
        return rows, lengths


def _latest(kept: dict[Any, Any], count: int) -> dict[Any, Any]:
    """A copy of the entries that were added last, fewer than `count`."""
    return dict(list(kept.items())[1 - count :])


# How the tokens of rows are put together: best fit takes 1 us a row, the rest 0.1 us.


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
    for row in order:
        size = sizes[row]
        at = bisect_left(rooms, (size, 0))
        if at == len(rooms):
            block, room = count, capacity
            count += 1
        else:
            room, block = rooms.pop(at)
        blocks[row] = block
        insort(rooms, (room - size, block))
    return blocks


def whole_rows(lengths: IntArray, capacity: int) -> tuple[IntArray, IntArray, IntArray]:
    """Rows as they are, but for those longer than a block, which are cut.

    Returns:
        place (of the row in `lengths`), start and stop of each piece: int64[m] each.
    """
    parts = np.maximum(-(-lengths // capacity), 1)
    row = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = number * capacity
    return row, starts, np.minimum(starts + capacity, lengths[row])


def cut_in_turn(lengths: IntArray, capacity: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Rows one after the other, cut at every multiple of `capacity` tokens.

    Returns:
        place (of the row in `lengths`), start, stop and block of each piece: int64[m] each. A row
        of no tokens is one empty piece.
    """
    ends = np.cumsum(lengths)
    begins = ends - lengths
    count = -(-int(ends[-1]) // capacity) if len(ends) else 0
    # Nothing begins a block of its own: at the very end it stands in the last one.
    first = np.minimum(begins // capacity, max(count - 1, 0))
    last = np.maximum((ends - 1) // capacity, first)
    parts = last - first + 1
    row = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    blocks = first[row] + number
    starts = np.maximum(blocks * capacity, begins[row]) - begins[row]
    stops = np.minimum((blocks + 1) * capacity, ends[row]) - begins[row]
    return row, starts, np.maximum(stops, starts), blocks


def count_of(pieces: _Pieces) -> int:
    """How many blocks there are, where they are numbered from 0."""
    return int(pieces.blocks[-1]) + 1 if len(pieces.blocks) else 0


def spread(pieces: _Pieces, least: int) -> _Pieces:
    """At least `least` blocks: where there are fewer, those with the most pieces are halved.

    That is where the lengths of a stretch have little in common with those of the first one.
    """
    count = count_of(pieces)
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
        heappush(fullest, (-(len(places) // 2), block))
        heappush(fullest, (len(places) // 2 - len(places), new))
    return pieces._replace(blocks=blocks).take(np.argsort(blocks, kind="stable"))
