"""Memory of batches is used again: never while somebody holds it, and no more of it than needed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.loading import output

SHAPE = (4, 3, 5)
FLOATS = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(output, "_idle", {})


def places(batches):
    return [batch.data_ptr() for batch in batches]


def crowd(count):
    """So many batches that are held at the same time."""
    return [output.allocate(SHAPE, FLOATS).tensor for _ in range(count)]


def test_a_batch_lies_where_one_lay_that_is_gone():
    first = crowd(1)
    before = places(first)
    del first
    assert places(crowd(1)) == before


def test_a_view_of_a_batch_keeps_its_memory():
    whole = crowd(1)
    row = whole[0][1:2].fill_(7)
    before = places(whole)
    del whole
    assert places(crowd(1)) != before
    assert row.eq(7).all()


def test_all_that_an_epoch_gives_back_at_once_is_there_for_the_next():
    before = set(places(crowd(10)))
    assert set(places(crowd(10))) == before


def test_what_is_not_needed_for_long_is_given_up():
    crowd(10)
    (idle,) = output._idle.values()
    for most in (6, 1, 1):
        for _ in range(5 * output._LOOKED_AT):
            crowd(1)
        assert len(idle._pieces) <= most
    assert len(idle._pieces) == 1


def test_a_piece_is_given_up_that_nobody_needed_between_two_looks():
    crowd(3)
    (idle,) = output._idle.values()
    for uses in range(4, 64):
        crowd(1)
        assert len(idle) == 3, uses
    crowd(1)  # the second look, 32 uses after the first
    assert len(idle) == 2
    for _ in range(100):
        crowd(2)
        assert len(idle) == 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 3)), max_size=200))
def test_no_two_batches_share_memory(steps):
    held = []
    for number, (takes, which, rows) in enumerate(steps):
        if takes:
            held.append((number, output.allocate((rows, 3), FLOATS).tensor.fill_(number)))
        elif held:
            held.pop(which % len(held))
        for value, batch in held:
            assert torch.equal(batch, torch.full_like(batch, value))
