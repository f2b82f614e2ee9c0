"""The report of a sweep: `report.html` in its folder, made from the folder's files only.

    multirun/KEYS-HASH/KEYS-HASH/manifest.json, metrics.jsonl
                       KEYS-HASH/...

Jobs are named by their overrides. Damage is reported in the line of its job.
Cost: 10 ms a job.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from penstock.addons.reports import page, report
from penstock.addons.reports.page import COLORS, MUTED, Section, chart, curve
from penstock.addons.reports.values import column, counted, finite, numeral
from penstock.addons.sweeps.sweep import FINISHED, Job, jobs_of, tables
from penstock.errors import PenstockError
from penstock.runs.folder import MANIFEST
from penstock.runs.run import Run

_MOST_COLORED = 6  # jobs


class Sweep(NamedTuple):
    """A sweep's jobs, the best first, with the keys that vary, their means, and the best in words.

    Attributes:
        runs: what jobs have measured, by their names.
        troubles: why jobs failed, or which file of theirs is damaged.
    """

    path: Path
    jobs: Sequence[Job]
    runs: dict[str, Run]
    troubles: dict[str, str]
    means: Any
    varied: list[str]
    best: str


def is_sweep(path: Path) -> bool:
    """Whether `path` is the folder of a sweep, and not of a run."""
    return not (path / MANIFEST).exists() and any(jobs_of(path))


def write(folder: Path) -> Path:
    """Make the report of the sweep in `folder`, and return its path; raises DiskError."""
    jobs = jobs_of(folder)
    # A sweep has one metric, and jobs that have not begun do not know its direction.
    sign = -1 if any(job.manifest.get("mode") == "max" for job in jobs) else 1
    jobs.sort(key=lambda job: math.inf if job.value is None else sign * job.value)
    runs, troubles = dict[str, Run](), {job.name: job.error for job in jobs}
    for job in jobs:
        try:
            if (job.path / "config.yaml").exists():
                run = Run(job.path)
                run.metrics.columns  # noqa: B018  (reads what may be damaged)
                runs[job.name] = run
        except PenstockError as error:
            troubles[job.name] = str(error)
    _, means, varied, best = tables(jobs)
    mean = next(name for name in means if name.startswith("mean "))
    # A setting that lacks jobs stands behind: the easiest fold is no result.
    means = means.sort_values(["jobs", mean], ascending=[False, sign > 0])
    best += _equals(means, mean, varied)
    sweep = Sweep(folder, jobs, runs, troubles, means, varied, best)
    parts = [section for make in (leaderboard, curves) if (section := report.part_of(make, sweep))]
    foot = f"Made from the files in {folder}; task=report makes it again."
    made = page.render(f"Sweep {folder.name}", "a sweep", _lead(sweep), parts, foot)
    return report.write(folder, made)


def _equals(means: Any, mean: str, varied: Sequence[str]) -> str:
    """Which settings the best mean does not beat by more than its standard deviation."""
    best, *others = means.to_dict("records")
    spread = max((best[name] for name in best if name.startswith("over ")), default=0.0)
    near = [
        " ".join(f"{key}={one[key]}" for key in varied if key in one)
        for one in others
        if one["jobs"] == best["jobs"] and abs(one[mean] - best[mean]) <= spread
    ]
    # With few seeds, the best of ten settings is often the luckiest one.
    names = near[0] if len(near) == 1 else f"{len(near)} others"
    return f", within its standard deviation ({numeral(spread)}) of {names}" if near else ""


def _lead(sweep: Sweep) -> Markup:
    """How many jobs are done, the best result, and the command that continues the sweep."""
    states = [job.status for job in sweep.jobs]
    undone = [f"{count} {state}" for state, count in Counter(states).items() if state != "done"]
    whole = all(state in FINISHED for state in states)
    state = "running" if "running" in states else "done" if whole else "failed"
    jobs = f"{states.count('done')} of {counted(len(states), 'job')} done; {', '.join(undone)}"
    if not undone:
        jobs = f"All {len(states)} jobs are done" if len(states) > 1 else "The job is done"
    best = f"Best {sweep.best}." if sweep.best else "No job has a value yet."
    line = Markup('<p class="verdict"><span class="state {}">{}</span> {}. {}</p>').format(
        state,
        "unfinished" if state == "failed" else state,
        page.shown(jobs),
        page.shown(best),
    )
    more = page.paragraph("The sweep's command runs what is missing.") if not whole else None
    return page.together(line, more)


def leaderboard(sweep: Sweep) -> Section:
    """Settings with their repetitions, and jobs; those without a value last, with the reason."""
    others = dict.fromkeys(name for job in sweep.jobs for name in job.metrics)
    head = ["job", "status", *sweep.varied, *others, "what happened"]
    rows = []
    for job in sweep.jobs:
        name: object = job.name
        # Links are relative, so that the sweep can be moved or copied as a whole.
        if (job.path / report.NAME).is_file() and job.path.parent == sweep.path:
            name = Markup('<a href="{0}/{1}">{0}</a>').format(page.shown(job.name), report.NAME)
        own = [job.settings.get(key, "") for key in sweep.varied]
        values = [numeral(job.metrics.get(of)) for of in others]
        badge = Markup('<span class="state {}">{}</span>').format(
            page.shown(job.status), page.shown(job.status)
        )
        rows.append([name, badge, *own, *values, sweep.troubles[job.name][:300]])
    numbers = range(2 + len(sweep.varied), len(head) - 1)
    jobs = page.table("The jobs, the best first", head, rows, numbers, without_empty=True)
    if len(sweep.means) == len(sweep.jobs):
        # Each setting ran once: means and jobs would be the same table twice.
        return Section("Leaderboard", jobs)
    lines = [
        ["" if of != of else numeral(of) if isinstance(of, float) else of for of in row]
        for row in sweep.means.itertuples(index=False)
    ]
    caption = "Mean over the jobs of each setting; standard deviations over seeds or folds"
    means = page.table(caption, [*sweep.means.columns], lines)
    every = page.part("folded", f"All {counted(len(rows), 'job')}", jobs)
    return Section("Leaderboard", page.together(means, every))


def curves(sweep: Sweep) -> Section | None:
    """The metric and the losses of all jobs over each other, the best ones in colour."""
    metric, charts = sweep.jobs[0].metric.removeprefix("val/"), list[Markup]()
    for name in dict.fromkeys((f"val/{metric}", "val/loss", "train/loss")):
        lines = []
        for place, job in enumerate(sweep.jobs):
            run = sweep.runs.get(job.name)
            if run is not None and len(finite(run.metrics, name)) > 1:
                # Colours are for the best few; a hundred coloured lines are none.
                named = place < _MOST_COLORED and job.value is not None
                color = COLORS[place] if named else MUTED
                own = " ".join(f"{key}={job.settings.get(key)}" for key in sweep.varied)
                x, label = column(run.metrics, "epoch"), f"{place + 1}. {own}"[:60]
                notes = [f"epoch {epoch:.0f}" for epoch in x]
                y, style = column(run.metrics, name), {"named": named, "thin": not named}
                lines.append(curve(label, x, y, notes, color=color, **style))
        split, _, short = name.partition("/")
        title = f"{'Validation' if split == 'val' else 'Training'} {short}"
        charts.append(chart(title, lines, not charts, x_label="epoch"))
    return Section("Curves", page.part("charts", charts)) if any(charts) else None
