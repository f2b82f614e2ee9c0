"""The sections `tune`, `profile` and `lr_find`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.sections import TASK, Extension
from penstock.ranges import Count


class TuneSection(Extension):
    """Limits of `task=tune`."""

    KEY = "tune"
    EFFECT = TASK

    seconds: Annotated[float, Field(gt=0)] = 60.0
    workers: Count | None = None


class ProfileSection(Extension):
    """How often machines fail, for the interval of checkpoints that `task=profile` recommends."""

    KEY = "profile"
    EFFECT = TASK

    node_hours_between_failures: Annotated[float, Field(gt=0)] = 6300.0
    nodes: Count = 1


class LrFindSection(Extension):
    """The first and the last learning rate of `task=lr_find`."""

    KEY = "lr_find"
    EFFECT = TASK

    lowest: Annotated[float, Field(gt=0)] = 1e-7
    highest: Annotated[float, Field(gt=0)] = 1.0
