"""The checkpoints of a run: saved in the background, the last few and the best of them kept.

Once the first is written, there is a complete one at every moment, whatever is killed. A save costs
the training a copy of the state to the CPU, and a wait if the disk is slower than the training.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from penstock.distributed.group import Group
from penstock.files.disk import beside, prepare, sync_folder, writing
from penstock.files.limits import Count, PositiveFloat
from penstock.runs import checkpoint_file
from penstock.runs.checkpoint_file import load, save
from penstock.runs.run_state import CheckpointError, NoCheckpointError, State, encode

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Newest",
    "State",
    "find",
    "find_newest",
    "has_checkpoint",
    "load",
    "save",
]

BEST = "best.safetensors"

_NAME = re.compile(r"step-(\d+)\.safetensors")
_NONE = "it holds no checkpoint; give the folder of a run, or one of its checkpoints"

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of a run: the last few, and the best.

    Every rank has one of these and makes the same calls. Rank 0 alone writes. What is sharded
    (FSDP) is made whole on it, a tensor at a time: its memory has to hold the state.

    Args:
        folder: made at the first save.
        group: the ranks.
        keep_last: how many of the last to keep.
        background: write in a thread.
        every_epochs: between two of them; the best and the last are always saved.
        every_steps: of the optimizer, between two in an epoch; None: none.
        every_minutes: the same by the clock.
    """

    def __init__(
        self,
        folder: Path,
        group: Group | None = None,
        /,
        keep_last: Count = 1,
        background: bool = False,
        every_epochs: Count = 1,
        every_steps: Count | None = None,
        every_minutes: PositiveFloat | None = None,
    ) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.every_epochs, self.every_steps = every_epochs, every_steps
        self.every_minutes = every_minutes
        self._background = background
        self._group = group or Group()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._passing: Path | None = None

    def save(self, state: State, step: int, best: bool = False, passing: bool = False) -> Path:
        """Save as the last one, after `step` optimizer steps, and also as the best one if `best`.

        It replaces one of the same step, and one that was `passing`: which steps the clock falls
        on must not decide how far back the last `keep_last` reach. `state` may be changed as soon
        as this returns.

        Raises:
            TypeError: the state holds what cannot be saved.
            CheckpointError: it, or the previous one, cannot be written.
        """
        self.flush()
        text, tensors = encode(state)
        path = self.folder / f"step-{step:08d}.safetensors"
        copies = checkpoint_file.copied(tensors, self._group.is_first)
        if not self._group.is_first:
            return path

        def work() -> None:
            try:
                prepare(self.folder, CheckpointError, idle=0)
                checkpoint_file.write_file(path, text, copies)
                self._settle(path, step, best)
                self._passing = path if passing else None
            except BaseException as error:
                self._failure = error

        if self._background:  # with other ranks, one that died would keep this process from ending
            self._thread = threading.Thread(
                target=work, name="checkpoint", daemon=not self._group.alone
            )
            self._thread.start()
        else:
            work()
            self.flush()
        return path

    def flush(self) -> None:
        """Wait until what was saved is on the disk; raises the error of its writing."""
        self._wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.flush()
        except CheckpointError as failure:
            if error is None:
                raise
            log.error("%s", failure)  # beside the other error

    def saved(self) -> list[Path]:
        """The last ones, oldest first; waits for the one that is being written."""
        self._wait()
        return sorted(_numbered(self.folder), key=_number)

    def latest(self) -> int:
        """Optimizer steps of the newest one; 0 without any."""
        return max(map(_number, self.saved()), default=0)

    def best(self) -> Path | None:
        """The best one, or else the last one; waits for the one that is being written."""
        self._wait()
        if (best := self.folder / BEST).exists():
            return best
        return next(reversed(self.saved()), None)

    def set_aside_after(self, step: int) -> list[Path]:
        """Rename those of a later step, so that no run resumes from them; returns the new names.

        For a run that resumes from `step`: later ones are damaged or of an abandoned branch. So
        none of them stays the best.
        """
        moved = []
        for path in self.saved():
            if _number(path) > step:
                best = self.folder / BEST
                if best.exists() and best.samefile(path):
                    best.unlink()
                name, number = path.with_name(f"set-aside-{path.name}"), 1
                while name.exists():
                    number += 1
                    name = path.with_name(f"set-aside-{number}-{path.name}")
                moved.append(path.rename(name))
        return moved

    def _wait(self) -> None:
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()
            self._thread = None

    def _settle(self, path: Path, step: int, best: bool) -> None:
        """After `path` is on the disk: link the best, delete old ones."""
        if best:
            _link(path, self.folder)
        known = [file for file in self.saved() if _number(file) <= step]
        replaced = [file for file in known if file == self._passing != path]
        old = [file for file in known if file not in replaced][: -self.keep_last]
        for file in [*replaced, *old]:
            with suppress(OSError):  # then the next save tries again
                file.unlink()


def find(path: Path) -> Path:
    """The checkpoint that a path refers to: itself, or the best one of a run or of its folder.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file():
        return path
    best = Checkpoints(_folder_of(path)).best()
    if best is None:
        raise NoCheckpointError(f"{path}: {_NONE}")
    return best


@dataclass(frozen=True)
class Newest:
    """The newest checkpoint that could be loaded.

    Attributes:
        skipped: newer ones that cannot be used, the newest first, and what is wrong with each.
    """

    path: Path
    state: State
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def has_checkpoint(path: Path) -> bool:
    """Whether a run's folder, or the folder of its checkpoints, has any, usable or not."""
    return any(_newest_first(path))


def find_newest(path: Path) -> Newest:
    """The newest usable checkpoint of a run's folder, or of the folder of its checkpoints.

    Raises:
        CheckpointError: there is none, or none can be used; with what is wrong with each.
    """
    skipped: list[tuple[Path, str]] = []
    for file in _newest_first(path):
        try:
            return Newest(file, load(file), skipped)
        except CheckpointError as error:
            skipped.append((file, str(error).removeprefix(f"{file}: ")))
    if not skipped:
        raise NoCheckpointError(f"{path}: {_NONE}")
    reasons = "".join(f"\n  {file.name}: {reason}" for file, reason in skipped)
    raise CheckpointError(f"{path}: none of its checkpoints can be used:{reasons}")


def _newest_first(path: Path) -> Iterator[Path]:
    """All checkpoints, each once. The best is last: if it is not among the others, it is older."""
    folder = _folder_of(path)
    numbered = sorted(_numbered(folder), key=_number, reverse=True)
    yield from numbered
    best = folder / BEST
    if best.exists() and not any(best.samefile(file) for file in numbered if file.exists()):
        yield best


def _folder_of(path: Path) -> Path:
    """The folder of a run's checkpoints, given that of the run or this one itself."""
    inner = path / "checkpoints"
    return inner if inner.is_dir() else path


def _numbered(folder: Path) -> Iterator[Path]:
    """The checkpoints of a folder that have a step in their names."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _number(path: Path) -> int:
    """The optimizer steps of one that has them in its name."""
    match = _NAME.fullmatch(path.name)
    assert match, path
    return int(match[1])


def steps_of(path: Path) -> int | None:
    """The number of optimizer steps in a checkpoint's name; None if it has none."""
    return _number(path) if _NAME.fullmatch(path.name) else None


def _link(path: Path, folder: Path) -> None:
    """Make `path` the best one, atomically, by a hard link, which outlives the first name, or a
    copy on a file system without hard links.
    """
    best = folder / BEST
    hidden = beside(best)
    with writing(best, CheckpointError):
        try:
            os.link(path, hidden)
        except OSError:
            shutil.copyfile(path, hidden)
        hidden.replace(best)
        sync_folder(folder)
