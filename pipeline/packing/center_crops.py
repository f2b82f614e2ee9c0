"""Files of pictures to squares of pixels, a batch in one call of C, where their column will be.

The picture's middle, as large as fits, is decoded and resized (`DecodeResizeCenterCrop`), with the
channels of a pixel together, as packs store them. Cost: see docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torchvision import tv_tensors

from pipeline.loading import output_buffers
from pipeline.loading.encoded import EncodedImage
from pipeline.packing.fields import Column, Encode, Field
from pipeline.transforms.image_decoding import DecodeResizeCenterCrop


class CenterCrops(Encode):
    """Samples to columns, with their files of pictures decoded to [size, size, 3].

    Args:
        size: of a side, in pixels.

    Raises:
        DataError: a file holds no picture.
        ConfigError: the native decoder was not built.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._step = DecodeResizeCenterCrop(size, size, decoder="native")

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        files = [name for name, value in samples[0].items() if isinstance(value, EncodedImage)]
        for place, sample in enumerate(samples):
            if [name for name, value in sample.items() if isinstance(value, EncodedImage)] != files:
                reason = f"it has no file of a picture in each of {', '.join(files)}"
                return {"columns": {}, "fields": {}, "differs": (place, reason)}
        rest = [{name: one[name] for name in one if name not in files} for one in samples]
        done = super().__call__(rest)
        if done["differs"]:
            return done
        for name in files:
            done["columns"][name] = self._column([sample[name] for sample in samples])
            done["fields"][name] = Field(name, "tensor", "|u1", 3, "Image")
        for part in ("columns", "fields"):
            done[part] = {name: done[part][name] for name in samples[0]}
        return done

    def _column(self, files: list[EncodedImage]) -> Column:
        shape = (self._size, self._size, 3)
        array, tensor = output_buffers.allocate((len(files), *shape), np.dtype(np.uint8))
        self._step.decode_files(files, np.zeros(len(files), np.uint64), array, channels_last=True)
        return Column(tensor.reshape(-1), np.array([shape] * len(files), np.int32))


def fits(dataset: Any) -> bool:
    """Whether samples of a dataset hold files of pictures, and nothing that moves along."""
    try:
        sample = dataset[0]
    except Exception:  # whoever packs finds out, and says so
        return False
    values = list(sample.values()) if isinstance(sample, dict) else []
    moving = any(isinstance(value, tv_tensors.TVTensor) for value in values)
    return any(isinstance(value, EncodedImage) for value in values) and not moving
