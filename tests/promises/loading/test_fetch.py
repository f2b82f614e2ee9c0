"""Fetch: keys, hashes, batches of unequal samples."""

import pickle
from copy import copy
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.errors import DataError
from penstock.loading.batch import Batch, batch_hash, hash_sample
from penstock.loading.collate import List, Pad, Stack
from penstock.loading.fetch import Fetch
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential
from tests.support import toy


def test_a_samples_randomness_depends_on_its_key_alone():
    plan = Plan(Random(40, 0), 8)
    fetch = Fetch(toy.Pictures(), toy.Everywhere(), Stack(), seed=0)
    whole = fetch(plan.request(1, 2))
    halves = [fetch(plan.request(1, 2, rank, 2)) for rank in (0, 1)]
    assert torch.equal(whole["draws"], torch.cat([half["draws"] for half in halves]))
    assert len(whole["draws"].unique()) == whole["draws"].numel()
    again = Fetch(toy.Pictures(), toy.Everywhere(), Stack(), seed=1)(plan.request(1, 2))
    assert not torch.equal(whole["draws"], again["draws"])


def test_the_hash_of_a_batch_does_not_depend_on_how_it_was_shared_out_or_padded():
    fetch = Fetch(toy.Sequences(), None, Pad(), seed=0, hashed=True)
    for tail in ("keep", "pad"):
        plan = Plan(Random(40, 0), 12, tail)
        for step in range(len(plan)):
            hashes = {
                batch_hash([fetch(plan.request(0, step, rank, world)) for rank in range(world)])
                for world in (1, 2, 3, 4)
            }
            assert len(hashes) == 1
    plain = Fetch(toy.Sequences(), None, List(), seed=0, hashed=True)
    keep, pad = (Plan(Random(40, 0), 12, tail) for tail in ("keep", "pad"))
    assert batch_hash([plain(keep.request(0, 3))]) == batch_hash([fetch(pad.request(0, 3))])


@given(arrays.arrays(st.sampled_from([np.uint8, np.float32, np.int64]), st.just((2, 3))))
def test_the_hash_of_a_sample_sees_names_types_shapes_and_bytes(array):
    tensor = torch.from_numpy(array)
    base = hash_sample({"x": tensor, "y": 1})
    assert base == hash_sample({"y": 1, "x": array})
    values = (2, 1.0, True, "1", [1], (1,), {1: 2}, {"1": 2})
    others = [{"x": tensor, "y": value} for value in values] + [
        {"z": tensor, "y": 1},
        {"x": tensor.reshape(3, 2), "y": 1},
        {"x": tensor.to(torch.float64), "y": 1},
        {"x": tensor},
    ]
    assert len({base, *map(hash_sample, others)}) == 1 + len(others)
    assert hash_sample({"x": ["ab", "c"]}) != hash_sample({"x": ["a", "bc"]})


def test_hashing_covers_odd_values_and_refuses_what_has_no_bytes():
    odd = {
        "a": None,
        "b": b"\0",
        "c": torch.zeros(0, 3),
        "d": torch.ones(2, dtype=torch.bfloat16),
        "e": np.float32(1),
        "f": float("nan"),
        "g": {"h": (1, 2)},
    }
    assert hash_sample(odd) == hash_sample(dict(reversed(odd.items())))
    one, other = (np.array([f"text {number}", None], dtype=object) for number in (1, 1))
    assert hash_sample({"x": one}) == hash_sample({"x": other})
    assert hash_sample({"x": one}) != hash_sample({"x": other[::-1]})
    with pytest.raises(DataError, match="type object cannot be hashed"):
        hash_sample({"a": object()})


class AtOnce(toy.Pictures):
    """Reads many rows at once."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Noisy(toy.Pictures):
    """Draws where a row is read."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "noise": torch.rand(2)}


class NoisyAtOnce(Noisy):
    __getitems__ = AtOnce.__getitems__


def test_a_dataset_may_read_a_batch_at_once():
    plan = Plan(Random(40, 0), 8)
    for kinds in ((toy.Pictures, AtOnce), (Noisy, NoisyAtOnce)):
        one, many = (Fetch(kind(), toy.Everywhere(), Stack(), 0, hashed=True) for kind in kinds)
        for step in (1, 0):
            asked = plan.request(0, step)
            assert batch_hash([one(asked)]) == batch_hash([many(asked)])


def test_a_subset_of_torch_keeps_its_rows_keys():
    plan = Plan(Sequential(8), 8)
    subset = torch.utils.data.Subset(toy.Pictures(), range(8))
    assert torch.equal(
        Fetch(subset, toy.Everywhere(), Stack(), 0)(plan.request(0, 0))["draws"],
        Fetch(toy.Pictures(), toy.Everywhere(), Stack(), 0)(plan.request(0, 0))["draws"],
    )


def test_a_batch_is_read_only():
    request = Plan(Sequential(4), 4).request(0, 0)
    batch = Batch({"x": torch.zeros(4)}, request, np.arange(4), kinds={"x": "image"})
    for name in Batch.__annotations__:
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(batch, name, None)
    for again in (batch, copy(batch), pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
        assert again.kinds == {"x": "image"}
    changed = batch.replace({"y": 1}, hashes=[b"1"])
    assert (dict(changed), changed.hashes, changed.kinds) == ({"y": 1}, [b"1"], {"x": "image"})
    assert list(batch) == ["x"]
    assert batch.hashes is None
