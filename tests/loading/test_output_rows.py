"""Samples that are written where their batch will be: which rows share memory, and which do not."""

import numpy as np
import pytest
import torch

from penstock.loading import output
from penstock.loading.output import allocate_row, batch, contiguous_view

FLOAT = np.float32


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(output, "_idle", {})


def filled(count, rows, shape=(2, 3), dtype=FLOAT):
    """`count` rows of a batch of `rows`, each of its own number."""
    tensors = [allocate_row(shape, dtype).tensor for _ in range(count)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    return tensors


def test_rows_in_order_are_a_batch_without_a_copy():
    with batch(3):
        rows = filled(3, 3)
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
        rows = filled(4, 4)
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
        second = allocate_row((2, 3), FLOAT).tensor  # the others have taken no place
        assert second.data_ptr() - first.data_ptr() == 24
    single = allocate_row((2, 3), FLOAT)
    single.array[:] = 5
    assert single.tensor.eq(5).all()
    with batch(2):
        empty = [allocate_row((0,), FLOAT).tensor for _ in range(2)]
        assert contiguous_view(empty) is None


def test_sixteen_pieces_wait_at_most():
    held = [output.allocate((8,), np.dtype(np.uint8)) for _ in range(20)]
    del held
    assert len(output._idle[8]) == 16


def test_fresh_memory_begins_at_a_cache_line():
    for size in (1, 63, 64, 1000):
        array, tensor = output.allocate((size,), np.dtype(np.uint8))
        assert array.ctypes.data % 64 == 0
        assert (array.shape, tensor.shape) == ((size,), (size,))
