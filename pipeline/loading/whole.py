"""Batches made at once, where samples need no more than decoding.

1. The dataset gives a batch as tensors, and pictures where they lie (packed data); or samples are
   read one by one, with pictures that are not decoded yet.
2. One step decodes all pictures together (`transforms/image_decoding.py`); the rest is stacked.

The values are those of the way sample by sample, to the bit. A batch with anything out of the
ordinary (a bad sample, a picture of another kind, fields that do not fit together) is left to that
way, which names the sample or replaces it. Cost: 0.1 ms a batch and 2 us a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from penstock.errors import PenstockError
from penstock.loading import worker_status
from penstock.loading.bad_samples import BadSampleError
from penstock.loading.collate import Mismatch, Stack, columns, kinds_of, stack
from penstock.loading.compose import Compose
from penstock.loading.encoded import EncodedImage, StoredPictures
from penstock.loading.facts import SomeRows

if TYPE_CHECKING:
    from penstock.loading.fetch import Fetch, Samples

# Members by which a class says what samples are.
_READING = {"__getitem__", "__getitems__", "__iter__", "decode", "samples", "fetch_batch"}


class NotAtOnceError(Exception):
    """A batch has to be made sample by sample; the message says why, if it is worth a warning."""


class WholeBatches:
    """How batches of a dataset can be made at once.

    A dataset with `fetches_batches` gathers rows by itself: `fetch_batch(indices)` gives a dict of
    tensors [B, ...], of `Ragged` and of lists of texts, and `kinds` says what they are. It raises
    DataError where samples have to tell what is wrong. With `fetches_pictures` it leaves pictures
    where they lie if `fetch_batch(indices, in_place=True)` asks for it. A transform has to be None
    or to have one step that `takes_batches`; the collate function has to be `Stack`, or one that
    `takes_gathered` where nothing is decoded. Or the collate function reads rows itself (`reads`).

    Attributes:
        gathers: whether the dataset makes the batches, by `fetch_batch`.
        usable: whether they can be; false once samples are of other kinds than that takes.
    """

    def __init__(self, fetch: Fetch) -> None:
        dataset, transform, collate = fetch.dataset, fetch.transform, fetch.collate
        self._collate: Any = collate
        steps = transform.steps if isinstance(transform, Compose) else {"": transform}
        steps = {} if transform is None else steps
        self._decode: Any = next(iter(steps.values())) if len(steps) == 1 else None
        decodes = getattr(self._decode, "takes_batches", False)
        own = reads_whole(dataset)
        self.gathers = not steps and own and getattr(dataset, "fetches_batches", False)
        stored = decodes and own and getattr(dataset, "fetches_pictures", False)
        self._by_sample = decodes and not stored and not getattr(dataset, "draws", True)
        self._reads = not steps and hasattr(collate, "reads") and collate.reads(dataset)
        # Of the class itself: one derived from it may put samples together in a way of its own.
        joins = vars(type(collate)).get("takes_gathered") and not getattr(collate, "sort", False)
        stacks = type(collate) is Stack and (self.gathers or stored or self._by_sample)
        possible = fetch.at_once and not fetch.hashed and (self._by_sample or not fetch.bad.known)
        self.usable = bool(possible and (stacks or (joins and self.gathers) or self._reads))
        self.gathers = self.gathers and self.usable

    def make(self, samples: Samples) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Fields of the batch of a request, and their kinds, as `kinds_of` tells them.

        Raises:
            NotAtOnceError: it has to be made sample by sample, where it is found what is wrong.
        """
        try:
            columns, kinds = self._columns(samples)
            samples.timer.lap("read")
            fields = columns if self._reads else self._together(columns, samples)
        except NotAtOnceError:
            raise
        except (PenstockError, Mismatch, BadSampleError) as error:
            raise NotAtOnceError from error
        except Exception as error:
            raise NotAtOnceError(f"{type(error).__name__}: {error}") from error
        if self._decode is not None:
            samples.timer.lap("transform")
        return fields, kinds

    def _columns(self, samples: Samples) -> tuple[dict[str, Any], Mapping[str, str]]:
        """The values of each field, and the kinds of fields."""
        request, rows = samples.request, samples.rows
        if self._reads:
            return self._collate.read(rows, request.indices, request.parts), {}
        if not self._by_sample:
            return rows.fetch_batch(request.indices, in_place=self._decode is not None), rows.kinds
        samples.begin()
        made = [samples.read(slot) for slot in range(len(request))]
        fields = columns(made)
        files = any(isinstance(value, EncodedImage) for value in made[0].values())
        problem = "" if files else "no field is an image file that is not decoded yet"
        for name, values in fields.items():
            kinds = {type(value) for value in values if isinstance(value, (EncodedImage, Tensor))}
            if files and not (kinds <= {Tensor} or kinds == {EncodedImage}):
                problem = f"the field {name!r} of a sample is a {kinds.pop().__name__}"
        if problem:
            self.usable = False  # the next batches would be read twice as well
            raise NotAtOnceError(problem)
        return fields, kinds_of(made[0])

    def _together(self, columns: Mapping[str, Any], samples: Samples) -> dict[str, Any]:
        request, fields = samples.request, dict[str, Any]()
        if self._decode is None:
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            more = [request.parts] if getattr(self._collate, "packs", False) else []
            return dict(self._collate.together(columns, *more))
        for name, values in columns.items():
            worker_status.report(worker_status.WHOLE, worker_status.TRANSFORM)
            if isinstance(values, StoredPictures) or isinstance(values[0], EncodedImage):
                fields[name] = self._decode.decode_batch(values, samples.keys)
                if fields[name] is None:
                    raise NotAtOnceError(f"the pictures {name!r} cannot be worked on together")
            else:
                fields[name] = values if isinstance(values, Tensor) else stack(name, values)
        return fields


def reads_whole(dataset: object) -> bool:
    """Whether a dataset's `fetch_batch` reads what its samples are read by.

    A class that was derived from one with `fetch_batch` may make samples of its own, and one that
    wraps it may hand on its attributes.
    """
    if isinstance(dataset, SomeRows):
        return reads_whole(dataset.dataset)
    for kind in type(dataset).__mro__:
        if not _READING.isdisjoint(vars(kind)):
            return "fetch_batch" in vars(kind)
    return False
