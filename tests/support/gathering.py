"""Batches that are gathered from columns beside those of samples."""

from dataclasses import replace

import pytest
import torch

from penstock.errors import DataError
from penstock.loading.fetch import Fetch
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential


def by_sample(work, requests):
    """Batches, or the words of the first error, each sample for itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fetch, "at_once", False)
        return made(replace(work), requests)


def never(*_):
    raise AssertionError("a sample is made")


def made(work, requests):
    batches = []
    for request in requests:
        try:
            batches.append(work(request))
        except DataError as error:
            batches.append(str(error))
    return batches


def assert_same(batches, others):
    for batch, other in zip(batches, others, strict=True):
        if isinstance(other, str):
            assert batch == other
            continue
        assert list(batch) == list(other)
        assert batch.kinds == other.kinds
        assert batch.left_out == other.left_out
        assert batch.indices.tolist() == other.indices.tolist()
        for name, value in batch.items():
            assert type(value) is type(other[name]), name
            if isinstance(value, torch.Tensor):
                assert value.dtype == other[name].dtype, name
                assert torch.equal(value, other[name]), name
                assert value.is_contiguous()
            else:
                assert value == other[name]


def gathers(work, monkeypatch):
    """Whether the first batch of all rows is made without samples."""
    with monkeypatch.context() as patch:
        patch.setattr(type(work.dataset), "_samples", never, raising=False)
        patch.setattr(type(work.dataset), "__getitem__", never)
        work(requests_of(work.dataset)[0])
    return True


def requests_of(dataset, size=6, seed=None):
    order = Sequential(len(dataset)) if seed is None else Random(len(dataset), seed)
    plan = Plan(order, size, tail="pad")
    return [plan.request(0, step) for step in range(len(plan))]
