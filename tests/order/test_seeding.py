"""Which generators are seeded for data, and what is noticed of them."""

import random

import numpy as np
import pytest
import torch

from penstock.order.seeding import GLOBAL, Seeding, SharedGeneratorError, scope, seed_global

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


@pytest.mark.parametrize("names", [(), ("random",), ("torch", "numpy.random"), tuple(DRAWS)])
def test_only_what_is_drawn_from_is_seeded(names):
    seeding, calls = Seeding(), []
    with scope():
        for _ in range(3):
            made = seeding.run(lambda: calls.append(1) or batch(seeding.seed, *names))
            assert made == expected(*names)
            assert set(seeding.drawn) == set(names)
    assert len(calls) == (4 if names else 3)


def test_a_later_draw_has_the_batch_made_again():
    seeding = Seeding()
    with scope():
        for count in range(4):
            names = tuple(DRAWS)[:count]
            assert seeding.run(lambda names=names: batch(seeding.seed, *names)) == expected(*names)
            assert seeding.drawn == list(names)
    assert set(GLOBAL) == set(DRAWS)


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


@pytest.mark.parametrize("kept", [False, True])
def test_a_scope_leaves_the_generators_where_they_stood(kept):
    def drawn():
        return [random.gauss(0, 1), np.random.randn(), torch.randn(()).item()]

    seed_global(3)
    first = drawn() + drawn()
    for draw in DRAWS.values():
        seed_global(3)
        made = drawn() if kept else []
        with scope():
            draw()
            with scope():
                seed_global(4)
                drawn()
            inside = drawn()
        assert made + drawn() + ([] if kept else drawn()) == first
        assert inside != first[:3]


@pytest.mark.parametrize("name", DRAWS)
def test_who_draws_is_watched_and_refused_in_threads(name):
    seeding = Seeding()
    with scope():
        seeding.refuse_threads()
        seeding.run(DRAWS[name])
    with pytest.raises(SharedGeneratorError, match=f"share the global state of {name}, which"):
        seeding.refuse_threads()
