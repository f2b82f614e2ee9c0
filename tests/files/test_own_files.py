"""Whose files are written to, read from or trusted: each owner, mode and kind of file."""

import os
import re
import socket
from pathlib import Path

import pytest

from penstock.files import own_files
from penstock.files.own_files import (
    NotOwnError,
    check_own,
    check_tree,
    new_folder,
    open_own,
    why_not_private,
    why_others_write,
)

STRANGER = 12345
only_root = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives away"
)


def test_a_file_is_opened_once_it_is_known_to_be_own(tmp_path, monkeypatch):
    path = tmp_path / "file"
    before = os.umask(0)
    try:
        os.close(open_own(path, os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666
    check_own(path)
    (tmp_path / "other").hardlink_to(path)
    os.close(open_own(path, os.O_RDONLY, linked=True))
    for check in (check_own, lambda path: open_own(path, os.O_RDONLY)):
        with pytest.raises(NotOwnError, match="is also the name of another file"):
            check(path)
    with pytest.raises(FileNotFoundError):
        open_own(tmp_path / "absent", os.O_RDONLY)

    opened = os.open

    def lose(new, *args):
        """A link that appears between the two looks."""
        new.symlink_to(path)
        return opened(new, *args)

    monkeypatch.setattr(os, "open", lose)
    with pytest.raises(NotOwnError, match="is a symbolic link, not a file of your own; nothing"):
        open_own(tmp_path / "late", os.O_RDWR | os.O_CREAT)


@only_root
def test_an_owner_counts_unless_the_folder_has_it_too(tmp_path):
    path = tmp_path / "file"
    path.touch()
    os.chown(path, STRANGER, -1)
    with pytest.raises(NotOwnError, match=rf"is another user's \(number {STRANGER}\)"):
        check_own(path)
    os.chown(tmp_path, STRANGER, -1)
    check_own(path)  # a network drive that gives all files an owner
    os.chown(path, 0, -1)
    check_own(path)


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        ("file", None),
        ("folder", None),
        ("absent", None),
        ("folder/inner", "a symbolic link to folder/inner"),
        ("./file", None),  # pathlib drops the dot
        ("..", r"a symbolic link to \.\."),
        ("/", "a symbolic link to /"),
        ("other", "a symbolic link to other"),
    ],
)
def test_a_tree_may_link_to_what_is_beside_the_link(target, refused, tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder/inner"):
        (tmp_path / name).touch()
    (tmp_path / "other").symlink_to("file")
    (tmp_path / "last").symlink_to(target)
    if refused:
        with pytest.raises(NotOwnError, match=f"last is {refused}, not a file of your own"):
            check_tree(tmp_path, ["last", "other"])
    else:
        check_tree(tmp_path, ["last", "other"])
    with pytest.raises(NotOwnError, match="last is a symbolic link, not"):
        check_tree(tmp_path, ["other"])


def test_a_tree_holds_all_names_of_a_file_in_one_folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "one").touch()
    (tmp_path / "a" / "two").hardlink_to(tmp_path / "a" / "one")
    check_tree(tmp_path)
    (tmp_path / "b" / "three").hardlink_to(tmp_path / "a" / "one")
    with pytest.raises(NotOwnError, match="a/one is also the name of a file elsewhere"):
        check_tree(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_tree(tmp_path / "absent")


def test_a_new_folder_is_private_or_refused(tmp_path, monkeypatch):
    folder = new_folder(tmp_path)
    assert re.fullmatch("[0-9a-f]{16}", folder.name)
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(Path, "mkdir", lambda path, mode: os.mkdir(path, 0o710))  # noqa: PTH102
    with pytest.raises(NotOwnError, match="its disk keeps no permissions"):
        new_folder(tmp_path)


@pytest.mark.parametrize(
    ("mode", "outer", "reason"),
    [
        (0o600, 0o755, None),
        (0o664, 0o775, None),  # the group is this user's own
        (0o666, 0o755, r"everybody can write to it \(chmod o-w\)"),
        (0o644, 0o777, r"everybody can write to its folder .*folder \(chmod o-w\)"),
        (0o644, 0o1777, "everybody can write to its folder"),
    ],
)
def test_others_write_where_the_mode_lets_them(mode, outer, reason, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "file"
    path.touch()
    path.chmod(mode)
    folder.chmod(outer)
    why = why_others_write(path, path.stat())
    assert why is None if reason is None else re.match(reason, why)
    (tmp_path / "link").symlink_to(path)
    assert why_others_write(tmp_path / "link", path.stat()) == "it is a symbolic link"


@only_root
def test_others_write_what_is_theirs_or_their_groups(tmp_path):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o664)
    os.chown(path, -1, STRANGER)
    expected = f"the group number {STRANGER} can write to it (chmod g-w)"
    assert why_others_write(path, path.stat()) == expected
    path.chmod(0o644)
    assert why_others_write(path, path.stat()) is None
    os.chown(path, STRANGER, -1)
    expected = f"it belongs to another user (number {STRANGER})"
    assert why_others_write(path, path.stat()) == expected


@pytest.mark.parametrize(
    ("mode", "outer", "reason"),
    [
        (0o700, 0o755, None),
        (0o500, 0o775, None),
        (0o700, 0o1777, None),
        (0o710, 0o755, "others can enter {folder} (its mode is 710)"),
        (0o701, 0o755, "others can enter {folder} (its mode is 701)"),
        (0o700, 0o777, "others can rename files in {outer} (its mode is 777)"),
    ],
)
def test_a_folder_is_private_by_its_mode_and_those_above(mode, outer, reason, tmp_path):
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    folder.parent.chmod(outer)
    expected = reason and reason.format(folder=folder, outer=folder.parent)
    assert why_not_private(folder) == expected


def test_only_a_folder_without_links_is_private(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file"
    assert why_not_private(path) == f"{path} is a file, not a folder"
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("folder")
    path = tmp_path / "link"
    assert why_not_private(path) == f"{path} is a symbolic link, not a folder"


@only_root
def test_a_folder_is_private_by_its_owner_and_those_above(tmp_path):
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, STRANGER, -1)
    assert why_not_private(folder) == f"{folder} belongs to another user (number {STRANGER})"
    os.chown(folder, 0, -1)
    os.chown(folder.parent, STRANGER, -1)
    assert why_not_private(folder) == f"{folder.parent} belongs to another user (number {STRANGER})"
    os.chown(folder.parent, 0, STRANGER)
    folder.parent.chmod(0o770)
    assert (
        why_not_private(folder) == f"others can rename files in {folder.parent} (its mode is 770)"
    )
    folder.parent.chmod(0o755)
    assert why_not_private(folder) is None


def test_where_files_have_no_owners_only_their_kind_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(own_files, "_OWNERS", False)
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    assert why_others_write(path, path.stat()) is None
    assert why_not_private(tmp_path) is None
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    check_own(path, os.stat_result([*path.stat()[:4], STRANGER, *path.stat()[5:]]))
    sock = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)
    sock.bind("socket")
    sock.close()
    with pytest.raises(NotOwnError, match="is a socket, not a file of your own"):
        check_own(tmp_path / "socket")
