"""What was delivered of an epoch of a DataLoader, and what comes next.

    RowsProgress     rows of a map-style dataset, in the order of a sampler
    PartsProgress    parts of an iterable dataset, a batch of each in turn

What a progress says of itself is plain: which batches were delivered. Those that were made ahead
are not, and will be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from pipeline.loading.compat.drawing import Drawing
from pipeline.loading.compat.item_fetch import FetchResult, Keys, Rows, rows_of
from pipeline.loading.compat.part_fetch import ShardStep

State = dict[str, Any]


class Progress(Protocol):
    """What was delivered of an epoch.

    Attributes:
        finished: whether all has been delivered, and the consumer knows.
        is_waiting: whether `state` does not know yet with what the epoch began.
    """

    finished: bool

    @property
    def is_waiting(self) -> bool: ...

    def requests(self) -> Iterator[Any]:
        """What is to be made, as far as it has not been delivered."""

    def note(self, made: FetchResult) -> None:
        """Take note of what a result that is not delivered yet says of the epoch's beginning."""

    def accept(self, made: FetchResult) -> bool:
        """Take note of a result; whether there is something to deliver in it."""

    def state(self) -> State:
        """Of the epoch that is under way."""

    def __len__(self) -> int:
        """Batches in the epoch; TypeError where nobody knows."""

    def at_the_end(self) -> Any:
        """What else there is to say once the epoch has ended."""


class RowsProgress:
    """Rows in the order of a sampler.

    Args:
        epoch, seed: of the pass.
        drawing: gives the rows; begins here, so whatever it draws is drawn inside of the caller's
            `EpochDraws.epoch`.
        saved: of a progress that is gone on with.
        carried: from `at_the_end` of the epoch before, if that was another loader's.
        remote: whether other processes read them, whose deaths are to be told of by row.
    """

    def __init__(
        self, epoch: int, seed: int, drawing: Drawing, saved: Mapping[str, Any], carried: Any,
        remote: bool,
    ) -> None:  # fmt: skip
        self.finished = False
        self._epoch, self._seed = epoch, seed
        self._request = rows_of if remote else Keys
        self._drawing = drawing
        self._next = int(saved.get("step", 0))
        self._ahead = set(saved.get("ahead", ()))
        self._passed_over = frozenset(self._ahead)
        drawing.begin(self._next, saved.get("sampler"), carried)

    def requests(self) -> Iterator[Rows | Keys]:
        for step, start, keys in self._drawing:
            if step not in self._passed_over:
                yield self._request(self._epoch, step, start, keys, self._seed)

    @property
    def is_waiting(self) -> bool:
        return False

    def note(self, made: FetchResult) -> None:
        pass

    def __len__(self) -> int:
        return len(self._drawing)

    def accept(self, made: FetchResult) -> bool:
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
class Shard:
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


class OpenShard:
    """A request for the next batch of whichever part is to be read next.

    Attributes:
        assigned: how many tasks each worker has -> the number of the worker that is to have this
            one, and the definite request. Called when it is handed to the workers.
    """

    def __init__(self, assigned: Callable[[Sequence[int]], tuple[int, ShardStep]]) -> None:
        self.assigned = assigned


class ShardsProgress:
    """Parts of an iterable dataset; those that have ended are passed over.

    In order, a batch of each comes in turn. If not, the next batch is asked of the process that has
    least to do, so that what comes first depends on who is ready; what each part gives does not.

    Args:
        epoch, seed: of the pass.
        workers: that the dataset sees; 0: none.
        processes: that read; with 0 it is this one.
        in_order: with no processes it is.
        saved: of a progress that is gone on with.
        carried: the dataset's states at the end of the epoch before, by part.
        stateful: whether the dataset can save where it stands.
    """

    def __init__(
        self, epoch: int, seed: int, workers: int, processes: int, in_order: bool,
        saved: Mapping[str, Any], carried: list[Any] | None, stateful: bool,
    ) -> None:  # fmt: skip
        self.finished = False
        self._epoch, self._seed = epoch, seed
        self.workers, self._processes = workers, max(processes, 1)
        self._in_order = in_order or not processes
        self._copied = workers != processes
        parts = saved.get("parts") or [{"state": state} for state in carried or ()]
        self._parts = [Shard(**part) for part in parts] or [Shard() for _ in range(max(workers, 1))]
        self._begun_at = [(part.batch, part.state) for part in self._parts]
        self._asked = [part.batches for part in self._parts]
        self._unheard = set(range(len(self._parts))) if stateful else set()
        self._steps = count()

    @property
    def is_waiting(self) -> bool:
        unknown = (place for place, part in enumerate(self._parts) if part.state is None)
        return any(not self._parts[place].ended and place in self._unheard for place in unknown)

    def requests(self) -> Iterator[ShardStep | OpenShard]:
        if self._in_order:
            yield from self._turns()
        while not all(part.ended for part in self._parts):
            yield OpenShard(self._assigned)

    def _turns(self) -> Iterator[ShardStep]:
        # As many turns in a round as let each part be read by the same process throughout.
        turns = -(-len(self._parts) // self._processes) * self._processes
        here = list(self._asked)
        for number in count(min((p.batches for p in self._parts if not p.ended), default=0)):
            for place in range(turns):
                if all(part.ended for part in self._parts):
                    return
                known = place < len(self._parts) and not self._parts[place].ended
                wanted = known and number >= here[place]
                yield self._turn(place if wanted else -1, number)

    def _assigned(self, waiting: Sequence[int]) -> tuple[int, ShardStep]:
        left = [place for place, part in enumerate(self._parts) if not part.ended] or [0]
        place = min(left, key=lambda one: (waiting[one % self._processes], self._asked[one]))
        self._asked[place] += 1
        return place % self._processes, self._turn(place, self._asked[place] - 1)

    def _turn(self, place: int, number: int) -> ShardStep:
        step = next(self._steps)
        if place < 0:
            return ShardStep(self._epoch, step, -1, self.workers, number, self._seed)
        batch, state = self._begun_at[place]
        at = None if state is None else (batch, state)
        return ShardStep(
            self._epoch, step, place, self.workers, number, self._seed, at, self._copied
        )

    def note(self, made: FetchResult) -> None:
        place = made.request.worker
        self._unheard.discard(place)
        if place >= 0 and made.begun is not None and self._parts[place].state is None:
            self._parts[place].state = made.begun

    def accept(self, made: FetchResult) -> bool:
        turn: ShardStep = made.request
        if turn.worker < 0:
            return False
        self.note(made)
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

    def __len__(self) -> int:
        raise TypeError("how many batches there are of an IterableDataset shows at its end")
