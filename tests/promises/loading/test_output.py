"""Memory of batches that is reused."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.loading.encoded import allocate

FLOATS = np.dtype(np.float32)


def crowd(count, size=977):
    """The addresses of so many batches that are held at the same time."""
    batches = [allocate((4, size), FLOATS) for _ in range(count)]
    return {one.data_ptr() for one in batches}


def test_all_that_an_epoch_gives_back_at_once_is_there_for_the_next():
    assert crowd(10) == crowd(10)


def test_a_view_of_a_batch_keeps_its_memory():
    whole = allocate((4, 983), FLOATS)
    address, row = whole.data_ptr(), whole[1:2].fill_(7)
    del whole
    assert address not in crowd(3, 983)
    assert row.eq(7).all()
    del row
    assert address in crowd(3, 983)


def test_fresh_memory_begins_at_a_cache_line():
    for size in (1, 63, 64, 1000):
        tensor = allocate((size,), np.dtype(np.uint8))
        assert tensor.data_ptr() % 64 == 0
        assert tensor.shape == (size,)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 3)), max_size=200))
def test_no_two_batches_share_memory(steps):
    held = []
    for number, (takes, which, rows) in enumerate(steps):
        if takes:
            held.append((number, allocate((rows, 3), FLOATS).fill_(number)))
        elif held:
            held.pop(which % len(held))
        for value, one in held:
            assert torch.equal(one, torch.full_like(one, value))
