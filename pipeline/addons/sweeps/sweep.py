"""Sweeps: every job writes a result.json into its folder; a table of all of them ends the sweep.

Results are files, so they also arrive from joblib's processes and other machines. If a job fails or
is asked to stop, `sweep.on_failure` and `sweep.on_preempted` say whether others start; the sweep's
exit code is that of the first job that failed. The same command resumes it: its folder follows from
its overrides, and jobs that are done are passed over (`sweep_grid`).
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from penstock import program
from penstock.addons.sweeps import job_result
from penstock.addons.sweeps.job_result import FINISHED, JobResult, best_of, read_results
from penstock.addons.sweeps.stored_sweep import jobs_of, read_sweep
from penstock.distributed import preemption
from penstock.errors import PenstockError
from penstock.files.disk import check_replaceable, replace_own
from penstock.tasks.summary import new_table, put_table
from penstock.terminal import fitted, one_line, put, say

TABLE, MEANS = "sweep.csv", "means.csv"

_STYLES = {"done": None, "pruned": "dim"}
_MADE = re.compile(rb"job,(?:.*,)?status,")  # how the table begins
_MEANS = re.compile(rb"(?:.*,)?jobs,missing\r?\n")


class SweepTable(Callback):
    """Prints a table of all jobs at the end of a sweep, and writes it as sweep.csv; of settings
    that were repeated another one, means.csv.
    """

    def __init__(self, typed: Sequence[str]) -> None:
        self._typed = typed

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        if "joblib" in str(config.hydra.launcher._target_):
            preemption.keep_from_children()
        sweep = Running(Path(str(config.hydra.sweep.dir)), time.time(), config, self._typed)
        running[:] = [sweep]

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: object) -> None:
        if config.hydra.mode == RunMode.MULTIRUN:
            _make_pages(config, in_between=True)

    def on_multirun_end(self, config: DictConfig, **kwargs: object) -> None:
        sweep = running.pop()
        jobs = sweep.jobs()
        if not jobs:
            return
        try:
            _write_csv(sweep.folder / TABLE, table(jobs), _MADE)
            if rows := means(jobs):
                _write_csv(sweep.folder / MEANS, rows, _MEANS)
        except PenstockError as error:
            say(error)
        sweep.show(jobs)
        mine = sweep.mine or list(dict(jobs))
        code = next(
            (result.exit_code for name, result in jobs if result.exit_code and name in mine), 0
        )
        if any(result.status not in FINISHED for name, result in jobs if name in mine):
            sweep.say_how_to_resume()
        if code:
            raise SystemExit(code)  # hydra would only warn of another exception here


@dataclass
class Running:
    """A sweep in progress.

    Attributes:
        folder: the sweep's.
        began: seconds since 1970.
        config: that its jobs start from.
        typed: the words of the command line, after the program's own.
        mine: the folders of this command's jobs; empty if only the sweeper knows them.
    """

    folder: Path
    began: float
    config: DictConfig
    typed: Sequence[str]
    mine: list[str] = field(default_factory=list)

    def jobs(self) -> list[tuple[str, JobResult]]:
        """Name and result of each job, or its state if it has none yet."""
        stored = read_sweep(self.folder) if self.mine else None
        return jobs_of(self.folder, stored) if stored else read_results(self.folder, self.began)

    def show(self, jobs: Sequence[tuple[str, JobResult]]) -> None:
        """Print the table of all jobs, and the best."""
        done = sum(result.status in FINISHED for _, result in jobs)
        ended = all(result.status in (*FINISHED, "failed") for _, result in jobs)
        many = f"{len(jobs)} jobs in {self.folder}"
        best = best_of(jobs)
        repeated = means(jobs)
        by_folds = bool(repeated) and any("folds" in name for name in repeated[0])
        title = many if ended else f"{done} of {many} are done"
        _print(table(jobs), title, None if by_folds else best)
        if repeated and ended:
            _print(repeated, "what they repeat: the mean, and the standard deviation", None)
        if by_folds:  # the easiest fold is no result
            put(*_best_mean(repeated, any(result.mode == "max" for _, result in jobs)))
        elif best is not None:
            result = dict(jobs)[best]
            put(f"best: {result.metric or 'value'} {result.value:.6g} by job {best}")
        _make_pages(self.config, in_between=False)

    def say_how_to_resume(self) -> None:
        """Print the command that does what is not done."""
        again = [word for word in self.typed if not word.startswith("hydra.sweep.dir=")]
        if len(again) < len(self.typed):
            again.append(program.override("hydra.sweep.dir", self.folder))
        line = program.joined([*program.words(), *again])
        say(f"to resume the sweep, the same command:\n  {line}")


def check_folder(folder: Path) -> None:
    """Raise NotOwnError, before any job runs, where the table would replace a foreign file."""
    check_replaceable(folder / TABLE, _MADE)
    check_replaceable(folder / MEANS, _MEANS)


def _make_pages(config: DictConfig, in_between: bool) -> None:
    from penstock.addons.reports.report import of_sweep

    of_sweep(config, Path(str(config.hydra.sweep.dir)), in_between)


running: list[Running] = []  # the sweep whose own process this is; one at most


def say_how_far() -> None:
    """Print the progress of an interrupted sweep, and the command that resumes it."""
    if not running:
        return
    sweep = running.pop()
    if jobs := sweep.jobs():
        sweep.show(jobs)
        sweep.say_how_to_resume()


def table(jobs: Sequence[tuple[str, JobResult]]) -> list[dict[str, str]]:
    """A row per job: overrides, status, metrics, time and error."""
    overrides_of = {name: result.settings for name, result in jobs}
    keys = dict.fromkeys(key for overrides in overrides_of.values() for key in overrides)
    metric = next((result.metric for _, result in jobs if result.metric), "value")
    others = dict.fromkeys(name for _, result in jobs for name in result.others)
    rows = []
    for name, result in jobs:
        row = {"job": name} | {key: overrides_of[name].get(key, "") for key in keys}
        row["status"] = result.status
        row[metric] = _number(result.value)
        row |= {key: _number(result.others.get(key), digits=4) for key in others}
        row["seconds"] = f"{result.seconds:.1f}"
        row["error"] = result.error or ""
        rows.append(row)
    return rows


def means(jobs: Sequence[tuple[str, JobResult]]) -> list[dict[str, str]]:
    """A row per setting that was repeated with seeds or on folds: what varies, the mean, the
    standard deviation over each, and what is missing. None where nothing was repeated.
    """
    settings = [result.settings for _, result in jobs]
    several = job_result.varying(settings)
    groups = job_result.grouped(settings, several)
    if len(groups) == len(jobs):
        return []
    metric = next((result.metric for _, result in jobs if result.metric), "value")
    repeated = [key for key in several if key in job_result.REPEATED]
    rows = []
    for values, places in groups.items():
        done = [place for place in places if jobs[place][1].value is not None]
        reached = [(settings[place], float(jobs[place][1].value or 0.0)) for place in done]
        over = job_result.deviations(reached)
        row = {key: value or "" for key, value in zip(several, values, strict=False)}
        row[f"{metric}, mean"] = _number(mean(value for _, value in reached) if done else None)
        for key in repeated:
            row[f"over {job_result.REPEATED[key]}"] = _number(over.get(key), 3)
        row["jobs"] = f"{len(done)} of {len(places)}"
        undone = [place for place in places if place not in done]
        row["missing"] = "; ".join(
            f"{job_result.named(settings[place])}: {jobs[place][1].status} (job {jobs[place][0]})"
            for place in undone
        )
        rows.append(row)
    return rows


def _best_mean(rows: Sequence[dict[str, str]], largest: bool) -> list[str]:
    """The setting with the best mean, in words; of those without a gap, if there are any."""
    name = next(name for name in rows[0] if name.endswith(", mean"))
    whole = [row for row in rows if not row["missing"]]
    valued = [row for row in whole or rows if row[name]]
    if not valued:
        return []
    best = (max if largest else min)(valued, key=lambda row: float(row[name]))
    keys = [*best][: [*best].index(name)]
    of = " ".join(f"{key}={best[key]}" for key in keys)
    metric = name.removesuffix(", mean")
    words = [f"best: {metric} {best[name]}, the mean of {best['jobs'].partition(' ')[0]} jobs"]
    return [*words, f"with {of}"] if of else words


def _number(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _write_csv(path: Path, rows: Sequence[dict[str, str]], made: re.Pattern[bytes]) -> None:
    text = io.StringIO(newline="")
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    csv.writer(text).writerows(lines)
    replace_own(path, text.getvalue().encode(errors="backslashreplace"), made)


def _print(rows: Sequence[dict[str, str]], title: str, best: str | None) -> None:
    rows = [{one_line(name): one_line(text) for name, text in row.items()} for row in rows]
    names = list(rows[0])
    alike = {
        name
        for name in names[1 : names.index("status") + 1 if "status" in names else 0]
        if len(rows) > 1 and len({row[name] for row in rows}) == 1
    }
    columns = [name for name in names if name not in alike and any(row[name] for row in rows)]
    drawn = new_table(title)
    for name in columns:
        width = max(len(row[name]) for row in rows)
        drawn.add_column(name.replace("/", "/\n"), overflow="fold", min_width=min(width, 12))
    for row in rows:
        style = _STYLES.get(row.get("status", "done"), "red")
        if best is not None and row.get("job") == best:
            style = "bold"
        drawn.add_row(*(row[name] for name in columns), style=style)
    put_table(drawn)
    if alike:
        shared = " ".join(f"{name}={rows[0][name]}" for name in names if name in alike)
        put(fitted(f"all: {shared}", stream="stdout"))
