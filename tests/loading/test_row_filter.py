"""Filters by expression: what they keep, and that nothing but a filter gets through."""

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import ConfigError
from pipeline.loading.row_filter import Expression, matching

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


def test_columns_of_an_expression_and_whether_rows_stand_alone():
    one = Expression("`image width` > 1 and label == 'ham'")
    assert sorted(one.columns) == ["image width", "label"]
    assert one.by_row
    assert not Expression("~hash.duplicated()").by_row
    with pytest.raises(ConfigError, match=r"no column 'lenght' \(did you mean 'length'\?\)"):
        matching(TABLE, "lenght < 3")
