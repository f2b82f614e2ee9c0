"""The result that each job of a sweep leaves in its folder. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass

from penstock.errors import ConfigError, Problem
from penstock.files import data as plain_json
from penstock.files.data import JsonError
from penstock.files.disk import write_atomically
from penstock.runs.manifest import check_overrides
from penstock.terminal import say

RESULT = "result.json"
PRUNING = "pruning"  # the reason in the manifest of a run that was ended as a hopeless trial
FINISHED = ("done", "pruned")  # statuses of jobs that a sweep passes over


def _few(words: list[str]) -> list[str]:
    check_overrides(words)
    return words


Words = Annotated[list[str], AfterValidator(_few)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class JobResult:
    """The result of one job of a sweep."""

    overrides: Words  # as on a command line
    status: str  # "done", "pruned", "failed", "preempted", "interrupted"; in a table "not started"
    metric: str | None  # the name of `value`
    mode: str | None  # "min" or "max" of the metric
    value: float | None  # of the task; None if it failed or measures nothing
    seconds: float  # of wall time
    error: str | None  # its first line
    exit_code: int  # that the job would have as a run of its own
    started: float  # seconds since 1970
    others: dict[str, float] = field(default_factory=dict)  # metrics of the same validation
    cpu_seconds: float | None = None  # of this process and those it started, also of its ranks

    @property
    def settings(self) -> dict[str, str]:
        """The overrides by key."""
        lines = (line.partition("=") for line in self.overrides)
        return {key.lstrip("+"): value for key, _, value in lines}

    def write(self, folder: Path) -> None:
        """Write the result into the job's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RESULT, (json.dumps(asdict(self), indent=2) + "\n").encode())

    def remove(self, folder: Path) -> None:
        """Remove the result from the job's folder: it is to run again."""
        (folder / RESULT).unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> JobResult:
        """The result in a file that `write` made; raises ConfigError if it is damaged."""
        try:
            return plain_json.checked(cls, plain_json.read(path))
        except (OSError, JsonError) as error:
            reason = f"{path} is damaged: {error}. Delete it to run its job again"
            raise ConfigError(Problem("hydra.sweep.dir", reason)) from error


def read_results(folder: Path, since: float = 0.0) -> list[tuple[str, JobResult]]:
    """Name and result of each job under `folder` that started after `since`, in their order.

    A damaged file is reported on stderr and skipped.
    """
    jobs = []
    for path in folder.rglob(RESULT):
        try:
            result = JobResult.read(path)
        except ConfigError as error:
            say(error)
            continue
        if result.started >= since:
            jobs.append((str(path.parent.relative_to(folder)), result))
    return sorted(jobs, key=in_order)


def in_order(job: tuple[str, object]) -> tuple[int, str]:
    """A key that sorts jobs by their numbers."""
    name = job[0]
    return (int(name), "") if name.isdecimal() else (-1, name)


def best_of(jobs: Sequence[tuple[str, JobResult]]) -> str | None:
    """Name of the job with the best value, if any has one."""
    valued = [
        (result.value, name)
        for name, result in jobs
        if result.value is not None and result.status != "pruned"
    ]
    largest = any(result.mode == "max" for _, result in jobs)
    return (max if largest else min)(valued, default=(0.0, None))[1]


REPEATED = {"seed": "seeds", "dataset.fold": "folds"}  # keys whose values are repetitions

Repetition = tuple[Mapping[str, str], float]  # the settings of a job, and what it reached


def deviations(repetitions: Sequence[Repetition]) -> dict[str, float]:
    """By repeated key, the standard deviation over its values of the mean of each."""
    made = {}
    for key in REPEATED:
        by_value: dict[str | None, list[float]] = {}
        for settings, value in repetitions:
            by_value.setdefault(settings.get(key), []).append(value)
        if len(by_value) > 1:
            made[key] = stdev(map(mean, by_value.values()))
    return made


def grouped(
    jobs: Iterable[Mapping[str, str]], keys: Iterable[str]
) -> dict[tuple[str | None, ...], list[int]]:
    """Places of jobs with the same values of `keys` but for repeated ones, by these values."""
    keys = [key for key in keys if key not in REPEATED]
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for place, settings in enumerate(jobs):
        groups.setdefault(tuple(settings.get(key) for key in keys), []).append(place)
    return groups


def varying(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys that have different values, in the order of the overrides; repeated ones last."""
    keys = dict.fromkeys(key for settings in jobs for key in settings)
    several = [key for key in keys if len({settings.get(key) for settings in jobs}) > 1]
    return sorted(several, key=lambda key: key in REPEATED)


def named(settings: Mapping[str, str]) -> str:
    """The repetition that a job is, in words: "seed 3, fold 1"."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {settings[key]}" for key in REPEATED if key in settings
    )
