"""torch's DataLoader on Penstock's workers: one import to change.

    from penstock import DataLoader                                   # instead of torch.utils.data

It takes all of torch's arguments and is a subclass, so libraries accept it. Beside torch's class,

1. workers that die are replaced, and make the same batches again;
2. order and draws are a function of (seed, epoch, position), whatever the workers;
3. `state_dict` and `load_state_dict` resume in mid-epoch, with any number of workers.

    sampler -> rows -> RowFetch in `num_workers` executors --------------> batches in order
               part -> PartFetch in an executor of its own, for each part -> a batch of each in turn

A map-style dataset is read by whichever worker is free. An iterable dataset divides itself by
`get_worker_info()`, so each of its parts has one executor, whose requests come in order.

Cost beside torch's: none for a TensorDataset, which draws nothing. Else, without workers, 40 us a
batch, most of it for finding draws and putting the program's generators back, 0.4 us a row, and
8 us a row where something draws. With workers less than torch's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import count, islice, repeat
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.utils import data as torch_data
from torch.utils.data import IterableDataset

from penstock.distributed.world import has_accelerator
from penstock.loading import worker_status
from penstock.loading.facts import gathers_rows
from penstock.loading.workers.executors import LoaderOptions, WorkerError, Workers
from penstock.order.address import Addressed
from penstock.order.keys import begin_sample, hash64, sample_keys
from penstock.order.plan import End, forwards, length_of
from penstock.order.seeding import GLOBAL, Seeding, scope, seed_global
from penstock.torch_internals import WorkerInfo, pin_memory, worker_info

STATE_VERSION = 4

Sample = TypeVar("Sample", covariant=True)


@dataclass(frozen=True, slots=True)
class Request(Addressed):
    """A request for a batch: of a map-style dataset's rows, or of a part of an iterable dataset.

    Attributes:
        step: of the epoch; of the part.
        seed: of the epoch.
        start: position of the first row in the epoch; number of the part.
        keys: what the sampler gave, one row or several; they need not be numbers.
    """

    epoch: int
    step: int
    seed: int
    start: int
    keys: Any = None

    @property
    def indices(self) -> list[int]:
        """Those of `keys` that are numbers, for messages."""
        keys = self.keys if isinstance(self.keys, (list, tuple)) else [self.keys]
        return [key for key in keys if type(key) is int]


@lru_cache(maxsize=2)
def _seeds(seed: int, block: int) -> list[int]:
    """The seeds of a block of 1,024 positions; those of a small batch alone take nearly as long."""
    positions = np.arange(block << 10, (block + 1) << 10, dtype=np.int64)
    # Below 2^63, so that torch.initial_seed() fits into a tensor.
    return [key >> 1 for key in sample_keys(seed, 0, positions).tolist()]


@dataclass
class RowFetch:
    """Batches of a map-style dataset; the draws of a sample depend on (seed, position) alone.

    Attributes:
        batched: keys come in lists and samples are collated; else one key gives one sample, which
            `collate` converts.
        draws_nothing: all of it is torch's own code, which draws nothing, so nothing is seeded.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool

    def __post_init__(self) -> None:
        # New workers of each epoch would make their first batch twice, of whatever draws.
        self._seeding = Seeding({"dataset": self.dataset, "collate": self.collate}, GLOBAL)
        self.draws_nothing = type(self.dataset) is torch_data.TensorDataset and self.collate in (
            torch_data.default_collate,
            torch_data.default_convert,
        )

    def __call__(self, request: Request) -> Any:
        if self.draws_nothing:
            return self.collate(
                [self.dataset[key] for key in request.keys]
                if self.batched
                else self.dataset[request.keys]
            )
        return self._seeding.run(partial(self._read, request), request.epoch)

    def _read(self, request: Request) -> Any:
        keys = request.keys if self.batched else [request.keys]
        positions = range(request.start, request.start + max(len(keys), 1))
        seeds = [_seeds(request.seed, at >> 10)[at & 1023] for at in positions]
        if self.batched and gathers_rows(self.dataset):
            # The dataset decides in which order it reads; the first sample's seed stands for all.
            self._seeding.seed(seeds[0])
            samples = self.dataset.__getitems__(keys)
        else:
            # Locals: this loop is all that a batch of tiny rows costs.
            samples, cell, begin = [], worker_status.current.cell, self._seeding.seed
            cell[worker_status.STAGE] = worker_status.READ
            for slot, (key, seed) in enumerate(zip(keys, seeds, strict=False)):
                cell[worker_status.PLACE] = slot
                begin(seed)
                samples.append(self.dataset[key])
        # What collating draws must not depend on the last sample.
        begin_sample(None)
        worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
        return self.collate(samples if self.batched else samples[0])


@dataclass
class PartFetch:
    """Batches of one part of an iterable dataset, read forwards.

    A request behind the last one is reached by reading on, another one from the beginning.
    The draws of a batch depend on (seed, part, step).

    Attributes:
        size: samples in a batch; None hands on what the dataset gives.
        part, parts: the answers of `get_worker_info()`; no parts: there is no worker.
        init: `worker_init_fn`.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    size: int | None
    drop_last: bool
    part: int
    parts: int
    init: Callable[[int], None] | None
    _at: tuple[int, int] = (-1, 0)  # epoch, step of the next batch
    _records: Iterator[Any] = field(default_factory=lambda: iter(()))

    def __call__(self, request: Request) -> Any:
        of_worker = {"id": self.part, "seed": request.seed + self.part, "dataset": self.dataset}
        with worker_info(WorkerInfo(num_workers=self.parts, **of_worker) if self.parts else None):
            # A batch that a dead worker had comes again, and records are only read forwards.
            if self._at[0] != request.epoch or self._at[1] > request.step:
                self._open(request)
            for step in range(self._at[1], request.step + 1):
                self._at = request.epoch, step + 1
                self._seed(request, step)
                samples = list(islice(self._records, self.size or 1))
                if len(samples) < (self.size or 1):
                    self._records = iter(())  # another look at an ended iterator may begin it anew
            if not samples or (self.drop_last and self.size and len(samples) < self.size):
                return End(request)
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            return self.collate(samples if self.size else samples[0])

    def _open(self, request: Request) -> None:
        self._seed(request, 0)
        # Once for a worker, as torch calls it, and again for one that replaces it.
        if self._at[0] < 0 and self.parts and self.init is not None:
            self.init(self.part)
        if isinstance(self.dataset, torch_data.IterDataPipe):  # as torch's workers do
            torch_data.graph_settings.apply_random_seed(
                self.dataset, torch.Generator().manual_seed(request.seed)
            )
            if self.parts:
                torch_data.graph_settings.apply_sharding(self.dataset, self.parts, self.part)
        self._at = request.epoch, 0
        self._records = forwards(iter(self.dataset))

    def _seed(self, request: Request, step: int) -> None:
        key = hash64(request.seed, "part", self.part, step) >> 1
        begin_sample(key)
        seed_global(key)


@dataclass
class Position:
    """The batches of an epoch that were delivered.

    Attributes:
        step: of the first batch that was not delivered.
        ahead: steps behind it that were, with `in_order=False`.
        parts: batches of each part of an iterable dataset; None: it is map-style.
        finished: the consumer knows that nothing is left.
    """

    epoch: int
    step: int = 0
    ahead: list[int] = field(default_factory=list)
    parts: list[int] | None = None
    finished: bool = False

    def add(self, request: Request) -> None:
        # Parts deliver in turn, so the steps of the whole follow each other.
        self.ahead.append(self.step if self.parts else request.step)
        if self.parts:
            self.parts[request.start] = request.step + 1
        while self.step in self.ahead:
            self.ahead.remove(self.step)
            self.step += 1


class DataLoader(torch_data.DataLoader[Sample]):
    """Batches of a dataset, as torch's DataLoader gives them.

    Args:
        dataset: map-style, or an IterableDataset, which divides itself by `get_worker_info()`.
        batch_size, shuffle, sampler, batch_sampler, num_workers: as torch has them.
        *args, **kwargs: torch's other arguments, with torch's meanings: `collate_fn`,
            `pin_memory`, `drop_last`, `timeout`, `worker_init_fn`, `multiprocessing_context`,
            `generator`, `prefetch_factor`, `persistent_workers`, `in_order`.
        seed: of all orders and draws; None draws one from `generator`, or from torch's global
            generator, when the first epoch begins.
        worker_timeout: seconds without a sign of life after which a worker is replaced; 0: never.
            `timeout` is torch's: seconds without a batch, then an error.
        snapshot_every_n_steps: torchdata's. Any step can be resumed here, so it changes nothing.

    Raises:
        ValueError, TypeError: arguments contradict each other, as with torch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        *args: Any,
        seed: int | None = None,
        worker_timeout: float = 0.0,
        snapshot_every_n_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, *args, **kwargs
        )
        self.worker_timeout, self.snapshot_every_n_steps = worker_timeout, snapshot_every_n_steps
        self.seed = self._drawn = seed
        # Where the next iterator begins.
        self.is_stream, self._next = isinstance(dataset, IterableDataset), Position(0)
        self._latest: Position | None = None  # of the iterator that was made last
        # The epoch that samplers were given last, and whether a state was loaded.
        self._announced, self._is_restored = 0, False
        self._kept: list[Workers] = []  # of persistent workers
        self._running: weakref.ref[EpochIterator] | None = None

    # The iterator is ours, where torch's signature names a private class of its own.
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """One epoch, or the rest of the one whose state was loaded.

        Somebody may have given the sampler the epoch (`set_epoch`), as with torch. Behind a state
        the state's number counts: who starts a program again may count from 0.
        """
        at = copy(self._next)
        announced = next((getattr(part, "epoch", None) for part in self._listeners()), None)
        if isinstance(announced, int) and announced != self._announced and not self._is_restored:
            at.epoch = announced
        return self._begin(at)

    def _begin(self, at: Position) -> Iterator[Any]:
        for part in self._listeners():
            part.set_epoch(at.epoch)
        self._announced, self._latest, self._next = at.epoch, at, Position(at.epoch + 1)
        # Orders are those of all ranks, which DistributedSampler divides; draws are a rank's own.
        key = hash64(self._seed(), "epoch", at.epoch)
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        seed = (hash64(key, "rank", rank) if rank else key) >> 1
        pin = self.pin_memory and has_accelerator()
        if self.is_stream and at.parts is None:
            at.parts = [0] * max(self.num_workers, 1)
        parts = at.parts or []
        # Workers go through one epoch at a time.
        running = self._running() if self._running else None
        fits = len(self._kept) == max(len(parts), 1) and (running is None or running.at.finished)
        backends = self._kept if fits else self._opened(seed, parts, pin)
        self._kept = backends if self.persistent_workers else []
        requests: list[Iterator[Request]] = [
            map(Request, repeat(at.epoch), count(done), repeat(seed), repeat(part))
            for part, done in enumerate(parts)
        ] or [self._rows(at, key, seed)]
        made = EpochIterator(at, backends, requests, not self.persistent_workers, pin)
        self._running = weakref.ref(made)
        return made

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Batches of any epoch from step `start` on; an iterable dataset is read up to there."""
        batches = self._begin(Position(epoch, 0 if self.is_stream else start))
        for _ in range(start if self.is_stream else 0):
            next(batches, None)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Which batches the last iterator has delivered, in plain values, as JSON can hold them.

        Behind the last batch it is the beginning of the next epoch, also before the iterator has
        ended, if `len()` tells which one is the last.
        """
        at = self._latest
        if at is None or at.finished or (not self.is_stream and at.step == length_of(self)):
            at = self._next
        return {**asdict(at), **self._identity(), "seed": self._seed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator continue from `state`.

        Raises:
            ValueError: it is of a loader whose steps are other batches.
        """
        own = self._identity() | ({} if self.seed is None else {"seed": self.seed})
        different = [
            f"{name} is {value!r} and was {state.get(name)!r:.60}"
            for name, value in own.items()
            if value != state.get(name)
        ]
        if different:
            raise ValueError(
                f"the state is of another DataLoader, whose steps are others: {different}"
            )
        at = [deepcopy(state[name]) for name in ("epoch", "step", "ahead", "parts")]
        self._next, self._latest, self._is_restored = Position(*at), None, True
        self._drawn, self._kept = state["seed"], []

    def _seed(self) -> int:
        if self._drawn is None:
            self._drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))
        return self._drawn

    def _identity(self) -> dict[str, Any]:
        """Everything that has to be equal for a step to be the same batch."""
        return {
            "version": STATE_VERSION,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "samples": None if self.is_stream else length_of(self.dataset),
        }

    def _samplers(self) -> list[Any]:
        """The sampler that is iterated, and those that it wraps."""
        chain: list[Any] = [self.sampler if self.batch_sampler is None else self.batch_sampler]
        # A Mock has one without end.
        while (inner := getattr(chain[-1], "sampler", None)) is not None and len(chain) < 9:
            chain.append(inner)
        return chain

    def _listeners(self) -> list[Any]:
        """Samplers and streams that have `set_epoch`."""
        parts = [self.dataset] if self.is_stream else self._samplers()
        return [part for part in parts if callable(getattr(type(part), "set_epoch", None))]

    def _rows(self, at: Position, key: int, seed: int) -> Iterator[Request]:
        """Requests of the sampler's rows; what it draws depends on (seed, epoch, step)."""
        samplers, batched, start = self._samplers(), self.batch_sampler is not None, 0
        for part in (self, *samplers):
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(key)
        # torch's own samplers draw all that they need with their first row.
        own = any(not type(part).__module__.startswith("torch.") for part in samplers)
        keys, done = None, set(at.ahead)
        for step in count():
            with scope() if own or not step else nullcontext():
                if own or not step:
                    seed_global(hash64(key, "step", step) if step else key)
                keys = keys or iter(samplers[0])
                try:
                    rows = next(keys)
                except StopIteration:
                    return
            if step >= at.step and step not in done:
                yield Request(at.epoch, step, seed, start, rows)
            start += len(rows) if batched else 1

    def _opened(self, seed: int, parts: list[int], pin: bool) -> list[Workers]:
        """Executors: one for rows, one for each part of an iterable dataset."""
        workers, collate = self.num_workers, self.collate_fn
        context: Any = self.multiprocessing_context
        options = LoaderOptions(
            backend="process" if workers else "main",
            num_workers=min(workers, 1) if parts else workers,
            prefetch_factor=self.prefetch_factor or 2,
            persistent_workers=self.persistent_workers,
            pin_memory=self.pin_memory,
            timeout=self.worker_timeout,
            batch_timeout=self.timeout if workers else 0.0,
            worker_init_fn=None if parts else self.worker_init_fn,
            multiprocessing_context=context.get_start_method() if context else None,
            in_order=self.in_order or bool(parts),
            generator=seed,
        )
        fetches: list[Any] = [RowFetch(self.dataset, collate, self.batch_sampler is not None)]
        if parts:
            divided = 0 if len(parts) == 1 and not workers else len(parts)
            shared = workers or not divided  # else each needs a dataset of its own in this process
            fetches = [
                PartFetch(
                    self.dataset if shared else deepcopy(self.dataset),
                    collate,
                    self.batch_size,
                    self.drop_last,
                    number,
                    divided,
                    self.worker_init_fn,
                )
                for number in range(len(parts))
            ]
        return [Workers(fetch, options, pin) for fetch in fetches]

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which begin their own epochs."""
        return self.__dict__ | {"_latest": None, "_kept": [], "_running": None}


class EpochIterator(Iterator[Any]):
    """The iterator over one epoch; its workers are at work when it is made.

    Args:
        at: what was delivered; follows along.
        backends: executors of the epoch, each with its `requests`.
        closes: close them at the end.
        pin: put batches into page-locked memory where executors have not.
    """

    def __init__(
        self,
        at: Position,
        backends: list[Workers],
        requests: list[Iterator[Any]],
        closes: bool,
        pin: bool,
    ) -> None:
        self.at, self._backends, self._open = at, backends, ExitStack()
        for backend in backends if closes else ():
            self._open.callback(backend.close)
        runs = [
            self._open.enter_context(backend.run(own))
            for backend, own in zip(backends, requests, strict=True)
        ]
        self._batches = _batches(at, runs, pin and backends[0].in_main, self._open)

    def __next__(self) -> Any:
        return next(self._batches)

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, by torch's name for them."""
        return [worker for b in self._backends for worker in b.processes()]

    def __del__(self) -> None:
        self._open.close()


def _batches(
    at: Position, runs: list[Iterator[Any]], pin: bool, opened: ExitStack
) -> Iterator[Any]:
    """Batches as they come, of each part in turn."""
    first, live = list(at.parts or [0]), dict(enumerate(runs))
    with opened:
        # A resumed part may be one batch ahead of another; the turn begins with the one behind.
        for number in count(min(first)):
            for part in [part for part in live if number >= first[part]]:
                try:
                    result = next(live[part], None)
                except WorkerError as error:
                    died = f"(pid(s) {error.pid})" if error.pid else ""
                    # torch's words, which programs look for
                    raise RuntimeError(
                        f"DataLoader worker {died} exited unexpectedly\n{error}"
                    ) from None
                if result is None or isinstance(result[1], End):
                    del live[part]
                    continue
                at.add(result[0])
                yield pin_memory(result[1]) if pin else result[1]
            if not live:
                break
    at.finished = True
