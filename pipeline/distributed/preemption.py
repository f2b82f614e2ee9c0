"""Requests to stop: what SIGTERM, SIGINT and SIGUSR1 do at each moment of a program.

    imports     `leave_early`: the program ends at once; nothing was begun
    set-up      `Preemption(at_once=True)`: `Stop` is raised wherever the main thread is
    training    `Preemption()`: the request is noted, and a run stops before its next step, with a
                checkpoint; `Stop` is raised only where the main thread waits for data (`waiting`)

A cluster's scheduler sends the first signal some time before it ends a job. The signal's number
goes through a wake-up file to a thread, which notes it at once, also while the main thread waits
inside torch for another rank. A second signal leaves at once: the last good checkpoint is complete
at every moment, so only the work since then is lost. Within `_ECHO` seconds it is the first one
again: `timeout` signals a process and its group, Slurm every process of a step, a terminal all of
its foreground, and launchers hand on what their ranks have had already.

A wait for data can be interrupted anywhere: no weight has changed, and the batch is a function of
its address and can be made again.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, NoReturn, TypeVar

from penstock.errors import PREEMPTED, PenstockError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

# In set-up: seconds until the process leaves where the main thread has not run a handler, as it is
# inside a library; and where it has, for it to clean up, or to reach the end of `held`.
_UNHEARD, _UNWINDING = 0.7, 5.0
_ECHO = 2.0

Item = TypeVar("Item")


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


class Preemption:
    """While active, takes requests to stop this process.

    Only the main thread can take signals; in others it does nothing. Contexts may be nested: the
    inner one has the signals, and the outer one inherits its request.

    Args:
        say: called with messages for a person, from a thread.
        at_once: raise `Stop` wherever the main thread is, and not only where it waits.
        tell: called with the name of the first signal, from a thread.
    """

    def __init__(
        self,
        say: Callable[[str], None] | None = None,
        at_once: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._at_once = at_once
        self._say = say or (lambda text: None)
        self._tell = tell or (lambda name: None)
        self._first: tuple[str, float] | None = None
        self._raised: str | None = None
        self._waits = self._is_over = self._inherited = False
        self._holds, self._held = 0, ""
        self._kept: dict[int, Any] = {}
        self._kept_fd = -1
        self._ends: tuple[socket.socket, socket.socket] | None = None

    @property
    def asked(self) -> str | None:
        """The name of the signal, or None."""
        return self._first[0] if self._first else self._raised

    def __enter__(self) -> Preemption:
        if not _in_main_thread():
            return self
        global _has_begun
        _has_begun = True
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._ends = ours, theirs
        _active.append(self)
        self._kept = {number: signal.signal(number, _noted) for number in SIGNALS}
        self._kept_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._ends is None:
            return
        self._is_over = True  # from here on nothing is raised
        signal.set_wakeup_fd(self._kept_fd)
        for number, handler in self._kept.items():
            signal.signal(number, handler)
        _active.remove(self)
        if _active and self.asked:
            outer = _active[-1]
            outer._first = self.asked, time.monotonic()
            outer._raised = self.asked  # it ends by what is raised already
            outer._inherited = True  # and may take its time: a report, say, is written yet
        theirs = self._ends[1]
        self._ends = None
        theirs.close()  # the listener reads the end, and ends
        stops = isinstance(error, KeyboardInterrupt | Stop | Preempted)
        stops = stops or getattr(error, "code", 1) in (PREEMPTED, 128 + signal.SIGINT)
        if error and self._at_once and self._raised and not (self._inherited or stops):
            # Interrupted anywhere, a library's `finally` may fail, as OmegaConf's do: its error
            # comes out instead, and Hydra makes it SystemExit(1).
            raise _stop(self._raised) from error

    def _listen(self, ours: socket.socket) -> None:
        with ours:
            while True:
                rest = None
                if self._at_once and self._first is not None and not self._inherited:
                    patience = _UNWINDING if self._raised or self._held else _UNHEARD
                    rest = self._first[1] + patience - time.monotonic()
                    if rest <= 0:
                        self._leave(str(Stop(self._first[0])))
                ours.settimeout(rest)
                try:
                    data = ours.recv(16)
                except TimeoutError:
                    continue  # the main thread may have run its handler since
                if not data:
                    return
                for number in data:
                    if number in SIGNALS:
                        self._take(signal.Signals(number).name)

    def _take(self, name: str) -> None:
        if _is_ending:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = name, now
            if not self._at_once:
                self._say(f"{name}: saving after this step; a second one leaves at once")
            self._tell(name)
        elif now - self._first[1] >= _ECHO:
            self._leave(f"{name}: leaving at once, with what the last checkpoint holds")

    def _leave(self, text: str) -> None:
        self._say(text)
        os._exit(PREEMPTED)

    def _interrupt(self, name: str) -> None:
        """Raise `Stop`, once, if the main thread is where it may be."""
        if _is_ending:
            return
        if self._holds:
            self._held = name
            return
        if self._raised is None and (self._at_once or self._waits) and not self._is_over:
            self._raised, self._waits = name, False
            raise _stop(name) if self._at_once else Stop(name)


def _stop(name: str) -> BaseException:
    """What a signal raises in set-up."""
    return KeyboardInterrupt() if name == "SIGINT" else Stop(name)


_active: list[Preemption] = []
_has_begun = _is_ending = False


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _current() -> Preemption | None:
    """The one that takes this thread's signals."""
    return _active[-1] if _active and _in_main_thread() else None


def _noted(number: int, frame: FrameType | None) -> None:
    """Python's handler, in the main thread; the listener has the number too."""
    if _active:
        _active[-1]._interrupt(signal.Signals(number).name)


def asked() -> str | None:
    """The name of the signal by which this process was asked to stop, or None."""
    return next((taker.asked for taker in reversed(_active) if taker.asked), None)


def forget() -> None:
    """Drop all requests so far: another job begins."""
    for taker in _active:
        taker._first, taker._raised, taker._inherited = None, None, False


def ignore() -> None:
    """Take no more requests to stop, as the program ends with an error that explains more."""
    global _is_ending
    _is_ending = True


@contextmanager
def held() -> Iterator[None]:
    """Raise `Stop` at the end of the context, not inside.

    For short work of libraries: interrupted anywhere, their own `finally` may raise another error,
    which would come out instead of `Stop`.
    """
    taker = _current()
    if taker is None:
        yield
        return
    taker._holds += 1
    try:
        yield
    finally:
        taker._holds -= 1
    if taker._held and not taker._holds:
        name, taker._held = taker._held, ""
        taker._interrupt(name)


@contextmanager
def waiting() -> Iterator[None]:
    """The main thread only waits for data here: a signal raises `Stop`, also one from before."""
    taker = _current()
    if taker is None:
        yield
        return
    try:
        taker._waits = True
        if taker.asked is not None and not taker._at_once:
            raise Stop(taker.asked)
        yield
    finally:
        taker._waits = False


def in_turns(items: Iterator[Item], turn: Callable[[bool], None] | None) -> Iterator[Item]:
    """`items`, with `turn(interrupted)` called before each of them and at their end.

    It is called with True where the wait for the next one was interrupted, and may raise.
    """
    while True:
        try:
            item = list(islice(items, 1))
        except Stop:
            if turn is not None:
                turn(True)
            raise
        if turn is not None:
            turn(False)
        if not item:
            return
        yield item.pop()


@contextmanager
def others() -> Iterator[None]:
    """Leave the signals to other handlers for a time."""
    if _current() is None:
        yield
        return
    descriptor = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


def keep_from_children() -> None:
    """Let processes started from now on take a Ctrl-C only when their `job` begins.

    A terminal sends it to all processes; one that still imports would print a traceback of sixty
    lines. This process notices it as soon as its main thread runs any line of Python, so this is
    for launchers that wait in small steps, as joblib does.
    """
    if _current() is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def job() -> Iterator[None]:
    """Take Ctrl-C as usual, in any process that a launcher has started."""
    if not _in_main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_early() -> None:
    """Let a signal end this program at once while it imports its modules."""

    def leave_now(number: int, frame: FrameType | None) -> None:
        if not _has_begun:  # afterwards the program is about to end by itself
            # Not through sys.stderr, which the program may be writing to at this very moment.
            os.write(2, f"{Stop(signal.Signals(number).name)}\n".encode())
            os._exit(PREEMPTED)

    for number in SIGNALS:
        signal.signal(number, leave_now)


def leave(code: int) -> NoReturn:
    """End this program with that exit code, but leave the interpreter to the kernel (saves 1.8 s).

    Threads are joined (unless the program was asked to stop), exit functions run, and output is
    flushed. Under a profiler or debugger this is Python's own exit.
    """
    if sys.getprofile() or sys.gettrace() or sys.flags.interactive:
        sys.exit(code)
    if code != PREEMPTED:
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody listens, closed, not there
            stream.flush()
    os._exit(code)


def _mask(how: int) -> None:
    if _active:  # a signal that came to the child too early would be taken for the parent's
        signal.pthread_sigmask(how, SIGNALS)


def _in_child() -> None:
    """Give a forked worker the default signal handlers back."""
    if _active:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _active.clear()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


os.register_at_fork(
    before=partial(_mask, signal.SIG_BLOCK),
    after_in_parent=partial(_mask, signal.SIG_UNBLOCK),
    after_in_child=_in_child,
)
