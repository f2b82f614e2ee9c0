"""Batches of an iterable dataset, shard by shard, as torch's workers would read it.

An iterable dataset divides itself among the workers that `get_worker_info()` shows. A shard is what
one of these reads. Any process can read any shard, from its beginning or from a state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import torch
from torch.utils import data

from penstock.addons.dataloader.epoch_draws import is_stateful
from penstock.addons.dataloader.item_fetch import BackendFetch, FetchResult, portable, settled
from penstock.loading import worker_status
from penstock.loading.memory import of_a_batch
from penstock.order.address import Addressed
from penstock.order.randomness import GLOBAL, Draws, hash64
from penstock.order.streams import forwards
from penstock.torch_internals import WorkerInfo, worker_info


@dataclass(frozen=True, slots=True)
class ShardStep(Addressed):
    """One batch of one shard of an iterable dataset.

    Attributes:
        epoch, step: the address; `step` counts the requests of all shards.
        worker: whose shard; -1: nobody's, to be skipped.
        workers: that the dataset sees; 0: none, it is read whole.
        number: of the batch in the shard.
        seed: of the epoch.
        state: (number, state) to begin the shard from; None: from its start.
        copied: whether the process that reads is not that worker, and so needs a copy of the
            dataset and `worker_init_fn`.
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
class ShardFetch(BackendFetch):
    """Work on one request of an iterable dataset.

    Attributes:
        size: samples in a batch; None hands on what the dataset gives.
        drop_last: end a shard before a last, smaller batch.
        every: batches of a shard between two states that are sent along.
        worker_init_fn: called for shards that are read from a copy.
        keyed: whether each batch's draws come from a key of its own.
        most_bytes: that readers may reserve for the samples of a batch.
    """

    in_turn: ClassVar[bool] = True  # a shard is read by the worker that it is asked of

    dataset: Any
    collate: Callable[[Any], Any]
    size: int | None
    drop_last: bool
    every: int
    remote: bool
    worker_init_fn: Callable[[int], None] | None = None
    keyed: bool = True
    most_bytes: int = field(default_factory=lambda: of_a_batch(0, 0))
    _shards: dict[int, StreamShard] = field(default_factory=dict, repr=False)
    _process: int = -1

    def __call__(self, step: ShardStep, draws: Draws = GLOBAL) -> FetchResult:
        if step.worker < 0:
            return FetchResult(step, ended=True)
        try:
            shard = self._shard(step, draws)
            samples = shard.batch(step.number)
            begun, shard.begun = shard.begun, None
            if samples is None:
                return FetchResult(step, ended=True, state=shard.begin_state(), begun=begun)
            saves = self.every > 0 and (step.number + 1) % self.every == 0
            state = shard.state() if saves else None
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            return FetchResult(step, self.collate(samples), state=state, begun=begun)
        except Exception as error:
            return FetchResult(step, error=portable(error, self.remote))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}}

    def _shard(self, step: ShardStep, draws: Draws) -> StreamShard:
        if self._process != os.getpid():
            self._shards, self._process = {}, os.getpid()
        shard = self._shards.get(step.worker)
        if shard is None or shard.epoch != step.epoch or shard.next > step.number:
            shard = self._shards[step.worker] = StreamShard(self, step, draws)
        return shard


class StreamShard:
    """One worker's share of an iterable dataset, being read.

    Its draws for each batch depend on (seed of the epoch, worker, number of the batch).

    Attributes:
        next: number of the next batch.
        begun: the state that it was opened with; None if it was given one.
    """

    def __init__(self, fetch: ShardFetch, step: ShardStep, draws: Draws) -> None:
        self.epoch = step.epoch
        self._fetch, self._step, self._draws = fetch, step, draws
        self._ended = False
        self._dataset = deepcopy(fetch.dataset) if step.copied else fetch.dataset
        self.next, state = step.state or (0, {})
        # The dataset shall see the worker whose shard this is.
        self._info = (
            WorkerInfo(
                id=step.worker,
                num_workers=step.workers,
                seed=step.seed + step.worker,
                dataset=self._dataset,
            )
            if step.workers
            else None
        )
        with worker_info(self._info):
            self._seed()
            if is_pipe(self._dataset):
                # As torch does: one shuffled order for all workers, divided among them.
                shared = torch.Generator().manual_seed(step.seed)
                data.graph_settings.apply_random_seed(self._dataset, shared)
                if step.workers:
                    data.graph_settings.apply_sharding(self._dataset, step.workers, step.worker)
            if step.copied and step.workers and fetch.worker_init_fn is not None:
                fetch.worker_init_fn(step.worker)
            _load(self._dataset, state.get("dataset"))
            self._records: Iterator[Any] = iter(self._dataset)
            _load(self._records, state.get("iterator"))
            # Only now: some datasets have no state before there is an iterator.
            self.begun = None if state else self.begin_state()
        self._forwards = forwards(self._records)

    def batch(self, number: int) -> Any:
        """Samples of a batch, or the one record; None where the shard has ended."""
        while self.next < number and not self._ended:
            self._read()
        samples = None if self._ended else self._read()
        self.next = max(self.next, number + 1)
        return samples

    def state(self) -> dict[str, Any] | None:
        """Of the dataset and of its iterator, those which have one."""
        if self._records is self._dataset:
            return _states(iterator=self._records)
        return _states(dataset=self._dataset, iterator=self._records)

    def begin_state(self) -> dict[str, Any] | None:
        """Of the dataset alone, with which an epoch begins."""
        return _states(dataset=self._dataset)

    def _read(self) -> Any:
        size = self._fetch.size
        with worker_info(self._info), self._fetch.bounded() as account:
            self._seed()
            self.next += 1
            worker_status.report(0, worker_status.READ)
            samples, taken = [], 0
            for place, sample in enumerate(islice(self._forwards, size or 1)):
                samples.append(sample)
                if account.taken != taken:
                    taken = settled(account, taken, sample)
                worker_status.report(place + 1, worker_status.READ)
        short = size is not None and len(samples) < size
        self._ended = not samples or short
        if not samples or (short and self._fetch.drop_last):
            return None
        return samples[0] if size is None else samples

    def _seed(self) -> None:
        if self._fetch.keyed:
            self._draws.seed(hash64(self._step.seed, "part", self._step.worker, self.next) >> 1)


def is_pipe(dataset: Any) -> bool:
    """Whether it is one of torch's data pipes, as far as torch still has them."""
    kinds = (getattr(data, name, None) for name in ("IterDataPipe", "MapDataPipe"))
    return isinstance(dataset, tuple(kind for kind in kinds if kind is not None))


def _load(part: Any, state: Any) -> None:
    if state is not None and is_stateful(part):
        part.load_state_dict(deepcopy(state))


def _states(**parts: Any) -> dict[str, Any] | None:
    """Copies of the states of those parts that have one, by name; None if none has."""
    states = {name: part.state_dict() for name, part in parts.items() if is_stateful(part)}
    return {name: deepcopy(one) for name, one in states.items() if one is not None} or None
