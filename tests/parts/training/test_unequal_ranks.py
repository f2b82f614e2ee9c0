"""Shares of unequal size, added up: ranks learn what one alone learns."""

import numpy as np
import pytest
import torch
from torch import nn

from penstock.distributed.group import Group
from penstock.distributed.world import World
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.step import TrainOptions, TrainStep

BATCHES = torch.arange(24.0).reshape(8, 3).sin().split([6, 2])  # of 6 and 2 rows in all


class Rank(Group):
    """One of two ranks in this process; the test averages gradients, as DDP does."""

    def __init__(self, rank):
        super().__init__(World(rank, 2))
        self.alone = False

    def sum(self, values):
        return values.fill_(8.0)


def step_of(group):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    class Squares:
        def loss(self, model, batch):
            return model(batch["x"]).square().squeeze(1)

    options, objective = TrainOptions(accumulate=2), Objective(Squares())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return TrainStep(model, objective, optimizer, None, options, group, 0)


def share(batch, rows):
    own = batch[rows]
    numbers = np.arange(len(own))
    if not len(own):  # a rank without a row has one of padding
        own = batch[:1]
    request = Request(0, 0, np.arange(len(own)), np.arange(len(own)), len(numbers), len(batch))
    return Batch({"x": own}, request)


@pytest.mark.parametrize("cut", [(4, 1), (5, 0), (6, 1), (0, 2)])
def test_gradients_are_those_of_one_rank(cut):
    """`cut`: rows of the first rank, of each batch; (6, 1) leaves none to the second at first."""
    one = step_of(Group())
    for batch in BATCHES:
        one.learn(share(batch, slice(None)))
    one.update()
    ranks = [step_of(Rank(0)), step_of(Rank(1))]
    for batch, rows in zip(BATCHES, cut, strict=True):
        for rank, own in zip(ranks, (slice(0, rows), slice(rows, None)), strict=True):
            rank.learn(share(batch, own))
    for weights in zip(*(rank.model.parameters() for rank in ranks), strict=True):
        mean = torch.stack([weight.grad for weight in weights]).mean(0)
        for weight in weights:
            weight.grad = mean.clone()
    for rank in ranks:
        rank.update()
        for found, expected in zip(rank.model.parameters(), one.model.parameters(), strict=True):
            assert torch.allclose(found, expected, atol=1e-7)
