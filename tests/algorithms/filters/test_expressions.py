"""Filters by expression: what they keep, and that nothing but a filter gets through."""

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from penstock.addons.filters.expressions import Expression, is_expression
from penstock.errors import ConfigError

TABLE = pd.DataFrame(
    {
        "length": [3, 700, 41, 9],
        "label": ["ham", "spam", "ham", None],
        "image width": [1.5, 2.0, np.nan, 0.0],
        "hash": ["a", "b", "a", "c"],
        "small": np.array([100, -100, 3, 9], np.int8),
        "sharp": [True, False, True, False],
        "a`b": [0, 1, 2, 3],
        "kind": pd.Categorical(["x", "y", None, "x"]),
        "rank": pd.array([1, None, 3, 0], dtype="Int64"),
        "known": pd.array([True, None, False, True], dtype="boolean"),
        "maybe": pd.Series([True, None, False, True], dtype=object),
        "title": pd.Series(["News: a", "news.b", None, "old\n"], dtype=object),
        "day": pd.to_datetime(["2020-01-01", "2021-06-05", None, "2019-12-31"]),
        "local": pd.to_datetime(["2020-01-01", "2021-06-05", None, "2019-12-31"], utc=True),
        "price": [Decimal("1.5"), Decimal(2), Decimal(0), Decimal(7)],
        "cells": [[1], [2], [3], [4]],
    }
)
TABLE.index = pd.Index([5, 7, 9, 11])


def matching(table, expression):
    return Expression(expression).mask(table)


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("length < 500", [0, 2, 3]),
        ('length < 500 and label == "ham"', [0, 2]),
        ("not (length < 500)", [1]),
        ("(length > 3) & (length < 100)", [2, 3]),
        ("`image width` >= 1.5", [0, 1]),
        ("`image width`.isna()", [2]),
        ('label in ["spam", "eggs"]', [1]),
        ('label.isin(["ham"])', [0, 2]),
        ("length % 2 == 1 or length == 700", [0, 1, 2, 3]),
        ("length.between(9, 41)", [2, 3]),
        ('hash.str.startswith("a")', [0, 2]),
        ("-length < -40", [1, 2]),
        ("length > 0", [0, 1, 2, 3]),
        ("hash.str.len() == 1", [0, 1, 2, 3]),
        ("~hash.duplicated()", [0, 1, 3]),
        # Precedence: & and | are the words `and` and `or`, as in pandas' query.
        ("length > 3 & length < 100", [2, 3]),
        ("sharp | length == 9 & label.isna()", [0, 2, 3]),
        ("not sharp", [1, 3]),
        ("~sharp", [1, 3]),
        ("sharp == (length < 100)", [0, 1, 2]),
        ("sharp ^ (length < 100)", [3]),
        ("3 < length <= 41 != small", [2, 3]),
        ("9 > length", [0]),
        ("True", [0, 1, 2, 3]),
        ("sharp and True", [0, 2]),
        # Missing values: comparisons are false, but of != ; and of types with one of their own.
        ("label != 'ham'", [1, 3]),
        ("not label == 'ham'", [1, 3]),
        ("`image width` != 2", [0, 2, 3]),
        ("rank > 0", [0, 2]),
        ("rank != 1", [2, 3]),
        ("not rank == 1", [2, 3]),
        ("known", [0, 3]),
        ("not known", [2]),
        ("known or length == 700", [0, 1, 3]),
        ("maybe", [0, 3]),
        ("maybe or length == 700", [0, 1, 3]),
        ("kind == 'x'", [0, 3]),
        ("kind != 'x'", [1, 2]),
        ("kind in ['y', 'z']", [1]),
        ("rank.isna() or label.isna()", [1, 3]),
        ("label.notna()", [0, 1, 2]),
        # Lists, also beside == ; a text is a list of itself.
        ("length not in [3, 9]", [1, 2]),
        ("length == [3, 9]", [0, 3]),
        ("length != [3, 9]", [1, 2]),
        ("label not in 'ham'", [1, 3]),
        ("length in []", []),
        ("length.between(9, 41, inclusive='left')", [3]),
        ("length.between(3, 41, 'neither')", [3]),
        # Numbers: 64 bits, and whatever type a column has.
        ("small + 100 > 127", [0]),
        ("-small > 0", [1]),
        ("small.abs() >= 100", [0, 1]),
        ("length // 0 > 1 and length / 0 > 1", [0, 1, 2, 3]),
        ("length + `image width` > 4", [0, 1, 3]),
        ("price * 2 > 3", [1, 3]),
        ("rank * 2 == 6", [2]),
        # Texts.
        ("title.str.contains('news')", [1]),
        ("title.str.contains('news', case=False)", [0, 1]),
        ("title.str.contains('NEWS|^O', case=False)", [0, 1, 3]),
        ("title.str.contains('s.b', regex=False)", [1]),
        ("not title.str.contains('n')", [0, 2, 3]),
        ("title.str.contains('s', na=True)", [0, 1, 2]),
        ("title.str.endswith(('a', 'b'))", [0, 1]),
        ("title.str.lower().str.startswith('news')", [0, 1]),
        ("title.str.strip() == 'old'", [3]),
        ("title.str.upper().str.len().between(4, 6)", [1, 3]),
        ("hash.str.strip('a') == ''", [0, 2]),
        ("label < 'i'", [0, 2]),
        ("label == hash", []),
        ("kind.str.upper() == 'X'", [0, 3]),
        # Days, as ISO 8601 has them.
        ("day > '2020'", [1]),
        ("day >= '2020-01-01'", [0, 1]),
        ("day == '2020-01-01'", [0]),
        ("day in ['2021-06-05', '2022-01-01']", [1]),
        ("local in ['2021-06-05', '2022-01-01'] or length.isin([3])", [0, 1]),
        ("'2019' < day < '2021'", [0, 3]),
        ("day.between('2019-12-31', '2020-01-01 12:00')", [0, 3]),
        ("local < '2020-01-01T00:00:00Z'", [3]),
        # What Python's parser makes of quotes, backticks and comments.
        ("`a``b` > 1", [2, 3]),
        ("label != 'x`y' and `a``b` > 1", [2, 3]),
        ("hash == '\\x61'", [0, 2]),
        ('hash == """a"""', [0, 2]),
        ("hash == 'a' # or `this`", [0, 2]),
        ("hash != '`&|#'", [0, 1, 2, 3]),
        ("(length > 3\n and sharp)", [2]),
        ("sharp&length>3|hash=='b'", [1, 2]),
        ("`length`<4", [0]),
        ("not`sharp`", [1, 3]),
        ("~hash.duplicated(keep='last')", [1, 2, 3]),
        ("hash.duplicated(keep=False) and (length > 3).duplicated()", [2]),
    ],
)
def test_rows_that_an_expression_keeps(expression, kept):
    assert np.flatnonzero(matching(TABLE, expression)).tolist() == kept


@pytest.mark.parametrize(
    "expression",
    [
        "length < 500",
        "length * 2 - small // 3 > 5 or length % 7 == 0",
        "label == 'ham' and sharp",
        "label not in ['ham', 'eggs'] | `image width` > 1",
        "not (sharp or length > 40)",
        "sharp & length > 3",
        "3 < length < 100",
        "label != 'spam'",
        "length == [3, 9]",
        "label.isna() or hash.str.contains('a')",
        "`image width` / length < 0.1",
        "kind == 'x' and label.notna()",
        "rank > 0 and known",
        "~known",
        "rank.between(0, 1)",
        "hash.str.len() == length - 2",
        "price > 1",
        "day > '2020'",
        "kind.isin(['y'])",
        "(length > 3) == sharp",
        "hash < label",
        "length.duplicated() | hash.duplicated()",
    ],
)
def test_it_is_what_pandas_makes_of_it(expression):
    """Only for people who trust the text: `eval` is what filters were given to before."""
    expected = TABLE.eval(expression, engine="python").fillna(False).astype(bool)
    assert matching(TABLE, expression).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "expression",
    [
        "@pd.io",
        "__import__('os')",
        "length.to_csv('/tmp/x')",
        "length.__class__",
        "open('x')",
        "length.values.tofile('/tmp/x')",
        "(lambda: 1)()",
        "[x for x in length]",
        "label.str.cat",
        "length.apply('x')",
        "f'{length}'",
        "length[0]",
        "x := 1",
        "hash.str.contains(label)",
        "length.pipe(print)",
        "",
        "length <",
        "tabel == 1",
        "length",
        "label < 3",
        "1 + 1",
        "length == 1; label",
        "'x' * 9",
        "a" * 20_000,
        "(" * 5000,
        "length is None",
        "length == b'x'",
        "length == 1j",
        "length == ...",
        "length in label",
        "length in 3",
        "[3] in [3]",
        "length < [3]",
        "{3} == length",
        "length if sharp else 1",
        "length.isin('a')",
        "length.isin([[1]])",
        "length.between(1)",
        "length in [small, 41]",
        "day == 'now'",
        "day == 2020",
        "day in ['2020-01-01', 'today']",
        "day.between('10:30', '2021')",
        "length.between(1, 2, inclusive='x')",
        "length.abs(1)",
        "length.abs(x=1)",
        "length.isna(*[1])",
        "length.isna(**{'x': 1})",
        "hash.str.contains(3)",
        "3 .abs()",
        "hash.str.contains('a', na=1)",
        "hash.str.startswith(['a', 3])",
        "hash.str.strip(3)",
        "(1 < 2).isna()",
        "hash.duplicated(keep='all')",
        "(1 < 2).duplicated()",
        "length.str.len() > 1",
        "sharp and length",
        "not length > 3 and 1",
        "length ** 2 > 3",
        "length << 2 > 3",
        "length @ length > 3",
        "+label == 'a'",
        "label + 'x' == 'hamx'",
        "label % 3 == 'x'",
        # Columns of text and of lists, which such a number would repeat until the memory is full.
        "label * 9999999999 == 'x'",
        "9999999999 * title == 'x'",
        "cells * 9999999999 == 1",
        "-label == 'x'",
        "kind * 2 == 'xx'",
        "length + None > 1",
        "day > 'now'",
        "day > 'today'",
        "day > '10:30'",
        "day == '01/02/2020'",
        "day > 3",
        "day < local",
        "day + 'x' > day",
        "length - '2020-01-01' > 1",
        "1 / 0 > length",
        "price + length",
        "ｌength > 3 and lеngth > 3",
        "`length > 3",
        "length` > 3",
        "`` > 3",
        "length > 3`",
        "\x00",
        "\ud800",
        "length > 3\nlabel",
        "-" * 5000 + "length > 3",
        "length > 3 > label",
    ],
)
def test_nothing_else_gets_through(expression):
    with pytest.raises(ConfigError, match=r"data\.filter") as caught:
        matching(TABLE, expression)
    assert len(str(caught.value)) < 1500


# Texts for Python's parser, in which pandas.eval saw a call: an escape before a closing quote, then
# backticks that pandas takes for the beginning of a name, with quotes in it.
CALLS = [
    "label.to_csv('CANARY')",
    "label._constructor.__init__.__globals__.get('sys').modules.get('os').system('touch CANARY')",
]
MISREAD = [
    r"""label == "\\" or label == "``A`" == label or label == '`C``" or CALL == 0 #' """,
    r"""label == '\\' or label == '``A`' == label or label == "`C``' or CALL == 0 #" """,
    r"""(label == "\\" or label == "``A`" == label or label == '`C``" or CALL == 0) #')""",
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("text", MISREAD)
def test_what_is_checked_is_what_is_evaluated(text, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quote = '"' if "#'" in text else "'"
    mask = matching(TABLE, text.replace("CALL", call.replace("'", quote)))
    assert not list(tmp_path.iterdir()), "the stranger's code ran"
    assert not mask.any(), "no row has one of these texts"


def test_columns_of_an_expression_and_whether_rows_stand_alone():
    one = Expression("`image width` > 1 and label == 'ham'")
    assert sorted(one.columns) == ["image width", "label"]
    with pytest.raises(ConfigError, match=r"no column 'lenght' \(did you mean 'length'\?\)"):
        matching(TABLE, "lenght < 3")
    with pytest.raises(ConfigError, match="there are 0, 1"):
        matching(pd.DataFrame([[1, 2]]), "lenght < 3")


def test_texts_are_searched_without_the_packages_of_other_extras():
    program = (
        "import sys; sys.modules['pyarrow'] = None; import pandas as pd;"
        "from penstock.addons.filters.expressions import Expression;"
        "table = pd.DataFrame({'name': ['a.b', 'c', None]});"
        "print(Expression('name.str.contains(\"a.b$\")').mask(table).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[True, False, False]\n", done.stderr


def test_a_path_is_no_expression():
    for text in ("length > 3", "a & b", "not a", "a.isna()", "`x y` == 1", "a == 'b/c.jpg'"):
        assert is_expression(text), text
    for text in (
        "a/b.jpg",
        "0017.jpg",
        "a b.jpg",
        "a-b",
        "name",
        "it's.jpg",
        "length > " + "1" * 20_000,
    ):
        assert not is_expression(text), text
