"""Blocks of rows: every token once, no block too full, and any address by itself."""

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.order.sequence_packing import SequencePacking, best_fit, cut_in_turn

KINDS = {
    "zipf": lambda rng, n: np.minimum(rng.zipf(1.5, n), 500),
    "constant": lambda rng, n: np.full(n, 7),
    "more than half": lambda rng, n: np.full(n, 33),
    "long": lambda rng, n: rng.integers(0, 300, n),
    "empty": lambda rng, n: np.zeros(n, np.int64),
    "one giant": lambda rng, n: np.where(np.arange(n) == n // 2, 5000, 3),
}


def packed_of(lengths, size, tokens, order=None, **options):
    table = pd.DataFrame({"length": lengths}, copy=False)
    return SequencePacking(len(lengths), 3, table, size, tokens, order=order, **options)


def lengths_of(kind, count, seed=0):
    return KINDS[kind](np.random.default_rng(seed), count).astype(np.int32)


def epoch_of(packed, epoch=0):
    return [packed.pieces(epoch, step) for step in range(packed.size(epoch))]


@given(
    st.sampled_from(list(KINDS)), st.integers(1, 400), st.sampled_from([1, 5, 64, 4096]),
    st.sampled_from(["never", "tail"]), st.integers(1, 9), st.integers(0, 2),
)  # fmt: skip
@settings(deadline=None)
def test_every_token_stands_in_one_block_and_no_block_is_too_full(
    kind, count, window, split, size, epoch
):
    lengths = lengths_of(kind, count)
    packed = packed_of(lengths, size, 64, window=window, split=split)
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
        for position in pieces.positions[:2]:
            assert step in packed.steps_of(epoch, int(position))
        if split == "never":
            whole = lengths[pieces.rows] <= 64
            assert np.array_equal(
                (pieces.stops - pieces.starts)[whole], lengths[pieces.rows][whole]
            )
        assert np.array_equal(pieces.lengths, lengths[pieces.rows])
    assert all(np.all(one == 1) for one in seen)


def test_any_step_is_the_same_by_itself_and_epochs_differ():
    lengths = lengths_of("zipf", 3000)
    given_in_turn = epoch_of(packed_of(lengths, 4, 64, window=100))
    for step in (len(given_in_turn) - 1, 0, 17):
        alone = packed_of(lengths, 4, 64, window=100).pieces(0, step)
        assert all(np.array_equal(*both) for both in zip(alone, given_in_turn[step], strict=True))
    other = packed_of(lengths, 4, 64, window=100).pieces(1, 0)
    assert not np.array_equal(other.rows, given_in_turn[0].rows)


def test_batches_have_about_as_many_blocks_as_asked_for():
    lengths = np.random.default_rng(1).lognormal(5, 1, 200_000).astype(np.int32)
    packed = packed_of(lengths, 8, 2048)
    counts = [int(pieces.blocks[-1]) + 1 for pieces in epoch_of(packed)]
    assert set(counts[:-1]) <= {6, 7, 8, 9, 10}
    assert abs(np.mean(counts) - 8) < 0.5


@pytest.mark.parametrize(("split", "filled"), [("never", 0.98), ("tail", 0.9998)])
def test_blocks_are_full(split, filled):
    lengths = np.random.default_rng(1).lognormal(5, 1, 70_000).astype(np.int32)
    packed = packed_of(lengths, 8, 2048, split=split)
    blocks = sum(int(pieces.blocks[-1]) + 1 for pieces in epoch_of(packed))
    assert lengths.sum() / (blocks * 2048) >= filled


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(50, 80))
def test_best_fit_never_leaves_two_blocks_half_empty(lengths, capacity):
    lengths = np.array(lengths, np.int64)
    blocks = best_fit(lengths, capacity)
    sums = np.bincount(blocks, lengths) if len(lengths) else np.empty(0)
    assert np.all(sums <= capacity)
    # Were two blocks to fit into one, the rows of the later one would have gone into the earlier.
    if len(sums) > 1:
        smallest = np.sort(sums)[:2]
        assert smallest.sum() > capacity or 0 in np.bincount(blocks)


def test_rows_are_cut_in_turn():
    place, starts, stops, blocks = cut_in_turn(np.array([3, 0, 9, 4, 0]), 8)
    assert place.tolist() == [0, 1, 2, 2, 3, 4]
    assert starts.tolist() == [0, 0, 0, 5, 0, 0]
    assert stops.tolist() == [3, 0, 5, 9, 4, 0]
    assert blocks.tolist() == [0, 0, 0, 1, 1, 1]


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(DataError, match=r"row 1 has 90 tokens, and a block 64"):
        packed_of(np.array([1, 90, 2]), 1, 64, long="refuse").size(0)
    with pytest.raises(DataError, match="row 2 has a length of -4"):
        packed_of(np.array([1, 90, -4]), 1, 64).size(0)
    with pytest.raises(ConfigError, match=r"sampler\.tokens: 0"):
        packed_of(np.array([1, 90, 2]), 1, 0)
    with pytest.raises(ConfigError, match=r"batch\.tail"):
        packed_of(np.array([1, 90, 2]), 1, 64, tail="pad")
    with pytest.raises(DataError, match="whole numbers"):
        packed_of(np.array([1.0, 90, 2]), 1, 64)


@pytest.mark.stress
def test_a_billion_documents_are_packed_as_fast_in_the_middle_as_at_the_start(tmp_path):
    path = tmp_path / "lengths.npy"
    lengths = np.lib.format.open_memmap(path, "w+", np.uint16, (10**9,))
    part = np.random.default_rng(0).lognormal(5, 1, 10**7).clip(1, 60_000).astype(np.uint16)
    for start in range(0, 10**9, len(part)):
        lengths[start : start + len(part)] = part
    times = {}
    for step in (0, 10**6, 0, 10**6):
        packed = packed_of(lengths, 8, 2048)
        began = time.process_time()
        packed.pieces(0, step)
        times.setdefault(step, []).append(time.process_time() - began)
        began = time.process_time()
        for later in range(step + 1, step + 65):
            packed.pieces(0, later)
        times.setdefault("each", []).append((time.process_time() - began) / 64)
    print(times)
    assert min(times[10**6]) <= 1.2 * max(times[0])
