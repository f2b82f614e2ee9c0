"""Warm-ups."""

import pytest

from penstock.errors import ConfigError
from penstock.training.step import warmup_steps


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
