"""The interval of checkpoints: Young's and Daly's, and what each share of the time goes into."""

import numpy as np
import pytest

from penstock.addons.tuning.profile import daly, useful_share, young

CASES = [(1, 3600), (30, 3600), (300, 3600), (5, 86400)]  # seconds of a save, between failures


@pytest.mark.parametrize(("cost", "between"), CASES)
def test_no_interval_is_much_better_than_daly_s(cost, between):
    intervals = np.geomspace(1, 100 * between, 20_000)
    shares = [useful_share(one, cost, 60, between) for one in intervals]
    best = max(shares)
    assert useful_share(daly(cost, between), cost, 60, between) == pytest.approx(best, rel=1e-4)
    assert daly(cost, between) == pytest.approx(intervals[np.argmax(shares)], rel=0.02)
    assert useful_share(young(cost, between), cost, 60, between) <= best


def test_young_s_is_the_first_order_of_it():
    assert young(2, 100) == 20
    assert daly(1e-6, 3600) == pytest.approx(young(1e-6, 3600), rel=1e-4)
    assert daly(200, 100) == 100 == daly(900, 100)


def test_without_failures_only_saves_cost():
    assert useful_share(90, 10, 5, 1e12) == pytest.approx(0.9)
    assert useful_share(1e9, 10, 5, 3600) == 0
    assert 0 < useful_share(3600, 0, 0, 3600) < 1
