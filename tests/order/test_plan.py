"""Addresses to requests, for any number of ranks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.plan import Plan
from penstock.order.samplers import Bucket, Identity, Random, Sequential, Weighted


def union(plan, epoch, step, world):
    """Valid positions and rows of a batch, over all ranks in order."""
    shares = [plan.request(epoch, step, rank, world) for rank in range(world)]
    positions = np.concatenate([share.positions[: share.valid] for share in shares])
    return positions, np.concatenate([share.indices[: share.valid] for share in shares])


@given(
    length=st.integers(1, 200),
    size=st.integers(1, 50),
    world=st.integers(1, 7),
    tail=st.sampled_from(["keep", "drop", "pad"]),
    kind=st.sampled_from(["sequential", "random", "weighted", "bucket", "identity"]),
)
@settings(max_examples=150, deadline=None)
def test_shares_of_all_ranks_make_the_global_batch(length, size, world, tail, kind):
    table = pd.DataFrame({"label": np.arange(length) % 2, "length": np.arange(length) % 9})
    sampler = {
        "sequential": lambda: Sequential(length),
        "random": lambda: Random(length, 0),
        "weighted": lambda: Weighted(length, 0, table),
        "bucket": lambda: Bucket(length, 0, table, size),
        "identity": lambda: Identity(length, 0, table, identities=1, samples=3),
    }[kind]()
    plan = Plan(sampler, size, "keep" if kind in ("bucket", "identity") else tail)
    for epoch in (0, 1):
        for step in range(plan.steps(epoch)):
            alone, shared = union(plan, epoch, step, 1), union(plan, epoch, step, world)
            assert np.array_equal(alone[0], shared[0])
            assert np.array_equal(alone[1], shared[1])


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_when_the_tail_is_kept_or_padded(length, size, world):
    for tail in ("keep", "pad"):
        plan = Plan(Random(length, 0), size, tail)
        rows = np.concatenate([union(plan, 0, step, world)[1] for step in range(len(plan))])
        assert np.array_equal(np.sort(rows), np.arange(length))


def test_tails():
    def sizes(tail):
        plan = Plan(Sequential(10), 4, tail)
        return [(len(r), r.valid) for r in (plan.request(0, step) for step in range(len(plan)))]

    assert sizes("keep") == [(4, 4), (4, 4), (2, 2)]
    assert sizes("drop") == [(4, 4), (4, 4)]
    assert sizes("pad") == [(4, 4), (4, 4), (4, 2)]
    assert Plan(Sequential(10), 4, "pad").request(0, 2).indices.tolist() == [8, 9, 8, 9]


def test_a_rank_with_an_empty_share_takes_part_with_a_row_of_padding():
    plan = Plan(Sequential(1), 4)
    requests = [plan.request(0, 0, rank, 3) for rank in range(3)]
    assert [len(request) for request in requests] == [1, 1, 1]
    assert sum(request.valid for request in requests) == 1


def test_addresses_outside_and_impossible_sizes_are_refused():
    with pytest.raises(IndexError, match="steps 0 to 2, not 3"):
        Plan(Sequential(10), 4).request(0, 3)
    with pytest.raises(ConfigError, match=r"batch\.size: 0 is below 1"):
        Plan(Sequential(10), 0)
    assert len(Plan(Sequential(0), 4)) == 0
