"""Where each executor stands: address, sample and stage, to be read from outside.

    board.begin(epoch, step)         a backend takes up a request
    board.at(place, board.READ)      fetch comes to a sample, or to a stage of the batch
    board.here()[board.STAGE] = ...  the same in a loop, at a third of the cost
    board.rest()                     the batch is made

Each executor writes into a cell of its own: worker processes into shared memory, which outlives
them, threads into an array, the main process into one that nobody reads. A reader in between two
writes sees them half done, which does for a report. Cost: 0.1 us a call.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

STAGES = ("starting", "idle", "read", "transform", "collate", "batch transform")
STARTING, IDLE, READ, TRANSFORM, COLLATE, BATCH = range(len(STAGES))

FIELDS = 4  # int64 numbers in a cell
EPOCH, STEP, PLACE, STAGE = range(FIELDS)
WHOLE = -1  # the place of what is done to a batch as a whole

Cell = memoryview  # of FIELDS int64 numbers


class _Current(threading.local):
    """The cell of this thread."""

    cell: Cell = memoryview(bytearray(8 * FIELDS)).cast("q")


_current = _Current()


class WorkerStatus(NamedTuple):
    """What a cell said.

    Attributes:
        epoch, step: the address that was worked on last; -1 before the first.
        place: of the sample in its share, or WHOLE.
        stage: one of STAGES, as a number.
    """

    epoch: int
    step: int
    place: int
    stage: int

    @property
    def works(self) -> bool:
        """Whether a batch is being made."""
        return self.stage not in (STARTING, IDLE)


def use(cell: Cell) -> None:
    """Write what this thread does into `cell` from now on."""
    _current.cell = cell


def clear(cell: Cell) -> None:
    """The state of an executor that is about to start."""
    cell[EPOCH] = cell[STEP] = cell[PLACE] = -1
    cell[STAGE] = STARTING


def read(cell: Cell) -> WorkerStatus:
    """What stands in `cell` now."""
    return WorkerStatus(*cell.tolist())


def begin(epoch: int, step: int) -> None:
    """This thread works on batch (epoch, step)."""
    cell = _current.cell
    cell[EPOCH], cell[STEP], cell[PLACE], cell[STAGE] = epoch, step, WHOLE, READ


def report(place: int, stage: int) -> None:
    """This thread has come to `stage` of the sample at `place`, or of the WHOLE batch."""
    cell = _current.cell
    cell[PLACE], cell[STAGE] = place, stage


def current_cell() -> Cell:
    """This thread's cell."""
    return _current.cell


def place() -> memoryview:
    """Where this thread's place stands, int64 [1]: C code that goes through samples writes it."""
    return _current.cell[PLACE:STAGE]


def idle() -> None:
    """This thread works on nothing."""
    report(WHOLE, IDLE)
