"""Which hashes of files are kept, and for how long."""

import os
import re
import stat
from pathlib import Path

import pytest

from penstock.runs.identity import contents

EMPTY = "cae66941d9efbd404e4d88758ea67670"  # b2sum -l 128


@pytest.fixture(autouse=True)
def plain_mask():
    before = os.umask(0)
    yield
    os.umask(before)


def kept(cache):
    (file,) = (cache / "fingerprints").glob("*.bin")
    return file


def test_hashes_are_those_of_b2sum_and_lie_in_a_folder_of_this_user(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    for path in paths[:2]:
        with open(path, "w"):
            pass
    Path(paths[2]).mkdir()
    cache = tmp_path / "cache"
    assert contents.digests(paths, cache, settled=-1) == [EMPTY, EMPTY, contents.UNREADABLE]
    assert re.fullmatch(r"files-[0-9a-f]{16}\.bin", kept(cache).name)
    assert stat.S_IMODE(kept(cache).parent.stat().st_mode) == 0o700
    assert len(contents._read(kept(cache))) == 2


def test_nothing_is_written_where_all_hashes_are_known(tmp_path):
    path, cache = tmp_path / "a", tmp_path / "cache"
    path.touch()
    assert contents.digests([str(path)], cache, settled=-1) == [EMPTY]
    before = kept(cache).stat()
    assert contents.digests([str(path)], cache, settled=-1) == [EMPTY]
    assert kept(cache).stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("later", "modified", "is_kept"), [(0, 0, False), (1, 0, True), (1, 9, False)]
)
def test_a_file_has_to_be_of_some_age(later, modified, is_kept, monkeypatch, tmp_path):
    path, cache = tmp_path / "a", tmp_path / "cache"
    path.touch()
    os.utime(path, ns=(0, modified and path.stat().st_ctime_ns + modified * 10**12))
    changed = path.stat().st_ctime_ns
    monkeypatch.setattr(contents.time, "time_ns", lambda: changed + 2 * 10**9 + later)
    assert contents.digests([str(path)], cache, settled=2) == [EMPTY]
    assert len(contents._read(kept(cache))) == is_kept


@pytest.mark.parametrize(("sizes", "files"), [([5], "1 file"), ([5, 7], "2 files")])
def test_how_much_is_hashed_is_shown(sizes, files, monkeypatch, tmp_path):
    shown = []
    display = contents.progress
    monkeypatch.setattr(contents, "progress", lambda *words: shown.append(words) or display(*words))
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
    contents.digests([str(tmp_path / str(n)) for n in range(len(sizes))], tmp_path / "cache")
    assert shown == [(f"hashing {files} once", sum(sizes), "bytes")]


def test_files_are_hashed_while_nobody_stops_it(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 10**6)
    hashing = contents._Hashing()
    assert (hashing.bytes_done, hashing.stopped) == (0, False)
    record = hashing.record(str(path))
    assert hashing.bytes_done == 3 * 10**6
    assert record[:-16] == contents._packed(path.stat())
    assert hashing.record(str(tmp_path / "none")) == b""
    hashing.stopped = True
    assert hashing.record(str(path)) == b""
