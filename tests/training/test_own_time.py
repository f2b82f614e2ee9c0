"""A rank's own time ends before it waits for the others."""

import time

import pytest
import torch

from penstock.distributed.group import Group
from penstock.torch_internals import queue_callback
from penstock.training.epoch_metrics import EpochMetrics
from penstock.training.own_time import OwnTime, RankWaiting


def test_what_is_queued_in_the_backward_pass_is_not_its_own_time():
    weight = torch.ones(3, requires_grad=True)

    def waits(_):  # as DDP does when the gradients are there
        queue_callback(lambda: time.sleep(0.1))

    weight.register_post_accumulate_grad_hook(waits)
    time.sleep(0.01)
    began, own = time.perf_counter(), OwnTime(torch.device("cpu"))
    losses = weight * 2
    own.end_after(losses)
    losses.backward(torch.ones(3))
    assert 0 < own.seconds <= time.perf_counter() - began - 0.1
    assert weight.grad.tolist() == [2, 2, 2]


def test_ranks_wait_for_the_slowest_of_each_batch():
    ranks = RankWaiting()
    assert ranks.share is None
    ranks.add([1.0, 3.0])
    ranks.add([4.0, 2.0])
    ranks.add([None, None])  # not measured
    assert ranks.share == pytest.approx((1 + 1) / (3 + 4))
    state = EpochMetrics(Group()).state_dict(0.0)
    assert "rank_wait_share" not in EpochMetrics(Group(), state).speed(0.0)
    state |= {"ranks_took": ranks.longest, "ranks_waited": ranks.waited}  # of a resumed epoch
    resumed = EpochMetrics(Group(), EpochMetrics(Group(), state).state_dict(0.0))
    assert resumed.speed(0.0)["rank_wait_share"] == ranks.share
