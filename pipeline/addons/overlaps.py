"""Samples of validation and test that are in training, too: the same bytes of an image's file, or
of the sample without its target.

No error: data may repeat itself rightly. Cost: the loader's workers read the splits once more,
untransformed; 100 bytes a sample.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from penstock.build.data import DataParts, Split
from penstock.errors import ConfigError, DataError
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch, hash_sample
from penstock.loading.encoded import EncodedImage
from penstock.loading.fetch import Samples
from penstock.loading.stream import StreamFetch
from penstock.tasks.check import Check, make_loader
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put, watched

MOST = 200_000  # samples of a split that are compared
_LISTED = 100

Marks = dict[int, tuple[int, int]]  # the first row and the hash of its target, by a sample's hash


def report(data: DataParts) -> None:
    """Print what of the other splits is in training."""
    others = [split for split in data.splits if not split.is_train]
    with suppress(ConfigError, DataError, TypeError):  # there is none; a stream
        # Neither training nor the rest of the check reads it.
        others += [split for split in (data.test,) if len(split.dataset)]
    train = _marks(data.train) if others else {}
    for split in others:
        began, marks = time.perf_counter(), _marks(split)
        both = sorted((marks[one][0], train[one][0], one) for one in marks if one in train)
        compared = f"{len(marks)} with {len(train)} of train"
        compared += f", {time.perf_counter() - began:.1f} s"
        if not both:
            put(f"{'overlap':<10} none of {split.name} is in train, too ({compared})")
            continue
        other = sum(marks[one][1] != train[one][1] for *_, one in both)
        text = f"{len(both)} of {split.name} are in train, too"
        text += f"; {other} of them with another target" if other else ""
        put(f"{'overlap':<10} {text} ({compared})")
        lines = [
            (split.name, *_sample(split, row), *_sample(data.train, of))
            for row, of, _ in both[:_LISTED]
        ]
        put_rows([("split", "index", "path", "train", "path"), *lines])
        if both[_LISTED:]:
            put(f"and {len(both) - _LISTED} more")


def _sample(split: Split, row: int) -> tuple[str, str]:
    return str(row), one_line(path_of(split.dataset, row))


def _marks(split: Split) -> Marks:
    """Those of a split's first `MOST` samples that can be read."""
    loader = make_loader(split, _Marking, _MarkingStream)
    fetch: Any = loader.fetch
    fetch.target = str(split.config.objective.get("target"))
    marks: Marks = {}
    count = 0
    with loader:
        for batch in watched(loader.epoch(0), None, f"comparing {split.name}"):
            for row, sample, target in batch["marks"].tolist():
                marks.setdefault(sample, (row, target))
            count += batch.request.valid
            if count >= MOST:
                break
    return marks


class _Marking(Check):
    """Makes batches of hashes instead of fields, of samples before their transforms."""

    target = ""

    def __post_init__(self) -> None:
        self.transform = None
        super().__post_init__()

    def batch_of(self, samples: Samples) -> Batch:
        request, made = samples.request, list[tuple[int, int, int]]()
        for row, sample in zip(samples.indices, samples.made, strict=True):
            with suppress(DataError, TypeError):  # the check has said so; or no plain data
                made.append((row, *_hashes(sample, self.target)))
        marks = torch.from_numpy(np.array(made, np.int64).reshape(-1, 3))
        return Batch({"marks": marks}, request, np.arange(len(request)))


class _MarkingStream(_Marking, StreamFetch):
    """The same of the records of a stream."""


def _hashes(sample: Any, target: str) -> tuple[int, int]:
    """Of a sample without its target, and of the target."""
    fields = dict(sample) if isinstance(sample, Mapping) else {"sample": sample}
    goal = _hash(hash_sample({"target": fields.pop(target, None)}))
    for value in fields.values():
        if isinstance(value, EncodedImage):
            return _hash(value.content), goal
    return _hash(hash_sample(fields)), goal


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
