"""The folder of one run: its configuration, provenance and results.

    config.yaml      the resolved configuration, without secrets and the environment
    manifest.json    command, versions, git state, hardware, data, code, seed; status, results; and
                     `sessions`: every start of the run, the first and those that resumed it
    metrics.jsonl    a line for every measurement
    holder.txt       the process that has the folder, or had it last; locked while it lives
    checkpoints/     and whatever else the run makes

A run claims it after everything is built, so a run that cannot start leaves nothing behind. A lock
of the operating system keeps other runs out. Cost: about 50 ms, most of it git's.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from io import FileIO
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

import yaml

import penstock
from penstock import program
from penstock.distributed.world import usable_cpus
from penstock.errors import ConfigError, Problem
from penstock.files.disk import append, cut, prepare, write_atomically, writing
from penstock.files.locks import is_locked, lock
from penstock.terminal import one_line

MANIFEST, CONFIG, HOLDER = "manifest.json", "config.yaml", "holder.txt"
METRICS, LEDGER, DIGESTS = "metrics.jsonl", "ledger.jsonl", "digests.jsonl"
PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "hydra-core",
    "omegaconf",
    "pandas",
    "pillow",
    "scikit-image",
    "torchmetrics",
    "safetensors",
    "albumentations",
)

# Of a dataset without a fingerprint: where its class, code, arguments, length and labels agree, it
# may still be another one.
UNPROVEN = {"known_by": "what is seen of it"}

Status = Literal["running", "done", "failed", "interrupted", "preempted"]


class RunFolder:
    """A folder that belongs to this run alone; `claim` makes it, `reopen` resumes it.

    Attributes:
        manifest: the contents of manifest.json.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], lock: FileIO) -> None:
        self.path, self.manifest, self._lock = path, manifest, lock

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
        for folder in names_of(path):
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            # Of several processes that find it free, the lock lets one in.
            if _is_free(folder) and (lock_file := take(folder)) is not None:
                break
        assert lock_file is not None  # there is always another name
        known = provenance()
        run = cls(folder, {"status": "running", **known, **facts, "sessions": []}, lock_file)
        run._write_config(config)
        run._begin_session(known, world)  # last, as from then on the folder can be resumed
        return run

    @classmethod
    def reopen(
        cls, path: Path, trainer: Mapping[str, Any], longer: list[str], world: int, **facts: Any
    ) -> RunFolder:
        """Resume in the folder of a run that has ended or was killed.

        Args:
            trainer: the values of its keys that this session may change, for config.yaml, from
                which the next session starts.
            longer: overrides that become the run's; of several of a key the last counts.
            world: number of ranks.
            facts: for the manifest's entry of this session.

        Raises:
            ConfigError: it is not a run's folder, its manifest is damaged, or a live process
                has it.
            DiskError: it cannot be written to.
        """
        read_manifest(path)  # before the lock, which is a file in the folder
        if (lock_file := take(path)) is None:
            holder = one_line((path / HOLDER).read_text(errors="replace")) or "another process"
            raise ConfigError(
                Problem(
                    "resume",
                    f"{path} is in use by {holder}; wait for it or stop it, or set another run_dir",
                )
            )
        prepare(path, idle=0)
        run = cls(path, {**read_manifest(path), "status": "running"}, lock_file)
        config = yaml.safe_load((path / CONFIG).read_bytes())
        # The next session starts from this file, so it has to hold what this one has changed.
        run._write_config({**config, "trainer": {**config["trainer"], **trainer}})
        run.manifest.pop("ended", None)  # of the session before
        run.manifest["overrides"] = [*run.manifest.get("overrides", []), *longer]
        run._begin_session(provenance(), world, **facts)
        return run

    def _write_config(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / CONFIG, text.encode(errors="backslashreplace"))

    def _begin_session(self, known: Mapping[str, Any], world: int, **facts: Any) -> None:
        self.manifest.setdefault("sessions", []).append({"id": secrets.token_hex(8), **known})
        self.note(world=world, **facts)

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest's entry of this session."""
        # Written at each note, so that the manifest of a killed run has all facts.
        self.manifest["sessions"][-1] |= facts
        write_manifest(self.path, self.manifest)

    def rewind(self, epoch: int, step: int, updates: int) -> None:
        """Cut what was written after the checkpoint that the run resumes from.

        Args:
            epoch, step: address of the next batch.
            updates: optimizer steps taken.
        """

        def is_before(line: Any) -> bool:
            return (int(line["epoch"]), int(line["step"])) < (epoch, step)

        def is_measured(line: Any) -> bool:
            # The record of an epoch has the steps of its end, as the last log in it.
            is_whole = line["event"] == "epoch"
            return bool(line["epoch"] < epoch if is_whole else line["step"] <= updates)

        # By address and not by time: lines lie in the order in which batches were trained on.
        cut(self.path / LEDGER, is_before)
        cut(self.path / DIGESTS, is_before)
        cut(self.path / METRICS, is_measured)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; it survives a crash. NaN and infinities become null."""
        append(self.path / METRICS, [json.dumps(plain(record))])

    def finish(self, status: Status, **results: Any) -> None:
        """Write to the manifest how the run ended, when, and its results."""
        self.manifest |= {"status": status, "ended": now(), **results}
        self.note(status=status, ended=self.manifest["ended"])

    def release(self) -> None:
        """Release the folder for other processes; a second time does nothing."""
        self._lock.close()


def names_of(path: Path) -> Iterator[Path]:
    """`path`, and the names of further runs that are started with it as `run_dir`."""
    return chain([path], (path.with_name(f"{path.name}-{n}") for n in count(2)))


def take(folder: Path) -> FileIO | None:
    """Lock `folder`, and leave in it who has it; None if another process has it."""
    # A lock, since a process id would be reused, and means nothing on another machine.
    with writing(folder / HOLDER):
        try:
            lock_file = lock(folder / HOLDER)
        except BlockingIOError:
            return None
        lock_file.truncate(0)  # the file itself stays, as others may wait for its lock
        command = program.joined(sys.orig_argv)
        lock_file.write(
            f"process {os.getpid()} on {platform.node()} since {now()} ({command})".encode()
        )
    return lock_file


def _is_free(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    # A run that was killed while it claimed the folder left a holder, and maybe a configuration.
    return names <= {"job.lock", *({HOLDER, CONFIG} if HOLDER in names else ())}


def now() -> str:
    """The time, for records."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def provenance() -> dict[str, Any]:
    """Command, versions, git state, hardware and time."""
    import torch  # listing runs does without

    packages = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
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
    except (OSError, subprocess.SubprocessError):  # the working folder is no checkout
        git = None
    else:
        git = {"commit": commit, "dirty": bool(changed)}
    return {
        "command": program.joined(sys.orig_argv),
        "started": now(),
        "penstock": penstock.__version__,
        "git": git,
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def plain(value: Any) -> Any:
    """`value` as JSON holds it: NaN and infinities, of which it knows none, are null."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest of the run in `folder`; raises DiskError."""
    text = json.dumps(plain(manifest), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST, text.encode(errors="backslashreplace"))


def has_manifest(folder: Path) -> bool:
    """Whether a run has begun in `folder`."""
    return (folder / MANIFEST).is_file()


def state_of(folder: Path, manifest: Mapping[str, Any]) -> str:
    """The status of a run; "killed" if it is unfinished and no process has the folder."""
    status = str(manifest.get("status", "unknown"))
    # A killed process wrote no end, but its lock went with it.
    return "killed" if status == "running" and not is_locked(folder / HOLDER) else status


def read_manifest(folder: Path, key: str = "resume") -> dict[str, Any]:
    """The manifest of the run in `folder`.

    Args:
        key: of the configuration that names the folder.

    Raises:
        ConfigError: there is none, it cannot be read, or it is damaged.
    """
    path = folder / MANIFEST
    try:
        # A mapping, or else a TypeError.
        return {**json.loads(path.read_bytes())}
    except FileNotFoundError:
        reason = f"{folder} is not a run's folder: it has no {MANIFEST}"
    except (OSError, ValueError, TypeError) as error:
        reason = (
            f"{path} is damaged or unreadable: {error}. Put a copy of it in its place, or begin "
            "anew from a checkpoint of that run (resume=<file>)"
        )
    raise ConfigError(Problem(key, reason))


def same_data(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool | None:
    """Whether two runs had the same training data, by `data` of their manifests; None: unknown."""
    own, other = (
        (run.get("train"), run.get("identity", {}).get("train", {})) for run in (first, second)
    )
    if None in (own[0], other[0]) or first.get("fingerprint") != second.get("fingerprint"):
        return None
    if own != other:
        return False
    return None if own[1].items() >= UNPROVEN.items() else True
