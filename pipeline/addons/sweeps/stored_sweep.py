"""sweep.json in a sweep's folder: its command, and which folder belongs to which job.

    keys                 what jobs differ in
    began, ends          of the last command: when, in seconds since 1970, and the statuses of jobs
                         after which no other starts
    jobs                 folder and overrides of each job, of this command and of those before

A job is known by its overrides, so that it keeps its folder when the grid changes. Of several
processes that work on a sweep at once, each locks the job that it runs (`job_lock`), with
`job.lock` in the job's folder; the lock ends with the process. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from penstock.addons.sweeps.job_result import (
    FINISHED,
    RESULT,
    JobResult,
    Words,
    in_order,
    read_results,
)
from penstock.errors import ConfigError, Problem
from penstock.files import data as plain_json
from penstock.files.data import JsonError, mapping, shown
from penstock.files.disk import Hold, is_locked, one_writer, refuse, write_atomically
from penstock.runs.manifest import has_manifest
from penstock.runs.resumption import is_harmless, key_of

NAME = "sweep.json"
LOCK = "job.lock"
MOST_JOBS = 100_000

_KEY = "hydra.sweep.dir"
_CHECKED = ConfigDict(extra="forbid")  # strict would refuse mappings as jobs
_NO_PART_OF_A_JOB = ("resume", "resume_despite", "run_dir", "sweep")


@dataclass(frozen=True, config=_CHECKED)
class StoredJob:
    """A job of a sweep: its folder below the sweep's, and its overrides without secrets."""

    folder: str
    overrides: Words


@dataclass(frozen=True, config=_CHECKED)
class StoredSweep:
    """The content of sweep.json; see the module."""

    keys: Words = field(default_factory=list)
    began: Annotated[float, Field(strict=True)] = 0.0
    ends: Words = field(default_factory=list)
    jobs: Annotated[list[StoredJob], Field(max_length=MOST_JOBS)] = field(default_factory=list)
    version: int = 1

    def find(self, jobs: Sequence[Sequence[str]], keys: Sequence[str]) -> list[str | None]:
        """The folder of each of these jobs; None for a new one.

        Args:
            jobs: override lines, without secrets.
            keys: that the jobs differ in.
        """
        known = {*self.keys, *keys}
        old = zip(_identities([job.overrides for job in self.jobs], known), self.jobs, strict=True)
        folders = {identity: job.folder for identity, job in old}
        return [folders.get(identity) for identity in _identities(jobs, known)]


def name_of(options: Sequence[str], overrides: Sequence[str]) -> str:
    """The name of a sweep's folder, by what a result depends on of its command, in any order."""
    words = [
        word
        for word in overrides
        if not key_of(word).startswith("hydra")
        and (key_of(word) == "sweep" or not is_harmless(word))
    ]
    about = json.dumps([sorted({*options} - {"-m", "--multirun"}), sorted(words)]).encode()
    keys = [re.split(r"[./@]", key_of(word))[-1] for word in words if re.search(r"[,(]", word)]
    return "-".join([*sorted({*keys}), sha256(about).hexdigest()[:8]])[-100:]


def read_sweep(folder: Path) -> StoredSweep | None:
    """The stored sweep of a folder; None if it has no sweep.json.

    Raises:
        ConfigError: the file cannot be read, or is damaged.
    """
    path = folder / NAME
    try:
        values = mapping(plain_json.read(path))
        if values.get("version") != 1:
            raise JsonError(f"its version is {shown(values.get('version'))}, not 1")
        stored = plain_json.checked(StoredSweep, values)
        for name, number in Counter(job.folder for job in stored.jobs).items():
            if number > 1:
                raise JsonError(f"two jobs have the folder {shown(name)}")
            if not is_below(name):
                reason = "which is not one below the sweep's"
                raise JsonError(f"the folder of a job is {shown(name)}, {reason}")
        return stored
    except (FileNotFoundError, NotADirectoryError):  # a checkpoint may be resumed, too
        return None
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}"
    except JsonError as error:
        reason = (
            f"{path} is damaged: {error}. Put a copy of it in its place, or begin another sweep"
        )
    raise ConfigError(Problem(_KEY, reason))


def is_below(name: str) -> bool:
    """Whether a job's folder of that name lies below the sweep's, also as a value of hydra's."""
    path = PurePath(name)
    leads_out = path.is_absolute() or not path.parts or ".." in path.parts
    return not leads_out and name.isprintable() and "${" not in name and not name.endswith("\\")


def _identities(jobs: Sequence[Sequence[str]], keys: set[str]) -> Iterator[tuple[object, ...]]:
    """The identity of each job: its overrides, but for those that change no result."""
    seen: Counter[tuple[str, ...]] = Counter()
    for lines in jobs:
        counted = tuple(
            sorted(line for line in of_job(lines) if key_of(line) in keys or not is_harmless(line))
        )
        seen[counted] += 1
        yield counted, seen[counted]  # the same overrides twice are two jobs


def of_job(lines: Sequence[str]) -> list[str]:
    """The override lines that say what a job is, without those on resuming and on the sweep."""
    return [line for line in lines if re.split(r"[./]", key_of(line))[0] not in _NO_PART_OF_A_JOB]


def extend(
    folder: Path, command: StoredSweep, name: Callable[[int, int], str] | None = None
) -> tuple[StoredSweep, list[str]]:
    """Store a command's jobs in `folder`, which exists: old ones keep their folders.

    Args:
        command: its `jobs` have empty folders.
        name: (place in the command, number) -> folder of a new job; the number when None.

    Returns:
        What is stored now, and the folders of the command's jobs, in their order.

    Raises:
        ConfigError: what is stored is damaged.
    """
    with one_writer(folder / NAME, "plans the same sweep"):
        stored = read_sweep(folder)
        if stored is None:
            old = [
                StoredJob(path, of_job(result.overrides)) for path, result in read_results(folder)
            ]
            stored = StoredSweep(jobs=old)
        jobs = [job.overrides for job in command.jobs]
        known = stored.find(jobs, command.keys)
        taken = {job.folder for job in stored.jobs}
        free = (
            str(n)
            for n in count(len(taken))
            if str(n) not in taken and not (folder / str(n)).exists()
        )
        folders = []
        for number, old_folder in enumerate(known):
            new = old_folder or next(free)
            if old_folder is None and name is not None:
                new = name(number, int(new))
            folders.append(new)
        if len(set(folders)) < len(folders):
            reason = "gives several jobs one folder; it needs ${hydra.job.num}"
            raise ConfigError(Problem("hydra.sweep.subdir", reason))
        if odd := next((path for path in folders if not is_below(path)), None):
            reason = f"gives a job the folder {shown(odd)}, which is not one below the sweep's"
            raise ConfigError(Problem("hydra.sweep.subdir", reason))
        if any(len(os.fsencode(part)) > 255 for path in folders for part in PurePath(path).parts):
            reason = "names a folder by more than 255 bytes; leave it out, or use ${hydra.job.num}"
            raise ConfigError(Problem("hydra.sweep.subdir", reason))
        now = {path: StoredJob(path, of_job(job)) for path, job in zip(folders, jobs, strict=True)}
        stored = replace(
            command,
            keys=sorted({*stored.keys, *command.keys}),
            began=time.time(),
            jobs=list({**{job.folder: job for job in stored.jobs}, **now}.values()),
        )
        store(folder, stored)
    return stored, folders


def store(folder: Path, sweep: StoredSweep) -> None:
    """Write a sweep's file; for sweeps that plan their jobs themselves (else `extend`)."""
    write_atomically(folder / NAME, (json.dumps(asdict(sweep), indent=1) + "\n").encode())


@contextmanager
def job_lock(folder: Path) -> Iterator[bool]:
    """Lock a job's folder, which exists; False if another process runs the job.

    Raises:
        DiskError: the folder cannot be written to.
        NotOwnError: the lock is another user's, or leads elsewhere.
    """
    hold = None
    try:
        for _ in range(3):  # somebody may just have asked whether it is locked
            hold = Hold.take(folder / LOCK, os.O_RDWR | os.O_CREAT)
            if hold is not None:
                break
            time.sleep(0.01)
    except OSError as error:
        refuse(folder / LOCK, error)
    try:
        # A run whose sweep was killed may live on in ranks of its own.
        yield hold is not None and not is_locked(folder / "holder.json")
    finally:
        if hold is not None:
            hold.release()


def result_of(folder: Path) -> JobResult | None:
    """The result in a job's folder; None if there is none."""
    return JobResult.read(folder / RESULT) if (folder / RESULT).exists() else None


def jobs_of(folder: Path, stored: StoredSweep) -> list[tuple[str, JobResult]]:
    """Folder and result of each job of a sweep, in their order; without a result, its state.

    The status of a job that has not ended is "running", "interrupted" or "not started".
    """
    results = []
    for job in stored.jobs:
        path = folder / job.folder
        try:
            result = result_of(path)
        except ConfigError as error:
            result = _state(job, "failed", str(error.problems[0].message))
        if result is None or result.status not in FINISHED:
            if is_locked(path / LOCK):
                result = _state(job, "running")
            elif result is None:
                begun = has_manifest(path)
                result = _state(job, "interrupted" if begun else "not started")
        results.append((job.folder, result))
    return sorted(results, key=in_order)


def _state(job: StoredJob, status: str, error: str | None = None) -> JobResult:
    code = 2 if error else 0
    return JobResult(job.overrides, status, None, None, None, 0.0, error, code, 0.0)
