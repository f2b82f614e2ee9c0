"""The folder of one run: what was asked for, on what, and what came out.

    config.yaml      the resolved configuration
    manifest.json    command, versions, git state, hardware, data, seed; status and results
    metrics.jsonl    a line whenever something was measured
    checkpoints/     and whatever else the run makes

The folder is made when a run claims it, which is after everything is built: a run that cannot start
leaves nothing behind. Cost: about 50 ms, most of it git's.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch

import pipeline
from pipeline.checkpoint import write_atomically

Status = Literal["running", "done", "failed", "interrupted"]

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "torchmetrics", "safetensors")
CODE = Path(__file__).parent


class RunFolder:
    """A folder that belongs to this run alone; made by `claim`.

    Attributes:
        path: the folder.
        manifest: what manifest.json holds.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def claim(cls, path: Path, config: Mapping[str, Any], **facts: Any) -> RunFolder:
        """Make `path`, or `path`-2, -3 ... where that is taken, for this run.

        A folder is taken if anything is in it. Of several processes that claim one at the same
        time, each gets its own.

        Args:
            config: plain values, for config.yaml.
            facts: for the manifest, e.g. the seed; a fact replaces what has its name.
        """
        for number in count(1):
            folder = path if number == 1 else path.with_name(f"{path.name}-{number}")
            if _take(folder):
                break
        run = cls(folder, {"status": "running", **provenance(), **facts})
        run._write_manifest()
        write_atomically(folder / "config.yaml", _yaml(config))
        return run

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; it survives a crash of this process.

        NaN and infinities become null: they are not JSON, and null is what every reader takes for
        a missing number.
        """
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(record), allow_nan=False) + "\n")

    def finish(self, status: Status, **results: Any) -> None:
        """Bring the manifest up to date: how the run ended, when, and what came out."""
        self.manifest |= {"status": status, "ended": _now(), **results}
        self._write_manifest()

    def _write_manifest(self) -> None:
        text = json.dumps(_finite(self.manifest), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / "manifest.json", (text + "\n").encode())


def provenance() -> dict[str, Any]:
    """What a number needs to be believed: command, versions, git state, hardware, time."""
    return {
        "command": command_line(),
        "started": _now(),
        "penstock": pipeline.__version__,
        "git": git_state(CODE),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def usable_cpus() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def command_line() -> str:
    """The command that started this process, as it was typed, quoted so that it can be pasted."""
    return shlex.join(sys.orig_argv)


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that `folder` is in, and whether files differ from it.

    None where there is no git, no checkout or no commit. Waits 5 s at most.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()


def _take(folder: Path) -> bool:
    """Whether `folder` is this process's now."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        return False
    try:  # of two that found it empty, one can make the file
        (folder / "manifest.json").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _yaml(config: Mapping[str, Any]) -> bytes:
    import yaml

    text: str = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    return text.encode()


def _finite(value: Any) -> Any:
    """`value` as JSON can hold it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
