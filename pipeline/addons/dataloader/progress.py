"""Progress of a DataLoader's epoch: what was delivered, and what comes next.

    ShardsProgress    shards of an iterable dataset, a batch of each in turn
    RowsProgress      rows of a map-style dataset (pipeline/addons/dataloader/drawing.py)

A state is plain and tells which batches were delivered. Those that were made ahead are not, and
will be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from penstock.addons.dataloader.item_fetch import FetchResult
from penstock.addons.dataloader.part_fetch import ShardStep
from penstock.files.plain_json import JsonError, integer, mapping, shown

State = dict[str, Any]

_MOST_WORKERS = 1 << 16


def check(state: Any, iterable: bool) -> None:
    """Refuse what no `Progress.state` gives: a state may come from anybody.

    Raises:
        JsonError: with the key.
    """
    if not iterable:
        integer(mapping(state), "step")
        ahead = state.get("ahead")
        if not isinstance(ahead, list) or not all(type(one) is int for one in ahead):
            raise JsonError(f"ahead is {shown(ahead)}, and must be a list of steps")
        sampler = state.get("sampler")
        if sampler is not None:
            integer(mapping(sampler), "step")
            integer(sampler, "samples")
            if sampler.keys() != {"of", "step", "samples", "ended", "state"}:
                raise JsonError("sampler has missing or unexpected keys")
        return
    workers, parts = integer(mapping(state), "workers", most=_MOST_WORKERS), state.get("parts")
    if not isinstance(parts, list) or len(parts) != max(workers, 1):
        raise JsonError(f"parts is {shown(parts)}, and must be a list, one for each worker")
    for one in parts:
        integer(mapping(one), "batches")
        integer(one, "batch")
        if one.keys() != {"batches", "ended", "batch", "state"}:
            raise JsonError("a part has missing or unexpected keys")


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
        self._shards = [Shard(**one) for one in known] or [Shard() for _ in range(max(workers, 1))]
        self._begun_at = [(shard.batch, shard.state) for shard in self._shards]
        self._asked = [shard.batches for shard in self._shards]
        self._unheard = set(range(len(self._shards))) if stateful else set()
        self._steps = count()

    @property
    def is_waiting(self) -> bool:
        unheard = (self._shards[place] for place in self._unheard)
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
            for place in range(turns):
                if all(shard.ended for shard in self._shards):
                    return
                known = place < len(self._shards) and not self._shards[place].ended
                wanted = known and number >= first[place]
                yield self._step(place if wanted else -1, number)

    def _assigned(self, loads: Sequence[int]) -> tuple[int, ShardStep]:
        left = [place for place, shard in enumerate(self._shards) if not shard.ended] or [0]
        place = min(left, key=lambda one: (loads[one % self._processes], self._asked[one]))
        self._asked[place] += 1
        return place % self._processes, self._step(place, self._asked[place] - 1)

    def _step(self, place: int, number: int) -> ShardStep:
        step = ShardStep(self._epoch, next(self._steps), place, self.workers, number, self._seed)
        if place < 0:
            return step
        batch, state = self._begun_at[place]
        at = None if state is None else (batch, state)
        return replace(step, state=at, copied=self._copied)

    def note(self, result: FetchResult) -> None:
        place = result.request.worker
        self._unheard.discard(place)
        if place >= 0 and result.begun is not None and self._shards[place].state is None:
            self._shards[place].state = result.begun

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
