"""The state that a fit begins with, and the run's folder that it writes to.

    find    the newest readable checkpoint of the run that is resumed, which has to be the same run
    claim   a new folder, or that of the run again; after everything is built

The first rank looks and writes; all ranks read the checkpoint, so the folder has to be on a disk
that all machines share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config.hydra import overrides
from penstock.config.identity import LENGTH
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.distributed.group import Group
from penstock.distributed.world import restarts
from penstock.errors import ConfigError
from penstock.order.address import Address, Skipped
from penstock.runs import checkpoint, resumption
from penstock.runs.checkpoint import Newest
from penstock.runs.identity import changes
from penstock.runs.manifest import has_manifest, read_manifest
from penstock.runs.resumption import Source
from penstock.runs.run_folder import RunFolder, last_code
from penstock.terminal import say
from penstock.training.runner import Session


@dataclass
class Opened(Session):
    """A run that can begin.

    Attributes:
        folder: the run's, on the first rank.
        newest: the checkpoint that `state` is of, on the first rank.
        old: the folder of the run that is resumed, on the first rank; None makes a new one.
        renewed: the steps of a new schedule, if one begins now.
    """

    folder: RunFolder | None = None
    newest: Newest | None = None
    old: Path | None = None
    restarted: bool = False
    renewed: int | None = None

    @property
    def start(self) -> Address:
        """The address of the next batch."""
        at = self.state["loader"] if self.state is not None else {"epoch": 0, "step": 0}
        return Address(int(at["epoch"]), int(at["step"]))

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return int(self.state["updates"]) if self.state is not None else 0

    def came_further(self) -> bool:
        """Whether this session saved a checkpoint of a later step than the one it began with."""
        return self.checkpoints is not None and self.checkpoints.latest() > self.updates


def find(config: Config, group: Group, own: Mapping[str, str]) -> Opened:
    """The state to resume from; all ranks make this call.

    Args:
        own: the fingerprint of this run.

    Raises:
        ConfigError: there is nothing to resume, or it is another run.
        CheckpointError: the named checkpoint, or all of them, cannot be used.
    """
    # A launcher on any machine that has started its ranks again wants them to go on.
    opened = Opened(fingerprint=own, restarted=any(group.gather(restarts() > 0)))
    if group.is_first:
        again = Source(Path(config.run_dir), required=False) if opened.restarted else None
        source = resumption.source(config) or again
        if source is not None:
            opened.newest = _newest(source)
            if source.folder is not None and has_manifest(source.folder):
                opened.old = source.folder
    path = group.gather(opened.newest.path if opened.newest else None)[0]  # of the first rank
    if path is None:
        return opened
    opened.state = opened.newest.state if opened.newest else checkpoint.load(path)
    saved, scheduler = opened.state["fingerprint"], config.scheduler
    if problems := resumption.differences(saved, own, opened.start, config.resume_despite):
        raise ConfigError(problems)
    epochs = len(opened.state["progress"]["result"]["history"])
    moves = epochs if config.schedule.interval == "epoch" else opened.updates
    opened.fingerprint, opened.renewed = resumption.with_schedules(saved, own, moves, scheduler)
    return opened


def _newest(source: Source) -> Newest | None:
    if source.checkpoint is not None:
        return Newest(source.checkpoint, checkpoint.load(source.checkpoint))
    folder = source.folder or Path()
    # A run that was stopped before its first checkpoint starts again.
    may_begin = not source.required or read_manifest(folder).get("status") == "preempted"
    if may_begin and not checkpoint.has_checkpoint(folder):
        return None
    return checkpoint.find_newest(folder)


def claim(config: Config, group: Group, opened: Opened, facts: Mapping[str, Any]) -> None:
    """Give `opened` its folder and checkpoints; all ranks make this call.

    Args:
        facts: for the manifest of a new run.
    """
    if group.is_first:
        opened.folder = _folder(config, group.world.size, opened, facts)
        if opened.newest is not None:
            _say_start(opened.folder, opened, opened.newest)
    path = group.gather(opened.folder.path if opened.folder else Path())[0]  # of the first rank
    if config.trainer.checkpoint is not None:
        opened.checkpoints = options(config, "trainer.checkpoint", path / "checkpoints", group)
        if group.is_first and opened.state is not None:
            opened.checkpoints.set_aside_after(opened.updates)


def _folder(config: Config, size: int, opened: Opened, facts: Mapping[str, Any]) -> RunFolder:
    words, at = list(overrides()), list(opened.start)
    begins: dict[str, Any] = {}
    if opened.newest is not None:
        begins = {"at": at, "resumed": str(opened.newest.path)}
        before = last_code(resumption.run_of(opened.newest.path) or Path())
        for part, module, then, now in changes(before, facts["code"]):
            say(
                f"{part}: the code of {module} has changed since the run was last started "
                f"({then} then, {now} now); samples may differ"
            )
    if opened.old is None:
        known = {**facts, "overrides": words, "fingerprint": opened.fingerprint}
        folder = RunFolder.claim(Path(config.run_dir), config.model_dump(), world=size, **known)
        folder.note(**begins)
    else:
        changing = (*LENGTH, resumption.SKIP)
        folder = RunFolder.reopen(
            opened.old,
            world=size,
            longer=[word for word in words if resumption.key_of(word) in changing],
            trainer=config.trainer.model_dump(include={"max_epochs", "max_steps", "skip"}),
            overrides=words,
            code=facts["code"],
            **{"at": at, **begins},
        )
        folder.had_other_data(facts["data"])
        if repeated := folder.rewind(*opened.start, opened.updates):
            folder.note(repeated=repeated)
    if skipped := Skipped.of(config.trainer.skip):
        folder.note(skipped=skipped.ranges)
    return folder


def _say_start(folder: RunFolder, opened: Opened, newest: Newest) -> None:
    """Say where the run resumes, and the cost of damaged checkpoints."""
    for path, reason in newest.skipped:
        say(f"cannot use {path}: {reason}")
    if newest.skipped:
        steps = max((checkpoint.steps_of(path) or 0) for path, _ in newest.skipped)
        say(
            f"resuming from an older one, after {opened.updates} steps; the "
            f"{steps - opened.updates} steps since then are repeated"
        )
    epoch, step = opened.start
    say(f"resuming {folder.path} at epoch {epoch}, step {step} ({newest.path.name})")
    if opened.renewed is not None:
        planned = sum(resumption.spans(newest.state["fingerprint"]))
        moves = f"{opened.renewed} moves of the learning rate that are left"
        say(f"schedule: a new one for the {moves}; the run's was made for {planned}")
