"""Progress of a DataLoader's epoch: what was delivered, and what comes next.

    ShardsProgress    shards of an iterable dataset, a batch of each in turn
    RowsProgress      rows of a map-style dataset

A state is plain and tells which batches were delivered. Those that were made ahead are not, and
will be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from penstock.addons.dataloader.epoch_draws import is_stateful, wrapped
from penstock.addons.dataloader.item_fetch import FetchResult, Keys, ShardStep
from penstock.order.plan import forwards

State = dict[str, object]


class Progress:
    """The part of an epoch that was delivered.

    Attributes:
        finished: whether all has been delivered, and the consumer knows.
    """

    finished = False

    @property
    def is_waiting(self) -> bool:
        """Whether `state` does not know yet with what the epoch began."""
        return False

    def requests(self) -> Iterator[Any]:
        """The requests whose batches have not been delivered."""
        raise NotImplementedError

    def note(self, result: FetchResult) -> None:
        """Take note of what a result, not delivered yet, says of the epoch's beginning."""

    def accept(self, result: FetchResult) -> bool:
        """Take note of a result; whether there is something to deliver in it."""
        raise NotImplementedError

    def state(self) -> State:
        """Of the epoch that is under way."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches in the epoch."""
        raise TypeError("how many batches there are of an IterableDataset shows at its end")

    def at_the_end(self) -> Any:
        """The state of samplers and datasets for the next epoch."""
        raise NotImplementedError


@dataclass
class Shard:
    """The part of one worker's share that was delivered.

    Attributes:
        batches: how many.
        ended: whether there are no more.
        batch, state: the dataset's state after so many of its batches, and None if it has none.
    """

    batches: int = 0
    ended: bool = False
    batch: int = 0
    state: Any = None


@dataclass(frozen=True)
class OpenShard:
    """A request for a batch of any shard.

    Attributes:
        assigned: from the number of tasks of each worker, the worker that is to have this one, and
            the definite request. Called when it is handed to the workers.
    """

    assigned: Callable[[Sequence[int]], tuple[int, ShardStep]]


class ShardsProgress(Progress):
    """Shards of an iterable dataset; those that have ended are skipped.

    In order, a batch of each comes in turn. If not, the next batch is asked of the process that has
    least to do: which comes first depends on who is ready, and what each shard gives does not.

    Args:
        epoch, seed: of the pass.
        workers: that the dataset sees; 0: none.
        processes: that read; with 0 it is this one.
        in_order: with no processes it is.
        saved: of a progress to continue.
        carried: the dataset's states at the end of the epoch before, by shard.
        stateful: whether the dataset can save where it stands.
    """

    def __init__(
        self,
        epoch: int,
        seed: int,
        workers: int,
        processes: int,
        in_order: bool,
        saved: Mapping[str, Any],
        carried: list[Any] | None,
        stateful: bool,
    ) -> None:
        self._epoch, self._seed = epoch, seed
        self.workers, self._processes = workers, max(processes, 1)
        self._in_order = in_order or not processes
        self._copied = workers != processes
        known = saved.get("parts") or [{"state": state} for state in carried or ()]
        self._shards = [Shard(**part) for part in known] or [
            Shard() for _ in range(max(workers, 1))
        ]
        self._begun_at = [(shard.batch, shard.state) for shard in self._shards]
        self._asked = [shard.batches for shard in self._shards]
        self._unheard = set(range(len(self._shards))) if stateful else set()
        self._steps = count()

    @property
    def is_waiting(self) -> bool:
        unheard = (self._shards[index] for index in self._unheard)
        return any(shard.state is None and not shard.ended for shard in unheard)

    def requests(self) -> Iterator[ShardStep | OpenShard]:
        if self._in_order:
            yield from self._in_turn()
        while not all(shard.ended for shard in self._shards):
            yield OpenShard(self._assigned)

    def _in_turn(self) -> Iterator[ShardStep]:
        # As many turns in a round as let each shard be read by the same process throughout.
        turns = -(-len(self._shards) // self._processes) * self._processes
        first = list(self._asked)
        for number in count(min((s.batches for s in self._shards if not s.ended), default=0)):
            for index in range(turns):
                if all(shard.ended for shard in self._shards):
                    return
                known = index < len(self._shards) and not self._shards[index].ended
                is_asked = known and number >= first[index]
                yield self._step(index if is_asked else -1, number)

    def _assigned(self, loads: Sequence[int]) -> tuple[int, ShardStep]:
        left = [index for index, shard in enumerate(self._shards) if not shard.ended] or [0]
        index = min(left, key=lambda index: (loads[index % self._processes], self._asked[index]))
        self._asked[index] += 1
        return index % self._processes, self._step(index, self._asked[index] - 1)

    def _step(self, shard: int, number: int) -> ShardStep:
        step = ShardStep(self._epoch, next(self._steps), shard, self.workers, number, self._seed)
        if shard < 0:
            return step
        batch, state = self._begun_at[shard]
        at = None if state is None else (batch, state)
        return replace(step, state=at, copied=self._copied)

    def note(self, result: FetchResult) -> None:
        shard = result.request.worker
        self._unheard.discard(shard)
        if shard >= 0 and result.begun is not None and self._shards[shard].state is None:
            self._shards[shard].state = result.begun

    def accept(self, result: FetchResult) -> bool:
        step: ShardStep = result.request
        if step.worker < 0:
            return False
        self.note(result)
        shard = self._shards[step.worker]
        if result.ended:
            if not shard.ended:
                shard.ended, shard.batch, shard.state = True, shard.batches, result.state
            return False
        shard.batches = step.number + 1
        if result.state is not None:
            shard.batch, shard.state = shard.batches, result.state
        return True

    def state(self) -> State:
        return {"workers": self.workers, "parts": [vars(shard).copy() for shard in self._shards]}

    def at_the_end(self) -> Any:
        return [shard.state for shard in self._shards]


_NOTHING = object()  # a row may be None
_Drawn = tuple[int, int, object]  # step, place of the first row in the epoch, rows


class RowsProgress(Progress):
    """Rows in the order of a sampler.

    All that is random about the epoch is drawn when it is made, inside of `EpochDraws.epoch`.

    Args:
        epoch, seed: of the pass.
        source: a sampler of rows, or one of batches.
        size: rows of a batch that are taken from `source`; None: its elements are handed on.
        drop_last: leave out a last, smaller batch; with `size`.
        every: steps between two states that are kept, of a sampler that has one.
        saved: of a progress to continue.
        carried: from `at_the_end` of the epoch before, if that was another loader's.
    """

    def __init__(
        self,
        epoch: int,
        seed: int,
        source: Any,
        size: int | None,
        drop_last: bool,
        every: int,
        saved: Mapping[str, Any],
        carried: Any,
    ) -> None:
        self._epoch, self._seed, self._source = epoch, seed, source
        self._size, self._drop_last, self._every = size, drop_last, max(every, 1)
        self._next = int(saved.get("step", 0))
        self._ahead = set(saved.get("ahead", ()))
        self._skipped = frozenset(self._ahead)
        self._kept: dict[int, State] = {}  # of the sampler, by step
        self._final: Any = None
        self._step = self._samples = 0
        self._ended = False
        self._begin(saved.get("sampler"), carried)

    def _begin(self, saved: Mapping[str, Any] | None, carried: Any) -> None:
        """Go to the next step, and draw it."""
        owner: Any = next((part for part in wrapped(self._source) if is_stateful(part)), None)
        state = carried if saved is None else saved["state"]
        of_iterator = saved is not None and saved["of"] == "iterator"
        if state is not None and owner is not None and not of_iterator:
            owner.load_state_dict(deepcopy(state))
        self._rows: Any = iter(self._source)
        self._stateful: Any = self._rows if is_stateful(self._rows) else owner
        if of_iterator and self._stateful is self._rows:
            self._rows.load_state_dict(deepcopy(state))
        if saved is not None and self._stateful is not None:
            self._step, self._samples = int(saved["step"]), int(saved["samples"])
            self._ended = bool(saved["ended"])
        self._keep()
        while self._step < self._next and self._draw() is not None:
            pass
        self._first = self._draw() if self._step == self._next else None
        if carried is not None and self._first is None:
            # Some samplers say at their end that nothing is left, and then begin anew.
            self._rows, self._ended = iter(self._source), False
            self._first = self._draw()

    def requests(self) -> Iterator[Keys]:
        drawn = self._first
        while drawn is not None:
            step, start, keys = drawn
            if step not in self._skipped:
                yield Keys(self._epoch, step, start, keys, self._seed)
            drawn = self._draw()

    def __len__(self) -> int:
        """As the sampler claims."""
        length = len(self._source)
        if self._size is None:
            return length
        return length // self._size if self._drop_last else -(-length // self._size)

    def accept(self, result: FetchResult) -> bool:
        self._ahead.add(result.request.step)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        if len(self._kept) > 1:  # drop states that are not needed to reach the next step
            for number in sorted(number for number in self._kept if number <= self._next)[:-1]:
                del self._kept[number]
        return True

    def state(self) -> State:
        sampler = None
        if self._stateful is not None:
            known = max(number for number in self._kept if number <= self._next)
            of = "iterator" if self._stateful is self._rows else "sampler"
            sampler = {"of": of, "step": known, **deepcopy(self._kept[known])}
        return {"step": self._next, "ahead": sorted(self._ahead), "sampler": sampler}

    def at_the_end(self) -> Any:
        """The sampler's state once it had ended; None if it has none, or has not ended."""
        return deepcopy(self._final)

    def _draw(self) -> _Drawn | None:
        rows = self._next_rows()
        if self._ended and self._stateful is not None and self._stateful is not self._rows:
            self._final = deepcopy(self._stateful.state_dict())
        if rows is _NOTHING:
            return None
        drawn = self._step, self._samples, rows
        self._step += 1
        self._samples += len(rows) if isinstance(rows, (list, tuple)) else 1
        self._keep()
        return drawn

    def _next_rows(self) -> Any:
        if self._ended:
            return _NOTHING
        if self._size is None:
            rows = next(self._rows, _NOTHING)
            self._ended = rows is _NOTHING
            return rows
        rows = list(islice(forwards(self._rows), self._size))
        self._ended = len(rows) < self._size
        return _NOTHING if not rows or (self._ended and self._drop_last) else rows

    def _keep(self) -> None:
        if self._stateful is not None and (self._step % self._every == 0 or not self._kept):
            state = deepcopy(self._stateful.state_dict())
            self._kept[self._step] = {
                "samples": self._samples,
                "ended": self._ended,
                "state": state,
            }
