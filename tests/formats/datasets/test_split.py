"""Which rows train and which validate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datasets.reading.base import Shares, check_split
from penstock.errors import ConfigError

names = st.lists(
    st.binary(min_size=1, max_size=6).filter(lambda name: name[-1:] != b"\0"),
    unique=True,
    min_size=1,
    max_size=60,
)
shares = st.floats(0, 1)


def split_rows(names, split, val, seed=0, labels=None, test=0.0):
    return Shares(val, test, seed).rows(split, names, labels)


@given(names, shares, st.integers(0, 3))
def test_the_two_splits_share_out_all_rows(found, share, seed):
    array = np.array(found)
    train = split_rows(array, "train", share, seed)
    val = split_rows(array, "val", share, seed)
    assert sorted([*train, *val]) == list(range(len(found)))
    assert abs(len(val) - share * len(found)) <= 1
    assert (np.diff(train) > 0).all()


@given(names, shares, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(found, share, random):
    shuffled = random.sample(found, len(found))
    first = {found[row] for row in split_rows(np.array(found), "val", share, 0)}
    second = {shuffled[row] for row in split_rows(np.array(shuffled), "val", share, 0)}
    assert first == second


@given(st.integers(1, 200), shares, shares)
def test_a_larger_share_keeps_the_validation_rows(count, one, other):
    small, large = (set(split_rows(count, "val", share, 0)) for share in sorted([one, other]))
    assert small <= large


@given(st.lists(st.integers(0, 4), min_size=20, max_size=80), st.floats(0.1, 0.9))
def test_each_label_gives_its_share(labels, share):
    array = np.array(labels)
    val = split_rows(len(labels), "val", share, 0, array)
    assert abs(len(val) - share * len(labels)) <= 0.5 + 1e-9
    sizes, taken = np.bincount(array, minlength=5), np.bincount(array[val], minlength=5)
    assert (np.abs(taken - share * sizes) <= 1.5).all()


def test_the_ends():
    assert len(split_rows(10, "val", 0.0, 0)) == 0
    assert len(split_rows(10, "train", 0.0, 0)) == 10
    assert len(split_rows(10, "train", 1.0, 0)) == 0
    assert len(split_rows(3, "val", 0.01, 0)) == 1  # neither split is empty in between
    assert len(split_rows(3, "train", 0.99, 0)) == 1


def test_one_exact_split():
    found = np.array([f"{number}.jpg".encode() for number in range(12)])
    assert split_rows(found, "val", 0.25, 0).tolist() == [3, 5, 10]


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match=r"data\.split: .* no split 'tests'"):
        split_rows(5, "tests", 0.2, 0)
    with pytest.raises(ConfigError, match=r"data\.split: val is 1\.5 .* allowed: 0 to 1"):
        split_rows(5, "train", 1.5, 0)
    with pytest.raises(ConfigError, match="val is nan"):
        split_rows(5, "train", float("nan"), 0)
    with pytest.raises(ConfigError, match=r"val is 0\.5 and test 0\.6; .* both together"):
        split_rows(5, "train", 0.5, 0, None, 0.6)
    with pytest.raises(ConfigError, match=r"no split .test. of its own; data\.split="):
        check_split("test", "test")


@given(
    count=st.integers(2, 200),
    val=st.floats(0, 0.5),
    test=st.floats(0, 0.5),
    classes=st.integers(0, 3),
)
def test_a_test_split_is_taken_from_training_alone(count, val, test, classes):
    labels = np.arange(count) % classes if classes else None
    before = {of: split_rows(count, of, val, 0, labels) for of in ("train", "val")}
    after = {of: split_rows(count, of, val, 0, labels, test) for of in ("train", "val", "test")}
    assert np.array_equal(before["val"], after["val"])
    assert sorted(np.concatenate(list(after.values()))) == list(range(count))
    assert sorted([*after["train"], *after["test"]]) == before["train"].tolist()
    assert abs(len(after["test"]) - test * count) <= 1
