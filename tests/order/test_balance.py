"""Rows dealt by cost: complete, never far from the best, and the same everywhere."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.order.balance import least_loaded


@given(st.lists(st.integers(0, 100), min_size=1, max_size=7), st.integers(1, 3))
@settings(deadline=None)
def test_the_largest_rank_is_within_four_thirds_of_the_best(costs, ranks):
    dealt = least_loaded(costs, ranks)
    largest = np.bincount(dealt, costs, ranks).max()
    best = min(
        np.bincount(one, costs, ranks).max() for one in product(range(ranks), repeat=len(costs))
    )
    assert largest <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-9


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 16))
def test_no_rank_is_empty_that_need_not_be(costs, ranks):
    dealt = least_loaded(costs, ranks)
    assert len(np.unique(dealt)) == min(ranks, len(costs))
    assert np.array_equal(dealt, least_loaded(np.array(costs), ranks))


def test_lengths_of_text_are_dealt_out_evenly():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(50):
        costs = rng.lognormal(3, 0.7, 256)
        loads = np.bincount(least_loaded(costs, 8), costs)
        ratios.append(loads.max() / loads.mean())
    assert max(ratios) <= 1.03
