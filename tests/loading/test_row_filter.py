"""Filters by expression: what they keep, and that nothing but a filter gets through."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.loading.row_filter import KeptRows, all_but, first_of_each, kept_rows, matching
from pipeline.order.selection import Selection

TABLE = pd.DataFrame({
    "length": [3, 700, 41, 9], "label": ["ham", "spam", "ham", None],
    "image width": [1.5, 2.0, np.nan, 0.0], "hash": ["a", "b", "a", "c"],
})  # fmt: skip


@pytest.mark.parametrize(("expression", "kept"), [
    ("length < 500", [0, 2, 3]), ('length < 500 and label == "ham"', [0, 2]),
    ("not (length < 500)", [1]), ("(length > 3) & (length < 100)", [2, 3]),
    ("`image width` >= 1.5", [0, 1]), ("`image width`.isna()", [2]),
    ('label in ["spam", "eggs"]', [1]), ('label.isin(["ham"])', [0, 2]),
    ("length % 2 == 1 or length == 700", [0, 1, 2, 3]), ("length.between(9, 41)", [2, 3]),
    ('hash.str.startswith("a")', [0, 2]),
    ("-length < -40", [1, 2]), ("length > 0", [0, 1, 2, 3]),
    ("hash.str.len() == 1", [0, 1, 2, 3]), ("~hash.duplicated()", [0, 1, 3]),
])  # fmt: skip
def test_rows_that_an_expression_keeps(expression, kept):
    assert np.flatnonzero(matching(TABLE, expression)).tolist() == kept


@pytest.mark.parametrize("expression", [
    "@pd.io", "__import__('os')", "length.to_csv('/tmp/x')", "length.__class__", "open('x')",
    "length.values.tofile('/tmp/x')", "(lambda: 1)()", "[x for x in length]", "label.str.cat",
    "length.isin(length)", "length.apply('x')", "f'{length}'", "length[0]", "x := 1",
    "hash.str.contains(label)", "length.pipe(print)", "",  "length <", "tabel == 1", "length",
    "label < 3", "1 + 1", "length == 1; label", "'x' * 9", "a" * 20_000, "(" * 5000,
])  # fmt: skip
def test_nothing_else_gets_through(expression, tmp_path):
    with pytest.raises(ConfigError, match=r"dataset\.filter"):
        matching(TABLE, expression)


def test_duplicates_and_lists():
    assert first_of_each(TABLE, "hash").tolist() == [True, True, False, True]
    assert all_but(4, [1, 2]).tolist() == [True, False, False, True]
    with pytest.raises(ConfigError, match=r"dataset\.unique: there is no column 'md5'"):
        first_of_each(TABLE, "md5")
    with pytest.raises(ConfigError, match="row 4 does not exist; there are 4 rows"):
        all_but(4, [4])


class Numbers:
    classes = ("even", "odd")
    fingerprint = "numbers"
    draws = False

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index >= 4:
            raise IndexError(index)
        return {"x": index * 10}

    @property
    def metadata(self):
        return TABLE

    def path(self, index):
        return f"{index}.txt"


class NumbersAtOnce(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@given(st.lists(st.booleans(), min_size=4, max_size=4).filter(any))
def test_the_kept_rows_are_a_dataset(mask):
    kept = np.flatnonzero(mask)
    found = pickle.loads(pickle.dumps(KeptRows(Numbers(), Selection([np.array(mask)]), {})))
    assert [found[index]["x"] for index in range(len(found))] == [10 * row for row in kept]
    assert [found.path(index) for index in range(len(found))] == [f"{row}.txt" for row in kept]
    assert found.metadata.index.tolist() == list(range(len(kept)))
    assert found.metadata["length"].tolist() == TABLE["length"].iloc[kept].tolist()
    assert (found.classes, found.draws) == (("even", "odd"), False)
    assert not hasattr(found, "check")
    assert type(kept_rows(Numbers(), found.selection, {})) is KeptRows
    many = kept_rows(NumbersAtOnce(), found.selection, {})
    assert many.__getitems__([0]) == [{"x": 10 * kept[0]}]
    assert found.fingerprint.startswith("numbers kept=")
    with pytest.raises(IndexError):
        found[len(found)]


def test_nothing_left_is_an_error_that_says_why():
    with pytest.raises(DataError, match=r"none of 4 samples is left: 4 by dataset.filter"):
        KeptRows(Numbers(), Selection([np.zeros(4, bool)]), {"dataset.filter": 4, "other": 0})
