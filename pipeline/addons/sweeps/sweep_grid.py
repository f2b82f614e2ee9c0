"""The jobs of a grid, run instead of hydra's basic sweeper.

The grid is stored in the sweep's folder (`runs/stored_sweep.py`), so that a job keeps its folder
when the grid changes. Each job locks its folder, and looks there first: several processes may work
on a sweep at once, and each may be killed. Cost of a job that is done: reading its result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from penstock import program
from penstock.addons.sweeps import stored_sweep, sweep
from penstock.addons.sweeps.grid import Grid
from penstock.addons.sweeps.job_result import FINISHED
from penstock.addons.sweeps.stored_sweep import LOCK, StoredJob, StoredSweep, result_of
from penstock.config.hydra_internals import BASIC_LAUNCHER, raw_value
from penstock.config.own_options import environment_with
from penstock.config.preflight import raise_if
from penstock.distributed import preemption, world
from penstock.errors import PenstockError
from penstock.files.disk import is_locked
from penstock.loading.memory import available
from penstock.runs.resumption import key_of
from penstock.terminal import say

_BY_NUMBER = "${hydra.job.num}"
_MEMORY = 2 << 30  # bytes that are there for each job if sweep.jobs is auto


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
    raise_if(stored_sweep.incompatible(stored, command.fixed or [], command.keys, folder))
    names = stored.find([job.overrides for job in command.jobs], command.keys)
    jobs = zip(asked.jobs(), names, strict=True)
    return (job for job, name in jobs if name is None or not _is_done(folder / name))


def _command(asked: Grid) -> StoredSweep:
    """A grid as it is stored."""
    return StoredSweep(
        fixed=list(asked.fixed),
        keys=[key_of(key) for key in asked.swept],
        jobs=[StoredJob("", list(job)) for job in asked.jobs()],
    )


def run_grid(
    asked: Grid,
    words: Sequence[str],
    typed: Sequence[str],
    launcher: Any,
    config: DictConfig,
    context: Any,
) -> None:
    """Run the jobs of a grid.

    Args:
        words: overrides of the command line, with those of a sweep that it resumes.
        typed: the command line itself.
        launcher, config, context: hydra's; the configuration is what the jobs start from.

    Raises:
        PenstockError: processes of jobs died more often than `sweep.retries`.
    """
    folder = Path(str(config.hydra.sweep.dir))
    folder.mkdir(parents=True, exist_ok=True)
    sweep.check_folder(folder)
    OmegaConf.save(config, folder / "multirun.yaml")
    options = config.sweep
    ends = {"failed": options.on_failure, "preempted": options.on_preempted}
    at_once = at_once_of(options.jobs, len(asked), str(config.trainer.device))
    command = replace(
        _command(asked),
        words=[word for word in words if not word.startswith(("resume=", "hydra.sweep.dir="))],
        ends=[status for status, then in ends.items() if then == "stop"],
        threads=threads_of(at_once),
    )
    jobs = list(asked.jobs())
    pattern = raw_value(config.hydra.sweep, "subdir")
    naming = (
        None
        if pattern == _BY_NUMBER
        else (lambda at, number: _name(config, context, jobs[at], number))
    )
    stored, names = stored_sweep.extend(folder, command, naming)
    sweep.running[0].mine, sweep.running[0].typed = names, typed
    if at_once > 1:
        launcher = side_by_side(launcher, config, context, at_once)
    variables = {world.JOBS: str(at_once), world.THREADS: str(stored.threads)}
    lines = dict(zip(names, jobs, strict=True))
    left, deaths = _todo(folder, names, stored), 0
    if len(left) < len(names):
        done = sum(_is_done(folder / name) for name in names)
        others = len(names) - done - len(left)
        say(
            f"{done} of {len(names)} jobs are done"
            + (f", {others} run in other processes" if others else "")
        )
    with environment_with(variables), context_of(launcher):
        before: list[str] = []
        while (todo := _todo(folder, names, stored)) and todo != before:
            before = todo
            words_of_jobs = [
                [
                    *lines[name],
                    program.override("hydra.sweep.dir", folder),
                    program.override("hydra.sweep.subdir", name),
                ]
                for name in todo
            ]
            try:
                _launch(launcher, words_of_jobs, todo, config)
            except BrokenExecutor as error:
                deaths += 1
                if deaths > options.retries:
                    reason = "the process of a job died; maybe the machine was out of memory"
                    raise PenstockError(reason) from error
                say("the process of a job died; its job is resumed")


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


def at_once_of(most: int | str, jobs: int, device: str) -> int:
    """How many jobs run at the same time."""
    if most != "auto":
        return min(int(most), jobs)
    if device != "cpu" and world.has_accelerator():
        return 1  # each of them would take the first GPU
    return max(1, min(jobs, world.cores(), available() // _MEMORY or jobs))


def threads_of(at_once: int) -> int:
    """Threads that torch has in each job, with all its ranks: half of the job's cores."""
    import torch

    return max(1, min(torch.get_num_threads(), world.cores() // (2 * at_once)))


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


def side_by_side(launcher: Any, config: DictConfig, context: Any, count: int) -> Any:
    """A launcher that runs so many jobs at the same time, each in a process."""
    from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
    from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher

    options = {**asdict(JobLibLauncherConf()), "n_jobs": count, "batch_size": 1}
    made = JoblibLauncher(**{name: value for name, value in options.items() if name != "_target_"})
    made.setup(hydra_context=context, task_function=launcher.task_function, config=config)
    preemption.keep_from_children()
    return made
