"""The rows that a filter keeps, as a dataset: every optional member is that of the kept rows."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

from penstock.addons.filters.rows import KeptRows
from penstock.errors import DataError
from penstock.loading.facts import (
    classes_of,
    facts_of,
    own_row,
    table_of,
    unfiltered,
    unfiltered_fingerprint,
)
from penstock.runs.identity import fingerprint_of

TABLE = pd.DataFrame({"length": [3, 700, 41, 9], "hash": ["a", "b", "a", "c"]})


class Numbers:
    classes = ("even", "odd")
    fingerprint = "numbers"
    draws = False
    targets = (0, 1, 0, 1)
    metadata = TABLE
    lengths = np.array([3, 700, 41, 9])
    source_lengths = {"web": 3, "code": 1}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if not 0 <= index < 4:
            raise IndexError(index)
        return {"x": index * 10}

    def path(self, index):
        return f"{index}.txt"

    def want(self, indices):
        return [f"{index}.txt" for index in indices]

    def fetch_batch(self, indices, in_place=False):
        return {"x": torch.as_tensor(np.asarray(indices) * 10), "in_place": in_place}

    def text_lengths(self, length, name):
        return [length(row) for row in range(4)]

    def names_fingerprint(self):
        return "names"


class NumbersAtOnce(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def kept(dataset, rows, reasons=()):
    return KeptRows(dataset, np.isin(np.arange(4), rows), dict(reasons))


@given(st.sets(st.integers(0, 3), min_size=1))
def test_every_member_is_that_of_the_kept_rows(chosen):
    rows = sorted(chosen)
    found = pickle.loads(pickle.dumps(kept(Numbers(), rows)))
    numbers = np.arange(len(rows))
    assert type(found) is KeptRows
    assert [found[index]["x"] for index in numbers] == [10 * row for row in rows]
    assert [found.path(index) for index in numbers] == [f"{row}.txt" for row in rows]
    assert found.metadata.index.tolist() == numbers.tolist()
    assert found.metadata["length"].tolist() == TABLE["length"].iloc[rows].tolist()
    assert np.asarray(found.lengths).tolist() == TABLE["length"].iloc[rows].tolist()
    assert found.lengths[numbers[::-1]].tolist() == TABLE["length"].iloc[rows[::-1]].tolist()
    assert len(found.lengths) == len(rows)
    assert found.want(numbers.tolist()) == [f"{row}.txt" for row in rows]
    batch = found.fetch_batch(numbers, in_place=True)
    assert (batch["x"].tolist(), batch["in_place"]) == ([10 * row for row in rows], True)
    assert found.text_lengths(lambda row: row, "words").tolist() == rows
    assert found.targets == [row % 2 for row in rows]
    assert found.source_lengths == {"web": sum(row < 3 for row in rows), "code": int(3 in rows)}
    assert (found.classes, found.draws) == (("even", "odd"), False)
    assert not hasattr(found, "check")
    assert not hasattr(found, "__getitems__")
    assert found.rows.tolist() == rows
    assert [own_row(found, index) for index in numbers] == rows
    assert (own_row(Numbers(), 1), type(unfiltered(found))) == (None, Numbers)
    assert found[-1] == found[len(rows) - 1]
    with pytest.raises(IndexError):
        found[len(rows)]


def test_many_rows_are_read_at_once_where_the_dataset_does():
    assert kept(NumbersAtOnce(), [1, 3]).__getitems__([1, 0]) == [{"x": 30}, {"x": 10}]


def test_fingerprints_say_which_rows_are_kept(tmp_path):
    one, other = kept(Numbers(), [1, 3]), kept(Numbers(), [1, 2])
    for mode, own in (("sizes", "numbers"), ("names", "names")):
        told = fingerprint_of(one, mode)
        assert told.startswith(f"{own} kept=2/4:")
        assert told != fingerprint_of(other, mode)
        assert unfiltered_fingerprint(one, told) == own
    assert one.fingerprint == fingerprint_of(one, "sizes")
    plain = kept(TensorDataset(torch.arange(4)), [1])
    assert fingerprint_of(plain, "sizes").startswith("4 kept=1/4:")
    assert not hasattr(plain, "names_fingerprint")


def test_torch_datasets_keep_labels_and_facts():
    plain = TensorDataset(torch.zeros(4, 7), torch.tensor([0, 2, 1, 0]))
    found = kept(plain, [0, 2])
    assert table_of(found)["target"].tolist() == [0, 1]
    assert (
        facts_of(found)
        == facts_of(plain)
        == {
            "num_classes": 3,
            "num_outputs": 3,
            "num_features": 7,
        }
    )
    assert classes_of(kept(Subset(plain, range(4)), [1])) == []


def test_nothing_left_is_an_error_that_says_why():
    with pytest.raises(DataError, match=r"none of 4 samples is left: 4 by data.filter"):
        kept(Numbers(), [], {"data.filter": 4, "other": 0}.items())
