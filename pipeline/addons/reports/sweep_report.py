"""The report of a sweep: `report.html` in its folder, made from the folder's files only.

    path = write(folder)
    is_due(folder)         whether it is time to write it again, while the sweep runs

Sections: leaderboard (settings with their seeds folded, and every job), what matters, curves, same
data, cost, settings. Cost: 2 s for 64 jobs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import stdev

from markupsafe import Markup

from penstock import program
from penstock.addons.reports import page, sweep_sections, values
from penstock.addons.reports.figures import numeral
from penstock.addons.reports.page import Section
from penstock.addons.reports.run_report import part_of
from penstock.addons.reports.sweep_charts import short
from penstock.addons.reports.sweep_data import FINISHED, UNDONE, SweepJob, SweepRecord
from penstock.addons.sweeps.repetitions import REPEATED
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
        leaderboard,
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
        jobs = {1: "The job is done", 2: "Both jobs are done"}.get(
            len(sweep.jobs), f"All {len(sweep.jobs)} jobs are done"
        )
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
    if not sweep.repeated:
        return f"{text} by job {first.jobs[0].name}: {first.name()}."
    text += f" with {first.name()}" if first.settings else ""
    what = _repetitions(sweep)
    text += f", the mean of {count} {what if count != 1 else what.removesuffix('s')}"
    if len(ranked) == 1:
        spread = f", whose standard deviation is {rounded(first.spread, 2)}"
        return f"{text}{spread if first.spread is not None else ''}."
    second = ranked[1]
    ahead = abs((first.mean or 0.0) - (second.mean or 0.0))
    if not ahead:
        return f"{text}. {second.name()} is as good."
    text += f". {second.name()} is {rounded(ahead, 2)} behind"
    if min(len(first.values), len(second.values)) < 2:
        return f"{text}; with so few {what}, that may be chance."
    # The standard error of the difference of two means.
    noise = math.sqrt(sum(stdev(group.values) ** 2 / len(group.values) for group in ranked[:2]))
    how = "more" if ahead > 2 * noise else "not more"
    return f"{text}, {how} than twice the standard error of {rounded(noise, 2)} over the {what}."


def _repetitions(sweep: SweepRecord) -> str:
    """What settings are repeated by: "seeds", "folds"; "jobs" where it is both."""
    return REPEATED[sweep.repeated[0]] if len(sweep.repeated) == 1 else "jobs"


NAME = "report.html"  # of the sweep, and of each job that has one

_MOST_ROWS = 20  # that are not folded
_MOST_METRICS = 5  # columns beside the metric


def metric_of(sweep: SweepRecord) -> str:
    """The name of the metric, for headings."""
    return short(sweep.metric, 40)


def rounded(value: float | None, digits: int = 5) -> str:
    """A number of a table; nothing for None."""
    return "" if value is None else numeral(value, digits)


def leaderboard(sweep: SweepRecord) -> Section:
    """Settings with their repetitions, or jobs; those without a value last, with the reason."""
    if not sweep.repeated:
        return Section("Leaderboard", _job_table(sweep, "The jobs, the best first"))
    keys = [key for key in sweep.varying if key not in REPEATED]
    over = [f"over {REPEATED[key]}" for key in sweep.repeated]
    count = _repetitions(sweep)
    # The keys stand beside the place: a phone shows the first columns.
    head = ["place", *keys, f"{metric_of(sweep)}, mean", *over, count, "best", "worst"]
    rows = []
    for rank, group in enumerate(sweep.groups, 1):
        best = min(group.values, key=sweep.rank, default=None)
        worst = max(group.values, key=sweep.rank, default=None)
        rows.append(
            [
                rank if group.values else "–",
                *(group.settings.get(key, "") for key in keys),
                rounded(group.mean),
                *(rounded(group.spreads.get(key), 3) for key in sweep.repeated),
                f"{len(group.values)} of {len(group.jobs)}",
                rounded(best),
                rounded(worst),
            ]
        )
    numbers = range(1 + len(keys), len(head))
    caption = f"Settings, the best first, with the standard deviation {' and '.join(over)}"
    table = page.table(caption, head, rows[:_MOST_ROWS], numbers)
    if rows[_MOST_ROWS:]:
        rest = page.table("The other settings", head, rows[_MOST_ROWS:], numbers)
        title = f"The other {len(rows) - _MOST_ROWS} settings"
        table = page.together(table, page.folded(title, rest))
    undone = [job for job in sweep.jobs if job.value is None]
    return Section(
        "Leaderboard",
        page.together(
            table,
            _job_table(sweep, "Jobs without a value", undone) if undone else None,
            page.folded(f"All {len(sweep.jobs)} jobs", _job_table(sweep, "Every job")),
        ),
    )


def _job_table(sweep: SweepRecord, caption: str, jobs: Sequence[SweepJob] | None = None) -> Markup:
    jobs = sweep.ranked if jobs is None else jobs
    others = dict.fromkeys(name for job in sweep.jobs if job.result for name in job.result.others)
    metrics = list(others)[:_MOST_METRICS]
    troubled = any(job.trouble for job in jobs)
    head = ["job", metric_of(sweep), "status", *sweep.varying, *map(short, metrics), "seconds"]
    rows = []
    for job in jobs:
        own = job.result.others if job.result is not None else {}
        value = rounded(job.value) if job.value is not None else _so_far(sweep, job)
        rows.append(
            [
                _link(sweep, job),
                value,
                _state(job),
                *(job.settings.get(key, "") for key in sweep.varying),
                *(rounded(values.number(own, name), 4) for name in metrics),
                f"{job.seconds:.1f}",
                *([_reason(job)] if troubled else ()),
            ]
        )
    numbers = [1, *range(len(sweep.varying) + 3, len(head))]
    return page.table(caption, [*head, *(["what happened"] if troubled else ())], rows, numbers)


def _link(sweep: SweepRecord, job: SweepJob) -> object:
    """The job's name; a link to its report if it has one, which only works beside this page."""
    if not (sweep.path / job.name / NAME).is_file() or not job.name.isalnum():
        return job.name
    return Markup('<a href="{0}/{1}">{0}</a>').format(job.name, NAME)


def _reason(job: SweepJob) -> Markup:
    """Why a job failed; an announcement of further lines, which are not here, is left out."""
    text = job.trouble
    if text.endswith(":") and ". " in text:
        text = text[: text.rindex(". ")]
    return Markup('<span class="long">{}</span>').format(short(text, 300))


def _state(job: SweepJob) -> Markup:
    state = job.status if job.status in (*FINISHED, *UNDONE) else "failed"
    return Markup('<span class="state {}">{}</span>').format(state.replace(" ", "-"), job.status)


def _so_far(sweep: SweepRecord, job: SweepJob) -> str:
    """The best value of a job that has not ended, or failed."""
    name = f"val/{sweep.metric.removeprefix('val/')}"
    measured = job.epochs.finite(name)
    if not len(measured):
        return ""
    values_of = job.epochs.column(name)[measured]
    best = int(values_of.argmax() if sweep.larger_is_better else values_of.argmin())
    return (
        f"{rounded(float(values_of[best]))} in epoch {job.epochs.column('epoch')[measured[best]]}"
    )
