"""Requests of a stream to batches: read forwards to the records, work on those of the share.

Each executor has a reader of its own, which goes through all raw records, but for shards that it
can skip.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from penstock.errors import DataError, PenstockError
from penstock.loading.bad_samples import ATTEMPTS
from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch, Samples
from penstock.loading.worker_status import StageTimer
from penstock.order.keys import IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.plan import End, Request, StreamOrder, StreamPlan, StreamRequest, deal, forwards
from penstock.order.seeding import Seeding
from penstock.torch_internals import worker_info

Records = dict[int, Any]  # by number


class StreamReader:
    """Reads the raw records of a dataset for one executor.

    Going forwards costs the records in between, going back starts again; shards of known length
    make both cheap.
    """

    def __init__(self, dataset: Any, order: StreamOrder) -> None:
        self._dataset, self._order = dataset, order
        # The epoch that is read, and the ends of its shards in their order, where they are known.
        self._epoch, self._ends = -1, np.empty(0, np.int64)

    def read(self, epoch: int, start: int, stop: int, seeding: Seeding | None = None) -> Records:
        """Raw records at positions start .. stop-1; fewer only where the epoch ends.

        Args:
            seeding: of what the dataset draws from while it is read; None: it draws nothing.
        """
        self._seeding, read = seeding, partial(self._read, epoch, start, stop)
        with worker_info(None):
            return read() if seeding is None else seeding.run(read, epoch)

    def _read(self, epoch: int, start: int, stop: int) -> Records:
        # After an error, and with other generators seeded, the epoch is read from its beginning.
        known, self._epoch = self._epoch, -1
        if epoch != known:
            self._next = sys.maxsize  # the number of the next raw record; nothing is open yet
            self._block: tuple[int, Records] = (-1, {})
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
        elif self._seeding is not None:
            self._seeding.restore(self._states)
        records = (self._shuffled if self._order.buffer else self._raw)(epoch, start, stop)
        # Samples draw from the same generators before reading goes on.
        self._states: dict[str, Any] = {} if self._seeding is None else self._seeding.states()
        self._epoch = epoch
        return records

    def _shuffled(self, epoch: int, start: int, stop: int) -> Records:
        taken: Records = {}
        while start < stop:
            first, last = self._order.block(epoch, start)
            if self._block[0] != first:
                self._block = (-1, {})  # before there is another one
                self._block = (first, self._raw(epoch, first, last))
            raw = self._block[1]
            slots = self._order.within(epoch, first, len(raw), start - first, stop - first)
            taken |= {number: raw[number] for number in (first + slots).tolist()}
            start = last
        return taken

    def _raw(self, epoch: int, start: int, stop: int) -> Records:
        """Raw records by number, as the shards give them."""
        shard, wanted = np.searchsorted(self._ends, [self._next, start], side="right")
        if start < self._next or shard < wanted:
            self._open(epoch, start)
        self._next += sum(1 for _ in islice(self._records, start - self._next))
        records = dict(enumerate(islice(self._records, stop - start), start))
        self._next += len(records)
        return records

    def _open(self, epoch: int, record: int) -> None:
        """Be before the first raw record, or that of the shard of `record` if that is known."""
        dataset, self._next = self._dataset, 0
        if hasattr(dataset, "shards"):
            shards = dataset.shards()
            order = self._order.shards(epoch, len(shards))
            lengths = getattr(dataset, "shard_lengths", lambda: None)()
            if lengths is not None:
                self._ends = np.cumsum(np.asarray(lengths, dtype=np.int64)[order])
                first = int(np.searchsorted(self._ends, record, side="right"))
                order, self._next = order[first:], int(self._ends[first - 1]) if first else 0
            self._records = self._through(epoch, shards, order.tolist())
        else:
            self._seed(epoch, -1)
            records = iter(dataset)  # perhaps its own iterator, which other threads may share
            self._records = forwards(iter(copy(dataset)) if records is dataset else records)

    def _through(self, epoch: int, shards: Any, numbers: list[int]) -> Iterator[Any]:
        ahead: list[float] = []  # the parts of what may be fetched ahead that the next shards take
        later = iter(numbers if hasattr(self._dataset, "want_shard") else ())
        for number in numbers:
            # A part of 0 is a shard on this machine: nothing after it is announced before its end.
            while sum(ahead) < 1 and 0 not in ahead and (wanted := next(later, None)) is not None:
                ahead.append(self._dataset.want_shard(shards[wanted]))
            self._seed(epoch, number)
            yield from self._dataset.read_shard(shards[number])
            del ahead[:1]

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
        plan: whose requests it works on.
    """

    plan: StreamPlan

    def __post_init__(self) -> None:
        super().__post_init__()
        self._readers: dict[int, StreamReader] = {}  # by thread
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
        plan, full = self.plan, self.plan.batch_size
        # Time begins here, as raw records are read before there are samples.
        timer, start = StageTimer(), request.step * full
        records = self.records(request, start, start + full)
        count = len(records)
        if not records or (plan.tail == "drop" and count < full):
            return End(request)
        positions, numbers = np.arange(start, start + count), np.array([*records], np.int64)
        batch = Request(*request.address, positions, numbers, count)
        size, rows = full if plan.tail == "pad" else count, _Decoded(self, request, records)
        share = deal(batch, size, request.rank, request.world, plan.together)
        return self.made(Samples(self, share, rows, timer, rows.substitutes))

    def records(self, request: StreamRequest, start: int, stop: int) -> Records:
        """Raw records by number, at positions of the request's epoch."""
        draws = not self.draws_nothing and getattr(self.dataset, "draws", True)
        seeding = self._reading if draws else None  # threads share the generators it would seed
        reader = self._readers.setdefault(
            threading.get_ident(), StreamReader(self.dataset, self.plan.sampler)
        )
        try:
            return reader.read(request.epoch, start, stop, seeding)
        except PenstockError:
            raise
        except Exception as error:
            raise DataError(
                f"{type(self.dataset).__name__} cannot be read for epoch {request.epoch}, step "
                f"{request.step}: {type(error).__name__}: {error}"
            ) from error


class _Decoded:
    """The records of one global batch as rows of a map-style dataset, decoded on access.

    Args:
        fetch: its dataset's `decode` makes a row of a record.
        request: that the records were read for.
        records: raw records of the whole global batch, by number.
    """

    def __init__(self, fetch: StreamFetch, request: StreamRequest, records: Records) -> None:
        self._fetch, self._request, self._records = fetch, request, records
        self._numbers = [*records]

    def __getitem__(self, number: int) -> Any:
        record = self._records[number]
        if not self._fetch.compared:  # it is decoded twice, and transforms may write into it
            with suppress(Exception):  # what cannot be copied is decoded as it is
                record = deepcopy(record)
        decode = getattr(self._fetch.dataset, "decode", None)
        return record if decode is None else decode(record)

    def fetch_batch(self, numbers: IntArray) -> Any:
        """The fields of a batch, as the dataset gathers them from records."""
        return self._fetch.dataset.fetch_batch([self._records[of] for of in numbers.tolist()])

    def substitutes(self, request: Request, slot: int) -> Iterator[int]:
        """Numbers of records for the place of a bad one: it knows all of the global batch."""
        key = hash64(self._fetch.seed, "substitute", request.epoch, int(request.positions[slot]))
        own, count = int(request.indices[slot]), len(self._numbers)
        order = Permutation(count, key)(np.arange(count)).tolist()
        others = [self._numbers[place] for place in order if self._numbers[place] != own]
        yield from others
        # The epoch's first, for which a stream is read from its beginning again.
        more = self._fetch.records(self._request, 0, ATTEMPTS)
        self._records |= more
        yield from (number for number in more if number not in (own, *others))
