"""Train steps in lanes: any number of ranks learns the same, to the bit."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanSquaredError

from penstock.addons.lanes.lanes import Lanes
from penstock.distributed.group import Group
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.training.objective import Regression
from penstock.training.own_objective import adapted
from penstock.training.own_steps import Optimizers, OwnSteps, make_train_step
from penstock.training.train_step import TrainOptions, TrainStep
from tests.lanes.ranks import Ranks
from tests.own_ranks import ROWS, Adversaries, Contrastive

COUNT, LENGTH, SIZE = 4, 20, 11  # lanes; the second batch of an epoch has 9 rows


class Model(nn.Module):
    """Batch norm, dropout, a weight that only some batches use, and one that none does."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        self.head = nn.Linear(3, 1)
        self.sometimes = nn.Parameter(torch.ones(3))
        self.never = nn.Parameter(torch.ones(3))
        self.register_buffer("constant", torch.tensor([float("inf"), 0.1]))

    def forward(self, rows):
        hidden = self.encoder(rows)
        return self.head(hidden * self.sometimes if rows.sum() > 0 else hidden).squeeze(1)


class Named:
    """Losses with names, in lanes of which some have none."""

    accumulate = 1

    def loss(self, model, batch):
        error = (model(batch["a"]) - batch["b"].sum(1)).square()
        return {"error": error, "size": model.head.weight.square().sum()}


def supervised():
    own = Regression(nn.MSELoss(), {"mse": MeanSquaredError()}, ["a"], "c")
    own.accumulate = 3
    return own


KINDS = {
    "supervised": supervised,
    "named": lambda: adapted(Named()),
    "contrastive": lambda: adapted(Contrastive()),
    "adversaries": lambda: adapted(Adversaries()),
}


def batch_of(address, share):
    plan = Plan(Random(LENGTH, 0), SIZE)
    request = plan.request(*address, *share)
    rows = ROWS[torch.from_numpy(request.indices)]
    fields = {"a": rows, "b": rows.flip(1), "c": rows.sum(1)}
    return Batch(fields, request, np.arange(len(request)))


def trained(name, group, precision="fp32", steps=6):
    """All state at the end, as bytes, and the losses of each step."""
    torch.manual_seed(0)
    model, objective = Model(), KINDS[name]()
    kinds = {"sometimes": 0, "never": 0}
    parts = {key: list(part.parameters()) for key, part in model.named_children()}
    parts["head"] += [getattr(model, key) for key in kinds]
    optimizer = Optimizers({key: torch.optim.Adam(part, 0.1) for key, part in parts.items()})
    own = getattr(objective, "own", objective)
    options = TrainOptions(
        accumulate=own.accumulate, clip_norm=1.0, ema=0.5, precision=precision, max_steps=9
    )
    lanes = Lanes(COUNT, group.world)
    step = make_train_step(model, objective, optimizer, None, options, group, 0, lanes=lanes)
    metrics, losses = step.epoch_metrics(), []
    step.begin_epoch(0)
    for number in range(steps):
        batch = lanes.together([batch_of(divmod(number, 2), share) for share in lanes.shares])
        learned = step.learn(batch)
        assert len(learned) == batch.request.valid
        metrics.add(batch, learned, step.objective.named)
        if (number + 1) % own.accumulate == 0:
            step.update()
        if number == 3:
            step.drop_pending()
    losses = [(each.loss, each.order, each.samples) for each in metrics.read()]
    assert model.never.grad is None
    assert not optimizer.by_name["head"].state.get(model.never)
    state = {**step.state_dict(), "scaler": None}
    assert torch.isinf(state["model"]["constant"][0])
    return losses, metrics.mean, metrics.named, [*leaves(state)]


def leaves(value):
    if isinstance(value, dict):
        for key in value:
            yield key
            yield from leaves(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_ranks_learns_the_same(name, precision):
    if (name, precision) == ("adversaries", "bf16"):
        pytest.skip("as fp32; its losses are float32")
    alone = trained(name, Group(), precision)
    assert np.isfinite(alone[1])
    assert len(alone[0]) == 6
    for size in (2, 4):
        for others in Ranks(size).run(lambda group: trained(name, group, precision)):
            assert others == alone


def test_sparse_gradients_are_refused():
    model, rows = nn.Embedding(4, 1, sparse=True), torch.tensor([[0], [3]])
    own = Regression(nn.MSELoss(), {}, ["a"], "b")
    optimizer, lanes = torch.optim.SGD(model.parameters(), 0.1), Lanes(2, Group().world)
    step = make_train_step(model, own, optimizer, None, TrainOptions(), Group(), 0, lanes=lanes)
    plan = Plan(Random(4, 0), 4)
    batch = lanes.together(
        [
            Batch({"a": rows, "b": torch.ones(2, 1, 1)}, plan.request(0, 0, *share))
            for share in lanes.shares
        ]
    )
    with pytest.raises(ConfigError, match=r"distributed\.lanes: cannot add up sparse gradients"):
        step.learn(batch)


def test_what_steps_instead_of_what():
    made = {kind: Lanes(2, Group().world).train_step(kind) for kind in (TrainStep, OwnSteps)}
    assert [issubclass(part.func, kind) for kind, part in made.items()] == [True, True]
