"""DataLoader: torch's words and meanings, where programs depend on them; seeds and what draws."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from penstock.loading.dataloader import DataLoader
from penstock.order.keys import key_at_hand
from penstock.order.plan import Yielded
from penstock.order.seeding import seed_global
from tests.support.torch_style import Sleeping, Squares, everything, plain


def test_what_cannot_be_pickled_is_named_when_it_is_to_be_sent():
    loader = DataLoader(
        Squares(),
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=lambda samples: samples,
    )
    with pytest.raises(Exception, match=r"collate: cannot be sent .*'spawn'.*lambda"):
        iter(loader)


# Time, deaths and lengths.


@pytest.mark.one_in(2)
def test_timeout_is_torchs():
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        everything(Sleeping(), num_workers=1, timeout=0.5)


class Crashing(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 4

    def __getitem__(self, row):
        if row == 0 and get_worker_info() is not None:
            with self.log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return row


def test_the_error_of_lost_workers_has_torchs_words(tmp_path):
    words = r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"
    with pytest.raises(RuntimeError, match=words):
        everything(Crashing(tmp_path / "pids"), num_workers=1)
    assert len((tmp_path / "pids").read_text().split()) == 3


# Draws that nobody has told of.


class Sometimes(Squares):
    """Draws in some rows; counts how often it is asked."""

    def __init__(self, rows, how):
        super().__init__(24)
        self.rows, self.how, self.asked = rows, how, 0

    def __getitem__(self, row):
        self.asked += 1
        return row, self.how() if row in self.rows else 0.0


class Always(Sometimes):
    """Is known to draw from its first row on, by draws that change nothing else."""

    def __getitem__(self, row):
        found = super().__getitem__(row)
        random.random(), np.random.rand(), torch.rand(())
        return found


def after_each_other():
    """Whether it draws from the second and the third generator depends on the first."""
    first = torch.rand(()).item()
    second = np.random.rand() if first < 0.5 else 0.0
    return first + 10 * second + (100 * random.random() if second > 0.5 else 0.0)


HOW = {
    "one after the other": after_each_other,
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "normal": np.random.randn,
    "all words": lambda: float(np.random.rand(312).sum()),  # as many as numpy keeps: 624
    "torch": lambda: torch.rand(()).item(),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rows", [(), (0, 5, 9), (13,), (23,)])
def test_draws_are_found_wherever_they_begin(how, rows):
    after = []
    batches = []
    for kind in (Sometimes, Always):
        seed_global(3)
        np.random.randn()  # and numpy keeps another one
        loader = DataLoader(kind(rows, HOW[how]), 4, seed=2)
        batches.append(plain(list(loader)) + plain(list(loader)))
        after.append((random.random(), np.random.randn(), torch.rand(()).item()))
    assert batches[0] == batches[1]
    assert after[0] == after[1]


def test_only_a_batch_that_begins_to_draw_is_asked_for_twice():
    cases = (((), 24), ((0, 9), 28), ((13, 17), 28), (range(24), 24))
    for rows, asked in cases:
        dataset = Sometimes(rows, random.random)
        list(DataLoader(dataset, 4))
        assert dataset.asked == asked


@pytest.mark.parametrize("kind", [lambda rows: rows, lambda rows: Subset(rows, range(12))])
def test_the_draws_of_a_row_depend_on_its_position_alone(kind):
    rows = kind(Squares(12, draws=True))
    four, six = (torch.cat([row[1] for row in DataLoader(rows, size, seed=2)]) for size in (4, 6))
    assert four.equal(six)


def test_a_key_at_hand_ends_with_its_batch():
    list(DataLoader(Yielded(lambda: iter(range(6))), 2))
    assert key_at_hand() != key_at_hand()
    with pytest.raises(LookupError):
        next(iter(DataLoader(Sometimes((0,), lambda: {}[0]), 2)))
    assert key_at_hand() != key_at_hand()


def test_ranks_with_one_seed_have_one_order_and_draws_of_their_own(monkeypatch):
    def rows():
        loader = DataLoader(Squares(12, draws=True), 4, shuffle=True, seed=2)
        return [
            row for rows, drawn in loader for row in zip(rows.tolist(), drawn.tolist(), strict=True)
        ]

    alone = rows()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    second = rows()
    assert [row for row, _ in second] == [row for row, _ in alone]
    assert not {drawn for _, drawn in second} & {drawn for _, drawn in alone}
