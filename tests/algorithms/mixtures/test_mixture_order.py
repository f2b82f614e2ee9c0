"""Mixtures: shares in every block, changes at their step, and each row once a pass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.mixtures.order import BLOCK, MixtureOrder
from penstock.errors import ConfigError


def mixed(weights, lengths=None, size=8, tail="keep", **options):
    lengths = lengths or dict.fromkeys(weights, 1000)
    sources = {name: range(length) for name, length in lengths.items()}
    return MixtureOrder(Mixture(sources, weights, **options), 0, size, tail)


def sources_of(order, stop, start=0):
    edges = np.cumsum(list(order.lengths.values()))
    return np.searchsorted(edges, order.indices(0, start, stop), side="right")


def rows_given(order, epoch, position):
    return {name: one["rows"] for name, one in order.consumed(epoch, position).items()}


weights = st.one_of(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.lists(st.floats(1e-6, 1) | st.floats(0.4, 0.6), min_size=1, max_size=8),
    # Shares of a little less than a whole number of rows in a thousand.
    st.lists(st.integers(1, 60).map(lambda rows: rows - 0.0005), min_size=1, max_size=6),
    st.just([0.4999, 0.0002, 0.4999]),
).filter(any)


def named(many):
    return {str(number): weight for number, weight in enumerate(many)}


@given(weights, st.integers(0, 10**9))
@settings(deadline=None, max_examples=50)
def test_every_block_has_each_sources_share(many, block):
    order = mixed(named(many), num_samples=10**13)
    start, shares = block * BLOCK, np.array(many) / sum(many)
    counts = np.bincount(sources_of(order, start + BLOCK, start), minlength=len(many))
    assert np.abs(counts - BLOCK * shares).max() < 4
    before, after = (rows_given(order, 0, at).values() for at in (start, start + BLOCK))
    assert sum(before) == start
    assert np.array_equal(np.subtract([*after], [*before]), counts)
    # Shares are ratios in 2^-40, so of 10^12 positions a row or two.
    assert np.abs(np.array([*before]) - start * shares).max() < 2 + start * 2**-38


def test_shares_in_thousandths_are_exact_in_every_block():
    source = sources_of(mixed({"a": 0.7, "b": 0.2, "c": 0.1}, num_samples=10**6), 100_000)
    for number, rows in enumerate((700, 200, 100)):
        assert set((source == number).reshape(-1, BLOCK).sum(axis=1)) == {rows}


@given(st.integers(1, 50), st.integers(1, 50), st.sampled_from(["steps", "samples"]))
@settings(deadline=None, max_examples=30)
def test_weights_change_at_the_step_that_was_written(first, more, knots):
    second, size = first + more, 8 if knots == "steps" else 1
    many = {"a": [[0, 1], [first, 0]], "b": [[0, 0], [first, 1], [second, 0]]}
    order = mixed(many | {"c": [[0, 0], [second, 3]]}, num_samples=10_000, knots=knots)
    source = sources_of(order, size * (second + 20))
    assert np.all(source[: size * first] == 0)
    assert np.all(source[size * first : size * second] == 1)
    assert np.all(source[size * second :] == 2)


def test_a_step_of_a_later_epoch_begins_where_its_batch_does():
    order = mixed({"a": [[0, 1], [4, 0]], "b": [[0, 0], [4, 1]]}, num_samples=20)
    assert (sources_of(order, 20) == 0).all()  # batches of 8, 8 and 4
    rows = order.indices(1, 0, 20)
    assert (rows[:8] < 1000).all()
    assert (rows[8:] >= 1000).all()


@given(weights, st.integers(2, 300), st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_each_row_comes_once_a_pass_and_slices_agree(many, size, epoch):
    lengths = {name: 7 + 5 * number for number, name in enumerate(named(many))}
    order = mixed(named(many), lengths, num_samples=size)
    epochs = [order.indices(one, 0, size) for one in range(epoch + 1)]
    middle = size // 2
    assert np.array_equal(order.indices(epoch, middle, size), epochs[epoch][middle:])
    everything, first = np.concatenate(epochs), 0
    for name, length in lengths.items():
        rows = everything[(everything >= first) & (everything < first + length)]
        assert len(rows) == rows_given(order, epoch, size)[name]
        for start in range(0, len(rows), length):
            assert len(set(rows[start : start + length])) == len(rows[start : start + length])
        first += length


def test_a_source_with_passes_ends_and_the_others_share_its_part():
    lengths = {"a": 100, "b": 30, "c": 500}
    order = mixed({"a": 1, "b": 1, "c": 2}, lengths, num_samples=5000, passes={"b": 2})
    source = sources_of(order, 5000)
    last = np.flatnonzero(source == 1)[-1]
    assert np.bincount(source[: last + 1], minlength=3)[1] == 60
    assert abs(np.mean(source[last + 1 :] == 2) - 2 / 3) < 0.01
    assert order.consumed(9, 17)["b"] == {"rows": 60, "passes": 2}
    with pytest.raises(ConfigError, match=r"dataset\.weights: no source .* from sample 1\d\d on"):
        mixed({"a": 1, "b": 1}, {"a": 100, "b": 30}, passes={"a": 1, "b": 1})


def test_no_row_of_a_pass_is_lost_where_smaller_batches_are_dropped():
    order = mixed({"a": 1, "b": 1}, {"a": 21, "b": 22}, num_samples=43, tail="drop")
    assert order.size(0) == 40
    rows = np.concatenate([order.indices(epoch, 0, 40) for epoch in range(2)])
    assert sorted(rows[rows < 21][:21]) == list(range(21))


def test_what_is_added_later_leaves_earlier_addresses_as_they_were():
    before = mixed({"a": 2, "b": [[0, 1], [50, 4]]}, num_samples=4000)
    after = {"a": 2, "b": [[0, 1], [50, 4], [90, 1]], "c": [[0, 0], [90, 5]]}
    after = mixed(after, num_samples=4000)
    assert np.array_equal(before.indices(0, 0, 8 * 90), after.indices(0, 0, 8 * 90))
    assert not np.array_equal(before.indices(0, 0, 8 * 200), after.indices(0, 0, 8 * 200))


def test_another_seed_lays_the_sources_out_otherwise():
    data = Mixture({"a": range(500), "b": range(500)})
    one, other = (MixtureOrder(data, seed, 8).indices(0, 0, 1000) < 500 for seed in (0, 1))
    assert one.sum() == other.sum() == 500
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("many", "message"),
    [
        ({"a": 1}, "dataset.weights: b: weights and passes are of a, b"),
        ({"a": 1, "b": -1}, "weights.b: -1"),
        ({"a": 1, "b": [[5, 1], [2, 1]]}, "ascending"),
        ({"a": 1, "b": 1, "none": 1}, r"weights\.none: 1; .* 0 without samples"),
        ({"a": [[0, 1], [9, 0]], "b": [[0, 1], [7, 0]]}, "no source .* from sample 63 on"),
    ],
)
def test_wrong_weights_are_named(many, message):
    lengths = {"a": 3, "b": 4} | ({"none": 0} if "none" in many else {})
    with pytest.raises(ConfigError, match=message):
        mixed(many, lengths)


def test_only_constant_shares_are_the_same_everywhere():
    assert mixed({"a": 2, "b": 1}).even
    assert not mixed({"a": [(0, 2), (9, 1)], "b": 1}).even
