"""Request to batch: the one function that every backend runs.

Where samples need no more than decoding, the batch is made at once (whole_batches.py). Else:

1. Read each row and transform it (sample_reader.py), with the generators seeded from the sample's
   key (seed, epoch, position), as far as dataset and transform draw from them (order/seeding.py),
   and with those that they hold (order/private_generators.py).
2. Collate the samples, and transform the batch where that is to be done here.
3. Make two samples of the first batch again, to see that they are the same (repeatable.py).

A `Fetch` is a plain callable that can be pickled; it knows nothing of workers, ranks or devices.
Cost beside the data's own: about 10 us a sample for seeding where something draws, 30 us a batch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch

from penstock.errors import DataError
from penstock.files.encoded import EncodedImage, notices
from penstock.loading import output, worker_status
from penstock.loading.bad_samples import (
    RAISE,
    BadSampleError,
    BadSamples,
    Substitutes,
    explained,
)
from penstock.loading.bad_samples import SampleError as SampleError  # also public from here
from penstock.loading.batch import Batch
from penstock.loading.collate import Mismatch, kinds_of, plain
from penstock.loading.facts import own_row, sample_name
from penstock.loading.fields import NAMELESS, Fields, OwnCollate
from penstock.loading.sample_reader import Recipe, SampleReader
from penstock.loading.stage_timer import StageTimer
from penstock.loading.whole_batches import NotAtOnceError, WholeBatches
from penstock.order.keys import IntArray, begin_sample, sample_keys
from penstock.order.plan import Request
from penstock.order.private_generators import PrivateGenerators
from penstock.order.randomness import GLOBAL, Draws
from penstock.order.seeding import UNSEEDED, Seeding

if TYPE_CHECKING:
    from penstock.protocols import Collate, Transform


@dataclass(eq=False, repr=False)
class Fetch:
    """Work on one request.

    Args:
        dataset: rows by index, or records forwards.
        transform: None leaves samples as they are.
        seed: of the run.
        hashed: also hash every sample; about 1 ms a MiB.
        batch_transform: batch -> batch, after collating; None leaves it.
        bad: what becomes of bad samples.
        fields: names for samples that are no dicts.

    Attributes:
        traced: batches have a `trace` of when and where they were worked on.
        recipe: what samples are made of.
        in_turn: requests are dealt to workers, and not taken by any free worker.
        repeat_checked: samples of a first batch were made twice and compared, or need not be.
        draws_nothing: no code that makes a batch draws.
        leaves_generators: in this process they stand after a batch where they stood.
    """

    in_turn: ClassVar[bool] = False

    dataset: Any  # MapDataset | StreamDataset
    transform: Transform | None
    collate: Collate
    seed: int
    hashed: bool = False
    batch_transform: Callable[[Batch], Batch] | None = None
    bad: BadSamples = RAISE
    fields: Fields = NAMELESS
    traced: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        keyed = getattr(self.transform, "keyed", self.transform is None)
        self._keyed = keyed and not getattr(self.dataset, "draws", True)
        self.repeat_checked = self._keyed
        self._seeding = Seeding()
        named = {f"transform.{name}": step for name, step in self._steps().items()}
        self._own = PrivateGenerators({"dataset": self.dataset, **named, "collate": self.collate})
        self._order = getattr(self.collate, "order", None)
        self._restores = isinstance(self.collate, OwnCollate)
        self.recipe = Recipe(
            self.dataset,
            self.transform,
            self.collate,
            self.hashed,
            self.bad,
            self.fields,
        )
        self._whole = WholeBatches(self.recipe)
        # Where nothing can draw, they need not be saved and put back: 30 us a batch.
        plain = self._whole.reads and self.batch_transform is None
        self.draws_nothing = self.leaves_generators = self._keyed and plain
        self.gathers = plain and self._whole.usable

    def __setstate__(self, state: dict[str, object]) -> None:
        """In a worker that was not forked."""
        self.__dict__.update(state)
        refuse_postscript()

    def __call__(self, request: Any, draws: Draws = GLOBAL) -> Any:
        """The batch of `request`, or the end of a stream.

        Args:
            draws: the generators to put a sample's key into.

        Raises:
            DataError: a row cannot be read and is not to be left out, nothing could be read in its
                place, or rows do not fit together.
            SampleError: the dataset's, a transform's or the collate function's code failed.
        """
        draws = draws if self._keyed else self._own.beside(draws, request.epoch)
        return self.with_notices(self.work(request, self.dataset, draws, StageTimer(self.traced)))

    def with_notices(self, batch: Batch) -> Batch:
        """A batch whose warnings name what reading has lost of files so far in this process."""
        if not notices:
            return batch
        # Boxes, masks or points, perhaps, of images that nobody has looked at before.
        has_places = not hasattr(self.dataset, "check_turns") and any(
            getattr(value[0] if isinstance(value, list) and value else value, "ndim", 0) in (2, 3)
            for value in batch.values()
        )
        lost = {
            f"lost {kind}": text for kind, text in notices.items() if kind != "turned" or has_places
        }
        return batch.replace(warnings={**batch.warnings, **lost})

    def _steps(self) -> Mapping[str, Callable[[Any], Any]]:
        if self.transform is None:
            return {}
        return getattr(self.transform, "steps", {"transform": self.transform})

    def dataset_of_worker(self) -> Any:
        """The dataset of `get_worker_info()` in a worker process, for `worker_init_fn`."""
        return self.dataset

    def substitutes(self, rows: object) -> Substitutes | None:
        """Rows that may take the place of bad ones."""
        return self.bad.substitutes

    def work(self, request: Request, rows: Any, draws: Draws, timer: StageTimer) -> Batch:
        """The batch of `request` with its samples read from `rows`, by index."""
        warnings: dict[str, str] = {}
        keys = partial(sample_keys, self.seed, request.epoch, request.positions)
        if self._whole.usable:
            try:
                fields, kinds = self._whole.make(request, rows, keys, draws, timer)
                return self._finished(fields, request, np.arange(len(request)), timer, kinds=kinds)
            except NotAtOnceError as error:
                if str(error):
                    warnings["slow"] = (
                        f"batch {request.address} is made sample by sample, which takes longer: "
                        f"{error}"
                    )
        make = partial(self._by_sample, request, rows, keys().tolist(), timer, warnings)
        try:
            if self._keyed:
                return make(UNSEEDED if draws is GLOBAL else draws)
            checked = self.repeat_checked
            batch = self._seeding.run(make) if draws is GLOBAL else make(draws)
            if not self._own.refreshed and self._own.refresh():
                self.repeat_checked = checked
                batch = make(self._own.beside(draws, request.epoch))
        finally:
            begin_sample(None)
        if self.hashed and "unrepeatable" in batch.warnings:
            raise SampleError(f"{batch.warnings['unrepeatable']}. A hash of it would say nothing")
        return batch

    def _by_sample(
        self,
        request: Request,
        rows: Any,
        keys: list[int],
        timer: StageTimer,
        warnings: Mapping[str, str],
        draws: Draws,
    ) -> Batch:
        with output.batch(len(request)):
            reader = SampleReader(
                self.recipe, request, rows, self.transform, draws, timer, self.substitutes
            )
            again = None
            if not self.repeat_checked and self._own.is_foreign:
                self.repeat_checked = True
                from penstock.loading.repeatable import Again

                with suppress(Exception):  # a record that cannot be copied
                    again = Again(
                        request,
                        rows,
                        self.recipe.reads_many,
                        self.fields.named,
                        self._steps(),
                        keys,
                        draws,
                    )
            samples: list[Any] = []
            timer.lap("read")
            bad: dict[int, BadSampleError] = {}
            begin = begin_sample if self._keyed or draws is UNSEEDED else draws.seed
            for slot, key in enumerate(keys):
                begin(key)
                try:
                    samples.append(reader.sample(slot))
                except BadSampleError as error:
                    samples.append(None)
                    bad[slot] = error.kept()
                timer.lap("transform")
            if again is not None:
                differs = again.difference(samples, bad, hash_sample)
                if differs:
                    warnings = {**warnings, "unrepeatable": differs}
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            reader.samples = reader.without(bad, samples, keys) if bad else samples
            del samples  # they go when they are collated
            return self._collated(reader, timer, warnings)

    def _collated(
        self, reader: SampleReader, timer: StageTimer, warnings: Mapping[str, str]
    ) -> Batch:
        samples = reader.taken_samples()
        request, restore, places = reader.request, reader.restore, reader.places
        as_given = (
            [restore(sample) for sample in samples] if self._restores and restore else samples
        )
        reorder = None if self._order is None else self._order(as_given)
        order = np.arange(len(samples)) if reorder is None else np.asarray(reorder)
        if reorder is not None:
            as_given = [as_given[slot] for slot in order]
            samples = [samples[slot] for slot in order]
        try:
            parts, collate = request.parts, cast(Any, self.collate)
            fields = dict(collate(as_given) if parts is None else collate(as_given, parts))
        except Mismatch as error:
            pair = [int(request.indices[order[row]]) for row in error.rows]
            first, second = (sample_name(row, own_row(self.dataset, row)) for row in pair)
            raise DataError(
                f"batch (epoch {request.epoch}, step {request.step}) cannot be put together: field "
                f"{error.field!r} of samples {first} and {second}: {error.reason}. Resize in a "
                "transform, or choose another collate (collate=pad for unequal lengths, "
                "collate=list to stack nothing)"
            ) from error
        except Exception as error:
            own = own_row(self.dataset, int(request.indices[0]))
            raise explained(error, "collate", request, own=own) from error
        hashes = None
        if self.hashed:
            hashes = [hash_sample(sample) for sample in samples]
            if parts is not None:  # which tokens of it are in the batch, and in which block
                hashes = [hash_sample([*both]) for both in zip(hashes, parts, strict=True)]
        kinds = kinds_of(samples[0])
        timer.lap("collate")
        del as_given, samples
        return self._finished(
            fields,
            request,
            order,
            timer,
            places=None if places is None else places[order],
            kinds=kinds,
            hashes=hashes,
            left_out=reader.left_out,
            warnings=warnings,
        )

    def _finished(
        self,
        fields: dict[str, Any],
        request: Request,
        order: IntArray,
        timer: StageTimer,
        **attributes: Any,
    ) -> Batch:
        """The batch after its transforms, with the time that it took."""
        if self.batch_transform is None:
            trace = timer.trace() if self.traced else None
            return Batch(fields, request, order, timing=timer.seconds, trace=trace, **attributes)
        worker_status.report(worker_status.WHOLE, worker_status.BATCH)
        batch = self.batch_transform(Batch(fields, request, order, **attributes))
        timer.lap("batch")
        return batch.replace(timing=timer.seconds, trace=timer.trace())


def batch_hash(batches: Iterable[Batch]) -> str:
    """One hash over the global batch that `batches` are the shares of, in position order.

    Padding counts nowhere, so the hash does not depend on how the batch was shared out. Batches
    have to be fetched with `hashed=True`.
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


def _feed(update: Callable[[bytes], None], value: object) -> None:
    """Feed a value in a form that tells every two different values apart."""
    if isinstance(value, Mapping):
        update(b"{%d" % len(value))
        for key in sorted(value, key=str):
            _feed(update, str(key))
            _feed(update, value[key])
    elif isinstance(value, torch.Tensor):
        tensor = plain(value).detach().cpu().contiguous()
        update(f"{str(tensor.dtype).removeprefix('torch.')}{tuple(tensor.shape)}".encode())
        # bfloat16 and the float8 types have no numpy dtype, but their bytes do.
        update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        update(f"{array.dtype}{np.shape(value)}".encode())
        update(array.tobytes())
    elif isinstance(value, (list, tuple)):
        update(b"[%d" % len(value))
        for item in value:
            _feed(update, item)
    elif isinstance(value, float):
        update(b"f" + struct.pack("<d", value))
    else:
        data = value if isinstance(value, bytes) else _bytes_of(value)
        update(f"{type(value).__name__}:{len(data)}:".encode() + data)


def _bytes_of(value: Any) -> bytes:
    """Bytes of a plain value, or of a picture that has not become a tensor yet."""
    if value is None or isinstance(value, (str, int, bool)):
        return str(value).encode()
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # a Pillow image
        return f"{value.mode}{value.size}".encode() + bytes(value.tobytes())
    if isinstance(value, EncodedImage):
        return value.content
    raise DataError(f"a field of type {type(value).__name__} cannot be hashed; make it a tensor")


def refuse_postscript() -> None:
    """Let Pillow start no program in this process, from now on; 5 ms the first time.

    It starts Ghostscript for a picture in PostScript. Datasets of torchvision open whatever Pillow
    opens, and a file called `.jpg` may hold PostScript.
    """
    from PIL import EpsImagePlugin

    EpsImagePlugin.gs_binary = False
