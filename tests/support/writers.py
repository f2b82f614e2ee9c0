"""What processes do that write checkpoints and are killed, starved of space or kept out.

Started by tests as `python -m tests.support.writers NAME FOLDER`; what fails is a traceback and
an exit code. None of them uses torch's threads before it forks.
"""

import ctypes
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from penstock.files import disk
from penstock.files.disk import DiskError
from penstock.runs import checkpoint
from penstock.runs.checkpoint import CheckpointError, Checkpoints

KILLS = 30

# Of linux/sched.h and sys/mount.h.
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT = 1, 32


def state(step, kilobytes):
    return {"updates": step, "model": {"w": torch.full((kilobytes * 256,), float(step))}}


def refused(words, action, *arguments):
    """Call `action`, which has to fail with one clear message that has these words."""
    with pytest.raises(DiskError) as caught:
        action(*arguments)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value), caught.value


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def own_disk(folder):
    """Mount an empty disk of 400 KiB on a folder, which only this process sees."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    call("mount", b"none", bytes(folder), b"tmpfs", 0, b"size=400k")


def call(name, *arguments):
    """A function of libc that returns 0; before Python 3.12, `os` has no `unshare`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def killed(folder):
    """30 times, a process that saves all the time is killed at a random moment."""
    rng = random.Random(0)
    newest = half_written = 0
    for _ in range(KILLS):
        saved, saves = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(200)
            save_for_ever(folder, newest, saves)
        # The second save begins when the first is on the disk.
        assert len(os.read(saved, 1) + os.read(saved, 1)) == 2
        time.sleep(rng.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.close(saved)
        os.close(saves)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        half_written += any(path.name.startswith(".") for path in folder.iterdir())
        for path in checkpoint.saved(folder):
            checkpoint.load(path)  # each that has its name is whole
        found = checkpoint.find_newest(folder) if checkpoint.saved(folder) else None
        if found is None:
            assert newest == 0, "there was a checkpoint, and there is none any more"
            continue
        assert not found.skipped
        assert found.state["updates"] >= newest
        newest = found.state["updates"]
    last = Checkpoints(folder, keep_last=2)
    last.save(state(newest + 1, 1), newest + 1)
    last.flush()
    assert all(not name.startswith(".") for name in names(folder)), names(folder)
    assert newest >= KILLS
    assert half_written > 3, "hardly any kill came within a write"
    print(newest, half_written)


def save_for_ever(folder, step, saves):
    checkpoints = Checkpoints(folder, keep_last=2)
    while True:
        step += 1
        checkpoints.save(state(step, 500), step, best=step % 5 == 0)
        os.write(saves, b".")


def full(folder):
    """On a disk of 400 KiB: what no longer fits destroys nothing and leaves nothing."""
    own_disk(folder)
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoints.save(state(1, 40), 1)
    checkpoints.save(state(2, 40), 2, best=True)
    refused(["step-00000003", "the disk is full"], save_and_wait, checkpoints, 3)
    assert names(checkpoints.folder) == [checkpoint.BEST, "step-00000002.safetensors"]
    assert checkpoint.find_newest(checkpoints.folder).state["updates"] == 2
    checkpoints.save(state(4, 40), 4)  # and there is a way on
    checkpoints.flush()
    assert checkpoint.find_newest(checkpoints.folder).state["updates"] == 4
    lines(folder)


def save_and_wait(checkpoints, step):
    checkpoints.save(state(step, 2000), step)
    checkpoints.flush()


def lines(folder):
    """Lines go in whole or not at all."""
    path = folder / "lines.jsonl"
    with pytest.raises(DiskError, match="the disk is full"):
        append_for_ever(path)
    written = path.read_bytes().split(b"\n")
    assert written.pop() == b""
    assert written
    assert len(written) % 2 == 0
    refused(
        ["manifest.json", "the disk is full"],
        disk.write_atomically,
        folder / "manifest.json",
        b"x" * 100_000,
    )
    assert names(folder) == ["checkpoints", "lines.jsonl"]


def append_for_ever(path):
    while True:
        disk.append(path, ['{"a": "' + "x" * 3000 + '"}'] * 2)


def limited(folder):
    """A limit on the size of files: SIGXFSZ is Python's to ignore, and the write fails."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(state(1, 10), 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    refused(["step-00000002", "larger than this process may write"], save_and_wait, checkpoints, 2)
    assert names(folder) == ["step-00000001.safetensors"]
    assert checkpoint.find_newest(folder).state["updates"] == 1


def read_only(folder):
    """A folder on a disk that was mounted read-only after its first checkpoint."""
    own_disk(folder)
    checkpoint.write(folder / "step-00000001.safetensors", *checkpoint.encode(state(1, 1)))
    call("mount", b"none", bytes(folder), b"tmpfs", MS_REMOUNT | MS_RDONLY, None)
    cannot_write(folder, "disk is read-only")


def no_permission(folder):
    become_nobody()
    cannot_write(folder, "no permission")


def become_nobody():
    """Permissions apply to everybody but root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def cannot_write(folder, reason):
    refused(["step-00000002", reason], save_and_wait, Checkpoints(folder), 2)
    refused(["new", reason], save_and_wait, Checkpoints(folder / "new"), 1)
    assert names(folder) == ["step-00000001.safetensors"]
    assert checkpoint.find_newest(folder).state["updates"] == 1


def unreadable(folder):
    """A file that this user may not read."""
    become_nobody()
    with pytest.raises(CheckpointError, match=r"unreadable, .*Permission denied"):
        checkpoint.load(folder / "step-00000001.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]))
