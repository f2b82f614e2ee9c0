"""What a run's folder knows of an address: its loss, how often it was trained on, and its ranks.

A session's entry in the manifest has the address at which it began (`at`), and how many steps of
the ledger it took again (`repeated`), since they came after the checkpoint that it resumed from.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from penstock.order.address import Address
from penstock.order.skipped import Skipped
from penstock.runs.record import LEDGER, RunRecord, skipped_in

SKIPPED = "left out (trainer.skip)"

_MOST_RANKS = 1 << 20


class _Start(NamedTuple):
    """One start of the run: the address of its first batch, and its ranks."""

    at: Address
    world: int
    repeated: int


class RunHistory:
    """The addresses of one run's training.

    Raises:
        PenstockError: its ledger is damaged.
    """

    def __init__(self, record: RunRecord) -> None:
        self._starts = [_start(session) for session in record.sessions]
        self._ledger, self._path = record.ledger, record.path / LEDGER

    def world(self, address: Address) -> int:
        """The ranks of the start that trained on `address` last, or will if nothing changes."""
        worlds = [start.world for start in self._starts if start.at <= address]
        return worlds[-1] if worlds else 1

    def loss(self, address: Address) -> float | None:
        """The mean loss of its batch; None if the ledger does not have it."""
        line = self._place(address)
        return None if self._ledger is None or line is None else float(self._ledger.loss[line])

    def fate(self, address: Address) -> str:
        """What became of `address`, in a few words."""
        ledger = self._ledger
        if ledger is None:
            return "unknown: no ledger"
        line = self._place(address)
        if line is None:
            passed = len(ledger.epoch) and address < (ledger.epoch[-1], ledger.step[-1])
            if not passed:
                return "not reached"
            return SKIPPED if address in self._skipped else "passed over"
        times = 1
        for start in self._starts:
            first = self._place(start.at)
            times += first is not None and first <= line < first + start.repeated
        return "trained" if times == 1 else f"trained {times} times, last with this loss"

    @cached_property
    def _skipped(self) -> Skipped:
        return skipped_in(self._path)

    def _place(self, address: Address) -> int | None:
        """The number of its line in the ledger."""
        if self._ledger is None:
            return None
        first, last = np.searchsorted(self._ledger.epoch, [address.epoch, address.epoch + 1])
        steps = self._ledger.step[first:last]
        line = int(np.searchsorted(steps, address.step))
        return int(first) + line if line < len(steps) and steps[line] == address.step else None


def _start(session: dict[str, Any]) -> _Start:
    """A session of a manifest, which may be anybody's."""
    at, world, repeated = (session.get(name) for name in ("at", "world", "repeated"))
    known = isinstance(at, list) and len(at) == 2 and all(type(number) is int for number in at)
    return _Start(
        Address(*at) if known and isinstance(at, list) else Address(0, 0),
        world if type(world) is int and 1 <= world <= _MOST_RANKS else 1,
        repeated if type(repeated) is int and repeated > 0 else 0,
    )
