"""Files that are whole or not at all; real disks that are full, read-only or closed; real kills."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.files import disk
from penstock.files.disk import DiskError, cut, prepare, replacing, write_atomically, writing
from penstock.runs import checkpoint
from tests.support import warm

ROOT = Path(__file__).parents[3]


def writer(name, folder):
    """Run a process of tests/support/writers.py."""
    words = [sys.executable, "-m", "tests.support.writers", name, str(folder)]
    done = warm.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def mountable(tmp_path):
    folder = tmp_path / "mounted"
    folder.mkdir()
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(folder)]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    return folder


def test_a_complete_checkpoint_exists_at_every_moment_of_30_kills(tmp_path):
    steps, half_written = map(int, writer("killed", tmp_path).split())
    assert steps > half_written


def test_a_full_disk_destroys_nothing_and_leaves_nothing(mountable):
    writer("full", mountable)


def test_a_limit_on_files_destroys_nothing_and_leaves_nothing(tmp_path):
    writer("limited", tmp_path)


@pytest.mark.stress
def test_a_read_only_disk_is_named(mountable):
    writer("read_only", mountable)


@pytest.fixture
def public():
    """A folder that other users can come to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_without_permission_is_named(public):
    checkpoint.write(public / "step-00000001.safetensors", *checkpoint.encode({"updates": 1}))
    public.chmod(0o555)
    writer("no_permission", public)


def test_a_file_without_permission_is_named(public):
    checkpoint.write(public / "step-00000001.safetensors", *checkpoint.encode({"updates": 1}))
    (public / "step-00000001.safetensors").chmod(0o000)
    writer("unreadable", public)


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"new", "no bytes"])
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(DiskError, match=r"absent/a cannot be written: its folder is gone"):
        write_atomically(tmp_path / "absent" / "a", b"x")


def test_leftovers_go_and_what_is_being_written_stays(tmp_path):
    left = tmp_path / f".a.{os.getpid()}-0123abcd.tmp"  # with the number of a living process
    half = tmp_path / f".b.{os.getpid()}-0123abcd.tmp"
    half.mkdir()
    (half / "shard").write_bytes(b"half")
    kept = [tmp_path / name for name in (".hidden", "a.tmp", ".a.tmp", ".a.12-xyz.tmp")]
    for path in (left, *kept):
        path.touch()
    for path in (left, half, *kept):
        os.utime(path, (0, 0))
    with replacing(tmp_path / "a") as file:
        prepare(tmp_path)
        assert len(list(tmp_path.iterdir())) == len(kept) + 1
        file.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    left.touch()
    prepare(tmp_path, idle=0)  # of a folder that nobody else writes to
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "a"])


def test_many_threads_write_one_file(tmp_path):
    def write(number):
        for _ in range(30):
            write_atomically(tmp_path / "a", b"%d" % number * 1000)
            prepare(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    data = (tmp_path / "a").read_bytes()
    assert data == data[:1] * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    opened = (os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())
    assert not [path for path in opened if path.startswith(os.path.realpath(tmp_path))]


def test_content_and_name_are_flushed(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda d: (flushed.append(Path(f"/proc/self/fd/{d}").readlink()), fsync(d))
    )
    write_atomically(tmp_path / "a", b"1")
    assert disk.LEFTOVER.fullmatch(flushed[0].name)
    assert flushed[1] == tmp_path


def records(path, count, start=0):
    lines = [json.dumps({"n": n, "pad": "x" * (n % 300)}) for n in range(start, count)]
    path.write_text("".join(line + "\n" for line in lines))
    return lines


@pytest.mark.parametrize("torn", ['{"n": 5', "{", "\n", "\0\0\0\0", '{"n": 5, "pad": ""}'])
def test_cut_drops_a_line_that_was_written_half(tmp_path, torn):
    path = tmp_path / "lines.jsonl"
    lines = records(path, 5)
    with path.open("a") as file:
        file.write(torn)
    cut(path, lambda line: True)
    assert path.read_text().splitlines() == lines


def test_cut_at_every_length_of_a_file(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = records(path, 4)
    data = path.read_bytes()
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        cut(path, lambda line: line["n"] < 3)
        whole = data[:length].count(b"\n")
        assert path.read_text().splitlines() == lines[: min(whole, 3)]


def test_cut_of_nothing(tmp_path):
    (tmp_path / "empty").touch()
    for name in ("absent", "empty"):
        cut(tmp_path / name, lambda line: True)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_cut_reads_only_the_end(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    records(path, 5000)
    seen = []

    def keep(line):
        seen.append(line["n"])
        return line["n"] < 4990

    cut(path, keep)
    assert len(seen) == 11


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("odd"), "odd. Check the disk"),
        (OSError(5, "bad sector"), "bad sector. Check the disk"),
        (OSError(30, "any"), "the disk is read-only. Move run_dir or cache_dir to another one"),
    ],
)
def test_an_error_of_the_disk_has_its_cause(error, message):
    said = f"^x cannot be written: {message}; what was there before"
    with pytest.raises(DiskError, match=said), writing(Path("x")):
        raise error
