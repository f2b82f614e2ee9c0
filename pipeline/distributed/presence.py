"""What ranks know of each other without a collective: who is there, how far, and who wants to stop.

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
from pathlib import Path
from typing import Any

from pipeline.distributed import preemption
from pipeline.distributed.world import World
from pipeline.errors import PenstockError

_LOOK = 0.25  # seconds between two looks for a wish
_LOOKS = 4  # between two signs of life
_SILENT = 3.0  # seconds without a sign, after which a rank does not live, as far as one can tell
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
        try:
            self._store.set("stop", name)
        except RuntimeError:  # the store went with another rank, which everybody will notice
            return

    def _live(self) -> None:
        looks = 0
        try:
            while not self._done.is_set():
                if looks % _LOOKS == 0:
                    self._sign(looks // _LOOKS)
                looks += 1
                if self._store.check(["stop"]):
                    if not preemption.asked():
                        number = getattr(signal, self._store.get("stop").decode())
                        signal.pthread_kill(threading.main_thread().ident or 0, number)
                    return
                self._done.wait(_LOOK)
        except RuntimeError:  # the store is gone
            return

    def _sign(self, number: int) -> None:
        sign = {"number": number, "turns": self.turns, "pid": os.getpid(), "host": platform.node()}
        self._store.set(f"rank-{self._world.rank}", json.dumps(sign))

    def explained(self, error: RuntimeError) -> LateError | None:
        """Which rank was waited for in vain, if that is what `error` means; takes 3 s.

        One rank says it, in the name of all. One that is stopped is let go on, so that it can end.
        """
        if _TIMED_OUT not in str(error) and not self._is_said():
            return None
        if self._says() > 1:
            time.sleep(2 * _SILENT)  # a rank that ends has the launcher end the others
            return LateError("")
        before = self._signs()
        time.sleep(_SILENT)
        after = self._signs()
        own = self._world.rank
        silent = [rank for rank, sign in after.items() if rank != own and sign == before.get(rank)]
        least = min((sign["turns"] for sign in after.values()), default=0)
        behind = [rank for rank, sign in after.items() if rank != own and sign["turns"] == least]
        behind = behind if least < self.turns else []
        said = [self._silent(rank, after[rank]) for rank in silent]
        said = said or [self._behind(rank, after[rank]) for rank in behind]
        whom = "; ".join(said) or "no rank is known to be late"
        for rank in silent:
            self._wake(after[rank])
        return LateError(f"{whom}. The others have waited for {self._timeout:g} s "
                         "(distributed.timeout)")  # fmt: skip

    def _is_said(self) -> bool:
        try:
            return bool(self._store.check(["late"]))
        except RuntimeError:
            return False

    def _says(self) -> int:
        """How many ranks wanted to say who is late, this one included."""
        try:
            return int(self._store.add("late", 1))
        except RuntimeError:
            return 1

    def _signs(self) -> dict[int, dict[str, Any]]:
        names = {rank: f"rank-{rank}" for rank in range(self._world.size)}
        try:
            return {rank: json.loads(self._store.get(name)) for rank, name in names.items()
                    if self._store.check([name])}  # fmt: skip
        except RuntimeError:
            return {}

    def _silent(self, rank: int, sign: dict[str, Any]) -> str:
        how = "is stopped (SIGSTOP)" if _is_stopped(sign) else "gives no sign of life"
        return f"rank {rank} (process {sign['pid']} on {sign['host']}) {how}"

    def _wake(self, sign: dict[str, Any]) -> None:
        if _is_stopped(sign):
            os.kill(sign["pid"], signal.SIGCONT)

    def _behind(self, rank: int, sign: dict[str, Any]) -> str:
        return (f"rank {rank} (process {sign['pid']} on {sign['host']}) lives, but has not come to "
                "where the others wait for it: its data is slow, or its step")  # fmt: skip


def _is_stopped(sign: dict[str, Any]) -> bool:
    """Whether the rank of that sign is a process of this machine that has been stopped."""
    if sign["host"] != platform.node():
        return False
    try:
        return Path(f"/proc/{sign['pid']}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False
