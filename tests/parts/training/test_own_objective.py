"""Objectives that have `loss(model, batch)` alone, or some of what else one may have."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.regression import MeanAbsoluteError

from penstock.distributed.group import Group
from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.training.adapter import Objective
from penstock.training.meter import Meter
from penstock.training.step import TrainOptions, TrainStep

ROWS = torch.arange(12.0).reshape(6, 2).sin()


def batch(count=6, valid=None, step=0):
    rows = np.arange(count)
    request = Request(0, step, rows, rows, count if valid is None else valid, total=count)
    fields = {"x": ROWS[:count], "goal": ROWS[:count].sum(1), "names": [*"abcdef"[:count]]}
    return Batch(fields, request, rows)


class Own:
    """Two losses by name, and what it was given."""

    def __init__(self, **members):
        self.seen = []
        for name, member in members.items():
            setattr(self, name, member)

    def loss(self, model, batch):
        self.seen.append(batch)
        error = model(batch["x"]).squeeze(1) - batch["goal"]
        return {"near": error.abs(), "far": error.square().mean()}


class Spread(Metric):
    """Least and most of all predictions, in a mapping."""

    higher_is_better = False

    def __init__(self):
        super().__init__()
        self.add_state("values", [], dist_reduce_fx="cat")

    def update(self, predicted, batch):
        assert batch["names"]
        self.values.append(predicted)

    def compute(self):
        values = torch.cat([*self.values]) if isinstance(self.values, list) else self.values
        return {"ends": torch.stack([values.min(), values.max()]), "mean": values.mean()[None]}


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def test_losses_by_name_are_added_and_each_sample_has_its_share():
    objective, model, data = Objective(Own()), linear(), batch()
    losses, outputs = objective.measure(model, data)
    error = model(data["x"]).squeeze(1) - data["goal"]
    torch.testing.assert_close(losses, error.abs() + error.square().mean())
    assert outputs is None
    torch.testing.assert_close(objective.named["near"], error.abs().sum())
    torch.testing.assert_close(objective.named["far"], 6 * error.square().mean())


def test_padding_is_not_seen():
    own = Own()
    losses, _ = Objective(own).measure(linear(), batch(6, valid=4))
    (seen,) = own.seen
    assert len(losses) == len(seen["x"]) == len(seen["goal"]) == 4
    assert seen["names"] == [*"abcd"]
    torch.testing.assert_close(losses, Objective(Own()).measure(linear(), batch(4))[0])


def test_a_share_of_padding_goes_through_the_model_and_counts_for_nothing():
    model = linear()
    losses, _ = Objective(Own()).measure(model, batch(6, valid=0))
    assert losses.shape == (0,)
    losses.sum().backward()  # other ranks wait for its gradients
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: model(batch["x"]), r"gives float32\[6, 1\] for 6 samples"),
        (lambda model, batch: torch.zeros(5), r"gives float32\[5\] for 6 samples"),
        (lambda model, batch: 3.0, "gives a float, not a tensor"),
        (lambda model, batch: {"box": None}, r"loss\(model, batch\)\['box'\] gives a NoneType"),
        (lambda model, batch: {}, "a mapping without a loss"),
    ],
)
def test_a_loss_of_another_kind_is_refused(loss, said):
    with pytest.raises(ConfigError, match=said):
        Objective(Own(loss=loss)).measure(linear(), batch())


def test_what_is_no_objective_is_refused():
    with pytest.raises(ConfigError, match=r"a MeanAbsoluteError, which has no method loss"):
        Objective(MeanAbsoluteError())
    with pytest.raises(ConfigError, match=r"objective\.metrics: makes a list, which"):
        Objective(Own(metrics=[MeanAbsoluteError()]))
    with pytest.raises(ConfigError, match="makes a int, which is not a torchmetrics"):
        Objective(Own(metrics={"mae": 3}))


def test_metrics_compare_outputs_with_the_target():
    own = Own(
        metrics={"mae": MeanAbsoluteError()},
        target="goal",
        outputs=lambda model, batch: model(batch["x"]).squeeze(1),
    )
    objective, model = Objective(own), linear()
    for data in (batch(6, valid=4), batch(2)):
        _, outputs = objective.measure(model, data)
        objective.update(outputs, data)
    rows = torch.cat([ROWS[:4], ROWS[:2]])
    expected = (model(rows).squeeze(1) - rows.sum(1)).abs().mean()
    assert objective.compute()["mae"] == pytest.approx(expected.item())
    objective.reset()
    assert Objective(own).metrics["mae"].update_count == 0


def test_metrics_may_take_anything_and_give_a_mapping():
    own = Own(
        metrics={"spread": Spread(), "mae": MeanAbsoluteError()},
        outputs=lambda model, batch: {"score": model(batch["x"]).squeeze(1)},
        measured=lambda outputs, batch: {
            "spread": (outputs["score"], batch),
            "mae": (outputs["score"], batch["goal"]),
        },
    )
    objective, model = Objective(own), linear()
    with torch.no_grad():
        _, outputs = objective.measure(model, batch())
    objective.update(outputs, batch())
    scores = outputs["score"]
    measured = objective.compute()
    assert measured.keys() == {"spread/ends/0", "spread/ends/1", "spread/mean", "mae"}
    assert measured["spread/ends/1"] == pytest.approx(scores.max().item())


def test_metrics_that_nobody_says_how_to_feed_are_refused():
    own = Own(metrics={"mae": MeanAbsoluteError()}, outputs=lambda model, batch: batch["x"])
    with pytest.raises(ConfigError, match="needs the field 'target'"):
        Objective(own).update(ROWS, batch())
    own.target = "goal"
    with pytest.raises(ConfigError, match=r"does not take float32\[6, 2\] and float32\[6\]"):
        Objective(own).update(ROWS, batch())


def test_validation_may_be_without_a_loss():
    def loss(model, batch):
        raise AssertionError("as a detector of torchvision's, which has one in training only")

    own = Own(loss=loss, validates_loss=False, outputs=lambda model, batch: ["boxes"])
    assert Objective(own).measure(linear(), batch()) == (None, ["boxes"])


def test_only_losses_a_sample_say_whose_they_are():
    data = batch(6, valid=4)
    each = Objective(Own(loss=lambda model, batch: model(batch["x"]).squeeze(1)))
    places, losses = each.by_sample(each.measure(linear(), data)[0], data)
    assert places.tolist() == [0, 1, 2, 3]
    assert len(losses) == 4
    whole = Objective(Own(loss=lambda model, batch: model(batch["x"]).mean()))
    places, losses = whole.by_sample(whole.measure(linear(), data)[0], data)
    assert len(places) == len(losses) == 0


def test_a_step_is_that_of_a_plain_loop():
    model, plain = linear(), linear()
    step = TrainStep(
        model,
        Objective(Own()),
        torch.optim.SGD(model.parameters(), 0.1),
        None,
        TrainOptions(),
        Group(),
        0,
    )
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(3):
        step.learn(batch())
        step.update()
        parts = Own().loss(plain, batch())
        (parts["near"].mean() + parts["far"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_the_parts_of_a_loss_are_means_over_an_epoch_and_go_on_after_a_stop():
    objective, model = Objective(Own()), linear()
    whole, first = Meter(Group()), Meter(Group())
    for step, count in enumerate((6, 2, 5)):
        data = batch(count, step=step)
        losses, _ = objective.measure(model, data)
        whole.add(data, losses.detach(), objective.named)
        if step < 2:
            first.add(data, losses.detach(), objective.named)
    whole.read()
    first.read()
    resumed = Meter(Group(), first.sums)
    resumed.add(data, losses.detach(), objective.named)
    resumed.read()
    assert resumed.sums == whole.sums
    assert whole.mean("loss/near") + whole.mean("loss/far") == pytest.approx(whole.mean())
    errors = torch.cat([(model(ROWS[:n]).squeeze(1) - ROWS[:n].sum(1)) for n in (6, 2, 5)])
    assert whole.mean("loss/near") == pytest.approx(errors.abs().mean().item())
