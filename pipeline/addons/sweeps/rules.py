"""Settings that a study contradicts."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.addons.sweeps.options import SweepSection
from penstock.config.nodes import Parts, validates
from penstock.config.schema import Config


def chooses_by_metric(config: Config, parts: Parts) -> Iterator[str]:
    """A study needs a validation."""
    if validates(config.dataset) or config.task != "fit" or SweepSection.of(config).optuna is None:
        return
    why = "there is no validation, as dataset.val is null"
    yield f"sweep.optuna: chooses by a metric, but {why}; set sweep=grid"
