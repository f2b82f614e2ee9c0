"""Samples that are written where their batch will be, and memory that is reused."""

import threading

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.loading.output import allocate, allocate_row, batch, contiguous_view

FLOAT = np.float32
FLOATS = np.dtype(FLOAT)


def filled(count, shape=(2, 3)):
    """`count` rows, each of its own number."""
    return [allocate_row(shape, FLOAT).tensor.fill_(number) for number in range(count)]


def test_rows_in_order_are_a_batch_without_a_copy():
    with batch(3):
        rows = filled(3)
        view = contiguous_view(rows)
        assert view.shape == (3, 2, 3)
        assert view.data_ptr() == rows[0].data_ptr()
        assert view[:, 0, 0].tolist() == [0, 1, 2]
        part = contiguous_view(rows[1:])
        assert part.data_ptr() == rows[1].data_ptr()
        assert part[:, 0, 0].tolist() == [1, 2]
        assert contiguous_view(rows[:1]).shape == (1, 2, 3)
        beyond = allocate_row((2, 3), FLOAT)  # a fourth of three
        assert contiguous_view([*rows, beyond.tensor]) is None
    assert contiguous_view(rows) is None


def test_rows_out_of_order_or_of_another_form_are_no_batch():
    with batch(4):
        rows = filled(4)
        block = rows[0].as_strided((4, 2, 3), (6, 3, 1), rows[0].storage_offset())
        for values in (
            rows[::-1],
            rows[::2],
            [rows[0], rows[0]],
            [rows[0], rows[1].clone()],
            [rows[0].clone(), rows[1]],
            [rows[3], torch.zeros(2, 3)],
            [row.double() for row in rows],
            [row.view(torch.int32) for row in rows],
            [row.view(3, 2) for row in rows],
            [row[0] for row in rows],
            [rows[0], rows[1].as_strided((2, 3), (1, 2), rows[1].storage_offset())],
            [rows[0].as_strided((2, 3), (1, 2), rows[0].storage_offset()), rows[1]],
            [block.view(-1)[3:9].view(2, 3)],  # half of a row, and half of the next
        ):
            assert contiguous_view(values) is None
        assert contiguous_view(rows) is not None


def test_a_row_of_another_shape_or_type_is_a_tensor_of_its_own():
    with batch(3):
        first = allocate_row((2, 3), FLOAT).tensor
        allocate_row((3, 2), FLOAT), allocate_row((2, 3), np.int32)
        second = allocate_row((2, 3), FLOAT).tensor  # the others have taken no row
        assert second.data_ptr() - first.data_ptr() == 24
    single = allocate_row((2, 3), FLOAT)
    single.array[:] = 5
    assert single.tensor.eq(5).all()
    with batch(2):
        empty = [allocate_row((0,), FLOAT).tensor for _ in range(2)]
        assert contiguous_view(empty) is None


def test_rows_of_threads_are_their_own():
    found = {}

    def work(name):
        with batch(2):
            found[name] = filled(2, (8,))

    with batch(2):
        own = filled(1, (8,))
        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({row.data_ptr() for row in [*own, *found["a"], *found["b"]]}) == 5


def crowd(count, size=977):
    """The addresses of so many batches that are held at the same time."""
    batches = [allocate((4, size), FLOATS).tensor for _ in range(count)]
    return {one.data_ptr() for one in batches}


def test_all_that_an_epoch_gives_back_at_once_is_there_for_the_next():
    assert crowd(10) == crowd(10)


def test_a_view_of_a_batch_keeps_its_memory():
    whole = allocate((4, 983), FLOATS).tensor
    address, row = whole.data_ptr(), whole[1:2].fill_(7)
    del whole
    assert address not in crowd(3, 983)
    assert row.eq(7).all()
    del row
    assert address in crowd(3, 983)


def test_fresh_memory_begins_at_a_cache_line():
    for size in (1, 63, 64, 1000):
        array, tensor = allocate((size,), np.dtype(np.uint8))
        assert array.ctypes.data % 64 == 0
        assert (array.shape, tensor.shape) == ((size,), (size,))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 3)), max_size=200))
def test_no_two_batches_share_memory(steps):
    held = []
    for number, (takes, which, rows) in enumerate(steps):
        if takes:
            held.append((number, allocate((rows, 3), FLOATS).tensor.fill_(number)))
        elif held:
            held.pop(which % len(held))
        for value, one in held:
            assert torch.equal(one, torch.full_like(one, value))
