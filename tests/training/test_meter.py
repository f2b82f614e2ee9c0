"""Sums, speed and state of an epoch, with a clock and other ranks of the tests' own."""

import hashlib
import math

import numpy as np
import torch

from penstock.distributed.group import Group
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.meter import Meter, Step, order_hash

WINDOW = "window_total", "window_losses"


class Twins(Group):
    """Two ranks that do the same."""

    def __init__(self):
        super().__init__()
        self.alone = False

    def sum(self, values):
        return 2 * values

    def gather(self, value):
        return [value, value]


def batch(step, count=4):
    rows = np.arange(count)
    return Batch({"x": torch.zeros(count)}, Request(0, step, rows, rows, count), rows)


def test_losses_and_orders_of_ranks_are_added_up():
    alone, twins = Meter(Group()), Meter(Twins())
    for step in range(8):
        for metrics in (alone, twins):
            metrics.add(batch(step), torch.arange(4.0) + step, {"part": torch.tensor(8.0)})
    once, twice = alone.read(), twins.read()
    assert [one.order for one in twice] == [2 * one.order % 2**64 for one in once]
    assert any(one.order >= 2**63 for one in once)
    assert [one.samples for one in twice] == [8] * 8
    assert [one.loss for one in twice] == [one.loss for one in once] == [1.5 + n for n in range(8)]
    assert (alone.sums["samples"], twins.sums["samples"]) == (32, 64)
    assert alone.mean(*WINDOW) == alone.mean() == twins.mean() == 5.0
    assert alone.mean("loss/part") == twins.mean("loss/part") == 2.0
    alone.begin_window()
    assert math.isnan(alone.mean(*WINDOW))
    assert alone.mean() == 5.0
    resumed = Meter(Group(), alone.sums)
    assert (resumed.mean(), resumed.sums) == (5.0, alone.sums)
    assert math.isnan(Meter(Group()).mean())


def test_the_order_of_a_run_is_the_hash_of_its_steps():
    steps = [Step(0, 7, 1.0, 4, 0xAB), Step(1, 0, 1.0, 4, 2**64 - 1)]
    first = hashlib.blake2b(b"before 0 7 00000000000000ab", digest_size=16).hexdigest()
    second = hashlib.blake2b(f"{first} 1 0 ffffffffffffffff".encode(), digest_size=16).hexdigest()
    assert order_hash("before", steps) == second
    assert order_hash("before", []) == "before"
