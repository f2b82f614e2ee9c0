"""Workers that died: all of them are counted, and memory is named with its limit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import get_worker_info

from penstock.loading.workers.executors import LoaderOptions
from penstock.runs import checkpoint
from tests import port
from tests.support import deaths, toy, warm
from tests.support.program import ROOT
from tests.support.resuming import Case, Rows


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
        pids = port.worker_pids(loader)
        os.kill(pids[0], signal.SIGKILL)
        assert deaths.until(lambda: deaths.is_gone(pids[0]))
    assert loader.workers.deaths == 1


PROGRAM = """
import torch
from penstock import DataLoader
from penstock.errors import ConfigError

if __name__ == "__main__":
    try:
        list(DataLoader(torch.arange(4), num_workers=1, multiprocessing_context="forkserver"))
    except ConfigError as error:
        print(error)
"""


def run_as_program(text, folder, run=warm.run, **environment):
    (folder / "program.py").write_text(text)
    return run(
        [sys.executable, str(folder / "program.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_temporary_folder_with_a_long_path_is_named(tmp_path):
    folder = tmp_path / ("t" * 120)
    folder.mkdir()
    done = run_as_program(PROGRAM, tmp_path, subprocess.run, TMPDIR=str(folder))
    assert str(folder) in done.stdout, done
    assert "TMPDIR" in done.stdout, done


UNCLOSED = """
import torch
from penstock import DataLoader
from penstock.loading.workers.executors import LoaderOptions as Options
from tests.support import toy

if __name__ == "__main__":
    loader = DataLoader(torch.arange(40), num_workers=1, persistent_workers=True)
    batches = iter(loader)
    print(next(batches).tolist())
    ours = {"thread": Options("thread", 2), "process": Options("process", 1)}
    left = {name: toy.loader(options).epoch(0) for name, options in ours.items()}
    print(*(len(next(one)) > 0 for one in left.values()))
"""


def test_a_program_ends_without_a_word_although_nobody_closes_its_workers(tmp_path):
    done = run_as_program(UNCLOSED, tmp_path, subprocess.run)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]\nTrue True\n", "")


KEEPS = """
import resource
import torch
from penstock import DataLoader
from penstock.errors import PenstockError

if __name__ == "__main__":
    batches = iter(DataLoader(torch.zeros(400, 1 << 15), 2, num_workers=1))
    next(batches)
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
    try:
        kept = list(batches)
    except PenstockError as error:
        print(error)
"""


def test_who_keeps_more_batches_than_files_may_be_open_is_told(tmp_path):
    done = run_as_program(KEEPS, tmp_path)
    assert "Too many open files" in done.stdout, done
    assert "ulimit -n" in done.stdout
