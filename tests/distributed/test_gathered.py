"""Rows of all ranks, in the order of the ranks, with the gradients of the global batch."""

import numpy as np
import pytest
import torch

from penstock.distributed.gathered import gathered, share, together
from penstock.distributed.group import Group
from penstock.distributed.world import World
from penstock.order.plan import Request


class Ranks:
    """Rank 1 of three, whose rows stand between those of the others."""

    alone = False
    world = World(1, 3)

    def __init__(self, counts, others):
        self.counts, self.others, self.said = counts, others, []

    def gather(self, value):
        self.said.append(value)
        return self.counts

    def sum(self, rows):
        return rows + self.others


def batch(valid):
    rows = np.arange(2)
    return Request(0, 0, rows, rows, valid)


@pytest.mark.parametrize(("valid", "counts"), [(2, [1, 2, 3]), (1, [1, 2, 3]), (0, [1, 0, 3])])
def test_rows_stand_in_the_order_of_the_ranks_and_gradients_add_up(valid, counts):
    mine = slice(1, 1 + counts[1])
    others = torch.arange(sum(counts) * 2.0).reshape(-1, 2)
    ranks, own = Ranks(counts, others), torch.full((2, 2), 100.0, requires_grad=True)
    with together(ranks, batch(valid)):
        rows = gathered(own)
        assert share() == 1
    expected = others.clone()
    expected[mine] += 100
    assert ranks.said == [counts[1]]
    assert torch.equal(rows, expected)
    (rows * 3).sum().backward()
    assert torch.equal(own.grad[: counts[1]], 3 + others[mine])
    assert not own.grad[counts[1] :].any()  # a row of padding only takes part


def test_a_process_alone():
    rows = torch.ones(3, 2)
    with together(Group(), batch(2)):
        assert gathered(rows) is rows
        assert share() == 0
    assert gathered(rows) is rows
    assert share() == 0
