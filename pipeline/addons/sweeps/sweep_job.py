"""One job of a sweep, in whatever process a launcher runs it: lock, attempts, result.json."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from penstock.addons.sweeps.job_result import FINISHED, PRUNING, JobResult
from penstock.addons.sweeps.stored_sweep import job_lock, jobs_of, of_job, read_sweep, result_of
from penstock.addons.sweeps.sweep import running
from penstock.config import hydra_loader, project
from penstock.config.nodes import direction, metrics, validates
from penstock.config.schema import Config
from penstock.distributed import preemption, slurm
from penstock.errors import PREEMPTED, ConfigError, Problem
from penstock.runs.manifest import has_manifest, read_manifest
from penstock.runs.resumption import key_of
from penstock.terminal import left, say


@dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        sweep, folder: the sweep's folder, and the job's own.
        overrides: without secrets.
        accept: returns the checked configuration of the job in that folder, or raises.
        run: the task.
        report: prints an error and returns the exit code.
    """

    sweep: Path
    folder: Path
    overrides: Sequence[str]
    accept: Callable[[Path], Config]
    run: Callable[[Config], float | None]
    report: Callable[[BaseException], int]


def run(
    accept: Callable[[Path], Config],
    task: Callable[[Config], float | None],
    report: Callable[[BaseException], int],
) -> float | None:
    """Run the job that hydra has composed, in whatever process; see `Job` and `run_job`."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if not folder.resolve().is_relative_to(Path(hydra.sweep.dir).resolve() / ""):
        reason = f"got {folder}, which is not a folder below the sweep's"
        raise ConfigError(Problem("hydra.sweep.subdir", reason))
    with preemption.job(), project.importable():
        words = hydra_loader.overrides()
        job = Job(Path(str(hydra.sweep.dir)).absolute(), folder, words, accept, task, report)
        return run_job(job, in_turn=bool(running))


def run_job(job: Job, in_turn: bool) -> float | None:
    """Run a job and write its result, unless it is done, or another process runs it.

    Args:
        in_turn: the sweep's own process runs one job after the other, so a job after which it is
            to stop ends it.

    Returns:
        The value of the task; NaN for a job that failed or was left alone, which sweepers take as
        a failed trial.

    Raises:
        KeyboardInterrupt, SystemExit: the sweep ends.
    """
    name = job.folder.name
    job.folder.mkdir(parents=True, exist_ok=True)
    with job_lock(job.folder) as ours:
        if not ours:
            say(f"job {name}: another process runs it, and it is left alone")
            return math.nan
        before = _done_before(job)
        if before is not None:
            shown = (
                "" if before.value is None else f", {before.metric or 'value'} {before.value:.6g}"
            )
            say(f"job {name}: done before{shown}")
            return before.value
        if not in_turn and _is_stopped(job.sweep):
            return math.nan
        say(f"job {name}{_ahead(job.sweep)}: {_differing(job) or '(defaults)'}")
        config, result, failure = _attempt(job)
    if isinstance(failure, KeyboardInterrupt):
        raise KeyboardInterrupt
    if result.status == "preempted" and slurm.is_of_submitit(os.environ):
        _requeue(job, result)
    if in_turn and config is not None and _stops(result, config):
        raise SystemExit(result.exit_code)
    preemption.forget()  # the request was for this job only
    unknown = failure is not None or (result.metric is not None and result.value is None)
    return math.nan if unknown else result.value


def _requeue(job: Job, result: JobResult) -> None:
    """Let submitit requeue this job of Slurm; raises its SystemExit, or why it does not."""
    result.remove(job.folder)  # a job that is to go on keeps no other job from starting
    try:
        # Its handler had to wait for the checkpoint.
        signal.raise_signal(signal.SIGUSR1)
    except Exception:
        result.write(job.folder)
        raise


def _attempt(job: Job) -> tuple[Config | None, JobResult, BaseException | None]:
    """Run the task once, from where the job's folder is; its result is written."""
    started, began, used = time.time(), time.perf_counter(), sum(os.times()[:4])
    config: Config | None = None
    value: float | None = None
    failure: BaseException | None = None
    status, code = "done", 0
    try:
        config = job.accept(job.folder)
        if config.task == "fit" and has_manifest(job.folder):
            config = config.model_copy(update={"resume": "auto"})
        value = job.run(config)
    except BaseException as error:
        failure, code = error, job.report(error)
        status = "preempted" if code == PREEMPTED else "failed"
        if isinstance(error, KeyboardInterrupt):
            status = "interrupted"
    if status == "done" and _was_pruned(job.folder, started):
        status = "pruned"
    metric, mode = metric_of(config)
    result = JobResult(
        overrides=of_job(job.overrides),
        status=status,
        metric=metric,
        mode=mode,
        value=value if value is not None and math.isfinite(value) else None,
        seconds=round(time.perf_counter() - began, 3),
        error=_first_line(failure),
        exit_code=code,
        started=started,
        others=_others(job.folder, started, metric),
        cpu_seconds=round(sum(os.times()[:4]) - used, 3),
    )
    result.write(job.folder)
    return config, result, failure


def _differing(job: Job) -> str:
    """The overrides in which the sweep's jobs differ; all of them if nobody knows the others."""
    stored = read_sweep(job.sweep)
    keys = set(stored.keys) if stored is not None and len(stored.jobs) > 1 else set()
    words = of_job(job.overrides)
    return " ".join([word for word in words if key_of(word) in keys] or words)


def _ahead(sweep: Path) -> str:
    """How many jobs of the sweep have begun, and the time left for all, by those of this command.

    Cost: 0.1 ms a job of the sweep.
    """
    stored = read_sweep(sweep)
    if stored is None or len(stored.jobs) < 2:
        return ""
    ended = [
        result for _, result in jobs_of(sweep, stored) if result.status in (*FINISHED, "failed")
    ]
    ended_now = sum(result.started >= stored.began for result in ended)
    rest = len(stored.jobs) - len(ended) + ended_now
    time_left = left(ended_now, rest, time.time() - stored.began)
    progress = f"{len(ended) + 1} of {len(stored.jobs)}"
    return f" ({progress}, {time_left})" if time_left else f" ({progress})"


def _done_before(job: Job) -> JobResult | None:
    """The result of a job that is done."""
    before = result_of(job.folder)
    if before is None or before.status not in FINISHED:
        return None
    stored = read_sweep(job.sweep)
    known = stored is not None and job.folder in [
        job.sweep / stored_job.folder for stored_job in stored.jobs
    ]
    same = sorted(of_job(before.overrides)) == sorted(of_job(job.overrides))
    return before if known or same else None


def _is_stopped(sweep: Path) -> bool:
    """Whether a job of the sweep's present run ended in a way that keeps others from starting.

    It is asked in processes of a launcher, which the sweep's own process cannot reach.
    """
    stored = read_sweep(sweep)
    if stored is None:
        return False
    since = [result for _, result in jobs_of(sweep, stored) if result.started >= stored.began]
    return any(result.status in stored.ends for result in since)


def _stops(result: JobResult, config: Config) -> bool:
    """Whether the sweep ends after this job."""
    then = {
        "preempted": config.sweep.on_preempted,
        "failed": config.sweep.on_failure,
    }
    return then.get(result.status) == "stop"


def _was_pruned(folder: Path, started: float) -> bool:
    """Whether this job's run was ended as a trial that fell behind, from its manifest."""
    path = folder / "manifest.json"
    fresh = path.exists() and path.stat().st_mtime >= started
    return fresh and read_manifest(folder, "hydra.sweep.dir").get("reason") == PRUNING


def metric_of(config: Config | None) -> tuple[str | None, str | None]:
    """The name and the mode of a job's value."""
    if config is None or config.task not in ("fit", "validate") or not validates(config.dataset):
        return None, None
    name = config.trainer.monitor or next(iter(metrics(config.objective) or ()), None)
    if name is None:
        return None, None
    return name, direction(config, name.removeprefix("val/")) or config.trainer.mode


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
    return (str(error) or type(error).__name__).splitlines()[0]
