"""Files and folders that belong to this user: no others are written to or emptied.

A run's folder or a cache may come from somebody else, with links in it that lead to other files, or
pipes that block. Cost: three system calls a file, 2 us. On Windows only the kind of a file is
checked.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError
from penstock.files.regular_file import KINDS

_NAMES = ("O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK", "O_BINARY")  # no system has all of them
_SAFELY = sum(getattr(os, name, 0) for name in _NAMES)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_OWNERS = hasattr(os, "geteuid")  # not on Windows


class NotOwnError(PenstockError):
    """A file or folder is not this user's own; the message names it."""

    exit_code = 2


def open_own(path: Path | str, flags: int, mode: int = 0o666, linked: bool = False) -> int:
    """A descriptor of a regular file of this user, to write to or to lock.

    Args:
        flags: of `os.open`, without O_TRUNC, which would come before the file is checked.
        linked: allow that the file has other names (hard links), for what is not written to.

    Raises:
        NotOwnError: it is something else, or has another name or owner.
        OSError: as for `os.open`.
    """
    with suppress(FileNotFoundError):
        _check(path, os.lstat(path), linked)
    try:
        descriptor = os.open(path, flags | _NO_LINK | _SAFELY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refusal(path, "a symbolic link") from error
        raise
    try:
        _check(path, os.fstat(descriptor), linked)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_own(path: Path | str, state: os.stat_result | None = None) -> None:
    """Raise NotOwnError unless `path` is a regular file of this user; `state`, if it is known."""
    _check(path, os.lstat(path) if state is None else state, linked=False)


def check_tree(folder: Path, links: Collection[str] = ()) -> None:
    """Raise NotOwnError if a folder has anything but folders and regular files of its owner in it.

    A file may have several names (hard links) if all lie in one folder, as the best checkpoint's.

    Args:
        links: names that symbolic links to something beside them may have.
    """
    for inner, folders, files in os.walk(folder, onerror=_raise):
        folders.sort()
        names: dict[tuple[int, int], list[Path]] = {}
        for name in sorted(folders + files):
            path = Path(inner, name)
            with suppress(FileNotFoundError):  # somebody who writes there has removed it
                state = path.lstat()
                if stat.S_ISLNK(state.st_mode) and name in links:
                    target = path.readlink()
                    beside = target.name == str(target) and target.name != ".."
                    if not beside or path.parent.joinpath(target).is_symlink():
                        raise _refusal(path, f"a symbolic link to {target}")
                elif not stat.S_ISDIR(state.st_mode):
                    _check(path, state, linked=True)
                    names.setdefault((state.st_dev, state.st_ino), []).append(path)
        for paths in names.values():
            with suppress(FileNotFoundError):
                if paths[0].lstat().st_nlink > len(paths):
                    raise _refusal(paths[0], "also the name of a file elsewhere (a hard link)")


def own_folder(path: Path, link: bool = False, key: str = "cache_dir") -> Path:
    """`path`, made for this user alone (mode 0700) if it is not there.

    Args:
        link: whether it may be a symbolic link, as a folder that a person has named may.
        key: of the configuration that names another folder.

    Raises:
        NotOwnError: it belongs to somebody else, or everybody can write to it.
        OSError: it cannot be made.
    """
    if not os.path.lexists(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    state = path.stat() if link else path.lstat()
    if stat.S_ISREG(state.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not stat.S_ISDIR(state.st_mode):
        raise _refusal(path, KINDS.get(stat.S_IFMT(state.st_mode), "a file"), "a folder")
    if _OWNERS:
        if state.st_uid not in (os.geteuid(), 0) and state.st_uid != _owner_of_new_files(path):
            raise NotOwnError(
                f"{path} belongs to another user (number {state.st_uid}), who could put anything "
                f"into it. Set {key} to a folder of your own"
            )
        if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
            raise NotOwnError(
                f"everybody can write to {path}, and put anything into it. Check its files, then "
                f"chmod o-w {path}; or set {key} to a folder of your own"
            )
    return path


def new_folder(parent: Path) -> Path:
    """A folder in `parent` that was not there before, for this user alone (mode 0700).

    Files that are read back from it, such as the pickles of jobs, are newer than it is.

    Raises:
        NotOwnError: its disk keeps no permissions.
        OSError: it cannot be made.
    """
    path = parent / secrets.token_hex(8)
    path.mkdir(mode=0o700)
    if _OWNERS and path.lstat().st_mode & 0o077:
        raise NotOwnError(
            f"other users can open {path}, as its disk keeps no permissions; what they put into it "
            "would be run. Use a folder on another disk"
        )
    return path


def why_others_write(path: Path, state: os.stat_result) -> str | None:
    """The reason why others may have written a file, whose open `state` is given; None if none can.

    Stricter than the other checks: a file of another user is refused anywhere, and so is a file in
    a folder where others may write, sticky or not: they could put a package beside it.
    """
    if path.is_symlink():
        return "it is a symbolic link"
    if not _OWNERS:
        return None
    folder = path.parent.resolve()
    for what, status in (("it", state), (f"its folder {folder}", folder.stat())):
        if status.st_uid != os.geteuid():
            return f"{what} belongs to another user (number {status.st_uid})"
        if status.st_mode & stat.S_IWOTH:
            return f"everybody can write to {what} (chmod o-w)"
        if status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid():
            return f"the group number {status.st_gid} can write to {what} (chmod g-w)"
    return None


def why_not_private(folder: Path) -> str | None:
    """The reason why others may enter `folder`, or put another in its place; None if none can.

    Args:
        folder: resolved: a link on the way to it is a reason too.

    Raises:
        OSError: it is not there.
    """
    if not _OWNERS:
        return None
    user, root = os.geteuid(), Path(folder.anchor).stat().st_uid  # not 0 in some containers
    for path in (folder, *folder.parents):
        state, inner = path.lstat(), path == folder
        if not stat.S_ISDIR(state.st_mode):
            return f"{path} is {KINDS.get(stat.S_IFMT(state.st_mode), 'a file')}, not a folder"
        if state.st_uid not in ((user,) if inner else (user, root, 0)):
            return f"{path} belongs to another user (number {state.st_uid})"
        mode = stat.S_IMODE(state.st_mode)
        if inner and mode & 0o077:
            return f"others can enter {path} (its mode is {mode:o})"
        by_group = mode & stat.S_IWGRP and state.st_gid != os.getegid()
        if not mode & stat.S_ISVTX and (by_group or mode & stat.S_IWOTH):
            return f"others can rename files in {path} (its mode is {mode:o})"
    return None


def _owner_of_new_files(folder: Path) -> int:
    """The owner of files that this process makes in `folder`: on network drives maybe another."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return -1


def _raise(error: OSError) -> None:
    raise error


def _check(path: Path | str, state: os.stat_result, linked: bool) -> None:
    kind = stat.S_IFMT(state.st_mode)
    if kind != stat.S_IFREG:
        raise _refusal(path, KINDS.get(kind, "not a regular file"))
    if state.st_nlink > 1 and not linked:
        raise _refusal(path, "also the name of another file (a hard link)")
    if not _OWNERS or state.st_uid == os.geteuid():
        return
    # Some network drives and mounts give all files an owner of their own, the folder included.
    if state.st_uid != Path(path).parent.stat().st_uid:
        raise _refusal(path, f"another user's (number {state.st_uid})")


def _refusal(path: Path | str, what: str, expected: str = "a file of your own") -> NotOwnError:
    return NotOwnError(
        f"{path} is {what}, not {expected}; nothing was written to it. Delete it, or replace it "
        "by a copy"
    )
