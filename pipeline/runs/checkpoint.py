"""The checkpoints of a run: saved in the background, the last few and the best of them kept.

    save, load      one checkpoint; a file (checkpoint_file.py), or a folder to which many ranks
                    wrote their parts (sharded_checkpoint.py)
    Checkpoints     1. wait for the write before; 2. copy the state to the CPU; 3. in a thread,
                    write it, link it if it is the best, and delete those that are too old
    find            the one that a person means;  find_newest  the one to go on from

Once the first is written, there is a complete one at every moment, whatever is killed. Cost of a
save to the training: the copy, and the wait if the disk is slower than the training.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from pipeline.distributed.group import Group
from pipeline.files.disk import Hold, beside, discard, prepare, refuse, sync_folder
from pipeline.runs import checkpoint_file, sharded_checkpoint
from pipeline.runs.checkpoint_file import save
from pipeline.runs.state_tree import CheckpointError, NoCheckpointError, State, encode, is_sharded

__all__ = ["CheckpointError", "Checkpoints", "Newest", "State", "find", "find_newest",
           "has_checkpoint", "load", "load_checked", "save"]  # fmt: skip

BEST = "best.safetensors"
BEST_FOLDER = "best"

_NAME = re.compile(r"step-(\d+)(?:-(\d+))?(?:\.safetensors)?")

log = logging.getLogger(__name__)


def load(path: Path) -> State:
    """The state that was saved to a file or a folder, its tensors whole, on the CPU.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of a newer version.
    """
    if path.is_dir() and (path / sharded_checkpoint.STATE).exists():
        return sharded_checkpoint.load(path)
    if path.is_dir() and _NAME.fullmatch(path.name):
        raise CheckpointError(f"{path}: the checkpoint is damaged: it has no state.json. Use an "
                              "earlier one")  # fmt: skip
    return checkpoint_file.load(path)


class Checkpoints:
    """The checkpoints of a run: the last few, and the best.

    Where there are several ranks, each has one of these and makes the same calls. Rank 0 writes
    alone what all of them have; what they have parts of (FSDP), all of them write.

    Args:
        folder: made when the first one is saved.
        keep_last: how many of the last to keep.
        background: write in a thread, while the training goes on.
        group: the ranks.
    """

    def __init__(
        self, folder: Path, keep_last: int = 1, background: bool = False, group: Group | None = None
    ) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self._background = background
        self._group = group or Group()
        self._own: tuple[Group, Any] | None = None  # for the ranks' talk about writing
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, state: State, step: int, best: bool = False) -> Path:
        """Save as the last one, after `step` optimizer steps, and as the best one if it is.

        A state of the same step is replaced. `state` may be changed as soon as this returns.

        Raises:
            TypeError: the state holds what cannot be saved.
            CheckpointError: it, or what was saved before it, cannot be written.
        """
        self.flush()
        text, tensors = encode(state)
        if any(is_sharded(tensor) for tensor in tensors.values()):
            path, write = self._sharded(text, tensors, step)
        elif self._group.is_first:
            path, write = self._whole(text, tensors, step)
        else:
            return self._file(step)

        def work() -> None:
            write()
            if self._group.is_first:
                self._settle(path, step, best)

        if self._background:
            self._start(work)
        else:
            work()
        return path

    def flush(self) -> None:
        """Wait until what was saved is on the disk; raises the error of its writing."""
        self._wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """As flush; nothing more will be saved."""
        self.flush()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            self.close()
        except CheckpointError as failure:
            if error is None:
                raise
            log.error("%s", failure)  # beside the error that is on its way

    def saved(self) -> list[Path]:
        """The last ones, oldest first; waits for what is being written."""
        self._wait()
        return sorted(_numbered(self.folder), key=_number)

    def best(self) -> Path | None:
        """The best one; the last one where none was called the best; waits as `saved` does."""
        self._wait()
        paths = [path for path in (self.folder / BEST, self.folder / BEST_FOLDER) if path.exists()]
        if paths:  # of both kinds, if the run was killed when it went on in another way
            return max(paths, key=lambda path: path.lstat().st_mtime_ns)
        return next(reversed(self.saved()), None)

    def set_aside_after(self, step: int) -> list[Path]:
        """Give those of a later step other names, so that nobody goes on from them; the new names.

        For a run that goes on from `step`: later ones are damaged, or of what it leaves behind. So
        none of them stays the best.
        """
        moved = []
        for path in self.saved():
            if _number(path)[0] > step:
                for best in (self.folder / BEST, self.folder / BEST_FOLDER):
                    if best.exists() and best.samefile(path):
                        best.unlink()
                name, number = path.with_name(f"set-aside-{path.name}"), 1
                while name.exists():
                    number += 1
                    name = path.with_name(f"set-aside-{number}-{path.name}")
                moved.append(path.rename(name))
        return moved

    def _file(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def _whole(
        self, text: str, tensors: Mapping[str, Tensor], step: int
    ) -> tuple[Path, Callable[[], None]]:
        path, copies = self._file(step), checkpoint_file.copied(tensors)

        def write() -> None:
            prepare(self.folder, CheckpointError)
            checkpoint_file.write_file(path, text, copies)

        return path, write

    def _sharded(
        self, text: str, tensors: Mapping[str, Tensor], step: int
    ) -> tuple[Path, Callable[[], None]]:
        copies = sharded_checkpoint.copied(tensors)
        if self._own is None:
            self._own = sharded_checkpoint.own_group(self._group)
        group, parts = self._own
        # A folder cannot be replaced in one step, so that one of the same step gets a number.
        there = [_number(path)[1] for path in self.saved() if _number(path)[0] == step]
        name = f"step-{step:08d}-{max(there) + 1}" if there else f"step-{step:08d}"
        path = self.folder / name

        def write() -> None:
            sharded_checkpoint.write_folder(path, text, copies, group, parts)

        return path, write

    def _wait(self) -> None:
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()
            self._thread = None

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._failure = error

        # With other ranks, one that died would keep this process from ending.
        self._thread = threading.Thread(target=run, name="checkpoint", daemon=not self._group.alone)
        self._thread.start()

    def _settle(self, path: Path, step: int, best: bool) -> None:
        """After `path` is on the disk: link the best, delete what is too old."""
        if best:
            _link(path, self.folder)
        known = [one for one in self.saved() if _number(one)[0] <= step]
        replaced = [one for one in known if _number(one)[0] == step and one != path]
        old = [one for one in known if one not in replaced][: -self.keep_last]
        held = (self.folder / BEST_FOLDER).resolve().name
        for one in [*replaced, *old]:
            if one.name != held:
                with suppress(OSError):  # at the next save, then
                    discard(one)


def find(path: Path) -> Path:
    """What a person means: a checkpoint, a run's folder (its best one), or their folder.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file() or (path / sharded_checkpoint.STATE).exists():
        return path
    best = Checkpoints(_folder_of(path)).best()
    if best is None:
        raise _none(path)
    return best


@dataclass(frozen=True)
class Newest:
    """The newest checkpoint that could be loaded.

    Attributes:
        state: what it holds.
        skipped: newer ones that are no good, the newest first, and what is wrong with each.
    """

    path: Path
    state: State
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def has_checkpoint(path: Path) -> bool:
    """Whether a run's folder, or the folder of its checkpoints, has any, good or not."""
    return any(_newest_first(path))


def load_checked(path: Path, check: Callable[[State], None]) -> State:
    """`load`, of what `check` takes; raises CheckpointError, also in place of its ValueError."""
    state = load(path)
    try:
        check(state)
    except ValueError as error:
        raise CheckpointError(f"{path}: {checkpoint_file.DAMAGED}: {error}. Use an earlier "
                              "one") from error  # fmt: skip
    return state


def find_newest(path: Path, check: Callable[[State], None] = lambda state: None) -> Newest:
    """The newest good checkpoint of a run's folder, or of the folder of its checkpoints.

    Args:
        check: raises ValueError, with what is wrong, for a state that is no good.

    Raises:
        CheckpointError: there is none, or none is good; then with what is wrong with each.
    """
    skipped: list[tuple[Path, str]] = []
    for one in _newest_first(path):
        try:
            return Newest(one, load_checked(one, check), skipped)
        except CheckpointError as error:
            skipped.append((one, str(error).removeprefix(f"{one}: ")))
    if not skipped:
        raise _none(path)
    reasons = "".join(f"\n  {one.name}: {reason}" for one, reason in skipped)
    raise CheckpointError(f"{path}: none of its checkpoints can be used:{reasons}")


def _newest_first(path: Path) -> Iterator[Path]:
    """All checkpoints, each once.

    The best comes last: those that are deleted are always the oldest, so where it is none of the
    others, it is older than they are.
    """
    folder = _folder_of(path)
    numbered = sorted(_numbered(folder), key=_number, reverse=True)
    yield from numbered
    for best in (folder / BEST, folder / BEST_FOLDER):
        if best.exists() and not any(best.samefile(one) for one in numbered if one.exists()):
            yield best


def _folder_of(path: Path) -> Path:
    """The folder with a run's checkpoints, given that of the run or this one itself."""
    inner = path / "checkpoints"
    return inner if inner.is_dir() else path


def _none(path: Path) -> CheckpointError:
    return NoCheckpointError(f"{path}: there is no checkpoint in it; give the folder of a run, or "
                             "a checkpoint of its checkpoints folder")  # fmt: skip


def _numbered(folder: Path) -> Iterator[Path]:
    """The checkpoints of a folder that have a step in their names."""
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _number(path: Path) -> tuple[int, int]:
    """Step, and which of several of that step."""
    match = _NAME.fullmatch(path.name)
    assert match, path
    return int(match[1]), int(match[2] or 1)


def steps_of(path: Path) -> int | None:
    """How many optimizer steps a checkpoint's name says; None for one without a number."""
    return _number(path)[0] if _NAME.fullmatch(path.name) else None


def _link(path: Path, folder: Path) -> None:
    """Make `path` the best one, atomically: a file by a second name, so that it outlives the first;
    a folder by a link to it. Where there are no hard links, the file is copied.
    """  # fmt: skip
    names = (BEST_FOLDER, BEST) if path.is_dir() else (BEST, BEST_FOLDER)
    best, other = (folder / name for name in names)
    hidden = beside(best)
    try:
        with _held(path):
            if path.is_dir():
                hidden.symlink_to(path.name)
            else:
                _hard_link(path, hidden)
            hidden.replace(best)
        other.unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        refuse(best, error, CheckpointError)


def _hard_link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, path)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a file, so that its second name is not taken for a leftover."""
    hold = None if path.is_dir() else Hold.take(path, linked=True)
    try:
        yield
    finally:
        if hold is not None:
            hold.release()
