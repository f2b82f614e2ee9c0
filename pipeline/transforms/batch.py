"""Transforms of whole batches: how they are applied by name, and what they share.

A batch transform takes a `Batch` and the `KeyedRandom` of its rows, and gives the batch:

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch

1. It draws its parameters, a row a sample, on the CPU in float64.
2. It finds the fields that it works on by `batch.kinds`: pictures, masks, landmarks, boxes.
3. It puts new tensors in their place, on the same device. uint8 pictures stay uint8, except under
   `Normalize`.

A row depends on its own sample and key only (and its partner's, in `mixing.py`), so a batch may be
shared out, padded and sorted in any way.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.errors import ConfigError, DataError, PenstockError
from penstock.loading.bad_samples import SampleError
from penstock.loading.batch import Batch, hash_sample
from penstock.order.keys import KeyedRandom
from penstock.order.seeding import Seeding, scope, stateful_in
from penstock.transforms.crops import Range

BatchTransform = Callable[[Batch, KeyedRandom], Batch]


class BatchCompose:
    """Batch transforms by name, applied in the order of the map; None leaves a step out.

    The numbers of a step depend on its name and not on its place, so adding or removing one does
    not change the draws of others.

    Args:
        seed: of the run.

    Attributes:
        together: rows of a global batch that have to stay on one rank.

    Raises:
        ConfigError: a step holds a generator of its own.
    """

    def __init__(self, steps: Mapping[str, BatchTransform | None], seed: int) -> None:
        self.steps = {name: step for name, step in steps.items() if step is not None}
        self.seed = seed
        # So that groups of every step stay whole.
        self.together = math.lcm(*(getattr(step, "together", 1) for step in self.steps.values()))
        # Rows of a batch have a key each, so a generator of a step could not be seeded.
        generators, _ = stateful_in(self.steps)
        if generators:
            raise ConfigError(
                f"there is a generator in {' and in '.join(generators)}, a transform of whole "
                "batches. It has no key for a batch: draw from the KeyedRandom that the step is "
                "called with"
            )

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __call__(self, batch: Batch) -> Batch:
        """Apply all steps; hashes of rows, if any, then cover what changed.

        On an accelerator they stay as they were: its pixels differ by rounding.

        Raises:
            SampleError: a person's own step failed.
        """
        before = dict(batch)  # steps put in new tensors, so identity tells which fields changed
        for name, step in self.steps.items():
            batch = self._applied(name, step, batch)
        tensors = (value for value in batch.values() if isinstance(value, Tensor))
        if batch.hashes is None or any(tensor.device.type != "cpu" for tensor in tensors):
            return batch
        changed = {name: value for name, value in batch.items() if before.get(name) is not value}
        # The hash before is part of the new one: it covers the fields that no step has changed.
        hashes = [
            hash_sample([old.hex(), _row(batch, changed, row)])
            for row, old in enumerate(batch.hashes)
        ]
        return batch.replace(hashes=hashes)

    def _applied(self, name: str, step: BatchTransform, batch: Batch) -> Batch:
        epoch, number = batch.request.address
        random = KeyedRandom.of(self.seed, epoch, batch.positions, f"batch/{name}")
        # Our own steps leave global generators alone; beside a thread, others may draw meanwhile.
        is_foreign = not type(step).__module__.startswith("penstock.")
        seeding = Seeding()
        try:
            if is_foreign and threading.current_thread() is threading.main_thread():
                with scope():
                    changed = seeding.run(lambda: step(batch, random))
            else:
                changed = step(batch, random)
        except PenstockError:
            raise
        except Exception as error:
            raise SampleError(
                f"batch (epoch {epoch}, step {number}): the batch transform {name!r} failed with "
                f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            ) from error
        if not isinstance(changed, Batch):
            raise ConfigError(
                f"the batch transform {name!r} returns a {type(changed).__name__}; it has to "
                "return a Batch, such as the one that it is called with"
            )
        if seeding.drawn:
            raise SampleError(
                f"the batch transform {name!r} draws from {' and '.join(seeding.drawn)}, which has "
                "no key for a batch: draw from the KeyedRandom that it is called with"
            )
        return changed


def _row(batch: Batch, fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    """A sample of a batch, without what collating has padded it with."""
    sample = {}
    for name, value in fields.items():
        lengths = batch.get(f"{name}_lengths")
        field = value[row]
        if lengths is not None and isinstance(field, Tensor):
            # The padded dimension is not on record; it is the first as long as the longest sample.
            padded = field.shape.index(int(lengths.max()))
            field = field.narrow(padded, 0, int(lengths[row]))
        sample[name] = field
    return sample


def images_of(batch: Batch, owner: object) -> dict[str, Tensor]:
    """The pictures of a batch by field, [B, C, H, W], all of one size.

    Raises:
        DataError: there is none, or they are not stacked; names `owner`, the transform.
    """
    name = type(owner).__name__
    images = {field: batch[field] for field, kind in batch.kinds.items() if kind == "image"}
    if not images:
        raise DataError(
            f"{name} works on pictures, and no field of the batch ({', '.join(batch)}) "
            "is one: the dataset has to give them as tv_tensors.Image"
        )
    shapes = {field: list(getattr(stack, "shape", ())) for field, stack in images.items()}
    if (
        any(len(shape) != 4 for shape in shapes.values())
        or len({tuple(shape[2:]) for shape in shapes.values()}) > 1
    ):
        raise DataError(
            f"{name} needs stacks of pictures [B, C, H, W] of one size, not {shapes}: resize them "
            "in transform.train, and choose collate=stack"
        )
    return images


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """Parameters [B] where `like` is, of a shape that broadcasts with it; floats as float32."""
    dtype = torch.float32 if values.is_floating_point() else values.dtype
    return values.to(like.device, dtype).reshape(-1, *[1] * (like.ndim - 1))


def around(
    value: float | Range, centre: float = 0.0, least: float = -math.inf, most: float = math.inf
) -> tuple[float, float]:
    """Two bounds, or one number as the distance from `centre` to both sides; cut at the ends."""
    low, high = value if isinstance(value, Sequence) else (centre - value, centre + value)
    return max(float(low), least), min(float(high), most)
