"""How fast an epoch goes, for its record: samples a second, and what was waited for."""

from __future__ import annotations

from penstock.loading.loader import Loader
from penstock.training.epoch_metrics import EpochMetrics
from penstock.training.observer import Record
from penstock.training.train_step import TrainStep


def speed(train_step: TrainStep, loader: Loader, epoch_metrics: EpochMetrics) -> Record:
    """Samples a second and dead workers of all ranks; waiting and milliseconds of this one."""
    stats, gather = loader.stats, train_step.group.gather
    return {
        **epoch_metrics.speed(stats.wait_seconds),
        **{
            f"ms/{stage}": 1000 * seconds / max(stats.samples, 1)
            for stage, seconds in stats.stages.items()
        },
        "worker_deaths": sum(gather(stats.deaths)),
    }
