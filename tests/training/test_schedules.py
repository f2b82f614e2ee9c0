"""Warm-ups, rates of groups, and schedules that begin anew when a run resumes."""

import pytest
import torch
from torch import nn

from penstock.errors import ConfigError
from penstock.training.step import of_each_group, renewed, warmup_steps


@pytest.mark.parametrize(
    ("warmup", "total", "steps"),
    [(0, 1, 0), (0.1, 100, 10), (0.99, 100, 99), (0.015, 100, 2), (1, 2, 1), (99, 100, 99)],
)
def test_a_warm_up_is_a_share_or_a_number_of_steps(warmup, total, steps):
    assert warmup_steps(warmup, total) == steps


@pytest.mark.parametrize(
    ("warmup", "total", "said"),
    [
        (0, 0, "batch: the training split has less than one batch"),
        (5, 0, "batch: the training split has less than one batch"),
        (100, 100, "schedule.warmup: 100 of 100 steps leave none after it"),
        (0.999, 100, "schedule.warmup: 100 of 100 steps"),
        (1, 1, "schedule.warmup: 1 of 1 steps"),
    ],
)
def test_a_warm_up_leaves_a_step_after_it(warmup, total, said):
    with pytest.raises(ConfigError, match=said):
        warmup_steps(warmup, total)


def test_groups_have_as_many_times_a_rate_as_their_own():
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    node = {"max_lr": 8.0, "base_lr": 2, "total_steps": 9, "mode": "x"}
    alike = torch.optim.SGD([*a.parameters(), *b.parameters()], 0.1)
    assert of_each_group(node, alike) == node
    groups = [{"params": a.parameters()}, {"params": b.parameters(), "lr": 0.4}]
    optimizer = torch.optim.SGD(groups, 0.1)
    expected = {**node, "max_lr": pytest.approx([8.0, 32.0]), "base_lr": pytest.approx([2.0, 8.0])}
    assert of_each_group(node, optimizer) == expected
    given = {**node, "max_lr": [1.0, 2.0], "base_lr": [1, 2]}
    assert of_each_group(given, optimizer) == given
    optimizer.defaults["lr"] = 0.0  # of which nothing is a multiple
    assert of_each_group(node, optimizer) == node


def test_a_new_schedule_has_the_rates_of_now_for_the_weights_of_before():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    old = {"params": [0, 1], "lr": 0.1}
    state = {
        "model": "weights",
        "optimizer": {"state": {0: "momentum"}, "param_groups": [old]},
        "scheduler": "old",
    }
    fresh = renewed(state, optimizer, scheduler)
    assert (fresh["model"], fresh["scheduler"]) == ("weights", scheduler.state_dict())
    assert fresh["optimizer"]["state"] == {0: "momentum"}
    (group,) = fresh["optimizer"]["param_groups"]
    assert (group["params"], group["lr"], group["momentum"]) == ([0, 1], 0.5, 0.9)
    assert state["optimizer"]["param_groups"] == [old]
