"""Map-style datasets joined by position."""

import copy
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from penstock.addons.mixtures.mixture import Mixture
from penstock.errors import ConfigError
from tests.support import streams


class Rows:
    """Numbers from `first` on."""

    def __init__(self, first, length):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.first + index


class Many(Rows):
    draws = False
    facts = {"num_classes": 2}
    lengths = np.arange(20)
    classes = ["x", "y"]

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def path(self, index):
        return f"{index}.bin"

    def check(self, index):
        return "odd" if index % 2 else None

    @property
    def metadata(self):
        return pd.DataFrame({"label": [1] * self.length, "length": range(self.length)})


def test_names_of_sources_take_a_byte_a_row():
    mixture = Mixture({"b": Rows(0, 2_000_000), "a": Rows(0, 2_000_000)})
    tracemalloc.start()
    table = mixture.metadata
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * len(table)
    assert table["source"].iloc[[0, -1]].tolist() == ["b", "a"]


def test_rows_are_numbered_through_the_sources():
    data = Mixture({"a": Rows(0, 3), "b": Rows(100, 2), "c": Rows(200, 1)})
    assert [data[index] for index in range(len(data))] == [0, 1, 2, 100, 101, 200]
    assert data.source_lengths == {"a": 3, "b": 2, "c": 1}
    assert data.place_of(4) == ("b", 1)
    for index in (-1, 6):
        with pytest.raises(IndexError, match="there are 6 rows"):
            data[index]


def test_what_sources_have_is_handed_on():
    data = Mixture({"a": Rows(0, 3), "b": Many(100, 20)})
    assert (data.path(3), data.path(1)) == ("b/0.bin", "a/1")
    assert not {"__getitems__", "check", "lengths"} & {
        name for name in dir(Many) if hasattr(data, name)
    }
    assert data.draws
    both = Mixture({"a": Many(0, 3), "b": Many(100, 20)})
    assert both.__getitems__([4, 0, 3, 2]) == [101, 0, 100, 2]
    assert both.draws is False
    assert (both.check(2), both.check(4)) == (None, "odd")
    assert both.lengths[[19, 21]].tolist() == [19, 1]
    assert (both.facts, both.classes) == ({"num_classes": 2}, ["x", "y"])
    assert (data.facts, data.classes) == ({}, [])
    for one in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert one.__getitems__([22]) == [119]


def test_tables_are_joined_with_the_name_of_the_source():
    table = Mixture({"a": Rows(0, 2), "b": Many(100, 3)}).metadata
    assert table["source"].tolist() == ["a", "a", "b", "b", "b"]
    assert table["length"].isna().tolist() == [True, True, False, False, False]
    assert table.columns.tolist() == ["source", "label", "length"]


def test_the_fingerprint_tells_sources_and_weights():
    def told(sources, **options):
        return Mixture(sources, **options).fingerprint

    a, b = Rows(0, 2), Rows(9, 2)
    found = [
        told({"a": a, "b": b}),
        told({"b": b, "a": a}),
        told({"a": a}),
        told({"a": a, "b": b}, weights={"a": 1, "b": 2}),
    ]
    assert len(set(found)) == 4
    assert found[0] == told({"a": Rows(0, 2), "b": b})


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ConfigError, match=r"dataset\.sources: b; allowed: .* \(no streams"):
        Mixture({"a": Rows(0, 1), "b": streams.Decoding(3)})
    with pytest.raises(ConfigError, match=r"dataset\.sources: none"):
        Mixture({})


def test_a_table_has_the_paths_that_rows_have():
    class Tabled(Many):
        @property
        def metadata(self):
            return pd.DataFrame({"path": [self.path(row) for row in range(self.length)]})

    data = Mixture({"a": Rows(0, 3), "b": Tabled(100, 20)})
    assert data.metadata["path"].iloc[3:].tolist() == [data.path(row) for row in range(3, 23)]
    both = Mixture({"a": Tabled(0, 2), "b": Tabled(100, 2)})
    assert both.metadata["path"].tolist() == ["a/0.bin", "a/1.bin", "b/0.bin", "b/1.bin"]


def test_a_path_that_is_no_function_is_not_asked():
    rows = Rows(0, 4)
    rows.path = "table.csv"  # as of a dataset that is one file
    assert Mixture({"a": rows}).path(2) == "a/2"


def test_texts_are_counted_by_their_sources():
    class Texts(Many):
        def text_lengths(self, length, name):
            return np.array([length("x" * row) for row in range(self.length)], np.int32)

    data = Mixture({"a": Texts(0, 3), "b": Texts(100, 2)})
    assert data.text_lengths(len, "letters").tolist() == [0, 1, 2, 0, 1]
    assert not hasattr(Mixture({"a": Texts(0, 3), "b": Many(100, 2)}), "text_lengths")
