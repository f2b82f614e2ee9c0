"""Where a fit writes and what it goes on from: a new folder, or that of the run it resumes.

Only the first rank writes. All ranks read the checkpoint, so on several machines the folder has to
be one that all of them see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import world
from pipeline.config import Config
from pipeline.errors import ConfigError, Problem
from pipeline.identity.fingerprints import first_difference, in_mode_of, mode_in
from pipeline.identity.sources import Code, changes
from pipeline.ranks.group import Group
from pipeline.resumption import Source, differences, run_of, source
from pipeline.saving import checkpoint, run_state
from pipeline.saving.checkpoint import Checkpoints, Newest, State
from pipeline.saving.manifest import read_manifest
from pipeline.saving.run_folder import RunFolder, last_code
from pipeline.terminal import say

_NAMED = 30  # differences from a checkpoint that are listed


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
    told: Callable[[str], str], fits: Callable[[State], None] | None = None, **facts: Any,
) -> Opened:  # fmt: skip
    """Claim a folder, or go on in an old one; all ranks together.

    Args:
        fingerprint: of this run; that of the checkpoint has to be the same.
        overrides: of this command, for the manifest.
        told: mode -> the fingerprint of the training data by names, sizes or content.
        fits: raises ValueError for a checkpoint whose tensors are not this run's, although its
            fingerprint is.
        facts: for the manifest of a new run.

    Raises:
        ConfigError: there is nothing to go on with, or it is another run's.
        CheckpointError: a checkpoint that was named cannot be used, or no good one is left.
    """
    folder, newest, where = None, None, ("", "")
    if group.is_first:
        folder, newest = _open(config, group, fingerprint, list(overrides), told, facts, fits)
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
    told: Callable[[str], str], facts: dict[str, Any], fits: Callable[[State], None] | None,
) -> tuple[RunFolder, Newest | None]:  # fmt: skip
    wanted = _source(config)

    def check(state: State) -> None:
        run_state.check(state)
        if fits is not None and state["fingerprint"] == dict(fingerprint):
            fits(state)

    newest = _newest(wanted, check) if wanted else None
    if newest is not None:
        _check_same(newest.state["fingerprint"], fingerprint, config, told)
        _warn_of_code(newest.path, facts["code"])
    size = group.world.size
    old = wanted.folder if wanted else None
    if old is None or not (old / "manifest.json").exists():
        folder = RunFolder.claim(
            Path(config.run_dir), config.written(), world=size, overrides=overrides,
            fingerprint=dict(fingerprint), **facts,
        )  # fmt: skip
    else:
        at = _address(newest.state) if newest else (0, 0)
        come = f"{newest.path}" if newest else None
        folder = RunFolder.reopen(
            old, world=size, overrides=overrides, resumed=come, at=list(at), code=facts["code"]
        )
        folder.rewind(*at, int(newest.state["updates"]) if newest else 0)
    if newest is not None:
        _say(folder, newest)
    return folder, newest


def _check_same(
    saved: Mapping[str, str], own: Mapping[str, str], config: Config, told: Callable[[str], str]
) -> None:
    """Raise ConfigError unless a checkpoint is this run's; its data is told as it was then."""
    then, now = mode_in(saved), mode_in(own)
    same_way = in_mode_of(saved, own, told)
    problems = differences(saved, same_way, config.resume_despite)
    for place, one in enumerate(problems):
        file = first_difference(config.cache_dir, saved.get("dataset", ""), same_way["dataset"])
        if one.key == "dataset" and file:
            problems[place] = Problem(one.key, f"{file}; its fingerprint {one.message}")
    if problems:
        raise ConfigError(_first(problems))
    if then != now and mode_in(same_way) == then:
        say(f"the data is that of the run by {then}, which is all that was noted of it; from now "
            f"on it is told by {now}")  # fmt: skip


def _warn_of_code(checkpoint: Path, own: Code) -> None:
    """Say which code that makes samples is not what it was when the run was last started."""
    folder = run_of(checkpoint)
    for part, module, before, now in changes(folder and last_code(folder), own):
        say(f"{part}: the code of {module} has changed since the run was last started ({before} "
            f"then, {now} now); samples may be others")  # fmt: skip


def _source(config: Config) -> Source | None:
    if config.resume is None and world.restarts():  # all ranks were started again
        return Source(Path(config.run_dir), required=False)
    return source(config)


def _first(problems: Sequence[Problem]) -> list[Problem]:
    """As many as a person reads."""
    more = len(problems) - _NAMED
    rest = [Problem("", f"{more} more keys differ")] if more > 0 else []
    return [*problems[:_NAMED], *rest]


def _newest(wanted: Source, check: Callable[[State], None]) -> Newest | None:
    if wanted.checkpoint is not None:
        return Newest(wanted.checkpoint, checkpoint.load_checked(wanted.checkpoint, check), [])
    assert wanted.folder is not None
    if not checkpoint.has_checkpoint(wanted.folder) and (
        not wanted.required or _was_stopped_early(wanted.folder)
    ):
        return None
    return checkpoint.find_newest(wanted.folder, check)


def _was_stopped_early(folder: Path) -> bool:
    """Whether a run was asked to stop before there was anything to save; it begins again."""
    try:
        return bool(read_manifest(folder).get("status") == "preempted")
    except ConfigError:  # told of where the folder is opened
        return False


def _address(state: State) -> tuple[int, int]:
    return int(state["loader"]["epoch"]), int(state["loader"]["step"])


def _say(folder: RunFolder, newest: Newest) -> None:
    """Say from where the run goes on, and what a damaged checkpoint has cost."""
    for path, reason in newest.skipped:
        say(f"cannot use {path}: {reason}")
    if newest.skipped:
        updates = int(newest.state["updates"])
        steps = max((checkpoint.steps_of(path) or 0) for path, _ in newest.skipped) - updates
        lost = f"the {steps} steps" if steps > 0 else "the steps"
        say(f"going on from an older one, after {updates} steps; {lost} since then are trained "
            "again")  # fmt: skip
    epoch, step = _address(newest.state)
    say(f"going on with {folder.path} at epoch {epoch}, step {step} ({newest.path.name})")
