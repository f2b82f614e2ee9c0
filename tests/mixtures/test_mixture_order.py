"""Mixtures: shares in every window, changes at their step, and each row once a pass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.mixtures.order import MixtureOrder
from penstock.addons.mixtures.weights import Mixing
from penstock.errors import ConfigError
from penstock.order.samplers import Sequential, Weighted


def mixed(weights, lengths=None, size=8, sources=None, tail="keep", **options):
    lengths = lengths or dict.fromkeys(weights, 1000)
    return MixtureOrder(Mixing(lengths, weights, **options), 0, size, tail, sources)


def sources_of(order, stop, start=0):
    return order.sources(0, np.arange(start, stop))[0]


def worst(source, shares, window=1000):
    """How far the count of a source in a window of positions is from its share, at most."""
    found = 0.0
    for number, share in enumerate(shares):
        sums = np.concatenate([[0], np.cumsum(source == number)])
        counts = sums[window:] - sums[:-window]
        found = max(found, np.abs(counts - share * window).max())
    return found


weights = st.one_of(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.lists(st.floats(1e-6, 1) | st.floats(0.4, 0.6), min_size=1, max_size=8),
    # Shares that are a little less than a whole number of rows in a thousand.
    st.lists(st.integers(1, 60).map(lambda rows: rows - 0.0005), min_size=1, max_size=6),
).filter(any)


@given(weights, st.integers(0, 10**9))
@settings(deadline=None, max_examples=30)
def test_any_thousand_positions_have_each_sources_share_to_within_one(given_weights, start):
    names = {str(number): weight for number, weight in enumerate(given_weights)}
    order = mixed(names, num_samples=10**10)
    shares = np.array(given_weights) / sum(given_weights)
    # Shares are multiples of 1 / 1,024,000, and so each window's is exact to 0.001 rows a source.
    assert worst(sources_of(order, start + 5000, start), shares) <= 1 + 0.001 * len(shares)


@given(weights, st.integers(1, 3000))
@settings(deadline=None, max_examples=30)
def test_every_part_from_the_start_has_the_shares_within_a_few_rows(given_weights, stop):
    names = {str(number): weight for number, weight in enumerate(given_weights)}
    counts = np.array(list(mixed(names, num_samples=10**7).given(0, stop).values()))
    shares = np.array(given_weights) / sum(given_weights)
    assert np.abs(counts - stop * shares).max() <= 2 + stop / 1000
    assert counts.sum() == stop


@given(st.integers(1, 50), st.integers(1, 50), st.booleans())
@settings(deadline=None, max_examples=30)
def test_weights_change_at_the_step_that_was_written(first, more, linear):
    second = first + more
    order = mixed(
        {
            "a": [[0, 1], [first, 0]],
            "b": [[0, 0], [first, 1], [second, 0]],
            "c": [[0, 0], [second, 3]],
        },
        num_samples=10_000,
        linear=False,
    )
    source = sources_of(order, 8 * (second + 20))
    assert np.all(source[: 8 * first] == 0)
    assert np.all(source[8 * first : 8 * second] == 1)
    assert np.all(source[8 * second :] == 2)


def test_weights_in_a_line_are_followed():
    order = mixed(
        {"a": [[0, 1], [1000, 0.0]], "b": [[0, 0], [1000, 1.0]], "c": 0.5},
        num_samples=10**5,
        linear=True,
    )
    source = sources_of(order, 16_000)
    done = (np.arange(8000) + 0.5) / 8000
    for number, share in enumerate([(1 - done) / 1.5, done / 1.5, np.full(8000, 1 / 3)]):
        sums = np.cumsum(source[:8000] == number)
        assert np.abs(sums - np.cumsum(share)).max() < 4
    assert set(source[8000:]) == {1, 2}
    assert abs((source[8000:] == 1).mean() - 2 / 3) < 0.001


@given(weights, st.integers(2, 300), st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_each_row_comes_once_a_pass_and_slices_agree(given_weights, size, epoch):
    names = {str(number): weight for number, weight in enumerate(given_weights)}
    lengths = {name: 7 + 5 * number for number, name in enumerate(names)}
    order = mixed(names, lengths, num_samples=size)
    epochs = [order.indices(one, 0, size) for one in range(epoch + 1)]
    middle = size // 2
    assert np.array_equal(order.indices(epoch, middle, size), epochs[epoch][middle:])
    everything = np.concatenate(epochs)
    first = 0
    for name, length in lengths.items():
        rows = everything[(everything >= first) & (everything < first + length)] - first
        assert len(rows) == order.given(epoch, size)[name]
        for start in range(0, len(rows), length):
            assert len(np.unique(rows[start : start + length])) == len(rows[start : start + length])
        first += length
    for row in np.unique(epochs[epoch])[:5]:
        assert order.positions_of(epoch, int(row)) == np.flatnonzero(epochs[epoch] == row).tolist()


def test_a_source_with_passes_ends_and_the_others_share_its_part():
    order = mixed(
        {"a": 1, "b": 1, "c": 2}, {"a": 100, "b": 30, "c": 500}, num_samples=500, passes={"b": 1}
    )
    source = sources_of(order, 500)
    last = np.flatnonzero(source == 1)[-1]
    assert np.count_nonzero(source == 1) == 30
    assert worst(source[: last + 1], [0.25, 0.25, 0.5], 50) <= 2
    assert worst(source[last + 1 :], [1 / 3, 0, 2 / 3], 50) <= 2
    assert order.given(9)["b"] == order.given(1)["b"] == 30


def test_where_a_mixture_ends():
    lengths = {"a": 100, "b": 30}
    both = mixed({"a": 1, "b": 1}, lengths, num_samples=500, passes={"a": 1, "b": 1})
    assert [both.size(epoch) for epoch in range(2)] == [130, 0]
    assert sorted(both.indices(0, 0, 130)) == list(range(130))
    first = mixed({"a": 1, "b": 1}, lengths, num_samples=500, passes={"b": 2}, stop="first")
    assert first.size(0) == 120  # 60 of each, the last of which is of b
    assert first.given(1) == {"a": 60, "b": 60}
    assert first.passes(first.given(1)) == {"a": 0.6, "b": 2}
    assert mixed({"a": 1, "b": 1}, lengths, stop="first").size(0) == 60


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "weights",
    [
        {"a": 1, "b": 1},
        {"a": [[0, 0.5], [4, 0.1]], "b": 0.5},
        {"a": [[0, 0], [6, 1]], "b": 1},
    ],
)
@pytest.mark.parametrize("length", [1, 3])
def test_a_row_of_a_small_source_is_found_wherever_it_stands(weights, length):
    order = mixed(weights, {"a": length, "b": 40}, num_samples=3000)
    for epoch in range(2):
        rows = order.indices(epoch, 0, 3000)
        for row in range(length + 2):
            assert order.positions_of(epoch, row) == np.flatnonzero(rows == row).tolist()


def test_no_row_of_a_pass_is_lost_where_smaller_batches_are_dropped():
    order = mixed({"a": 1, "b": 1}, {"a": 21, "b": 22}, num_samples=43, tail="drop")
    assert order.size(0) == 40
    rows = np.concatenate([order.indices(epoch, 0, 40) for epoch in range(2)])
    assert sorted(rows[rows < 21][:21]) == list(range(21))


def test_a_source_may_have_an_order_of_its_own():
    weighted = Weighted(4, 0, column=None, weights=[0, 1, 0, 1], num_samples=6)
    order = mixed({"a": 1, "b": 2}, {"a": 5, "b": 4}, num_samples=90, sources={"b": weighted})
    rows = order.indices(0, 0, 90)
    assert set(rows[rows >= 5]) == {6, 8}
    assert order.passes(order.given(1))["b"] == 10  # of six draws each
    expected = np.concatenate([weighted.indices(turn, 0, 6) for turn in range(10)]) + 5
    assert np.array_equal(rows[rows >= 5], expected)
    assert order.positions_of(0, 8) == np.flatnonzero(rows == 8).tolist()
    with pytest.raises(ConfigError, match=r"sampler\.sources\.c: there is no such source"):
        mixed({"a": 1}, sources={"c": weighted})


def test_what_is_added_later_leaves_earlier_addresses_as_they_were():
    before = mixed({"a": 2, "b": [[0, 1], [50, 4]]}, num_samples=4000)
    after = mixed(
        {"a": 2, "b": [[0, 1], [50, 4], [90, 1]], "c": [[0, 0], [90, 5]]}, num_samples=4000
    )
    assert np.array_equal(before.indices(0, 0, 8 * 90), after.indices(0, 0, 8 * 90))
    assert not np.array_equal(before.indices(0, 0, 8 * 200), after.indices(0, 0, 8 * 200))


def test_any_position_is_found_without_those_before():
    order = mixed({"a": [[0, 1], [10**6, 2]], "b": 1, "c": 3}, num_samples=2 * 10**9)
    order.indices(0, 10**9, 10**9 + 256)
    assert len(order._stages) == 2
    assert sum(order.given(0, 10**9).values()) == 10**9


@pytest.mark.parametrize(
    ("given_weights", "message"),
    [
        ({"a": 1}, "b is in one only"),
        ({"a": 1, "b": -1}, "weights.b: -1"),
        ({"a": 1, "b": [[5, 1], [2, 1]]}, "ascending"),
        ({"a": 1, "b": "x"}, "allowed"),
        ({"a": [[0, 1], [9, 0]], "b": [[0, 1], [7, 0]]}, "all weights are 0 from 9 steps on"),
    ],
)
def test_wrong_weights_are_named(given_weights, message):
    with pytest.raises(ConfigError, match=message):
        MixtureOrder(Mixing({"a": 3, "b": 4}, given_weights), 0, 8)


def test_only_constant_shares_of_random_rows_are_the_same_everywhere():
    lengths = {"a": 1000, "b": 500}
    assert MixtureOrder(Mixing(lengths, {"a": 2, "b": 1}), 0, 8).even
    assert not MixtureOrder(Mixing(lengths, {"a": [(0, 2), (9, 1)], "b": 1}), 0, 8).even
    given = {"a": Sequential(1000)}
    assert not MixtureOrder(Mixing(lengths, {"a": 2, "b": 1}), 0, 8, sources=given).even
