"""Requests to whatever a dataset and a collate function make, as torch's DataLoader has it.

`Fetch` makes batches of dicts that know their rows. A DataLoader's samples may be anything, and so
may what comes of them; a `FetchResult` carries it through the backends, or the error in its place.

    ItemFetch      rows of a map-style dataset; a sample's draws come from (seed, place) alone

Iterable datasets are in pipeline/loading/compat/part_fetch.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import get_worker_info

from pipeline.loading import worker_status
from pipeline.order.address import Addressed
from pipeline.order.plan import Request
from pipeline.order.private_generators import PrivateGenerators
from pipeline.order.randomness import GLOBAL, Draws, begin_sample, sample_keys, scope
from pipeline.order.seeding import UNSEEDED, Seeding, ThreadRandomness, held_by_parts
from pipeline.torch_internals import ExceptionWrapper, pin_memory


@dataclass(frozen=True, slots=True)
class Rows(Request):
    """Rows of a dataset that are numbers; `keys` are what the sampler gave, one or a list."""

    keys: Any = None
    seed: int = 0

    @property
    def start(self) -> int:
        return int(self.positions[0]) if len(self.positions) else 0


@dataclass(frozen=True, slots=True)
class Keys(Addressed):
    """Rows of a dataset that are not numbers."""

    epoch: int
    step: int
    start: int
    keys: Any
    seed: int


def rows_of(epoch: int, step: int, start: int, keys: Any, seed: int) -> Rows | Keys:
    """The request for what a sampler gave."""
    listed = keys if isinstance(keys, (list, tuple)) else [keys]
    if not all(type(key) is int for key in listed):
        return Keys(epoch, step, start, keys, seed)
    positions = np.arange(start, start + len(listed), dtype=np.int64)
    return Rows(
        epoch, step, positions, np.array(listed, dtype=np.int64), len(listed), None, keys, seed
    )


@dataclass
class FetchResult:
    """What came of a request.

    Attributes:
        value: the collated batch, or the sample.
        error: raised in its place; from another process, torch's wrapper of it.
        ended: the worker's part has no such batch.
        state: of the dataset after this batch, where it was asked for.
        begun: of the dataset, as the part began with it; in the first batch of a part.
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
        """The value; or raises the error, of the type that it had where it happened."""
        if self.error is None:
            return self.value
        if isinstance(self.error, ExceptionWrapper):
            self.error.reraise()
        raise self.error


@dataclass
class ItemFetch:
    """Work on one request of a map-style dataset.

    Attributes:
        batched: whether keys come in lists and samples are collated; else one key gives one sample,
            which `collate` converts.
        remote: whether errors have to cross to another process.
        keyed: whether each sample's draws come from a key of its own.
        seed, transform, batch_transform: what backends look for.
        leaves_generators: in this process they stand after a batch where they stood.
        tried: no sample is made twice here to compare the two.
    """

    leaves_generators: ClassVar[bool] = True

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool
    remote: bool
    keyed: bool = True
    seed: int = 0
    transform: None = None
    batch_transform: None = None
    tried: bool = True
    _seeding: Seeding = field(default_factory=Seeding, repr=False)

    def __post_init__(self) -> None:
        self._own = PrivateGenerators({"dataset": self.dataset, "collate": self.collate})

    def __call__(self, request: Any, draws: Draws = GLOBAL) -> FetchResult:
        try:
            return FetchResult(request, self._made(request, draws))
        except Exception as error:
            return FetchResult(request, error=kept(error, self.remote))
        finally:
            begin_sample(None)

    def dataset_of_worker(self) -> Any:
        return self.dataset

    def _made(self, request: Rows | Keys, draws: Draws) -> Any:
        if not self.keyed:
            return self._read(request, UNSEEDED)
        own = self._own.names(request.epoch)
        if own and isinstance(draws, ThreadRandomness):
            raise held_by_parts(own)
        if own:
            return self._with_own(request)
        if draws is not GLOBAL:
            return self._read(request, draws)
        make = partial(self._read, request)
        if self.remote or self._seeding.draws is False:
            return self._seeding.run(make)
        with scope():  # the training loop draws from the same generators
            return self._seeding.run(make)

    def _with_own(self, request: Rows | Keys) -> Any:
        """The batch, of a dataset with generators; in this process others may draw from them."""
        draws = self._own.beside(GLOBAL)
        states = None if self.remote else draws.save()
        try:
            return self._read(request, draws)
        finally:
            if states is not None:
                draws.restore(states)

    def _read(self, request: Rows | Keys, draws: Draws) -> Any:
        """The batch; a sample has its key where `draws` seeds."""
        keys = request.keys if self.batched else [request.keys]
        seeds = None if draws is UNSEEDED else self._seeds(request, len(keys))
        many = self.batched and getattr(self.dataset, "__getitems__", None)
        if many:
            if seeds is not None:
                draws.seed(seeds[0])
            samples = many(keys)
        elif seeds is None and not self.remote:
            dataset = self.dataset
            samples = [dataset[key] for key in keys]
        else:
            samples = self._one_by_one(keys, seeds, draws)
        worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
        return self.collate(samples if self.batched else samples[0])

    def _one_by_one(self, keys: Any, seeds: list[int] | None, draws: Draws) -> list[Any]:
        dataset, samples = self.dataset, []
        here = worker_status.current.cell
        here[worker_status.STAGE] = worker_status.READ
        for place, key in enumerate(keys):
            if seeds is not None:
                draws.seed(seeds[place])
            here[worker_status.PLACE] = place
            samples.append(dataset[key])
        return samples

    @staticmethod
    def _seeds(request: Rows | Keys, count: int) -> list[int]:
        places = np.arange(request.start, request.start + max(count, 1), dtype=np.int64)
        # Below 2^63, so that what asks torch.initial_seed() for one can put it into a tensor.
        return [key >> 1 for key in sample_keys(request.seed, 0, places)]


def kept(error: Exception, remote: bool) -> Any:
    """An error as it travels to the consumer."""
    if isinstance(error, StopIteration):
        # Raised at the consumer, it would end the epoch without a word.
        error = RuntimeError(f"the dataset or the collate function raised {error!r}")
    if not remote:
        return error
    info = get_worker_info()
    where = f"in DataLoader worker process {info.id if info else os.getpid()}"
    return ExceptionWrapper((type(error), error, error.__traceback__), where=where)
