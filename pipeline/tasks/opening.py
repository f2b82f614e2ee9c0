"""The state that a fit begins with, and the run's folder that it writes to.

    find    the newest readable checkpoint of the run that is resumed, which has to be the same run
    claim   a new folder, or that of the run again; after everything is built

The first rank looks and writes; all ranks read the checkpoint, so the folder has to be on a disk
that all machines share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config.hydra import overrides
from penstock.config.identity import LENGTH
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.distributed.group import Group
from penstock.errors import ConfigError, Problem
from penstock.order.address import Address, Skipped
from penstock.runs import checkpoint, resume
from penstock.runs.checkpoint import Newest
from penstock.runs.folder import (
    UNPROVEN,
    RunFolder,
    has_manifest,
    names_of,
    read_manifest,
    same_data,
)
from penstock.terminal import say
from penstock.training.loop import Session

_TIMED = re.compile(r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d(/\d+)?$")  # a folder that is new each time


class Source(NamedTuple):
    """Where to resume from.

    Attributes:
        folder: the run's, to write in; None makes a new one.
        checkpoint: the file to read; None takes the newest of the folder.
        required: whether it is an error if nothing is there.
    """

    folder: Path | None
    checkpoint: Path | None = None
    required: bool = True


def source(config: Config) -> Source | None:
    """The source that `resume` names; None if it is null.

    Raises:
        ConfigError: nothing is there, or never can be.
    """
    if config.resume is None:
        return None
    path = Path(config.run_dir if config.resume == "auto" else config.resume)
    if config.resume == "auto" and (has_manifest(path) or not _TIMED.search(config.run_dir)):
        return Source(path, required=False)
    if config.resume == "auto":
        reason = (
            f"auto resumes the run in run_dir, but {path} is named by the time of the start and "
            "new each time; set run_dir=outputs/<name> (hydra.sweep.dir=... for a sweep)"
        )
    elif has_manifest(path):
        return Source(path)
    elif path.is_file():
        return Source(None, path)
    else:
        reason = (
            f"{path} is neither a run's folder (it has no manifest.json) nor a checkpoint; a "
            "sweep resumes when its command is typed again"
        )
    raise ConfigError(Problem("resume", reason))


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


def find(config: Config, group: Group, own: Mapping[str, Any]) -> Opened:
    """The state to resume from; all ranks make this call.

    Args:
        own: the fingerprint of this run.

    Raises:
        ConfigError: there is nothing to resume, or it is another run.
        CheckpointError: the named checkpoint, or all of them, cannot be used.
    """
    # If the launcher of any machine has started its ranks again, all of them resume.
    restarted = any(group.gather(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0))
    opened = Opened(fingerprint=own)
    if group.is_first:
        origin = source(config)
        if origin is None and restarted:
            # In the folder that they began, which is the last: the names before it were taken.
            begun = takewhile(has_manifest, names_of(Path(config.run_dir)))
            origin = Source([Path(config.run_dir), *begun][-1], required=False)
        if origin is not None:
            opened.newest = _newest(origin)
            if origin.folder is not None and has_manifest(origin.folder):
                opened.old = origin.folder
    path = group.gather(opened.newest.path if opened.newest else None)[0]  # of the first rank
    if path is None:
        return opened
    # The first rank has read it already; the others read the same file.
    opened.state = opened.newest.state if opened.newest else checkpoint.load(path)
    saved, scheduler = opened.state["fingerprint"], config.scheduler
    if problems := resume.differences(saved, own, opened.start, config.resume_despite):
        raise ConfigError(problems)
    epochs = len(opened.state["progress"]["result"]["history"])
    moves = epochs if config.schedule.interval == "epoch" else opened.updates
    opened.fingerprint, opened.renewed = resume.with_schedules(saved, own, moves, scheduler)
    return opened


def _newest(source: Source) -> Newest | None:
    if source.checkpoint is not None:
        return Newest(source.checkpoint, checkpoint.load(source.checkpoint))
    folder = source.folder or Path()
    # A run that was stopped before its first checkpoint starts again.
    may_begin = not source.required or read_manifest(folder).get("status") == "preempted"
    if may_begin and not checkpoint.saved(folder):
        return None
    return checkpoint.find_newest(folder)


def claim(config: Config, group: Group, opened: Opened, facts: Mapping[str, Any]) -> None:
    """Give `opened` its folder and checkpoints; all ranks make this call.

    Args:
        facts: for the manifest of a new run.
    """
    if group.is_first:
        opened.folder = _folder(config, group.world.size, opened, facts)
    path = group.gather(opened.folder.path if opened.folder else Path())[0]  # of the first rank
    if config.trainer.checkpoint is not None:
        opened.checkpoints = options(config, "trainer.checkpoint", path / "checkpoints", group)
        if opened.old is not None and opened.newest is not None:
            opened.checkpoints.set_aside(path for path, _ in opened.newest.skipped)
    opened.newest = None  # with it the last name but `opened.state` of tensors in memory


def _folder(config: Config, size: int, opened: Opened, facts: Mapping[str, Any]) -> RunFolder:
    words, newest, begins = list(overrides()), opened.newest, dict[str, Any]()
    if newest is not None:
        begins = {"at": list(opened.start), "resumed": str(newest.path)}
        _say_changes(newest.path, facts["code"])
    if opened.old is None:
        known = {**facts, "overrides": words, "fingerprint": opened.fingerprint}
        folder = RunFolder.claim(Path(config.run_dir), config.model_dump(), world=size, **known)
        folder.note(**begins)
    else:
        # What was typed at the first start still holds, but for these.
        changing = (*LENGTH, resume.SKIP)
        folder = RunFolder.reopen(
            opened.old,
            config.trainer.model_dump(include={"max_epochs", "max_steps", "skip"}),
            [word for word in words if resume.key_of(word) in changing],
            size,
            overrides=words,
            code=facts["code"],
            **{"at": list(opened.start), **begins},
        )
        before = folder.manifest.get("data", {})
        if same_data(before, facts["data"]) is False:
            # After a change of the data, no single fingerprint describes it.
            before["train"] = f"{before.get('train')}, then {facts['data']['train']}"
            before["identity"] = {**before.get("identity", {}), "train": UNPROVEN}
        # Lines behind the checkpoint are of batches that come again, and each address has one line.
        folder.rewind(*opened.start, opened.updates)
    if skipped := Skipped.of(config.trainer.skip):
        folder.note(skipped=skipped.ranges)
    if newest is not None:
        for path, reason in newest.skipped:
            say(f"cannot use {path}: {reason}; the run repeats the steps after {newest.path.name}")
        epoch, step = opened.start
        say(f"resuming {folder.path} at epoch {epoch}, step {step} ({newest.path.name})")
        if opened.renewed is not None:
            planned = sum(newest.state["fingerprint"].get(resume.SCHEDULES, [0]))
            moves = f"remaining {opened.renewed} changes of the learning rate"
            say(f"schedule: a new one for the {moves}; the run's was made for {planned}")
    return folder


def _say_changes(path: Path, now: Mapping[str, str]) -> None:
    """Name the code that makes samples and has changed since the run of a checkpoint last began."""
    if (folder := resume.run_of(path)) is None:
        return
    manifest = read_manifest(folder)
    # Compared with the newest start, so that each change is reported once.
    starts = [manifest, *manifest.get("sessions", [])]
    then: dict[str, Any] = next((one["code"] for one in reversed(starts) if one.get("code")), {})
    changed = {
        f"the code of {module} has changed since the run was last started ({then[module]} then, "
        f"{digest} now); samples may differ"
        for module, digest in now.items()
        if then.get(module, digest) != digest
    }
    for text in sorted(changed):
        say(text)
