"""Which generators are seeded for data, and what is noticed of them."""

import random

import numpy as np
import pytest
import torch

from penstock.order.seeding import Seeding, scope, seed_global

DRAWS = {
    "random": lambda: random.random(),
    "numpy.random": lambda: float(np.random.rand()),
    "torch": lambda: torch.rand(()).item(),
}


def batch(seed, *names):
    """A batch of two samples that draw from those generators."""
    samples = []
    for key in (5, 6):
        seed(key)
        samples.append([DRAWS[name]() for name in names])
    return samples


def expected(*names):
    with scope():
        return batch(seed_global, *names)


def test_an_error_of_a_batch_that_drew_is_one_of_the_seeded_batch():
    seeding, calls = Seeding(), []

    def fails():
        calls.append(1)
        raise ValueError("this row is bad")

    def draws_and_fails():
        seeding.seed(5)
        if random.random() != expected("random")[0][0]:
            raise ValueError("drawn from what is not seeded")
        return "made"

    with scope():
        with pytest.raises(ValueError, match="this row is bad"):
            seeding.run(fails)
        assert len(calls) == 1
        assert seeding.run(draws_and_fails) == "made"
