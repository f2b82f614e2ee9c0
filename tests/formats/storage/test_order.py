"""`sampler=blocks`: a permutation by address, near in the dataset where it is near in time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import command
from penstock.addons.storage.order import Blocks
from penstock.order.plan import Plan


def epoch_of(order, epoch=0):
    return order.indices(epoch, 0, order.size(epoch))


sizes = st.tuples(st.integers(1, 400), st.integers(0, 9), st.integers(1, 50), st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(0, 3), st.data())
def test_every_row_has_one_position_of_every_epoch(given_sizes, epoch, data):
    length, *_ = given_sizes
    order = Blocks(*given_sizes)
    rows = epoch_of(order, epoch)
    assert np.array_equal(np.sort(rows), np.arange(length))
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    assert np.array_equal(Blocks(*given_sizes).indices(epoch, start, stop), rows[start:stop])
    assert np.array_equal(order.indices(epoch, start, length + 9), rows[start:])


@settings(max_examples=30, deadline=None)
@given(sizes)
def test_a_window_has_the_rows_of_so_many_blocks(given_sizes):
    length, _, block, window = given_sizes
    blocks = epoch_of(Blocks(*given_sizes)) // block
    last = -(-length // block) - 1
    start, left = 0, last + 1
    while start < length:  # the window that holds the last block is shorter
        count = min(window, left)
        full = count * block
        inside = set(blocks[start : start + full - (last + 1) * block + length])
        if last not in inside:
            inside = set(blocks[start : start + full])
            start += full
        else:
            start += full - (last + 1) * block + length
        assert len(inside) == count
        left -= count


@settings(max_examples=20, deadline=None)
@given(sizes, st.integers(1, 3), st.integers(1, 40))
def test_ranks_have_the_global_batch_among_them(given_sizes, world, size):
    plan = Plan(Blocks(*given_sizes), size)
    step = plan.steps(1) // 2
    whole = plan.request(1, step)
    requests = [plan.request(1, step, rank, world) for rank in range(world)]
    rows = np.concatenate([request.indices[: request.valid] for request in requests])
    assert np.array_equal(rows, whole.indices[: whole.valid])


def test_epochs_and_seeds_differ_and_a_billion_rows_cost_nothing():
    orders = [epoch_of(Blocks(1000, seed, 10, 5), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    rows = Blocks(10**9, 0).indices(3, 5 * 10**8, 5 * 10**8 + 256)
    assert len(set(rows.tolist())) == 256
    assert len(set((rows // 64).tolist())) <= 2 * 64


@pytest.mark.parametrize(("key", "value"), [("block", 0), ("window", -1)])
def test_sizes_that_are_none_are_refused(capsys, key, value):
    assert command.main(["task=digest", "sampler=blocks", f"sampler.{key}={value}"]) != 0
    assert f"sampler.{key}" in capsys.readouterr().err
