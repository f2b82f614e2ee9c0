"""Which generators are seeded for data, and what is noticed of them."""

import random

import numpy as np
import pytest
import torch

from penstock.order.randomness import GLOBAL, scope
from penstock.order.seeding import UNSEEDED, Seeding, SharedGeneratorError, Watch, probe

DRAWS = {
    "random": lambda: random.random(),
    "numpy.random": lambda: float(np.random.rand()),
    "torch": lambda: torch.rand(()).item(),
}
READS = {
    "random": lambda: random.getstate(),
    "numpy.random": lambda: np.random.get_state(),
    "torch": lambda: torch.initial_seed(),
}


def batch(*names):
    """Makes a batch of two samples that draw from those generators."""

    def make(draws):
        samples = []
        for key in (5, 6):
            draws.seed(key)
            samples.append([DRAWS[name]() for name in names])
        return samples

    return make


def expected(*names):
    with scope():
        return batch(*names)(GLOBAL)


@pytest.mark.parametrize("names", [(), ("random",), ("torch", "numpy.random"), tuple(DRAWS)])
def test_only_what_is_drawn_from_is_seeded(names):
    with scope():
        seeding, used = Seeding(), []
        assert seeding.draws is None
        for _ in range(3):
            assert seeding.run(lambda d: used.append(d) or batch(*names)(d)) == expected(*names)
            assert seeding.names == frozenset(names)
            assert seeding.draws == bool(names)
    assert used[1] is used[2]
    assert (used[1] is GLOBAL) == (len(names) == 3)
    assert (used[1] is UNSEEDED) == (not names)


@pytest.mark.parametrize("known", [(), ("random",)])
def test_a_later_draw_has_the_batch_made_again(known):
    with scope():
        seeding, calls = Seeding(), []
        seeding.know(known)
        names = (*known, "torch")
        made = seeding.run(lambda d: calls.append(d) or batch(*names)(d))
        assert made == expected(*names)
        assert len(calls) == 2
        assert seeding.names == frozenset(names)


def test_an_error_of_a_batch_that_drew_is_one_of_the_seeded_batch():
    with scope():
        seeding, calls = Seeding(), []
        seeding.know(())

        def fails(draws):
            calls.append(draws)
            raise ValueError("this row is bad")

        with pytest.raises(ValueError, match="this row is bad"):
            seeding.run(fails)
        assert len(calls) == 1

        def draws_and_fails(draws):
            draws.seed(5)
            if random.random() != expected("random")[0][0]:
                raise ValueError("drawn from what is not seeded")
            return "made"

        assert seeding.run(draws_and_fails) == "made"


@pytest.mark.parametrize("name", READS)
def test_who_reads_a_state_draws(name):
    # A thread that hangs for ever, in an earlier test, keeps its substitute in place.
    before = torch.random.default_generator
    with scope():
        for known in (None, ()):
            seeding = Seeding()
            if known is not None:
                seeding.know(known)
            seeding.run(lambda draws: READS[name]())
            assert seeding.names == {name}
        inner, outer = Seeding(), Seeding()
        outer.run(lambda draws: (READS[name](), inner.run(lambda draws: None)))
        assert outer.names == {name}  # within a batch of another loader
    assert torch.random.default_generator is before
    assert type(random.getstate).__name__ == "method"


@pytest.mark.parametrize("name", DRAWS)
def test_threads_may_draw_from_torch_alone(name):
    with scope():
        if name == "torch":

            def draw(thread):
                with thread:
                    thread.seed(5)
                    DRAWS[name]()

            probe(draw)
            probed = pytest.raises(SharedGeneratorError, match="torch's global generator")
        else:
            probed = pytest.raises(SharedGeneratorError, match=f"global state of {name}, ")
        with probed:
            probe(lambda thread: DRAWS[name]())
        watch = Watch()
        watch.check()
        DRAWS[name]()
        if name == "torch":
            watch.check()
        else:
            with pytest.raises(SharedGeneratorError, match=f"the global state of {name}, which"):
                watch.check()
