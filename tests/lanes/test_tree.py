"""Sums over lanes: one order, whoever has which lane."""

import pytest
import torch

from penstock.addons.lanes.lane_step import LaneSum, added, nodes_in
from penstock.addons.lanes.turns import Turns
from penstock.distributed.gathered import OtherRowsError
from penstock.distributed.group import Group
from penstock.errors import PenstockError
from tests.lanes.ranks import Ranks


def numbers(lane):
    """What a lane adds: some have no second item, and only lane 3 a fourth."""
    drawn = torch.Generator().manual_seed(lane)
    values = torch.randn(7, generator=drawn) * 10.0 ** torch.randint(-6, 6, (7,), generator=drawn)
    third = torch.randn(3, 2, generator=drawn, dtype=torch.float64)
    return [
        values,
        None if lane % 3 else values[:5] * -0.0,
        third,
        values[0] if lane == 3 else None,
    ]


def summed(count, group):
    own = count // group.world.size
    lanes, counts = range(group.world.rank * own, (group.world.rank + 1) * own), [0] * 4

    def of_lane(lane):
        assert lane in lanes
        items = [None if item is None else item.clone() for item in numbers(lane)]
        for number, item in enumerate(items):
            counts[number] += item is not None
        return items

    return LaneSum(count, group)(of_lane, counts)


@pytest.mark.parametrize(("count", "sizes"), [(8, (2, 4, 8)), (6, (2, 3, 6)), (7, (7,)), (1, ())])
def test_the_sum_does_not_depend_on_the_ranks(count, sizes):
    sums, counts = summed(count, Group())
    bits = [None if item is None else item.numpy().tobytes() for item in sums]
    assert counts == [count, -(-count // 3), count, int(count > 3)]
    for size in sizes:
        for others, of_them in Ranks(size).run(lambda group: summed(count, group)):
            assert [None if item is None else item.numpy().tobytes() for item in others] == bits
            assert of_them == counts


def test_the_order_is_a_tree():
    text = added((0, 6), lambda node: [Word(str(node[0]))] if node[1] - node[0] == 1 else None)
    assert text == ["(((0+1)+(2+3))+(4+5))"]
    assert [*nodes_in(range(0, 3), (0, 6))] == [(0, 2), (2, 3)]
    assert [*nodes_in(range(4, 8), (0, 8))] == [(4, 8)]


class Word(str):
    def add_(self, other):
        return Word(f"({self}+{other})")


def test_a_rank_that_has_to_wait_tells_the_others():
    def work(group):
        def of_lane(lane):
            if lane == 3:
                raise OtherRowsError
            return [torch.ones(1)]

        try:
            LaneSum(4, group)(of_lane, [1])
        except OtherRowsError:
            return "waits"

    assert Ranks(4).run(work) == ["waits"] * 4
    assert work(Group()) == "waits"


def test_lanes_take_turns():
    seen, own = [], []  # what was done, and what only the lane at hand may see

    def leave():
        kept = [*own]
        own.clear()
        return kept

    def lane(number):
        def work():
            own.append(number)
            total = turns.meet(number, lambda values: [sum(values)] * 3)
            seen.append((number, total, *own))
            own.append(total)
            return turns.meet(number, lambda values: values[::-1])

        return work

    turns = Turns(leave, lambda kept: own.extend(kept or []))
    done = turns.run([lane(number) for number in range(3)])
    assert seen == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]
    assert done == [(2, [0, 3]), (1, [1, 3]), (0, [2, 3])]


def test_an_error_of_a_lane_ends_the_others():
    def lane(number):
        def work():
            turns.meet(number, list)
            if number == 1:
                raise ValueError("of lane 1")
            return turns.meet(number, list)

        return work

    turns = Turns(lambda: None, lambda kept: None)
    with pytest.raises(ValueError, match="of lane 1"):
        turns.run([lane(number) for number in range(3)])
    turns = Turns(lambda: None, lambda kept: None)
    with pytest.raises(PenstockError, match="every lane has to take the same steps"):
        turns.run([lambda: turns.meet(0, list), lambda: None])
