"""The recipe of a pack: how samples are made smaller, decoded and turned into columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.addons.packs.fields import Column, Encode, Field
from penstock.addons.packs.folder import VERSION
from penstock.loading.encoded import EncodedImage
from penstock.transforms import native_images
from penstock.transforms.image_decoding import DecodeResizeCenterCrop


class CenterCrops(Encode):
    """Samples to columns, with encoded pictures decoded to [size, size, 3] in one call of C.

    The middle of a picture, as large as fits, is resized as by `DecodeResizeCenterCrop`.

    Raises:
        DataError: a file is not a picture.
        ConfigError: the native decoder was not built.
    """

    def __init__(self, size: int) -> None:
        self._step = DecodeResizeCenterCrop(size, size, decoder="native")

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        files = [name for name, value in samples[0].items() if isinstance(value, EncodedImage)]
        for number, sample in enumerate(samples):
            if [name for name, value in sample.items() if isinstance(value, EncodedImage)] != files:
                reason = f"it has no file of a picture in each of {', '.join(files)}"
                return {"columns": {}, "fields": {}, "differs": (number, reason)}
        rest = [{name: sample[name] for name in sample if name not in files} for sample in samples]
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
        keys = np.zeros(len(files), np.uint64)
        pixels = self._step.decode_batch(files, keys, channels_last=True)
        assert pixels is not None, "files can always be decoded in a batch"
        return Column(pixels.reshape(-1), np.array([pixels.shape[1:]] * len(files), np.int32))


def fits(dataset: Any) -> bool:
    """Whether `CenterCrops` applies: encoded pictures, and no masks, points or boxes."""
    try:
        sample = dataset[0]
    except Exception:  # packing finds the error again, and reports it
        return False
    values = list(sample.values()) if isinstance(sample, dict) else []
    moving = any(isinstance(value, tv_tensors.TVTensor) for value in values)
    return any(isinstance(value, EncodedImage) for value in values) and not moving


@dataclass(frozen=True)
class Recipe:
    """The steps applied to a dataset's samples before they are packed.

    Attributes:
        size: pixels of the shorter side of every picture; None leaves samples as they are.
        square: cut a square out of the middle after that.
        format: "pixels", or "encoded" for the files that pictures come from.
        decoder: "reader" for the dataset's own and torchvision's resizing, or "native" for the
            decoder in C, which needs encoded pictures.
    """

    size: int | None = None
    square: bool = True
    format: Literal["pixels", "encoded"] = "pixels"
    decoder: Literal["reader", "native"] = "reader"

    def natively(self) -> Recipe | None:
        """This recipe with the native decoder; None where that was not built or does not apply."""
        able = self.size is not None and self.square and self.format == "pixels"
        return (
            replace(self, decoder="native") if able and native_images.jpeg() is not None else None
        )

    def steps(self) -> v2.Compose | None:
        """The transform of a sample; None if it stays as it is."""
        if self.size is None or self.decoder == "native":
            return None
        steps = [v2.Resize(self.size, antialias=True)]
        return v2.Compose(steps + ([v2.CenterCrop(self.size)] if self.square else []))

    def collate(self) -> Encode:
        """The function that turns samples into columns."""
        return CenterCrops(self.size) if self.decoder == "native" and self.size else Encode()

    def name(self, fingerprint: str) -> str:
        """The name of a pack; other samples, another name."""
        return _hash(["pack", VERSION, fingerprint, self.format, *self._shrunk()])

    def fingerprint(self, fingerprint: str) -> str:
        """The fingerprint of the packed dataset; the dataset's own where samples stay the same."""
        return fingerprint if self.size is None else _hash(["packed", fingerprint, *self._shrunk()])

    def _shrunk(self) -> list[object]:
        if self.size is None:
            return []
        # Pixels differ by rounding from one decoder to another.
        return [self.size, self.square, *(["native"] if self.decoder == "native" else [])]


def _hash(parts: list[object]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
