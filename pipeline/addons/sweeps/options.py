"""The section `sweep`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.config.sections import Extension, Section
from penstock.ranges import Count, Index


class StudySection(Section):
    """How optuna chooses what each job of a sweep tries, and ends hopeless ones; sweep=optuna."""

    trials: Count
    sampler: Literal["tpe", "random", "grid"]
    pruner: Literal["none", "median", "asha"]
    startup: Index
    warmup: Count
    timeout: Annotated[float, Field(gt=0)] | None
    seed: Index


class SweepSection(Extension):
    """The keys of a sweep besides its grid; see docs/sweeps.md."""

    KEY = "sweep"

    on_preempted: Literal["stop", "continue"] = "stop"
    on_failure: Literal["continue", "stop"] = "continue"
    retries: Index = 0
    jobs: Count | Literal["auto"] = 1
    seeds: Count | None = None
    folds: Literal["all"] | None = None
    optuna: StudySection | None = None
