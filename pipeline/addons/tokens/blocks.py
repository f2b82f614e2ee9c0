"""Rows in blocks: how the tokens of a window's rows are put together (order/sequence_packing.py).

Cost: best fit 1 us a row, the rest 0.1 us.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.order.permutation import Permutation
from penstock.order.randomness import IntArray


class Pieces(NamedTuple):
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

    def take(self, places: npt.NDArray[np.int64] | slice) -> Pieces:
        return Pieces(*(values[places] for values in self))

    def between(self, first: int, last: int) -> Pieces:
        """Those in the blocks first .. last-1."""
        start, stop = np.searchsorted(self.blocks, [first, last]).tolist()
        return self.take(slice(start, stop))


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


def whole_rows(lengths: IntArray, capacity: int) -> tuple[IntArray, IntArray, IntArray]:
    """Rows as they are, but for those longer than a block, which are cut.

    Returns:
        place (of the row in `lengths`), start and stop of each piece: int64[m] each.
    """
    parts = np.maximum(-(-lengths // capacity), 1)
    place = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = number * capacity
    return place, starts, np.minimum(starts + capacity, lengths[place])


def cut_in_turn(
    lengths: IntArray, capacity: int, before: int = 0, count: int | None = None
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Rows one after the other, cut at every multiple of `capacity` tokens.

    Args:
        before: tokens in front of them, from which on blocks are counted.
        count: blocks of the whole sequence that these rows are a part of; None: it ends with them.

    Returns:
        place (of the row in `lengths`), start, stop and block of each piece: int64[m] each. A row
        of no tokens is one empty piece.
    """
    ends = before + np.cumsum(lengths)
    begins = ends - lengths
    if count is None:
        count = -(-int(ends[-1]) // capacity) if len(ends) else 0
    # Nothing begins a block of its own: at the very end it stands in the last one.
    first = np.minimum(begins // capacity, max(count - 1, 0))
    last = np.maximum((ends - 1) // capacity, first)
    parts = last - first + 1
    place = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
    blocks = first[place] + number
    starts = np.maximum(blocks * capacity, begins[place]) - begins[place]
    stops = np.minimum((blocks + 1) * capacity, ends[place]) - begins[place]
    return place, starts, np.maximum(stops, starts), blocks


def count_of(pieces: Pieces) -> int:
    """How many blocks there are, where they are numbered from 0."""
    return int(pieces.blocks[-1]) + 1 if len(pieces.blocks) else 0


def joined(pieces: list[Pieces]) -> Pieces:
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return Pieces(*(np.empty(0, np.int64) for _ in Pieces._fields))
    return Pieces(*(np.concatenate(values) for values in zip(*pieces, strict=True)))


def shuffled(blocks: IntArray, key: int) -> IntArray:
    """The numbers of blocks in a keyed order."""
    count = int(blocks.max(initial=-1)) + 1
    return Permutation(count, key)(np.arange(count))[blocks] if count else blocks


def spread(pieces: Pieces, least: int) -> Pieces:
    """The same in at least so many blocks: those of most pieces are halved, where there are fewer.

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
        for one, part in ((block, len(places) // 2), (new, -(-len(places) // 2))):
            heappush(fullest, (-part, one))
    return pieces._replace(blocks=blocks).take(np.argsort(blocks, kind="stable"))
