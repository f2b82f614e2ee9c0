"""Requests of a stream to batches: read forwards to the records, work on those of the share.

Each executor has a reader of its own, which goes through all raw records, but for shards that it
can skip.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from penstock.errors import DataError, PenstockError
from penstock.loading.bad_samples import ATTEMPTS, Substitutes
from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch
from penstock.loading.stage_timer import StageTimer
from penstock.order.keys import IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.plan import End, Request, StreamOrder, StreamRequest, deal, forwards, length_of
from penstock.order.samplers import Tail
from penstock.order.seeding import Seeding
from penstock.torch_internals import worker_info

Records = list[tuple[int, Any]]  # by number
log = logging.getLogger(__name__)


class StreamReader:
    """Reads the raw records of a dataset for one executor.

    Going forwards costs the records in between, going back starts again; shards of known length and
    `seek` make both cheap.

    Args:
        seeding: of what the dataset draws from while it is read; None: it draws nothing.
    """

    def __init__(self, dataset: Any, order: StreamOrder, seeding: Seeding | None = None) -> None:
        self._dataset, self._order, self._seeding = dataset, order, seeding
        self._states: dict[str, Any] = {}  # of the generators, as reading has left them
        self._epoch, self._next = -1, 0  # that is read, and the number of the next raw record
        self._records: Iterator[Any] = iter(())

    def read(self, epoch: int, start: int, stop: int) -> Records:
        """(number, raw record) at positions start .. stop-1; fewer only where the epoch ends."""
        read = partial(self._read, epoch, start, stop)
        with worker_info(None):
            records = read() if self._seeding is None else self._seeding.run(read, epoch)
        self._epoch = epoch
        return records

    def _read(self, epoch: int, start: int, stop: int) -> Records:
        # What is read again, with other generators seeded, is read from the epoch's beginning.
        known, self._epoch = self._epoch, -1
        if epoch != known:
            self._end: int | None = None  # records in the epoch, once that is known
            self._ends: IntArray | None = None  # of the shards, in their order, if known
            self._block: tuple[int, Records] = (-1, [])
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            self._open(epoch, 0)
        elif self._seeding is not None:
            self._seeding.restore(self._states)
        records = self._positions(epoch, start, stop)
        self._states = {} if self._seeding is None else self._seeding.states()
        return records

    def _positions(self, epoch: int, start: int, stop: int) -> Records:
        if not self._order.buffer:
            return self._raw(epoch, start, stop)
        taken: Records = []
        while start < stop:
            first, last = self._order.block(epoch, start)
            if self._block[0] != first:
                self._block = (-1, [])  # before there is another one
                raw = self._raw(epoch, first, last)
                order = self._order.within(epoch, first, len(raw))
                self._block = (first, [raw[slot] for slot in order.tolist()])
            records = self._block[1]
            taken += records[start - first : stop - first]
            start = last if len(records) == last - first else stop
        return taken

    def _raw(self, epoch: int, start: int, stop: int) -> Records:
        """Raw records by number."""
        if self._end is not None and start >= self._end:
            return []
        if start < self._next or (start > self._next and self._can_jump(start)):
            self._open(epoch, start)
        self._next += sum(1 for _ in islice(self._records, start - self._next))
        records = list(islice(self._records, stop - start)) if self._next == start else []
        self._next += len(records)
        if self._next < stop:
            self._end, claimed = self._next, length_of(self._dataset)
            if claimed not in (None, self._end):
                name = type(self._dataset).__name__
                log.warning("%s says it has %d records, but gave %d", name, claimed, self._end)
        return list(enumerate(records, start))

    def _can_jump(self, record: int) -> bool:
        """Whether `record` can be had without reading those before it."""
        if self._ends is None:
            return hasattr(self._dataset, "seek")
        now, then = np.searchsorted(self._ends, [self._next, record], side="right")
        return bool(then > now)

    def _open(self, epoch: int, record: int) -> None:
        """Be before raw record `record`, or as near before it as is free."""
        dataset, self._next = self._dataset, 0
        self._seed(epoch, -1)
        if hasattr(dataset, "shards"):
            self._records = self._shards(epoch, record)
        elif hasattr(dataset, "seek"):
            self._next, self._records = record, forwards(iter(dataset.seek(record)))
        else:
            records = iter(dataset)  # perhaps its own iterator, which other threads may share
            self._records = forwards(iter(copy(dataset)) if records is dataset else records)

    def _shards(self, epoch: int, record: int) -> Iterator[Any]:
        """The records of all shards from the one on that has `record`."""
        shards, start = self._dataset.shards(), 0
        order = self._order.shards(epoch, len(shards))
        lengths = getattr(self._dataset, "shard_lengths", lambda: None)()
        if lengths is not None:
            self._ends = np.cumsum(np.asarray(lengths, dtype=np.int64)[order])
            first = int(np.searchsorted(self._ends, record, side="right"))
            begin = int(self._ends[first - 1]) if first else 0
            order, self._next = order[first:], record if first < len(order) else begin
            start = self._next - begin
        return self._through(epoch, shards, order.tolist(), start)

    def _through(self, epoch: int, shards: Any, numbers: list[int], start: int) -> Iterator[Any]:
        for number in numbers:
            self._seed(epoch, number)
            yield from self._dataset.read_shard(shards[number], start)
            start = 0

    def _seed(self, epoch: int, shard: int) -> None:
        """Let draws while a shard is read depend on the shard and the epoch alone."""
        if self._seeding is not None:
            self._seeding.seed(hash64(self._order.seed, "stream", epoch, shard))


@dataclass(eq=False, repr=False, kw_only=True)
class StreamFetch(Fetch):
    """Work on one request of a stream; see `Fetch`.

    A bad record is replaced by another one of the same global batch, or else by one of the epoch's
    first.

    Args:
        order: the sampler.
        batch_size: records in a global batch.
        tail: of the last, smaller batch.
        together: rows of a batch that stay on one rank.
    """

    order: StreamOrder
    batch_size: int
    tail: Tail = "keep"
    together: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._readers: dict[tuple[int, int], StreamReader] = {}  # by process and thread
        self._reading = Seeding({"dataset": self.dataset})
        self._seedings.append(self._reading)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": {}}

    def dataset_of_worker(self) -> Any:
        # A `worker_init_fn` written for torch would cut its worker's share out of this. It gets a
        # copy, since here every worker reads everything.
        return copy(self.dataset)

    def __call__(self, request: StreamRequest) -> Batch | End:
        """The batch of `request`, or End."""
        timer = StageTimer()  # raw records are read before there are samples
        start, count = request.step * self.batch_size, self.batch_size
        records = self._records(request, start, start + count)
        if not records or (self.tail == "drop" and len(records) < count):
            return End(request)
        numbers = np.array([number for number, _ in records], dtype=np.int64)
        positions = start + np.arange(len(numbers), dtype=np.int64)
        batch = Request(*request.address, positions, numbers, len(numbers))
        size = count if self.tail == "pad" else len(numbers)
        share = deal(batch, size, request.rank, request.world, self.together)
        first = partial(self._records, request, 0, ATTEMPTS)
        copies = not self.compared
        return self.made(share, _Decoded(self.dataset, records, first, self.seed, copies), timer)

    def substitutes(self, rows: Any) -> Substitutes:
        return rows  # `_Decoded` knows all records of the batch

    def _records(self, request: StreamRequest, start: int, stop: int) -> Records:
        """(number, raw record) at positions of the request's epoch."""
        own = os.getpid(), threading.get_ident()
        still = self.draws_nothing or not getattr(self.dataset, "draws", True)
        new = partial(StreamReader, self.dataset, self.order, None if still else self._reading)
        reader = self._readers.pop(own, None) or new()  # a broken iterator cannot be read on
        try:
            records = reader.read(request.epoch, start, stop)
        except PenstockError:
            raise
        except Exception as error:
            raise DataError(
                f"{type(self.dataset).__name__} cannot be read for epoch {request.epoch}, step "
                f"{request.step}: {type(error).__name__}: {error}"
            ) from error
        self._readers[own] = reader
        return records


class _Decoded:
    """The records of one batch as rows of a map-style dataset, decoded on access.

    Args:
        stream: the dataset, whose `decode` makes a row of a record.
        records: (number, raw record) of the whole global batch.
        first: gives the epoch's first records, which may mean to read all again.
        seed: of the run.
        copies: a record may be decoded again, and transforms may write into it: decode copies.
    """

    def __init__(
        self, stream: Any, records: Records, first: Callable[[], Records], seed: int, copies: bool
    ) -> None:
        self._decode = getattr(stream, "decode", lambda record: record)
        self._records, self._numbers = dict(records), [number for number, _ in records]
        self._first, self._seed, self._copies = first, seed, copies

    def __getitem__(self, number: int) -> Any:
        record = self._records[number]
        if self._copies:
            with suppress(Exception):  # what cannot be copied is decoded as it is
                record = deepcopy(record)
        return self._decode(record)

    def rows(self, request: Request, slot: int) -> Iterator[int]:
        """Numbers of records for the place of a bad one, as `bad_samples.Substitutes`."""
        key = hash64(self._seed, "substitute", request.epoch, int(request.positions[slot]))
        own, count = int(request.indices[slot]), len(self._numbers)
        order = Permutation(count, key)(np.arange(count)).tolist()
        others = [self._numbers[place] for place in order if self._numbers[place] != own]
        yield from others
        more = dict(self._first())
        self._records |= more
        yield from (number for number in more if number not in (own, *others))
