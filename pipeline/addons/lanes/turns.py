"""Lanes of one rank that wait for each other: threads, of which one runs at a time.

Each lane runs until it calls `meet`, or is done; then the next one does. When all have come to the
same point, their parts are combined, and they continue, in their order. Their numbers alone decide
which lane runs, never time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError

Combine = Callable[[list[Any]], Sequence[Any]]


class _EndedError(BaseException):
    """Another lane has failed."""


@dataclass
class _Lane:
    """A lane's thread, and where it stands."""

    thread: threading.Thread
    goes: threading.Semaphore
    state: Any = None
    meets: Combine | None = None
    value: Any = None  # that it brings to a meeting, or gets there; its result at the end
    error: BaseException | None = None


class Turns:
    """Runs lanes by turns.

    Args:
        leave: gives what a lane has for itself, and must find again when it continues.
        enter: puts that there; None: a lane begins.
    """

    def __init__(self, leave: Callable[[], Any], enter: Callable[[Any], None]) -> None:
        self._leave, self._enter = leave, enter
        self._back = threading.Semaphore(0)
        self._now: _Lane | None = None
        self._ended = False

    def run(self, lanes: Sequence[Callable[[], Any]]) -> list[tuple[Any, Any]]:
        """The result of each lane, and what it left.

        Raises:
            PenstockError: some lanes are done when others wait for them.
        """
        every = [self._lane(work) for work in lanes]
        try:
            while True:
                for lane in every:
                    self._turn(lane)
                meetings = [lane.meets for lane in every]
                if all(meeting is None for meeting in meetings):
                    return [(lane.value, lane.state) for lane in every]
                if None in meetings:
                    raise PenstockError(
                        "some lanes are done with a batch while others wait for them: every lane "
                        "has to take the same steps, and to call `gathered` as often"
                    )
                combine = every[0].meets
                assert combine is not None
                values = combine([lane.value for lane in every])
                for lane, value in zip(every, values, strict=True):
                    lane.value = value
        finally:
            self._ended = True
            for lane in every:
                while lane.thread.is_alive():
                    lane.goes.release()
                    lane.thread.join(0.01)

    def meet(self, value: Any, combine: Combine) -> Any:
        """Wait for the other lanes of this rank, and get this one's part of what is combined.

        Args:
            combine: the values of all lanes to one for each; called once, in the main thread.
        """
        lane = self._now
        assert lane is not None
        lane.value, lane.meets = value, combine
        self._back.release()
        lane.goes.acquire()
        if self._ended:
            raise _EndedError
        return lane.value

    def _lane(self, work: Callable[[], Any]) -> _Lane:
        context, goes = copy_context(), threading.Semaphore(0)

        def run() -> None:
            goes.acquire()
            if self._ended:
                return
            try:
                lane.value = context.run(work)
            except _EndedError:
                return
            except BaseException as error:
                lane.error = error
            self._back.release()

        lane = _Lane(threading.Thread(target=run, name="penstock-lane", daemon=True), goes)
        lane.thread.start()
        return lane

    def _turn(self, lane: _Lane) -> None:
        """Let a lane run up to its next meeting, or its end."""
        self._enter(lane.state)
        lane.meets, self._now = None, lane
        lane.goes.release()
        self._back.acquire()
        if lane.error is not None:
            raise lane.error
        lane.state = self._leave()
