"""The folder of one run: its configuration, provenance and results.

    config.yaml      the resolved configuration, without secrets and the environment
    manifest.json    command, versions, git state, hardware, data, code, seed; status, results; and
                     `sessions`: every start of the run, the first and those that resumed it
    metrics.jsonl    a line for every measurement
    holder.json      the process that has the folder, or had it last
    checkpoints/     and whatever else the run makes

A run claims it after everything is built, so a run that cannot start leaves nothing behind. A lock
of the operating system keeps other runs out. Cost: about 50 ms, most of it git's.
"""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from io import FileIO
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
import yaml

import penstock
from penstock import program
from penstock.distributed.world import usable_cpus
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import LEFTOVER, append, beside, cut, prepare, write_atomically, writing
from penstock.files.locks import lock
from penstock.runs.manifest import (
    NAME,
    PACKAGES,
    UNPROVEN,
    has_manifest,
    read_manifest,
    same_data,
)
from penstock.terminal import one_line

HOLDER = "holder.json"


def take(folder: Path) -> FileIO | None:
    """Lock `folder` and record it in holder.json; None if another process has it."""
    if not folder.is_dir():
        raise ConfigError(Problem("resume", f"{folder} does not exist"))
    path = folder / HOLDER
    who = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": now(),
        "command": program.joined(sys.orig_argv),
    }
    with writing(path):
        try:
            held = lock(path)
        except BlockingIOError:
            return None
        held.truncate(0)
        held.write((json.dumps(who) + "\n").encode())
    return held


def held_by(folder: Path) -> str:
    """Who has `folder`, for a message."""
    try:
        who = json.loads((folder / HOLDER).read_bytes())
        holder = one_line("process {pid} on {host} since {since} ({command})".format_map(who))
    except (OSError, ValueError, LookupError, TypeError):  # the holder is just writing it
        holder = "another process"
    return f"{folder} is in use by {holder}; wait for it or stop it, or set another run_dir"


def now() -> str:
    """The time, for records."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


Status = Literal["running", "done", "failed", "interrupted", "preempted"]

_OF_OTHERS = ("result.json", "job.lock", HOLDER, ".hydra")  # allowed in an unclaimed folder
BY_ADDRESS = ("ledger.jsonl", "digests.jsonl")


class RunFolder:
    """A folder that belongs to this run alone; `claim` makes it, `reopen` resumes it.

    Attributes:
        manifest: the contents of manifest.json.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], lock: FileIO) -> None:
        self.path = path
        self.manifest = manifest
        self._lock = lock
        self._before: dict[str, Any] = {}  # the manifest of a run that this resumes
        self._config = b""  # its config.yaml

    @classmethod
    def claim(
        cls, path: Path, config: Mapping[str, Any], *, world: int = 1, **facts: Any
    ) -> RunFolder:
        """Make `path`, or `path`-2, -3 ... where that is taken, for this run.

        A folder is taken if anything is in it. Of several processes that claim one at the same
        time, each gets its own.

        Args:
            config: plain values, for config.yaml.
            world: number of ranks.
            facts: for the manifest, e.g. the seed; a fact replaces what has its name.

        Raises:
            DiskError: it cannot be made or written to.
        """
        names = (path.with_name(f"{path.name}-{number}") for number in count(2))
        folder, held = next(
            (folder, held) for folder in chain([path], names) if (held := _take(folder))
        )
        known = provenance()
        run = cls(folder, {"status": "running", **known, **facts, "sessions": []}, held)
        run._write_config(config)
        run._begin_session(known, world)  # last, as from then on the folder can be resumed
        return run

    @classmethod
    def reopen(
        cls,
        path: Path,
        *,
        world: int = 1,
        longer: Sequence[str] = (),
        trainer: Mapping[str, Any] = MappingProxyType({}),
        **facts: Any,
    ) -> RunFolder:
        """Resume in the folder of a run that has ended or was killed.

        Args:
            world: number of ranks.
            longer: overrides that replace those of the same keys.
            trainer: the values of its keys that this session may change, for config.yaml, from
                which the next session starts.
            facts: for the manifest's entry of this session.

        Raises:
            ConfigError: it is not a run's folder, its manifest is damaged, or a live process
                has it.
            DiskError: it cannot be written to.
        """
        held = take(path)
        if held is None:
            raise ConfigError(Problem("resume", held_by(path)))
        try:
            prepare(path, idle=0)
            manifest = read_manifest(path)
            run = cls(path, {**manifest, "status": "running"}, held)
            run._before = manifest
            if trainer:
                run._config = (path / "config.yaml").read_bytes()
                config = yaml.safe_load(run._config)
                run._write_config({**config, "trainer": {**config["trainer"], **trainer}})
            run.manifest.pop("ended", None)
            run.manifest["sessions"] = list(manifest.get("sessions", []))
            keys = {_key(word) for word in longer}
            others = [word for word in manifest.get("overrides", []) if _key(word) not in keys]
            run.manifest["overrides"] = [*others, *longer]
            run._begin_session(provenance(), world, **facts)
        except BaseException:
            held.close()
            raise
        return run

    def _write_config(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / "config.yaml", text.encode(errors="backslashreplace"))

    def _begin_session(self, known: Mapping[str, Any], world: int, **facts: Any) -> None:
        names = ("command", "started", "penstock", "git", "python", "packages")
        started = {"id": secrets.token_hex(8), **{name: known[name] for name in names}}
        self.manifest["sessions"].append({**started, "world": world, **facts})
        self._write_manifest()

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest's entry of this session."""
        self.manifest["sessions"][-1] |= facts
        self._write_manifest()

    def had_other_data(self, data: Mapping[str, Any]) -> None:
        """Note that the run continues with `data`, if that is other data than it had so far."""
        before = self.manifest.get("data")
        if isinstance(before, dict) and same_data(before, data) is False:
            known = before.get("identity")
            before["train"] = f"{before.get('train')}, then {data['train']}"
            # Of two kinds of data, no fingerprint stands for all.
            before["identity"] = {**(known if isinstance(known, dict) else {}), "train": UNPROVEN}
            self._write_manifest()

    def rewind(self, epoch: int, step: int, updates: int) -> int:
        """Cut what was written after the checkpoint that the run resumes from; reads only that.

        Returns:
            The number of steps that were in the ledger, and are taken again.

        Args:
            epoch, step: address of the next batch.
            updates: optimizer steps taken.
        """

        def is_before(line: Any) -> bool:
            return (int(line["epoch"]), int(line["step"])) < (epoch, step)

        def is_measured(line: Any) -> bool:
            if line["event"] == "epoch":
                return bool(line["epoch"] < epoch)
            return bool(line["step"] <= updates)

        repeated = 0

        def is_counted(line: Any) -> bool:
            nonlocal repeated
            before = is_before(line)
            repeated += not before and "samples" in line
            return before

        for name in BY_ADDRESS:
            cut(self.path / name, is_counted if name == "ledger.jsonl" else is_before)
        cut(self.path / "metrics.jsonl", is_measured)
        return repeated

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; it survives a crash. NaN and infinities become null."""
        append(self.path / "metrics.jsonl", [json.dumps(finite(record), allow_nan=False)])

    def finish(
        self, status: Status, unchanged: bool = False, release: bool = True, **results: Any
    ) -> None:
        """Write to the manifest how the run ended, when, and its results; release the folder.

        Args:
            unchanged: this session changed nothing: the run keeps the end that it had before.
            release: the folder; otherwise `release` does.
        """
        ended = {"status": status, "ended": now()}
        self.manifest["sessions"][-1] |= ended
        if unchanged:
            self.manifest = {**self._before, "sessions": self.manifest["sessions"]}
            if self._config:
                write_atomically(self.path / "config.yaml", self._config)
        else:
            self.manifest |= {**ended, **results}
        try:
            self._write_manifest()
        except BaseException:
            release = True
            raise
        finally:
            if release:
                self.release()

    @property
    def was_done(self) -> bool:
        """Whether this resumes a run that had reached its end."""
        return self._before.get("status") == "done"

    @property
    def is_unused(self) -> bool:
        """Whether this is a new run that has recorded and saved nothing."""
        written = (self.path / name for name in ("metrics.jsonl", *BY_ADDRESS))
        saved = (self.path / "checkpoints").glob("*")
        return not self._before and not any(chain((path.exists() for path in written), saved))

    def remove(self) -> None:
        """Delete the folder, and release it."""
        shutil.rmtree(self.path.rename(beside(self.path)))
        self.release()

    def release(self) -> None:
        """Release the folder for other processes; a second time does nothing."""
        self._lock.close()

    def _write_manifest(self) -> None:
        text = json.dumps(finite(self.manifest), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / NAME, (text + "\n").encode(errors="backslashreplace"))


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def last_code(folder: Path) -> Any:
    """The code hashes of a run's last start, from its manifest; None if there are none."""
    try:
        manifest = read_manifest(folder)
        starts = [manifest, *manifest.get("sessions", ())]
        return next(start["code"] for start in reversed(starts) if start.get("code"))
    except (PenstockError, StopIteration, TypeError, AttributeError):
        return None


def provenance() -> dict[str, Any]:
    """Command, versions, git state, hardware and time."""
    return {
        "command": program.joined(sys.orig_argv),
        "started": now(),
        "penstock": penstock.__version__,
        "git": git_state(),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def git_state() -> dict[str, Any] | None:
    """The commit of the working folder's checkout, and whether tracked files differ from it; None
    if it is no checkout.
    """
    try:
        commit, changed = (
            subprocess.run(  # no monitor of the checkout's own choice
                ["git", "-c", "core.fsmonitor=false", *words],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changed)}


def _take(folder: Path) -> FileIO | None:
    """A lock on `folder` if no run has claimed it; else None."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    held = take(folder) if _is_free(folder) else None
    if held is not None and not _is_free(folder):  # another process was faster
        held.close()
        return None
    if held is not None:
        (folder / NAME).touch()
    return held


def _is_free(folder: Path) -> bool:
    found = {path.name for path in folder.iterdir() if not LEFTOVER.fullmatch(path.name)}
    # A run that was killed while it claimed the folder left an empty manifest, and maybe these.
    begun = (NAME, "config.yaml") if NAME in found and not has_manifest(folder) else ()
    return found <= {*_OF_OTHERS, *begun}


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def finite(value: Any) -> Any:
    """`value` as JSON can hold it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
