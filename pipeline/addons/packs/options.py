"""The section `pack`."""

from __future__ import annotations

from typing import Literal

from penstock.config.sections import ALL_SPLITS, Changes, Effect, Extension
from penstock.ranges import Count

# A resumed run compares the fingerprint of the data instead of what it is read by.
PACK = Effect(Changes.BATCHES, asks="pack", resumes=Changes.BATCHES, makes=ALL_SPLITS)


class PackSection(Extension):
    """Options of `task=pack` and `dataset.packed=auto`; see docs/packing.md."""

    KEY = "pack"
    EFFECT = PACK

    size: Count | None = None
    square: bool = True
    format: Literal["pixels", "encoded"] = "pixels"
    decoder: Literal["auto", "native", "reader"] = "auto"
    out: str | None = None
