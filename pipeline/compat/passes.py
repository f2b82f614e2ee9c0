"""One way through an epoch of a DataLoader: what was delivered of it, and what comes next.

    Pass             the iterator: asks a backend for requests and hands on what they made
    RowsProgress     rows of a map-style dataset, in the order of a sampler
    PartsProgress    parts of an iterable dataset, a batch of each in turn

An error of a person's code is raised when its turn comes, in the type that it had, and the pass can
be gone on with after it. What a progress says of itself is plain: which batches were delivered.
Those that were made ahead are not, and will be made again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from pipeline.compat.drawing import Drawing
from pipeline.compat.item_fetch import Keys, Made, Rows, rows_of
from pipeline.compat.part_fetch import Turn
from pipeline.workers.backends import Backend, Failure, WorkerError

State = dict[str, Any]


class WorkersLostError(WorkerError, RuntimeError):
    """Workers died or hung, again and again; a RuntimeError, as torch raises."""


class Progress(Protocol):
    """What was delivered of an epoch."""

    def requests(self) -> Iterator[Any]:
        """What is to be made, as far as it has not been delivered."""

    def accept(self, made: Made) -> bool:
        """Take note of a result; whether there is something to deliver in it."""

    def state(self) -> State:
        """Of the epoch that is under way."""

    def at_the_end(self) -> Any:
        """What else there is to say once the epoch has ended."""


class Pass(Iterator[Any]):
    """The iterator over one epoch.

    Args:
        progress: what to ask for.
        backend: which works on it; closed with the pass unless it `keeps` its workers.
        pin: put batches into page-locked memory where the backend has not.
        claimed: batches that the loader said there are; None: it did not.

    Attributes:
        finished: whether all has been delivered, and the consumer knows.
    """

    def __init__(
        self, progress: Progress, backend: Backend, keeps: bool, pin: bool, claimed: int | None
    ) -> None:
        self.progress = progress
        self.finished = False
        self._pins = pin and not backend.pins
        self._claimed = claimed
        self._delivered = 0
        self._closed = False
        self._open = ExitStack()
        if not keeps:
            self._open.callback(backend.close)
        try:
            self._results = self._open.enter_context(backend.run(progress.requests()))
        except BaseException:
            self.close()
            raise

    def __next__(self) -> Any:
        while (made := self._take()) is not None:
            if self.progress.accept(made):
                self._count()
                return (made.pin_memory() if self._pins and made.error is None else made).get()
        raise StopIteration

    def close(self) -> None:
        """End it; workers that are not kept end, too."""
        self._results = iter(())
        self._closed = True
        self._open.close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    def _take(self) -> Made | None:
        """The next result; None at the end."""
        if self._closed:
            return None
        try:
            result = next(self._results, None)
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerError):
                raise _lost(error) from None
            raise
        if isinstance(result, Failure):
            self.progress.accept(Made(result.request))
            raise _lost(result.error) from None
        if result is None:
            self.finished = True
            self.close()
        return result  # type: ignore[return-value]

    def _count(self) -> None:
        self._delivered += 1
        if self._claimed is not None and self._delivered > self._claimed:
            warnings.warn(
                f"len() of this DataLoader said {self._claimed} batches, from the __len__ of its "
                f"IterableDataset, but this is batch {self._delivered}. If the dataset is read by "
                "several workers, its __iter__ has to divide itself by get_worker_info(), or each "
                "of them gives all of it",
                stacklevel=3,
            )


def _lost(error: Exception) -> Exception:
    """What to raise where workers could not make a batch."""
    if not isinstance(error, WorkerError):
        return error
    text = str(error)
    if "file descriptor" in text or "Too many open files" in text:
        text += (
            ". Each tensor that came from a worker keeps a file open: keep fewer, raise the limit "
            "(ulimit -n), or call torch.multiprocessing.set_sharing_strategy('file_system')"
        )
    return WorkersLostError(text)


class RowsProgress:
    """Rows in the order of a sampler.

    Args:
        epoch, seed: of the pass.
        drawing: gives the rows; begins here, so whatever it draws is drawn inside of the caller's
            `EpochDraws.epoch`.
        saved: of a progress that is gone on with.
        carried: from `at_the_end` of the epoch before, if that was another loader's.
    """

    def __init__(
        self, epoch: int, seed: int, drawing: Drawing, saved: Mapping[str, Any], carried: Any
    ) -> None:
        self._epoch, self._seed = epoch, seed
        self._drawing = drawing
        self._next = int(saved.get("step", 0))
        self._ahead = set(saved.get("ahead", ()))
        self._passed_over = frozenset(self._ahead)
        drawing.begin(self._next, saved.get("sampler"), carried)

    def requests(self) -> Iterator[Rows | Keys]:
        for step, start, keys in self._drawing:
            if step not in self._passed_over:
                yield rows_of(self._epoch, step, start, keys, self._seed)

    def accept(self, made: Made) -> bool:
        self._ahead.add(made.request.step)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        self._drawing.forget(self._next)
        return True

    def state(self) -> State:
        return {"step": self._next, "ahead": sorted(self._ahead),
                "sampler": self._drawing.state(self._next)}  # fmt: skip

    def at_the_end(self) -> Any:
        """What the sampler of another loader has to know to begin the next epoch."""
        return self._drawing.at_the_end()


@dataclass
class Part:
    """What was delivered of one worker's part.

    Attributes:
        batches: how many.
        ended: whether there are no more.
        batch, state: the dataset's state after so many of its batches, and None if it has none.
    """

    batches: int = 0
    ended: bool = False
    batch: int = 0
    state: Any = None


class PartsProgress:
    """Parts of an iterable dataset, a batch of each in turn; those that have ended are passed over.

    Args:
        epoch, seed: of the pass.
        workers: that the dataset sees; 0: none.
        processes: that read; with 0 it is this one.
        saved: of a progress that is gone on with.
        carried: the dataset's states at the end of the epoch before, by part.
    """

    def __init__(
        self, epoch: int, seed: int, workers: int, processes: int,
        saved: Mapping[str, Any], carried: list[Any] | None,
    ) -> None:  # fmt: skip
        self._epoch, self._seed = epoch, seed
        self.workers, self._processes = workers, max(processes, 1)
        self._copied = workers != processes
        parts = saved.get("parts") or [{"state": state} for state in carried or ()]
        self._parts = [Part(**part) for part in parts] or [Part() for _ in range(max(workers, 1))]
        self._begun_at = [(part.batch, part.state) for part in self._parts]

    def requests(self) -> Iterator[Turn]:
        # As many turns in a round as let each part be read by the same process throughout.
        turns = -(-len(self._parts) // self._processes) * self._processes
        here = [part.batches for part in self._parts]
        steps = count()
        for number in count(min((p.batches for p in self._parts if not p.ended), default=0)):
            for place in range(turns):
                if all(part.ended for part in self._parts):
                    return
                known = place < len(self._parts) and not self._parts[place].ended
                wanted = known and number >= here[place]
                yield self._turn(next(steps), place if wanted else -1, number)

    def _turn(self, step: int, place: int, number: int) -> Turn:
        if place < 0:
            return Turn(self._epoch, step, -1, self.workers, number, self._seed)
        batch, state = self._begun_at[place]
        at = None if state is None else (batch, state)
        return Turn(self._epoch, step, place, self.workers, number, self._seed, at, self._copied)

    def accept(self, made: Made) -> bool:
        turn: Turn = made.request
        if turn.worker < 0:
            return False
        part = self._parts[turn.worker]
        if made.ended:
            if not part.ended:
                part.ended, part.batch, part.state = True, part.batches, made.state
            return False
        part.batches = turn.number + 1
        if made.state is not None:
            part.batch, part.state = part.batches, made.state
        return True

    def state(self) -> State:
        return {"workers": self.workers, "parts": [vars(part).copy() for part in self._parts]}

    def at_the_end(self) -> Any:
        """States of the dataset with which its parts can go on in the next epoch."""
        return [part.state for part in self._parts]
