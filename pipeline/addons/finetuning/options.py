"""The keys `trainer.warm_start`, `trainer.freeze` and `trainer.recompute`."""

from __future__ import annotations

from typing import Annotated

from penstock.config.sections import NOTHING, WEIGHTS, Extension, Option
from penstock.ranges import Index

Patterns = list[str] | str


class WarmStartSection(Extension):
    """The weights that a model begins with."""

    KEY = "trainer.warm_start"
    EFFECT = WEIGHTS

    path: str | None = None
    strict: bool = True
    without: Patterns = []
    rename: dict[str, str] | None = None


class FreezeSection(Extension):
    """Which weights do not learn, and until which epoch."""

    KEY = "trainer.freeze"
    EFFECT = WEIGHTS

    names: Patterns = []
    until: Index | list[Index | None] | None = None


RECOMPUTE = Option(Annotated[Patterns, NOTHING], [])
