"""Presence of ranks, without a collective: who is alive, how far, and who wants to stop.

A thread of every rank leaves signs of life where the ranks met (notes in a folder, or the store
that the group was made with), and looks there for another rank's wish to stop; it then sends this
rank that signal, since it may be waiting for data. Cost: a look every 0.25 s for each rank.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.distributed import preemption
from pipeline.distributed.world import World
from pipeline.errors import PenstockError

_LOOK = 0.25  # seconds between two looks for a wish
_LOOKS = 4  # between two signs of life
_SILENT = 3.0  # seconds without a sign of life after which a rank counts as dead
_TIMED_OUT = "imed out"  # what gloo and the store say: "Timed out waiting 300000ms for recv ..."


class LateError(PenstockError):
    """Other ranks waited for one of them until their timeout was over."""


class Presence:
    """This rank's signs of life, and those of the others.

    Args:
        store: `meeting.Notes` on one machine, else the group's `torch.distributed.Store`.
        timeout: seconds that ranks wait for each other.

    Attributes:
        turns: how often this rank has agreed with the others.
    """

    def __init__(self, store: Any, world: World, timeout: float) -> None:
        self.turns = 0
        self._store, self._world, self._timeout = store, world, timeout
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._live, name="penstock-presence", daemon=True)

    def __enter__(self) -> Presence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_LOOK)

    def tell(self, name: str) -> None:
        """Let all ranks know that this one was asked to stop, by the signal of that name."""
        with suppress(RuntimeError):  # the store went with another rank, which all will notice
            self._store.set("stop", name)

    def _live(self) -> None:
        looks = 0
        with suppress(RuntimeError):  # the store is gone
            while not self._done.is_set():
                if looks % _LOOKS == 0:
                    sign = {"number": looks // _LOOKS, "turns": self.turns, "pid": os.getpid(),
                            "host": platform.node()}  # fmt: skip
                    self._store.set(f"rank-{self._world.rank}", json.dumps(sign))
                looks += 1
                if self._store.check(["stop"]):
                    if not preemption.asked():
                        number = getattr(signal, self._store.get("stop").decode())
                        signal.pthread_kill(threading.main_thread().ident or 0, number)
                    return
                self._done.wait(_LOOK)

    def explained(self, error: RuntimeError) -> LateError | None:
        """Which rank was waited for in vain, if that is what `error` means; takes 3 s.

        One rank says it, in the name of all. One that is stopped is continued, so that it can end.
        """
        said = False
        with suppress(RuntimeError):
            said = bool(self._store.check(["late"]))
        if _TIMED_OUT not in str(error) and not said:
            return None
        with suppress(RuntimeError):
            if int(self._store.add("late", 1)) > 1:
                time.sleep(2 * _SILENT)  # a rank that ends has the launcher end the others
                return LateError("")
        before = self._signs()
        time.sleep(_SILENT)
        after = self._signs()
        silent = {rank: sign for rank, sign in after.items() if sign == before.get(rank)}
        least = min((sign["turns"] for sign in after.values()), default=0)
        late = []
        for rank, sign in (silent or after).items():
            if silent:
                how = "gives no sign of life"
                if sign["host"] == platform.node() and state_of(sign["pid"]) == "T":
                    how = "is stopped (SIGSTOP)"
                    os.kill(sign["pid"], signal.SIGCONT)
            elif sign["turns"] == least < self.turns:
                how = ("lives, but has not come to where the others wait for it: its data is slow, "
                       "or its step")  # fmt: skip
            else:
                continue
            late.append(f"rank {rank} (process {sign['pid']} on {sign['host']}) {how}")
        whom = "; ".join(late) or "no rank is known to be late"
        return LateError(f"{whom}. The others have waited for {self._timeout:g} s "
                         "(distributed.timeout)")  # fmt: skip

    def _signs(self) -> dict[int, dict[str, Any]]:
        """The last signs of the other ranks."""
        names = {n: f"rank-{n}" for n in range(self._world.size) if n != self._world.rank}
        try:
            return {rank: json.loads(self._store.get(name)) for rank, name in names.items()
                    if self._store.check([name])}  # fmt: skip
        except RuntimeError:
            return {}


def state_of(pid: int) -> str:
    """The state of a process as in /proc ("R", "S", "D", "T" ...); "" where that is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
