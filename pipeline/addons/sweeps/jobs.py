"""One job of a sweep: its folder, how it runs, and what its manifest says of it.

A job's folder is named by those of its overrides that change a result (`job_name`), so the same
command finds it again, whatever was killed in between. A manifest tells how far a job came; a lock
that ends with its process keeps others out. Imports no torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from penstock.config.schema import Config
from penstock.distributed import preemption, slurm
from penstock.errors import PREEMPTED, ConfigError, Problem
from penstock.files.disk import write_atomically
from penstock.files.locks import is_locked, lock
from penstock.runs.manifest import NAME, has_manifest, read_manifest
from penstock.runs.resumption import SCHEDULES, fingerprint, is_harmless, key_of
from penstock.terminal import say

LOCK, HOLDER = "job.lock", "holder.json"
FINISHED = ("done", "pruned")
PRUNING = "pruning"  # why a run ended, in the manifest of a hopeless trial

# What says how a job is run, and not which one it is.
_NO_SETTINGS = ("resume", "resume_despite", "run_dir", "sweep", "hydra")

_own_sweep: list[bool] = []  # not empty in the process that runs the sweep
_stopped: list[int] = []  # exit codes of jobs after which this process begins no other


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """The values that override lines give to keys, by name; the last one of a key counts."""
    pairs = {key_of(word): "~" if word[0] == "~" else word.partition("=")[2] for word in words}
    return {
        key: pairs[key] for key in sorted(pairs) if re.split("[./]", key)[0] not in _NO_SETTINGS
    }


def job_name(words: Sequence[str]) -> str:
    """The folder's name of a job with these override lines, in any order.

    It begins with short names of the keys and their values, and ends with a hash of all overrides
    that change a result. It needs no quotes, in a shell or for Hydra.
    """
    kept = {
        key: value for key, value in settings_of(words).items() if not is_harmless(f"{key}={value}")
    }
    text = "\n".join(f"{key}={value}" for key, value in kept.items())
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    shown = [
        re.sub(r"[^\w.]+", "_", f"{key.rpartition('.')[2]}_{kept[key]}")[:20].strip("_")
        for key in sorted(kept, key=lambda key: (key.count("."), key))
        if "/" not in kept[key]  # the path of a file says little in a few letters
    ]
    return "-".join([*shown[:6], digest])


@dataclass(frozen=True)
class Job:
    """A job by the manifest in its folder.

    Attributes:
        name: its folder, below the sweep's.
    """

    name: str
    path: Path
    manifest: Mapping[str, Any]

    @cached_property
    def settings(self) -> dict[str, str]:
        """Values by key, of its overrides."""
        return settings_of(self.manifest.get("overrides") or [])

    @property
    def status(self) -> str:
        """As in the manifest, or "pruned"; "killed" if it is not at its end and nobody runs it."""
        if is_locked(self.path / LOCK) or is_locked(self.path / HOLDER):
            return "running"
        status = str(self.manifest.get("status"))
        if status == "done" and self.manifest.get("reason") == PRUNING:
            return "pruned"
        return "killed" if status == "running" else status

    @property
    def metric(self) -> str:
        """The name of `value`."""
        return str(self.manifest.get("monitor") or "value")

    @cached_property
    def metrics(self) -> dict[str, float]:
        """What validation measured in the best epoch."""
        best = self.manifest.get("best") or {}
        return {key[4:]: value for key, value in best.items() if key.startswith("val/")}

    @property
    def value(self) -> float | None:
        """The best value of the monitored metric; None unless the job has come to its end."""
        value = self.metrics.get(self.metric) if self.status in FINISHED else None
        return value if isinstance(value, (int, float)) and math.isfinite(value) else None

    @property
    def error(self) -> str:
        """Why it failed, in a line."""
        return str(self.manifest.get("error", "")) if self.status == "failed" else ""


def jobs_of(folder: Path) -> Iterator[Job]:
    """The jobs of the sweep in `folder` that have begun, by their settings; one whose manifest is
    damaged has failed by that.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        if NAME in files and parent != str(folder) and has_manifest(Path(parent)):
            folders.clear()
            try:
                facts = read_manifest(Path(parent), "runs")
            except ConfigError as error:
                facts = {"status": "failed", "error": str(error), "exit_code": error.exit_code}
            found.append(Job(os.path.relpath(parent, folder), Path(parent), facts))
    return iter(sorted(found, key=lambda job: [*map(_ordered, sorted(job.settings.items()))]))


def _ordered(setting: tuple[str, str]) -> tuple[str, float, str]:
    """A key that sorts settings, numbers by their size."""
    try:
        return setting[0], float(setting[1]), ""
    except ValueError:
        return setting[0], math.inf, setting[1]


def note(folder: Path, **facts: Any) -> None:
    """Add facts to the manifest of a job that no run has claimed, or whose run has ended."""
    try:
        known = read_manifest(folder) if has_manifest(folder) else {}
    except ConfigError:  # it is damaged, which says that the job failed
        (folder / NAME).touch()
        return
    write_atomically(folder / NAME, (json.dumps({**known, **facts}, indent=2) + "\n").encode())


def run_job(
    accept: Callable[[Path], Config],
    task: Callable[[Config], float | None],
    report: Callable[[BaseException], int],
) -> float:
    """Run the job that Hydra has composed, unless it is done or another process runs it.

    Args:
        accept: returns the checked configuration of the job in that folder, or raises.
        report: prints an error, and returns the exit code for it.

    Returns:
        The value of the task; NaN for a job that failed or was left alone, which sweepers take as
        a failed trial.

    Raises:
        KeyboardInterrupt, SystemExit: the sweep ends.
    """
    hydra = HydraConfig.get()
    folder, words = Path(hydra.runtime.output_dir), list(map(str, hydra.overrides.task))
    if _stopped:
        return math.nan
    config, code, value = None, 0, None
    held = None
    try:
        with suppress(BlockingIOError):
            held = lock(folder / LOCK)
        # A run whose sweep was killed may live on in ranks of its own.
        if held is None or is_locked(folder / HOLDER):
            say(f"job {folder.name}: another process runs it, and it is left alone")
            return math.nan
        with preemption.job():
            config = accept(folder)
            value = _attempt(config, folder, words, task)
    except BaseException as error:
        code = report(error)
        if isinstance(error, KeyboardInterrupt):
            raise
        if code != PREEMPTED:
            text = (str(error) or type(error).__name__).splitlines()[0]
            note(folder, status="failed", error=text, exit_code=code, overrides=words)
    finally:
        if held is not None:
            held.close()
    if code == PREEMPTED and slurm.is_of_submitit(os.environ):
        signal.raise_signal(signal.SIGUSR1)  # lets submitit requeue it; its handler had to wait
    then = config.sweep if config is not None else None
    if code and then and (then.on_preempted if code == PREEMPTED else then.on_failure) == "stop":
        if _own_sweep:
            raise SystemExit(code)
        _stopped.append(code)
    preemption.forget()  # the request was for this job only
    return math.nan if value is None else value


def _attempt(
    config: Config, folder: Path, words: list[str], task: Callable[[Config], float | None]
) -> float | None:
    """Run the task from where the job's folder is; the value of a job that is done."""
    facts = read_manifest(folder, "hydra.sweep.dir") if has_manifest(folder) else {}
    job = Job(folder.name, folder, facts)
    if facts.get("status") == "done":
        _check_same(config, facts)
        value = job.metrics.get(job.metric)
        say(
            f"job {job.name}: done before"
            + ("" if value is None else f", {job.metric} {value:.6g}")
        )
        return value
    say(f"job {job.name}: {' '.join(words) or '(defaults)'}")
    if not facts.get("sessions"):  # it failed before it became a run
        (folder / NAME).unlink(missing_ok=True)
    elif config.task == "fit":
        config = config.model_copy(update={"resume": "auto"})
    value = task(config)
    if not has_manifest(folder):  # a task that leaves no run
        name = config.trainer.monitor or "value"
        best = {f"val/{name}": value} if value is not None and math.isfinite(value) else {}
        note(folder, status="done", monitor=name, best=best, overrides=words)
    return value


def _check_same(config: Config, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError if a job that is done was another one, by a YAML that has changed."""
    own, then = fingerprint(config, {}, 0), facts.get("fingerprint") or {}
    way = "give the sweep another folder: hydra.sweep.dir=..."
    problems = [
        Problem(key, f"is {value} here and was {then[key]} when this job was done; {way}")
        for key, value in own.items()
        if key != SCHEDULES and then.get(key, value) != value
    ]
    if problems:
        raise ConfigError(problems)
