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

from markupsafe import Markup

from penstock.addons.reports import page, report
from penstock.addons.reports.charts import COLORS, MUTED, Curve, chart
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import column, counted, finite, moment, numeral
from penstock.addons.sweeps.sweep import FINISHED, REPEATED, Job, jobs_of
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.runs.folder import MANIFEST
from penstock.runs.run import Run

UNDONE = ("failed", "preempted", "interrupted", "killed", "running")

_MOST_ROWS = 20  # that are not folded
_MOST_METRICS = 5  # columns beside the metric
_MOST_KEYS = 8  # charts of keys
_MOST_COLORED = 6  # groups
_MOST_LINES = 200  # jobs in a chart of curves


class SweepJob(Job):
    """A job of a sweep, with what its run has measured."""

    @cached_property
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

    @property
    def seconds(self) -> float:
        """Of wall time, over all starts of the job that have ended."""
        times = [
            (moment(start, "started"), moment(start, "ended"))
            for start in (self.run.sessions if self.run is not None else [])
        ]
        return sum((ended - began).total_seconds() for began, ended in times if began and ended)


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

    def deviation(self, key: str) -> float | None:
        """The standard deviation over the values of a key, of the mean of each."""
        by_value: dict[str | None, list[float]] = {}
        for job in self.jobs:
            if job.value is not None:
                by_value.setdefault(job.settings.get(key), []).append(job.value)
        return stdev(map(mean, by_value.values())) if len(by_value) > 1 else None

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
        keys = {key: None for key in self.varying if key not in REPEATED}
        groups: dict[tuple[str | None, ...], list[SweepJob]] = {}
        for job in self.jobs:
            groups.setdefault(tuple(job.settings.get(key) for key in keys), []).append(job)
        by_folds = any(key.endswith(".fold") for key in self.varying)  # not equally hard
        self.groups = sorted(
            (
                Repeated(
                    {key: jobs[0].settings[key] for key in keys if key in jobs[0].settings},
                    tuple(jobs),
                )
                for jobs in groups.values()
            ),
            key=lambda group: (
                by_folds and len(group.values) < len(group.jobs),
                self.rank(group.mean),
            ),
        )
        is_repeated = len(self.groups) < len(self.jobs)
        self.repeated = [key for key in self.varying if is_repeated and key in REPEATED]

    def rank(self, value: float | None) -> float:
        """A key that sorts values from the best to the worst, and None behind them."""
        if value is None:
            return math.inf
        return -value if self.larger_is_better else value


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
    return page.write(folder / report.NAME, make(SweepRecord(folder, key)))


def make(sweep: SweepRecord) -> str:
    """The report of a sweep as HTML."""
    makes = (leaderboard, keys, curves, settings)
    parts = [section for make in makes if (section := report.part_of(make, sweep))]
    foot = f"Made from the files in {sweep.path}; task=report makes it again."
    return page.render(f"Sweep {sweep.path.name}", "a sweep", _lead(sweep), parts, foot)


def _lead(sweep: SweepRecord) -> Markup:
    """How far it came, what was best, and the command that goes on with it."""
    states = (*FINISHED, *UNDONE)
    count = {state: sum(job.status == state for job in sweep.jobs) for state in states}
    undone = [f"{number} {state}" for state, number in count.items() if number and state != "done"]
    whole = sum(count[state] for state in FINISHED) == len(sweep.jobs)
    state = "running" if count["running"] else "done" if whole else "failed"
    word = "unfinished" if state == "failed" else state
    jobs = f"{count['done']} of {len(sweep.jobs)} jobs are done; {', '.join(undone)}"
    if count["done"] == len(sweep.jobs):
        jobs = (
            f"All {counted(len(sweep.jobs), 'job')} are done"
            if count["done"] > 1
            else "The job is done"
        )
    line = Markup('<p class="verdict"><span class="state {}">{}</span> {}. {}</p>').format(
        state, word, jobs, _best(sweep)
    )
    if not any(job.status in UNDONE and job.status != "running" for job in sweep.jobs):
        return line
    text = "The sweep's command runs what is missing."
    return page.together(line, page.paragraph(text))


def _best(sweep: SweepRecord) -> str:
    """The best group, and whether it is further ahead than its repetitions are apart."""
    ranked = [(group, group.mean) for group in sweep.groups if group.mean is not None]
    if not ranked:
        return "No job has a value yet."
    (first, top), *others = ranked
    text = f"Best {sweep.metric} {numeral(top, 5)}"
    if not sweep.repeated:
        return f"{text} by job {first.jobs[0].name}: {first.name()}."
    text += f" with {first.name()}" if first.settings else ""
    what = _repetitions(sweep)
    text += f", the mean of {counted(len(first.values), what.removesuffix('s'))}"
    if not others:
        spread = stdev(first.values) if len(first.values) > 1 else None
        deviation = "" if spread is None else f", whose standard deviation is {numeral(spread, 2)}"
        return f"{text}{deviation}."
    second, value = others[0]
    ahead = abs(top - value)
    if not ahead:
        return f"{text}. {second.name()} is as good."
    text += f". {second.name()} is {numeral(ahead, 2)} behind"
    if min(len(first.values), len(second.values)) < 2:
        return f"{text}; with so few {what}, that may be chance."
    # The standard error of the difference of two means.
    noise = math.sqrt(sum(stdev(one.values) ** 2 / len(one.values) for one in (first, second)))
    how = "more" if ahead > 2 * noise else "not more"
    return f"{text}, {how} than twice the standard error of {numeral(noise, 2)} over the {what}."


def _repetitions(sweep: SweepRecord) -> str:
    """What settings are repeated by: "seeds", "folds"; "jobs" where it is both."""
    return REPEATED[sweep.repeated[0]] if len(sweep.repeated) == 1 else "jobs"


def leaderboard(sweep: SweepRecord) -> Section:
    """Settings with their repetitions, or jobs; those without a value last, with the reason."""
    ranked = sorted(sweep.jobs, key=lambda job: sweep.rank(job.value))
    if not sweep.repeated:
        return Section("Leaderboard", _job_table(sweep, "The jobs, the best first", ranked))
    keys = [key for key in sweep.varying if key not in REPEATED]
    over = [f"over {REPEATED[key]}" for key in sweep.repeated]
    # The keys stand beside the place: a phone shows the first columns.
    head = ["place", *keys, f"{sweep.metric}, mean", *over, _repetitions(sweep), "best", "worst"]
    rows = []
    for rank, group in enumerate(sweep.groups, 1):
        values: list[float | None] = [*sorted(group.values, key=sweep.rank)] or [None]
        rows.append(
            [
                rank if group.values else "–",
                *(group.settings.get(key, "") for key in keys),
                _rounded(group.mean),
                *(_rounded(group.deviation(key), 3) for key in sweep.repeated),
                f"{len(group.values)} of {len(group.jobs)}",
                _rounded(values[0]),
                _rounded(values[-1]),
            ]
        )
    numbers = range(1 + len(keys), len(head))
    caption = f"Settings, the best first, with the standard deviation {' and '.join(over)}"
    parts = [page.table(caption, head, rows[:_MOST_ROWS], numbers)]
    if rows[_MOST_ROWS:]:
        title = f"The other {counted(len(rows) - _MOST_ROWS, 'setting')}"
        parts.append(page.folded(title, page.table(title, head, rows[_MOST_ROWS:], numbers)))
    undone = [job for job in sweep.jobs if job.value is None]
    parts += [_job_table(sweep, "Jobs without a value", undone)] if undone else []
    every = _job_table(sweep, "Every job", ranked)
    parts.append(page.folded(f"All {counted(len(sweep.jobs), 'job')}", every))
    return Section("Leaderboard", page.together(*parts))


def _job_table(sweep: SweepRecord, caption: str, jobs: Sequence[SweepJob]) -> Markup:
    others = dict.fromkeys(name for job in sweep.jobs for name in job.metrics)
    metrics = [name for name in others if name != sweep.metric][:_MOST_METRICS]
    head = ["job", sweep.metric, "status", *sweep.varying, *metrics, "seconds", "what happened"]
    rows = []
    for job in jobs:
        own = job.metrics if job.value is not None else {}
        rows.append(
            [
                _link(sweep, job),
                _rounded(job.value) if job.value is not None else _so_far(sweep, job),
                _state(job),
                *(job.settings.get(key, "") for key in sweep.varying),
                *(_rounded(own.get(name), 4) for name in metrics),
                f"{job.seconds:.1f}",
                Markup('<span class="long">{}</span>').format(page.shown(job.trouble[:300]))
                if job.trouble
                else "",
            ]
        )
    numbers = [1, *range(len(sweep.varying) + 3, len(head) - 1)]
    return page.table(caption, head, rows, numbers, without_empty=True)


def _rounded(value: float | None, digits: int = 5) -> str:
    """A number of a table; nothing for None."""
    return "" if value is None else numeral(value, digits)


def _link(sweep: SweepRecord, job: SweepJob) -> object:
    """The job's name; a link to its report if it has one, which only works beside this page."""
    if not (sweep.path / job.name / report.NAME).is_file() or not job.name.isalnum():
        return job.name
    return Markup('<a href="{0}/{1}">{0}</a>').format(job.name, report.NAME)


def _state(job: SweepJob) -> Markup:
    state = job.status if job.status in (*FINISHED, *UNDONE) else "failed"
    return Markup('<span class="state {}">{}</span>').format(state.replace(" ", "-"), job.status)


def _so_far(sweep: SweepRecord, job: SweepJob) -> str:
    """The best value of a job that has not ended, or failed."""
    name = f"val/{sweep.metric.removeprefix('val/')}"
    if job.run is None or not len(measured := finite(job.run.metrics, name)):
        return ""
    values = column(job.run.metrics, name)[measured]
    best = int(values.argmax() if sweep.larger_is_better else values.argmin())
    epoch = column(job.run.metrics, "epoch")[measured[best]]
    return f"{numeral(float(values[best]), 5)} in epoch {epoch}"


def keys(sweep: SweepRecord) -> Section | None:
    """The metric over each key whose values are numbers, a point for each job that is done."""
    jobs = [job for job in sweep.jobs if job.value is not None]
    charts = []
    for key in sweep.varying:
        x = [_number(job.settings.get(key)) for job in jobs]
        if key in REPEATED or None in x or len(set(x)) < 2:
            continue
        points = sorted(zip(x, jobs, strict=True), key=lambda pair: pair[0] or 0.0)
        places = [place or 0.0 for place, _ in points]
        values = [job.value or 0.0 for _, job in points]
        notes = [f"{key}={job.settings[key]}, job {job.name}" for _, job in points]
        log = min(places) > 0 and max(places) >= 10 * min(places)
        dots = Curve(sweep.metric, places, values, notes, COLORS[0], line=False)
        charts.append(chart(f"{sweep.metric} by {key}", [dots], x_label=key, logx=log))
    return Section("What matters", page.charts_of(charts[:_MOST_KEYS])) if charts else None


def _number(text: str | None) -> float | None:
    """The finite number that a setting is, if it is one."""
    with suppress(ValueError):
        return value if math.isfinite(value := float(text or "")) else None
    return None


def curves(sweep: SweepRecord) -> Section | None:
    """The metric and the losses of all jobs over each other, the best settings in colour."""
    metric = sweep.metric.removeprefix("val/")
    names = dict.fromkeys((f"val/{metric}", "val/loss", "train/loss"))
    charts = [_over_each_other(sweep, name, wide=not place) for place, name in enumerate(names)]
    charts = [drawn for drawn in charts if drawn]
    return Section("Curves", page.charts_of(charts)) if charts else None


def _over_each_other(sweep: SweepRecord, name: str, wide: bool) -> Markup:
    """A measurement over the epochs, of all jobs; nothing where no job has several."""
    groups = sweep.groups
    if len(groups) == 1 and sweep.repeated:  # each repetition has a name of its own
        jobs = sorted(sweep.jobs, key=lambda job: sweep.rank(job.value))
        groups = [
            Repeated({k: job.settings.get(k, "") for k in sweep.repeated}, (job,)) for job in jobs
        ]
    named, others = [], []
    for place, group in enumerate(groups):
        colored = place < _MOST_COLORED and group.mean is not None
        color = COLORS[place] if colored else MUTED
        lines = [line for job in group.jobs if (line := _curve(job, name, color))]
        if colored and lines:
            label = f"{place + 1}. {group.name()}"
            named.append(_mean(lines, label if len(label) < 60 else f"{label[:59]}…", color))
        others += lines if not colored or len(lines) > 1 else []
    split, _, short = name.partition("/")
    title = f"{'Validation' if split == 'val' else 'Training'} {short}"
    return chart(title, [*others[:_MOST_LINES], *named], x_label="epoch", wide=wide, most=100)


def _curve(job: SweepJob, name: str, color: str) -> Curve | None:
    if job.run is None or len(places := finite(job.run.metrics, name)) < 2:
        return None
    x, y = (column(job.run.metrics, of)[places].tolist() for of in ("epoch", name))
    return Curve(job.name, x, y, color=color, thin=True, named=False)


def _mean(lines: Sequence[Curve], label: str, color: str) -> Curve:
    """The mean of curves, where all of them have a value."""
    at: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            at.setdefault(x, []).append(y)
    kept = sorted((x, mean(ys)) for x, ys in at.items() if len(ys) == len(lines))
    notes = [
        f"epoch {x:.0f}" + (f", mean of {len(lines)}" if len(lines) > 1 else "") for x, _ in kept
    ]
    return Curve(label, [x for x, _ in kept], [y for _, y in kept], notes, color)


def settings(sweep: SweepRecord) -> Section:
    """What all jobs share, and how they were started."""
    first = next((job.run.manifest.get("command") for job in sweep.jobs if job.run), None)
    common = sweep.jobs[0].settings
    rows = [(key, value) for key, value in common.items() if key not in sweep.varying]
    varying = ", ".join(sweep.varying)
    facts = {"started by": first, "folder": sweep.path, "keys that vary": varying}
    table = page.table("Overrides that all jobs share", ("key", "value"), rows) if rows else None
    return Section("Settings", page.together(table, page.facts(facts)))
