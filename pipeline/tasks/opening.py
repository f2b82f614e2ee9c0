"""Where a fit writes and what it goes on from: a new folder, or that of the run it resumes.

Only the first rank writes. All ranks read the checkpoint, so on several machines the folder has to
be one that all of them see.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import world
from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.ranks.group import Group
from pipeline.resumption import Source, differences, source
from pipeline.saving import checkpoint
from pipeline.saving.checkpoint import Checkpoints, Newest, State
from pipeline.saving.run_folder import RunFolder


@dataclass
class Opened:
    """A run that can begin.

    Attributes:
        folder: None on all ranks but the first.
        checkpoints: where to save; None if the run is to have none.
        state: what to go on from; None begins anew.
    """

    folder: RunFolder | None
    checkpoints: Checkpoints | None
    state: State | None


def open_run(
    config: Config, group: Group, fingerprint: Mapping[str, str], overrides: Sequence[str],
    **facts: Any,
) -> Opened:  # fmt: skip
    """Claim a folder, or go on in an old one; all ranks together.

    Args:
        fingerprint: of this run; that of the checkpoint has to be the same.
        overrides: of this command, for the manifest.
        facts: for the manifest of a new run.

    Raises:
        ConfigError: there is nothing to go on with, or it is another run's.
        CheckpointError: a checkpoint that was named cannot be used, or no good one is left.
    """
    folder, newest, where = None, None, ("", "")
    if group.is_first:
        folder, newest = _open(config, group, fingerprint, list(overrides), facts)
        where = str(folder.path), str(newest.path) if newest else ""
    path, taken = group.from_first(where)
    state = newest.state if newest else None
    if taken and newest is None:  # another rank has found it
        state = checkpoint.load(Path(taken))
    made = _checkpoints(config, Path(path), group)
    if made and newest:
        made.set_aside_after(int(newest.state["updates"]))
    return Opened(folder, made, state)


def _checkpoints(config: Config, folder: Path, group: Group) -> Checkpoints | None:
    """The run's checkpoints, unless it is to have none."""
    kept = config.trainer.checkpoint
    if kept is None:
        return None
    return Checkpoints(folder / "checkpoints", kept.keep_last, kept.background, group)


def _open(
    config: Config, group: Group, fingerprint: Mapping[str, str], overrides: list[str],
    facts: dict[str, Any],
) -> tuple[RunFolder, Newest | None]:  # fmt: skip
    wanted = _source(config)
    newest = _newest(wanted) if wanted else None
    if newest is not None:
        problems = differences(
            newest.state.get("fingerprint", {}), fingerprint, config.resume_despite
        )
        if problems:
            raise ConfigError(problems)
    size = group.world.size
    old = wanted.folder if wanted else None
    if old is None or not (old / "manifest.json").exists():
        folder = RunFolder.claim(
            Path(config.run_dir), config.plain(), world=size, overrides=overrides,
            fingerprint=dict(fingerprint), **facts,
        )  # fmt: skip
    else:
        at = _address(newest.state) if newest else (0, 0)
        come = f"{newest.path}" if newest else None
        folder = RunFolder.reopen(old, world=size, overrides=overrides, resumed=come, at=list(at))
        folder.rewind(*at, int(newest.state["updates"]) if newest else 0)
    if newest is not None:
        _say(folder, newest)
    return folder, newest


def _source(config: Config) -> Source | None:
    if config.resume is None and world.restarts():  # all ranks were started again
        return Source(Path(config.run_dir), required=False)
    return source(config)


def _newest(wanted: Source) -> Newest | None:
    if wanted.checkpoint is not None:
        return Newest(wanted.checkpoint, checkpoint.load(wanted.checkpoint), [])
    assert wanted.folder is not None
    if not checkpoint.has_checkpoint(wanted.folder) and (
        not wanted.required or _was_stopped_early(wanted.folder)
    ):
        return None
    return checkpoint.find_newest(wanted.folder)


def _was_stopped_early(folder: Path) -> bool:
    """Whether a run was asked to stop before there was anything to save; it begins again."""
    try:
        found = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):  # told of where the folder is opened
        return False
    return isinstance(found, dict) and found.get("status") == "preempted"


def _address(state: State) -> tuple[int, int]:
    return int(state["loader"]["epoch"]), int(state["loader"]["step"])


def _say(folder: RunFolder, newest: Newest) -> None:
    """Say from where the run goes on, and what a damaged checkpoint has cost."""
    for path, reason in newest.skipped:
        print(f"cannot use {path}: {reason}", file=sys.stderr)
    if newest.skipped:
        updates = int(newest.state["updates"])
        steps = max((checkpoint.steps_of(path) or 0) for path, _ in newest.skipped) - updates
        lost = f"the {steps} steps" if steps > 0 else "the steps"
        print(f"going on from an older one, after {updates} steps; {lost} since then are trained "
              "again", file=sys.stderr)  # fmt: skip
    epoch, step = _address(newest.state)
    print(f"going on with {folder.path} at epoch {epoch}, step {step} ({newest.path.name})",
          file=sys.stderr)  # fmt: skip
