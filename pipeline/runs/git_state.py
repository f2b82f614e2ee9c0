"""The commit of a checkout, and whether its files differ: git answers, and runs none of their code.

A checkout's `.git/config` may name programs: filters, hooks, monitors, helpers of transports, and
whatever later versions of git bring. So git does not read it. It works in a folder of our own with
a configuration of our own, and is given the checkout's files, index and objects, which it only
reads. Of the checkout's configuration, a few values that hold no text are taken over, without which
unchanged files would look changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeGuard

from penstock.files.regular_file import open_regular

_SECONDS = 5  # that git may take, each time it is called
_LARGEST = 1 << 20  # bytes of a configuration, or of a list of ignored files
_LONGEST = 4096  # bytes of a line: a reference, a path
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_REFERENCE = re.compile(r"refs/[^\x00-\x20~^:?*\[\\\x7f]+")
_DEEPEST = 5  # references that name each other, as in git
_TAKEN = re.compile(
    r"(core\.(?:filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|trustctime|checkstat)"
    r"|extensions\.objectformat)\n([a-z0-9]{1,10})"
)
# Nothing of the user's configuration either: HOME may be anything.
_ALONE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ALLOC_LIMIT": "1g",
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class _Checkout:
    """Folders of a checkout.

    Attributes:
        top: of its files.
        own: its index and HEAD; of a linked worktree, a folder of its own.
        common: configuration, references and objects.
    """

    top: Path
    own: Path
    common: Path


def git_state(folder: Path) -> dict[str, object] | None:
    """The commit of the checkout around `folder`, and whether files differ from it.

    None without git, checkout or commit, where the checkout is another user's, or where its
    references are kept in another format than files. Waits 10 s at most. Cost: 10 ms, and what git
    takes to look at every file.
    """
    try:
        checkout = next(_checkouts(folder.resolve()), None)
        if checkout is None or not _is_own(checkout):
            return None
        commit = _commit(checkout)
        return None if commit is None else {"commit": commit, "dirty": _is_dirty(checkout, commit)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _checkouts(folder: Path) -> Iterator[_Checkout]:
    for top in (folder, *folder.parents):
        own = top / ".git"
        if own.is_file():  # of a linked worktree, or of a submodule
            name, _, path = _line(own).partition(": ")
            own = top / path if name == "gitdir" and path else own
        if (own / "HEAD").exists():
            common = own / _line(own / "commondir") if (own / "commondir").exists() else own
            yield _Checkout(top, own, common)


def _is_own(checkout: _Checkout) -> bool:
    """Whether all of a checkout belongs to this user, as git itself wants it."""
    if not hasattr(os, "geteuid"):
        return True
    places = (checkout.top, checkout.top / ".git", checkout.own, checkout.common)
    return all(path.stat().st_uid == os.geteuid() for path in places)


def _commit(checkout: _Checkout) -> str | None:
    """The commit of HEAD; None before the first commit."""
    text = _line(checkout.own / "HEAD")
    for _ in range(_DEEPEST):
        if not text.startswith("ref: "):
            break
        name = text.removeprefix("ref: ")
        if not _REFERENCE.fullmatch(name) or ".." in name:
            return None
        text = _reference(checkout, name)
    return text if is_commit(text) else None


def is_commit(text: object) -> TypeGuard[str]:
    """Whether it is the hash of a commit in full, and nothing that git takes for an option."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def _reference(checkout: _Checkout, name: str) -> str:
    """The content of a reference; empty if there is none."""
    for folder in (checkout.own, checkout.common):
        if (folder / name).is_file():
            return _line(folder / name)
    packed = checkout.common / "packed-refs"
    if packed.is_file():
        ending = f" {name}\n".encode()
        with open_regular(packed) as file:
            for line in iter(lambda: file.readline(_LONGEST), b""):
                if line.endswith(ending):
                    return line.split(b" ")[0].decode("ascii", "replace")
    return ""


def _is_dirty(checkout: _Checkout, commit: str) -> bool:
    """Whether files were changed, added or removed, or are neither tracked nor ignored."""
    with TemporaryDirectory(prefix="penstock-git-") as name:
        folder = Path(name)
        for part in ("objects", "refs", "info"):
            (folder / part).mkdir()
        (folder / "HEAD").write_text(f"{commit}\n")
        (folder / "config").write_text(_settings(folder, checkout))
        ignored = checkout.common / "info" / "exclude"
        if ignored.is_file():
            (folder / "info" / "exclude").write_bytes(_content(ignored))
        for shared in checkout.own.glob("sharedindex.*"):  # parts of an index that git has split
            (folder / shared.name).symlink_to(shared.resolve())
        index = checkout.own / "index"
        if index.exists() and not index.is_file():  # git would wait for a pipe
            raise ValueError(f"{index} is no file")
        places = {
            "GIT_WORK_TREE": str(checkout.top),
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(checkout.common / "objects"),
        }
        return bool(_git(folder, _STATUS, places))


_STATUS = ["status", "--porcelain=v2", "--ignore-submodules=all"]


def _settings(folder: Path, checkout: _Checkout) -> str:
    """A configuration with what the checkout's own says of how files lie on this disk."""
    content = _content(checkout.common / "config")
    listed = _git(folder, ["config", "--file", "-", "--no-includes", "--list", "-z"], {}, content)
    lines = ["[core]", "repositoryformatversion = 1"]
    for entry in listed.split("\0"):
        if parts := _TAKEN.fullmatch(entry):
            section, _, name = parts[1].partition(".")
            lines += [f"[{section}]", f"{name} = {parts[2]}"]
    return "\n".join([*lines, ""])


def _git(folder: Path, words: list[str], places: dict[str, str], content: bytes = b"") -> str:
    """The output of git, with `folder` as its own."""
    program = shutil.which("git")
    if program is None or not Path(program).is_absolute():  # `.` on the PATH may be anybody's
        raise FileNotFoundError("git")
    search = os.environ.get("PATH", os.defpath)
    done = subprocess.run(
        [program, *words],
        cwd=places.get("GIT_WORK_TREE", folder),
        input=content,
        capture_output=True,
        timeout=_SECONDS,
        check=True,
        env={**_ALONE, "PATH": search, "GIT_DIR": str(folder), **places},
    )
    return done.stdout.decode(errors="replace")


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{path} is larger than {_LARGEST} bytes")
    return content


def _line(path: Path) -> str:
    """The first line of a small file."""
    with open_regular(path) as file:
        return os.fsdecode(file.readline(_LONGEST)).strip()
