"""Addresses to rows, for any number of ranks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.samplers import Bucket, Identity, Random, Sequential, Weighted
from tests import port
from tests.support import toy


def union(*batch, **more):
    """Positions and rows of a batch, over all ranks in order."""
    shares = port.shares(*batch, **more)
    return tuple(np.concatenate(part) for part in zip(*shares, strict=True))


@given(
    length=st.integers(1, 200),
    size=st.integers(1, 50),
    world=st.integers(1, 7),
    tail=st.sampled_from(["keep", "drop", "pad"]),
    kind=st.sampled_from(["sequential", "random", "weighted", "bucket", "identity"]),
)
@settings(max_examples=50, deadline=None)
def test_shares_of_all_ranks_make_the_global_batch(length, size, world, tail, kind):
    table = pd.DataFrame({"label": np.arange(length) % 2, "length": np.arange(length) % 9})
    sampler = {
        "sequential": lambda: Sequential(length),
        "random": lambda: Random(length, 0),
        "weighted": lambda: Weighted(length, 0, table),
        "bucket": lambda: Bucket(length, 0, table, size),
        "identity": lambda: Identity(length, 0, table, identities=1, samples=3),
    }[kind]()
    tail = "keep" if kind in ("bucket", "identity") else tail
    for epoch in (0, 1):
        for step in range(port.steps(sampler, size, epoch, tail)):
            alone = union(sampler, size, epoch, step, 1, tail)
            shared = union(sampler, size, epoch, step, world, tail)
            assert np.array_equal(alone[0], shared[0])
            assert np.array_equal(alone[1], shared[1])


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_when_the_tail_is_kept_or_padded(length, size, world):
    sampler = Random(length, 0)
    for tail in ("keep", "pad"):
        steps = range(port.steps(sampler, size, 0, tail))
        rows = np.concatenate([union(sampler, size, 0, step, world, tail)[1] for step in steps])
        assert np.array_equal(np.sort(rows), np.arange(length))


@pytest.mark.parametrize(
    ("tail", "sizes"),
    [
        ("keep", [(4, 4), (4, 4), (2, 2)]),
        ("drop", [(4, 4), (4, 4)]),
        ("pad", [(4, 4), (4, 4), (4, 2)]),
    ],
)
def test_tails(tail, sizes):
    batches = list(port.loader(toy.Pictures(10), Sequential(10), 4, tail=tail).epoch(0))
    assert [(len(batch.indices), batch.request.valid) for batch in batches] == sizes
    if tail == "pad":
        assert batches[2].indices.tolist() == [8, 9, 8, 9]


def test_a_rank_with_an_empty_share_takes_part_with_a_row_of_padding():
    shares = [
        next(port.loader(toy.Pictures(1), Sequential(1), 4, world=port.World(rank, 3)).epoch(0))
        for rank in range(3)
    ]
    assert [len(share.indices) for share in shares] == [1, 1, 1]
    assert sum(share.request.valid for share in shares) == 1


def test_addresses_outside_are_refused():
    with pytest.raises(IndexError, match="steps 0 to 2, not 3"):
        port.shares(Sequential(10), 4, 0, 3)
    assert port.steps(Sequential(0), 4, 0) == 0


def test_an_epoch_may_have_another_length():
    class Growing(Sequential):
        def size(self, epoch):
            return self.length + 10 * epoch

    assert [port.steps(Growing(9), 4, epoch) for epoch in (0, 1)] == [3, 5]
    assert union(Growing(9), 4, 1, 4)[1].tolist() == [16, 17, 18]
