"""The share of a batch while it is worked on: rows become samples, and bad ones give way.

1. Read a row, by itself or with all others where the dataset can (`__getitems__`). A sample that
   is no dict becomes one (pipeline/loading/named_fields.py).
2. Transform the sample, after fetch has seeded the generators from its key.
3. A row that fails ends the run, or is replaced or left out (pipeline/loading/bad_samples.py).

Cost: about 1 us a sample beside the data's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import DataError
from pipeline.loading.bad_samples import (
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
from pipeline.loading.named_fields import Fields, Restore, restorer
from pipeline.order.plan import Request
from pipeline.order.randomness import GLOBAL, Draws, IntArray

NAMELESS = Fields()


class KeptSamples(NamedTuple):
    """A share without its bad samples.

    Attributes:
        samples: what is left, and what stands in for the others.
        request: that fits them.
        places: where each stood in the share, int64[n].
        left_out: what is missing; padding that is bad is not told.
    """

    samples: list[Any]
    request: Request
    places: IntArray
    left_out: tuple[LeftOut, ...]


class SampleReader:
    """Samples of one request.

    Args:
        request: which rows, and for which positions.
        rows: what they are read from, by index.
        dataset: what knows their paths.
        transform: sample -> sample; None leaves it.
        bad: what becomes of bad samples.
        substitutes: which rows may stand in for others; None takes those of `bad`.
        many: read all rows at once.
        draws: the generators that nothing may draw from while it does.
        fields: names for samples that are no dicts.

    Attributes:
        restore: fields -> a sample as the dataset gives it; None for dicts.
    """

    def __init__(
        self,
        request: Request,
        rows: Any,
        dataset: Any,
        transform: Callable[[Any], Any] | None,
        bad: BadSamples,
        substitutes: Substitutes | None = None,
        many: bool = False,
        draws: Draws = GLOBAL,
        fields: Fields = NAMELESS,
    ) -> None:
        self.request = request
        self._asked: list[int] = request.indices.tolist()
        self._rows = rows
        self._dataset = dataset
        self._transform = transform
        self._bad = bad
        self._known = bool(bad.known)
        self._substitutes = substitutes or bad.substitutes
        self._many = many
        self._draws = draws
        self._fields = fields
        self.restore: Restore | None = None
        self._early = self._read_many() if many else None

    def read(self, place: int) -> Any:
        """The sample at `place`, before its transforms.

        Raises:
            BadSampleError: it is to be left out.
            DataError, SampleError: it ends the run.
        """
        if self._early is None:
            return self._read(self._asked[place], place)
        if isinstance(self._early[place], BadSampleError):
            raise self._early[place]
        return self._early[place]

    def transformed(self, sample: Any, place: int) -> Any:
        """The sample at `place` after its transforms; raises what `read` does."""
        if self._transform is None:
            return sample
        try:
            return self._transform(sample)
        except Exception as error:
            raise self._failed(error, "transform", place) from error

    def without(
        self, bad: Mapping[int, BadSampleError], samples: list[Any], keys: list[int], draws: Draws
    ) -> KeptSamples:
        """What is left without the bad samples.

        A share is never empty: where nothing would be left, its first row is replaced and becomes
        padding, so that its rank takes part in the step.

        Args:
            bad: why, by place.
            samples: by place; those of bad ones are not looked at.
            keys: of the samples, by place.

        Raises:
            DataError: nothing could be read in a row's place.
        """
        request, substitute = self.request, self._bad.action == "substitute"
        left_out = tuple(self._left_out(place, bad[place]) for place in bad
                         if place < request.valid)  # fmt: skip
        places = [place for place in range(len(request)) if substitute or place not in bad]
        valid = sum(place < request.valid for place in places)
        places = places or [0]
        indices = request.indices.copy()
        for place in bad.keys() & places:
            row, sample = self._substitute(place, bad[place], keys[place], draws)
            indices[place], samples[place] = row, sample
        kept = replace(request, positions=request.positions[places], indices=indices[places],
                       valid=valid)  # fmt: skip
        chosen = np.array(places, dtype=np.int64)
        return KeptSamples([samples[place] for place in places], kept, chosen, left_out)

    def _read(self, row: int, place: int) -> Any:
        if self._known:
            self._bad.check(row)
        try:
            sample = self._rows.__getitems__([row])[0] if self._many else self._rows[row]
            return sample if type(sample) is dict else self._named(sample)
        except Exception as error:
            raise self._failed(error, "read", place) from error

    def _named(self, sample: Any) -> dict[str, Any]:
        """A sample that is no plain dict as one."""
        self.restore = self.restore or restorer(sample)
        return self._fields.named(sample)

    def _read_many(self) -> list[Any]:
        """The samples, read at once; in the place of each bad one a BadSampleError."""
        if self._bad.known and not self._bad.known.keys().isdisjoint(self._asked):
            return self._one_by_one()
        before = self._draws.save()
        try:
            found = self._rows.__getitems__(list(self._asked))
            samples = [one if type(one) is dict else self._named(one) for one in found]
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
        """What could not be read at once; a row that ends the run does so here."""
        samples: list[Any] = []
        for place, row in enumerate(self._asked):
            try:
                samples.append(self._read(row, place))
            except BadSampleError as error:
                samples.append(error)
        return samples

    def _failed(
        self, error: Exception, stage: Stage, place: int, never_left_out: bool = False
    ) -> Exception:
        """What to raise for a row that failed: that it is to be left out, or the run's end."""
        if self._bad.on_error != "raise" and not never_left_out and is_bad(error, stage):
            return BadSampleError(in_one_line(error))
        path = path_of(self._dataset, self._asked[place])
        return explained(error, stage, self.request, place, path, self._bad.on_error)

    def _left_out(self, place: int, error: BadSampleError) -> LeftOut:
        row, position = self._asked[place], int(self.request.positions[place])
        return LeftOut(row, position, *self.request.address, path_of(self._dataset, row),
                       error.cause, self._bad.action, error.known)  # fmt: skip

    def _substitute(
        self, place: int, bad: BadSampleError, key: int, draws: Draws
    ) -> tuple[int, Any]:
        """Row and sample for the place of a bad one; its draws are those of the place."""
        rows = self._substitutes.rows(self.request, place) if self._substitutes else iter(())
        for row in islice(rows, ATTEMPTS):
            draws.seed(key)
            try:
                return row, self.transformed(self._read(row, place), place)
            except BadSampleError:
                continue
        raise DataError(f"{self._left_out(place, bad)}. Nothing could be read in its place either "
                        f"({ATTEMPTS} attempts at most)")  # fmt: skip
