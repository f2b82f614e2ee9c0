"""Presence of ranks, without a collective: who wants to stop, and who keeps the others waiting.

A thread of every rank looks for news where the ranks met (notes in a folder, or the store that the
group was made with). Cost: a look every 0.25 s for each rank.

    stop   a rank was asked to stop: the others send themselves that signal, since they may be
           waiting for data
    late   a rank has waited for `distributed.timeout` seconds. Every rank that lives answers where
           it stands. Those that do not are asked by another rank of their machine, which continues
           them if they are stopped. The first rank that noticed says once who is late, and where.
    end    it has been said: ranks that wait raise LateError; a late rank leaves, if it can, or is
           killed by a rank of its machine
    lost   a rank is gone. gloo tells only those that exchange numbers with it at that moment; a
           rank that waits for one of them waits on. So a rank that is asked to stop, or fails,
           leaves this note, and the others end

So a rank that hangs in data code, in a library that holds the GIL, or by SIGSTOP ends within
seconds of the others. Where rank 0 serves the store (srun), is stopped, and no other rank runs on
its machine, nobody can end it but the scheduler (srun --wait).
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from penstock.distributed import preemption, standing
from penstock.distributed.standing import Described, Standing
from penstock.distributed.standing import state_of as state_of
from penstock.distributed.world import World, meeting_folder, restarts_left, store_address
from penstock.errors import LOST, PREEMPTED, PenstockError
from penstock.terminal import one_line, say

_LOOK = 0.25  # seconds between two looks for news
_ANSWERS = 3.0  # seconds for the answers of ranks that live
_PATIENCE = 12.0  # seconds for somebody to say who is late
_GRACE = 10.0  # seconds for a rank that waited to end its run, once that has been said
_LATE_GRACE = 1.0  # the same for a rank that was late
_LOST_GRACE = 2.0  # seconds for the main thread to find out by itself that a rank is gone
_LISTED = 4  # late ranks whose places are shown
_THREADS = ("checkpoint",)  # that a main thread may be waiting for
# What gloo, NCCL and the store say when a rank does not come, and when its process is gone.
_TIMED_OUT = (
    "imed out waiting",
    "ait timeout",
    "ocket timeout",
    "imed out after",
    "Application timeout",
)
_CLOSED = ("onnection closed", "onnection reset", "roken pipe", "onnection refused", "pair closure")


class LateError(PenstockError):
    """Other ranks waited for one of them until their timeout was over; it has been said."""

    exit_code = PREEMPTED
    told = True


class Presence:
    """This rank, as the others see it.

    Args:
        timeout: seconds that ranks wait for each other.

    Attributes:
        hint: how to resume the run, once that is known.
    """

    def __init__(self, world: World, timeout: float) -> None:
        self.hint = ""
        self._world, self._timeout = world, timeout
        self._store: Any = None
        self._asked: dict[int, Standing] = {}  # of other ranks, by this one
        self._descriptions: dict[int, Described] = {}
        self._text, self._answered, self._seen_by = "", False, 0
        self._gave_up_at: list[str] = []  # the stack where this rank gave up waiting
        self._served = meeting_folder() is None and store_address() is not None  # by rank 0
        self._waited, self._said, self._done, self._apart = (threading.Event() for _ in range(4))
        self._apart.set()  # cleared in `ends_with_others`
        self._thread = threading.Thread(target=self._live, name="penstock-presence", daemon=True)
        # A store whose process is stopped answers neither yes nor no, and its callers do not
        # notice: so the time for joining is measured here.
        self._guard = threading.Timer(timeout + _ANSWERS, self._never_joined)
        self._guard.daemon = True

    def __enter__(self) -> Presence:
        standing.listen()
        self._guard.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._guard.cancel()
        if self._said.is_set():
            self._end_others()
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(_LOOK)

    def meet(self, store: object) -> None:
        """Be seen by the other ranks.

        Args:
            store: `meeting.Notes` on one machine, else the group's `torch.distributed.Store`.
        """
        # A connection of its own: the other one is locked while the main thread waits there.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._thread.start()

    def joined(self) -> None:
        """All ranks have come."""
        if self._served:
            _until(lambda: 0 in self._descriptions, _ANSWERS)
        self._guard.cancel()

    def tell(self, name: str) -> None:
        """Let all ranks know that this one was asked to stop, by the signal of that name."""
        self._note("stop", name)

    def _note(self, name: str, text: str) -> None:
        with suppress(RuntimeError):  # the store went with another rank, which all will notice
            self._store.set(name, text)
            self._store.set("news", "1")

    @contextmanager
    def ends_with_others(self) -> Iterator[None]:
        """For the time of the context, end this process if another rank is gone.

        All ranks have to be in the context until no rank waits for another one any more.
        """
        self._apart.clear()
        try:
            yield
        except LateError:  # all know it
            raise
        except Exception:  # a loss, or an error of this rank, which is lost to the others
            # The store of a machine that has gone silently answers nothing, for minutes.
            note = threading.Thread(target=self._note, args=("lost", "1"), daemon=True)
            note.start()
            note.join(_LOST_GRACE)
            raise
        finally:
            self._apart.set()

    def explained(self, error: BaseException) -> LateError | None:
        """Who is late, if that is what `error` means; takes seconds.

        A rank whose partner has given up finds a connection closed.
        """
        text = f"{error} {error.__cause__ or ''}"
        timed_out = any(words in text for words in _TIMED_OUT)
        if not timed_out and not any(words in text for words in _CLOSED):
            return None
        if self._store is None:  # there is nobody to ask
            return None
        if not timed_out and not self._said.wait(4 * _LOOK) and not self._answered:
            return None
        self._gave_up_at = standing.of_error(error)
        return self._verdict()

    def _verdict(self) -> LateError:
        """Wait until it has been said who is late, or find it out without the others."""
        self._waited.set()
        if not self._said.wait(_ANSWERS):
            self._ask_server()
            if not self._said.wait(_PATIENCE - _ANSWERS):
                self._say_alone()
        preemption.ignore()  # a launcher asks the rest to stop as soon as one has ended
        return LateError(self._text)

    def _never_joined(self) -> None:
        self._verdict()
        self._end_others()
        os._exit(PREEMPTED)

    def _ask_server(self) -> None:
        """Continue rank 0 if it serves the store and is stopped; no other thread gets an answer."""
        if not self._served or self._world.rank == 0:
            return
        described = self._descriptions.get(0)
        pid = standing.sibling(0) if described is None else described.pid
        if pid is not None and standing.state_of(pid) in ("T", "t"):
            self._look_at(0, described)

    def _say_alone(self) -> None:
        """Say that no rank answers: one of them says it."""
        described = self._descriptions.get(0)
        if self._served:
            who = f"{_named(0, described)} gives no sign of life. It serves the ranks' store"
        else:
            who = "the store of the launcher gives no answer, and no rank can be asked"
        self._text = f"{who}. The others have waited for {self._timeout:g} s (distributed.timeout)"
        self._text += f"\n{self.hint}" * bool(self.hint)
        if self._world.rank == int(self._served):
            say(f"error: {self._text}")
        self._said.set()

    def _look_at(self, rank: int, described: Described | None) -> None:
        """Note where a rank of this machine stands, whether it has joined or not."""
        pid = standing.sibling(rank) if described is None else None
        if described is not None:
            state = standing.ask(described)
        else:
            state = None if pid is None else standing.before_joining(pid)
        if state is not None:
            self._asked[rank] = state

    def _end_others(self) -> None:
        """End the ranks of this machine that had to be asked, unless they end by themselves."""
        if self._served and self._world.rank == 0:  # the others are to see the last news
            with suppress(RuntimeError):
                _until(lambda: self._store.add("seen", 0) >= self._seen_by, _ANSWERS)
        late = [self._descriptions[rank] for rank in self._asked if rank in self._descriptions]
        _until(lambda: not any(map(standing.is_there, late)), _ANSWERS)
        for described in late:
            standing.kill(described)

    # The presence thread.

    def _live(self) -> None:
        try:
            self._set(f"rank-{self._world.rank}", vars(standing.description()))
            if self._served:  # to be known when its store does not answer
                self._descriptions[0] = Described(**self._get("rank-0"))
            self._look()
        except RuntimeError:
            # The store is gone, and with it the run, which the main thread will notice if it can.
            self._lost()
            if not self._done.wait(_LATE_GRACE if self._answered else self._timeout):
                os._exit(PREEMPTED)

    def _look(self) -> None:
        rank, stopped, asked = self._world.rank, False, False
        while not self._done.wait(_LOOK):
            if self._waited.is_set() and not self._answered:
                self._answer()
                if self._store.add("late", 1) == 1:
                    self._set("call", rank)
                    self._decide()
            if not self._store.check(["news"]):
                continue
            if self._store.check(["lost"]):
                self._lost()
            if not stopped and self._store.check(["stop"]):
                stopped = True
                if not preemption.asked():
                    number = getattr(signal, self._store.get("stop").decode())
                    signal.pthread_kill(threading.main_thread().ident or 0, number)
            if not self._answered and self._store.check(["call"]):
                self._answer()
            if not asked and self._store.check(["ask"]):
                asked = True
                question = self._get("ask")
                if rank in question["by"]:
                    self._ask(question["ranks"])
            if self._store.check(["end"]):
                self._end(self._get("end"))
                return

    def _lost(self) -> None:
        """Another rank is gone: end this process, unless its main thread finds out."""
        if not self._apart.wait(_LOST_GRACE):
            say(f"rank {self._world.rank}: ends, as another rank is gone")
            os._exit(LOST)

    def _end(self, verdict: dict[str, Any]) -> None:
        """It has been said who is late: leave, unless the main thread does so soon."""
        self._text, self._seen_by = verdict["text"], verdict["seen_by"]
        self._store.add("seen", 1)
        self._said.set()
        if not self._done.wait(_LATE_GRACE if self._world.rank in verdict["late"] else _GRACE):
            self._end_others()
            os._exit(PREEMPTED)

    def _set(self, name: str, value: object) -> None:
        self._store.set(name, json.dumps(value))
        if not name.startswith("rank-"):
            self._store.set("news", "1")

    def _get(self, name: str) -> Any:
        return json.loads(self._store.get(name))

    def _answer(self) -> None:
        """Say where this rank stands, and what it has found out about others."""
        self._answered = True
        state = standing.own(_THREADS)
        self._set(
            f"at-{self._world.rank}",
            {
                "stack": self._gave_up_at or state.stack,
                "waits": state.waits or self._waited.is_set(),
                "asked": {rank: vars(state) for rank, state in self._asked.items()},
            },
        )

    def _described(self, rank: int) -> Described | None:
        if rank not in self._descriptions and self._store.check([f"rank-{rank}"]):
            self._descriptions[rank] = Described(**self._get(f"rank-{rank}"))
        return self._descriptions.get(rank)

    def _ask(self, ranks: Iterable[int]) -> None:
        """Find out about ranks that do not answer, as far as they are on this machine."""
        for rank in ranks:
            self._look_at(rank, self._described(rank))
            if rank in self._asked:
                self._set(f"asked-{rank}", vars(self._asked[rank]))

    def _decide(self) -> None:
        """Find out who is late, and tell all ranks and the person."""
        everyone = range(self._world.size)
        places: dict[int, Standing] = {}
        asked: dict[int, Standing] = {}

        def read() -> bool:
            for rank in everyone:
                if rank not in places and self._store.check([f"at-{rank}"]):
                    answer = self._get(f"at-{rank}")
                    places[rank] = Standing("", answer["stack"], answer["waits"])
                    asked.update({int(key): Standing(**at) for key, at in answer["asked"].items()})
            return len(places) == self._world.size

        _until(read, _ANSWERS)
        silent = [rank for rank in everyone if rank not in places]
        if silent:
            by = {
                described.host: rank
                for rank in sorted(places, reverse=True)
                if (described := self._described(rank)) is not None
            }
            self._set("ask", {"ranks": silent, "by": sorted(by.values())})
            if self._world.rank in by.values():
                self._ask(silent)
            # Those that can be asked answer in time; more would not be found out by waiting.
            _until(lambda: all(self._store.check([f"asked-{rank}"]) for rank in silent), _ANSWERS)
            for rank in silent:
                if rank not in asked and self._store.check([f"asked-{rank}"]):
                    asked[rank] = Standing(**self._get(f"asked-{rank}"))
        late = {}
        for rank in everyone:
            if rank in asked:
                late[rank] = asked[rank]
            elif rank in silent:
                came = self._described(rank) is not None
                late[rank] = Standing("gives no sign of life" if came else "has not come")
            elif not places[rank].waits:
                late[rank] = places[rank]
                late[rank].how = "lives, but does not come to where the others wait"
        text = self._message(late, places)
        self._set("end", {"text": text, "late": sorted(late), "seen_by": len(places)})
        say(f"error: {text}")

    def _message(self, late: dict[int, Standing], places: dict[int, Standing]) -> str:
        waited = f"{self._timeout:g} s (distributed.timeout)"
        if late:
            who = "; ".join(
                f"{_named(rank, self._described(rank))} {state.how}" for rank, state in late.items()
            )
            lines = [f"{who}. The others have waited for {waited}"]
        else:  # some are in another collective than the rest
            lines = [f"the ranks wait for each other, and not at the same place, for {waited}"]
            late = places
        for rank, state in list(late.items())[:_LISTED]:
            if state.stack:
                lines.append(f"    rank {rank} stands at (innermost first):")
                lines += [f"      {one_line(frame)}" for frame in state.stack]
        if restarts_left():
            lines.append("All ranks start again (distributed.max_restarts).")
        elif self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


def _named(rank: int, described: Described | None) -> str:
    if described is not None:
        return f"rank {rank} (process {described.pid} on {one_line(described.host)})"
    pid = standing.sibling(rank)
    return f"rank {rank}" if pid is None else f"rank {rank} (process {pid} on {platform.node()})"


def _until(condition: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.1)
