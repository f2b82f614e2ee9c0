"""Objectives that take the optimizer steps themselves."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.step import Optimizers, TrainOptions, TrainStep

REAL = torch.arange(40.0).reshape(10, 4).cos()


class Pair(nn.Module):
    """A generator of rows, and what tells them from real ones."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, noise):
        return self.generator(noise)


def judged(model, rows, real):
    logits = model.discriminator(rows).squeeze(1)
    return nn.functional.binary_cross_entropy_with_logits(
        logits, torch.full_like(logits, float(real)), reduction="none"
    )


class Gan:
    def step(self, model, batch, update):
        fake = model(torch.randn(len(batch["row"]), 3))
        seen = judged(model, batch["row"], True) + judged(model, fake.detach(), False)
        update(seen.mean(), "discriminator")
        fooled = judged(model, fake, True)
        update(fooled, "generator")
        return {"discriminator": seen, "generator": fooled}


def model():
    torch.manual_seed(0)
    return Pair()


def optimizers(pair):
    return Optimizers(
        {
            "generator": torch.optim.Adam(pair.generator.parameters(), 0.02),
            "discriminator": torch.optim.SGD(pair.discriminator.parameters(), 0.1, momentum=0.9),
        }
    )


def training(pair, optimizer=None, schedule=None, objective=None, **options):
    optimizer = optimizer or optimizers(pair)
    scheduler = schedule(optimizer) if schedule else None
    objective = Objective(objective or Gan())
    options = TrainOptions(**options)
    return TrainStep(pair, objective, optimizer, scheduler, options, Group(), 3)


def batch(step, valid=None):
    rows = np.arange(10)
    request = Request(0, step, rows, rows, 10 if valid is None else valid, total=10)
    return Batch({"row": REAL + step}, request, rows)


def learn(step, first, last):
    for number in range(first, last):
        losses = step.learn(batch(number))
        step.update()
    return losses


def plain_loop(pair, steps, clip=None):
    """The same in the words of torch alone."""
    adam = torch.optim.Adam(pair.generator.parameters(), 0.02)
    sgd = torch.optim.SGD(pair.discriminator.parameters(), 0.1, momentum=0.9)
    seeds = training(model())
    for number in range(steps):
        seeds.batches = number
        seeds.seed()
        rows = REAL + number
        fake = pair(torch.randn(10, 3))
        loss = (judged(pair, rows, True) + judged(pair, fake.detach(), False)).mean()
        pair.discriminator.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(pair.discriminator.parameters(), clip)
        sgd.step()
        loss = judged(pair, fake, True).mean()
        pair.generator.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(pair.generator.parameters(), clip)
        adam.step()


def equal(mine, theirs):
    return all(
        torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
    )


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_gan_is_that_of_a_plain_loop_to_the_bit(clip):
    mine, theirs = model(), model()
    step = training(mine, clip_norm=clip)
    losses = learn(step, 0, 5)
    plain_loop(theirs, 5, clip)
    assert equal(mine, theirs)
    assert not equal(mine, model())
    assert step.updates == step.batches == 5
    named = step.objective.named
    assert losses.sum().item() == pytest.approx(sum(part.item() for part in named.values()))


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=8, cycle_momentum=False),
        lambda optimizer: CosineAnnealingLR(optimizer, 8),
    ],
)
def test_a_state_in_the_middle_continues_to_the_bit(schedule):
    whole = training(model(), schedule=schedule, ema=0.9)
    learn(whole, 0, 3)
    state = copy.deepcopy(whole.state_dict())
    rates = [group["lr"] for group in whole.optimizer.param_groups]
    learn(whole, 3, 8)
    resumed = training(model(), schedule=schedule, ema=0.9)
    resumed.load_state_dict(state)
    assert [group["lr"] for group in resumed.optimizer.param_groups] == rates
    learn(resumed, 3, 8)
    assert equal(whole.model, resumed.model)
    assert equal(whole.measured, resumed.measured)
    if schedule is not None:
        assert [group["lr"] for group in whole.optimizer.param_groups] != rates
        assert whole.lr == resumed.lr == whole.optimizer.by_name["generator"].param_groups[0]["lr"]


def test_padding_is_not_learned_from_and_a_batch_without_samples_changes_nothing():
    class Mean:
        def step(self, model, batch, update):
            loss = model(batch["row"][:, :3]).mean()
            update(loss, "generator")
            return loss

    few, all_of_them = training(model(), objective=Mean()), training(model(), objective=Mean())
    few.learn(batch(0, valid=4))
    all_of_them.learn(batch(0))
    assert not equal(few.model, all_of_them.model)
    before = copy.deepcopy(few.model)
    losses = few.learn(batch(1, valid=0))
    few.update()
    assert losses.shape == (0,)
    assert equal(few.model, before)


def test_several_optimizers_serve_one_loss_too():
    class Both:
        def loss(self, model, batch):
            return model.discriminator(model.generator(batch["row"][:, :3])).mean()

    step = training(model(), objective=Both())
    learn(step, 0, 1)
    changed = [
        not torch.equal(now, before)
        for now, before in zip(step.model.parameters(), model().parameters(), strict=True)
    ]
    assert all(changed)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: training(model(), accumulate=2),
            "trainer.accumulate: must be 1, as the objective",
        ),
        (
            lambda: TrainStep(
                model(), Objective(Gan()), None, None, TrainOptions(), Group(), 0, Parallel("fsdp")
            ),
            "must be none or ddp, as the objective takes the steps",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_an_optimizer_that_is_not_there_is_named():
    pair = model()
    single = training(pair, torch.optim.SGD(pair.parameters(), 0.1))
    with pytest.raises(
        ConfigError, match="has a single optimizer, without a name; the objective asks for 'dis"
    ):
        single.learn(batch(0))
    other = training(pair, Optimizers({"critic": torch.optim.SGD(pair.parameters(), 0.1)}))
    with pytest.raises(ConfigError, match="has critic; the objective asks for 'discriminator'"):
        other.learn(batch(0))

    class Nameless:
        def step(self, model, batch, update):
            update(model(batch["row"][:, :3]).mean())

    with pytest.raises(ConfigError, match="has generator, discriminator; the objective asks for N"):
        training(model(), objective=Nameless()).learn(batch(0))
