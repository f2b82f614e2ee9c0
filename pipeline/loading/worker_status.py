"""The address, sample and stage that each executor works on, to be read from outside; and the
seconds that the stages of a batch have taken.

Each executor writes into a cell of its own: worker processes into shared memory, which outlives
them, threads into an array, the main process into one that is never read. A reader may see a write
half done, which is good enough for a report. Cost: 0.1 us a report, 0.2 us a lap.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

STAGES = ("starting", "idle", "read", "transform", "collate", "batch transform")
STARTING, IDLE, READ, TRANSFORM, COLLATE, BATCH = range(len(STAGES))

FIELDS = 5  # int64 numbers in a cell
EPOCH, STEP, PLACE, STAGE, TASK = range(FIELDS)
WHOLE = -1  # the place of work on a batch as a whole

WAITS = 0.1  # share of the time waited from which on training is not the bottleneck

Cell = memoryview  # of FIELDS int64 numbers


class _Current(threading.local):
    cell: Cell = memoryview(bytearray(8 * FIELDS)).cast("q")


current = _Current()  # in a loop, writing into `current.cell` costs a third of `report`


class WorkerStatus(NamedTuple):
    """The content of a cell.

    Attributes:
        epoch, step: the address that was worked on last; -1 before the first.
        place: of the sample in its share, or WHOLE.
        stage: one of STAGES, as a number.
        task: the number of the request in a pool of processes.
    """

    epoch: int
    step: int
    place: int
    stage: int
    task: int


def report(slot: int, stage: int, address: tuple[int, int] | None = None) -> None:
    """Report that this thread is at `stage` of the sample in `slot`, or of the WHOLE batch.

    Args:
        address: of the batch, where it begins.
    """
    cell = current.cell
    if address is not None:
        cell[EPOCH], cell[STEP] = address
    cell[PLACE], cell[STAGE] = slot, stage


def place() -> memoryview:
    """The place in this thread's cell, int64 [1], for C code that goes through samples."""
    return current.cell[PLACE:STAGE]


class StageTimer:
    """Seconds by stage of the batch that begins now."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End a stage, which began with the last lap."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
