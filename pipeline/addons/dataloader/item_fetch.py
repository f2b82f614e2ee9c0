"""Fetches for `DataLoader`, whose samples and batches may be anything.

FetchResult    what came of a request, or the error in its place
ItemFetch      rows of a map-style dataset; a sample's draws depend on (seed, place) alone

ShardFetch     shards of an iterable dataset
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import data
from torch.utils.data import get_worker_info

from penstock.addons.dataloader.epoch_draws import is_stateful
from penstock.loading import worker_status
from penstock.order.address import Addressed
from penstock.order.keys import begin_sample, hash64, sample_keys
from penstock.order.plan import forwards
from penstock.order.private_generators import PrivateDraws, PrivateGenerators
from penstock.order.randomness import GLOBAL, Draws, scope
from penstock.order.seeding import UNSEEDED, Seeding
from penstock.torch_internals import (
    ExceptionWrapper,
    WorkerInfo,
    pin_memory,
    worker_info,
    wrap_exception,
)


@dataclass(frozen=True, slots=True)
class Keys(Addressed):
    """A request for rows of a map-style dataset.

    Attributes:
        start: place of the first row in the epoch.
        keys: what the sampler gave, one row or several; they need not be numbers.
        seed: of the epoch.
    """

    epoch: int
    step: int
    start: int
    keys: Any
    seed: int


@dataclass
class FetchResult:
    """The result of a request.

    Attributes:
        value: the collated batch, or the sample.
        error: raised in its place; from another process, torch's wrapper of it.
        ended: the shard has no such batch.
        state: of the dataset after this batch, where it was asked for.
        begun: of the dataset when the shard was opened; in the shard's first batch.
    """

    request: Any
    value: Any = None
    error: Any = None
    ended: bool = False
    state: Any = None
    begun: Any = None

    def pin_memory(self) -> FetchResult:
        self.value = pin_memory(self.value)
        return self

    def get(self) -> Any:
        """The value; or raises the error, in its original type."""
        if isinstance(self.error, ExceptionWrapper):
            self.error.reraise()
        if self.error is not None:
            raise self.error
        return self.value


class BackendFetch:
    """The attributes that backends read of a fetch, besides calling it."""

    seed = 0
    transform: ClassVar[None] = None
    batch_transform: ClassVar[None] = None
    repeat_checked = True  # no sample is made twice here to compare the two
    in_turn: ClassVar[bool] = False
    draws_nothing: ClassVar[bool] = False
    leaves_generators: ClassVar[bool] = False
    dataset: Any

    def dataset_of_worker(self) -> Any:
        return self.dataset


@dataclass
class ItemFetch(BackendFetch):
    """Work on one request of a map-style dataset.

    Attributes:
        batched: whether keys come in lists and samples are collated; else one key gives one sample,
            which `collate` converts.
        remote: whether errors have to cross to another process.
        keyed: whether each sample's draws come from a key of its own.
        leaves_generators: in this process they stand after a batch where they stood.
    """

    leaves_generators: ClassVar[bool] = True

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool
    remote: bool
    keyed: bool = True
    _seeding: Seeding = field(default_factory=Seeding, repr=False)

    def __post_init__(self) -> None:
        self._own = PrivateGenerators({"dataset": self.dataset, "collate": self.collate})

    def __call__(self, request: Any, draws: Draws = GLOBAL) -> FetchResult:
        try:
            return FetchResult(request, self._make(request, draws))
        except Exception as error:
            return FetchResult(request, error=portable(error, self.remote))
        finally:
            begin_sample(None)

    def _make(self, request: Keys, draws: Draws) -> Any:
        if not self.keyed:
            return self._read(request, UNSEEDED)
        draws = self._own.beside(draws, request.epoch)
        if isinstance(draws, PrivateDraws):
            return self._with_own(request, draws)
        if draws is not GLOBAL:
            return self._read(request, draws)
        make = partial(self._read, request)
        if self.remote or self._seeding.draws is False:
            return self._seeding.run(make)
        with scope():  # the training loop draws from the same generators
            return self._seeding.run(make)

    def _with_own(self, request: Keys, draws: PrivateDraws) -> Any:
        """The batch, of a dataset with generators; in this process others may draw from them."""
        states = None if self.remote else draws.save()
        try:
            return self._read(request, draws)
        finally:
            if states is not None:
                draws.restore(states)

    def _read(self, request: Keys, draws: Draws) -> Any:
        """The batch; each sample is seeded by its place unless `draws` seeds nothing."""
        dataset, seeds = self.dataset, None
        keys = request.keys if self.batched else [request.keys]
        if draws is not UNSEEDED:
            places = np.arange(request.start, request.start + max(len(keys), 1), dtype=np.int64)
            # Below 2^63, so that what asks torch.initial_seed() for one can put it into a tensor.
            seeds = [key >> 1 for key in sample_keys(request.seed, 0, places).tolist()]
        many = self.batched and getattr(dataset, "__getitems__", None)
        if many:
            if seeds is not None:
                draws.seed(seeds[0])
            samples = many(keys)
        else:
            samples = []
            cell = worker_status.current.cell
            cell[worker_status.STAGE] = worker_status.READ
            for position, key in enumerate(keys):
                if seeds is not None:
                    draws.seed(seeds[position])
                cell[worker_status.PLACE] = position
                samples.append(dataset[key])
        worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
        return self.collate(samples if self.batched else samples[0])


def portable(error: Exception, remote: bool) -> object:
    """An error as it travels to the consumer."""
    if isinstance(error, StopIteration):
        # Raised at the consumer, it would end the epoch without a word.
        error = RuntimeError(f"the dataset or the collate function raised {error!r}")
    if not remote:
        return error
    info = get_worker_info()
    where = f"in DataLoader worker process {info.id if info else os.getpid()}"
    return wrap_exception(error, where)


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
        stateful: whether a state of the dataset says all that comes after it.
        originals: the dataset before a state was loaded into it in this process, if one was; by
            worker where each has a copy, else by -1.
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
    stateful: bool = True
    originals: dict[int, Any] = field(default_factory=dict, repr=False)
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
        self._original: Any = None  # to read an epoch from its beginning again
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
            self._begin_at(state.get("dataset"))
            self._records: Iterator[Any] = iter(self._dataset)
            _load(self._records, state.get("iterator"))
            # Only now: some datasets have no state before there is an iterator.
            self.begun = None if state else self.begin_state()
        self._forwards = forwards(self._records)

    def _begin_at(self, state: Any) -> None:
        """Load a state, or the dataset's own where one was loaded for an earlier epoch."""
        key, originals = self._step.worker if self._step.copied else -1, self._fetch.originals
        if state is None and (self._step.copied or not originals):
            return
        own: Any = None
        with suppress(Exception):  # some have none before there is an iterator
            own = self._dataset.state_dict()
        with suppress(Exception):  # arrays cannot be compared so, and not everything can be copied
            if state == own and not originals:
                return
        with suppress(Exception):
            originals[key] = originals.get(key) or deepcopy(self._dataset)
        self._original = originals.get(key)
        _load(self._dataset, own if state is None else state)

    def _begin_again(self) -> None:
        """Read the dataset as it was before a state was loaded into it, in its present epoch."""
        epoch = getattr(self._dataset, "epoch", None)
        self._dataset = deepcopy(self._original)
        if isinstance(epoch, int) and hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        self._records = iter(self._dataset)
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
        if not self._fetch.stateful:
            return None
        return _states(dataset=self._dataset, iterator=self._records)

    def begin_state(self) -> dict[str, Any] | None:
        """Of the dataset alone, with which an epoch begins."""
        return _states(dataset=self._dataset) if self._fetch.stateful else None

    def _read(self) -> Any:
        size = self._fetch.size
        begins = not self.next
        try:
            with worker_info(self._info):
                samples = self._samples(size or 1)
                if not samples and begins and self._original is not None:
                    # The state of an epoch's end, for a dataset that goes on where it was told to.
                    self._begin_again()
                    samples = self._samples(size or 1)
        finally:
            self.next += 1
        short = size is not None and len(samples) < size
        self._ended = not samples or short
        if not samples or (short and self._fetch.drop_last):
            return None
        return samples[0] if size is None else samples

    def _samples(self, most: int) -> list[Any]:
        self._seed()
        worker_status.report(0, worker_status.READ)
        samples = []
        for position, sample in enumerate(islice(self._forwards, most)):
            samples.append(sample)
            worker_status.report(position + 1, worker_status.READ)
        return samples

    def _seed(self) -> None:
        if self._fetch.keyed:
            self._draws.seed(hash64(self._step.seed, "part", self._step.worker, self.next) >> 1)


def is_pipe(dataset: object) -> bool:
    """Whether it is one of torch's data pipes, as far as torch still has them."""
    kinds = (getattr(data, name, None) for name in ("IterDataPipe", "MapDataPipe"))
    return isinstance(dataset, tuple(kind for kind in kinds if kind is not None))


def _load(part: Any, state: Any) -> None:
    if state is not None and is_stateful(part):
        part.load_state_dict(deepcopy(state))


def shuffled_by(dataset: Any) -> list[Any]:
    """Generators of the shuffle buffers in a stream of Hugging Face's, whose states omit them."""
    parts, found = [dataset], list[Any]()
    for part in parts:
        inner = getattr(part, "__dict__", {})
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            found.append(part.generator.bit_generator.state)
        parts += [value for value in inner.values() if isinstance(value, data.IterableDataset)]
        parts += [inner[name] for name in ("_ex_iterable", "ex_iterable") if name in inner]
        parts += inner.get("ex_iterables", ())
    return found


def _states(**parts: Any) -> dict[str, Any] | None:
    """Copies of the states of those parts that have one, by name; None if none has."""
    states = {name: part.state_dict() for name, part in parts.items() if is_stateful(part)}
    return {name: deepcopy(state) for name, state in states.items() if state is not None} or None
