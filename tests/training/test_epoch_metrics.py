"""Sums, speed and state of an epoch, with a clock and other ranks of the tests' own."""

import hashlib
import math
from types import SimpleNamespace

import numpy as np
import torch

from penstock.distributed.group import Group
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training import epoch_metrics
from penstock.training.epoch_metrics import EpochMetrics, Step, order_hash


class Twins(Group):
    """Two ranks that do the same."""

    alone = False

    def sum(self, values):
        return 2 * values

    def gather(self, value):
        return [value, value]


def batch(step, count=4):
    rows = np.arange(count)
    return Batch({"x": torch.zeros(count)}, Request(0, step, rows, rows, count), rows)


def test_losses_and_orders_of_ranks_are_added_up():
    alone, twins = EpochMetrics(Group()), EpochMetrics(Twins())
    for step in range(8):
        for metrics in (alone, twins):
            metrics.add(batch(step), torch.arange(4.0) + step, {"part": torch.tensor(8.0)})
    once, twice = alone.read(), twins.read()
    assert [one.order for one in twice] == [2 * one.order % 2**64 for one in once]
    assert any(one.order >= 2**63 for one in once)
    assert [one.samples for one in twice] == [8] * 8
    assert [one.loss for one in twice] == [one.loss for one in once] == [1.5 + n for n in range(8)]
    assert (alone.samples, twins.samples) == (32, 64)
    assert alone.window == alone.mean == twins.mean == 5.0
    assert alone.named == twins.named == {"part": 2.0}
    alone.begin_window()
    assert math.isnan(alone.window)
    assert alone.mean == 5.0


def test_before_the_first_batch_there_is_no_mean():
    metrics = EpochMetrics(Group())
    assert math.isnan(metrics.mean)
    assert math.isnan(metrics.window)
    assert (metrics.samples, metrics.losses, metrics.deaths) == (0, 0, 0)
    assert metrics.read() == []


def test_the_order_of_a_run_is_the_hash_of_its_steps():
    steps = [Step(0, 7, 1.0, 4, 0xAB), Step(1, 0, 1.0, 4, 2**64 - 1)]
    first = hashlib.blake2b(b"before 0 7 00000000000000ab", digest_size=16).hexdigest()
    second = hashlib.blake2b(f"{first} 1 0 ffffffffffffffff".encode(), digest_size=16).hexdigest()
    assert order_hash("before", steps) == second
    assert order_hash("before", []) == "before"


def test_speed_and_waiting_go_by_the_time_of_all_sessions(monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(epoch_metrics, "time", clock)
    state = {
        "total": 6.0,
        "samples": 4,
        "losses": 12,
        "window_total": 3.0,
        "window_samples": 6,
        "seconds": 8.0,
        "waited": 2.0,
        "deaths": 3,
        "loss/part": 6.0,
    }
    metrics = EpochMetrics(Group(), state)
    now[0] += 2.0
    assert (metrics.seconds, metrics.mean, metrics.window, metrics.deaths) == (10.0, 0.5, 0.5, 3)
    assert metrics.named == {"part": 0.5}
    assert metrics.speed(3.0) == {
        "samples_per_second": 0.4,
        "tokens_per_second": 1.2,
        "wait_share": 0.5,
    }
    assert metrics.speed(30.0)["wait_share"] == 1.0
    expected = {**state, "seconds": 10.0, "waited": 5.0, "deaths": 7}
    assert metrics.state_dict(3.0, 7) == expected
    assert metrics.state_dict(3.0)["deaths"] == 0
    samples = EpochMetrics(Group(), {"samples": 4, "seconds": 2.0})
    assert samples.speed(0.0) == {"samples_per_second": 2.0, "wait_share": 0.0}
