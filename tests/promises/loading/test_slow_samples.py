"""Slow samples: later batches are made meanwhile, within bounds, and all come in their order."""

import time
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from penstock.loading.fetch import Fetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from tests.support import toy


class Blocked(Dataset):
    """Row 3 is there once so many `others` have been read."""

    def __init__(self, folder, others):
        self.folder, self.others = Path(folder), others

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ends = time.monotonic() + 60
        while index == 3 and not self.may_go_on():
            assert time.monotonic() < ends, "nobody read the other rows"
            time.sleep(0.001)
        if index != 3:
            (self.folder / str(index)).touch()
        return {"x": index}

    def may_go_on(self):
        return len(list(self.folder.iterdir())) >= self.others


def blocked(folder, others, backend="main", **options):
    """A loader of batches of two rows by two workers, whose window is four batches."""
    folder.mkdir()
    fetch = Fetch(Blocked(folder, others), None, toy.Stack(), 0, hashed=True)
    options = LoaderOptions(backend, 2, **options)
    return toy.Loader(Plan(Sequential(64), 2), fetch, options)


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_slow_sample_holds_up_its_own_batch_alone(backend, tmp_path):
    expected = toy.hashes(blocked(tmp_path / "main", 0))
    # Nine other batches: with those before it, a window of four has only four.
    assert toy.hashes(blocked(tmp_path / "workers", 18, backend)) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_takes_no_request_that_it_does_not_begin(persistent, tmp_path):
    # The other worker makes all others of the window.
    options = {"slow_memory": 0, "persistent_workers": persistent}
    expected = toy.hashes(blocked(tmp_path / "main", 0))
    with blocked(tmp_path / "workers", 8, "process", **options) as loader:
        assert toy.hashes(loader) == expected
