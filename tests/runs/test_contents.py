"""Which hashes of files are kept, and for how long."""

import hashlib
import os
import re
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from penstock.runs import identity

EMPTY = "cae66941d9efbd404e4d88758ea67670"  # b2sum -l 128


@pytest.fixture(autouse=True)
def plain_mask():
    before = os.umask(0)
    yield
    os.umask(before)


def kept(cache):
    (file,) = (cache / "fingerprints").glob("*.sqlite")
    return file


def count(file):
    with closing(sqlite3.connect(file)) as hashes:
        return hashes.execute("SELECT count(*) FROM files").fetchone()[0]


def test_hashes_are_those_of_b2sum_and_lie_in_a_folder_of_this_user(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    for path in paths[:2]:
        with open(path, "w"):
            pass
    Path(paths[2]).mkdir()
    cache = tmp_path / "cache"
    assert identity.digests(paths, cache, settled=-1) == [EMPTY, EMPTY, identity.UNREADABLE]
    assert re.fullmatch(r"files-[0-9a-f]{16}\.sqlite", kept(cache).name)
    assert stat.S_IMODE(kept(cache).parent.stat().st_mode) == 0o700
    assert count(kept(cache)) == 2


def test_nothing_is_written_where_all_hashes_are_known(tmp_path):
    path, cache = tmp_path / "a", tmp_path / "cache"
    path.touch()
    assert identity.digests([str(path)], cache, settled=-1) == [EMPTY]
    before = kept(cache).stat()
    assert identity.digests([str(path)], cache, settled=-1) == [EMPTY]
    assert kept(cache).stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("later", "modified", "is_kept"), [(0, 0, False), (1, 0, True), (1, 9, False)]
)
def test_a_file_has_to_be_of_some_age(later, modified, is_kept, monkeypatch, tmp_path):
    path, cache = tmp_path / "a", tmp_path / "cache"
    path.touch()
    os.utime(path, ns=(0, modified and path.stat().st_ctime_ns + modified * 10**12))
    changed = path.stat().st_ctime_ns
    monkeypatch.setattr(identity.time, "time_ns", lambda: changed + 2 * 10**9 + later)
    assert identity.digests([str(path)], cache, settled=2) == [EMPTY]
    assert count(kept(cache)) == is_kept


@pytest.mark.parametrize(("sizes", "files"), [([5], "1 file"), ([5, 7], "2 files")])
def test_how_much_is_hashed_is_shown(sizes, files, monkeypatch, tmp_path):
    shown = []
    display = identity.progress
    monkeypatch.setattr(identity, "progress", lambda *words: shown.append(words) or display(*words))
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
    identity.digests([str(tmp_path / str(n)) for n in range(len(sizes))], tmp_path / "cache")
    assert shown == [(f"hashing {files} once", sum(sizes), "bytes")]


def test_files_are_hashed_while_nobody_stops_it(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 10**6)
    hashing = identity._Hashing()
    assert (hashing.bytes_done, hashing.stopped) == (0, False)
    look, digest = hashing.of(str(path))
    assert hashing.bytes_done == 3 * 10**6
    assert look[2:4] == (3 * 10**6, path.stat().st_mtime_ns)
    assert digest == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    assert hashing.of(str(tmp_path / "none")) == (None, identity.UNREADABLE)
    hashing.stopped = True
    assert hashing.of(str(path)) == (None, identity.UNREADABLE)
