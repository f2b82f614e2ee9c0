"""Parts of files: some bytes of a large file, fetched and kept as a file of their own would be.

The address of a part is that of its file, and its bytes after a character that no address holds. So
whatever lists, fetches ahead, keeps or evicts files does the same for parts. Readers divide a file
once and for all, as a part is kept under its very bytes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

_MARK = "\0"
GAP = 64 << 10  # bytes between parts that are cheaper than a request: 2 ms at 40 MB/s
MOST = 8 << 20  # bytes of one request
MOST_FIRST = 128 << 10  # of one that the first batch waits for
MOST_URGENT = 1 << 20  # of one whose samples are waited for: about as long as the wait for it


class Part(NamedTuple):
    """Bytes of a file."""

    address: str
    start: int
    end: int


def part_address(address: str, start: int, end: int) -> str:
    """The address of a part."""
    return f"{address}{_MARK}{start}-{end}"


def as_part(address: str) -> Part | None:
    """The part at an address; None for a whole file's."""
    file, mark, rest = address.partition(_MARK)
    if not mark:
        return None
    start, _, end = rest.partition("-")
    return Part(file, int(start), int(end))


class Came(NamedTuple):
    """The fate of a request that was made ahead.

    Attributes:
        left: addresses for which there is no room but that of files that are needed earlier.
        size: bytes that came.
    """

    left: Sequence[str]
    size: int


class Waiting:
    """Files and parts that are still to be fetched, by the row that needs each first.

    Attributes:
        size: their bytes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._known: dict[str, tuple[int, int]] = {}  # row and bytes
        self._parts: dict[str, list[tuple[int, int]]] = {}  # of each file, sorted: start and end
        self.size = 0

    def push(self, row: int, address: str, size: int) -> None:
        """Add a file that `row` needs; one that waits already keeps its row."""
        if address in self._known:
            return
        self._known[address] = row, size
        self.size += size
        heapq.heappush(self._heap, (row, address))
        part = as_part(address)
        if part is not None:
            insort(self._parts.setdefault(part.address, []), part[1:])

    def first(self) -> tuple[int, str, int] | None:
        """Row, address and bytes of what is needed first."""
        while self._heap:
            row, address = self._heap[0]
            if self._known.get(address, (-1, 0))[0] == row:
                return row, address, self._known[address][1]
            heapq.heappop(self._heap)
        return None

    def take(self, address: str) -> int:
        """Remove a file; the row that needs it."""
        row, size = self._known.pop(address)
        self.size -= size
        part = as_part(address)
        if part is not None:
            parts = self._parts[part.address]
            del parts[bisect_left(parts, part[1:])]
        return row

    def beside(self, address: str, most: int, count: int) -> list[str]:
        """The parts to be fetched with one that waits, itself included, in the order of the file.

        They lie at most `GAP` bytes apart, and `most` bytes from the first to the last; they are
        `count` at most.
        """
        part = as_part(address)
        if part is None:
            return [address]
        parts = self._parts[part.address]
        first = last = bisect_left(parts, part[1:])
        start, end = part.start, part.end
        while last + 1 < len(parts) and last - first + 1 < count:
            following = parts[last + 1]
            if following[0] - end > GAP or max(end, following[1]) - start > most:
                break
            last, end = last + 1, max(end, following[1])
        while first > 0 and last - first + 1 < count:
            before = parts[first - 1]
            if start - before[1] > GAP or end - before[0] > most:
                break
            first, start = first - 1, before[0]
        return [part_address(part.address, *each) for each in parts[first : last + 1]]
