"""Request to batch: the one function that every executor runs.

1. A batch that can be had at once, without a sample for each row, is made so: a dataset gathers
   rows by itself, or one step decodes all pictures together (`transforms/image_decoding.py`).
2. Else, and where anything is out of the ordinary (a bad sample, fields that do not fit together),
   each row is seeded by its key (seed, epoch, position), read, named and transformed. What is bad
   is left out or replaced (bad_samples.py). The values are the same, to the bit.
3. The samples are collated, and the batch is transformed where that is to be done here.

A `Fetch` is a plain callable that can be pickled; it knows nothing of workers, ranks or devices.
Cost beside the data's own: 25 us a batch and 0.7 us a sample, and what `order/seeding.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from PIL import EpsImagePlugin
from torch import Tensor

from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.loading import worker_status
from penstock.loading.bad_samples import (
    ATTEMPTS,
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
from penstock.loading.batch import Batch, hash_sample
from penstock.loading.collate import Mismatch, Stack, columns, kinds_of, stack
from penstock.loading.encoded import EncodedImage, StoredPictures, notices
from penstock.loading.facts import (
    NAMELESS,
    Fields,
    OwnCollate,
    Restore,
    SomeRows,
    gathers_rows,
    own_row,
    restorer,
)
from penstock.loading.worker_status import StageTimer
from penstock.order.keys import IntArray, KeyArray, begin_sample, sample_keys
from penstock.order.plan import Request
from penstock.order.seeding import Seeding, scope

# For a picture in PostScript Pillow starts Ghostscript, and a file called `.jpg` may hold that.
# Datasets of torchvision open whatever Pillow opens. Workers that were not forked import this, too.
EpsImagePlugin.gs_binary = False

Made = tuple[Mapping[str, Any], Mapping[str, str]]  # fields of a batch, and their kinds
# Members by which a class says what samples are.
_READING = {"__getitem__", "__getitems__", "__iter__", "decode", "samples", "fetch_batch"}
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
        collate: samples -> fields of a batch.
        seed: of the run.
        hashed: also hash every sample; about 1 ms a MiB.
        batch_transform: batch -> batch, after collating; None leaves it.
        bad: what becomes of bad samples.
        fields: names for samples that are no dicts.

    Attributes:
        at_once: batches may be made without samples, so that `batch_of` is not called.
        steps: of the transform, by name.
        draws_nothing: no code that makes a sample draws from a generator, as its parts declare
            (`draws = False`, `keyed = True`) or `first_of_threads` has seen. Nothing is seeded
            then, and threads may share it.
        compared: the first sample was made twice and compared, or need not be.
        gathers: the dataset makes whole batches, and nothing follows.
    """

    at_once: ClassVar[bool] = True

    dataset: Any  # MapDataset | StreamDataset
    transform: Any  # Transform | None
    collate: Any  # Collate
    seed: int
    hashed: bool = False
    batch_transform: Callable[[Batch], Batch] | None = None
    bad: BadSamples = field(default_factory=BadSamples)
    fields: Fields = NAMELESS

    def __post_init__(self) -> None:
        transform, collate = self.transform, self.collate
        self.steps: Mapping[str, Any] = (
            {} if transform is None else getattr(transform, "steps", {"transform": transform})
        )
        parts = {f"transform.{name}": step for name, step in self.steps.items()}
        self._seeding = Seeding({"dataset": self.dataset, **parts, "collate": collate})
        self._seedings = [self._seeding]
        ours = type(collate).__module__.startswith("penstock.") and type(collate) is not OwnCollate
        self.draws_nothing = self.compared = not (
            getattr(self.dataset, "draws", True)
            or not getattr(transform, "keyed", transform is None)
            or getattr(collate, "draws", not ours)
        )
        self.reads_many = gathers_rows(self.dataset)
        self._way = _way_of(self)
        self.gathers = self._way is _gathered and self.batch_transform is None

    def __call__(self, request: Any) -> Any:
        """The batch of `request`, or the end of a stream.

        Raises:
            DataError: a row cannot be read and is not to be left out, nothing could be read in its
                place, or rows do not fit together.
            SampleError: the dataset's, a transform's or the collate function's code failed.
        """
        return self.made(Samples(self, request))

    def first_of_threads(self, request: Any) -> Any:
        """The batch of `request`, made in this thread; from then on threads may make others.

        Raises:
            SharedGeneratorError: data code draws from what threads would share.
        """
        with scope():
            batch = self(request)
        for seeding in self._seedings if not self.draws_nothing else ():
            seeding.refuse_threads()
        self.draws_nothing = True
        return batch

    def made(self, samples: Samples) -> Batch:
        """The batch of samples that are not read yet."""
        try:
            batch = self._made(samples)
        finally:
            begin_sample(None)
        warnings = samples.warnings
        if self.batch_transform is not None:  # the samples' memory is free meanwhile
            worker_status.report(worker_status.WHOLE, worker_status.BATCH)
            batch = self.batch_transform(batch)
            samples.timer.lap("batch")
        for kind, text in [*notices.items()]:  # threads add to it
            # Perhaps boxes, masks or points of images whose size no reader has checked.
            firsts = (v[0] if isinstance(v, list) and v else v for v in batch.values())
            places = any(getattr(first, "ndim", 0) in (2, 3) for first in firsts)
            if kind != "turned" or (places and not hasattr(self.dataset, "check_turns")):
                warnings[f"lost {kind}"] = text
        return batch.replace(warnings=warnings) if warnings else batch

    def _made(self, samples: Samples) -> Batch:
        """The batch before its transforms: at once where that works, else of its samples."""
        failure = ""
        if self._way is not None and not samples.has_known:
            try:
                fields, kinds = self._way(samples)
                return Batch(fields, samples.requested, kinds=kinds, timing=samples.timer.seconds)
            except Exception as error:  # sample by sample it is found what is wrong
                failure = "" if isinstance(error, (PenstockError, OSError)) else in_one_line(error)
        if self.draws_nothing:
            batch = self._by_sample(samples, begin_sample)
        else:
            batch = self._seeding.run(
                lambda: self._by_sample(samples, self._seeding.seed), samples.requested.epoch
            )
            if not self.compared:
                self._compare(samples)
                self.compared = True
        if failure and not samples.bad:
            self._way = None  # the next ones would be read twice as well
            samples.warnings["slow"] = (
                f"batch {samples.requested.address} is made sample by sample, which takes longer: "
                f"{failure}"
            )
        return batch

    def _by_sample(self, samples: Samples, seed: Callable[[int], None]) -> Batch:
        """The batch of samples that are made one by one, each begun by `seed` with its key."""
        samples.begin(seed)
        for slot, key in enumerate(samples.keys.tolist()):
            seed(key)
            samples.made.append(samples.make(slot, samples.indices[slot]))
        samples.timer.lap("read")
        samples.early = None  # what is read from now on takes the place of something
        samples.bad = {slot: of for slot, of in enumerate(samples.made) if isinstance(of, LeftOut)}
        samples.first = {} if self.compared else _digests(samples.made[0])
        worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
        return self.batch_of(samples)

    def batch_of(self, samples: Samples) -> Batch:
        """The batch of samples that were made."""
        places = samples.leave_out() if samples.bad else np.arange(len(samples.made))
        request, made, collate = samples.request, samples.made, self.collate
        restore = samples.restore if isinstance(collate, OwnCollate) else None
        restored = made if restore is None else [*map(restore, made)]
        try:
            fields = dict(collate(restored, *samples.parts))
        except Exception as error:
            row = error.rows[1] if isinstance(error, Mismatch) else 0
            odd = partial(samples.left_out, int(places[row]), int(request.indices[row]))
            raise explained(error, "collate", self.bad.on_error, odd) from error
        hashes = [hash_sample(sample) for sample in made] if self.hashed else None
        if hashes and request.parts is not None:  # which tokens of it, and in which block
            hashes = [hash_sample([*both]) for both in zip(hashes, request.parts, strict=True)]
        samples.timer.lap("collate")
        return Batch(
            fields,
            request,
            places,
            kinds_of(made[0]),
            samples.timer.seconds,
            hashes,
            tuple(of for slot, of in samples.bad.items() if slot < samples.requested.valid),
        )

    def failed(self, error: Exception, stage: Stage, sample: Callable[[str], LeftOut]) -> LeftOut:
        """A sample that failed, as it is left out.

        Args:
            sample: given a cause, the sample that it is of.

        Raises:
            DataError, SampleError: it ends the run.
        """
        if self.bad.on_error == "raise" or not is_bad(error, stage):
            raise explained(error, stage, self.bad.on_error, sample) from error
        return sample(in_one_line(error))

    def _compare(self, samples: Samples) -> None:
        """Warn if the first sample is another one when it is made again."""
        first = again = samples.first
        with suppress(Exception):  # a bad one
            samples.seed(int(samples.keys[0]))
            # Of a copy: a step may write into a row that the dataset hands out again.
            row = deepcopy(samples.read(0, samples.indices[0]))
            again = _digests(row if self.transform is None else self.transform(row))
        names = " and ".join(repr(name) for name in first if first[name] != again.get(name))
        if names:
            samples.warnings["unrepeatable"] = unlike = (
                f"sample {samples.indices[0]} (epoch {samples.requested.epoch}, position "
                f"{samples.requested.positions[0]}) has another {names} when it is made again. "
                f"{_ADVICE}"
            )
            if self.hashed:
                raise SampleError(f"{unlike}. A hash of it would say nothing")


class Samples:
    """The samples of one request.

    Args:
        rows: what they are read from, by index; None: the dataset.
        timer: begun already, where records were read for them.
        substitutes: the rows that may take the place of a bad one, best first; None: the policy's.

    Attributes:
        warnings: messages to log, by kind.
        requested: the request.
        request: the same; after `leave_out`, without the bad ones.
        indices: the requested rows.
        made: the samples so far, with what is left out in the places of bad ones.
        bad: these, by their places in the request.
        early: rows that were read at once.
        first: hashes of the first sample's fields, before it was collated.
        restore: fields -> a sample as the dataset gives it; None for dicts.
    """

    def __init__(
        self,
        fetch: Fetch,
        request: Request,
        rows: Any = None,
        timer: StageTimer | None = None,
        substitutes: Substitutes | None = None,
    ) -> None:
        self.fetch, self.requested, self.request = fetch, request, request
        self.rows, self.timer = fetch.dataset if rows is None else rows, timer or StageTimer()
        self.substitutes = substitutes or fetch.bad.substitutes
        self.indices: list[int] = request.indices.tolist()
        self.bad, self.first = dict[int, LeftOut](), dict[str, bytes]()
        self.warnings = dict[str, str]()
        self.restore: Restore | None = None
        self._known = fetch.bad.known
        self.has_known = bool(self._known) and not self._known.keys().isdisjoint(self.indices)
        self._cell = worker_status.current.cell

    @cached_property
    def keys(self) -> KeyArray:
        """The keys of the samples, uint64[n]."""
        return sample_keys(self.fetch.seed, self.requested.epoch, self.requested.positions)

    @property
    def parts(self) -> list[IntArray]:
        """A further argument of collate functions, where rows are parts of blocks."""
        return [] if self.request.parts is None else [self.request.parts]

    def begin(self, seed: Callable[[int], None] = begin_sample) -> None:
        """Read what can be read at once; `seed` begins a sample, given its key."""
        self.seed, self.request, self.made = seed, self.requested, list[Any]()
        self.early: list[Any] | None = None
        # Where anything is drawn, row by row: each row's draws have a key.
        if self.fetch.reads_many and seed is begin_sample and not self.has_known:
            with suppress(Exception):  # row by row it is found which one is to blame
                self.early = self.rows.__getitems__(list(self.indices))

    def read(self, slot: int, row: int) -> Any:
        """The sample of a row, for `slot`, before its transforms."""
        cell = self._cell
        cell[worker_status.PLACE], cell[worker_status.STAGE] = slot, worker_status.READ
        sample = self.rows[row] if self.early is None else self.early[slot]
        if type(sample) is dict:
            return sample
        self.restore = self.restore or restorer(sample)
        return self.fetch.fields.named(sample)

    def make(self, slot: int, row: int) -> Any:
        """The sample of a row, for `slot`; as `LeftOut` if it is bad, or known to be.

        Raises:
            DataError, SampleError: it ends the run.
        """
        if row in self._known:
            return self.left_out(slot, row, self._known[row], known=True)
        stage: Stage = "read"
        try:
            sample = self.read(slot, row)
            transform = self.fetch.transform
            if transform is None:
                return sample
            self.timer.lap("read")
            stage, self._cell[worker_status.STAGE] = "transform", worker_status.TRANSFORM
            sample = transform(sample)
            self.timer.lap("transform")
            return sample
        except Exception as error:
            return self.fetch.failed(error, stage, partial(self.left_out, slot, row))

    def left_out(self, slot: int, row: int, cause: str, known: bool = False) -> LeftOut:
        """The sample of a row, for `slot`, as one that is left out."""
        requested, dataset = self.requested, self.fetch.dataset
        return LeftOut(
            row,
            int(requested.positions[slot]),
            *requested.address,
            path_of(dataset, row),
            cause,
            known,
            own_row(dataset, row),
        )

    def leave_out(self) -> IntArray:
        """Take the bad samples out, or put others in their places; the place of each that stays.

        A share is never empty: where nothing would be left, its first row is replaced and becomes
        padding, so that its rank takes part in the step.

        Raises:
            DataError: nothing could be read in a row's place.
        """
        request, bad = self.request, self.bad
        keeps = self.fetch.bad.on_error == "substitute"
        places = [slot for slot in range(len(request)) if keeps or slot not in bad]
        valid = sum(slot < request.valid for slot in places)
        places = places or [0]
        indices, parts = request.indices.copy(), deepcopy(request.parts)
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

    def _substitute(self, slot: int) -> tuple[int, Any]:
        """Row and sample for the place of a bad one; its draws are those of the place."""
        for row in islice(self.substitutes(self.requested, slot), ATTEMPTS):
            self.seed(int(self.keys[slot]))
            sample = self.make(slot, row)
            if not isinstance(sample, LeftOut):
                return row, sample
        raise DataError(
            f"{str(self.bad[slot]).rstrip('.')}. Nothing could be read in its place either "
            f"({ATTEMPTS} attempts at most)"
        )


def _way_of(fetch: Fetch) -> Callable[[Samples], Made] | None:
    """The function that makes a batch at once; None: samples are made one by one.

    A dataset with `fetches_batches` gathers rows by itself: `fetch_batch(indices)`, of a stream
    `fetch_batch(records)`, gives a dict of tensors [B, ...], of `Ragged` and of lists of texts, and
    `kinds` says what they are. It raises DataError where samples have to tell what is wrong. With
    `fetches_pictures` it leaves pictures where they lie if `fetch_batch(indices, in_place=True)`
    asks for it. The collate function has to be `Stack`, or one that `takes_gathered` or reads rows
    itself where nothing is decoded.
    """
    dataset, collate = fetch.dataset, fetch.collate
    if fetch.hashed or not fetch.at_once or len(fetch.steps) > 1:
        return None
    own, stacks = reads_whole(dataset), type(collate) is Stack
    if fetch.steps:
        (step,) = fetch.steps.values()
        stored = own and getattr(dataset, "fetches_pictures", False)
        fits = (
            stacks
            and hasattr(step, "decode_batch")
            # No sample is seeded here.
            and (step.decoder == "native" if stored else not getattr(dataset, "draws", True))
        )
        return partial(_decoded, step, stored) if fits else None
    if hasattr(collate, "reads") and collate.reads(dataset):
        return _read
    # Of the class itself: a subclass may collate differently.
    takes = stacks or vars(type(collate)).get("takes_gathered")
    return _gathered if own and takes and getattr(dataset, "fetches_batches", False) else None


def _read(samples: Samples) -> Made:
    """A batch into which the collate function reads rows by itself."""
    fields = samples.fetch.collate.read(
        samples.rows, samples.request.indices, samples.request.parts
    )
    samples.timer.lap("read")
    return fields, {}


def _gathered(samples: Samples) -> Made:
    """A batch of rows that the dataset gathers."""
    fields = samples.rows.fetch_batch(samples.request.indices)
    samples.timer.lap("read")
    return samples.fetch.collate.together(fields, *samples.parts), samples.fetch.dataset.kinds


def _decoded(step: Any, stored: bool, samples: Samples) -> Made:
    """A batch whose pictures `step` decodes together, from where the dataset has `stored` them."""
    rows, batch = samples.rows, dict[str, Any]()
    if stored:
        fields, kinds = rows.fetch_batch(samples.request.indices, in_place=True), rows.kinds
    else:
        samples.begin()
        made = [samples.read(slot, row) for slot, row in enumerate(samples.indices)]
        fields, kinds = columns(made), kinds_of(made[0])
        types = {*map(type, made[0].values())} - {Tensor}
        if EncodedImage not in types or any(issubclass(kind, Tensor) for kind in types):
            raise TypeError("samples are not image files, undecoded, beside plain values")
    samples.timer.lap("read")
    for name, values in fields.items():
        worker_status.report(worker_status.WHOLE, worker_status.TRANSFORM)
        if isinstance(values, StoredPictures) or isinstance(values[0], EncodedImage):
            batch[name] = step.decode_batch(values, samples.keys)
            if batch[name] is None:
                raise TypeError(f"the pictures {name!r} cannot be decoded together")
        else:
            batch[name] = values if isinstance(values, Tensor) else stack(name, values)
    samples.timer.lap("transform")
    return batch, kinds


def reads_whole(dataset: object) -> bool:
    """Whether a dataset's `fetch_batch` reads in the same way as its samples.

    A subclass may override how samples are made, and a wrapper may forward the attributes of the
    dataset that it wraps.
    """
    if isinstance(dataset, SomeRows):
        return reads_whole(dataset.dataset)
    kinds = (vars(kind) for kind in type(dataset).__mro__ if not _READING.isdisjoint(vars(kind)))
    return "fetch_batch" in next(kinds, ())


def _digests(sample: Any) -> dict[str, bytes]:
    """The hashes of a sample's fields; none where one of them has no hash."""
    with suppress(DataError, AttributeError):
        return {name: hash_sample(value) for name, value in sample.items()}
    return {}


class Compose:
    """Transforms by name, applied in the order of the map; None leaves a step out.

    Attributes:
        keyed: whether no step draws from a generator: each has `keyed = True`.
    """

    def __init__(self, steps: Mapping[str, Callable[[Any], object] | None]) -> None:
        self.steps = {name: step for name, step in steps.items() if step is not None}
        self.keyed = all(getattr(step, "keyed", False) for step in self.steps.values())

    def __call__(self, sample: Any) -> Any:
        for name, step in self.steps.items():
            try:
                sample = step(sample)
            except Exception as error:
                if type(step).__module__.startswith("torchvision.") and not kinds_of(sample):
                    reason = (
                        f"the step {name!r} ({type(step).__name__}) is for pictures, and a sample "
                        f"has none: {', '.join(sample)}. Choose another, e.g. transform=none"
                    )
                    raise ConfigError(Problem("transform", reason)) from error
                error.add_note(f"in the transform {name!r}")
                raise
        return sample
