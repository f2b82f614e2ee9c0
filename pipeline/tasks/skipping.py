"""`trainer.skip` in a fit: what it leaves out of this run, in words."""

from __future__ import annotations

from penstock.errors import ConfigError, Problem
from penstock.order.plan import Plan
from penstock.order.skipped import Range, Skipped
from penstock.order.streams import StreamPlan


def check(plan: Plan | StreamPlan, max_epochs: int) -> None:
    """Raise ConfigError if nothing is left to train on, as far as an epoch's length is known."""
    skipped = plan.skipped
    for epoch in range(max_epochs if skipped else 0):
        if next(skipped.steps(epoch, 0, plan.steps(epoch)), None) is not None:
            return
    if skipped:
        raise ConfigError(
            Problem(
                "trainer.skip",
                f"{skipped} leaves out every batch of "
                f"trainer.max_epochs={max_epochs}; leave something to train on",
            )
        )


def describe(plan: Plan | StreamPlan, max_epochs: int) -> str:
    """The ranges, and how many batches of the run they leave out; empty without any."""
    return "; ".join(_of_range(skipped, plan, max_epochs) for skipped in plan.skipped.ranges)


def _of_range(skipped: Range, plan: Plan | StreamPlan, max_epochs: int) -> str:
    start, stop = skipped
    text, count = f"from {start} to before {stop}", 0
    for epoch in range(start.epoch, min(stop.epoch + 1, max_epochs)):
        steps = plan.steps(epoch)
        if steps is None:
            return text
        count += Skipped([skipped]).count(epoch, 0, steps)
    if not count:
        return f"{text}, where this run has no batch"
    return f"{text}, {count:,} batch{'' if count == 1 else 'es'}"
