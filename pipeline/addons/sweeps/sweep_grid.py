"""The jobs of a grid, run instead of hydra's basic sweeper.

The grid is stored in the sweep's folder (`runs/stored_sweep.py`), so that a job keeps its folder
when the grid changes. Each job locks its folder, and looks there first: several processes may work
on a sweep at once, and each may be killed. Cost of a job that is done: reading its result.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from penstock import program
from penstock.addons.sweeps import grid, stored_sweep, sweep
from penstock.addons.sweeps.grid import Grid
from penstock.addons.sweeps.job_result import FINISHED
from penstock.addons.sweeps.plugins import SWEEPER
from penstock.addons.sweeps.stored_sweep import LOCK, StoredJob, StoredSweep, result_of
from penstock.config import preflight
from penstock.config.composition import Composed, Composer
from penstock.config.hydra_internals import BASIC_LAUNCHER, BASIC_SWEEPER, raw_value
from penstock.errors import PenstockError, Problem
from penstock.files.disk import is_locked, prepare
from penstock.runs.resumption import key_of
from penstock.terminal import say

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


_BY_NUMBER = "${hydra.job.num}"


def undone(asked: Grid) -> Iterator[Sequence[str]]:
    """The jobs of a grid that are not done in its folder.

    Raises:
        ConfigError: the sweep in that folder is another one, or a file of it is damaged.
    """
    folder = Path(asked.folder or "")
    stored = stored_sweep.read_sweep(folder) if asked.folder else None
    if stored is None:
        return asked.jobs()
    command = _command(asked)
    names = stored.find([job.overrides for job in command.jobs], command.keys)
    jobs = zip(asked.jobs(), names, strict=True)
    return (job for job, name in jobs if name is None or not _is_done(folder / name))


def _command(asked: Grid) -> StoredSweep:
    """A grid as it is stored."""
    return StoredSweep(
        keys=[key_of(key) for key in asked.swept],
        jobs=[StoredJob("", list(job)) for job in asked.jobs()],
    )


def run_grid(asked: Grid, launcher: Any, config: DictConfig, context: Any) -> None:
    """Run the jobs of a grid.

    Args:
        launcher, config, context: hydra's; the configuration is what the jobs start from.

    Raises:
        PenstockError: the process of a job died.
    """
    folder = Path(str(config.hydra.sweep.dir))
    prepare(folder)
    sweep.check_folder(folder)
    OmegaConf.save(config, folder / "multirun.yaml")
    ends = {"failed": config.sweep.on_failure, "preempted": config.sweep.on_preempted}
    command = replace(
        _command(asked), ends=[status for status, then in ends.items() if then == "stop"]
    )
    jobs = list(asked.jobs())
    pattern = raw_value(config.hydra.sweep, "subdir")
    naming = (
        None
        if pattern == _BY_NUMBER
        else (lambda at, number: _name(config, context, jobs[at], number))
    )
    stored, names = stored_sweep.extend(folder, command, naming)
    sweep.running[0].mine = names
    lines = dict(zip(names, jobs, strict=True))
    todo = _todo(folder, names, stored)
    if len(todo) < len(names):
        done = sum(_is_done(folder / name) for name in names)
        others = len(names) - done - len(todo)
        say(
            f"{done} of {len(names)} jobs are done in {folder}"
            + (f", {others} run in other processes" if others else "")
            + ("; delete it to run them again" if done == len(names) else "")
        )
    words_of_jobs = [
        [
            *lines[name],
            program.override("hydra.sweep.dir", folder),
            program.override("hydra.sweep.subdir", name),
        ]
        for name in todo
    ]
    try:
        with context_of(launcher):
            _launch(launcher, words_of_jobs, todo, config)
    except BrokenExecutor as error:
        reason = "the process of a job died; maybe the machine was out of memory"
        raise PenstockError(reason) from error


def context_of(launcher: object) -> AbstractContextManager[object]:
    """What Ray needs while this launcher of hydra's runs jobs, if it is the one for Ray."""
    if type(launcher).__module__ != "hydra_plugins.hydra_ray_launcher.ray_launcher":
        return nullcontext()
    from penstock.addons.ray.cluster import for_jobs

    return for_jobs(launcher)


def _launch(
    launcher: Any, jobs: Sequence[Sequence[str]], names: Sequence[str], config: DictConfig
) -> None:
    if f"{type(launcher).__module__}.{type(launcher).__name__}" == BASIC_LAUNCHER:
        # One by one, as a job's number need not be its place among these.
        batches: list[tuple[Sequence[Sequence[str]], int]]
        batches = [
            ([job], int(name) if name.isdecimal() else at)
            for at, (job, name) in enumerate(zip(jobs, names, strict=True))
        ]
    else:
        size = config.hydra.sweeper.get("max_batch_size") or len(jobs)
        batches = [(jobs[at : at + size], at) for at in range(0, len(jobs), size)]
    for batch, number in batches:
        for done in _launched(launcher, batch, number):
            _ = done.return_value  # raises what a job raised: a bug, as jobs report their errors


def _launched(launcher: Any, jobs: Sequence[Sequence[str]], first: int) -> Any:
    """The launcher's returns of its jobs."""
    if "hydra_ray_launcher" not in type(launcher).__module__:
        return launcher.launch(jobs, initial_job_idx=first)
    # Ray loses what a signal's handler raises while the main thread waits in it; so a thread does.
    returned: Future[Any] = Future()

    def launch() -> None:
        try:
            returned.set_result(launcher.launch(jobs, initial_job_idx=first))
        except BaseException as error:
            returned.set_exception(error)

    threading.Thread(target=launch, daemon=True).start()
    return returned.result()


def _todo(folder: Path, names: Sequence[str], stored: StoredSweep) -> list[str]:
    """The jobs to start: not done, not tried since this command began, in no other process."""
    results = {name: result_of(folder / name) for name in names}
    since = {name for name, result in results.items() if result and result.started >= stored.began}
    if any(results[name].status in stored.ends for name in since):  # type: ignore[union-attr]
        return []
    return [
        name
        for name in names
        if name not in since and not _is_done(folder / name) and not is_locked(folder / name / LOCK)
    ]


def _is_done(folder: Path) -> bool:
    result = result_of(folder)
    return result is not None and result.status in FINISHED


def _name(config: DictConfig, context: Any, job: Sequence[str], number: int) -> str:
    """The folder of a job by `hydra.sweep.subdir`."""
    made = context.config_loader.load_sweep_config(config, list(job))
    with open_dict(made):
        made.hydra.job.num, made.hydra.job.id = number, str(number)
    state = HydraConfig.instance()
    kept = state.cfg
    state.set_config(made)
    try:
        return str(made.hydra.sweep.subdir)
    finally:
        state.cfg = kept


MOST_JOBS = 200  # of a sweep are looked at beforehand; every job is looked at when it starts


def check(
    composer: Composer,
    overrides: Sequence[Override],
    base: Composed,
    announce: Callable[[str], None],
) -> list[Problem]:
    """The problems of a sweep's jobs; `composer.sweep` is the `Grid` afterwards, if it is one.

    Our sweeper that chooses values as it goes is checked with each value of a choice and the ends
    of each range; one of a plugin with the values that are fixed. Jobs are checked as they come.

    Args:
        base: the configuration with the values that are fixed.
        announce: gets a line that says what the sweep will do.
    """
    problems = preflight.hydra_problems(base)
    sweeper = base.hydra.get("sweeper", {})
    chooses = sweeper.get("_target_") == SWEEPER
    if problems or not base.complete or not (chooses or sweeper["_target_"] == BASIC_SWEEPER):
        return preflight.check_job(base)[1]
    params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    more, problems = composer.parse(params)
    hydras = [override for override in overrides if override.is_hydra_override()]
    # The command line comes last and wins, as in the sweeper itself.
    swept = [*more, *(override for override in overrides if not override.is_hydra_override())]
    folder = OmegaConf.select(base.node, "sweep.dir", throw_on_resolution_failure=False)
    lines = grid.bounds if chooses else grid.values
    asked, of_grid = grid.of(swept, folder and str(folder), lines)
    problems += of_grid
    over = [str(override.input_line) for override in swept if override.is_sweep_override()]
    if chooses:
        options = base.config.get("sweep", {}).get("optuna")
        if not problems and options:
            announce(of_study(over, options.get("trials")))
        jobs = [] if of_grid else list(_each(asked.axes))
    else:
        composer.sweep = asked
        if not problems:
            announce(of_sweep(over, list(map(len, asked.axes.values()))))
        jobs = [] if of_grid else list(_jobs(composer, asked))
    seen: dict[Problem, list[Sequence[str]]] = {}
    for job in jobs:
        chosen, _ = composer.parse(job)
        job_problems = preflight.check_job(composer.compose([*hydras, *chosen]))[1]
        for problem in dict.fromkeys(job_problems):
            seen.setdefault(problem, []).append(job)
    for problem, where in seen.items():
        if len(where) < len(jobs):
            axes = zip(where[0], asked.axes.values(), strict=True)
            varied = " ".join(line for line, values in axes if len(values) > 1)
            problem = Problem(problem.key, f"{problem.message} (in the job {varied})")
        problems.append(problem)
    return problems


def _jobs(composer: Composer, asked: Grid) -> Iterator[Sequence[str]]:
    """The first jobs to do, and one for each choice of a group that none of those has.

    A group may bring what hydra acts on; a single value cannot, since hydra's own section holds no
    interpolations. The others find contradictions of several choices when they start.
    """
    first = list(itertools.islice(undone(asked), MOST_JOBS))
    yield from first
    if len(first) < MOST_JOBS:
        return
    axes = list(asked.axes.values())
    for axis, lines in enumerate(axes):
        seen = {job[axis] for job in first}
        for line in lines:
            if line not in seen and composer.chooses(line):
                yield tuple(line if i == axis else other[0] for i, other in enumerate(axes))


def _each(axes: Mapping[str, Sequence[str]]) -> Iterator[Sequence[str]]:
    """The first job, and for each further value of a key the same with that."""
    lines = list(axes.values())
    yield tuple(values[0] for values in lines)
    for axis, several in enumerate(lines):
        for line in several[1:MOST_JOBS]:
            yield tuple(line if i == axis else other[0] for i, other in enumerate(lines))


def of_sweep(lines: Sequence[str], sizes: Sequence[int]) -> str:
    """One line on what a sweep will do.

    Args:
        lines: the overrides that it goes over, with all their values.
        sizes: how many values each has.
    """
    jobs = prod(sizes)
    over = f" over {' '.join(lines)}" if lines else ""
    return f"a sweep of {jobs} {'job' if jobs == 1 else 'jobs'}{over}; all are checked first"


def of_study(lines: Sequence[str], trials: int) -> str:
    """One line on what a study of optuna's will do; arguments as for `of_sweep`."""
    over = " ".join(lines)
    return f"a study of {trials} {'trial' if trials == 1 else 'trials'} over {over}"
