"""The folder of a sweep as a report needs it: its jobs, done or not, and what varies among them.

    multirun/DATE/TIME/0/result.json, manifest.json, metrics.jsonl, ledger.jsonl
                       1/...

Jobs are known by the overrides they were given. The files may come from anybody: what is damaged
becomes the `trouble` of its job. Imports no torch; costs 3 ms a job, and 10 us a line of metrics.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev

from penstock.addons.reports.values import moment
from penstock.addons.sweeps import repetitions, stored_sweep
from penstock.addons.sweeps.job_result import RESULT, JobResult, in_order
from penstock.addons.sweeps.repetitions import REPEATED
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import is_locked
from penstock.runs import manifest
from penstock.runs.measurements import Series, read
from penstock.runs.record import METRICS, RunRecord

FINISHED = ("done", "pruned")
UNDONE = ("failed", "preempted", "interrupted", "killed", "running", "started", "not started")

LONGEST = 1e10  # seconds; 300 years
_NOT_SETTINGS = ("resume", "resume_despite", "run_dir", "hydra", "sweep")
_LONGEST = 120  # characters of a value that are shown


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep.

    Attributes:
        name: of its folder, below the sweep's.
        settings: value by key, of its overrides.
        status: of its result, or "running", "killed", "started" (nothing claimed yet), "not
            started".
        result: None if it has not ended.
        run: None if it has no run's folder.
        epochs: the run's measurements, by epoch.
        trouble: why it failed, or which of its files is damaged; "" if nothing is wrong.
    """

    name: str
    settings: Mapping[str, str]
    status: str
    result: JobResult | None = None
    run: RunRecord | None = None
    epochs: Series = field(default_factory=lambda: Series("epoch"))
    trouble: str = ""

    @property
    def value(self) -> float | None:
        """What the job reached; None unless it is done."""
        value = self.result.value if self.result is not None else None
        return float(value) if value is not None and self.status == "done" else None

    @property
    def seconds(self) -> float:
        """Of wall time, over all starts of the job that have ended; not negative."""
        starts = self.run.sessions if self.run is not None else []
        seconds = 0.0
        for start in starts:
            begin, end = moment(start, "started"), moment(start, "ended")
            seconds += max(0.0, (end - begin).total_seconds()) if begin and end else 0.0
        seconds = max(seconds, self.result.seconds if self.result is not None else 0.0)
        return min(seconds, LONGEST)


@dataclass(frozen=True)
class Repeated:
    """Jobs that differ in their seeds and folds only.

    Attributes:
        settings: of all of them, where they vary in the sweep.
    """

    settings: Mapping[str, str]
    jobs: tuple[SweepJob, ...]

    @property
    def values(self) -> list[float]:
        """What the jobs reached that are done."""
        return [job.value for job in self.jobs if job.value is not None]

    @property
    def mean(self) -> float | None:
        """None if no job is done."""
        return mean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over the jobs; None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def spreads(self) -> dict[str, float]:
        """The standard deviation over the seeds and over the folds, by their keys."""
        done = [(job.settings, job.value) for job in self.jobs if job.value is not None]
        return repetitions.deviations(done)

    def name(self) -> str:
        """Its settings as words of a command line."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items()) or "(defaults)"


@dataclass(frozen=True)
class SweepRecord:
    """A sweep's folder.

    Attributes:
        is_stored: whether it has a sweep.json, so that `resume=<folder>` goes on with it.
        jobs: in the order of their numbers.
    """

    path: Path
    is_stored: bool
    jobs: tuple[SweepJob, ...]

    @classmethod
    def read(cls, path: Path, key: str = "runs") -> SweepRecord:
        """The sweep in `path`.

        Args:
            key: of the configuration that names the folder.

        Raises:
            ConfigError: no job has been planned or begun there, or its sweep.json is damaged.
        """
        stored = stored_sweep.read_sweep(path)
        jobs = {name: _job(path, name) for name in _names(path)}
        for job in stored.jobs if stored is not None else ():
            begun = jobs.get(job.folder)
            if begun is None or not begun.settings:
                status = "not started" if begun is None else begun.status
                jobs[job.folder] = SweepJob(job.folder, _settings(job.overrides), status)
        if not jobs:
            raise ConfigError(
                Problem(key, f"{path} is not a sweep's folder: no job has begun in it")
            )
        names = sorted(jobs, key=lambda name: in_order((name, None)))
        return cls(path, stored is not None, tuple(jobs[name] for name in names))

    @cached_property
    def metric(self) -> str:
        """The name of the value that the jobs are compared by."""
        return next(
            (
                job.result.metric
                for job in self.jobs
                if job.result is not None and job.result.metric
            ),
            "value",
        )

    @cached_property
    def larger_is_better(self) -> bool:
        """Whether the largest value is the best."""
        return any(job.result is not None and job.result.mode == "max" for job in self.jobs)

    @cached_property
    def varying(self) -> list[str]:
        """The keys that have different values, as overrides have them, repeated ones last."""
        return repetitions.varying([job.settings for job in self.jobs])

    @cached_property
    def common(self) -> dict[str, str]:
        """The settings that are the same in all jobs."""
        return {
            key: value for key, value in self.jobs[0].settings.items() if key not in self.varying
        }

    @cached_property
    def repeated(self) -> list[str]:
        """The keys whose values are repetitions, where several jobs have one setting."""
        if len(self.groups) == len(self.jobs):
            return []
        return [key for key in self.varying if key in REPEATED]

    @cached_property
    def groups(self) -> list[Repeated]:
        """The jobs by their settings without seed and fold; the best first, those without last.

        A setting that lacks a fold stands behind those that have all: folds are not equally hard.
        """
        by_folds = "dataset.fold" in self.varying
        keys = [key for key in self.varying if key not in REPEATED]
        by_settings = repetitions.grouped([job.settings for job in self.jobs], keys)
        groups = [
            Repeated(
                {key: value for key, value in zip(keys, values, strict=True) if value is not None},
                tuple(self.jobs[place] for place in places),
            )
            for values, places in by_settings.items()
        ]

        def order(group: Repeated) -> tuple[bool, float]:
            return by_folds and len(group.values) < len(group.jobs), self.rank(group.mean)

        return sorted(groups, key=order)

    @cached_property
    def ranked(self) -> list[SweepJob]:
        """The jobs, best first; those without a value last."""
        return sorted(self.jobs, key=lambda job: self.rank(job.value))

    def rank(self, value: float | None) -> float:
        """A key that sorts values from the best to the worst, and None behind them."""
        if value is None:
            return math.inf
        return -value if self.larger_is_better else value


def is_sweep(path: Path) -> bool:
    """Whether `path` is the folder of a sweep, and not of a run."""
    begun = (path / stored_sweep.NAME).exists() or next(iter(_names(path)), None) is not None
    return begun and not (path / manifest.NAME).exists()


def number(text: str | None) -> float | None:
    """The finite number that a setting is, if it is one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _names(path: Path) -> Iterable[str]:
    """The folders below a sweep's that hold a job."""
    for parent, folders, files in os.walk(path):
        if parent != str(path) and (RESULT in files or manifest.NAME in files):
            folders.clear()
            yield str(Path(parent).relative_to(path))


def _job(sweep: Path, name: str) -> SweepJob:
    folder = sweep / name
    result = run = None
    epochs = Series("epoch")
    troubles = []
    try:
        if (folder / RESULT).exists():
            result = JobResult.read(folder / RESULT)
            troubles += [result.error] if result.error else []
    except ConfigError as error:
        troubles.append(str(error))
    try:
        if (folder / manifest.NAME).exists() and (folder / "config.yaml").exists():
            run = RunRecord.read(folder)
            epochs = read(folder / METRICS, ("epoch",))["epoch"]
    except PenstockError as error:
        troubles.append(str(error))
    overrides = result.overrides if result else run.manifest.get("overrides", []) if run else []
    state = run.state if run is not None else "started"
    if is_locked(folder / stored_sweep.LOCK):
        state = "running"
    status = result.status if result is not None and state != "running" else state
    return SweepJob(name, _settings(overrides), status, result, run, epochs, "; ".join(troubles))


def _settings(overrides: Iterable[str]) -> dict[str, str]:
    settings = {}
    for word in overrides:
        key, _, value = word.partition("=")
        if key.startswith("~"):
            value = "(left out)"
        key = key.lstrip("+~")
        if key.partition(".")[0] not in _NOT_SETTINGS:
            settings[key[:_LONGEST]] = _shortened(value)
    return settings


def _shortened(value: str) -> str:
    """A value as it is shown: equal only to those that are the same from end to end."""
    if len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}... ({hashlib.sha256(value.encode()).hexdigest()[:8]})"
