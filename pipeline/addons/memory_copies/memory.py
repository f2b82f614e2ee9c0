"""The last state of a fit in the memory of each machine, for ranks that are started again.

torch's launcher stops all ranks when some are lost or a machine joins, and starts those that there
are. It outlives them, and so does a file in memory, one a machine:

    /dev/shm/penstock-states-<user>/<launcher>/<start of the run>/step-00000123.safetensors

Every copy is what a checkpoint at that moment would be, bit for bit. A small process that waits for
the launcher's end removes them then, however it ends.

Cost: the state's size in memory, twice while a new copy is written; of the time at most `SHARE`,
unless a number of steps was asked for.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from penstock.config.schema import Config
from penstock.distributed import world
from penstock.distributed.group import Group
from penstock.runs import checkpoint, state_tree
from penstock.runs.checkpoint import CheckpointError, Checkpoints, Newest, State
from penstock.terminal import say

SHARE = 0.02  # of the time is spent on copies, at most

_SHARED = Path("/dev/shm")
_SPARE = 1.2  # how much room a copy needs, in sizes of its tensors
_WATCH = """
import os, select, shutil, sys, time
try:
    waits = select.poll()
    waits.register(os.pidfd_open(int(sys.argv[1])), select.POLLIN)
    waits.poll()
except ProcessLookupError:
    pass
for _ in range(300):  # a rank that outlives it may still be writing there
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    if not os.path.exists(sys.argv[2]):
        break
    time.sleep(0.1)
"""


class Memory:
    """The copies of one start of a run. Every rank has one of these and makes the same calls.

    Args:
        session: the id of this start.
        every: optimizer steps between two copies; "auto" spends `SHARE` of the time.
        group: the ranks; the first one of each machine keeps a copy.
        resumed: whether the run has a state already, which is then copied at once, for machines
            that are new.
    """

    def __init__(
        self, session: str, every: int | Literal["auto"], group: Group, resumed: bool
    ) -> None:
        self._every, self._group = every, group
        self._kept = None if resumed else 0  # optimizer steps in the last copy
        self._next = 0.0
        self._folder = _own_folder(make=True) if group.world.local_rank == 0 else None
        self._files: Checkpoints | None = None
        if self._folder is not None:
            self._files = Checkpoints(self._folder / session, background=True)

    def is_due(self, updates: int) -> bool:
        """Whether it is time for a copy, after so many steps; any rank may say so for all."""
        if self._kept is None:
            return True
        if self._every == "auto":
            first = self._group.is_first
            return first and updates > self._kept and time.monotonic() >= self._next
        return updates - self._kept >= self._every

    def keep(self, state: Callable[[], State], updates: int) -> None:
        """Copy the state after `updates` optimizer steps; writes in the background."""
        began = time.monotonic()
        text, tensors = state_tree.encode(state())
        text = self._group.from_first(text)  # one's times and waits, so that all copies are alike
        self._kept = updates
        if self._files is not None:
            try:
                self._check_room(sum(tensor.nbytes for tensor in tensors.values()))
                self._files.save(state_tree.decode(text, tensors), updates)
                self._remove_others()
            except CheckpointError as error:
                self._give_up(error)
        ended = time.monotonic()
        self._next = ended + (ended - began) / SHARE

    def flush(self) -> None:
        """Wait until the last copy is complete."""
        if self._files is not None:
            try:
                self._files.flush()
            except CheckpointError as error:
                self._give_up(error)

    def remove(self) -> None:
        """Remove the copies of this start: the run has reached its end."""
        self.flush()
        if self._files is not None:
            shutil.rmtree(self._files.folder, ignore_errors=True)

    def _check_room(self, size: int) -> None:
        state = os.statvfs(_SHARED)
        room = state.f_bavail * state.f_frsize
        if room < _SPARE * size:
            raise CheckpointError(
                f"{_SHARED} has {room >> 20} MiB left, and a copy of the state "
                f"needs {int(_SPARE * size) >> 20}"
            )

    def _remove_others(self) -> None:
        """Remove the copies of earlier starts, once this one has its own."""
        assert self._files is not None
        assert self._folder is not None
        others = [path for path in self._folder.iterdir() if path != self._files.folder]
        if others:
            self._files.flush()
        for path in others:
            shutil.rmtree(path, ignore_errors=True)

    def _give_up(self, error: CheckpointError) -> None:
        assert self._files is not None
        shutil.rmtree(self._files.folder, ignore_errors=True)
        self._files = None
        say(
            f"no copies of the state in the memory of {platform.node()}: {error}. Ranks that are "
            "started again read the last checkpoint"
        )


def of_start(config: Config, session: str, group: Group, resumed: bool) -> Memory | None:
    """The copies of a start; None if none are asked for, or nothing will ask for them."""
    every = None
    if config.trainer.checkpoint is not None and world.launcher_start() is not None:
        every = config.trainer.checkpoint.option("memory_every_steps")
    if every == "auto" and not world.starts_again():
        every = None
    # In parts (FSDP), the state of a lost machine would be lost with it.
    every = group.from_first(every) if config.distributed.strategy == "ddp" else None
    return Memory(session, every, group, resumed) if every is not None else None


def is_copy(path: Path) -> bool:
    """Whether a path is that of a copy in memory, of any machine."""
    return path.is_relative_to(_SHARED)


def found() -> dict[str, int]:
    """The steps of the newest copy of each start that this machine's launcher has seen."""
    folder = _own_folder()
    copies: dict[str, int] = {}
    for start in folder.iterdir() if folder is not None else ():
        saved = [checkpoint.steps_of(path) or 0 for path in Checkpoints(start).saved()]
        if saved:
            copies[start.name] = max(saved)
    return copies


def share(group: Group, rank: int, session: str, check: Callable[[State], None]) -> Newest | None:
    """The newest copy of that start that the given rank's machine has, on all ranks.

    Args:
        check: raises ValueError for a state that cannot be used.

    Returns:
        None if it cannot be read; that rank says why.
    """
    newest, text = None, ""
    tensors: dict[str, Tensor] = {}
    if group.world.rank == rank:
        try:
            folder = _own_folder()
            newest = checkpoint.find_newest((folder or _SHARED) / session, check)
            text, tensors = state_tree.encode(newest.state)
        except CheckpointError as error:
            say(f"the copy in memory cannot be used: {error}")
    described = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    path = str(newest.path) if newest else ""
    path, text, described = group.from_rank(rank, (path, text, described))
    if not path:
        return None
    for name, (dtype, shape) in described.items():
        whole = tensors.get(name)
        whole = torch.empty(shape, dtype=dtype) if whole is None else whole.contiguous()
        group.copy_from(rank, whole)
        tensors[name] = whole
    return Newest(Path(path), state_tree.decode(text, tensors))


def _own_folder(make: bool = False) -> Path | None:
    """Where this machine's launcher has its copies, for this user alone; None if it has no place.

    A process that removes it is started when it is made.
    """
    name = world.launcher_start()
    if name is None or not _SHARED.is_dir():
        return None
    root = _SHARED / f"penstock-states-{os.geteuid()}"
    if not make and not (root / name).exists():
        return None
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        state = root.lstat()
        alone = stat.S_ISDIR(state.st_mode) and not stat.S_IMODE(state.st_mode) & 0o077
        if not alone or state.st_uid != os.geteuid():
            say(
                f"{root} is not a folder that only you can open; no copies of the state are kept "
                "in memory. Remove it"
            )
            return None
        folder = root / name
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)  # by one process
            _remove_at_the_end_of(world.launcher_process() or 0, folder)
        return folder
    except OSError as error:
        say(f"no copies of the state in memory: {root}: {error.strerror}")
        return None


def _remove_at_the_end_of(process: int, folder: Path) -> None:
    """Start a small process (8 MB) that waits for another one's end, and removes a folder then."""
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", _WATCH, str(process), str(folder)],
        {},
        file_actions=nothing,
        setsid=True,
    )
