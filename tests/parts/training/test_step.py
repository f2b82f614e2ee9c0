"""One step: the gradient of all its batches, scaling, seeds, and what is kept of it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from penstock.distributed.group import Group
from penstock.errors import PenstockError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.objective import Regression
from penstock.training.step import TrainOptions, TrainStep

ROWS = torch.arange(36.0).reshape(12, 3).sin()


def batch(first=0, count=4, valid=None, total=0):
    rows = np.arange(first, first + count)
    valid = count if valid is None else valid
    return Batch(
        {"x": ROWS[rows], "y": ROWS[rows].sum(1)},
        Request(0, 0, rows, rows, valid, total=total),
        np.arange(count),
    )


def step_of(
    model=None, scheduler=None, group=None, parallel=None, optimizer=None, seed=0, **options
):
    torch.manual_seed(0)
    model = model or nn.Linear(3, 1)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    moved = scheduler(optimizer) if scheduler else None
    made = Objective(Regression(nn.MSELoss(reduction="none"), {}, ["x"], "y"))
    return TrainStep(
        model, made, optimizer, moved, TrainOptions(**options), group or Group(), seed, parallel
    )


class Scaler:
    """Of the loss, by two; it skips the steps that a test names."""

    def __init__(self, skips=()):
        self.scale_now, self.skips, self.calls, self.at = 2.0, skips, [], 0

    def is_enabled(self):
        return True

    def scale(self, loss):
        return loss * self.scale_now

    def get_scale(self):
        return self.scale_now

    def unscale_(self, optimizer):
        self.calls.append("unscale")
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad /= self.scale_now

    def step(self, optimizer):
        if self.at not in self.skips:
            optimizer.step()

    def update(self):
        self.calls.append("update")
        if self.at in self.skips:
            self.scale_now /= 2
        self.at += 1


def test_a_step_by_a_scaler_is_the_step_without_one():
    plain, scaled = step_of(clip_norm=0.1), step_of(clip_norm=0.1)
    scaled.scaler = scaler = Scaler()
    for step in (plain, scaled):
        for first in (0, 4):
            step.learn(batch(first))
            step.update()
    torch.testing.assert_close(scaled.model.weight, plain.model.weight)
    assert scaler.calls == ["unscale", "update"] * 2
    assert step_of(precision="fp32").scaler.is_enabled() is False


@pytest.mark.parametrize(("skips", "rates"), [((), [0.05, 0.025]), ((0,), [0.1, 0.05])])
def test_the_schedule_and_the_mean_wait_where_the_scaler_skips_a_step(skips, rates):
    step = step_of(scheduler=lambda made: ExponentialLR(made, 0.5), ema=0.5)
    step.scaler, seen = Scaler(skips), []
    step.optimizer._opt_called = True
    for number in range(2):
        step.learn(batch())
        step.update()
        seen.append(step.lr)
        assert (step.averaged is None) == (number in skips)
    assert seen == pytest.approx(rates)
    assert step.updates == 2


@pytest.mark.parametrize("counts", [(4, 4), (4, 2), (1, 4), (4,)])
def test_the_gradient_is_that_of_the_mean_of_all_accumulated_samples(counts):
    step, whole = step_of(accumulate=2), step_of()
    first = 0
    for count in counts:
        step.learn(batch(first, count))
        first += count
    assert step.pending
    step.update()
    assert (step.pending, step.updates, step.batches) == (False, 1, len(counts))
    whole.learn(batch(0, first))
    whole.update()
    torch.testing.assert_close(step.model.weight, whole.model.weight)
    assert step.model.weight.grad is None
    step.learn(batch(0, 4, valid=0))
    step.update()  # nothing to learn from
    torch.testing.assert_close(step.model.weight, whole.model.weight)
    assert step.updates == 2


class Noting(nn.Module):
    """Counts its batches in a buffer, as batch norm does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen += 1
        return self.linear(x)


def test_batches_without_a_step_are_forgotten_with_their_buffers():
    step = step_of(Noting(), accumulate=3)
    step.learn(batch())
    step.learn(batch())
    step.update()
    step.drop_pending()  # there is none
    assert (step.batches, step.model.seen.item()) == (2, 2)
    step.learn(batch())
    step.learn(batch())
    assert (step.batches, step.model.seen.item()) == (4, 4)
    step.drop_pending()
    assert (step.batches, step.model.seen.item(), step.pending) == (2, 2, False)
    assert step.model.linear.weight.grad is None
    fresh = step_of(Noting(), accumulate=2)
    fresh.learn(batch())
    fresh.drop_pending()
    fresh.learn(batch(4, 2))
    fresh.update()
    plain = step_of(Noting())
    plain.learn(batch(4, 2))
    plain.update()
    torch.testing.assert_close(fresh.model.linear.weight, plain.model.linear.weight)


def test_a_state_of_another_model_or_optimizer_is_refused():
    step = step_of()
    step.learn(batch())
    step.update()
    state = step.state_dict()
    assert "averaged" not in state
    assert state["scheduler"] is None
    said = "checkpoint does not fit the model, the optimizer or the scheduler of this"
    with pytest.raises(PenstockError, match=said):
        step_of(nn.Linear(2, 1)).load_state_dict(state)
    with pytest.raises(PenstockError, match=said):
        step_of(scheduler=lambda made: ExponentialLR(made, 0.5)).load_state_dict(state)
    resumed = step_of()
    resumed.load_state_dict(state)
    assert (resumed.batches, resumed.updates) == (1, 1)


def test_a_mean_that_is_resumed_continues():
    step, resumed, mean = step_of(ema=0.5), step_of(ema=0.5), None
    for number in range(3):
        step.learn(batch(4 * number))
        step.update()
        now = step.model.weight.detach().clone()
        mean = now if mean is None else (mean + now) / 2
        if number == 1:
            resumed.load_state_dict(step.state_dict())
    resumed.learn(batch(8))
    resumed.update()
    assert torch.equal(resumed.measured.weight, step.measured.weight)
    torch.testing.assert_close(step.measured.weight, mean)
    assert not torch.equal(step.measured.weight, step.model.weight)
    plain = step_of()
    assert plain.measured is plain.model
    plain.load_state_dict(step.state_dict())  # of a run that had one
    assert plain.averaged is None


# Objectives that take the steps


class Steps:
    """Steps by `update`, on a loss that the test gives."""

    def __init__(self, loss=lambda losses: losses.mean(), name=None):
        self.of, self.name = loss, name

    def step(self, model, batch, update):
        losses = (model(batch["x"]).squeeze(1) - batch["y"]).square()
        update(self.of(losses), self.name)
        return losses


def own_step(own=None, group=None, optimizer=None, model=None, scheduler=None, **options):
    torch.manual_seed(0)
    model = model or nn.Linear(3, 1)
    optimizer = optimizer(model) if optimizer else torch.optim.SGD(model.parameters(), 0.1)
    made = Objective(own or Steps())
    moved = scheduler(optimizer) if scheduler else None
    return TrainStep(model, made, optimizer, moved, TrainOptions(**options), group or Group(), 0)


def test_a_batch_without_a_step_moves_no_scale_and_no_mean():
    class Rests:
        def step(self, model, batch, update):
            return model(batch["x"]).squeeze(1)

    step = own_step(
        Rests(), ema=0.5, schedule="epoch", scheduler=lambda made: ExponentialLR(made, 0.5)
    )
    step.scaler = Scaler()
    step.learn(batch())
    step.update()
    assert (step.scaler.calls, step.averaged, step.updates, step.lr) == ([], None, 1, 0.1)
