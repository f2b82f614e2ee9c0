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
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Subset

from penstock.errors import DataError, PenstockError
from penstock.loading import encoded, output, worker_status
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
from penstock.loading.facts import own_row, sample_name
from penstock.loading.fields import NAMELESS, Fields, OwnCollate, Restore, restorer
from penstock.loading.stage_timer import StageTimer
from penstock.loading.whole import gathered, way_of
from penstock.order.keys import IntArray, KeyArray, begin_sample, sample_keys
from penstock.order.plan import Request
from penstock.order.seeding import Seeding, scope, watch

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
        in_turn: requests are dealt to workers, and not taken by any free worker.
        steps: of the transform, by name.
        draws_nothing: no code that makes a sample draws from a generator, as its parts declare
            (`draws = False`, `keyed = True`) or `first_of_threads` has seen. Nothing is seeded
            then, and threads may share it.
        compared: the first sample was made twice and compared, or need not be.
        gathers: the dataset makes whole batches, and nothing follows.
    """

    in_turn: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    dataset: Any  # MapDataset | StreamDataset
    transform: Any  # Transform | None
    collate: Any  # Collate
    seed: int
    hashed: bool = False
    batch_transform: Callable[[Batch], Batch] | None = None
    bad: BadSamples = RAISE
    fields: Fields = NAMELESS

    def __post_init__(self) -> None:
        transform, collate = self.transform, self.collate
        steps = {} if transform is None else getattr(transform, "steps", {"transform": transform})
        self.steps: Mapping[str, Any] = steps
        parts = {f"transform.{name}": step for name, step in steps.items()}
        self._seeding = Seeding({"dataset": self.dataset, **parts, "collate": collate})
        self._seedings = [self._seeding]
        ours = type(collate).__module__.startswith("penstock.") and type(collate) is not OwnCollate
        self.draws_nothing = self.compared = not (
            getattr(self.dataset, "draws", True)
            or not getattr(transform, "keyed", transform is None)
            or getattr(collate, "draws", not ours)
        )
        self._way = way_of(self)
        self.gathers = self._way is gathered and self.batch_transform is None

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
        return self.made(request, self.dataset, StageTimer())

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

    def dataset_of_worker(self) -> Any:
        """The dataset of `get_worker_info()` in a worker process, for `worker_init_fn`."""
        return self.dataset

    def substitutes(self, rows: Any) -> Substitutes | None:
        """Rows that may take the place of bad ones."""
        return self.bad.substitutes

    def made(self, request: Request, rows: Any, timer: StageTimer) -> Batch:
        """The batch of `request` with its samples read from `rows`, by index."""
        samples, unlike = Samples(self, request, rows, timer), ""
        try:
            batch = self._at_once(samples)
            if batch is None and self.draws_nothing:
                batch, unlike = self._by_sample(samples, begin_sample)
            elif batch is None:
                make = partial(self._by_sample, samples, self._seeding.seed)
                batch, unlike = self._seeding.run(make, request.epoch)
                self.compared = True
        finally:
            begin_sample(None)
        if unlike and self.hashed:
            raise SampleError(f"{unlike}. A hash of it would say nothing")
        samples.warnings |= {"unrepeatable": unlike} if unlike else {}
        return self._finished(batch, samples)

    def _at_once(self, samples: Samples) -> Batch | None:
        """The batch without its samples, where that works."""
        if self._way is None or samples.has_known:
            return None
        try:
            fields, kinds = self._way(samples)
        except (PenstockError, Mismatch, BadSampleError):
            return None  # sample by sample it is found what is wrong
        except Exception as error:
            samples.warnings["slow"] = (
                f"batch {samples.asked.address} is made sample by sample, which takes longer: "
                f"{in_one_line(error)}"
            )
            self._way = None  # the next ones would be read twice as well
            return None
        return samples.batch(fields, kinds)

    def _by_sample(self, samples: Samples, seed: Callable[[int], None]) -> tuple[Batch, str]:
        """The batch of samples, and how the first one differs if it is made again."""
        with output.batch(len(samples.indices)):
            samples.begin(seed)
            for slot, key in enumerate(samples.keys.tolist()):
                seed(key)
                try:
                    samples.made.append(samples.make(slot))
                except BadSampleError as error:
                    samples.made.append(None)
                    # Without its traceback, whose frames hold all that was read of the sample.
                    samples.bad[slot] = BadSampleError(error.cause, error.known)
                samples.timer.lap("transform")
            first = {} if self.compared else _digests(samples.made[0])
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            batch = self.batch_of(samples)
        return batch, samples.unlike(first) if first else ""

    def batch_of(self, samples: Samples) -> Batch:
        """The batch of samples that were made."""
        places = samples.leave_out() if samples.bad else np.arange(len(samples.made))
        request, made, collate = samples.request, samples.made, self.collate
        restore = samples.restore if isinstance(collate, OwnCollate) else None
        given = made if restore is None else [*map(restore, made)]
        try:
            fields = dict(collate(given, *samples.parts))
        except Mismatch as error:
            pair = request.indices[[*error.rows]].tolist()
            first, second = (sample_name(row, own_row(self.dataset, row)) for row in pair)
            raise DataError(
                f"batch (epoch {request.epoch}, step {request.step}) cannot be put together: field "
                f"{error.field!r} of samples {first} and {second}: {error.reason}. Resize in a "
                "transform, or choose another collate (collate=pad for unequal lengths, "
                "collate=list to stack nothing)"
            ) from error
        except Exception as error:
            row = int(request.indices[0])
            raise explained(error, "collate", request, own=own_row(self.dataset, row)) from error
        hashes = [hash_sample(sample) for sample in made] if self.hashed else None
        if hashes and request.parts is not None:  # which tokens of it, and in which block
            hashes = [hash_sample([*both]) for both in zip(hashes, request.parts, strict=True)]
        samples.timer.lap("collate")
        return samples.batch(fields, kinds_of(made[0]), places=places, hashes=hashes)

    def _finished(self, batch: Batch, samples: Samples) -> Batch:
        """The batch after its transforms, with what its files have lost."""
        samples.made, samples.early = [], None  # their memory is free meanwhile
        if self.batch_transform is not None:
            worker_status.report(worker_status.WHOLE, worker_status.BATCH)
            batch = self.batch_transform(batch)
            samples.timer.lap("batch")
        for kind, text in [*encoded.notices.items()]:  # threads add to it
            # Boxes, masks or points, perhaps, of images that nobody has looked at before.
            firsts = (v[0] if isinstance(v, list) and v else v for v in batch.values())
            places = any(getattr(first, "ndim", 0) in (2, 3) for first in firsts)
            if kind != "turned" or (places and not hasattr(self.dataset, "check_turns")):
                samples.warnings[f"lost {kind}"] = text
        return batch.replace(warnings=samples.warnings) if samples.warnings else batch

    def failed(self, error: Exception, stage: Stage, samples: Samples, slot: int) -> Exception:
        """The error to raise for a sample that failed: it leaves the row out, or ends the run."""
        row, bad = samples.indices[slot], self.bad
        if bad.on_error != "raise" and is_bad(error, stage):
            return BadSampleError(in_one_line(error))
        path, own = path_of(self.dataset, row), own_row(self.dataset, row)
        return explained(error, stage, samples.asked, slot, path, bad.on_error, own, bad.way_out)


class Samples:
    """The samples of one request, read, named and transformed.

    Args:
        rows: what they are read from, by index.

    Attributes:
        asked: the request.
        request: the same; after `leave_out`, without the bad ones.
        indices: the rows that were asked for.
        made: the samples so far, None in the place of a bad one.
        bad: why samples are to be left out, by their places in the request.
        left_out: the same for a person; bad padding is not listed.
        restore: fields -> a sample as the dataset gives it; None for dicts.
        early: rows that were read at once.
        warnings: messages to log, by kind.
    """

    def __init__(self, fetch: Fetch, request: Request, rows: Any, timer: StageTimer) -> None:
        self.fetch, self.asked, self.rows, self.timer = fetch, request, rows, timer
        self.indices: list[int] = request.indices.tolist()
        self.request, self.warnings = request, dict[str, str]()
        self.bad = dict[int, BadSampleError]()
        self.early: list[Any] | None = None
        self.restore: Restore | None = None
        # torch's Subset only loops over `__getitem__` here, whose draws have keys of their own.
        self._many = hasattr(rows, "__getitems__") and not isinstance(rows, Subset)
        self._known, transform = fetch.bad.known, fetch.transform
        self._transform = (lambda sample: sample) if transform is None else transform
        self.has_known = bool(self._known) and not self._known.keys().isdisjoint(self.indices)
        self._cell = worker_status.current.cell

    @cached_property
    def keys(self) -> KeyArray:
        """The keys of the samples, uint64[n]."""
        return sample_keys(self.fetch.seed, self.asked.epoch, self.asked.positions)

    @property
    def parts(self) -> list[IntArray]:
        """A further argument of collate functions, where rows are parts of blocks."""
        return [] if self.request.parts is None else [self.request.parts]

    def begin(self, seed: Callable[[int], None] = begin_sample) -> None:
        """Read what can be read at once.

        Args:
            seed: begins a sample, given its key.
        """
        self.seed, self.made, self.bad = seed, list[Any](), dict[int, BadSampleError]()
        self.request, self.early = self.asked, None
        if not self._many or self.has_known:
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

    def read(self, slot: int, row: int | None = None) -> Any:
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
        try:
            sample = self.rows.__getitems__([row])[0] if self._many else self.rows[row]
            return sample if type(sample) is dict else self._named(sample)
        except Exception as error:
            raise self.fetch.failed(error, "read", self, slot) from error

    def make(self, slot: int, row: int | None = None) -> Any:
        """The sample in `slot`, or that of another row in its place; raises as `read`."""
        sample = self.read(slot, row)
        self._cell[worker_status.STAGE] = worker_status.TRANSFORM
        if self.early is None:
            self.timer.lap("read")
        try:
            return self._transform(sample)
        except Exception as error:
            raise self.fetch.failed(error, "transform", self, slot) from error

    def batch(self, fields: Mapping[str, Any], kinds: Mapping[str, str], **more: Any) -> Batch:
        """The batch of these fields; further arguments as for `Batch`."""
        left_out = tuple(self._left_out(slot) for slot in self.bad if slot < self.asked.valid)
        timing = self.timer.seconds
        return Batch(fields, self.request, kinds=kinds, timing=timing, left_out=left_out, **more)

    def unlike(self, first: Mapping[str, bytes]) -> str:
        """A message about the first sample if it differs when it is made again; else "".

        Args:
            first: hashes of its fields.
        """
        again = first
        with suppress(Exception):  # a bad one
            self.seed(int(self.keys[0]))
            # Of a copy: a step may write into a row that the dataset hands out again.
            again = _digests(self._transform(deepcopy(self.read(0, self.indices[0]))))
        names = " and ".join(repr(name) for name in first if first[name] != again.get(name))
        where = f"epoch {self.asked.epoch}, position {self.asked.positions[0]}"
        unlike = f"sample {self.indices[0]} ({where}) has another {names} when it is made again"
        return f"{unlike}. {_ADVICE}" if names else ""

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

    def _named(self, sample: Any) -> dict[str, Any]:
        self.restore = self.restore or restorer(sample)
        return self.fetch.fields.named(sample)

    def _left_out(self, slot: int) -> LeftOut:
        row, position, error = self.indices[slot], int(self.asked.positions[slot]), self.bad[slot]
        path, own = path_of(self.fetch.dataset, row), own_row(self.fetch.dataset, row)
        return LeftOut(row, position, *self.asked.address, path, error.cause, error.known, own)

    def _substitute(self, slot: int) -> tuple[int, Any]:
        """Row and sample for the place of a bad one; its draws are those of the place."""
        spare = self.fetch.substitutes(self.rows)
        for row, _ in zip(
            spare.rows(self.asked, slot) if spare else (), range(ATTEMPTS), strict=False
        ):
            self.seed(int(self.keys[slot]))
            with suppress(BadSampleError):
                return row, self.make(slot, row)
        raise DataError(
            f"{str(self._left_out(slot)).rstrip('.')}. Nothing could be read in its place either "
            f"({ATTEMPTS} attempts at most)"
        )


def _digests(sample: Any) -> dict[str, bytes]:
    """The hashes of a sample's fields; none where one of them has no hash."""
    with suppress(DataError, AttributeError):
        return {name: hash_sample(value) for name, value in sample.items()}
    return {}


def refuse_postscript() -> None:
    """Let Pillow start no program in this process, from now on; 5 ms the first time.

    It starts Ghostscript for a picture in PostScript. Datasets of torchvision open whatever Pillow
    opens, and a file called `.jpg` may hold PostScript.
    """
    from PIL import EpsImagePlugin

    EpsImagePlugin.gs_binary = False
