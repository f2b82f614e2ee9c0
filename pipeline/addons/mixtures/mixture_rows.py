"""The rows that each source of a mixture has given, for metrics, trackers and the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.order.plan import Plan
from penstock.order.samplers import Order
from penstock.training.epoch_metrics import Step
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.addons.mixtures.order import MixtureOrder
    from penstock.tasks.fit import Fit


class MixtureRows(Observer):
    """Adds rows and passes of each source to every epoch's record, and to the manifest.

    They count the whole run, from the order and not from batches, so resumed runs agree. Over a
    mixture that a sampler packs or repeats, an epoch that ends early is counted to a batch or so.

    Args:
        plan: of training, in the order `order` or one made of it.
        manifest: gets `mixture`, with `rows` and `passes` by source.
    """

    def __init__(self, plan: Plan, order: MixtureOrder, manifest: dict[str, Any]) -> None:
        self.plan, self.order, self.manifest = plan, order, manifest
        self._done = 0  # steps of the epoch

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self._done = done

    def on_steps(self, steps: Sequence[Step]) -> None:
        self._done = steps[-1].step + 1

    def on_record(self, record: Record) -> None:
        epoch, sampler = int(record["epoch"]), self.plan.sampler
        size = self.order.size(epoch)
        if sampler is self.order:
            position = min(self._done * self.plan.batch_size, size)
        else:
            times = getattr(sampler, "times", 1)
            used = sampler.size(epoch) // times if isinstance(sampler, Order) else size
            position = used * self._done // max(self.plan.steps(epoch), 1)
        rows = self.order.given(epoch, position)
        passes = self.order.passes(rows)
        for name in rows:
            record[f"mixture/{name}/rows"] = rows[name]
            record[f"mixture/{name}/passes"] = passes[name]
        self.manifest["mixture"] = {"rows": rows, "passes": passes}
        if not self.order.size(epoch + 1):
            self.enough = "the sources have given all passes that dataset.passes allows"


def observers(fit: Fit) -> list[Observer]:
    """The observer of a plan whose sampler is a mixture, or made of one; none for others."""
    plan = fit.train_loader.plan
    mixes = getattr(fit.data.train.dataset, "mixing", None) is not None
    if not mixes or not isinstance(plan, Plan) or plan.again:
        return []
    from penstock.addons.mixtures.order import MixtureOrder

    order: Any = plan.sampler
    while not isinstance(order, MixtureOrder) and order is not None:
        order = getattr(order, "order", None)
    return [] if order is None else [MixtureRows(plan, order, fit.folder.manifest)]
