"""Ranges of addresses that training leaves out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.order.address import Address, Skipped

ADDRESSES = st.tuples(st.integers(0, 4), st.integers(0, 6))
RANGES = st.lists(st.tuples(ADDRESSES, ADDRESSES).filter(lambda two: two[0] < two[1]), max_size=4)
PLACES = [Address(epoch, step) for epoch in range(6) for step in range(9)]


def is_in(ranges, address):
    return any(start <= address < stop for start, stop in ranges)


@settings(max_examples=40)
@given(RANGES, ADDRESSES)
def test_ranges_are_sets_of_addresses(ranges, at):
    skipped = Skipped.of([[list(start), list(stop)] for start, stop in ranges])
    assert [one in skipped for one in PLACES] == [is_in(ranges, one) for one in PLACES]
    assert Skipped.of(json.loads(str(skipped))) == skipped
    clipped = skipped.before(Address(*at))
    assert [one in clipped for one in PLACES] == [is_in(ranges, one) and one < at for one in PLACES]
    for epoch in range(6):
        left = [step for step in range(9) if not is_in(ranges, (epoch, step))]
        for start in range(9):
            assert list(skipped.steps(epoch, start, 9)) == [one for one in left if one >= start]
            assert skipped.count(epoch, start, 9) == 9 - start - sum(one >= start for one in left)
        for step in left:
            together = [one for one in left if one // 3 == step // 3]
            assert skipped.ends_group(Address(epoch, step), 3) == (step == together[-1])


def test_an_epoch_without_a_known_end():
    skipped = Skipped.of([[[1, 2], [1, 4]], [[2, 3], [3, 1]]])
    steps = skipped.steps(1, 0, None)
    assert [next(steps) for _ in range(4)] == [0, 1, 4, 5]
    assert list(skipped.steps(2, 0, None)) == [0, 1, 2]
    steps = skipped.steps(3, 0, None)
    assert [next(steps) for _ in range(2)] == [1, 2]


def test_ranges_that_touch_become_one():
    skipped = Skipped.of([[[0, 5], [0, 7]], [[0, 1], [0, 3]], [[0, 3], [0, 5]]])
    assert skipped.ranges == (((0, 1), (0, 7)),)
    assert str(skipped) == "[[[0,1],[0,7]]]"
    assert not Skipped.of(None)
    assert not Skipped.of([])


@pytest.mark.parametrize(
    "value",
    [
        "3,1200",
        [3, 1200],
        [[3, 1200]],
        [[3], [4]],
        [[3, 1, 2], [4, 0]],
        [[[3, 1], [3, 2]], [4, 0]],
        [[3, -1], [3, 2]],
        [[3, 1.0], [3, 2]],
        [[3, True], [3, 2]],
        [[3, 5], [3, 5]],
        [[3, 5], [2, 9]],
        [[0, 5], [0, 2**63]],
        {"epoch": 3},
        5,
    ],
)
def test_what_is_no_range_is_refused(value):
    with pytest.raises(ValueError, match=r"names no ranges of addresses; expected \[\[epoch, step"):
        Skipped.of(value)


def test_ranges_together():
    one, other = (Skipped.of([[[0, a], [0, a + 2]]]) for a in (1, 5))
    both = one | other
    assert both.ranges == (((0, 1), (0, 3)), ((0, 5), (0, 7)))
    assert one != other
    assert both == other | one
    assert both.before(Address(0, 5)) == one
    assert both.before(Address(0, 6)).ranges[1] == ((0, 5), (0, 6))
