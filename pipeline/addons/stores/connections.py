"""How many requests one reader has open: more for as long as more bring more.

It begins with 32. While as many are open as may be, it measures bytes a second. Twice as many
connections have to bring 1.15 times the bytes: then it tries twice as many again, otherwise it goes
back, and tries again a minute later. It stays within `dataset.files.concurrency`, and within what
`request_gate.py` allows after a store has answered that it is asked too much.

So a store that is far away gets many requests (100 ms for each of 80 kB: 32 bring 25 MB/s), and a
link that is full, or a reader without a core, gets no more than it uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST = 32
_MORE = 2  # times as many
_WORTH = 1.15  # times the bytes
_ROUND = 0.3  # seconds
_LAPS = 2  # requests of a round, for each that is open
_REST = 60.0  # seconds until more are tried again


class Connections:
    """The number for one reader.

    Args:
        most: requests that may be open.
        clock: tells seconds.

    Attributes:
        limit: requests that may be open now.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self.limit = min(_FIRST, most)
        self._fewer = self.limit  # before more were tried,
        self._before: float | None = None  # and bytes a second with these; None: none are tried
        self._rests = clock()
        self._begin(0)

    def _begin(self, skipped: int) -> None:
        """Begin a round, after so many answers to requests that were open before."""
        self._skipped = skipped
        self._began: float | None = None
        self._answers = self._bytes = 0

    def pause(self) -> None:
        """Fewer are open than may be: nobody asks for more."""
        self._begin(0)

    def narrow(self, most: int) -> None:
        """Stay below what the store bears now."""
        if most < self.limit:
            self.limit, self._before = max(most, 1), None
            self._rests = self._clock() + _REST
            self._begin(self.limit)

    def answered(self, size: int) -> None:
        """A request brought so many bytes, while all were open."""
        if self._skipped:
            self._skipped -= 1
            return
        now = self._clock()
        if self._began is None:
            self._began = now
            return
        self._answers += 1
        self._bytes += size
        seconds = now - self._began
        if self._answers >= _LAPS * self.limit and seconds >= _ROUND:
            self._judge(self._bytes / seconds, now)

    def _judge(self, pace: float, now: float) -> None:
        if self._before is not None and pace < _WORTH * self._before:
            self.limit = self._fewer
            self._before, self._rests = None, now + _REST
        elif self.limit < self._most and now >= self._rests:
            self._before, self._fewer = pace, self.limit
            self.limit = min(_MORE * self.limit, self._most)
        else:
            self._before = None
        self._begin(self.limit)
