"""Files that are whole or not at all; real disks that are full, read-only or closed; real kills."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from penstock.files import disk
from penstock.files.disk import (
    DiskError,
    Hold,
    NotOwnError,
    cut,
    remove_leftovers,
    replacing,
    write_atomically,
)
from penstock.runs import checkpoint
from tests import warm

ROOT = Path(__file__).parents[2]


def writer(name, folder):
    """Run a process of tests/writers.py."""
    words = [sys.executable, "-m", "tests.writers", name, str(folder)]
    done = warm.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
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
    checkpoint.save(public / "step-00000001.safetensors", {"updates": 1})
    public.chmod(0o555)
    writer("no_permission", public)


def test_a_file_without_permission_is_named(public):
    checkpoint.save(public / "step-00000001.safetensors", {"updates": 1})
    (public / "step-00000001.safetensors").chmod(0o000)
    writer("unreadable", public)


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with pytest.raises(TypeError), replacing(path) as descriptor:
        disk.write(descriptor, [b"new", "no bytes"])
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(DiskError, match=r"absent/a cannot be written: its folder is gone"):
        write_atomically(tmp_path / "absent" / "a", b"x")


def test_what_is_being_written_is_no_leftover(tmp_path):
    with replacing(tmp_path / "a") as descriptor:
        assert len(list(tmp_path.iterdir())) == 1
        assert remove_leftovers(tmp_path) == []
        os.write(descriptor, b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_leftovers_go_even_with_the_number_of_a_living_process(tmp_path):
    left = tmp_path / f".a.{os.getpid()}-0123abcd.tmp"
    left.write_bytes(b"half")
    half = tmp_path / f".b.{os.getpid()}-0123abcd.tmp"
    half.mkdir()
    (half / "shard").write_bytes(b"half")
    kept = [tmp_path / name for name in (".hidden", "a.tmp", ".a.tmp", ".a.12-xyz.tmp")]
    for path in kept:
        path.touch()
    assert sorted(remove_leftovers(tmp_path)) == [left, half]
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_many_threads_write_one_file(tmp_path):
    """While others clear leftovers away, nobody loses what it writes."""
    errors = []

    def write(number):
        try:
            for _ in range(30):
                write_atomically(tmp_path / "a", b"%d" % number * 1000)
                remove_leftovers(tmp_path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    data = (tmp_path / "a").read_bytes()
    assert data == data[:1] * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_hold_keeps_others_out_until_it_is_released(tmp_path):
    path = tmp_path / "held"
    hold = Hold.take(path, os.O_RDWR | os.O_CREAT)
    assert hold is not None
    assert Hold.take(path) is None
    hold.release()
    hold.release()
    again = Hold.take(path)
    assert again is not None
    again.release()


def hold_and_fork(path, pipe):
    hold = Hold.take(path)
    child = os.fork()
    if child == 0:
        signal.pause()
    pipe.send((hold is not None, child))
    signal.pause()


@pytest.mark.stress
def test_a_killed_holder_lets_go_at_once_though_its_children_live(tmp_path):
    path = tmp_path / "held"
    path.touch()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_and_fork, args=(path, theirs))
    process.start()
    held, child = ours.recv()
    try:
        assert held
        assert Hold.take(path) is None
        process.kill()
        process.join()
        hold = Hold.take(path)
        assert hold is not None
        hold.release()
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


def records(path, count, start=0):
    lines = [json.dumps({"n": n, "pad": "x" * (n % 300)}) for n in range(start, count)]
    path.write_text("".join(line + "\n" for line in lines))
    return lines


@pytest.mark.parametrize("keep", [0, 1, 17, 1999, 2000])
def test_cut_drops_what_comes_last(tmp_path, keep):
    path = tmp_path / "lines.jsonl"
    lines = records(path, 2000)  # several blocks
    cut(path, lambda line: line["n"] < keep)
    assert path.read_text().splitlines() == lines[:keep]


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
        assert cut(path, lambda line: line["n"] < 3) == length - path.stat().st_size
        whole = data[:length].count(b"\n")
        assert path.read_text().splitlines() == lines[: min(whole, 3)]


def test_cut_of_nothing(tmp_path):
    assert cut(tmp_path / "absent", lambda line: True) == 0
    (tmp_path / "empty").touch()
    assert cut(tmp_path / "empty", lambda line: True) == 0


def test_cut_reads_only_the_end(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    records(path, 5000)
    seen = []

    def keep(line):
        seen.append(line["n"])
        return line["n"] < 4990

    cut(path, keep)
    assert len(seen) == 11


def test_appending_needs_a_folder(tmp_path):
    disk.append(tmp_path / "a", ["1", "2"])
    disk.append(tmp_path / "a", ["3"])
    assert (tmp_path / "a").read_text() == "1\n2\n3\n"
    with pytest.raises(DiskError, match="its folder is gone"):
        disk.append(tmp_path / "absent" / "a", ["1"])


def free_descriptor():
    """The number of the next file that is opened: higher if a descriptor was left open."""
    descriptor = os.dup(1)
    os.close(descriptor)
    return descriptor


def test_nothing_stays_open_and_renames_are_flushed(tmp_path, monkeypatch):
    flushed, fsync, is_on = [], os.fsync, Hold.is_on
    monkeypatch.setattr(
        os, "fsync", lambda d: (flushed.append(Path(f"/proc/self/fd/{d}").readlink()), fsync(d))
    )
    asked = []
    # Somebody takes the first file for a leftover.
    monkeypatch.setattr(
        Hold,
        "is_on",
        lambda hold, path: asked.append(path) or (len(asked) > 1 and is_on(hold, path)),
    )
    before = free_descriptor()
    write_atomically(tmp_path / "a", b"1")
    assert free_descriptor() == before
    assert len(asked) == 2
    assert [path.name for path in flushed] == [asked[0].name, tmp_path.name]
    assert disk.is_leftover(disk.beside(tmp_path / "a"))
    disk.beside(tmp_path / "a").touch()
    assert len(remove_leftovers(tmp_path)) == 1
    assert free_descriptor() == before
    monkeypatch.delattr(os, "O_DIRECTORY")  # Windows
    disk.sync_folder(tmp_path / "absent")


def test_a_folder_gets_a_leftovers_name_before_it_goes(tmp_path, monkeypatch):
    names, rmtree = [], shutil.rmtree
    monkeypatch.setattr(disk.shutil, "rmtree", lambda path: (names.append(path.name), rmtree(path)))
    folder = tmp_path / "folder"
    hidden = disk.beside(folder)
    for path in (folder, hidden):
        path.mkdir()
        disk.discard(path)
    assert names[0].startswith(".folder.")
    assert disk.is_leftover(tmp_path / names[0])
    assert names[1] == hidden.name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("odd"), "odd. Check the disk"),
        (OSError(5, "bad sector"), "bad sector. Check the disk"),
        (OSError(30, "any"), "the disk is read-only. Move run_dir or cache_dir to another one"),
    ],
)
def test_an_error_of_the_disk_has_its_cause(error, message):
    with pytest.raises(DiskError, match=f"^x cannot be written: {message}; what was there before"):
        disk.refuse(Path("x"), error)


def test_a_file_that_somebody_else_made_is_not_replaced(tmp_path):
    path = tmp_path / "page"
    made = re.compile(b"<!-- ours")
    for content in (b"<!-- ours 1", b"<!-- ours 2"):
        disk.replace_own(path, content, made)
        assert path.read_bytes() == content
    path.write_bytes(b"theirs")
    with pytest.raises(NotOwnError, match="page exists, and Penstock has not made it"):
        disk.replace_own(path, b"<!-- ours", made)
    assert path.read_bytes() == b"theirs"


def test_a_lock_shows_who_writes(tmp_path, monkeypatch):
    path = tmp_path / "file"
    assert not disk.is_locked(path)
    hold = Hold.take(path, os.O_RDWR | os.O_CREAT)
    assert disk.is_locked(path)
    monkeypatch.setattr(disk, "fcntl", None)
    assert not disk.is_locked(path)
    monkeypatch.undo()
    hold.release()
    assert not disk.is_locked(path)


@pytest.mark.parametrize(("length", "refused"), [((1 << 20) - 1, False), (1 << 21, True)])
def test_cut_refuses_a_line_that_nobody_wrote(length, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n' + b"x" * length)
    if refused:
        with pytest.raises(DiskError, match="a line of more than 1 MiB"):
            cut(path, lambda line: True)
    else:
        assert cut(path, lambda line: True) == length
