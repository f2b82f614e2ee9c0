"""Fetches for `DataLoader`, whose samples and batches may be anything.

    FetchResult    what came of a request, or the error in its place
    ItemFetch      rows of a map-style dataset; a sample's draws depend on (seed, place) alone

Iterable datasets are in pipeline/addons/dataloader/part_fetch.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import get_worker_info

from penstock.files.batch_bytes import BatchBytes, bounded
from penstock.loading import worker_status
from penstock.loading.memory import of_a_batch
from penstock.loading.sizes import held
from penstock.order.address import Addressed
from penstock.order.private_generators import PrivateDraws, PrivateGenerators
from penstock.order.randomness import GLOBAL, Draws, begin_sample, sample_keys, scope
from penstock.order.seeding import UNSEEDED, Seeding
from penstock.torch_internals import ExceptionWrapper, pin_memory


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
    most_bytes: int
    transform: ClassVar[None] = None
    batch_transform: ClassVar[None] = None
    repeat_checked = True  # no sample is made twice here to compare the two
    dataset: Any

    def dataset_of_worker(self) -> Any:
        return self.dataset

    def bounded(self) -> bounded:
        """What Penstock's own readers reserve for a batch, counted; see `files/batch_bytes.py`."""
        return bounded(self.most_bytes, "batch_bytes", "reduce batch_size")


@dataclass
class ItemFetch(BackendFetch):
    """Work on one request of a map-style dataset.

    Attributes:
        batched: whether keys come in lists and samples are collated; else one key gives one sample,
            which `collate` converts.
        remote: whether errors have to cross to another process.
        most_bytes: that readers may reserve for the samples of a batch.
        keyed: whether each sample's draws come from a key of its own.
        leaves_generators: in this process they stand after a batch where they stood.
    """

    leaves_generators: ClassVar[bool] = True

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool
    remote: bool
    keyed: bool = True
    most_bytes: int = field(default_factory=lambda: of_a_batch(0, 0))
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
        with self.bounded() as account:
            if many:
                if seeds is not None:
                    draws.seed(seeds[0])
                samples = many(keys)
            else:
                samples, taken = [], 0
                here = worker_status.current.cell
                here[worker_status.STAGE] = worker_status.READ
                for place, key in enumerate(keys):
                    if seeds is not None:
                        draws.seed(seeds[place])
                    here[worker_status.PLACE] = place
                    samples.append(dataset[key])
                    if account.taken != taken:
                        taken = settled(account, taken, samples[-1])
        worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
        return self.collate(samples if self.batched else samples[0])


def settled(account: BatchBytes, before: int, sample: Any) -> int:
    """Let what was reserved since `before` count for what the sample keeps of it; all there is."""
    size = held(sample, account.taken - before)
    account.taken = before
    account.reserve(size, "a sample")
    return account.taken


def portable(error: Exception, remote: bool) -> Any:
    """An error as it travels to the consumer."""
    if isinstance(error, StopIteration):
        # Raised at the consumer, it would end the epoch without a word.
        error = RuntimeError(f"the dataset or the collate function raised {error!r}")
    if not remote:
        return error
    info = get_worker_info()
    where = f"in DataLoader worker process {info.id if info else os.getpid()}"
    return ExceptionWrapper((type(error), error, error.__traceback__), where=where)
