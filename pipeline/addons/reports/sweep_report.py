"""The report of a sweep: `report.html` in its folder, made from the folder's files only.

    path = write(folder)
    is_due(folder)         whether it is time to write it again, while the sweep runs

Sections: leaderboard, what matters, curves, same data, cost, settings. Cost: 2 s for 64 jobs.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import stdev

from markupsafe import Markup

from penstock import program
from penstock.addons.reports import leaderboard, page, sweep_sections
from penstock.addons.reports.leaderboard import NAME, metric_of, rounded
from penstock.addons.reports.run_report import part_of
from penstock.addons.reports.sweep_data import FINISHED, UNDONE, SweepRecord
from penstock.config.own_command import suggested

_EVERY = 10.0  # seconds between two reports of a sweep in progress, at least
_SHARE = 0.05  # of a sweep's time that goes into its report


def write(folder: Path, key: str = "runs") -> Path:
    """Make the report of the sweep in `folder`, and return its path.

    Args:
        key: of the configuration that names the folder.

    Raises:
        ConfigError: it is not a sweep's folder.
        DiskError: the report cannot be written.
    """
    global _took
    began = time.monotonic()
    path = page.write(folder / NAME, make(SweepRecord.read(folder, key)))
    _took = time.monotonic() - began
    return path


_took = 0.0  # seconds for the last report of this process


def is_due(folder: Path) -> bool:
    """Whether the report is so old that writing it again takes a small part of the sweep's time."""
    for name in (NAME, "multirun.yaml"):
        with suppress(OSError):
            age = time.time() - (folder / name).stat().st_mtime
            return age >= max(_EVERY, _took / _SHARE)
    return False


def make(sweep: SweepRecord) -> str:
    """The report of a sweep as HTML."""
    makes = (
        leaderboard.section,
        sweep_sections.what_matters,
        sweep_sections.curves,
        sweep_sections.same_data,
        sweep_sections.cost,
        sweep_sections.settings,
    )
    sections = [part_of(make, sweep) for make in makes]
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    foot = f"Made on {made} from the files in {sweep.path}; task=report makes it again."
    return page.render(
        f"Sweep {sweep.path.name}",
        "a sweep",
        _lead(sweep),
        [section for section in sections if section],
        foot,
    )


def _lead(sweep: SweepRecord) -> Markup:
    """How far it came, what was best, and the command that goes on with it."""
    states = (*FINISHED, *UNDONE)
    count = {state: sum(job.status == state for job in sweep.jobs) for state in states}
    undone = ", ".join(
        f"{number} {state}" for state, number in count.items() if number and state != "done"
    )
    whole = sum(count[state] for state in FINISHED) == len(sweep.jobs)
    state = "running" if count["running"] else "done" if whole else "failed"
    word = "unfinished" if state == "failed" else state
    jobs = f"{count['done']} of {len(sweep.jobs)} jobs are done; {undone or 'others ended early'}"
    if count["done"] == len(sweep.jobs):
        jobs = f"All {len(sweep.jobs)} jobs are done"
    line = Markup('<p class="verdict"><span class="state {}">{}</span> {}. {}</p>').format(
        state, word, jobs, _best(sweep)
    )
    again = None
    if any(job.status in UNDONE and job.status != "running" for job in sweep.jobs):
        again = _resuming(sweep)
    return page.together(line, again)


def _resuming(sweep: SweepRecord) -> Markup:
    """How to go on with it."""
    if sweep.is_stored:
        line = suggested("-m", program.override("resume", sweep.path))
        return page.command(line, "To run what is missing:")
    folder = program.override("hydra.sweep.dir", sweep.path)
    return page.paragraph(f"To run what is missing, repeat the sweep's command with {folder}.")


def _best(sweep: SweepRecord) -> str:
    """The best group, and whether it is further ahead than its seeds are apart."""
    ranked = [group for group in sweep.groups if group.mean is not None]
    if not ranked:
        return "No job has a value yet."
    first = ranked[0]
    count = len(first.values)
    text = f"Best {metric_of(sweep)} {rounded(first.mean)}"
    if not sweep.has_seeds:
        return f"{text} by job {first.jobs[0].name}: {first.name()}."
    text += f" with {first.name()}" if first.settings else ""
    text += f", the mean of {count} seed{'s' * (count != 1)}"
    if len(ranked) == 1:
        spread = f", whose standard deviation is {rounded(first.spread, 2)}"
        return f"{text}{spread if first.spread is not None else ''}."
    second = ranked[1]
    ahead = abs((first.mean or 0.0) - (second.mean or 0.0))
    text += f". {second.name()} is {rounded(ahead, 2)} behind"
    if min(len(first.values), len(second.values)) < 2:
        return f"{text}; with so few seeds, that may be chance."
    # The standard error of the difference of two means.
    noise = math.sqrt(sum(stdev(group.values) ** 2 / len(group.values) for group in ranked[:2]))
    how = "more" if ahead > 2 * noise else "not more"
    return f"{text}, {how} than twice the standard error of {rounded(noise, 2)} over the seeds."
