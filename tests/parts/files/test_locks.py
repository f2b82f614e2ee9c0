"""Locks that end with their process."""

import fcntl
import multiprocessing
import os
import signal
import threading

import pytest

from penstock.files.locks import is_locked, lock


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path):
    path = tmp_path / "file"
    assert not is_locked(path)
    with lock(path):
        assert is_locked(path)
        with pytest.raises(BlockingIOError):
            lock(path)
    assert not is_locked(path)
    lock(path).close()


def hold_and_fork(path, pipe):
    held = lock(path)
    child = os.fork()
    if child == 0:
        signal.pause()
    pipe.send((not held.closed, child))
    signal.pause()


def test_a_killed_holder_lets_go_at_once_though_its_children_live(tmp_path):
    path = tmp_path / "held"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_and_fork, args=(path, theirs))
    process.start()
    held, child = ours.recv()
    try:
        assert held
        assert is_locked(path)
        process.kill()
        process.join()
        lock(path).close()
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


def test_others_wait_and_learn_what_for(tmp_path, caplog):
    caplog.set_level("INFO")
    done = []

    def other():
        with lock(tmp_path / "data", "makes the data"):
            done.append("other")

    with lock(tmp_path / "data"):
        thread = threading.Thread(target=other)
        thread.start()
        while "waiting for another process that makes the data" not in caplog.text:
            thread.join(0.01)
        done.append("first")
    thread.join()
    assert done == ["first", "other"]


def test_without_locks_nothing_is_held(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(38, "no flock here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock(tmp_path / "data"), lock(tmp_path / "data"):
        assert not is_locked(tmp_path / "data")
