"""Blocks of rows: every token once, no block too full, and any address by itself."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.tokens import sequence_packing
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.errors import DataError
from penstock.order.plan import Plan
from penstock.order.samplers import Curriculum, Random, Repeated, Sequential, Subset, Weighted

KINDS = {
    "zipf": lambda rng, n: np.minimum(rng.zipf(1.5, n), 500),
    "constant": lambda rng, n: np.full(n, 7),
    "more than half": lambda rng, n: np.full(n, 33),
    "long": lambda rng, n: rng.integers(0, 300, n),
    "empty": lambda rng, n: np.zeros(n, np.int64),
    "exactly a block": lambda rng, n: np.full(n, 64),
    "one more, one less": lambda rng, n: 63 + 2 * rng.integers(0, 2, n),
    "now long, now short": lambda rng, n: np.where(
        np.arange(n) < n // 2, 60, rng.integers(0, 3, n)
    ),
    "empty at the end": lambda rng, n: np.where(np.arange(n) < n // 2, 32, 0),
    "one giant": lambda rng, n: np.where(np.arange(n) == n // 2, 5000, 3),
}


def packed_of(lengths, size, tokens, order=None, stretches=False, **options):
    """With `stretches`, an epoch of few rows is not counted, but estimated as that of many is."""
    changed = {"_BATCHES": 3, "_SAMPLED": 50, "_MARGIN": 0.5} if stretches else {}
    most = {"_FEW": {"never": 0, "tail": 0}, "_LEAST": {"never": 0, "tail": 0}}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ({**changed, **most} if stretches else {}).items():
            patch.setattr(sequence_packing, name, value)
        return SequencePacking(
            len(lengths), 3, None, size, tokens, column=lengths, order=order, **options
        )


def lengths_of(kind, count, seed=0):
    return KINDS[kind](np.random.default_rng(seed), count).astype(np.int32)


def epoch_of(packed, epoch=0):
    return [packed.pieces(epoch, step) for step in range(packed.size(epoch))]


@given(
    st.sampled_from(list(KINDS)),
    st.integers(1, 400),
    st.sampled_from([1, 5, 64, 4096]),
    st.sampled_from(["never", "tail"]),
    st.integers(1, 9),
    st.integers(0, 2),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_every_token_stands_in_one_block_and_no_block_is_too_full(
    kind, count, window, split, size, epoch, stretches
):
    lengths = lengths_of(kind, count)
    packed = packed_of(lengths, size, 64, None, stretches, window=window, split=split)
    seen = [np.zeros(max(length, 1), np.int64) for length in lengths]
    for step, pieces in enumerate(epoch_of(packed, epoch)):
        assert np.all(np.bincount(pieces.blocks, pieces.stops - pieces.starts) <= 64)
        assert np.array_equal(np.unique(pieces.blocks), np.arange(pieces.blocks[-1] + 1))
        assert np.array_equal(packed.order.indices(epoch, 0, count)[pieces.positions], pieces.rows)
        for row, start, stop in zip(pieces.rows, pieces.starts, pieces.stops, strict=True):
            seen[row][start : max(stop, start + 1)] += 1
        positions, rows = packed.batch(epoch, step)
        assert np.array_equal(positions, pieces.positions)
        assert np.array_equal(rows, pieces.rows)
        if split == "never":
            whole = lengths[pieces.rows] <= 64
            assert np.array_equal(
                (pieces.stops - pieces.starts)[whole], lengths[pieces.rows][whole]
            )
        assert np.array_equal(pieces.lengths, lengths[pieces.rows])
    assert all(np.all(one == 1) for one in seen)


@pytest.mark.parametrize("stretches", [False, True])
@pytest.mark.parametrize("split", ["never", "tail"])
def test_any_step_is_the_same_by_itself_and_epochs_differ(split, stretches):
    lengths = lengths_of("zipf", 3000)

    def packed():
        return packed_of(lengths, 4, 64, None, stretches, window=100, split=split)

    given_in_turn = epoch_of(packed())
    assert (packed()._stretch < len(lengths)) == stretches
    for step in (len(given_in_turn) - 1, 0, 17):
        alone = packed().pieces(0, step)
        assert all(np.array_equal(*both) for both in zip(alone, given_in_turn[step], strict=True))
    assert not np.array_equal(packed().pieces(1, 0).rows, given_in_turn[0].rows)


def test_a_stretchs_batches_have_at_most_as_many_blocks_as_asked_for():
    lengths = np.random.default_rng(1).lognormal(5, 1, 140_000).astype(np.int32)
    packed = packed_of(lengths, 8, 2048)
    counts = [int(pieces.blocks[-1]) + 1 for pieces in epoch_of(packed)]
    assert packed._stretch < 140_000 / 10
    assert set(counts[:-1]) == {7, 8}


@pytest.mark.parametrize("stretches", [False, True])
@pytest.mark.parametrize(("split", "filled"), [("never", 0.98), ("tail", 0.997)])
def test_blocks_are_full(split, filled, stretches):
    lengths = np.random.default_rng(1).lognormal(5, 1, 20_000).astype(np.int32)
    packed = packed_of(lengths, 8, 2048, None, stretches, split=split)
    blocks = sum(int(pieces.blocks[-1]) + 1 for pieces in epoch_of(packed))
    assert lengths.sum() / (blocks * 2048) >= filled
    if split == "tail" and not stretches:
        assert blocks == -(-int(lengths.sum()) // 2048)


TABLE = pd.DataFrame({"length": lengths_of("zipf", 900), "label": np.arange(900) % 7})
ORDERS = {
    "sequential": lambda: Sequential(900),
    "random": lambda: Random(900, 1),
    "subset": lambda: Subset(900, 1, fraction=0.9),
    "weighted": lambda: Weighted(900, 1, TABLE),
    "weighted, each once": lambda: Weighted(900, 1, TABLE, replacement=False),
    "curriculum": lambda: Curriculum(900, 1, TABLE, stages=5),
    "repeated": lambda: Repeated(900, 1, 6, times=3),
    "repeated weighted": lambda: Repeated(900, 1, 4, times=2, order=Weighted(900, 1, TABLE)),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("split", ["never", "tail"])
def test_another_orders_positions_are_packed_once_each(name, split):
    order = ORDERS[name]()
    packed = packed_of(TABLE["length"].to_numpy(), 4, 64, order, True, window=64, split=split)
    assert (packed._stretch < order.size(0)) == order.even
    for epoch in (0, 1):
        pieces = epoch_of(packed, epoch)
        tokens = np.zeros(order.size(epoch), np.int64)
        for one in pieces:
            np.add.at(tokens, one.positions, one.stops - one.starts)
            assert len(np.unique(one.blocks)) <= 5 + 3 * bool(packed._stretch)
        wanted = TABLE["length"].to_numpy()[order.indices(epoch, 0, order.size(epoch))]
        assert np.array_equal(tokens, wanted)


def test_an_order_that_goes_from_short_to_long_keeps_to_the_size_of_batches():
    """Else the last stage of a curriculum would have batches of a thousand blocks."""
    lengths = np.sort(lengths_of("long", 150_000))
    order = Curriculum(len(lengths), 0, pd.DataFrame({"length": lengths}), stages=20)
    packed = packed_of(lengths, 8, 64, order, split="tail")
    last = packed.size(0) - 1
    assert [packed.pieces(0, step).blocks[-1] + 1 for step in (0, last // 2, last - 1)] == [8] * 3


@given(
    st.sampled_from(["zipf", "long", "empty"]),
    st.integers(1, 5),
    st.sampled_from(["never", "tail"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=12)
def test_ranks_share_every_batch_by_blocks(kind, world, split, stretches):
    lengths = lengths_of(kind, 150)
    plan = Plan(packed_of(lengths, 3, 64, None, stretches, window=40, split=split), 3)
    for step in range(plan.steps(0)):
        whole = plan.request(0, step)
        shares = [plan.request(0, step, rank, world) for rank in range(world)]
        assert all(len(share) for share in shares)
        counted = [share for share in shares if share.valid]
        for name in ("positions", "indices", "parts"):
            joined = np.concatenate([getattr(share, name) for share in counted])
            assert np.array_equal(joined, getattr(whole, name))
        blocks = [set(share.parts[:, 3].tolist()) for share in counted]
        assert sum(map(len, blocks)) == len(set().union(*blocks))


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(DataError, match=r"row 1 has 90 tokens, and a block 64"):
        packed_of(np.array([1, 90, 2]), 1, 64, long="refuse").size(0)
    with pytest.raises(DataError, match="row 2 has a length of -4"):
        packed_of(np.array([1, 90, -4]), 1, 64).size(0)
    for lengths, rows in (([1.0, 90, 2], 3), ([1, 2], 3)):
        with pytest.raises(DataError, match="a whole number for each of 3 rows"):
            SequencePacking(rows, 0, None, 1, 64, column=np.array(lengths))


class CountedLengths:
    """A length for each of 10^9 rows, and how many were asked for."""

    dtype = np.dtype(np.int64)

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 10**9

    def __getitem__(self, rows):
        self.asked += len(rows)
        return 1 + rows * 2_654_435_761 % 499


@pytest.mark.parametrize("split", ["never", "tail"])
def test_any_batch_of_a_billion_documents_takes_the_lengths_of_a_stretch(split):
    asked = []
    for epoch, step in ((0, 0), (0, 10**6), (3, 10**6 + 1)):
        lengths = CountedLengths()
        packed = SequencePacking(10**9, 0, None, 8, 2048, column=lengths, split=split)
        assert len(Plan(packed, 8).request(epoch, step)) > 40
        asked.append(lengths.asked)
    assert asked[0] == asked[1] == asked[2] < 300_000
