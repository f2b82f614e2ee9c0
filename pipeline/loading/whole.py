"""Batches made at once, without a sample for each row, in two cases:

1. The dataset gathers rows by itself, and the samples need no transform.
2. One step decodes all pictures together (`transforms/image_decoding.py`): from where they lie in
   packed data, or from files that were read sample by sample.

The values are those of the way sample by sample, to the bit. A batch with anything out of the
ordinary (a bad sample, fields that do not fit together) is left to that way, which names the sample
or replaces it. Cost: 0.1 ms a batch and 2 us a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from penstock.loading import worker_status
from penstock.loading.collate import Stack, columns, kinds_of, stack
from penstock.loading.encoded import EncodedImage, StoredPictures
from penstock.loading.facts import SomeRows

if TYPE_CHECKING:
    from penstock.loading.fetch import Fetch, Samples

Made = tuple[Mapping[str, Any], Mapping[str, str]]  # fields of a batch, and their kinds
# Members by which a class says what samples are.
_READING = {"__getitem__", "__getitems__", "__iter__", "decode", "samples", "fetch_batch"}


def way_of(fetch: Fetch) -> Callable[[Samples], Made] | None:
    """The function that makes a batch at once; None: samples are made one by one.

    A dataset with `fetches_batches` gathers rows by itself: `fetch_batch(indices)` gives a dict of
    tensors [B, ...], of `Ragged` and of lists of texts, and `kinds` says what they are. It raises
    DataError where samples have to tell what is wrong. With `fetches_pictures` it leaves pictures
    where they lie if `fetch_batch(indices, in_place=True)` asks for it. The collate function has to
    be `Stack`, or one that `takes_gathered` or reads rows itself where nothing is decoded.
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
            and getattr(step, "takes_batches", False)
            and (stored or not getattr(dataset, "draws", True))  # no sample is seeded here
        )
        return partial(decoded, step, stored) if fits else None
    if hasattr(collate, "reads") and collate.reads(dataset):
        return read
    # Of the class itself: one derived from it may put samples together in a way of its own.
    takes = stacks or vars(type(collate)).get("takes_gathered")
    return gathered if own and takes and getattr(dataset, "fetches_batches", False) else None


def read(samples: Samples) -> Made:
    """A batch into which the collate function reads rows by itself."""
    fields = samples.fetch.collate.read(
        samples.rows, samples.request.indices, samples.request.parts
    )
    samples.timer.lap("read")
    return fields, {}


def gathered(samples: Samples) -> Made:
    """A batch of rows that the dataset gathers."""
    fields = samples.rows.fetch_batch(samples.request.indices)
    samples.timer.lap("read")
    return samples.fetch.collate.together(fields, *samples.parts), samples.rows.kinds


def decoded(step: Any, stored: bool, samples: Samples) -> Made:
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
    """Whether a dataset's `fetch_batch` reads what its samples are read by.

    A class that was derived from one with `fetch_batch` may make samples of its own, and one that
    wraps it may hand on its attributes.
    """
    if isinstance(dataset, SomeRows):
        return reads_whole(dataset.dataset)
    kinds = (vars(kind) for kind in type(dataset).__mro__ if not _READING.isdisjoint(vars(kind)))
    return "fetch_batch" in next(kinds, ())
