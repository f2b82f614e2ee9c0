"""Inputs and targets in `.npy` files."""

import pickle

import numpy as np
import pytest
import torch

from penstock.datasets.arrays import Arrays
from penstock.datasets.reading.base import Shares
from penstock.errors import DataError


def write(folder, inputs, targets):
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "targets.npy", targets)
    return folder


@pytest.fixture
def classes(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(40, 6)).astype(np.float32)
    return write(tmp_path, inputs, np.arange(40) % 5 // 2)


@pytest.fixture
def values(tmp_path):
    random = np.random.default_rng(0)
    return write(tmp_path, random.normal(size=(20, 3, 4)), random.normal(size=(20, 2)))


def test_classes(classes):
    train, val = Arrays(str(classes)), Arrays(str(classes), "val")
    assert (len(train), len(val)) == (32, 8)
    row = val.rows[3]
    sample = val[3]
    assert torch.equal(sample["input"], torch.from_numpy(np.load(classes / "inputs.npy")[row]))
    assert sample["target"] == row % 5 // 2
    assert isinstance(sample["target"], int)
    assert train.facts == {"num_features": 6, "num_classes": 3, "num_outputs": 3}
    assert train.classes == ["0", "1", "2"]
    assert tuple(train.metadata.columns) == Arrays.columns
    assert train.metadata["row"].tolist() == train.rows.tolist()
    assert train.metadata["label"].tolist() == [one["target"] for one in train]


def test_named_classes(classes):
    (classes / "classes.txt").write_text("low\nmiddle\nhigh\n")
    assert Arrays(str(classes)).classes == ["low", "middle", "high"]
    (classes / "classes.txt").write_text("low\nmiddle\n")
    with pytest.raises(DataError, match=r"classes\.txt' names 2 classes, but there is a label 2"):
        Arrays(str(classes))


def test_values(values):
    data = Arrays(str(values))
    sample = data[0]
    assert sample["input"].shape == (3, 4)
    assert sample["input"].dtype == sample["target"].dtype == torch.float32
    assert sample["target"].shape == (2,)
    assert data.facts == {"num_features": 4, "num_outputs": 2}
    assert data.classes == []
    assert list(data.metadata.columns) == ["row"]


def test_a_batch_at_once_is_bit_equal(classes):
    data = Arrays(str(classes))
    rows = np.array([5, 0, 31, 5])
    together = data.fetch_batch(rows)
    for place, one in enumerate([data[row] for row in rows]):
        assert torch.equal(one["input"], together["input"][place])
        assert one["target"] == together["target"][place]


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ("f2", "float32"),
        ("f8", "float32"),
        (">f4", "float32"),
        ("u1", "uint8"),
        ("?", "bool"),
        ("u2", "int32"),
        ("u4", "int64"),
        ("i2", "int16"),
        (">i4", "int32"),
        ("i8", "int64"),
    ],
)
def test_kinds_of_numbers(tmp_path, stored, given):
    inputs = np.array([[0, 1], [1, 0], [1, 1]]).astype(stored)
    data = Arrays(str(write(tmp_path, inputs, np.zeros(3, int))), shares=Shares(0.0))
    assert str(data[0]["input"].dtype) == f"torch.{given}"
    assert data[1]["input"].tolist() == [1, 0]


def test_it_travels_to_workers(classes):
    data = Arrays(str(classes))
    pickled = pickle.dumps(data)
    assert len(pickled) < 3000  # the files are opened again, not sent
    assert torch.equal(pickle.loads(pickled)[7]["input"], data[7]["input"])


def test_the_fingerprint(classes):
    prints = {
        Arrays(str(classes)).fingerprint,
        Arrays(str(classes), shares=Shares(seed=1)).fingerprint,
    }
    assert Arrays(str(classes)).fingerprint in prints
    inputs = np.load(classes / "inputs.npy")
    inputs[17, 3] += 1
    np.save(classes / "inputs.npy", inputs)
    assert Arrays(str(classes)).fingerprint not in prints
    assert len(prints) == 2


def test_large_files_are_sampled(tmp_path):
    inputs = np.zeros((3000, 1000), np.uint16)
    before = Arrays(str(write(tmp_path, inputs, np.zeros(3000, int)))).fingerprint
    inputs[-1] = 1
    assert Arrays(str(write(tmp_path, inputs, np.zeros(3000, int)))).fingerprint != before


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite(values, bad):
    data = Arrays(str(values))
    inputs = np.load(values / "inputs.npy")
    inputs[data.rows[5], 2, 1] = bad
    np.save(values / "inputs.npy", inputs)
    data = Arrays(str(values))
    said = rf"inputs\.npy', row {data.rows[5]}, place \[2, 1\]: {bad} is not finite"
    with pytest.raises(DataError, match=said):
        data[5]
    with pytest.raises(DataError, match=said):
        data.fetch_batch(np.array([0, 5]))
    assert data[4]["input"].shape == (3, 4)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((5, 2)), np.zeros(4, int), "has 5 rows and .* 4: both need"),
        (np.zeros((4, 2)), np.array([0, 1, -1, 2]), r"targets\.npy', row 2: label -1"),
        (np.array(["a", "b"]), np.zeros(2), "holds <U1; save numbers"),
        (np.zeros((0, 3)), np.zeros(0), r"shape \(0, 3\): it has no rows"),
        (np.zeros(()), np.zeros(0), r"shape \(\): it has no rows"),
    ],
)
def test_arrays_that_are_no_dataset(inputs, targets, message, tmp_path):
    with pytest.raises(DataError, match=message):
        Arrays(str(write(tmp_path, inputs, targets)))


def test_files_that_are_missing_or_damaged(classes):
    path = classes / "inputs.npy"
    for content in (path.read_bytes()[:-40], b"no array at all", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"inputs\.npy' cannot be read: it is no \.npy file"):
            Arrays(str(classes))
    path.unlink()
    with pytest.raises(DataError, match=r"dataset\.inputs: .*npy' cannot be read: No such file"):
        Arrays(str(classes))
    with pytest.raises(DataError, match=r"dataset\.root: .*is missing"):
        Arrays(str(classes / "none"))
