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
    ("value", "message"),
    [
        ("3,1200", "expected \\[\\[epoch, step\\], \\[epoch, step\\]\\]"),
        ([3, 1200], "3 is not a range of addresses"),
        ([[3, 1200]], "\\[3, 1200\\] is not a range|\\[\\[3, 1200\\]\\] is not a range"),
        ([[3], [4]], "is not a range of addresses"),
        ([[3, 1, 2], [4, 0]], "is not a range of addresses"),
        ([[[3, 1], [3, 2]], [4, 0]], "\\[4, 0\\] is not a range"),
        ([[3, -1], [3, 2]], "has -1, and epochs and steps are whole numbers"),
        ([[3, 1.0], [3, 2]], "has 1.0, and"),
        ([[3, True], [3, 2]], "has True, and"),
        ([[3, 5], [3, 5]], "ends before or where it starts"),
        ([[3, 5], [2, 9]], "ends before or where it starts"),
    ],
)
def test_what_is_no_range_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        Skipped.of(value)


def test_a_long_value_is_shown_in_part():
    for length, shown in ((78, "x" * 78), (79, "x" * 76)):
        with pytest.raises(ValueError, match="expected") as raised:
            Skipped.of("x" * length)
        text = f"'{shown}'" if length == 78 else f"'{shown}..."
        assert str(raised.value).startswith(f"got {text}, expected [[epoch, step]")


def test_ranges_together_and_those_that_start_in_a_span():
    one, other = (Skipped.of([[[0, a], [0, a + 2]]]) for a in (1, 5))
    both = one | other
    assert both.ranges == (((0, 1), (0, 3)), ((0, 5), (0, 7)))
    assert one != other
    assert one != one.ranges
    assert both == other | one
    assert hash(both) == hash(other | one)
    assert repr(one) == "Skipped([[[0,1],[0,3]]])"
    for first, last, count in ((1, 5, 1), (1, 6, 2), (2, 6, 1), (6, 9, 0)):
        assert len(both.starting(Address(0, first), Address(0, last))) == count
    assert both.before(Address(0, 5)) == one
    assert both.before(Address(0, 6)).ranges[1] == ((0, 5), (0, 6))
