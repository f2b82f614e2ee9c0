"""The report of a sweep: `report.html` in its folder, made from the folder's files only.

    multirun/KEYS-HASH/KEYS-HASH/manifest.json, metrics.jsonl
                       KEYS-HASH/...

Jobs are known by the overrides they were given. What is damaged becomes the `trouble` of its job.
Cost: 10 ms a job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup

from penstock.addons.reports import page, report
from penstock.addons.reports.page import COLORS, MUTED, Section, chart, curve
from penstock.addons.reports.values import column, counted, finite, numeral
from penstock.addons.sweeps.sweep import FINISHED, REPEATED, Job, jobs_of
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.runs.folder import MANIFEST
from penstock.runs.run import Run

UNDONE = ("failed", "preempted", "interrupted", "killed", "running")

_MOST_ROWS = 20  # settings that are not folded
_MOST_METRICS = 5  # columns beside the metric
_MOST_KEYS = 8  # charts of keys
_MOST_COLORED = 6  # groups
_MOST_LINES = 200  # jobs in a chart of curves


class SweepJob(Job):
    """A job of a sweep, with what its run has measured."""

    @property
    def run(self) -> Run | None:
        """None if it has no run's folder, or one that is damaged."""
        return self._read[0]

    @property
    def trouble(self) -> str:
        """Why it failed, or which of its files is damaged; "" if nothing is wrong."""
        return "; ".join(filter(None, (self.error, self._read[1])))

    @cached_property
    def _read(self) -> tuple[Run | None, str]:
        try:
            run = Run(self.path) if (self.path / "config.yaml").exists() else None
            assert run is None or run.metrics is not None  # reads what may be damaged
        except PenstockError as error:
            return None, str(error)
        return run, ""


@dataclass(frozen=True)
class Repeated:
    """Jobs that differ in their seeds and folds only; `settings` vary in the sweep."""

    settings: Mapping[str, str]
    jobs: tuple[SweepJob, ...]

    @cached_property
    def values(self) -> list[float]:
        """What the jobs reached that are done."""
        return [job.value for job in self.jobs if job.value is not None]

    @property
    def mean(self) -> float | None:
        """None if no job is done."""
        return mean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over its jobs."""
        return stdev(self.values) if len(self.values) > 1 else None

    def name(self) -> str:
        """Its settings as words of a command line."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items()) or "(defaults)"


class SweepRecord:
    """The sweep in the folder `path`; its jobs are in the order of their settings.

    Raises:
        ConfigError: no job has begun there.
    """

    def __init__(self, path: Path, key: str = "runs") -> None:
        self.path = path
        self.jobs = [SweepJob(job.name, job.path, job.manifest) for job in jobs_of(path)]
        if not self.jobs:
            reason = f"{path} is not a sweep's folder: no job has begun in it"
            raise ConfigError(Problem(key, reason))
        self.metric = next((job.metric for job in self.jobs if job.value is not None), "value")
        self.larger_is_better = any(job.manifest.get("mode") == "max" for job in self.jobs)
        keys = dict.fromkeys(key for job in self.jobs for key in job.settings)
        several = [key for key in keys if len({job.settings.get(key) for job in self.jobs}) > 1]
        self.varying = sorted(several, key=lambda key: key in REPEATED)
        kept = [key for key in self.varying if key not in REPEATED]
        groups: dict[tuple[str | None, ...], list[SweepJob]] = {}
        for job in self.jobs:
            groups.setdefault(tuple(job.settings.get(key) for key in kept), []).append(job)
        made = [
            Repeated({key: value for key, value in zip(kept, values, strict=True) if value}, (*of,))
            for values, of in groups.items()
        ]
        by_folds = any(key.endswith(".fold") for key in self.varying)  # not equally hard

        def place(group: Repeated) -> tuple[bool, float]:
            lacks = by_folds and len(group.values) < len(group.jobs)
            return lacks, self.rank(group.mean)

        self.groups = sorted(made, key=place)
        is_repeated = len(self.groups) < len(self.jobs)
        self.repeated = [REPEATED[key] for key in self.varying if is_repeated and key in REPEATED]

    def rank(self, value: float | None) -> float:
        """A key that sorts values from the best to the worst, and None behind them."""
        return math.inf if value is None else -value if self.larger_is_better else value


def is_sweep(path: Path) -> bool:
    """Whether `path` is the folder of a sweep, and not of a run."""
    return not (path / MANIFEST).exists() and any(jobs_of(path))


def write(folder: Path, key: str = "runs") -> Path:
    """Make the report of the sweep in `folder`, and return its path.

    Args:
        key: of the configuration that names the folder.

    Raises:
        ConfigError: it is not a sweep's folder.
        DiskError: the report cannot be written.
    """
    sweep = SweepRecord(folder, key)
    makes = (leaderboard, keys, curves, settings)
    parts = [section for make in makes if (section := report.part_of(make, sweep))]
    foot = f"Made from the files in {sweep.path}; task=report makes it again."
    made = page.render(f"Sweep {sweep.path.name}", "a sweep", _lead(sweep), parts, foot)
    return page.write(folder / report.NAME, made)


def _lead(sweep: SweepRecord) -> Markup:
    """How far it came, what was best, and the command that goes on with it."""
    count = dict.fromkeys((*FINISHED, *UNDONE), 0)
    for job in sweep.jobs:
        count[job.status if job.status in count else "failed"] += 1
    undone = [f"{number} {state}" for state, number in count.items() if number and state != "done"]
    whole = sum(count[state] for state in FINISHED) == len(sweep.jobs)
    state = "running" if count["running"] else "done" if whole else "failed"
    jobs = f"{count['done']} of {len(sweep.jobs)} jobs are done; {', '.join(undone)}"
    if not undone:
        jobs = (
            f"All {counted(count['done'], 'job')} are done"
            if count["done"] > 1
            else "The job is done"
        )
    word = "unfinished" if state == "failed" else state
    line = Markup('<p class="verdict"><span class="state {}">{}</span> {}. {}</p>').format(
        state, word, page.shown(jobs), page.shown(_best(sweep))
    )
    more = page.paragraph("The sweep's command runs what is missing.") if not whole else None
    return page.together(line, more)


def _best(sweep: SweepRecord) -> str:
    """The best group, and whether it is further ahead than its repetitions are apart."""
    ranked = [(group, group.mean) for group in sweep.groups if group.mean is not None]
    if not ranked:
        return "No job has a value yet."
    (first, top), *others = ranked
    text = f"Best {sweep.metric} {numeral(top, 5)} with {first.name()}"
    if not sweep.repeated:
        return f"{text}, job {first.jobs[0].name}."
    text += f", the mean of {counted(len(first.values), 'job')}"
    if not others:
        return f"{text}."
    second, value = others[0]
    text += f". {second.name()} is {numeral(abs(top - value), 2)} behind"
    if first.deviation is None or second.deviation is None:
        return f"{text}; with so few {sweep.repeated[0]}, that may be chance."
    # The standard error of the difference of two means.
    squares = ((one.deviation or 0.0) ** 2 / len(one.values) for one in (first, second))
    noise = math.sqrt(sum(squares))
    how = "more" if abs(top - value) > 2 * noise else "not more"
    return f"{text}, {how} than twice the standard error of {numeral(noise, 2)}."


def leaderboard(sweep: SweepRecord) -> Section:
    """Settings with their repetitions, and jobs; those without a value last, with the reason."""
    jobs = _job_table(sweep, sorted(sweep.jobs, key=lambda job: sweep.rank(job.value)))
    if not sweep.repeated:
        return Section("Leaderboard", jobs)
    keys = [key for key in sweep.varying if key not in REPEATED]
    over = f"over {' and '.join(sweep.repeated)}"
    # The keys stand beside the place: a phone shows the first columns.
    head = ["place", *keys, f"{sweep.metric}, mean", over, "done", "best", "worst"]
    rows = []
    for rank, group in enumerate(sweep.groups, 1):
        values: list[float | None] = [*sorted(group.values, key=sweep.rank)] or [None]
        numbers = (group.mean, 5), (group.deviation, 3)
        rows.append(
            [
                rank if group.values else "–",
                *(group.settings.get(key, "") for key in keys),
                *(_rounded(value, digits) for value, digits in numbers),
                f"{len(group.values)} of {len(group.jobs)}",
                _rounded(values[0]),
                _rounded(values[-1]),
            ]
        )
    columns = range(1 + len(keys), len(head))
    caption = f"Settings, the best first, with the standard deviation {over}"
    parts = [page.table(caption, head, rows[:_MOST_ROWS], columns)]
    if rows[_MOST_ROWS:]:
        rest = page.table(caption, head, rows[_MOST_ROWS:], columns)
        parts.append(page.folded(f"The other {len(rows) - _MOST_ROWS} settings", rest))
    parts.append(page.folded(f"All {counted(len(sweep.jobs), 'job')}", jobs))
    return Section("Leaderboard", page.together(*parts))


def _job_table(sweep: SweepRecord, jobs: Sequence[SweepJob]) -> Markup:
    others = dict.fromkeys(name for job in sweep.jobs for name in job.metrics)
    metrics = [name for name in others if name != sweep.metric][:_MOST_METRICS]
    head = ["job", sweep.metric, "status", *sweep.varying, *metrics, "what happened"]
    rows = []
    for job in jobs:
        name: object = job.name
        if (job.path / report.NAME).is_file() and job.path.parent == sweep.path:
            name = Markup('<a href="{0}/{1}">{0}</a>').format(page.shown(job.name), report.NAME)
        state = job.status if job.status in (*FINISHED, *UNDONE) else "failed"
        badge = Markup('<span class="state {}">{}</span>').format(state, page.shown(job.status))
        values = [_rounded(job.metrics.get(of), 4) for of in metrics]
        own = [job.settings.get(key, "") for key in sweep.varying]
        trouble = Markup('<span class="long">{}</span>').format(page.shown(job.trouble[:300]))
        rows.append(
            [name, _rounded(job.value), badge, *own, *values, trouble if job.trouble else ""]
        )
    columns = [1, *range(len(sweep.varying) + 3, len(head) - 1)]
    return page.table("The jobs, the best first", head, rows, columns, without_empty=True)


def _rounded(value: float | None, digits: int = 5) -> str:
    """A number of a table; nothing for None."""
    return "" if value is None else numeral(value, digits)


def keys(sweep: SweepRecord) -> Section | None:
    """The metric over each key whose values are numbers, a point for each job that is done."""
    jobs, charts = [job for job in sweep.jobs if job.value is not None], []
    for key in sweep.varying:
        with suppress(ValueError):  # its values are words
            x = [float(job.settings.get(key, "")) for job in jobs]
            if key in REPEATED or len(set(x)) < 2:
                continue
            notes = [f"{key}={job.settings[key]}, job {job.name}" for job in jobs]
            dots = curve(sweep.metric, x, (job.value or 0.0 for job in jobs), notes, line=False)
            log = min(x) > 0 and max(x) >= 10 * min(x)
            charts.append(chart(f"{sweep.metric} by {key}", [dots], x_label=key, logx=log))
    return Section("What matters", page.charts_of(charts[:_MOST_KEYS])) if charts else None


def curves(sweep: SweepRecord) -> Section | None:
    """The metric and the losses of all jobs over each other, the best settings in colour."""
    metric, charts = sweep.metric.removeprefix("val/"), []
    for name in dict.fromkeys((f"val/{metric}", "val/loss", "train/loss")):
        lines: list[dict[str, Any]] = []
        for place, group in enumerate(sweep.groups):
            colored = place < _MOST_COLORED and group.mean is not None
            style = {"color": COLORS[place] if colored else MUTED, "thin": not colored}
            for number, job in enumerate(group.jobs):
                if job.run is not None and len(finite(job.run.metrics, name)) > 1:
                    epochs = job.run.metrics
                    notes = (f"epoch {epoch}" for epoch in epochs["epoch"])
                    label, own = f"{place + 1}. {group.name()}"[:60], epochs["epoch"]
                    named = colored and not number
                    lines.append(
                        curve(label, own, column(epochs, name), notes, named=named, **style)
                    )
        split, _, short = name.partition("/")
        title = f"{'Validation' if split == 'val' else 'Training'} {short}"
        charts.append(chart(title, lines[::-1][-_MOST_LINES:], not charts, x_label="epoch"))
    return Section("Curves", page.charts_of(charts)) if any(charts) else None


def settings(sweep: SweepRecord) -> Section:
    """What all jobs share, and how they were started."""
    first = next((job.run.manifest.get("command") for job in sweep.jobs if job.run), None)
    rows = [pair for pair in sweep.jobs[0].settings.items() if pair[0] not in sweep.varying]
    varying = ", ".join(sweep.varying)
    facts = {"started by": first, "folder": sweep.path, "keys that vary": varying}
    table = page.table("Overrides that all jobs share", ("key", "value"), rows) if rows else None
    return Section("Settings", page.together(table, page.facts(facts)))
