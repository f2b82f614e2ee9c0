"""One process works, and others wait for it."""

import threading

import pytest

from penstock.files.disk import one_writer


def test_others_wait_and_learn_what_for(tmp_path, caplog):
    caplog.set_level("INFO")
    done = []

    def other():
        with one_writer(tmp_path / "data", "makes the data"):
            done.append("other")

    with one_writer(tmp_path / "data", "makes the data") as lock:
        assert lock == tmp_path / ".data.lock"
        assert lock.stat().st_mode & 0o777 == 0o600
        with (
            pytest.raises(TimeoutError),
            one_writer(tmp_path / "data", "makes the data", wait=False),
        ):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        while "waiting for another process that makes the data" not in caplog.text:
            thread.join(0.01)
        done.append("first")
    thread.join()
    assert done == ["first", "other"]


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), one_writer(tmp_path / "data", "makes the data"):
        raise KeyError
    with one_writer(tmp_path / "data", "makes the data", wait=False):
        pass


def test_without_locks_nothing_is_held(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("no flock here")

    monkeypatch.setattr("penstock.files.disk.FileLock.acquire", refuse)
    with one_writer(tmp_path / "data", "makes the data"):
        pass
