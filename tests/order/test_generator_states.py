"""States of the global generators: taken, compared and put back, in each way that there is."""

import random

import numpy as np
import pytest
import torch

from penstock.order import generator_states as module
from penstock.order.generator_states import moved, put_back, take
from penstock.order.randomness import scope

DRAWS = {
    "random": [lambda: random.random(), lambda: random.gauss(0, 1)],
    "numpy.random": [lambda: np.random.rand(), lambda: np.random.standard_normal()],
    "torch": [lambda: torch.rand(()).item()],
}


@pytest.fixture(autouse=True)
def seeded():
    """No second number of a pair, as `gauss` keeps it, is left from an earlier test."""
    random.seed(5)
    np.random.seed(5)


@pytest.fixture(params=["memory", "functions", "another generator"])
def way(request, monkeypatch):
    """How states are read: from memory, by the libraries' functions, or of another kind."""
    with scope():
        before = np.random.get_bit_generator()
        if request.param == "functions":
            monkeypatch.setattr(module, "_PYTHON_IS_KNOWN", False)
            monkeypatch.setattr(module, "_NUMPY_IS_KNOWN", False)
        if request.param == "another generator":
            np.random.set_bit_generator(np.random.PCG64(5))
        yield request.param
        np.random.set_bit_generator(before)


def test_where_states_lie_is_known(monkeypatch):
    assert module._python_is_known()
    assert module._numpy_is_known()
    head = module._HEAD
    monkeypatch.setattr(module, "_HEAD", head + 4)  # as another version might have it
    assert not module._python_is_known()
    monkeypatch.setattr(module, "_HEAD", head + 1 << 40)  # of which nothing is read
    assert not module._python_is_known()
    monkeypatch.setattr(module, "_BYTES", module._BYTES - 4)
    assert not module._numpy_is_known()


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_noticed_and_taken_back(name, way):
    for draw in DRAWS[name]:
        for _ in range(2):  # the second normal draw was kept by the first
            before = take()
            assert moved(before) == []
            drawn = draw()
            assert moved(before) == [name]
            put_back(before)
            assert moved(before) == []
            assert draw() == drawn


def test_what_is_read_of_numpy(way, monkeypatch):
    np.random.rand()
    asked = []
    get_state = module._get_state
    monkeypatch.setattr(module, "_get_state", lambda **how: asked.append(how) or get_state(**how))
    states = [take() for _ in range(3)]
    assert isinstance(states[0].numpy, bytes) == (way == "memory")
    how = {} if way == "functions" else {"legacy": False}
    assert asked == ([how] if way == "memory" else [how] * 3)
    if way == "memory":
        np.random.standard_normal()
        assert [take().numpy_gauss[0] for _ in range(2)] == [1, 1]
        assert len(asked) == 3  # as long as a draw is kept
        np.random.standard_normal()
        assert [take().numpy_gauss for _ in range(2)] == [(0, 0.0)] * 2
        assert len(asked) == 4


def test_another_generator_of_the_same_kind_is_another_state():
    with scope():
        before = np.random.get_bit_generator()
        states = take()
        np.random.set_bit_generator(np.random.MT19937(5))
        assert moved(states) == ["numpy.random"]
        np.random.set_bit_generator(before)
        assert moved(states) == []
