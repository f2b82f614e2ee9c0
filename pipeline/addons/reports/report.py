"""`task=report runs=[A,...]`: make the report.html of runs or sweeps again, from files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.schema import Config
from penstock.distributed.preemption import held
from penstock.errors import ConfigError, Problem
from penstock.runs.only_shown import only_shown
from penstock.terminal import put, say

if TYPE_CHECKING:
    from penstock.order.plan import Plan
    from penstock.order.streams import StreamPlan


def run(config: Config) -> None:
    """Write a report into each folder of `config.runs`, and print its path.

    Raises:
        ConfigError: a folder is not a run's or a sweep's.
        PenstockError: a file of a run is damaged, or the report cannot be written.
    """
    from penstock.addons.reports import run_report, sweep_data, sweep_report

    if not config.runs:
        raise ConfigError(Problem("runs", "needs folders of runs: runs=[outputs/a,outputs/b]"))
    for folder in config.runs:
        is_sweep = sweep_data.is_sweep(Path(folder))
        put((sweep_report if is_sweep else run_report).write(Path(folder)))


def leave(folder: Path, is_done: bool, plan: Plan | StreamPlan) -> None:
    """Write the report of a run that ends now; where that fails, the run is as it was.

    A request to stop waits for it. Cost: 0.5 s, with the imports, which no run pays for earlier.

    Args:
        plan: of training; it knows the rows of batches.
    """
    with only_shown("the report"), held():
        from penstock.addons.reports import run_report, spikes
        from penstock.order.plan import Plan
        from penstock.runs.record import RunRecord

        run = RunRecord.read(folder)
        if isinstance(plan, Plan):  # the records of a stream have no numbers
            spikes.keep_rows(run, lambda epoch, step: plan.request(epoch, step).indices)
        path = run_report.save(run)
        (put if is_done else say)(f"{'report':<12} {path}")


def of_sweep(config: Mapping[str, Any], folder: Path, in_between: bool) -> None:
    """`leave_of_sweep`, unless the configuration of the sweep wants no reports."""
    if config["trainer"].get("report") is not False:
        leave_of_sweep(folder, in_between)


def leave_of_sweep(folder: Path, in_between: bool = False) -> None:
    """Write the report of a sweep; where that fails, the sweep is as it was.

    Args:
        in_between: the sweep goes on, so write nothing if it is too early, and print nothing.
    """
    with only_shown("the sweep's report"):
        from penstock.addons.reports import sweep_report

        if in_between and not sweep_report.is_due(folder):
            return
        path = sweep_report.write(folder)
        if not in_between:
            put(f"{'report':<12} {path}")
