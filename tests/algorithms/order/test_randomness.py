"""Keys, permutations and the scope."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.keys import (
    begin_sample,
    hash64,
    hash64_array,
    key_at_hand,
    sample_keys,
    uniform,
    uniform_at,
)
from penstock.order.permutation import Permutation
from penstock.order.seeding import scope


@pytest.fixture(autouse=True)
def seeded():
    """No second number of a pair, as `gauss` keeps it, is left from an earlier test."""
    random.seed(5)
    np.random.seed(5)


def test_keys_are_the_same_for_ever():
    """Pinned: a change here changes every order and every augmentation of every user."""
    assert hash64(0) == 3069472533636442495
    assert hash64(7, "order", 3) == 4865279102897352318
    assert hash64_array(hash64(1), [0, 1, 2**40]).tolist() == [
        2444220808588591164,
        3645719704280235568,
        9906219274761971032,
    ]
    assert sample_keys(0, 1, np.array([5])).tolist() == [4197335346332963567]
    assert Permutation(10, hash64(0))(np.arange(10)).tolist() == [0, 7, 4, 1, 5, 6, 8, 2, 9, 3]
    assert Permutation(10**9, hash64(0))([0, 1, 10**9 - 1]).tolist() == [
        830827164,
        241404103,
        983428775,
    ]


def test_parts_of_a_key_do_not_run_together():
    keys = {hash64(a, b) for a in range(50) for b in range(50)}
    assert len(keys) == 2500
    assert hash64("ab", "c") != hash64("a", "bc")
    assert hash64(1) != hash64(1, 0)
    assert hash64(-1) != hash64(1)


@given(length=st.integers(1, 6000), seed=st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_a_permutation_has_every_element_once(length, seed):
    elements = Permutation(length, hash64(seed))(np.arange(length))
    assert np.array_equal(np.sort(elements), np.arange(length))


@given(length=st.integers(4000, 10**12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_slice_is_the_same_alone_as_within_a_larger_one(length, data):
    start = data.draw(st.integers(0, length - 200))
    order = Permutation(length, hash64(length))
    whole = order(np.arange(start, start + 200))
    assert np.array_equal(order(np.arange(start + 50, start + 60)), whole[50:60])
    assert len(set(whole.tolist())) == 200
    assert whole.min() >= 0
    assert whole.max() < length


@pytest.mark.parametrize("length", [5000, 10**9])
def test_large_permutations_look_random(length):
    """Positions are uniform, and neighbours are independent, also for neighbouring keys."""
    from scipy import stats

    count = min(length, 200_000)
    elements = Permutation(length, hash64(3))(np.arange(count)) / length
    _, even = stats.kstest(elements[:4000], "uniform")
    assert even > 1e-3
    assert abs(np.corrcoef(elements[:-1], elements[1:])[0, 1]) < 5 / np.sqrt(count)
    other = Permutation(length, hash64(4))(np.arange(count)) / length
    assert abs(np.corrcoef(elements, other)[0, 1]) < 5 / np.sqrt(count)


def test_small_permutations_are_all_equally_likely():
    from scipy import stats

    seen: dict[tuple[int, ...], int] = {}
    for seed in range(4800):
        order = tuple(Permutation(4, hash64(seed))(np.arange(4)).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_a_position_outside_is_refused():
    for place in (-1, 10):
        with pytest.raises(IndexError, match=r"a position is outside \[0, 10\)"):
            Permutation(10, 0)([9, place])
    assert len(set(Permutation(10, 0)([0, 9]).tolist())) == 2
    assert Permutation(10, 0)([]).tolist() == []


def test_uniform_draws_pass_a_uniformity_test():
    from scipy import stats

    draws = uniform(hash64(0), np.arange(100_000))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert [uniform_at(hash64(0), n) for n in range(50)] == draws[:50].tolist()


def test_a_sample_has_its_key_at_hand():
    begin_sample(5)
    assert key_at_hand() == 5
    begin_sample(None)
    with scope():
        torch.manual_seed(3)
        expected = int(torch.randint(2**63 - 1, ()))
        torch.manual_seed(3)
        assert key_at_hand() == expected
