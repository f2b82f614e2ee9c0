"""Sweeps: every job writes a result.json into its folder; a table of all of them ends the sweep.

Results are files, so they also arrive from joblib's processes and other machines. If a job fails,
the others still run; the sweep's exit code is that of the first job that failed. A job that is
asked to stop ends the sweep with a table, unless `sweep.on_preempted` is continue. The same command
with resume=auto and the same hydra.sweep.dir resumes it, and skips jobs that are done.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from pipeline import program
from pipeline.config import disclosure, environment, preflight
from pipeline.config.hydra_internals import BASIC_SWEEPER
from pipeline.config.nodes import direction
from pipeline.config.schema import Config
from pipeline.distributed import preemption
from pipeline.errors import PREEMPTED
from pipeline.files.disk import write_atomically
from pipeline.runs.job_result import PRUNING, RESULT, JobResult, best_of, in_order, read_results
from pipeline.runs.manifest import read_manifest
from pipeline.tasks.tables import new_table, put_table
from pipeline.terminal import one_line, put, say

_STYLES = {"done": None, "pruned": "dim"}
_MOST_PLANNED = 1000  # jobs that are listed before they start


def run_job(
    folder: Path, overrides: Sequence[str], accept: Callable[[], Config],
    run: Callable[[Config], float | None], report: Callable[[BaseException], int],
) -> float | None:  # fmt: skip
    """Run one job of a sweep and write its result.

    Args:
        folder, overrides: of the job.
        accept: returns the checked configuration, or raises.
        run: the task.
        report: prints an error and returns the exit code.

    Returns:
        The value of the task; NaN for a job that failed, which sweepers take as a failed trial.
    """
    overrides = disclosure.words(overrides)
    before = _done_before(folder, overrides)
    if before is not None:
        replace(before, overrides=list(overrides), started=time.time()).write(folder)
        shown = "" if before.value is None else f", {before.metric or 'value'} {before.value:.6g}"
        say(f"job {folder.name}: done before{shown}")
        return before.value
    say(f"job {folder.name}: {' '.join(overrides) or '(defaults)'}")
    started, began = time.time(), time.perf_counter()
    config: Config | None = None
    value: float | None = None
    failure: BaseException | None = None
    status, code = "done", 0
    try:
        config = accept()
        value = run(config)
    except BaseException as error:
        failure, code = error, report(error)
        status = "preempted" if code == PREEMPTED else "failed"
        if isinstance(error, KeyboardInterrupt):
            status = "interrupted"
    if status == "done" and _was_pruned(folder, started):
        status = "pruned"
    metric, mode = metric_of(config)
    JobResult(
        overrides=list(overrides),
        status=status,
        metric=metric,
        mode=mode,
        value=value if value is not None and math.isfinite(value) else None,
        seconds=round(time.perf_counter() - began, 3),
        error=_first_line(failure),
        exit_code=code,
        started=started,
        others=_others(folder, started, metric),
    ).write(folder)
    if isinstance(failure, KeyboardInterrupt):
        raise KeyboardInterrupt
    if code == PREEMPTED and config is not None and config.sweep.on_preempted == "stop":
        raise SystemExit(PREEMPTED)
    preemption.forget()  # the request was for this job only
    return math.nan if failure else value


def _done_before(folder: Path, overrides: Sequence[str]) -> JobResult | None:
    """The result of a job that a sweep with resume=auto can skip."""
    if "resume=auto" not in overrides or not (folder / RESULT).exists():
        return None
    before = JobResult.read(folder / RESULT)
    then, now = (sorted(line for line in words if not line.startswith("resume="))
                 for words in (before.overrides, overrides))  # fmt: skip
    return before if then == now and before.status in ("done", "pruned") else None


def metric_of(config: Config | None) -> tuple[str | None, str | None]:
    """The name and the mode of a job's value."""
    if config is None or config.task not in ("fit", "validate"):
        return None, None
    name = config.trainer.monitor or next(iter(config.objective.get("metrics", {})), None)
    if name is None:
        return None, None
    return name, direction(config, name.removeprefix("val/")) or config.trainer.mode


def _was_pruned(folder: Path, started: float) -> bool:
    """Whether this job's run was ended as a trial that fell behind, from its manifest."""
    path = folder / "manifest.json"
    fresh = path.exists() and path.stat().st_mtime >= started
    return fresh and read_manifest(folder, "hydra.sweep.dir").get("reason") == PRUNING


def _others(folder: Path, started: float, metric: str | None) -> dict[str, float]:
    """The other metrics of this job's run, from its manifest."""
    path = folder / "manifest.json"
    if metric is None or not path.exists() or path.stat().st_mtime < started:
        return {}
    best = read_manifest(folder, "hydra.sweep.dir").get("best") or {}
    names = {key: key.removeprefix("val/") for key in best if key.startswith("val/")}
    return {name: best[key] for key, name in names.items() if name != metric.removeprefix("val/")}


def _first_line(error: BaseException | None) -> str | None:
    if error is None:
        return None
    first = (str(error) or type(error).__name__).splitlines()[0]
    return disclosure.urls(environment.unresolved(first))


class SweepTable(Callback):
    """Prints a table of all jobs at the end of a sweep, and writes it as sweep.csv."""

    def __init__(self) -> None:
        self._began = time.time()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._began = time.time()
        if "joblib" in str(config.hydra.launcher._target_):
            preemption.keep_from_children()
        _running[:] = [Running(Path(str(config.hydra.sweep.dir)), self._began, _planned(config))]

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        _running.clear()
        folder = Path(str(config.hydra.sweep.dir))
        jobs = read_results(folder, self._began)
        if not jobs:
            return
        rows = table(jobs)
        _write_csv(folder / "sweep.csv", rows)
        best = best_of(jobs)
        _print(rows, f"{len(jobs)} jobs in {folder}", best)
        if best is not None:
            result = dict(jobs)[best]
            put(f"best: {result.metric or 'value'} {result.value:.6g} by job {best}")
        code = next((result.exit_code for _, result in jobs if result.exit_code), 0)
        if code:
            raise SystemExit(code)  # hydra would only warn of another exception here


@dataclass(frozen=True)
class Running:
    """A sweep in progress."""

    folder: Path
    began: float  # seconds since 1970
    planned: list[list[str]]  # the overrides of its jobs; empty if only the sweeper knows them

    def jobs(self) -> list[tuple[str, JobResult]]:
        """Name and result of each job, or its state if it has none yet."""
        known = dict(read_results(self.folder, self.began))
        for number, overrides in enumerate(self.planned):
            if str(number) in known:
                continue
            folder = self.folder / str(number)
            result = _done_before(folder, [*overrides, "resume=auto"])
            if result is None:  # not even in the sweep that this one resumes
                started = (folder / "manifest.json").exists()
                status = "interrupted" if started else "not started"
                result = JobResult(overrides, status, None, None, None, 0.0, None, 0, self.began)
            known[str(number)] = result
        return sorted(known.items(), key=in_order)


_running: list[Running] = []  # in this process; one at most


def _planned(config: DictConfig) -> list[list[str]]:
    """The jobs of the basic sweeper: one for each combination of values of the command line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    hydra = OmegaConf.to_container(config.hydra, resolve=False)
    assert isinstance(hydra, dict)
    if hydra["sweeper"].get("_target_") != BASIC_SWEEPER:
        return []
    params = [f"{key}={value}" for key, value in (hydra["sweeper"].get("params") or {}).items()]
    try:
        words = OverridesParser.create().parse_overrides([*params, *hydra["overrides"]["task"]])
        axes = {one.get_key_element(): preflight.values(one) for one in words}
    except HydraException:  # glob() needs the options of a group
        return []
    jobs = itertools.islice(itertools.product(*axes.values()), _MOST_PLANNED + 1)
    found = [disclosure.words(job) for job in jobs]
    return found if len(found) <= _MOST_PLANNED else []


def say_how_far(words: Sequence[str]) -> None:
    """Print the progress of an interrupted sweep, and the command that resumes it.

    Args:
        words: of this command line, after the program's own.
    """
    if not _running:
        return
    running = _running.pop()
    jobs = running.jobs()
    if not jobs:
        return
    done = sum(result.status == "done" for _, result in jobs)
    _print(table(jobs), f"{done} of {len(jobs)} jobs in {running.folder} are done", best_of(jobs))
    own = [word for word in words if not word.startswith(("resume=", "hydra.sweep.dir="))]
    again = [*own, f"hydra.sweep.dir={running.folder}", "resume=auto"]
    say(f"to resume the sweep:\n  {disclosure.command([*program.words(), *again])}")


def table(jobs: Sequence[tuple[str, JobResult]]) -> list[dict[str, str]]:
    """A row per job: overrides, status, metrics, time and error."""
    given = {name: {key: value for key, _, value in (line.partition("=") for line in one.overrides)}
             for name, one in jobs}  # fmt: skip
    keys = dict.fromkeys(key for overrides in given.values() for key in overrides)
    metric = next((result.metric for _, result in jobs if result.metric), "value")
    others = dict.fromkeys(name for _, result in jobs for name in result.others)
    rows = []
    for name, result in jobs:
        row = {"job": name} | {key: given[name].get(key, "") for key in keys}
        row["status"] = result.status
        row[metric] = _number(result.value)
        row |= {key: _number(result.others.get(key), digits=4) for key in others}
        row["seconds"] = f"{result.seconds:.1f}"
        row["error"] = result.error or ""
        rows.append(row)
    return rows


def _number(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _write_csv(path: Path, rows: Sequence[dict[str, str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))


def _print(rows: Sequence[dict[str, str]], title: str, best: str | None) -> None:
    rows = [{one_line(name): one_line(text) for name, text in row.items()} for row in rows]
    names = list(rows[0])
    alike = {name for name in names[1 : names.index("status") + 1]
             if len(rows) > 1 and len({row[name] for row in rows}) == 1}  # fmt: skip
    columns = [name for name in names if name not in alike and any(row[name] for row in rows)]
    drawn = new_table(title)
    for name in columns:
        width = max(len(row[name]) for row in rows)
        drawn.add_column(name.replace("/", "/\n"), overflow="fold", min_width=min(width, 12))
    for row in rows:
        style = "bold" if row["job"] == best else _STYLES.get(row["status"], "red")
        drawn.add_row(*(row[name] for name in columns), style=style)
    put_table(drawn)
    if alike:
        put("all:", *(f"{name}={rows[0][name]}" for name in names if name in alike))
