"""Batches that are made at once, where nothing is done to single samples, or no more than decoding.

1. The dataset gives a batch as tensors, and pictures where they lie (packed data); or samples are
   read one by one, with pictures that are not decoded yet.
2. One step decodes all pictures together (`transforms/image_decoding.py`); the rest is stacked.

The values are those that fetch gets sample by sample, to the bit. Whatever is out of the ordinary
(a bad sample, a picture of another kind, fields that do not fit together) is left to that way,
which says what is wrong with which sample, or lets another stand in. Cost: 0.1 ms a batch and
2 us a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch

from pipeline.loading import worker_status
from pipeline.loading.bad_samples import BadSampleError
from pipeline.loading.collate import Stack, kinds_of
from pipeline.loading.compose import Compose
from pipeline.loading.encoded import EncodedImage
from pipeline.loading.sample_reader import SampleReader
from pipeline.loading.stage_timer import StageTimer
from pipeline.loading.stored import StoredPictures
from pipeline.order.randomness import KeyArray


class WholeBatch(NamedTuple):
    """A batch's fields, and what they are to transforms of batches, as `kinds_of` tells."""

    fields: dict[str, Any]
    kinds: dict[str, str]


class WholeBatches:
    """How batches of a dataset can be made at once.

    Args:
        dataset: with `fetches_batches` it stacks rows by itself: `fetch_batch(indices)` gives a
            dict of tensors, and `kinds` says what they are. With `fetches_pictures` it leaves
            pictures where they lie if `fetch_batch(indices, in_place=True)` asks for it.
        transform: of samples; None, or one whose only step `takes_batches`, will do.
        collate: only `Stack` will do.

    Attributes:
        usable: whether they can be.
        by_sample: whether samples are read one by one for it.
    """

    def __init__(self, dataset: Any, transform: Any, collate: Any) -> None:
        steps = transform.steps if isinstance(transform, Compose) else {}
        self._collate = collate
        self._decode: Any = next(iter(steps.values())) if len(steps) == 1 else None
        decodes = getattr(self._decode, "takes_batches", False)
        untouched = transform is None or (isinstance(transform, Compose) and not steps)
        stacked = untouched and getattr(dataset, "fetches_batches", False)
        stored = decodes and getattr(dataset, "fetches_pictures", False)
        read = decodes and not getattr(dataset, "draws", True)
        self.usable = type(collate) is Stack and bool(stacked or stored or read)
        self.by_sample = not (stacked or stored)

    def make(
        self, reader: SampleReader, rows: Any, keys: KeyArray, timer: StageTimer
    ) -> WholeBatch | None:
        """The batch of a share; None where it has to be made sample by sample.

        Args:
            rows: what the samples are read from.
            keys: of the samples.

        Raises:
            DataError, SampleError: a row cannot be read, and is not to be left out.
        """
        if not self.by_sample:
            found = rows.fetch_batch(reader.request.indices, in_place=self._decode is not None)
            timer.lap("read")
            return self._finished(found, dict(rows.kinds), keys, timer)
        samples = _read(reader)
        timer.lap("read")
        if samples is None or not _are_pictures(samples):
            return None
        return self._finished(_columns(samples), kinds_of(samples[0]), keys, timer)

    def _finished(
        self, columns: Mapping[str, Any], kinds: dict[str, str], keys: KeyArray, timer: StageTimer
    ) -> WholeBatch | None:
        fields: dict[str, Any] = {}
        try:
            for name, values in columns.items():
                worker_status.report(worker_status.WHOLE, worker_status.TRANSFORM)
                done = self._field(name, values, keys)
                if done is None:
                    return None
                fields[name] = done
        except Exception:  # sample by sample it is found out which one it was
            return None
        if self._decode is not None:
            timer.lap("transform")
        return WholeBatch(fields, kinds)

    def _field(self, name: str, values: Any, keys: KeyArray) -> Any:
        if isinstance(values, torch.Tensor):
            return values
        if self._decode is not None and (
            isinstance(values, StoredPictures) or isinstance(values[0], EncodedImage)
        ):
            return self._decode.decode_batch(values, keys)
        return self._collate([{name: value} for value in values])[name]


def _read(reader: SampleReader) -> list[Any] | None:
    samples = []
    try:
        for place in range(len(reader.request)):
            worker_status.report(place, worker_status.READ)
            samples.append(reader.read(place))
    except BadSampleError:
        return None
    return samples


def _are_pictures(samples: list[Any]) -> bool:
    """Whether they are dicts of the same fields, with files of pictures and no points or boxes."""
    first = samples[0]
    if not isinstance(first, dict) or any(sample.keys() != first.keys() for sample in samples):
        return False
    files = {name for name, value in first.items() if isinstance(value, EncodedImage)}
    return bool(files) and not any(
        _is_tv_tensor(value) or isinstance(value, EncodedImage) != (name in files)
        for sample in samples
        for name, value in sample.items()
    )


def _is_tv_tensor(value: Any) -> bool:
    if type(value) is torch.Tensor or not isinstance(value, torch.Tensor):
        return False
    return isinstance(value, import_module("torchvision.tv_tensors").TVTensor)


def _columns(samples: list[Any]) -> dict[str, list[Any]]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}
