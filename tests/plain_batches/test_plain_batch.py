"""Results as a header and plain arrays: the same on the other side, and nothing hostile gets in."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.plain_batches.plain_batch import NotPlainError, decode, encode
from penstock.addons.ray.message import Made, pack, unpack
from penstock.errors import ConfigError, DataError, Problem, UnreachableError
from penstock.loading.bad_samples import LeftOut
from penstock.loading.batch import Batch
from penstock.loading.collate import List, Pad
from penstock.loading.fetch import Fetch, batch_hash
from penstock.loading.workers.results import Failure
from penstock.order.plan import Plan, Request
from penstock.order.samplers import Random
from penstock.order.streams import End, StreamRequest
from tests import toy

ROWS = np.arange(3)
REQUEST = Request(2, 5, ROWS + 10, ROWS * 7, 2, 9)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    st.sampled_from(
        [
            torch.arange(6).reshape(2, 3).T,
            torch.tensor(2.5),
            torch.zeros(0, 4),
            torch.tensor([True]),
            torch.rand(3).bfloat16(),
            torch.tensor([1 + 2j]),
            torch.rand(4)[::2],
            np.arange(4, dtype=">i4"),
            np.array(["a", "bc"]),
            np.array("2026-01-01", "M8[s]"),
            np.float32(1.5),
            np.zeros((0, 2)),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
        ]
    ),
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=6,
)


def sent(result):
    header, arrays = encode(result)
    copies = [array.copy() for array in arrays]
    for copy in copies:
        copy.flags.writeable = False  # as in an object store
    return decode(bytes(header), copies)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            one.dtype == other.dtype and np.shape(one) == np.shape(other) and np.all(one == other)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=4), values, max_size=4))
def test_fields_are_the_same_on_the_other_side(fields):
    assert same(dict(sent(Batch(fields, REQUEST, ROWS))), fields)


def test_a_batchs_attributes_are_the_same_on_the_other_side():
    left = LeftOut(3, 4, 2, 5, "a.jpg", "cut off", "skip")
    batch = Batch(
        {"x": torch.rand(3)},
        REQUEST,
        ROWS[::-1],
        kinds={"x": "image"},
        timing={"read": 0.25},
        hashes=[b"\0" * 16] * 3,
        left_out=(left,),
        warnings={"slow": "because"},
    )
    found = sent(batch)
    assert found.request.address == (2, 5)
    assert (found.request.valid, found.request.total) == (2, 9)
    for name in ("positions", "indices", "places"):
        assert getattr(found, name).tolist() == getattr(batch, name).tolist()
    for name in ("kinds", "timing", "hashes", "left_out", "warnings"):
        assert getattr(found, name) == getattr(batch, name)
    assert found.valid.tolist() == batch.valid.tolist()
    with pytest.raises(TypeError):
        found.timing["read"] = 1


def test_hashes_and_traces_of_real_batches_come_through():
    fetch = Fetch(toy.Sequences(), None, Pad(sort=True), seed=0, hashed=True)
    fetch.traced = True
    batch = fetch(Plan(Random(40, 0), 12, "pad").request(0, 3))
    found = sent(batch)
    assert batch_hash([found]) == batch_hash([batch])
    assert found.trace == batch.trace
    listed = Fetch(toy.Sequences(), None, List(), seed=0)(Plan(Random(40, 0), 12).request(1, 0))
    assert same(dict(sent(listed)), dict(listed))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 4, 5, 3).permute(0, 3, 1, 2),
        torch.rand(2, 3, 4).mT,
        torch.rand(1, 3, 4, 1),
    ],
    ids=["channels last", "transposed", "ones"],
)
def test_a_tensor_lies_as_it_lay(tensor):
    """A convolution of channels that lie last rounds in another way."""
    found = sent(Batch({"x": tensor}, REQUEST, ROWS))["x"]
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)


def test_failures_and_ends_come_through():
    end = End(StreamRequest(1, 4, 1, 2))
    assert sent(end) == end
    error = UnreachableError("'s3://b/k' cannot be read")
    error.add_note("tried twice")
    found = sent(Failure(REQUEST, error))
    assert type(found.error) is UnreachableError
    assert (str(found.error), found.error.__notes__) == (str(error), ["tried twice"])
    assert found.request.address == REQUEST.address
    problem = Problem("batch.size", "is 0")
    assert sent(Failure(end.request, ConfigError(problem))).error.problems == [problem]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1.5: 2},
        torch.rand(2, requires_grad=True),
        np.array([object()]),
        2**64,
        [torch.rand(3).to_sparse()],
    ],
    ids=range(6),
)
def test_what_is_not_plain_is_refused_by_name(value):
    with pytest.raises(NotPlainError, match="'odd'"):
        encode(Batch({"odd": value}, REQUEST, ROWS))


def test_a_damaged_header_is_refused():
    header, arrays = encode(Batch({"x": torch.rand(3), "n": np.arange(3)}, REQUEST, ROWS))
    for cut in range(0, len(header), 40):
        with pytest.raises(DataError, match="damaged"):
            decode(header[:cut], arrays)
    with pytest.raises(DataError, match="damaged"):
        decode(header, arrays[:-1])
    with pytest.raises(DataError, match="damaged"):
        decode(header, [array[:-1] for array in arrays])
    hostile = [
        ({"tensor": [0, "float32", [-1, -3]]}, "bytes"),
        ({"tensor": [0, "load", [3]]}, "KeyError"),
        ({"tensor": [-1, "float32", [3]]}, "negative"),
        ({"tensor": [0, "uint8", [3, 4], [0, 0]]}, "order"),
        ({"tensor": [0, "uint8", [3, 4], [0, True]]}, "whole"),
        ({"tensor": [0, "float32", [2**40]]}, "bytes"),
        ({"array": [0, "(" * 9999 + ")" * 9999 + "f4", [1]]}, "type"),
        ({"array": [0, "(3,)f4", [1]]}, "type"),
        ([{"bytes": 0}, {"bytes": 0}], "twice"),
        ({"array": [0, "O", [1]]}, "type"),
        ({"array": [0, "V0", [1]]}, "type"),
        ({"eval": "1"}, "KeyError"),
        ({"tensor": [0, "uint8", [12]], "bytes": 0}, "unpack"),
        ({"tensor": [True, "uint8", [12]]}, "whole"),
    ]
    for value, reason in hostile:
        said = json.loads(header)
        said["batch"]["fields"] = {"dict": [["x", value]]}
        with pytest.raises(DataError, match=reason):
            decode(json.dumps(said).encode(), arrays)


def test_a_message_from_ray_that_is_not_whole_is_refused():
    arrays = [np.arange(size, dtype=np.uint8) for size in (3, 100, 0)]
    large = np.zeros(1 << 15, np.uint8)
    prefix, *others = pack(Made("plain", b"header", [*arrays, large]))
    made = unpack([prefix, *others])
    assert made.header == b"header"
    assert [one.tolist() for one in made.arrays] == [one.tolist() for one in (*arrays, large)]
    wrong = [prefix[:cut] for cut in range(0, len(prefix) - 16, 8)]
    wrong += [
        prefix[:place] + struct.pack("<q", value) + prefix[place + 8 :]
        for place in (0, 8, 16, 24, 32)
        for value in (-(2**63), -2, 2**40, 2**63 - 1)
        if not (place >= 24 and value < 0)
    ]
    for one in wrong:
        with pytest.raises(DataError, match="from Ray"):
            unpack([one, *others])
    with pytest.raises(DataError, match="cut off"):
        unpack(prefix)
