"""Turns of an iterable dataset to batches, as torch's workers would read their parts of it.

An iterable dataset is divided among workers by itself, as it sees them through `get_worker_info()`.
So the workers that it sees are part of what its batches are, and the processes that read are not:
any process can read the part of any worker, from its beginning or from a state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils import data

from pipeline.loading import worker_status
from pipeline.loading.compat.drawing import is_stateful
from pipeline.loading.compat.item_fetch import FetchResult, kept
from pipeline.order.address import Addressed
from pipeline.order.randomness import GLOBAL, Draws, hash64
from pipeline.order.streams import forwards
from pipeline.torch_internals import WorkerInfo, worker_info


@dataclass(frozen=True, slots=True)
class ShardStep(Addressed):
    """One batch of one worker's part of an iterable dataset.

    Attributes:
        epoch, step: the address; step counts turns.
        worker: whose part; -1: nobody's, to be passed over.
        workers: that the dataset sees; 0: none, it is read whole.
        number: of the batch in the part.
        seed: of the epoch.
        state: (number, state) to begin the part from; None: from its start.
        copied: whether the part is read by a process that is not its worker, so that it needs a
            copy of the dataset and `worker_init_fn`.
    """

    epoch: int
    step: int
    worker: int
    workers: int
    number: int
    seed: int
    state: tuple[int, Any] | None = None
    copied: bool = False


@dataclass
class ShardFetch:
    """Work on one turn of an iterable dataset.

    Attributes:
        size: samples in a batch; None hands on what the dataset gives.
        drop_last: end a part before a last, smaller batch.
        every: batches of a part between two states that are sent along.
        worker_init_fn: run for parts that are read from a copy.
        keyed: whether each batch's draws come from a key of its own.
        tried: no sample is made twice here to compare the two.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    size: int | None
    drop_last: bool
    every: int
    remote: bool
    worker_init_fn: Callable[[int], None] | None = None
    keyed: bool = True
    seed: int = 0
    transform: None = None
    batch_transform: None = None
    tried: bool = True
    _parts: dict[int, StreamShard] = field(default_factory=dict, repr=False)
    _process: int = -1

    def __call__(self, turn: ShardStep, draws: Draws = GLOBAL) -> FetchResult:
        if turn.worker < 0:
            return FetchResult(turn, ended=True)
        try:
            part = self._part(turn, draws)
            samples = part.batch(turn.number)
            begun = part.take_begun()
            if samples is None:
                return FetchResult(turn, ended=True, state=part.state(whole=True), begun=begun)
            saves = self.every > 0 and (turn.number + 1) % self.every == 0
            state = part.state() if saves else None
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            return FetchResult(turn, self.collate(samples), state=state, begun=begun)
        except Exception as error:
            return FetchResult(turn, error=kept(error, self.remote))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_parts": {}}

    def dataset_of_worker(self) -> Any:
        return self.dataset

    def _part(self, turn: ShardStep, draws: Draws) -> StreamShard:
        if self._process != os.getpid():
            self._parts, self._process = {}, os.getpid()
        part = self._parts.get(turn.worker)
        if part is None or part.epoch != turn.epoch or part.next > turn.number:
            part = self._parts[turn.worker] = StreamShard(self, turn, draws)
        return part


class StreamShard:
    """What one worker reads of an iterable dataset.

    Its draws for each batch come from (seed of the epoch, worker, number of the batch).

    Attributes:
        next: number of the next batch.
    """

    def __init__(self, fetch: ShardFetch, turn: ShardStep, draws: Draws) -> None:
        self.epoch = turn.epoch
        self._fetch, self._turn, self._draws = fetch, turn, draws
        self._ended = False
        self._dataset = deepcopy(fetch.dataset) if turn.copied else fetch.dataset
        self.next, state = turn.state or (0, None)
        with self._worker():
            self._seed()
            if is_pipe(self._dataset):
                _divide_pipe(self._dataset, turn)
            if turn.copied and turn.workers and fetch.worker_init_fn is not None:
                fetch.worker_init_fn(turn.worker)
            self._records = self._open(state or {})
            # Only now: some datasets have no state before there is an iterator.
            self._begun = None if state else self.state(whole=True)
        self._forwards = forwards(self._records)

    def batch(self, number: int) -> Any:
        """Samples of a batch, or the one record; None where the part has ended."""
        while self.next < number and not self._ended:
            self._read()
        samples = None if self._ended else self._read()
        self.next = max(self.next, number + 1)
        return samples

    def state(self, whole: bool = False) -> dict[str, Any] | None:
        """Of the dataset and of its iterator, those which have one.

        Args:
            whole: only that with which an epoch begins.
        """
        if whole:
            return states_of(dataset=self._dataset)
        if self._records is self._dataset:
            return states_of(iterator=self._records)
        return states_of(dataset=self._dataset, iterator=self._records)

    def take_begun(self) -> dict[str, Any] | None:
        """The state with which it began, once; None if it was given that."""
        begun, self._begun = self._begun, None
        return begun

    def _open(self, state: dict[str, Any]) -> Iterator[Any]:
        if "dataset" in state and is_stateful(self._dataset):
            self._dataset.load_state_dict(deepcopy(state["dataset"]))
        records = iter(self._dataset)
        if "iterator" in state and is_stateful(records):
            records.load_state_dict(deepcopy(state["iterator"]))
        return records

    def _read(self) -> Any:
        size, fetch = self._fetch.size, self._fetch
        with self._worker():
            self._seed()
            self.next += 1
            worker_status.report(0, worker_status.READ)
            if size is None:
                samples = list(islice(self._forwards, 1))
            else:
                samples = []
                for place, sample in enumerate(islice(self._forwards, size)):
                    samples.append(sample)
                    worker_status.report(place + 1, worker_status.READ)
        short = size is not None and len(samples) < size
        self._ended = not samples or short
        if not samples or (short and fetch.drop_last):
            return None
        return samples[0] if size is None else samples

    def _seed(self) -> None:
        if not self._fetch.keyed:
            return
        self._draws.seed(hash64(self._turn.seed, "part", self._turn.worker, self.next) >> 1)

    @contextmanager
    def _worker(self) -> Iterator[None]:
        """Let the dataset see the worker whose part this is."""
        turn = self._turn
        info = WorkerInfo(
            id=turn.worker, num_workers=turn.workers, seed=turn.seed + turn.worker,
            dataset=self._dataset,
        ) if turn.workers else None  # fmt: skip
        with worker_info(info):
            yield


def is_pipe(dataset: Any) -> bool:
    """Whether it is one of torch's data pipes, as far as torch still has them."""
    kinds = (getattr(data, name, None) for name in ("IterDataPipe", "MapDataPipe"))
    return isinstance(dataset, tuple(kind for kind in kinds if kind is not None))


def world_size() -> int:
    """Of the distributed run, as torch sees it."""
    here = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if here else 1


def _divide_pipe(pipe: Any, turn: ShardStep) -> None:
    """As torch's loader does: one shuffled order for all workers, of which each has a part."""
    settings = data.graph_settings
    settings.apply_random_seed(pipe, torch.Generator().manual_seed(turn.seed))
    if turn.workers:
        settings.apply_sharding(pipe, turn.workers, turn.worker)


def states_of(**parts: Any) -> dict[str, Any] | None:
    """Copies of the states of those parts that have one, by name; None if none has."""
    states = {name: part.state_dict() for name, part in parts.items() if is_stateful(part)}
    return {name: deepcopy(one) for name, one in states.items() if one is not None} or None
