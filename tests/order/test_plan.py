"""Addresses to requests, for any number of ranks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.plan import Plan, Request, deal, not_empty, share_of
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


@pytest.mark.parametrize(
    ("count", "size", "world", "together", "shares"),
    [
        (5, 5, 2, 1, [([0, 1], 2), ([2, 3, 4], 3)]),
        (5, 5, 2, 2, [([0, 1], 2), ([2, 3, 4], 3)]),
        (7, 7, 2, 2, [([0, 1, 2, 3], 4), ([4, 5, 6], 3)]),
        (6, 6, 3, 3, [([0], 0), ([0, 1, 2], 3), ([3, 4, 5], 3)]),
        (3, 6, 2, 1, [([0, 1, 2], 3), ([0, 1, 2], 0)]),
        (5, 8, 3, 1, [([0, 1], 2), ([2, 3, 4], 3), ([0, 1, 2], 0)]),
        (1, 1, 3, 1, [([0], 0), ([0], 0), ([0], 1)]),
    ],
)
def test_what_each_rank_gets(count, size, world, together, shares):
    dealt = [share_of(count, size, rank, world, together) for rank in range(world)]
    assert [(rows.tolist(), valid) for rows, valid in dealt] == shares
    assert share_of(count, size, 1, world)[1] == share_of(count, size, 1, world, 1)[1]


BLOCKS = np.array([[0, 4, 4, 0], [0, 2, 6, 1], [2, 6, 6, 1], [0, 9, 9, 2], [0, 1, 1, 3]])


@pytest.mark.parametrize(
    ("parts", "costs", "options", "shares"),
    [
        (None, None, {}, [([10, 11], 2), ([12, 13, 14], 3)]),
        (None, [9, 1, 1, 1, 1], {}, [([10], 1), ([11, 12, 13, 14], 4)]),
        (None, [9, 1, 1, 1, 1], {"together": 2}, [([10, 11], 2), ([12, 13, 14], 3)]),
        (None, [9, 1, 1, 1, 1], {"size": 7}, [([10, 11, 13, 11], 3), ([12, 14, 10], 2)]),
        (None, [9, 0, 0, 0, 0], {"size": 6}, [([10, 11, 13], 3), ([12, 14, 10], 2)]),
        (BLOCKS, None, {}, [([10, 11, 12], 3), ([13, 14], 2)]),
        (BLOCKS, [4, 2, 4, 9, 1], {}, [([13, 14], 2), ([10, 11, 12], 3)]),
    ],
)
def test_a_global_batch_is_dealt(parts, costs, options, shares):
    rows = np.arange(5)
    batch = Request(2, 7, 20 + rows, 10 + rows, 5, parts=parts)
    options = {"size": 5} | options
    costs = None if costs is None else np.array(costs, float)
    for rank, (expected, valid) in enumerate(shares):
        mine = deal(batch, rank=rank, world=2, costs=costs, **options)
        assert (mine.epoch, mine.step) == (2, 7)
        assert mine.indices.tolist() == expected
        assert (mine.positions - mine.indices == 10).all()
        assert mine.valid == valid
        assert mine.total == options["size"]
        if parts is not None:
            assert mine.parts.tolist() == parts[mine.indices - 10].tolist()


def test_a_rank_without_a_block_or_a_group_takes_part_with_a_row_of_padding():
    rows = np.arange(2)
    for parts in (None, BLOCKS[1:3] - [0, 0, 0, 1]):
        batch = Request(0, 0, rows, rows, 2, parts=parts)
        shares = [deal(batch, 2, rank, 3, 2, np.ones(2)) for rank in range(3)]
        assert [share.valid for share in shares] == [2, 0, 0]
        assert [share.indices.tolist() for share in shares] == [[0, 1], [0], [0]]


def test_batches_of_an_epoch():
    class Growing(Sequential):
        def size(self, epoch):
            return self.length + 10 * epoch

    assert [Plan(Growing(9), 4, again=again).steps(1) for again in (False, True)] == [5, 3]
    assert [Plan(Growing(8), 4, tail).steps(0) for tail in ("keep", "drop", "pad")] == [2] * 3
    assert [Plan(Growing(9), 4, tail).steps(0) for tail in ("keep", "drop", "pad")] == [3, 2, 3]
    assert [Plan(Growing(9), 4, most=most).steps(0) for most in (2, 3, 4)] == [2, 3, 3]
    plan = Plan(Growing(9), 4)
    assert (plan.limit(1), len(plan)) == (5, 3)
    assert plan.request(1, 4).indices.tolist() == [16, 17, 18]
    for step in (-1, 3):
        with pytest.raises(IndexError, match=f"epoch 0 has steps 0 to 2, not {step}"):
            plan.request(0, step)
    assert Plan(Sequential(3), 1).steps(0) == 3
    again = Plan(Random(9, 0), 4, again=True)
    assert again.request(3, 2).indices.tolist() == again.request(0, 2).indices.tolist()
    assert again.request(3, 2).epoch == 3
    assert again.steps_of(3, 5) == again.steps_of(0, 5)


@pytest.mark.parametrize("tail", ["keep", "pad"])
@pytest.mark.parametrize("again", [False, True])
def test_rows_dealt_by_cost_are_those_of_the_batch(tail, again):
    asked = []

    def costs(indices, parts):
        asked.append((indices.tolist(), parts))
        return np.ones(len(indices))

    plan = Plan(Random(9, 0), 4, tail, again=again, costs=costs)
    whole = plan.request(2, 2)
    assert asked == []  # one rank deals nothing
    shares = [plan.request(2, 2, rank, 2) for rank in range(2)]
    assert asked == [([whole.indices[0]], None)] * 2
    rows = plan.sampler.indices(0 if again else 2, 8, 9).tolist()
    assert [share.valid for share in shares] == [1, 0]
    assert shares[0].indices.tolist()[:1] == whole.indices.tolist()[:1] == rows
    assert shares[0].positions.tolist()[:1] == [8]
    assert whole.total == shares[0].total == (4 if tail == "pad" else 1)


def test_waiting_is_predicted_by_sixteen_batches_of_an_epoch():
    asked = []

    def costs(indices, parts):
        asked.append(int(indices[0]))
        return np.ones(len(indices))

    assert Plan(Sequential(60), 2, costs=costs).predicted_waiting(0, 2) == (0.0, 0.0)
    assert asked == [2 * (29 * number // 15) for number in range(16)]
    assert Plan(Sequential(0), 2, costs=costs).predicted_waiting(0, 2) is None
    assert Plan(Sequential(60), 2).predicted_waiting(0, 2) is None
    odd = Plan(Sequential(3), 3, costs=costs, together=2).predicted_waiting(0, 2)
    assert odd == (0.25, 0.25)  # 2 rows and 1: one of three row-times, of 2 at most
    padded = Plan(Sequential(1), 3, "pad", costs=costs).predicted_waiting(0, 2)
    assert padded == (0.25, 0.25)


TABLE = pd.DataFrame({"label": [0, 0, 0, 1], "length": [1, 1, 2, 2]})


@pytest.mark.parametrize(
    ("sampler", "size", "tail", "message"),
    [
        (
            Sequential(3),
            4,
            "drop",
            "batch.size: 4 is more than the 3 samples of an epoch, and batch.tail=drop leaves out "
            "what is less than a batch, so nothing is left; set batch.size=3 or less, or "
            "batch.tail=keep",
        ),
        (Sequential(0), 4, "drop", "sampler: Own gives none of the dataset's 7 rows"),
        (Sequential(0), 4, "keep", "sampler: Own gives none of the dataset's 7 rows"),
        (
            Bucket(4, 0, TABLE, 5, "drop"),
            5,
            "drop",
            "batch.tail: drop leaves out what is less than a batch of 5, and Own forms no full one "
            "of 7 rows; set batch.size=7 or less, or batch.tail=keep",
        ),
        (
            Bucket(4, 0, TABLE, 5, "drop"),
            5,
            "keep",
            "sampler: Own forms no batch of the dataset's 7 rows",
        ),
    ],
)
def test_an_epoch_without_a_batch_is_refused(sampler, size, tail, message):
    with pytest.raises(ConfigError) as raised:
        not_empty(Plan(sampler, size, tail), 7, "Own")
    assert str(raised.value) == message
    plan = Plan(Sequential(4), 4, "drop")
    assert not_empty(plan, 4, "Own") is plan


def test_rows_of_validation_stand_at_their_own_positions():
    rows = np.array([5, 2])
    batch = Plan(Sequential(9), 4).rows(rows)
    assert (batch.epoch, batch.step, batch.valid, batch.parts) == (0, 0, 2, None)
    assert batch.positions.tolist() == batch.indices.tolist() == [5, 2]
    assert Plan(Bucket(4, 0, TABLE, 2), 2).rows(rows).parts is None
