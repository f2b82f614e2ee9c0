"""Sequences of different lengths, a person's and the ones that are made here."""

import numpy as np
import pytest
import torch

from penstock.datasets.reading.base import Shares
from penstock.datasets.sequences import Sequences, SyntheticSequences
from penstock.errors import DataError

LENGTHS = [3, 1, 5, 2, 4, 1, 2, 6, 3, 3]


@pytest.fixture
def folder(tmp_path):
    total = sum(LENGTHS)
    np.save(tmp_path / "values.npy", np.arange(total * 2, dtype=np.float32).reshape(total, 2))
    np.save(tmp_path / "offsets.npy", np.cumsum([0, *LENGTHS]))
    np.save(tmp_path / "labels.npy", np.array([0, 1] * 5))
    return tmp_path


def changed(folder, name, place, value):
    array = np.load(folder / f"{name}.npy")
    array[place] = value
    np.save(folder / f"{name}.npy", array)
    return folder


def refused(folder, match):
    with pytest.raises(DataError, match=match):
        Sequences(str(folder))


def test_samples(folder):
    data = Sequences(str(folder), shares=Shares(0.0))
    assert [len(data[index]["sequence"]) for index in range(10)] == LENGTHS
    sample = data[2]
    assert sample["sequence"].dtype == torch.float32
    assert sample["sequence"][0].tolist() == [8.0, 9.0]
    assert sample["label"] == 0
    sample["sequence"] += 1  # a sample is the caller's own
    assert data[2]["sequence"][0].tolist() == [8.0, 9.0]


def test_splits_facts_and_metadata(folder):
    train, val = Sequences(str(folder)), Sequences(str(folder), "val")
    assert (len(train), len(val)) == (8, 2)
    assert sorted(val.labels) == [0, 1]
    assert train.facts == {"num_features": 2, "num_classes": 2, "num_outputs": 2}
    table = train.metadata
    assert tuple(table.columns) == Sequences.columns
    assert table["length"].tolist() == [len(train[i]["sequence"]) for i in range(8)]
    assert table["label"].tolist() == [train[i]["label"] for i in range(8)]
    assert table["class"].tolist() == [str(label) for label in table["label"]]


def test_the_fingerprint(folder):
    before = Sequences(str(folder)).fingerprint
    assert Sequences(str(folder)).fingerprint == before
    assert Sequences(str(folder), "val").fingerprint != before
    changed(folder, "values", (4, 1), -1)
    assert Sequences(str(folder)).fingerprint != before


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("values", np.zeros(30), r"values\.npy' is float64 \(30,\); it must be floats"),
        ("values", np.zeros((30, 2), int), r"values\.npy' is int64 \(30, 2\)"),
        ("offsets", np.zeros(11), r"offsets\.npy' is float64 \(11,\); it must be integers"),
        ("offsets", np.zeros((11, 1), int), r"offsets\.npy' is int64 \(11, 1\)"),
        ("labels", np.zeros(9, int), r"has 9 labels, but .*offsets\.npy' bounds 10 sequences"),
        ("labels", np.zeros(10), r"labels\.npy' is float64 \(10,\); labels must be integers"),
    ],
)
def test_wrong_shapes_and_kinds(folder, name, array, said):
    np.save(folder / f"{name}.npy", array)
    refused(folder, said)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (10, 29, "goes from 0 to 29, .* must go up from 0 to the 30 rows"),
        ([0, 10], [1, 30], "goes from 1 to 30"),
        (4, 8, "for sequence 3 from 9 to 8; offsets must go up"),
        (4, 9, "for sequence 3 from 9 to 9;.*a step at least"),
    ],
)
def test_wrong_offsets(folder, place, value, message):
    refused(changed(folder, "offsets", place, value), message)


def test_missing_files(folder):
    (folder / "offsets.npy").unlink()
    refused(folder, r"dataset\.offsets: .*offsets\.npy' cannot be read")
    refused(folder / "none", r"dataset\.root: '[^']*/none' is missing\. Set dataset\.root to the ")


def test_a_value_that_is_not_finite(folder):
    data = Sequences(str(changed(folder, "values", (7, 1), np.nan)), shares=Shares(0.0))
    said = r"values\.npy', row 7 \(sequence 2, step 3\), feature 1: nan is not finite"
    with pytest.raises(DataError, match=said):
        data[2]
    assert len(data[3]["sequence"]) == 2


def test_strokes(tmp_path):
    train = SyntheticSequences(str(tmp_path), count=200)
    val = SyntheticSequences(str(tmp_path), "val", count=200)
    assert (len(train), len(val)) == (160, 40)
    assert np.bincount(train.labels).tolist() == [80, 40, 24, 16]
    assert train.classes == ["straight", "left", "right", "zigzag"]
    assert train.facts == {"num_features": 2, "num_classes": 4, "num_outputs": 4}
    lengths = train.metadata["length"]
    assert lengths.min() >= 5
    assert lengths.max() <= 120
    assert lengths.max() > 90


def test_strokes_turn_as_their_class_says(tmp_path):
    data = SyntheticSequences(str(tmp_path), count=200, shares=Shares(0.0))
    means = []
    for index in range(len(data)):
        before, after = data[index]["sequence"][:-1].T, data[index]["sequence"][1:].T
        turn = torch.atan2(before[0] * after[1] - before[1] * after[0], (before * after).sum(0))
        means.append((turn.mean(), turn.abs().mean()))
    turns = torch.tensor(means)
    one_way = [turns[data.labels == label, 0].mean().item() for label in range(4)]
    any_way = [turns[data.labels == label, 1].mean().item() for label in range(4)]
    assert one_way[1] < -0.2 < abs(one_way[0]) * 2 < 0.2 < one_way[2]
    assert any_way[3] > 0.4


def test_the_same_strokes_for_the_same_seed(tmp_path):
    one, same = (SyntheticSequences(str(tmp_path / name), count=50) for name in "ab")
    other = SyntheticSequences(str(tmp_path / "a"), count=50, seed=1)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert len(list((tmp_path / "a").iterdir())) == 2


def test_damaged_strokes_can_be_made_again(tmp_path):
    SyntheticSequences(str(tmp_path), count=8)
    next(tmp_path.rglob("labels.npy")).unlink()
    with pytest.raises(DataError, match=r"labels\.npy' cannot be read: .* Or delete .*made again"):
        SyntheticSequences(str(tmp_path), count=8)
