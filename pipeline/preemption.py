"""Being asked to stop: SIGTERM, SIGINT and SIGUSR1 end a run at its next step, with a checkpoint.

A cluster's scheduler sends the first of these some time before it ends a job. The signal's number
goes through a wake-up file to a thread, which notes it at once, also while the main thread waits
inside torch for another rank. A second signal leaves at once: the last good checkpoint is whole at
every moment, so nothing but the work since then is lost.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from pipeline.errors import PREEMPTED, PenstockError

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
)


class Preempted(PenstockError):
    """The run was asked to stop, and can go on from its last checkpoint."""

    exit_code = PREEMPTED


class Preemption:
    """While active, says whether this process was asked to stop.

    Signals can only be taken by the main thread; elsewhere nothing is ever asked.

    Args:
        repeats_after: seconds in which another signal counts as the same one. A launcher hands on
            what the terminal has already sent to everybody.
        say: is told what a person should know, from a thread.
    """

    def __init__(
        self, repeats_after: float = 0.0, say: Callable[[str], None] | None = None
    ) -> None:
        self._repeats_after = repeats_after
        self._say = say or (lambda text: None)
        self._first: tuple[str, float] | None = None
        self._kept: dict[int, Any] = {}
        self._kept_fd = -1
        self._ends: tuple[socket.socket, socket.socket] | None = None

    @property
    def asked(self) -> str | None:
        """The name of the signal, or None."""
        return self._first[0] if self._first else None

    def __enter__(self) -> Preemption:
        if threading.current_thread() is not threading.main_thread():
            return self
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._ends = ours, theirs
        self._kept = {number: signal.signal(number, _noted) for number in SIGNALS}
        self._kept_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ends is None:
            return
        _active.remove(self)
        signal.set_wakeup_fd(self._kept_fd)
        for number, handler in self._kept.items():
            signal.signal(number, handler)
        ours, theirs = self._ends
        self._ends = None
        theirs.close()  # the listener reads the end, and ends
        del ours

    def _listen(self, ours: socket.socket) -> None:
        with ours:
            while data := ours.recv(16):
                for number in data:
                    if number in SIGNALS:
                        self._take(signal.Signals(number).name)

    def _take(self, name: str) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = name, now
            self._say(f"{name}: stopping after this step, with a checkpoint; "
                      "a second signal leaves at once")  # fmt: skip
        elif now - self._first[1] >= self._repeats_after:
            self._say(f"{name}: leaving at once, with what the last checkpoint holds")
            os._exit(PREEMPTED)


_active: list[Preemption] = []


def _noted(number: int, frame: FrameType | None) -> None:
    """Python's own handler has nothing left to do."""


def _before_fork() -> None:
    if _active:  # a signal that came to the child too early would be taken for the parent's
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _in_parent() -> None:
    if _active:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _in_child() -> None:
    """Give a forked worker the usual signals back: its parent's are no business of its own."""
    if _active:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _active.clear()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
