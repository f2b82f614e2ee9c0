"""What is not public in torch does what Penstock takes it for, with the torch that is installed."""

import importlib

import pytest
import torch
from torch.utils.data import get_worker_info

from penstock import torch_internals


def test_a_torch_that_lacks_one_is_reported(monkeypatch):
    monkeypatch.delattr(torch, "_foreach_mul_")
    with pytest.raises(ImportError, match=r"torch [\d.]+\S* differs inside from .*_foreach_mul_"):
        importlib.reload(torch_internals)


def test_who_is_asked_for_the_worker_is_answered_for_a_while():
    assert get_worker_info() is None
    info = torch_internals.WorkerInfo(id=3, num_workers=4, seed=7, dataset=None)
    with torch_internals.worker_info(info):
        assert (get_worker_info().id, get_worker_info().num_workers) == (3, 4)
        with torch_internals.worker_info(None):
            assert get_worker_info() is None
    assert get_worker_info() is None


def test_tensors_are_scaled_in_place():
    tensors = [torch.ones(3), torch.full((2,), 4.0)]
    torch_internals.scale(tensors, 0.5)
    assert [one.tolist() for one in tensors] == [[0.5] * 3, [2.0] * 2]
    torch_internals.scale(tensors, torch.tensor(2.0))
    assert [one.tolist() for one in tensors] == [[1.0] * 3, [4.0] * 2]


def test_numpy_is_seeded_as_torch_seeds_it():
    first, second = (torch_internals.numpy_seed(5, worker) for worker in (0, 1))
    assert first == torch_internals.numpy_seed(5, 0) != second
