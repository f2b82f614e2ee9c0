"""Addresses of many ranks and very many rows, and days with failures: `benchmarks/scale.py`."""

import numpy as np
import pytest

from benchmarks import scale
from benchmarks.failures import Clock, Policy, day, failures_of
from penstock.addons.tuning.profile import daly, useful_share
from penstock.order.permutation import Permutation
from penstock.order.plan import Plan
from penstock.order.samplers import Random

RANKS = 64


def test_shares_of_an_order_of_10_to_the_12():
    plan = Plan(Random(10**12, 0), scale.EACH * RANKS)
    scale.check_shares(plan, [(7, 5), (7, 6), (7, 400_000_000)], RANKS)
    scale.check_inverse(plan, 0, RANKS, 40)


def test_a_row_that_comes_twice_is_seen():
    plan = Plan(Random(10**12, 0), scale.EACH * RANKS)
    with pytest.raises(AssertionError, match="a row came twice"):
        scale.check_shares(plan, [(7, 5), (7, 5)], RANKS)


@pytest.mark.parametrize("length", [4096, 5000, 10**9, 10**12])
def test_the_network_backwards(length):
    order, places = Permutation(length, 3), np.random.default_rng(0).integers(0, length, 500)
    assert np.array_equal(scale.place_of(order, order(places)), places)


def test_a_request_is_not_evaluated_for_other_ranks():
    """Of 2,048 rows of a global batch a rank evaluates its own, and what is asked for next."""
    order = Random(10**9, 0)
    asked = []
    indices = order.indices
    order.indices = lambda epoch, start, stop: (
        asked.append(stop - start) or indices(epoch, start, stop)
    )
    Plan(order, scale.EACH * RANKS).request(0, 9, 5, RANKS)
    assert asked == [scale.EACH]


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("cost", "written"), [(30.0, 30.0), (1.0, 30.0)])
def test_a_day_with_failures_trains_on_every_address_once(cost, written):
    seconds = 4 * scale.HOUR
    quiet = scale.Quiet(200_000, RANKS, int(seconds / scale.STEP))  # epochs of 98 steps
    failures = failures_of(3, scale.HOUR / 2, seconds)
    run = scale.replayed(Policy(15, cost, written, 60.0), quiet, 7, failures, seconds)
    assert len(failures) > 3
    assert run.made > len(run.steps) > 98


def test_a_quiet_day():
    clock = Clock()
    assert day(clock, Policy(10, 5.0, 20.0, 60.0), [], 1.0, 150.0) == 0
    # 10 steps, 5 s of a save, 10 steps, and 5 s until the save before is on the disk.
    assert clock.steps == 80


@pytest.mark.parametrize(
    ("failure", "left"),
    [
        (14.0, 0),  # the save that began at 10 is not on the disk
        (15.0, 10),
        (30.5, 20),  # saved at 10 and 25
    ],
)
def test_what_a_failure_undoes(failure, left):
    clock = Clock()
    assert day(clock, Policy(10, 5.0, 5.0, 60.0), [failure], 1.0, failure + 60) == 1
    assert clock.steps == left


def test_a_failure_in_a_restart_begins_it_anew():
    clock = Clock()
    assert day(clock, Policy(10, 0.0, 0.0, 60.0), [20.0, 50.0], 1.0, 120.0) == 2
    assert clock.steps == 20 + 10


def test_days_come_to_what_daly_expects():
    every = round(daly(30, 3600) / 10)
    policy, clocks = Policy(every, 30.0, 30.0, 60.0), [Clock() for _ in range(40)]
    for seed, clock in enumerate(clocks):
        day(clock, policy, failures_of(seed, 3600, 86_400), 10.0)
    mean = sum(clock.steps for clock in clocks) / len(clocks) * 10 / 86_400
    assert mean == pytest.approx(useful_share(10.0 * every, 30, 60, 3600), abs=0.02)
