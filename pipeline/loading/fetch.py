"""Request to batch: the one function that every executor runs.

1. A batch that can be had at once (whole.py) is made so: gathered, or decoded together.
2. Else each row is seeded by its key (seed, epoch, position), read, named and transformed. What is
   bad is left out or replaced (bad_samples.py).
3. The samples are collated, and the batch is transformed where that is to be done here.

A `Fetch` is a plain callable that can be pickled; it knows nothing of workers, ranks or devices.
Cost beside the data's own: 30 us a batch and 1 us a sample, and what `order/seeding.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch.utils.data import Subset

from penstock.errors import DataError
from penstock.loading import output, worker_status
from penstock.loading.bad_samples import (
    ATTEMPTS,
    RAISE,
    BadSampleError,
    BadSamples,
    LeftOut,
    SampleError,
    Stage,
    Substitutes,
    explained,
    in_one_line,
    is_bad,
    path_of,
)
from penstock.loading.batch import Batch
from penstock.loading.collate import Mismatch, kinds_of
from penstock.loading.digests import hash_sample
from penstock.loading.encoded import notices
from penstock.loading.facts import own_row, sample_name
from penstock.loading.fields import NAMELESS, Fields, OwnCollate, Restore, restorer
from penstock.loading.stage_timer import StageTimer
from penstock.loading.whole import NotAtOnceError, WholeBatches
from penstock.order.keys import IntArray, KeyArray, begin_sample, sample_keys
from penstock.order.plan import Request
from penstock.order.seeding import Seeding, scope, watch

if TYPE_CHECKING:
    from penstock.protocols import Collate, Transform

_ADVICE = (
    "Something that has no seed decides it: a generator made anew at each call, or kept in a "
    "module, a class or a closure; the clock, the system's random numbers, a counter; or a step "
    "that changes what the dataset keeps. So batches depend on who makes them, and no run, resumed "
    "or repeated, gives them again. Draw from `random`, `numpy.random` or torch, or from a "
    "generator that is kept as an attribute: these are seeded for each sample"
)


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
        at_once: batches may be made without samples, so that `batch_of` is not called.
        in_turn: requests are dealt to workers, and not taken by any free worker.
        draws_nothing: no code that makes a sample draws from a generator, as its parts declare
            (`draws = False`, `keyed = True`) or `first_of_threads` has seen. Nothing is seeded
            then, and threads may share it.
        compared: the first sample was made twice and compared, or need not be.
        gathers: the dataset makes whole batches, and nothing follows.
    """

    in_turn: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

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
        transform, collate = self.transform, self.collate
        steps = {} if transform is None else getattr(transform, "steps", {"transform": transform})
        parts = {f"transform.{name}": step for name, step in steps.items()}
        self._seeding = Seeding({"dataset": self.dataset, **parts, "collate": collate})
        self._seedings = [self._seeding]
        ours = type(collate).__module__.startswith("penstock.") and type(collate) is not OwnCollate
        self.draws_nothing = self.compared = not (
            getattr(self.dataset, "draws", True)
            or not getattr(transform, "keyed", transform is None)
            or getattr(collate, "draws", not ours)
        )
        self._whole = WholeBatches(self)
        self.gathers = self._whole.gathers and self.batch_transform is None

    def __setstate__(self, state: dict[str, object]) -> None:
        """In a worker that was not forked."""
        self.__dict__.update(state)
        refuse_postscript()

    def __call__(self, request: Any) -> Any:
        """The batch of `request`, or the end of a stream.

        Raises:
            DataError: a row cannot be read and is not to be left out, nothing could be read in its
                place, or rows do not fit together.
            SampleError: the dataset's, a transform's or the collate function's code failed.
        """
        return self.made(request, self.dataset, StageTimer(self.traced))

    def first_of_threads(self, request: Any) -> Any:
        """The batch of `request`, made in this thread; from then on threads may make others.

        Raises:
            SharedGeneratorError: data code draws from what threads would share.
        """
        if self.draws_nothing:
            return self(request)
        with scope():
            batch = self(request)
        for seeding in self._seedings:
            seeding.refuse_threads()
        self.draws_nothing = True
        return batch

    def dataset_of_worker(self) -> Any:
        """The dataset of `get_worker_info()` in a worker process, for `worker_init_fn`."""
        return self.dataset

    def substitutes(self, rows: Any) -> Substitutes | None:
        """Rows that may take the place of bad ones."""
        return self.bad.substitutes

    def made(self, request: Request, rows: Any, timer: StageTimer) -> Batch:
        """The batch of `request` with its samples read from `rows`, by index."""
        samples, warnings = Samples(self, request, rows, timer), dict[str, str]()
        if self._whole.usable:
            try:
                fields, kinds = self._whole.make(samples)
                return self._finished(fields, samples, kinds=kinds)
            except NotAtOnceError as error:
                if str(error):
                    slow = f"batch {request.address} is made sample by sample, which takes longer"
                    warnings["slow"] = f"{slow}: {error}"
        try:
            if self.draws_nothing:
                return self._by_sample(samples, begin_sample, warnings)
            make = partial(self._by_sample, samples, self._seeding.seed, warnings)
            batch = self._seeding.run(make, request.epoch)
            self.compared = True
            return batch
        finally:
            begin_sample(None)

    def _by_sample(
        self, samples: Samples, seed: Callable[[int], None], warnings: Mapping[str, str]
    ) -> Batch:
        with output.batch(len(samples.request)):
            samples.begin(seed)
            rows = None if self.compared else samples.copied_rows()
            for slot, key in enumerate(samples.keys.tolist()):
                seed(key)
                try:
                    samples.made.append(samples.make(slot))
                except BadSampleError as error:
                    samples.made.append(None)
                    # Without its traceback, whose frames hold all that was read of the sample.
                    samples.bad[slot] = BadSampleError(error.cause, error.known)
                samples.timer.lap("transform")
            if rows is not None:
                states = self._seeding.states()  # the collate function may draw further numbers
                unlike = samples.unlike(rows)
                self._seeding.restore(states)
                begin_sample(key)
                if unlike and self.hashed:
                    raise SampleError(f"{unlike}. A hash of it would say nothing")
                warnings = {**warnings, "unrepeatable": unlike} if unlike else warnings
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            return self.batch_of(samples, warnings)

    def batch_of(self, samples: Samples, warnings: Mapping[str, str]) -> Batch:
        """The batch of samples that were made."""
        places = samples.leave_out() if samples.bad else np.arange(len(samples.made))
        request, made, collate = samples.request, samples.made, self.collate
        restore = samples.restore if isinstance(collate, OwnCollate) else None
        given = made if restore is None else [restore(sample) for sample in made]
        more = [] if request.parts is None else [request.parts]
        try:
            fields = dict(collate(given, *more))
        except Mismatch as error:
            pair = [int(request.indices[row]) for row in error.rows]
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
        hashes = [hash_sample(sample) for sample in made] if self.hashed else None
        if hashes and more:  # which tokens of it are in the batch, and in which block
            hashes = [hash_sample([*both]) for both in zip(hashes, *more, strict=True)]
        kinds = kinds_of(made[0])
        samples.timer.lap("collate")
        samples.made, samples.early = [], None
        del given, made  # their memory is free while the batch is transformed
        about = {"places": places, "hashes": hashes, "left_out": samples.left_out}
        return self._finished(fields, samples, kinds=kinds, warnings=warnings, **about)

    def _finished(self, fields: dict[str, Any], samples: Samples, **attributes: Any) -> Batch:
        """The batch after its transforms, with the time that it took."""
        timer, request = samples.timer, samples.request
        batch = Batch(fields, request, timing=timer.seconds, **attributes)
        if self.batch_transform is not None:
            worker_status.report(worker_status.WHOLE, worker_status.BATCH)
            batch = self.batch_transform(batch)
            timer.lap("batch")
            batch = batch.replace(timing=timer.seconds)
        if self.traced:
            batch = batch.replace(trace=timer.trace())
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

    def failed(self, error: Exception, stage: Stage, samples: Samples, slot: int) -> Exception:
        """The error to raise for a sample that failed: it leaves the row out, or ends the run."""
        if self.bad.on_error != "raise" and is_bad(error, stage):
            return BadSampleError(in_one_line(error))
        row = samples.indices[slot]
        path, own = path_of(self.dataset, row), own_row(self.dataset, row)
        on_error, way_out = self.bad.on_error, self.bad.way_out
        return explained(error, stage, samples.request, slot, path, on_error, own, way_out)


class Samples:
    """The samples of one request, read, named and transformed.

    Args:
        rows: what they are read from, by index.

    Attributes:
        request: what they belong to; after `leave_out`, without the bad ones.
        indices: the rows that were asked for.
        made: the samples so far, None in the place of a bad one.
        bad: why samples are to be left out, by their places in the request.
        left_out: the same for a person; bad padding is not listed.
        restore: fields -> a sample as the dataset gives it; None for dicts.
        early: rows that were read at once.
    """

    left_out: tuple[LeftOut, ...] = ()
    restore: Restore | None = None
    early: list[Any] | None = None

    def __init__(self, fetch: Fetch, request: Request, rows: Any, timer: StageTimer) -> None:
        self.fetch, self.request, self.rows, self.timer = fetch, request, rows, timer
        self._asked = request
        self.indices: list[int] = request.indices.tolist()
        # torch's Subset only loops over `__getitem__` here, whose draws have keys of their own.
        self._many = hasattr(rows, "__getitems__") and not isinstance(rows, Subset)
        self._known, self._transform = fetch.bad.known, fetch.transform
        self._cell = worker_status.current.cell

    @cached_property
    def keys(self) -> KeyArray:
        """The keys of the samples, uint64[n]."""
        request = self.request
        return sample_keys(self.fetch.seed, request.epoch, request.positions)

    def begin(self, seed: Callable[[int], None] = begin_sample) -> None:
        """Read what can be read at once.

        Args:
            seed: begins a sample, given its key.
        """
        self.seed, self.made, self.bad = seed, list[Any](), dict[int, BadSampleError]()
        self.request, self.early = self._asked, None
        if not self._many or not self._known.keys().isdisjoint(self.indices):
            return
        read = partial(self.rows.__getitems__, list(self.indices))
        try:
            rows, drawn = (read(), []) if self.fetch.draws_nothing else watch(read)
        except Exception:  # row by row it is found which one is to blame
            return
        if drawn:
            raise SampleError(
                f"{type(self.rows).__name__}.__getitems__ draws from {' and '.join(drawn)}; it "
                "reads many samples at once, so its draws have no key. Draw in a transform instead"
            )
        self.early = [row if type(row) is dict else self._named(row) for row in rows]
        self.timer.lap("read")

    def read(self, slot: int, row: int | None = None, rows: Any = None) -> Any:
        """The sample in `slot` before its transforms, or that of another row in its place.

        Raises:
            BadSampleError: it is to be left out.
            DataError, SampleError: it ends the run.
        """
        cell = self._cell
        cell[worker_status.PLACE], cell[worker_status.STAGE] = slot, worker_status.READ
        if row is None:
            if self.early is not None:
                return self.early[slot]
            row = self.indices[slot]
        if row in self._known:
            raise BadSampleError(self._known[row], known=True)
        rows = self.rows if rows is None else rows
        try:
            sample = rows.__getitems__([row])[0] if self._many else rows[row]
            return sample if type(sample) is dict else self._named(sample)
        except Exception as error:
            raise self.fetch.failed(error, "read", self, slot) from error

    def make(self, slot: int, row: int | None = None) -> Any:
        """The sample in `slot`, or that of another row in its place; raises as `read`."""
        sample = self.read(slot, row)
        self._cell[worker_status.STAGE] = worker_status.TRANSFORM
        if self.early is None:
            self.timer.lap("read")
        if self._transform is None:
            return sample
        try:
            return self._transform(sample)
        except Exception as error:
            raise self.fetch.failed(error, "transform", self, slot) from error

    def copied_rows(self) -> Any:
        """What the first row can be read from again; None where that cannot be."""
        with suppress(Exception):  # a record that cannot be copied
            copied = getattr(self.rows, "copied", lambda row: self.rows)
            return copied(self.indices[0])
        return None

    def unlike(self, rows: Any) -> str:
        """A message about the first sample if it differs when it is made again; else ""."""
        with suppress(Exception):  # a bad one, or what has no hash
            first = _digests(self.made[0])
            self.seed(int(self.keys[0]))
            # Of a copy: a step may write into a row that the dataset hands out again.
            again = deepcopy(self.read(0, self.indices[0], rows))
            again = _digests(again if self._transform is None else self._transform(again))
            names = [repr(name) for name in first if first[name] != again.get(name)]
            if names:
                where = f"epoch {self.request.epoch}, position {self.request.positions[0]}"
                return (
                    f"sample {self.indices[0]} ({where}) has another {' and '.join(names)} when it "
                    f"is made again. {_ADVICE}"
                )
        return ""

    def leave_out(self) -> IntArray:
        """Take the bad samples out, or put others in their places; the place of each that stays.

        A share is never empty: where nothing would be left, its first row is replaced and becomes
        padding, so that its rank takes part in the step.

        Raises:
            DataError: nothing could be read in a row's place.
        """
        request, bad = self.request, self.bad
        substitute = self.fetch.bad.on_error == "substitute"
        self.left_out = tuple(self._left_out(slot) for slot in bad if slot < request.valid)
        places = [slot for slot in range(len(request)) if substitute or slot not in bad]
        valid = sum(slot < request.valid for slot in places)
        places = places or [0]
        indices = request.indices.copy()
        parts = None if request.parts is None else request.parts.copy()
        for slot in bad.keys() & places:
            indices[slot], self.made[slot] = self._substitute(slot)
            if parts is not None:
                parts[slot, 2] = -1  # another row has another length
        self.made = [self.made[slot] for slot in places]
        self.request = replace(
            request,
            positions=request.positions[places],
            indices=indices[places],
            valid=valid,
            parts=None if parts is None else parts[places],
        )
        return np.array(places, dtype=np.int64)

    def _named(self, sample: Any) -> dict[str, Any]:
        self.restore = self.restore or restorer(sample)
        return self.fetch.fields.named(sample)

    def _left_out(self, slot: int) -> LeftOut:
        row, position, error = self.indices[slot], int(self.request.positions[slot]), self.bad[slot]
        dataset, address = self.fetch.dataset, self.request.address
        path, own = path_of(dataset, row), own_row(dataset, row)
        return LeftOut(row, position, *address, path, error.cause, error.known, own)

    def _substitute(self, slot: int) -> tuple[int, Any]:
        """Row and sample for the place of a bad one; its draws are those of the place."""
        spare = self.fetch.substitutes(self.rows)
        for row in islice(spare.rows(self.request, slot) if spare else (), ATTEMPTS):
            self.seed(int(self.keys[slot]))
            with suppress(BadSampleError):
                return row, self.make(slot, row)
        raise DataError(
            f"{str(self._left_out(slot)).rstrip('.')}. Nothing could be read in its place either "
            f"({ATTEMPTS} attempts at most)"
        )


def _digests(sample: Any) -> dict[str, bytes]:
    """The hashes of a sample's fields; those that have none are left out."""
    digests: dict[str, bytes] = {}
    for name, value in sample.items() if isinstance(sample, Mapping) else [("sample", sample)]:
        with suppress(DataError):
            digests[name] = hash_sample(value)
    return digests


def refuse_postscript() -> None:
    """Let Pillow start no program in this process, from now on; 5 ms the first time.

    It starts Ghostscript for a picture in PostScript. Datasets of torchvision open whatever Pillow
    opens, and a file called `.jpg` may hold PostScript.
    """
    from PIL import EpsImagePlugin

    EpsImagePlugin.gs_binary = False
