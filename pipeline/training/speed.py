"""How fast an epoch goes, for its record: samples a second, and what was waited for."""

from __future__ import annotations

from penstock.distributed.group import Group
from penstock.loading.loader import Loader
from penstock.order.plan import Plan
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


def predicted_waiting(group: Group, loader: Loader, epoch: int) -> Record:
    """How long ranks would wait for each other by what rows cost: so, and in contiguous shares."""
    if group.world.size == 1 or not isinstance(loader.plan, Plan):
        return {}
    waiting = loader.plan.predicted_waiting(epoch, group.world.size)
    names = "rank_wait_share_contiguous", "rank_wait_share_by_cost"
    return {} if waiting is None else dict(zip(names, waiting, strict=True))
