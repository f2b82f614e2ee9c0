"""What is made of samples before they are packed, and what the pack is called for it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchvision.transforms import v2

from pipeline.packing.center_crops import CenterCrops
from pipeline.packing.fields import Encode
from pipeline.packing.folder import VERSION
from pipeline.transforms import native_images


@dataclass(frozen=True)
class Recipe:
    """What is made of a dataset's samples.

    Attributes:
        size: pixels of the shorter side of every picture; None leaves samples as they are.
        square: cut a square out of the middle after that.
        format: "pixels", or "encoded" for the files that pictures come from.
        decoder: who makes pictures smaller: "reader" for the dataset's own and torchvision, or
            "native" for the one in C, to which the dataset has to give files.
    """

    size: int | None = None
    square: bool = True
    format: Literal["pixels", "encoded"] = "pixels"
    decoder: Literal["reader", "native"] = "reader"

    def natively(self) -> Recipe | None:
        """The same by the native decoder; None where that was not built, or has nothing to do."""
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
        """What turns samples into columns."""
        return CenterCrops(self.size) if self.decoder == "native" and self.size else Encode()

    def name(self, fingerprint: str) -> str:
        """The name of a pack: other samples, another name."""
        return _hash(["pack", VERSION, fingerprint, self.format, *self._shrunk()])

    def fingerprint(self, fingerprint: str) -> str:
        """The packed dataset's own: the dataset's where samples are what they were."""
        return fingerprint if self.size is None else _hash(["packed", fingerprint, *self._shrunk()])

    def _shrunk(self) -> list[Any]:
        if self.size is None:
            return []
        # Pixels differ by rounding from one decoder to another.
        return [self.size, self.square, *(["native"] if self.decoder == "native" else [])]


def _hash(parts: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
