"""`task=report runs=[A,...]`: make the report.html of runs again, from their files alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.schema import Config
from pipeline.distributed.preemption import held
from pipeline.errors import ConfigError, Problem
from pipeline.terminal import put, say

if TYPE_CHECKING:
    from pipeline.order.plan import Plan
    from pipeline.order.streams import StreamPlan


def run(config: Config) -> None:
    """Write a report into each folder of `config.runs`, and print its path.

    Raises:
        ConfigError: a folder is not a run's.
        PenstockError: a file of a run is damaged, or the report cannot be written.
    """
    from pipeline.reports import run_report

    if not config.runs:
        raise ConfigError(Problem("runs", "needs folders of runs: runs=[outputs/a,outputs/b]"))
    for folder in config.runs:
        put(run_report.write(Path(folder)))


def leave(folder: Path, is_done: bool, plan: Plan | StreamPlan) -> None:
    """Write the report of a run that ends now; where that fails, the run is as it was.

    A request to stop waits for it. Cost: 0.5 s, with the imports, which no run pays for earlier.

    Args:
        plan: of training; it knows the rows of batches.
    """
    try:
        with held():
            from pipeline.reports import run_report, spikes
            from pipeline.runs.record import RunRecord

            run = RunRecord.read(folder)
            request = getattr(plan, "request", None)
            if request is not None:  # the records of a stream have no numbers
                spikes.keep_rows(run, lambda epoch, step: request(epoch, step).indices)
            path = run_report.save(run)
    except Exception as error:
        say(f"the report could not be made: {error}")
        return
    (put if is_done else say)(f"{'report':<12} {path}")
