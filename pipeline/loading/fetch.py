"""Request to batch: the one function that every backend runs.

1. Seed the generators from the sample's key (seed, epoch, position), as long as dataset and
   transform draw from them (order/seeding.py), and those that they hold
   (order/private_generators.py).
2. Read the row, transform it, hash it when asked to.
3. Collate the share, and transform it as a batch where it is to be done here.
4. Time each stage. A bad sample ends the run, or is replaced or left out (sample_reader.py).
5. Of the first batch make two samples again, to see that they are the same (repeatable.py).

A `Fetch` is a plain callable that can be pickled; it knows nothing of workers, ranks or devices.
Cost beside the data's own: about 10 us a sample for seeding where something draws, 30 us a batch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from pipeline.errors import DataError
from pipeline.loading import output_buffers, worker_status
from pipeline.loading.bad_samples import (
    RAISE,
    BadSampleError,
    BadSamples,
    Substitutes,
    explained,
)
from pipeline.loading.bad_samples import SampleError as SampleError  # where its readers look for it
from pipeline.loading.batch import Batch
from pipeline.loading.collate import Mismatch, kinds_of, plain
from pipeline.loading.encoded import EncodedImage
from pipeline.loading.named_fields import Fields, OwnCollate, Restore
from pipeline.loading.repeatable import Again
from pipeline.loading.sample_reader import NAMELESS, SampleReader
from pipeline.loading.stage_timer import StageTimer
from pipeline.loading.whole_batches import WholeBatches
from pipeline.order.plan import Request
from pipeline.order.private_generators import PrivateGenerators
from pipeline.order.randomness import (
    GLOBAL,
    Draws,
    begin_sample,
    sample_key_array,
    sample_keys,
)
from pipeline.order.seeding import UNSEEDED, Seeding, ThreadRandomness, held_by_parts
from pipeline.protocols import Collate, MapDataset, StreamDataset, Transform


class Fetch:
    """Work on one request.

    Args:
        dataset: rows by index, or records forwards. Where nothing is done to single samples, or no
            more than decoding, batches are made at once (pipeline/loading/whole_batches.py).
        transform: None leaves samples as they are.
        seed: of the run.
        hashed: also hash every sample; about 1 ms a MiB.
        batch_transform: batch -> batch, after collating; None leaves it.
        bad: what becomes of bad samples.
        fields: names for samples that are no dicts.

    Attributes:
        traced: batches say when and where they were worked on (pipeline/loading/stage_timer.py).
        tried: the samples of a first batch have been made twice and compared, or need not be.
    """

    def __init__(
        self,
        dataset: MapDataset | StreamDataset,
        transform: Transform | None,
        collate: Collate,
        seed: int,
        hashed: bool = False,
        batch_transform: Callable[[Batch], Batch] | None = None,
        bad: BadSamples = RAISE,
        fields: Fields = NAMELESS,
    ) -> None:
        self.fields = fields
        self.dataset: Any = dataset
        self.transform = transform
        self.collate = collate
        self.seed = seed
        self.hashed = hashed
        self.batch_transform = batch_transform
        self.bad = bad
        self.traced = False
        # torch's Subset only loops over `__getitem__` here, whose draws have keys of their own.
        keyed = getattr(transform, "keyed", transform is None)
        self._keyed = keyed and not getattr(dataset, "draws", True)
        self._seeding = Seeding()
        named = {f"transform.{name}": step for name, step in self._steps().items()}
        self._own = PrivateGenerators({"dataset": dataset, **named, "collate": collate})
        self.tried = self._keyed
        self._many = hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset)

    def __call__(self, request: Request, draws: Draws = GLOBAL) -> Batch:
        """The batch of `request`.

        Args:
            draws: the generators to put a sample's key into.

        Raises:
            DataError: a row cannot be read and is not to be left out, nothing could be read in its
                place, or rows do not fit together.
            SampleError: the dataset's, a transform's or the collate function's code failed.
        """
        return self.work(request, self.dataset, self._with_own(request.epoch, draws))

    def _steps(self) -> Mapping[str, Callable[[Any], Any]]:
        """The transforms by name."""
        if self.transform is None:
            return {}
        return getattr(self.transform, "steps", {"transform": self.transform})

    def _with_own(self, epoch: int, draws: Draws) -> Draws:
        """`draws`, and the generators that dataset, transforms and collate function hold."""
        names = [] if self._keyed else self._own.names(epoch)
        if names and isinstance(draws, ThreadRandomness):
            raise held_by_parts(names)
        return self._own.beside(draws) if names else draws

    def dataset_of_worker(self) -> Any:
        """What `get_worker_info().dataset` is in a worker process, for `worker_init_fn`."""
        return self.dataset

    def work(
        self, request: Request, rows: Any, draws: Draws, substitutes: Substitutes | None = None
    ) -> Batch:
        """The batch of `request` with its samples read from `rows`, by index.

        Args:
            substitutes: which rows may stand in for bad ones; None takes those of `bad`.
        """
        batch = self._at_once(request, rows, draws, substitutes)
        if batch is not None:
            return batch

        def make(draws: Draws) -> Batch:
            with output_buffers.batch(len(request)):
                return self._worked(request, rows, draws, substitutes)

        try:
            if self._keyed:
                return make(UNSEEDED if draws is GLOBAL else draws)
            tried = self.tried
            batch = self._seeding.run(make) if draws is GLOBAL else make(draws)
            if self._own.grown():  # parts may make theirs with their first sample
                self.tried = tried
                batch = make(self._with_own(request.epoch, draws))
        finally:
            begin_sample(None)
        if batch.unlike and self.hashed:
            raise SampleError(f"{batch.unlike}. A hash of it would say nothing")
        return batch

    def _at_once(
        self, request: Request, rows: Any, draws: Draws, substitutes: Substitutes | None
    ) -> Batch | None:
        """The batch without a step of Python for each sample; None where that cannot be."""
        whole = WholeBatches(self.dataset, self.transform, self.collate)
        if self.hashed or not whole.usable or (self.bad.known and not whole.by_sample):
            return None
        timer = self._timer()
        reader = SampleReader(request, rows, self.dataset, None, self.bad, substitutes,
                      self._many and whole.by_sample, draws, self.fields)  # fmt: skip
        keys = sample_key_array(self.seed, request.epoch, request.positions)
        made = whole.make(reader, rows, keys, timer)
        if made is None:
            return None
        batch = Batch(made.fields, request, np.arange(len(request)))
        batch.kinds = made.kinds
        return self._finished(batch, timer)

    def _worked(
        self, request: Request, rows: Any, draws: Draws, substitutes: Substitutes | None
    ) -> Batch:
        timer = self._timer()
        keys = sample_keys(self.seed, request.epoch, request.positions)
        reader = SampleReader(
            request, rows, self.dataset, self.transform, self.bad, substitutes, self._many, draws,
            self.fields,
        )  # fmt: skip
        again = self._again(request, rows, keys, draws)
        timer.lap("read")
        samples: list[Any] = []
        bad: dict[int, BadSampleError] = {}
        begin = begin_sample if self._keyed else draws.seed
        here = worker_status.current_cell()
        for place, key in enumerate(keys):
            begin(key)
            try:
                here[worker_status.PLACE], here[worker_status.STAGE] = place, worker_status.READ
                sample = reader.read(place)
                here[worker_status.STAGE] = worker_status.TRANSFORM
                if not self._many:  # it was read before
                    timer.lap("read")
                samples.append(reader.transformed(sample, place))
            except BadSampleError as error:
                samples.append(None)
                bad[place] = error
            timer.lap("transform")
        unlike = again.unlike(samples, bad, hash_sample) if again is not None else ""
        worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
        if not bad:
            batch = self._collated(samples, request, reader.restore)
        else:
            rest = reader.without(bad, samples, keys, draws)
            batch = self._collated(rest.samples, rest.request, reader.restore)
            batch.places, batch.left_out = rest.places[batch.places], rest.left_out
        batch.unlike = unlike
        timer.lap("collate")
        return self._finished(batch, timer)

    def _again(self, request: Request, rows: Any, keys: list[int], draws: Draws) -> Again | None:
        """How the first samples of a process are made again; None where that need not be tried."""
        if self.tried or not self._own.is_foreign(request.epoch):
            return None
        self.tried = True
        named = self.fields.named
        return Again.of(request, rows, self._many, self._steps(), keys, draws, named)

    def _finished(self, batch: Batch, timer: StageTimer) -> Batch:
        if self.batch_transform is not None:
            worker_status.report(worker_status.WHOLE, worker_status.BATCH)
            batch = self.batch_transform(batch)
            timer.lap("batch")
        batch.timing, batch.trace = timer.seconds, timer.trace()
        return batch

    def _timer(self) -> StageTimer:
        """For the batch at hand."""
        return StageTimer(self.traced)

    def _collated(self, samples: list[Any], request: Request, restore: Restore | None) -> Batch:
        theirs = isinstance(self.collate, OwnCollate) and restore is not None
        given = [restore(sample) for sample in samples] if theirs and restore else samples
        reorder = getattr(self.collate, "order", lambda _: None)(given)
        order = np.arange(len(samples)) if reorder is None else np.asarray(reorder)
        given = [given[place] for place in order]
        samples = [samples[place] for place in order] if theirs else given
        try:
            batch = Batch(self.collate(given), request, order)
        except Mismatch as error:
            first, second = (int(request.indices[order[row]]) for row in error.rows)
            raise DataError(
                f"batch {_at(request)} cannot be put together: field {error.field!r} of samples "
                f"{first} and {second}: {error.reason}. Resize in a transform, or choose another "
                "collate (collate=pad for unequal lengths, collate=list to stack nothing)"
            ) from error
        except Exception as error:
            raise explained(error, "collate", request) from error
        batch.kinds = kinds_of(samples[0])
        if self.hashed:
            batch.hashes = [hash_sample(sample) for sample in samples]
        return batch


def _at(request: Request) -> str:
    return f"(epoch {request.epoch}, step {request.step})"


def batch_hash(batches: Iterable[Batch]) -> str:
    """One hash over the global batch that `batches` are the shares of, in position order.

    Padding counts nowhere, so the hash does not depend on how the batch was shared out.
    Each batch must have been fetched with `hashed=True`.
    """
    return hash_of_rows(row for batch in batches for row in row_hashes(batch))


def row_hashes(batch: Batch) -> list[tuple[int, bytes]]:
    """Position and hash of each row that counts."""
    assert batch.hashes is not None, "the batch was not hashed"
    valid = [True] * len(batch.hashes) if batch.valid is None else batch.valid.tolist()
    triples = zip(batch.positions.tolist(), batch.hashes, valid, strict=True)
    return [(position, digest) for position, digest, counts in triples if counts]


def hash_of_rows(rows: Iterable[tuple[int, bytes]]) -> str:
    """The hash of a batch from those of its rows, in any order."""
    return hashlib.blake2b(b"".join(d for _, d in sorted(rows)), digest_size=16).hexdigest()


def hash_sample(sample: Any) -> bytes:
    """A hash (16 bytes) over field names, types, shapes and bytes, whatever the field order."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest.update, sample)
    return digest.digest()


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    """Feed a value in a form that tells every two different values apart."""
    if isinstance(value, Mapping):
        update(b"{%d" % len(value))
        for key in sorted(value, key=str):
            _feed(update, str(key))
            _feed(update, value[key])
    elif isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        _feed_array(update, value)
    elif isinstance(value, (list, tuple)):
        update(b"[%d" % len(value))
        for item in value:
            _feed(update, item)
    elif isinstance(value, float):
        update(b"f" + struct.pack("<d", value))
    else:
        data = value if isinstance(value, bytes) else _text(value)
        update(f"{type(value).__name__}:{len(data)}:".encode() + data)


def _text(value: Any) -> bytes:
    """Bytes of a plain value, or of a picture that has not become a tensor yet."""
    if value is None or isinstance(value, (str, int, bool)):
        return str(value).encode()
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # a Pillow image
        return f"{value.mode}{value.size}".encode() + bytes(value.tobytes())
    if isinstance(value, EncodedImage):
        return value.content
    raise DataError(f"a field of type {type(value).__name__} cannot be hashed; make it a tensor")


def _feed_array(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = plain(value).detach().cpu().contiguous()
        kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        # bfloat16 and the float8 types have no numpy dtype, but their bytes do.
        array = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0)
    else:
        array = np.ascontiguousarray(value)
        kind, shape = str(array.dtype), tuple(np.shape(value))
    update(f"{kind}{shape}".encode())
    update(array.tobytes())
