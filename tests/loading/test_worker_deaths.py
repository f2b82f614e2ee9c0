"""Workers that died: all of them are counted, and memory is named with its limit."""

import os
import re
import signal
from pathlib import Path

import pytest
from torch.utils.data import get_worker_info

from penstock.loading import memory
from penstock.loading.workers import failures
from penstock.loading.workers.options import LoaderOptions
from penstock.runs import checkpoint
from tests import deaths, toy
from tests.resuming import Case, Rows


class Mortal(Rows):
    """Ends the worker that reads row 3 or 9 for the first and the third time.

    The third time is in validation: what a dead worker was asked for is read again.
    """

    folder = Path()

    def __getitem__(self, index):
        if index in (3, 9) and get_worker_info() is not None:
            with (self.folder / f"row-{index}").open("ab") as file:
                file.write(b"x")
                count = file.tell()
            if count in (1, 3):
                (self.folder / f"death-{index}-{count}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stops", [[], [4]])
def test_every_death_is_in_the_records(stops, tmp_path, monkeypatch):
    monkeypatch.setattr(Mortal, "folder", tmp_path)
    case = Case("sequential", dataset=Mortal)
    loading = {"backend": "process", "num_workers": 1, "persistent_workers": True}
    state, result = None, None
    for stop in [*stops, None]:
        _, _, result, _ = case.fit(tmp_path / "run", stop, state, val_loading=loading, **loading)
        if stop is not None:
            state = checkpoint.find_newest(tmp_path / "run").state
    assert len(list(tmp_path.glob("death-*"))) == 4
    assert sum(record["worker_deaths"] for record in result.history) == 4


def test_a_worker_that_dies_when_nobody_asks_is_counted():
    options = LoaderOptions("process", 2, persistent_workers=True)
    with toy.loader(options) as loader:
        toy.hashes(loader)
        pids = loader._backend.pids()
        os.kill(pids[0], signal.SIGKILL)
        assert deaths.until(lambda: deaths.is_gone(pids[0]))
    assert loader.deaths == 1


def test_a_killed_worker_is_reported_with_its_size_and_the_limit(monkeypatch):
    most, what = memory.limit()
    hint = failures.hint_for(-signal.SIGKILL, 3 * 2**30, memory.kills())
    assert "It had 3.00 GiB of memory when last looked at" in hint
    assert f"the limit is {most / 2**30:.2f} GiB, {what}" in hint
    assert "also sends it when memory runs out" in hint
    monkeypatch.setattr(memory, "kills", lambda: 1)
    assert "the kernel ended it because memory ran out" in failures.hint_for(-signal.SIGKILL, 0, 0)


def test_the_least_limit_counts(tmp_path, monkeypatch):
    own = tmp_path / "cgroup" / "jobs" / "mine"
    own.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/jobs/mine\n")
    (tmp_path / "meminfo").write_text("MemTotal: 8388608 kB\n")
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    assert memory.limit() == (8 * 2**30, "the memory of this machine")
    assert memory.kills() == 0
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text(f"{2**30}\n")
    (own / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert memory.limit() == (2**30, "memory.max of its cgroup")
    assert memory.kills() == 2


def test_a_worker_is_weighed_while_it_works(tmp_path, caplog):
    loader = toy.loader(
        LoaderOptions("process", 1), deaths.Doom("SIGKILL", 7, tmp_path), deaths.Files()
    )
    toy.hashes(loader)
    assert re.search(r"It had \d+\.\d\d GiB of memory when last looked at", caplog.text)
