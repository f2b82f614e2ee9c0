"""Where a fit writes and what it goes on from: a new folder, or that of the run it resumes.

Only the first rank writes. All ranks read the checkpoint, so on several machines the folder has to
be one that all of them see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.schema import Config
from pipeline.distributed import world
from pipeline.distributed.group import Group
from pipeline.errors import ConfigError, Problem
from pipeline.order.address import Address
from pipeline.runs import checkpoint, resumption, run_state
from pipeline.runs.checkpoint import Checkpoints, Newest, State, steps_of
from pipeline.runs.identity.fingerprints import first_difference, in_mode_of, mode_in
from pipeline.runs.identity.sources import Code, changes
from pipeline.runs.manifest import read_manifest
from pipeline.runs.resumption import (
    LENGTH,
    Source,
    differences,
    run_of,
    same_but_for_length,
    source,
    spans,
)
from pipeline.runs.run_folder import RunFolder, last_code
from pipeline.terminal import say

_NAMED = 30  # differences from a checkpoint that are listed


@dataclass
class Opened:
    """A run that can begin.

    Attributes:
        folder: None on all ranks but the first.
        checkpoints: where to save; None if the run is to have none.
        state: what to go on from; None begins anew.
        fingerprint: of the run, with all schedules that it had and has.
        renewed: the steps of a new schedule, if one begins now.
    """

    folder: RunFolder | None
    checkpoints: Checkpoints | None
    state: State | None
    fingerprint: dict[str, str]
    renewed: int | None = None

    def put_back(self) -> None:
        """Forget what was written in the folder since this began."""
        if self.folder is not None and self.state is not None:
            self.folder.rewind(*_address(self.state), int(self.state["updates"]))

    def came_further(self) -> bool:
        """Whether a checkpoint was saved after a later step than this began with."""
        steps = [steps_of(path) or 0 for path in self.checkpoints.saved()
                 ] if self.checkpoints else []  # fmt: skip
        return max(steps, default=0) > (int(self.state["updates"]) if self.state else 0)


def open_run(
    config: Config, group: Group, fingerprint: Mapping[str, str], overrides: Sequence[str],
    told: Callable[[str], str], fits: Callable[[State], None] | None = None,
    scheduled: Callable[[int], object] = lambda steps: None, **facts: Any,
) -> Opened:  # fmt: skip
    """Claim a folder, or go on in an old one; all ranks together.

    Args:
        fingerprint: of this run; that of the checkpoint has to be the same.
        overrides: of this command, for the manifest.
        told: mode -> the fingerprint of the training data by names, sizes or content.
        fits: raises ValueError for a checkpoint whose tensors are not this run's, although its
            fingerprint is.
        scheduled: raises ConfigError if there is no schedule for a number of steps.
        facts: for the manifest of a new run.

    Raises:
        ConfigError: there is nothing to go on with, or it is another run's.
        CheckpointError: a checkpoint that was named cannot be used, or no good one is left.
    """
    folder, newest, where = None, None, ("", "")
    if group.is_first:
        folder, newest = _open(
            config, group, fingerprint, list(overrides), told, facts, fits, scheduled
        )
        where = str(folder.path), str(newest.path) if newest else ""
    path, taken = group.from_first(where)
    state = newest.state if newest else None
    if taken and newest is None:  # another rank has found it
        state = checkpoint.load(Path(taken))
    made = _checkpoints(config, Path(path), group)
    if made and newest:
        made.set_aside_after(int(newest.state["updates"]))
    if state is None:
        return Opened(folder, made, state, dict(fingerprint))
    return Opened(folder, made, state, *_going_on(state, fingerprint, config))


def _going_on(
    state: State, fingerprint: Mapping[str, str], config: Config
) -> tuple[dict[str, str], int | None]:
    """See `resumption.with_schedules`."""
    return resumption.with_schedules(
        state["fingerprint"], fingerprint, _moves(state, config), config.scheduler
    )


def _moves(state: State, config: Config) -> int:
    """How often the scheduler of a checkpoint had moved."""
    by_epochs = (config.scheduler or {}).get("interval") == "epoch"
    return len(state["progress"]["result"]["history"]) if by_epochs else int(state["updates"])


def _checkpoints(config: Config, folder: Path, group: Group) -> Checkpoints | None:
    """The run's checkpoints, unless it is to have none."""
    kept = config.trainer.checkpoint
    if kept is None:
        return None
    return Checkpoints(folder / "checkpoints", kept.keep_last, kept.background, group)


def _open(
    config: Config, group: Group, fingerprint: Mapping[str, str], overrides: list[str],
    told: Callable[[str], str], facts: dict[str, Any], fits: Callable[[State], None] | None,
    scheduled: Callable[[int], object],
) -> tuple[RunFolder, Newest | None]:  # fmt: skip
    wanted = _source(config)

    def check(state: State) -> None:
        run_state.check(state)
        saved = same_but_for_length(state["fingerprint"], fingerprint)
        if fits is not None and saved == dict(fingerprint):
            fits(state)

    newest, renewed = _newest(wanted, check) if wanted else None, None
    if newest is not None:
        _check_same(newest.state["fingerprint"], fingerprint, config, told)
        _warn_of_code(newest.path, facts["code"])
        _, renewed = _going_on(newest.state, fingerprint, config)
        if renewed is not None:
            scheduled(renewed)
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
        longer = [word for word in overrides if word.partition("=")[0] in LENGTH]
        folder = RunFolder.reopen(
            old, world=size, longer=longer, overrides=overrides, resumed=come, at=list(at),
            code=facts["code"],
        )  # fmt: skip
        folder.rewind(*at, int(newest.state["updates"]) if newest else 0)
    if newest is not None:
        _say(folder, newest)
        if renewed is not None:
            _say_schedule(newest.state, renewed, config)
    return folder, newest


def _say_schedule(state: State, steps: int, config: Config) -> None:
    assert config.scheduler is not None
    before = spans(state["fingerprint"])
    unit = "epochs" if config.scheduler.get("interval") == "epoch" else "steps"
    kind = config.scheduler["_target_"].rpartition(".")[2]
    said = f"; the run's was made for {sum(before)}" if before else ""
    say(f"schedule: a new {kind}, over the {steps} {unit} from here on{said}")


def _check_same(
    saved: Mapping[str, str], own: Mapping[str, str], config: Config, told: Callable[[str], str]
) -> None:
    """Raise ConfigError unless a checkpoint is this run's; its data is told as it was then."""
    then, now = mode_in(saved), mode_in(own)
    same_way = in_mode_of(saved, own, told)
    saved = same_but_for_length(saved, own)
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


def _address(state: State) -> Address:
    return Address(int(state["loader"]["epoch"]), int(state["loader"]["step"]))


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
