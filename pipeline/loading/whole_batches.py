"""Batches made at once, where samples need no more than decoding.

1. The dataset gives a batch as tensors, and pictures where they lie (packed data); or samples are
   read one by one, with pictures that are not decoded yet.
2. One step decodes all pictures together (`transforms/image_decoding.py`); the rest is stacked.

The values are those of the way sample by sample, to the bit. A batch with anything out of the
ordinary (a bad sample, a picture of another kind, fields that do not fit together) is left to that
way, which names the sample or replaces it. Cost: 0.1 ms a batch and 2 us a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock.errors import DataError
from penstock.files.encoded import EncodedImage, StoredPictures
from penstock.loading import worker_status
from penstock.loading.bad_samples import BadSampleError
from penstock.loading.collate import Mismatch, Stack, kinds_of, stack
from penstock.loading.compose import Compose
from penstock.loading.facts import SomeRows
from penstock.loading.sample_reader import Recipe, SampleReader
from penstock.loading.stage_timer import StageTimer
from penstock.order.keys import KeyArray
from penstock.order.plan import Request
from penstock.order.randomness import Draws

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
    or to have one step that `takes_batches`; the collate function has to be `Stack`, or `Pad` where
    nothing is decoded.

    Without a transform, a collate function that reads rows (`ReadsRows`) makes the batch.

    Attributes:
        reads: whether rows are read straight into a batch.
        gathers: whether the dataset makes the batches, by `fetch_batch`.
        usable: whether they can be; false once samples are of other kinds than that takes.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        dataset, transform = recipe.dataset, recipe.transform
        steps = transform.steps if isinstance(transform, Compose) else {}
        self._decode: Any = next(iter(steps.values())) if len(steps) == 1 else None
        decodes = getattr(self._decode, "takes_batches", False)
        untouched = transform is None or (isinstance(transform, Compose) and not steps)
        own = reads_whole(dataset)
        stacked = untouched and own and getattr(dataset, "fetches_batches", False)
        stored = decodes and own and getattr(dataset, "fetches_pictures", False)
        read = decodes and not getattr(dataset, "draws", True)
        collate: Any = recipe.collate
        reads = untouched and hasattr(collate, "reads") and collate.reads(dataset)
        self._reader: Any = collate if reads else None
        self.reads = reads or bool(stacked)
        self._by_sample = not (stacked or stored or reads)
        stacks = type(collate) is Stack and bool(stacked or stored or read)
        # Of the class itself: one derived from it may put samples together in a way of its own.
        joins = vars(type(collate)).get("takes_gathered") is True and bool(stacked)
        joins = joins and not getattr(collate, "sort", False)
        self.usable = (
            not recipe.hashed
            and (stacks or joins or reads)
            and (self._by_sample or not recipe.bad.known)
        )
        self.gathers = self.usable and bool(stacked)

    def make(
        self,
        request: Request,
        rows: Any,
        keys: Callable[[], KeyArray],
        draws: Draws,
        timer: StageTimer,
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Fields of the batch of `request`, and their kinds, as `kinds_of` tells them.

        Raises:
            NotAtOnceError: it has to be made sample by sample.
            DataError, SampleError: a row cannot be read, and is not to be left out.
        """
        if self._reader is not None:
            try:
                return self._reader.read(rows, request.indices, request.parts), {}
            except (DataError, Mismatch) as error:  # sample by sample it is found where
                raise NotAtOnceError from error
            finally:
                timer.lap("read")
        columns: Mapping[str, Any]
        if self._by_sample:
            reader = SampleReader(self._recipe, request, rows, None, draws, timer)
            try:
                samples = [reader.sample(slot) for slot in range(len(request))]
            except BadSampleError as error:
                raise NotAtOnceError from error
            problem = _problem_of(samples)
            if problem:
                self.usable = False  # the next batches would be read twice as well
                raise NotAtOnceError(problem)
            columns = {name: [sample[name] for sample in samples] for name in samples[0]}
            kinds = kinds_of(samples[0])
        else:
            try:
                columns = rows.fetch_batch(request.indices, in_place=self._decode is not None)
            except DataError as error:
                raise NotAtOnceError from error
            kinds = rows.kinds
        timer.lap("read")
        try:
            fields = self._put_together(columns, request, keys)
        except (DataError, Mismatch) as error:  # sample by sample it is found which one is bad
            raise NotAtOnceError from error
        except Exception as error:
            raise NotAtOnceError(f"{type(error).__name__}: {error}") from error
        for name, value in fields.items():
            if value is None:
                raise NotAtOnceError(f"the pictures {name!r} cannot be worked on together")
        if self._decode is not None:
            timer.lap("transform")
        return fields, kinds

    def _put_together(
        self, columns: Mapping[str, Any], request: Request, keys: Callable[[], KeyArray]
    ) -> dict[str, Any]:
        if not self._by_sample and self._decode is None:
            worker_status.report(worker_status.WHOLE, worker_status.COLLATE)
            collate: Any = self._recipe.collate
            if getattr(collate, "packs", False):
                return dict(collate.together(columns, request.parts))
            return dict(collate.together(columns))
        fields: dict[str, Any] = {}
        for name, values in columns.items():
            worker_status.report(worker_status.WHOLE, worker_status.TRANSFORM)
            if isinstance(values, torch.Tensor):
                fields[name] = values
            elif self._decode is not None and (
                isinstance(values, StoredPictures) or isinstance(values[0], EncodedImage)
            ):
                fields[name] = self._decode.decode_batch(values, keys())
            else:
                fields[name] = stack(name, values)
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


def _problem_of(samples: list[Any]) -> str:
    """Why samples are not dicts of the same fields with image files and no points or boxes."""
    first = samples[0]
    if any(sample.keys() != first.keys() for sample in samples):
        return "samples differ in their fields"
    files = {name for name, value in first.items() if isinstance(value, EncodedImage)}
    if not files:
        return "no field is an image file that is not decoded yet"
    for sample in samples:
        for name, value in sample.items():
            typed = isinstance(value, torch.Tensor) and type(value) is not torch.Tensor
            if typed or isinstance(value, EncodedImage) != (name in files):
                return f"the field {name!r} of a sample is a {type(value).__name__}"
    return ""
