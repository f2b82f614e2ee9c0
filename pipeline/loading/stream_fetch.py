"""Requests of a stream to batches: read forwards to the records, work on those of the share.

Each executor has a reader of its own, which goes through all raw records, but for shards that it
can skip.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from penstock.order.randomness import GLOBAL, Draws
from penstock.order.samplers import Tail
from penstock.torch_internals import worker_info

Records = list[tuple[int, Any]]  # by number
log = logging.getLogger(__name__)


class StreamReader:
    """Reads the raw records of a dataset for one executor.

    Going forwards costs the records in between, going back starts again; shards of known length and
    `seek` make both cheap.
    """

    def __init__(self, dataset: Any, order: StreamOrder) -> None:
        self._dataset = dataset
        self._order = order
        self._epoch = -1
        self._next = 0  # number of the next raw record
        self._records: Iterator[Any] = iter(())
        self._end: int | None = None  # records in the epoch, once that is known
        self._ends: IntArray | None = None  # of the shards, in the order of the epoch, if known
        self._draws: Draws = GLOBAL
        self._states: Any = None  # of the generators, as reading has left them
        self._block: tuple[int, Records] = (-1, [])

    def read(self, epoch: int, start: int, stop: int, draws: Draws) -> Records:
        """(number, raw record) at positions start .. stop-1; fewer only where the epoch ends."""
        outside = draws.save()
        try:
            with worker_info(None):
                self._draws = draws
                if epoch == self._epoch:
                    draws.restore(self._states)
                else:
                    self._epoch, self._end, self._ends, self._block = epoch, None, None, (-1, [])
                    if hasattr(self._dataset, "set_epoch"):
                        self._dataset.set_epoch(epoch)
                    self._open(0)
                records = self._positions(start, stop)
            self._states = draws.save()
        finally:
            draws.restore(outside)
        return records

    def _positions(self, start: int, stop: int) -> Records:
        if not self._order.buffer:
            return self._raw(start, stop)
        taken: Records = []
        while start < stop:
            first, last = self._order.block(self._epoch, start)
            if self._block[0] != first:
                self._block = (-1, [])  # before there is another one
                raw = self._raw(first, last)
                order = self._order.within(self._epoch, first, len(raw))
                self._block = (first, [raw[slot] for slot in order.tolist()])
            records = self._block[1]
            taken += records[start - first : stop - first]
            if len(records) < last - first:
                break
            start = last
        return taken

    def _raw(self, start: int, stop: int) -> Records:
        """Raw records by number."""
        if self._end is not None and start >= self._end:
            return []
        if start < self._next or (start > self._next and self._worth_a_jump(start)):
            self._open(start)
        for _ in islice(self._records, start - self._next):
            self._next += 1
        records = list(islice(self._records, stop - start)) if self._next == start else []
        self._next += len(records)
        if self._next < stop:
            self._end = self._next
            claimed = length_of(self._dataset)
            if claimed is not None and claimed != self._end:
                log.warning(
                    "%s says it has %d records, but gave %d",
                    type(self._dataset).__name__,
                    claimed,
                    self._end,
                )
        return list(enumerate(records, start))

    def _worth_a_jump(self, record: int) -> bool:
        """Whether `record` can be had without reading those before it."""
        if hasattr(self._dataset, "shards"):
            if self._ends is None:
                return False
            now, then = np.searchsorted(self._ends, [self._next, record], side="right")
            return bool(then > now)
        return hasattr(self._dataset, "seek")

    def _open(self, record: int) -> None:
        """Be before raw record `record`, or as near before it as is free."""
        self._seed(-1)
        if hasattr(self._dataset, "shards"):
            self._open_shards(record)
        elif hasattr(self._dataset, "seek"):
            self._next, self._records = record, forwards(iter(self._dataset.seek(record)))
        else:
            records = iter(self._dataset)
            if records is self._dataset:  # its own iterator, which other threads may share
                records = iter(copy(self._dataset))
            self._next, self._records = 0, forwards(records)

    def _open_shards(self, record: int) -> None:
        shards = self._dataset.shards()
        order = self._order.shards(self._epoch, len(shards))
        lengths = getattr(self._dataset, "shard_lengths", lambda: None)()
        self._next, first = 0, 0
        if lengths is not None:
            self._ends = np.cumsum(np.asarray(lengths, dtype=np.int64)[order])
            first = int(np.searchsorted(self._ends, record, side="right"))
            self._next = record if first < len(order) else int(self._ends[-1]) if first else 0
        start = self._next - (int(self._ends[first - 1]) if self._ends is not None and first else 0)
        self._records = self._through(shards, order[first:].tolist(), start)

    def _through(self, shards: Any, numbers: list[int], start: int) -> Iterator[Any]:
        for number in numbers:
            self._seed(number)
            yield from self._dataset.read_shard(shards[number], start)
            start = 0

    def _seed(self, shard: int) -> None:
        """Let draws while a shard is read depend on the shard and the epoch alone."""
        self._draws.seed(hash64(self._order.seed, "stream", self._epoch, shard))


class RecordNumbers:
    """Which raw records stand at the positions of an epoch, where all shards' lengths are known.

    Nothing is read for it. As `StreamReader` would read them, which tests compare.
    """

    def __init__(self, order: StreamOrder, lengths: Sequence[int]) -> None:
        self._order = order
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._firsts = np.cumsum(self._lengths) - self._lengths  # row of each shard's first record
        self._epoch = (-1, self._firsts, self._firsts)  # its shards in order, and where each ends
        self._block = (-1, -1, self._firsts)  # epoch and start of the last block, and its order

    def at(self, epoch: int, start: int, stop: int) -> IntArray:
        """Numbers of the records at positions start .. stop-1; fewer only where the epoch ends."""
        total = int(self._lengths.sum())
        if not self._order.buffer:
            return np.arange(start, max(min(stop, total), start), dtype=np.int64)
        parts = [np.empty(0, np.int64)]
        while start < min(stop, total):
            first, last = self._order.block(epoch, start)
            of, begun, order = self._block  # read once: threads may be in other epochs
            if (of, begun) != (epoch, first):
                order = first + self._order.within(epoch, first, min(last, total) - first)
                self._block = (epoch, first, order)
            parts.append(order[start - first : stop - first])
            start = last
        return np.concatenate(parts)

    def rows(self, epoch: int, numbers: IntArray) -> IntArray:
        """The rows of records, counted through the shards as the dataset lists them."""
        of, shards, ends = self._epoch
        if of != epoch:
            shards = self._order.shards(epoch, len(self._lengths))
            ends = np.cumsum(self._lengths[shards])
            self._epoch = (epoch, shards, ends)
        places = np.searchsorted(ends, numbers, side="right")
        own = shards[places]
        return self._firsts[own] + numbers - (ends[places] - self._lengths[own])


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
        self._local = _Local()
        lengths = self.dataset.shard_lengths() if self._whole.gathers else None
        self._numbers = None if lengths is None else RecordNumbers(self.order, lengths)

    def dataset_of_worker(self) -> Any:
        # A `worker_init_fn` written for torch would cut its worker's share out of this. It gets a
        # copy, since here every worker reads everything.
        return copy(self.dataset)

    def __call__(self, request: StreamRequest, draws: Draws = GLOBAL) -> Batch | End:
        """The batch of `request`, or End."""
        draws = draws if self._keyed else self._own.beside(draws, request.epoch)
        timer = StageTimer(self.traced)  # raw records are read before there are samples
        start = request.step * self.batch_size
        count = self.batch_size
        if request.is_tried:  # two samples are enough, or as many as stay together
            count = min(count, 2 * request.world * self.together)
        read = partial(self._records, request, start, start + count, draws)
        if self._numbers is None:
            numbered = read()
            numbers = np.array([number for number, _ in numbered], dtype=np.int64)
        else:  # records are read where a batch cannot be made at once
            numbers = self._numbers.at(request.epoch, start, start + count)
        if not len(numbers) or (self.tail == "drop" and len(numbers) < count):
            return End(request)
        positions = start + np.arange(len(numbers), dtype=np.int64)
        size = count if self.tail == "pad" else len(numbers)
        share = deal(
            Request(*request.address, positions, numbers, len(numbers)),
            size,
            request.rank,
            request.world,
            self.together,
        )
        first = partial(self._records, request, 0, ATTEMPTS, draws)
        records: _Decoded
        if self._numbers is None:
            records = _Decoded(self.dataset, numbered, first, self.seed)
        else:
            rows = partial(self._numbers.rows, request.epoch)
            records = _Unread(self.dataset, numbers.tolist(), read, first, self.seed, rows)
        return self.with_notices(self.work(share, records, draws, timer))

    def substitutes(self, rows: Any) -> Substitutes:
        return rows  # `_Decoded` knows all records of the batch

    def _records(self, request: StreamRequest, start: int, stop: int, draws: Draws) -> Records:
        """(number, raw record) at positions of the request's epoch."""
        local = self._local
        if local.reader is None or local.process != os.getpid():
            reader = StreamReader(self.dataset, self.order)
            local.reader, local.process = reader, os.getpid()
        reader, local.reader = local.reader, None  # a broken iterator cannot be read on
        try:
            records = reader.read(request.epoch, start, stop, draws)
        except PenstockError:
            raise
        except Exception as error:
            raise DataError(
                f"{type(self.dataset).__name__} cannot be read for epoch {request.epoch}, step "
                f"{request.step}: {type(error).__name__}: {error}"
            ) from error
        local.reader = reader
        return records


class _Decoded:
    """The records of one batch as rows of a map-style dataset, decoded on access.

    Args:
        stream: the dataset, whose `decode` makes a row of a record.
        records: (number, raw record) of the whole global batch.
        first: gives the epoch's first records, which may mean to read all again.
        seed: of the run.
    """

    def __init__(
        self, stream: Any, records: Records, first: Callable[[], Records], seed: int
    ) -> None:
        self._stream = stream
        self._decode = getattr(stream, "decode", None)
        self._records = dict(records)
        self._numbers = [number for number, _ in records]
        self._first = first
        self._seed = seed

    def __getitem__(self, number: int) -> Any:
        record = self._records[number]
        return record if self._decode is None else self._decode(record)

    def spare(self, numbers: list[int]) -> _Decoded:
        """The same with copies of some raw records, which transforms may write into."""
        records = [(number, deepcopy(self._records[number])) for number in numbers]
        return _Decoded(self._stream, records, self._first, self._seed)

    def rows(self, request: Request, slot: int) -> Iterator[int]:
        """Numbers of records for the place of a bad one, as `bad_samples.Substitutes`."""
        key = hash64(self._seed, "substitute", request.epoch, int(request.positions[slot]))
        own = int(request.indices[slot])
        order = Permutation(len(self._numbers), key)(np.arange(len(self._numbers)))
        others = [number for number in (self._numbers[n] for n in order) if number != own]
        yield from others
        more = dict(self._first())
        self._records |= more
        yield from (number for number in more if number not in (own, *others))


class _Unread(_Decoded):
    """The same, whose records are read when the first of them is asked for.

    Args:
        read: gives the records.
        row_numbers: rows of the dataset by numbers of records.
    """

    def __init__(
        self,
        stream: Any,
        numbers: list[int],
        read: Callable[[], Records],
        first: Callable[[], Records],
        seed: int,
        row_numbers: Callable[[IntArray], IntArray],
    ) -> None:
        self._read, self._row_numbers = read, row_numbers
        super().__init__(stream, [], first, seed)
        self._numbers = numbers

    @property
    def kinds(self) -> Mapping[str, str]:
        """As `fetch_batch` of the dataset has them."""
        kinds: Mapping[str, str] = self._stream.kinds
        return kinds

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> Mapping[str, Any]:
        """The fields of a batch; see `WholeBatches`."""
        fields: Mapping[str, Any] = self._stream.fetch_batch(self._row_numbers(indices))
        return fields

    def __getitem__(self, number: int) -> Any:
        self._fill()
        return super().__getitem__(number)

    def spare(self, numbers: list[int]) -> _Decoded:
        self._fill()
        return super().spare(numbers)

    def rows(self, request: Request, slot: int) -> Iterator[int]:
        self._fill()
        return super().rows(request, slot)

    def _fill(self) -> None:
        if not self._records:
            self._records = dict(self._read())


class _Local(threading.local):
    """A reader for each thread of each process; none travels to another."""

    reader: StreamReader | None = None
    process: int = -1

    def __reduce__(self) -> tuple[type[_Local], tuple[()]]:
        return type(self), ()
