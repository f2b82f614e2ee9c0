"""The leaderboard of a sweep's report: settings with their seeds folded, and every job."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from penstock.addons.reports import page, values
from penstock.addons.reports.page import Section
from penstock.addons.reports.sweep_charts import short
from penstock.addons.reports.sweep_data import FINISHED, SEED, UNDONE, SweepJob, SweepRecord

NAME = "report.html"  # of the sweep, and of each job that has one

_MOST_ROWS = 20  # that are not folded
_MOST_METRICS = 5  # columns beside the metric


def metric_of(sweep: SweepRecord) -> str:
    """The name of the metric, for headings."""
    return short(sweep.metric, 40)


def rounded(value: float | None, digits: int = 5) -> str:
    """A number of a table; nothing for None."""
    return "" if value is None else f"{value:.{digits}g}"


def section(sweep: SweepRecord) -> Section:
    """Groups of seeds, or jobs; those without a value last, with the reason."""
    if not sweep.has_seeds:
        return Section("Leaderboard", _job_table(sweep, "The jobs, the best first"))
    keys = [key for key in sweep.varying if key != SEED]
    head = ["place", f"{metric_of(sweep)}, mean", "spread", "seeds", *keys, "best", "worst"]
    rows = []
    for rank, group in enumerate(sweep.groups, 1):
        best = min(group.values, key=sweep.rank, default=None)
        worst = max(group.values, key=sweep.rank, default=None)
        rows.append(
            [
                rank if group.values else "–",
                rounded(group.mean),
                rounded(group.spread, 3),
                f"{len(group.values)} of {len(group.jobs)}",
                *(group.settings.get(key, "") for key in keys),
                rounded(best),
                rounded(worst),
            ]
        )
    numbers = [1, 2, 3, len(head) - 2, len(head) - 1]
    caption = "Settings, the best first; the spread is the standard deviation over the seeds"
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
            page.folded(f"Every one of the {len(sweep.jobs)} jobs", _job_table(sweep, "Every job")),
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
