"""Requests to stop: what SIGTERM, SIGINT and SIGUSR1 do at each moment of a program.

    "leave"   imports: the program ends at once; nothing was begun
    "raise"   set-up: `Stop` (of Ctrl-C, KeyboardInterrupt) is raised wherever the main thread is
    "note"    training: a run stops before its next step, with a checkpoint; `Stop` is raised only
              where the main thread waits for data (`waiting`)

A cluster's scheduler sends the first signal some time before it ends a job. A second one leaves at
once: the last good checkpoint is complete at every moment, so only the work since then is lost.
Within `_ECHO` seconds it is the first one again: `timeout` signals a process and its group, Slurm
every process of a step, a terminal all of its foreground, and a launcher hands on what its ranks
have had already.

A wait for data can be interrupted anywhere: no weight has changed, and the batch is a function of
its address and can be made again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Literal

from penstock.errors import PREEMPTED, PenstockError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_ECHO = 2.0
# Of this process, as signals are: the name of the first signal and its time.
_state = SimpleNamespace(
    request=None, since=0.0, mode="", say=print, waits=False, owner=0, stop=None
)


class Preempted(PenstockError):
    """The run was asked to stop, and can resume from its last checkpoint."""

    exit_code, kind = PREEMPTED, ""


class Stop(BaseException):
    """A request to stop, raised in the main thread where nothing is lost by it.

    Not an Exception: data code that catches all of those must not keep a run from stopping.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: nothing was begun; the same command starts it again")
        self.name = name


@contextmanager
def requests(
    mode: Literal["leave", "raise", "note"], say: Callable[[str], object] = print
) -> Iterator[None]:
    """Take requests to stop this process, in the main thread; in others it does nothing.

    Contexts may be nested: the inner one says what a signal does, and has a request of its own.

    Args:
        say: called with messages for a person.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, handlers = vars(_state).copy(), {one: signal.signal(one, _take) for one in SIGNALS}
    _state.mode, _state.say, _state.request, _state.owner = mode, say, None, os.getpid()
    try:
        yield
    except (Exception, SystemExit) as error:
        # Interrupted anywhere, a library's `finally` may fail, as OmegaConf's do: its error comes
        # out instead, and Hydra makes it SystemExit(1).
        code = getattr(error, "code", getattr(error, "exit_code", 1))
        if _state.stop and code not in (PREEMPTED, 130):
            raise _state.stop from error
        raise
    finally:
        # The outer one inherits the request; without one, it is over.
        vars(_state).update(
            outer, request=_state.request if outer["mode"] else None, since=_state.since
        )
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _take(number: int, frame: FrameType | None) -> None:
    name, now, mode = signal.Signals(number).name, time.monotonic(), _state.mode
    if os.getpid() != _state.owner:  # in a child, which signals end as usual
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    if _state.request is not None:
        if now - _state.since >= _ECHO:
            _state.say(f"{name}: leaving at once, with what the last checkpoint holds")
            os._exit(PREEMPTED)
        return
    _state.request, _state.since = name, now
    if mode == "leave":
        # Not through sys.stderr, which the program may be writing to at this very moment.
        os.write(2, f"{Stop(name)}\n".encode())
        os._exit(PREEMPTED)
    if mode == "raise":
        _state.stop = KeyboardInterrupt() if number == signal.SIGINT else Stop(name)
        raise _state.stop
    _state.say(f"{name}: saving after this step; a second one leaves at once")
    if _state.waits:
        raise Stop(name)


def requested() -> str | None:
    """The name of the signal by which this process was asked to stop, or None."""
    return None if _state.request is None else str(_state.request)


@contextmanager
def waiting() -> Iterator[None]:
    """The main thread only waits for data here: a signal raises `Stop`, also one from before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.waits = True
    try:
        if _state.request and _state.mode == "note":
            raise Stop(_state.request)
        yield
    finally:
        _state.waits = False
