"""Marks that identify samples: a hash of the bytes, and for an image a hash of its look.

Samples are read by the loader's workers once more, untransformed. Memory: 250 bytes a sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.build.data import Split
from penstock.loading.bad_samples import BadSampleError
from penstock.loading.batch import Batch
from penstock.loading.encoded import EncodedImage
from penstock.loading.fetch import Fetch, hash_sample
from penstock.loading.stage_timer import StageTimer
from penstock.loading.stream_fetch import StreamFetch
from penstock.order.plan import Request
from penstock.order.randomness import Draws, IntArray, sample_keys
from penstock.order.streams import length_of
from penstock.tasks.check import Suspicious, make_loader
from penstock.terminal import watched

BITS = 16  # a side: of the points of a grey copy, whether each is brighter than the one before
POINTS = 8  # a side of the colours
MOST = 200_000  # samples of a split that are looked at
_LEAST_CONTRAST = 3.0  # levels of 255; flatter pictures all look alike


@dataclass(frozen=True)
class Marks:
    """Of the samples of a split that could be read.

    Attributes:
        rows: int64[N], their numbers in the split.
        equal: uint64[N], a hash of the picture, or of the sample without its target.
        targets: uint64[N], a hash of the target.
        bits: uint8[N, 32], a difference hash of pictures.
        colours: uint8[N, 3, 8, 8] of pictures; all 0 of what has none, or hardly any contrast.
        total: samples of the split; None for a stream that does not tell.
    """

    rows: IntArray
    equal: npt.NDArray[np.uint64]
    targets: npt.NDArray[np.uint64]
    bits: npt.NDArray[np.uint8]
    colours: npt.NDArray[np.uint8]
    total: int | None


def marks_of(split: Split) -> Marks:
    """Read a split, to its first `MOST` samples."""
    target = str(split.config.objective.get("target"))
    loader = make_loader(split, _Marking, _MarkingStream)
    fetch: Any = loader.fetch
    fetch.target = target
    parts: list[Mapping[str, Any]] = []
    count, total = 0, length_of(loader.fetch.dataset)
    with loader:
        batches = watched(loader.epoch(0), None, f"comparing {split.name}")
        for batch in batches:
            parts.append({name: np.asarray(batch[name]) for name in _EMPTY})
            count += batch.request.valid
            if count >= MOST:
                break
    made = {
        name: np.concatenate([_EMPTY[name], *(part[name] for part in parts)]) for name in _EMPTY
    }
    return Marks(
        made["rows"],
        made["equal"].view(np.uint64),
        made["targets"].view(np.uint64),
        made["bits"],
        made["colours"],
        total,
    )


_EMPTY: dict[str, npt.NDArray[Any]] = {
    "rows": np.zeros(0, np.int64),
    "equal": np.zeros(0, np.int64),
    "targets": np.zeros(0, np.int64),
    "bits": np.zeros((0, BITS * BITS // 8), np.uint8),
    "colours": np.zeros((0, 3, POINTS, POINTS), np.uint8),
}


_Look = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]
_NO_PICTURE: _Look = (
    np.zeros(BITS * BITS // 8, np.uint8),
    np.zeros((3, POINTS, POINTS), np.uint8),
)


class _Marking(Fetch):
    """Makes batches of marks instead of fields."""

    target = ""

    def work(self, request: Request, rows: Any, draws: Draws, timer: StageTimer) -> Batch:
        reader = Suspicious(self.recipe, request, rows, None, draws, timer)
        keys = sample_keys(self.seed, request.epoch, request.positions).tolist()
        made: list[tuple[int, bytes, bytes, _Look]] = []
        for slot, key in enumerate(keys):
            draws.seed(key)
            try:
                sample = reader.sample(slot, as_read=True)
                made.append((int(request.indices[slot]), *_mark(sample, self.target)))
            except (BadSampleError, TypeError):  # the check has said so; or it is no plain data
                continue
        looks = [look for *_, look in made]
        fields: dict[str, npt.NDArray[Any]] = {
            "rows": np.array([row for row, *_ in made], np.int64),
            "equal": np.frombuffer(b"".join(equal for _, equal, _, _ in made), np.int64),
            "targets": np.frombuffer(b"".join(target for _, _, target, _ in made), np.int64),
            "bits": np.stack([bits for bits, _ in looks]) if made else _EMPTY["bits"],
            "colours": np.stack([colours for _, colours in looks]) if made else _EMPTY["colours"],
        }
        tensors = {name: torch.from_numpy(value.copy()) for name, value in fields.items()}
        return Batch(tensors, request, np.arange(len(request)))


class _MarkingStream(_Marking, StreamFetch):
    """The same of the records of a stream."""


def _mark(sample: Any, target: str) -> tuple[bytes, bytes, _Look]:
    """The hashes of a sample and of its target, and the look of its picture."""
    fields = dict(sample) if isinstance(sample, Mapping) else {"sample": sample}
    goal = _hash(hash_sample({"target": fields.pop(target)})) if target in fields else bytes(8)
    for value in fields.values():
        if isinstance(value, EncodedImage):
            return _hash(value.content), goal, _look(value.decode())
        if isinstance(value, Tensor) and value.dtype == torch.uint8 and value.ndim == 3:
            return _hash(hash_sample({"image": value})), goal, _look(value)
    return _hash(hash_sample(fields)), goal, _NO_PICTURE


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def _look(picture: Tensor) -> _Look:
    """Bits and colours of a picture, uint8 [C, H, W]; nothing of a flat one, as all are alike."""
    pixels = picture.as_subclass(Tensor).numpy()
    pixels = pixels[:3] if len(pixels) > 2 else pixels[:1].repeat(3, 0)
    grey = _pooled(pixels, BITS, BITS + 1).mean(0)
    if grey.std() < _LEAST_CONTRAST:
        return _NO_PICTURE
    levels = grey.round().astype(np.uint8)
    colours = _pooled(pixels, POINTS, POINTS).round().astype(np.uint8)
    return np.packbits(levels[:, 1:] > levels[:, :-1]), colours


def _pooled(pixels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.float64]:
    """Means of areas: [C, H, W] to [C, height, width]. Not by torch, whose threads wait on."""
    sums: npt.NDArray[Any] = pixels
    for axis, count in ((1, height), (2, width)):
        edges = np.arange(count) * pixels.shape[axis] // count
        sizes = np.maximum(np.diff(edges, append=pixels.shape[axis]), 1)
        sums = np.add.reduceat(sums, edges, axis, dtype=np.float64)
        sums /= sizes.reshape(-1, 1) if axis == 1 else sizes
    return sums
