"""The samples of a request: read, named and transformed, with bad ones replaced or left out.

Cost: about 1 us a sample beside the data's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Subset

from penstock.errors import DataError
from penstock.loading import worker_status
from penstock.loading.bad_samples import (
    ATTEMPTS,
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
from penstock.loading.facts import own_row
from penstock.loading.fields import Fields, Restore, restorer
from penstock.loading.stage_timer import StageTimer
from penstock.order.keys import IntArray
from penstock.order.plan import Request
from penstock.order.randomness import Draws

if TYPE_CHECKING:
    from penstock.protocols import Collate, Transform


@dataclass(frozen=True)
class Recipe:
    """The parts that make the samples of all requests, as `Fetch` gets them."""

    dataset: Any
    transform: Transform | None
    collate: Collate
    hashed: bool
    bad: BadSamples
    fields: Fields

    @cached_property
    def reads_many(self) -> bool:
        """Whether rows are read by `__getitems__`."""
        # torch's Subset only loops over `__getitem__` here, whose draws have keys of their own.
        return hasattr(self.dataset, "__getitems__") and not isinstance(self.dataset, Subset)


class SampleReader:
    """Samples of one request.

    Args:
        rows: what they are read from, by index.
        transform: sample -> sample; None leaves it.
        draws: the generators that samples are keyed by; reading many at once must not use them.
        substitutes: those of `rows` that may take the place of bad ones.

    Attributes:
        request: what the samples belong to; after `without`, without the bad ones.
        places: of each sample in the request as it was; None: as they stand there.
        left_out: the bad samples; bad padding is not listed.
        samples: those of the request, once all are there.
        restore: fields -> a sample as the dataset gives it; None for dicts.
    """

    def __init__(
        self,
        recipe: Recipe,
        request: Request,
        rows: Any,
        transform: Callable[[Any], Any] | None,
        draws: Draws,
        timer: StageTimer,
        substitutes: Callable[[Any], Substitutes | None] = lambda rows: None,
    ) -> None:
        self.request = request
        self.places: IntArray | None = None
        self.left_out: tuple[LeftOut, ...] = ()
        self.restore: Restore | None = None
        self._asked: list[int] = request.indices.tolist()
        self._recipe, self._bad, self._known = recipe, recipe.bad, recipe.bad.known
        self._substitutes = substitutes
        self._rows, self._transform, self._draws, self._timer = rows, transform, draws, timer
        self._cell = worker_status.current.cell
        self._early: list[Any] | None = None
        self.samples: list[Any] = []
        self._many = recipe.reads_many  # asked for each sample; a cached property is slower
        if self._many:
            self._early = self._read_many()

    def sample(self, slot: int, row: int | None = None, as_read: bool = False) -> Any:
        """The sample in `slot`, or of another row in its place, transformed unless `as_read`.

        Raises:
            BadSampleError: it is to be left out.
            DataError, SampleError: it ends the run.
        """
        cell = self._cell
        cell[worker_status.PLACE], cell[worker_status.STAGE] = slot, worker_status.READ
        if self._early is not None and row is None:
            sample = self._early[slot]
            if isinstance(sample, BadSampleError):
                raise sample
        else:
            index = self._asked[slot] if row is None else row
            if index in self._known:
                raise BadSampleError(self._known[index], known=True)
            try:
                read = self._rows
                sample = read.__getitems__([index])[0] if self._many else read[index]
                if type(sample) is not dict:
                    sample = self._named(sample)
            except Exception as error:
                raise self._failed(error, "read", slot) from error
        if as_read:
            return sample
        cell[worker_status.STAGE] = worker_status.TRANSFORM
        if self._early is None:
            self._timer.lap("read")
        if self._transform is None:
            return sample
        try:
            return self._transform(sample)
        except Exception as error:
            raise self._failed(error, "transform", slot) from error

    def taken_samples(self) -> list[Any]:
        """The samples, which are the caller's alone from now on."""
        samples, self.samples, self._early = self.samples, [], None
        return samples

    def without(
        self, bad: Mapping[int, BadSampleError], samples: list[Any], keys: list[int]
    ) -> list[Any]:
        """The samples without the bad ones, which may be replaced; `request` then fits them.

        A share is never empty: where nothing would be left, its first row is replaced and becomes
        padding, so that its rank takes part in the step.

        Raises:
            DataError: nothing could be read in a row's place.
        """
        request, substitute = self.request, self._bad.action == "substitute"
        self.left_out = tuple(
            self._left_out(slot, bad[slot]) for slot in bad if slot < request.valid
        )
        places = [slot for slot in range(len(request)) if substitute or slot not in bad]
        valid = sum(slot < request.valid for slot in places)
        places = places or [0]
        indices = request.indices.copy()
        parts = None if request.parts is None else request.parts.copy()
        for slot in bad.keys() & places:
            indices[slot], samples[slot] = self._substitute(slot, bad[slot], keys[slot])
            if parts is not None:
                parts[slot, 2] = -1  # another row has another length
        self.request = replace(
            request,
            positions=request.positions[places],
            indices=indices[places],
            valid=valid,
            parts=None if parts is None else parts[places],
        )
        self.places = np.array(places, dtype=np.int64)
        return [samples[slot] for slot in places]

    def _named(self, sample: Any) -> dict[str, Any]:
        self.restore = self.restore or restorer(sample)
        return self._recipe.fields.named(sample)

    def _read_many(self) -> list[Any]:
        """The samples, read at once; a BadSampleError instead of a bad one."""
        if not self._known.keys().isdisjoint(self._asked):
            return self._one_by_one()
        before = self._draws.save()
        try:
            rows = self._rows.__getitems__(list(self._asked))
            samples = [sample if type(sample) is dict else self._named(sample) for sample in rows]
        except Exception as error:
            samples = self._one_by_one()
            if not any(isinstance(sample, BadSampleError) for sample in samples):
                raise self._failed(error, "read", 0, never_left_out=True) from error
        drawn = self._draws.moved(before)
        if drawn:
            raise SampleError(
                f"{type(self._rows).__name__}.__getitems__ draws from {' and '.join(drawn)}; it "
                "reads many samples at once, so its draws have no key. Draw in a transform instead"
            )
        return samples

    def _one_by_one(self) -> list[Any]:
        """Read one by one what could not be read at once; a row that ends the run does so here."""
        samples: list[Any] = []
        for slot in range(len(self._asked)):
            try:
                samples.append(self.sample(slot, as_read=True))
            except BadSampleError as error:
                samples.append(error.kept())
        return samples

    def _failed(
        self, error: Exception, stage: Stage, slot: int, never_left_out: bool = False
    ) -> Exception:
        """The error to raise for a row that failed: it leaves the row out, or ends the run."""
        if self._bad.on_error != "raise" and not never_left_out and is_bad(error, stage):
            return BadSampleError(in_one_line(error))
        path = path_of(self._recipe.dataset, self._asked[slot])
        own = own_row(self._recipe.dataset, self._asked[slot])
        on_error, way_out = self._bad.on_error, self._bad.way_out
        return explained(error, stage, self.request, slot, path, on_error, own, way_out)

    def _left_out(self, slot: int, error: BadSampleError) -> LeftOut:
        row, position = self._asked[slot], int(self.request.positions[slot])
        dataset = self._recipe.dataset
        return LeftOut(
            row,
            position,
            *self.request.address,
            path_of(dataset, row),
            error.cause,
            self._bad.action,
            error.known,
            own_row(dataset, row),
        )

    def _substitute(self, slot: int, bad: BadSampleError, key: int) -> tuple[int, Any]:
        """Row and sample for the place of a bad one; its draws are those of the place."""
        spare = self._substitutes(self._rows)
        rows = spare.rows(self.request, slot) if spare else iter(())
        for row in islice(rows, ATTEMPTS):
            self._draws.seed(key)
            try:
                return row, self.sample(slot, row)
            except BadSampleError:
                continue
        left_out = str(self._left_out(slot, bad)).rstrip(".")
        raise DataError(
            f"{left_out}. Nothing could be read in its place either ({ATTEMPTS} attempts at most)"
        )
