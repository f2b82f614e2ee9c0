"""Rows dealt by cost: complete, never far from the best, and the same everywhere."""

from itertools import product

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.plan import Plan, contiguous, least_loaded, share_of
from penstock.order.samplers import Bucket, Random


@given(st.lists(st.integers(0, 100), min_size=1, max_size=7), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_the_largest_rank_is_within_four_thirds_of_the_best(costs, ranks):
    dealt = least_loaded(costs, ranks)
    largest = np.bincount(dealt, costs, ranks).max()
    best = min(
        np.bincount(one, costs, ranks).max() for one in product(range(ranks), repeat=len(costs))
    )
    assert largest <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-9


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 16))
@settings(max_examples=40, deadline=None)
def test_no_rank_is_empty_that_need_not_be(costs, ranks):
    dealt = least_loaded(costs, ranks)
    assert len(np.unique(dealt)) == min(ranks, len(costs))
    assert np.array_equal(dealt, least_loaded(np.array(costs), ranks))


def plan_of(lengths, size, tail="keep", together=1, power=1, sampler=None):
    def costs(indices, parts):
        return np.asarray(lengths, np.float64)[indices] ** power

    sampler = sampler or Random(len(lengths), 0)
    return Plan(sampler, size, tail, together, costs=costs)


@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=80),
    size=st.integers(1, 30),
    world=st.integers(1, 9),
    tail=st.sampled_from(["keep", "drop", "pad"]),
    together=st.integers(1, 3),
    bucket=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_balanced_shares_make_the_global_batch(lengths, size, world, tail, together, bucket):
    sampler = None
    if bucket:
        table, tail = pd.DataFrame({"length": lengths}), "keep"
        sampler = Bucket(len(lengths), 0, table, size)
    plan = plan_of(lengths, size, tail, together, sampler=sampler)
    for step in range(plan.steps(0)):
        whole = plan.request(0, step)
        cut = Plan(plan.sampler, size, tail, together).request(0, step)
        assert np.array_equal(whole.positions, cut.positions)
        positions = []
        for rank in range(world):
            mine = plan.request(0, step, rank, world)
            assert len(mine)
            assert mine.total == whole.total
            own = mine.positions[: mine.valid]
            assert (np.diff(own) > 0).all()  # as they stand in the batch, padding behind them
            first = whole.positions[0]
            assert np.array_equal(mine.indices, whole.indices[mine.positions - first])
            groups = (own - first) // together
            counted = min(whole.valid, len(whole))
            for group in np.unique(groups):  # whole ones
                assert (groups == group).sum() == min(together, counted - group * together)
            positions += own.tolist()
        assert sorted(positions) == whole.positions[: whole.valid].tolist()


@given(st.integers(1, 60), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_rank_of_each_row_in_contiguous_shares(count, ranks):
    dealt = contiguous(count, ranks)
    for rank in range(ranks):
        mine, valid = share_of(count, count, rank, ranks)
        assert np.flatnonzero(dealt == rank).tolist() == mine[:valid].tolist()
