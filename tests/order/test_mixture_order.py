"""Mixtures: shares in every window, changes at their step, and each row once a pass."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.order.mixture import MixtureOrder


def mixed(weights, lengths=None, size=8, **options):
    lengths = lengths or dict.fromkeys(weights, 1000)
    return MixtureOrder(lengths, weights, 0, size, **options)


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


weights = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)


@given(weights, st.integers(0, 10**9))
@settings(deadline=None, max_examples=50)
def test_every_window_has_each_sources_share(given_weights, start):
    names = {str(number): weight for number, weight in enumerate(given_weights)}
    order = mixed(names, num_samples=10**10)
    shares = np.array(given_weights) / sum(given_weights)
    bound = 1 if np.count_nonzero(shares) <= 2 else 2
    assert worst(sources_of(order, start + 5000, start), shares) <= bound


def test_blocks_of_a_thousand_have_shares_within_one():
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    source = sources_of(mixed(dict(zip("abcd", shares, strict=True)), num_samples=10**8), 10**6)
    counts = np.stack([np.bincount(block, minlength=4) for block in source.reshape(-1, 1000)])
    assert np.abs(counts - 1000 * shares).max() <= 1


@given(st.integers(1, 50), st.integers(1, 50), st.booleans())
@settings(deadline=None, max_examples=30)
def test_weights_change_at_the_step_that_was_written(first, more, linear):
    second = first + more
    order = mixed(
        {"a": [[0, 1], [first, 0]], "b": [[0, 0], [first, 1], [second, 0]],
         "c": [[0, 0], [second, 3]]}, num_samples=10_000, linear=False,
    )  # fmt: skip
    source = sources_of(order, 8 * (second + 20))
    assert np.all(source[: 8 * first] == 0)
    assert np.all(source[8 * first : 8 * second] == 1)
    assert np.all(source[8 * second :] == 2)


def test_weights_in_a_line_are_followed():
    order = mixed({"a": [[0, 1], [1000, 0.0]], "b": [[0, 0], [1000, 1.0]], "c": 0.5},
                  num_samples=10**5, linear=True)  # fmt: skip
    source = sources_of(order, 16_000)
    done = (np.arange(8000) + 0.5) / 8000
    for number, share in enumerate([(1 - done) / 1.5, done / 1.5, np.full(8000, 1 / 3)]):
        sums = np.cumsum(source[:8000] == number)
        assert np.abs(sums - np.cumsum(share)).max() < 2
    assert set(source[8000:]) == {1, 2}
    assert abs((source[8000:] == 1).mean() - 2 / 3) < 0.001


@given(weights, st.integers(2, 300), st.integers(0, 3))
@settings(deadline=None, max_examples=40)
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
        assert order.positions_of(int(row), epoch) == np.flatnonzero(epochs[epoch] == row).tolist()


def test_a_source_with_passes_ends_and_the_others_share_its_part():
    order = mixed({"a": 1, "b": 1, "c": 2}, {"a": 100, "b": 30, "c": 500}, num_samples=500,
                  passes={"b": 1})  # fmt: skip
    source = sources_of(order, 500)
    last = np.flatnonzero(source == 1)[-1]
    assert np.count_nonzero(source == 1) == 30
    assert worst(source[: last + 1], [0.25, 0.25, 0.5], 50) <= 2
    assert worst(source[last + 1 :], [1 / 3, 0, 2 / 3], 50) <= 1
    with pytest.raises(ConfigError, match="all sources end after 130 samples"):
        mixed({"a": 1, "b": 1}, {"a": 100, "b": 30}, num_samples=500, passes={"a": 1, "b": 1})


def test_what_is_added_later_leaves_earlier_addresses_as_they_were():
    before = mixed({"a": 2, "b": [[0, 1], [50, 4]]}, num_samples=4000)
    after = mixed({"a": 2, "b": [[0, 1], [50, 4], [90, 1]], "c": [[0, 0], [90, 5]]},
                  num_samples=4000)  # fmt: skip
    assert np.array_equal(before.indices(0, 0, 8 * 90), after.indices(0, 0, 8 * 90))
    assert not np.array_equal(before.indices(0, 0, 8 * 200), after.indices(0, 0, 8 * 200))


def test_any_position_costs_the_same():
    order = mixed({"a": [[0, 1], [10**6, 2]], "b": 1, "c": 3}, num_samples=2 * 10**9)
    times = {}
    for start in (0, 10**9) * 5:
        began = time.process_time()
        for step in range(20):
            order.indices(0, start + step * 256, start + step * 256 + 256)
        times.setdefault(start, []).append((time.process_time() - began) / 20)
    assert min(times[10**9]) < 2 * min(times[0]) < 0.01


@pytest.mark.parametrize(("given_weights", "message"), [
    ({"a": 1}, "b is in one only"), ({"a": 1, "b": -1}, "weights.b: -1"),
    ({"a": 1, "b": [[5, 1], [2, 1]]}, "ascending"), ({"a": 1, "b": "x"}, "allowed"),
    ({"a": [[0, 1], [9, 0]], "b": [[0, 1], [7, 0]]}, "all weights are 0 at step 9"),
])  # fmt: skip
def test_wrong_weights_are_named(given_weights, message):
    with pytest.raises(ConfigError, match=message):
        MixtureOrder({"a": 3, "b": 4}, given_weights, 0, 8)
