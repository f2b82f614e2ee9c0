"""Copies of a fit's state in memory, the machines that have them, and locks of lost machines."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

from penstock.addons.memory_copies import memory
from penstock.addons.memory_copies.memory import Memory
from penstock.distributed import world
from penstock.distributed.group import Group
from penstock.errors import ConfigError
from penstock.runs import checkpoint, holder
from penstock.runs.run_folder import RunFolder
from penstock.tasks.machines import Machines, Member
from tests.deaths import until
from tests.program import ROOT

STATE = {
    "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)},
    "none": torch.empty(0),
    "updates": 7,
    "rates": (0.1, float("inf")),
}


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A process that stands for torch's launcher; the memory is a folder of this test."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(memory, "_SHARED", tmp_path)
        monkeypatch.setattr(world, "launcher_process", lambda: process.pid)
        yield process
        process.kill()
        assert until(lambda: not list(tmp_path.glob(f"penstock-*/*-{process.pid}-*"))), (
            "the watcher removes what is left"
        )


def accept(state):
    assert state["updates"] == 7


def test_a_copy_is_what_a_checkpoint_would_be(launcher, tmp_path):
    copies = Memory("first", "auto", Group(), resumed=False)
    copies.keep(lambda: STATE, 7)
    copies.flush()
    assert memory.found() == {"first": 7}
    checkpoint.save(tmp_path / "checkpoint", STATE)
    newest = memory.share(Group(), 0, "first", accept)
    assert newest.path.read_bytes() == (tmp_path / "checkpoint").read_bytes()
    assert all(torch.equal(newest.state["model"][name], STATE["model"][name]) for name in "wb")
    assert (newest.state["none"].shape, newest.state["rates"]) == ((0,), STATE["rates"])
    for folder in (newest.path.parent, *newest.path.parents[1:3]):
        assert folder == newest.path.parent or folder.stat().st_mode & 0o777 == 0o700

    # The next start has a copy at once, and the one before goes.
    again = Memory("second", 5, Group(), resumed=True)
    assert again.is_due(7)
    again.keep(lambda: STATE, 7)
    again.flush()
    assert memory.found() == {"second": 7}
    assert memory.share(Group(), 0, "first", accept) is None
    again.remove()
    assert memory.found() == {}


def test_a_damaged_copy_is_not_used(launcher, capsys):
    copies = Memory("one", 1, Group(), resumed=False)
    copies.keep(lambda: STATE, 7)
    copies.flush()
    path = memory.share(Group(), 0, "one", accept).path
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert memory.share(Group(), 0, "one", accept) is None
    assert "the checkpoint is damaged" in capsys.readouterr().err


def test_when_a_copy_is_due(launcher, monkeypatch):
    every = Memory("one", 3, Group(), resumed=False)
    assert [every.is_due(updates) for updates in range(4)] == [False, False, False, True]
    auto = Memory("two", "auto", Group(), resumed=False)
    assert not auto.is_due(0)
    assert auto.is_due(1)
    auto.keep(lambda: time.sleep(0.05) or STATE, 1)
    assert not auto.is_due(2), "it took at least 50 ms, so the next is due after 2.5 s"
    assert auto._next - time.monotonic() > 0.04 / memory.SHARE - 1
    auto._next = 0.0
    assert auto.is_due(2)
    assert not auto.is_due(1), "there is nothing new"
    auto.flush()


def test_what_is_written_while_copies_are_removed_goes_too(launcher, tmp_path):
    Memory("one", 1, Group(), resumed=False)
    (folder,) = tmp_path.glob("penstock-*/*")
    launcher.kill()
    with suppress(FileNotFoundError):  # the folder is gone
        for number in range(20_000):  # a rank that outlives its launcher
            (folder / f"{number}").touch()


def test_no_room_is_reported_once_and_the_run_continues(launcher, capsys, monkeypatch):
    copies = Memory("one", 1, Group(), resumed=False)
    monkeypatch.setattr(memory, "_SPARE", 1e15)
    copies.keep(lambda: STATE, 7)
    copies.keep(lambda: STATE, 8)
    said = capsys.readouterr().err
    assert said.count("no copies of the state in the memory of") == 1
    assert "MiB left" in said
    assert memory.found() == {}


def test_a_folder_that_others_can_open_is_not_used(launcher, tmp_path, capsys):
    (tmp_path / f"penstock-states-{os.geteuid()}").mkdir(mode=0o755)
    assert Memory("one", 1, Group(), resumed=False)._files is None
    assert "is not a folder that only you can open" in capsys.readouterr().err
    shutil.rmtree(tmp_path / f"penstock-states-{os.geteuid()}")


def test_nothing_is_kept_without_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_SHARED", tmp_path)
    copies = Memory("one", 1, Group(), resumed=False)
    copies.keep(lambda: STATE, 1)
    copies.remove()
    assert (memory.found(), list(tmp_path.iterdir())) == ({}, [])


def test_the_launcher_is_found_behind_a_shell(monkeypatch):
    code = "from penstock.distributed import world; print(world.launcher_process())"
    command = ["sh", "-c", f'{sys.executable} -c "{code}"; true']
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        start_new_session=True,
        env=os.environ | {"TORCHELASTIC_RUN_ID": "x"},
    )
    assert int(done.stdout) == os.getpid(), done.stderr
    assert world.launcher_process({}) is None


def members(*names, copies=()):
    return [Member(name, f"{name}-1-2", False, dict(copies).get(name, {})) for name in names]


def folder_of(path, *names):
    folder = RunFolder.claim(path, {})
    folder.note(**Machines(members(*names), None).facts)
    folder.release()
    return folder.path, folder.manifest["sessions"][-1]["id"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ("aabb", ""),
        ("aab", "b left; 3 of 4 ranks remain"),
        ("bb", "a left; 2 of 4 ranks remain"),
        ("aabbc", "c joined; 5 ranks after 4"),
        ("aacd", "b left; c, d joined; 4 ranks after 4"),
        ("cd", ""),  # nobody of before: another launch
    ],
)
def test_who_left_and_who_joined(now, said, tmp_path):
    path, _ = folder_of(tmp_path / "run", *"aabb")
    found = Machines(members(*now), path)
    assert found.changes() == said
    assert found.started_again == (now != "cd")


def test_the_newest_copy_is_that_of_the_last_start(tmp_path):
    path, start = folder_of(tmp_path / "run", *"ab")
    copies = {"a": {"older": 90, start: 7}, "b": {start: 8}}
    assert Machines(members("a", "b", copies=copies), path).newest_copy() == (8, 1, start)
    assert Machines(members("c", "d", copies={"c": {start: 9}}), path).newest_copy() is None
    assert Machines(members("a", "b", copies={"a": {"older": 90}}), path).newest_copy() is None
    (path / "manifest.json").write_text(
        '{"sessions": [3, {"id": 3, "launchers": [[]], "ranks": 1}]}'
    )
    assert Machines(members("a", "b"), path).newest_copy() is None
    assert Machines(members("a", "b"), path).changes() == ""


def test_a_start_that_ends_before_its_first_copy_loses_none(tmp_path):
    path, start = folder_of(tmp_path / "run", *"ab")
    found = Machines(members(*"ab", copies={"b": {start: 8}}), path)
    for resumed, copy in (("/dev/shm/x/y/step-8", (8, 1, start)), ("run/checkpoints/step-4", None)):
        folder = RunFolder.reopen(path, resumed=resumed, **found.facts)
        folder.finish("preempted")
        assert Machines(found.members, path).newest_copy() == copy


def hold(path, ready, end):
    folder = RunFolder.claim(path, {})
    ready.set()
    end.wait()
    folder.finish("failed")


def test_the_lock_of_a_lost_machine_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(holder, "_PATIENCE", 0.3)
    path, context = tmp_path / "run", multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    other = context.Process(target=hold, args=(path, ready, end))
    other.start()
    assert ready.wait(60)
    with pytest.raises(ConfigError, match=f"is in use by process {other.pid} on"):
        RunFolder.reopen(path)
    ours = RunFolder.reopen(path, lost=True)
    end.set()  # it was cut off only, and now writes its end
    other.join()
    assert other.exitcode == 0
    assert json.loads((path / "manifest.json").read_text())["status"] == "running"
    ours.finish("done")
    assert json.loads((path / "manifest.json").read_text())["status"] == "done"
    RunFolder.reopen(path).release()
