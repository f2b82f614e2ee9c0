"""Sweeps: every job leaves a result.json in its folder; a table over all of them comes at the end.

Results travel in files, so that they arrive alike from this process, from joblib's and from other
machines. A job that fails is recorded and the others go on; the sweep's exit code is that of the
first job that failed. A job that is asked to stop ends the sweep, unless `sweep.on_preempted` is
continue; a table then says how far it came. The same command with resume=auto and the same
hydra.sweep.dir goes on with it: jobs that are done are passed over.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
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
from pipeline.errors import PREEMPTED, ConfigError
from pipeline.files.disk import write_atomically
from pipeline.runs.manifest import read_manifest
from pipeline.tasks.result import FILE, Result
from pipeline.terminal import console, one_line, put, say

_MOST_PLANNED = 1000  # jobs that are listed before they begin


def run_job(
    folder: Path,
    overrides: Sequence[str],
    accept: Callable[[], Config],
    run: Callable[[Config], float | None],
    report: Callable[[BaseException], int],
) -> float | None:
    """Run one job of a sweep and record how it ended.

    Args:
        folder: of the job.
        overrides: of the job.
        accept: gives the checked configuration, or raises.
        run: the task.
        report: tells a person what went wrong and gives the exit code.

    Returns:
        What the task returned; NaN for a job that failed, which sweepers take as a failed trial.
    """
    overrides = disclosure.words(overrides)
    before = _done_before(folder, overrides)
    if before is not None:
        replace(before, overrides=list(overrides), started=time.time()).write(folder)
        say(f"job {folder.name}: done before{_valued(before)}")
        return before.value
    say(f"job {folder.name}: {' '.join(overrides) or '(defaults)'}")
    started, began = time.time(), time.perf_counter()
    config: Config | None = None
    value: float | None = None
    failure: BaseException | None = None
    code = 0
    try:
        config = accept()
        value = run(config)
    except BaseException as error:
        failure, code = error, report(error)
    interrupted = isinstance(failure, KeyboardInterrupt)
    Result(
        overrides=list(overrides),
        status=_status(failure, code),
        metric=_metric(config),
        mode=_mode(config),
        value=value if value is not None and math.isfinite(value) else None,
        seconds=round(time.perf_counter() - began, 3),
        error=_first_line(failure),
        exit_code=code,
        started=started,
        others=_others(folder, started, _metric(config)),
    ).write(folder)
    if interrupted:
        raise KeyboardInterrupt
    if code == PREEMPTED and config is not None and config.sweep.on_preempted == "stop":
        raise SystemExit(PREEMPTED)
    preemption.forget()  # it was this job's alone
    return math.nan if failure else value


def _done_before(folder: Path, overrides: Sequence[str]) -> Result | None:
    """The result of a job that a sweep with resume=auto need not do again."""
    if "resume=auto" not in overrides or not (folder / FILE).exists():
        return None
    before = Result.read(folder / FILE)
    same = _asked(before.overrides) == _asked(overrides)
    return before if same and before.status == "done" else None


def _asked(overrides: Sequence[str]) -> list[str]:
    return sorted(line for line in overrides if not line.startswith("resume="))


def _valued(result: Result) -> str:
    return "" if result.value is None else f", {result.metric or 'value'} {result.value:.6g}"


def _status(failure: BaseException | None, code: int) -> str:
    if failure is None:
        return "done"
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted"
    return "preempted" if code == PREEMPTED else "failed"


def _metric(config: Config | None) -> str | None:
    if config is None or config.task not in ("fit", "validate"):
        return None
    return config.trainer.monitor or next(iter(config.objective.get("metrics", {})), None)


def _mode(config: Config | None) -> str | None:
    metric = _metric(config)
    if config is None or metric is None:
        return None
    return direction(config, metric.removeprefix("val/")) or config.trainer.mode


def _others(folder: Path, started: float, metric: str | None) -> dict[str, float]:
    """What a run of this job measured besides the metric, from the manifest that it left."""
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
    """A table of all jobs on stdout, and the same as sweep.csv, when a sweep is over."""

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
    """A sweep that has begun and not ended.

    Attributes:
        began: seconds since 1970.
        planned: the overrides of its jobs; empty where only the sweeper will know.
    """

    folder: Path
    began: float
    planned: list[list[str]]

    def jobs(self) -> list[tuple[str, Result]]:
        """Name and state of each job: what it has left, or that it is not begun."""
        known = dict(read_results(self.folder, self.began))
        for number, overrides in enumerate(self.planned):
            if str(number) not in known:
                known[str(number)] = self._without_result(str(number), overrides)
        return sorted(known.items(), key=_in_order)

    def _without_result(self, name: str, overrides: list[str]) -> Result:
        path = self.folder / name / FILE
        if path.exists():  # of the sweep that this one goes on with
            before = _done_before(path.parent, [*overrides, "resume=auto"])
            if before is not None:
                return before
        begun = (self.folder / name / "manifest.json").exists()
        status = "interrupted" if begun else "not begun"
        return Result(overrides, status, None, None, None, 0.0, None, 0, self.began)


_running: list[Running] = []  # in this process; one at most


def _planned(config: DictConfig) -> list[list[str]]:
    """What the basic sweeper makes of the command line: a job for each combination of values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    hydra = OmegaConf.to_container(config.hydra, resolve=False)
    assert isinstance(hydra, dict)
    if hydra["sweeper"].get("_target_") != BASIC_SWEEPER:
        return []
    params = [f"{key}={value}" for key, value in (hydra["sweeper"].get("params") or {}).items()]
    try:
        words = OverridesParser.create().parse_overrides([*params, *hydra["overrides"]["task"]])
        axes = {one.get_key_element(): preflight.values(one) for one in words}
    except HydraException:  # glob() asks for the options of a group
        return []
    jobs = itertools.islice(itertools.product(*axes.values()), _MOST_PLANNED + 1)
    found = [disclosure.words(job) for job in jobs]
    return found if len(found) <= _MOST_PLANNED else []


def say_how_far(words: Sequence[str]) -> None:
    """Print how far a sweep has come that is being left, and the command that goes on with it.

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
    say(f"to go on with the sweep:\n  {disclosure.command([*program.words(), *again])}")


def read_results(folder: Path, since: float = 0.0) -> list[tuple[str, Result]]:
    """Name and result of each job under `folder` that started after `since`, in their order.

    A file that is damaged, or none of ours, is named on stderr and passed over: the others count.
    """
    jobs = []
    for path in folder.rglob(FILE):
        try:
            result = Result.read(path)
        except ConfigError as error:
            say(error)
            continue
        if result.started >= since:
            jobs.append((str(path.parent.relative_to(folder)), result))
    return sorted(jobs, key=_in_order)


def _in_order(job: tuple[str, Result]) -> tuple[int, str]:
    name = job[0]
    return (int(name), "") if name.isdigit() else (-1, name)


def best_of(jobs: Sequence[tuple[str, Result]]) -> str | None:
    """Name of the job with the best value, if any has one."""
    valued = [(result.value, name) for name, result in jobs if result.value is not None]
    if not valued:
        return None
    largest = any(result.mode == "max" for _, result in jobs)
    return (max if largest else min)(valued)[1]


def table(jobs: Sequence[tuple[str, Result]]) -> list[dict[str, str]]:
    """A row per job: what was overridden, how it ended, the metrics and the time."""
    keys = list(dict.fromkeys(_split(line)[0] for _, result in jobs for line in result.overrides))
    metric = next((result.metric for _, result in jobs if result.metric), "value")
    others = dict.fromkeys(name for _, result in jobs for name in result.others)
    rows = []
    for name, result in jobs:
        given = dict(_split(line) for line in result.overrides)
        row = {"job": name} | {key: given.get(key, "") for key in keys}
        row["status"] = result.status
        row[metric] = _number(result.value)
        row |= {key: _number(result.others.get(key), digits=4) for key in others}
        row["seconds"] = f"{result.seconds:.1f}"
        row["error"] = result.error or ""
        rows.append(row)
    return rows


def _number(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _split(line: str) -> tuple[str, str]:
    key, _, value = line.partition("=")
    return key, value


def _write_csv(path: Path, rows: Sequence[dict[str, str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode(errors="backslashreplace"))


def _print(rows: Sequence[dict[str, str]], title: str, best: str | None) -> None:
    from rich import box
    from rich.table import Table

    rows = [{one_line(name): one_line(text) for name, text in row.items()} for row in rows]
    names = list(rows[0])
    alike = {name for name in names[1 : names.index("status") + 1]
             if len(rows) > 1 and len({row[name] for row in rows}) == 1}  # fmt: skip
    columns = [name for name in names if name not in alike and any(row[name] for row in rows)]
    drawn = Table(title=title, title_justify="left", box=box.HORIZONTALS, padding=(0, 1, 0, 0))
    for name in columns:
        width = max(len(row[name]) for row in rows)
        drawn.add_column(name.replace("/", "/\n"), overflow="fold", min_width=min(width, 12))
    for row in rows:
        style = "bold" if row["job"] == best else "red" if row["status"] != "done" else None
        drawn.add_row(*(row[name] for name in columns), style=style)
    # A file or a pipe has no width; rich would take 80 columns and break the headings.
    wide = None if sys.stdout.isatty() else 160
    console(sys.stdout, width=wide).print(drawn)
    if alike:
        put("all:", *(f"{name}={rows[0][name]}" for name in names if name in alike))
