"""Files and folders that are this user's own: what lies elsewhere is neither written nor emptied.

A run's folder, and a cache, may come from somebody else: unpacked, copied, or on a disk that many
share. What stands there under a name that we write may be a link to another file, which would be
written in its place; or a pipe, which would be waited for.

    open_own        a regular file to write to or to lock: no link, no second name, same owner
    check_own       the same for what lies in a folder, all of it
    own_folder      a cache's folder: made for its user alone, refused where others could write
    why_others_write  whether somebody else can have written a file that is about to be obeyed

Cost: three calls of the system a file, 2 us. Windows knows neither links of this kind nor owners;
there only the kind of a file is looked at.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.errors import PenstockError

_NAMES = ("O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK", "O_BINARY")  # no system has all of them
_SAFELY = sum(getattr(os, name, 0) for name in _NAMES)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_KINDS = {
    stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


class NotOwnError(PenstockError):
    """A file or folder stands where one of this user's own has to be; the message names it."""

    exit_code = 2


def open_own(path: Path, flags: int, mode: int = 0o666, linked: bool = False) -> int:
    """A descriptor of a regular file of this user's, as `os.open` gives it.

    Args:
        flags: without O_TRUNC, which would come before the file is looked at.
        linked: allow that the file has other names (hard links), for what is not written to.

    Raises:
        NotOwnError: it is something else, or has another name or owner.
        OSError: as of `os.open`.
    """
    with suppress(FileNotFoundError):
        _check(path, path.lstat(), linked)
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


def check_own(path: Path, state: os.stat_result | None = None) -> None:
    """Refuse what is no regular file of this user's.

    Args:
        state: of `path` itself, if it is known.

    Raises:
        NotOwnError: it is none.
        OSError: it cannot be looked at.
    """
    _check(path, path.lstat() if state is None else state, linked=False)


def check_tree(folder: Path, links: Collection[str] = ()) -> None:
    """Refuse a folder that holds anything but folders and regular files of its owner's.

    A file may have several names (hard links) if all lie in one folder, as the best checkpoint's.

    Args:
        links: names that symbolic links to something beside them may have.

    Raises:
        NotOwnError: there is something else in it; the message names it.
    """
    for inner in _folders(folder):
        names: dict[tuple[int, int], list[Path]] = {}
        for entry in _entries(inner):
            path = Path(entry.path)
            with suppress(FileNotFoundError):  # somebody who writes there has taken it away
                state = path.lstat()
                if stat.S_ISLNK(state.st_mode) and entry.name in links:
                    _check_link(path)
                elif not stat.S_ISDIR(state.st_mode):
                    _check(path, state, linked=True)
                    names.setdefault((state.st_dev, state.st_ino), []).append(path)
        for paths in names.values():
            with suppress(FileNotFoundError):
                if paths[0].lstat().st_nlink > len(paths):
                    raise _refusal(paths[0], "also the name of a file elsewhere (a hard link)")


def own_folder(path: Path, link: bool = False) -> Path:
    """`path`, made for this user alone (mode 0700) if it is not there.

    Args:
        link: whether it may be a symbolic link, as what a person has named may.

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
        raise _refusal(path, _KINDS.get(stat.S_IFMT(state.st_mode), "a file"), "a folder")
    if hasattr(os, "geteuid"):
        known = state.st_uid in (os.geteuid(), 0) or state.st_uid == _owner_of_new_files(path)
        if not known:
            raise NotOwnError(
                f"{path} belongs to another user (number {state.st_uid}), who could put anything "
                "into it. Set cache_dir to a folder of your own"
            )
        if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
            raise NotOwnError(
                f"everybody can write to {path}, and put anything into it. Look through it, then "
                f"chmod o-w {path}; or set cache_dir to a folder of your own"
            )
    return path


def why_others_write(path: Path, state: os.stat_result) -> str | None:
    """Why a file may not be this user's own words; None if nobody else can write it or replace it.

    Stricter than the others here: a file of another user's is refused wherever it lies, and so is
    one in a folder where others may write, sticky or not: they could lay a package beside it.

    Args:
        state: of the open file.
    """
    if path.is_symlink():
        return "it is a symbolic link"
    if not hasattr(os, "geteuid"):
        return None
    folder = path.parent.resolve()
    for what, one in (("it", state), (f"its folder {folder}", folder.stat())):
        if one.st_uid != os.geteuid():
            return f"{what} belongs to another user (number {one.st_uid})"
        if one.st_mode & stat.S_IWOTH:
            return f"everybody can write to {what} (chmod o-w)"
        if one.st_mode & stat.S_IWGRP and one.st_gid != os.getegid():
            return f"the group number {one.st_gid} can write to {what} (chmod g-w)"
    return None


def _owner_of_new_files(folder: Path) -> int:
    """Whose a file is that this process makes in `folder`: network drives may give it another's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return -1


def _folders(folder: Path) -> Iterator[Path]:
    yield folder
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _folders(Path(entry.path))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _check_link(path: Path) -> None:
    target = path.readlink()
    if (
        len(target.parts) != 1
        or target.name != str(target)
        or path.parent.joinpath(target).is_symlink()
    ):
        raise _refusal(path, f"a symbolic link to {target}")


def _check(path: Path, state: os.stat_result, linked: bool) -> None:
    kind = stat.S_IFMT(state.st_mode)
    if kind != stat.S_IFREG:
        raise _refusal(path, _KINDS.get(kind, "no regular file"))
    if state.st_nlink > 1 and not linked:
        raise _refusal(path, "also the name of another file (a hard link)")
    if not hasattr(os, "geteuid") or state.st_uid == os.geteuid():
        return
    # Some network drives and mounts give all files an owner of their own, the folder included.
    if state.st_uid != path.parent.stat().st_uid:
        raise _refusal(path, f"another user's (number {state.st_uid})")


def _refusal(path: Path, what: str, wanted: str = "a file of your own") -> NotOwnError:
    return NotOwnError(
        f"{path} is {what}, where {wanted} has to be; nothing was written to it. Delete it, or put "
        "a copy in its place"
    )
