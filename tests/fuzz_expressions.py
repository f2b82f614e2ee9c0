"""Expressions of filters at random: each is refused, or means what plain Python makes of its tree.

    make fuzz                                                       100,000 texts
    python tests/fuzz_expressions.py --count 100000 --seed 0        the same

Half of the texts come from a grammar of what a filter may hold; the others are such texts with
pieces put in, or pieces alone: quotes, backticks, comments, f-strings, bytes, lambdas, walruses,
attributes, lookalikes of letters, line ends, null characters, calls that would make a file. A text
is refused with ConfigError, or its mask is what `Rows` finds by walking the checked tree for each
row on its own. An audit hook sees everything that runs meanwhile: only Python's parser may.
"""

from __future__ import annotations

import argparse
import codecs
import math
import re
import sys
import warnings
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from penstock.addons.filters import expressions as tree
from penstock.addons.filters.row_filter import Expression
from penstock.errors import ConfigError

NA = pd.NA
TEXTS = ["ham", "spam", None, "Ham", "a.b", "it's", "x`y", "", "ä é", "#1", "ham and spam", "aaa"]
ROWS = len(TEXTS)
WHOLE = [3, 0, -2, 7, 41, 3, 1, 100, -5, 2, 0, 9]
POINTS = [1.5, math.nan, -0.5, 0.0, 2.0, 7.0, math.nan, 1.5, -3.0, 100.0, 0.5, 3.0]
DAYS = ["2020-01-01", "2021-06-05 10:00", None, "2019-12-31", "2020-01-01", "2020-02-29"] * 2
OWN_GAPS = [None if value % 3 == 0 else value for value in WHOLE]
TRUTHS = [value > 2 for value in WHOLE]
TABLE = pd.DataFrame(
    {
        "i": WHOLE,
        "u": np.abs(WHOLE).astype(np.uint8),
        "f": POINTS,
        "image width": POINTS[::-1],
        "n": pd.array(OWN_GAPS, dtype="Int64"),
        "b": TRUTHS,
        "t": pd.array([None if gap is None else gap > 2 for gap in OWN_GAPS], dtype="boolean"),
        "s": pd.Series(TEXTS),
        "o": pd.Series(TEXTS[::-1], dtype=object),
        "k": pd.Categorical(TEXTS[::-1]),
        "x`y": pd.Series(TEXTS, dtype=object),
        "d": [pd.NaT if day is None else pd.Timestamp(day) for day in DAYS],
    }
)
TABLE.index = pd.Index(np.arange(ROWS) * 2 + 5)
PLAIN: dict[str, list[Any]] = {
    "i": WHOLE,
    "u": [abs(value) for value in WHOLE],
    "f": POINTS,
    "image width": POINTS[::-1],
    "n": [NA if gap is None else gap for gap in OWN_GAPS],
    "b": TRUTHS,
    "t": [NA if gap is None else gap > 2 for gap in OWN_GAPS],
    "s": TEXTS,
    "o": TEXTS[::-1],
    "k": TEXTS[::-1],
    "x`y": TEXTS,
    "d": [None if day is None else datetime.fromisoformat(day) for day in DAYS],
}


# 1. Texts.
def pieces(text: str) -> list[str]:
    """Pieces between " ¦ ", in several lines; TRIPLE stands for three quotes."""
    lines = text.replace("TRIPLE", '"""').strip().splitlines()
    return [piece for line in lines for piece in line.strip().split(" ¦ ")]


NUMBERS = pieces("0 ¦ 1 ¦ 2 ¦ 3 ¦ -3 ¦ 7 ¦ 1.5 ¦ -.5 ¦ 1e3 ¦ 0x1f ¦ 1_0 ¦ 41 ¦ 1e999 ¦ 255")
NUMBERS += ["9223372036854775807"]
NUMBERS += ["18446744073709551615", "18446744073709551616", "9" * 300]
LITERALS = pieces(r"""
    'ham' ¦ "spam" ¦ 'a' ¦ '' ¦ 'x`y' ¦ "it's" ¦ r'it\'s' ¦ '\\' ¦ TRIPLEhamTRIPLE ¦ '''a''' ¦ 'ä é'
    '#1' ¦ '&|' ¦ r'\.' ¦ u'aaa' ¦ 'h' 'am' ¦ '\x68am'
""")
PIECES = (
    r"a ham [a-m] [^a] . ^ $ (h|s) a* m+ (?:a|b) {2} \. \d (?=a)(a|a)+$ {1,3}? ß | x? [ ( \ ] +"
)
NUMERIC = ["i", "u", "f", "n", "`image width`", "b"]
TEXTUAL = ["s", "o", "k", "`x``y`"]
COMPARES = ["==", "!=", "<", "<=", ">", ">="]
MOMENTS = pieces(
    "'2020-01-01' ¦ '2020-02' ¦ 2020 ¦ '2021-06-05 10:00' ¦ 'now' ¦ '10:30' ¦ 20200101"
)
EVIL = pieces("""
    s.to_csv('CANARY') ¦ open('CANARY', 'w') ¦ __import__('os').system('touch CANARY')
    s._constructor.__init__.__globals__.get('sys').modules.get('os').system('touch CANARY')
    i.values.tofile('CANARY') ¦ @pd.io.common.os.mkdir('CANARY')
""")
HOSTILE = pieces(r"""
    ` ¦ `` ¦ ``` ¦ ' ¦ " ¦ \ ¦ TRIPLE ¦ ''' ¦ # ¦ ; ¦ @ ¦ $ ¦ ? ¦ f' ¦ f'{i}' ¦ rb" ¦ b'x' ¦ 1j
    ... ¦ lambda: 1 ¦ := ¦ (x := 1) ¦ [v for v in s] ¦ {1: 2} ¦ {1} ¦ if b else t ¦ *i ¦ **i ¦ =
    [0] ¦ [:] ¦ **{'na': True} ¦ is None ¦ yield i ¦ await i ¦ () ¦ . ¦ , ¦ .__class__
    .__class__.__mro__ ¦ .str ¦ .str.cat ¦ .values
    .query('i') ¦ .pipe(print) ¦ .eval('i') ¦ .apply('x') ¦ ｉ
    і ¦ ﬁ ¦ ｓ.str ¦ i．abs()
    'a' * 6000000000 ¦ 9 ** 9 ** 9 ¦ "\\" ¦ "``A`" ¦ '`C``" ¦ #' ¦ a` ¦ `a
""")
HOSTILE += ["\n", "\\\n", "\x00", "\t", "\x0c", "\x85", "\u2028", "\ufeff", "\u202e", "\ud800"]
HOSTILE += ["-" * 150, "(" * 150, "not " * 150, "i, " * 400, *EVIL]


def _of(*choices: Any) -> Any:
    return st.one_of(*(st.sampled_from(one) if isinstance(one, list) else one for one in choices))


def _text(*parts: Any) -> Any:
    """Parts one after the other: texts as they are, lists of texts, strategies."""
    made = [st.just(part) if isinstance(part, str) else _of(part) for part in parts]
    return st.tuples(*made).map("".join)


PATTERNS = st.lists(st.sampled_from(PIECES.split()), max_size=4).map("".join).map(repr)
OPTIONS = ["", ", case=False", ", na=True", ", regex=False"]
texts = st.recursive(
    _of(TEXTUAL),
    lambda below: _text(below, [".str.lower()", ".str.upper()", ".str.strip()", ".str.strip('h')"]),
    max_leaves=2,
)
numbers = st.recursive(
    _of(NUMERIC, NUMBERS, _text(texts, ".str.len()")),
    lambda below: _of(
        _text(below, [" + ", " - ", " * ", " / ", " // ", " % ", "-"], below),
        _text("(", below, [" + ", " - ", " * "], below, ")"),
        _text("-", below),
        _text("(", below, ").abs()"),
    ),
    max_leaves=4,
)
constants = _of(NUMBERS, LITERALS, ["None", "True", "False"])
lists = st.lists(constants, max_size=3).map(lambda values: f"[{', '.join(values)}]")
anything = _of(numbers, texts, MOMENTS, ["d"], constants, lists)
compared = _of(
    _text(numbers, " ", COMPARES, " ", numbers),
    _text(numbers, " ", COMPARES, " ", numbers, " ", COMPARES, " ", numbers),
    _text(texts, " ", COMPARES, " ", LITERALS),
    _text(texts, ["==", " != "], texts),
    _text("d ", COMPARES, " ", MOMENTS),
    _text(MOMENTS, " < d"),
    _text("d", COMPARES, "d"),
    _text(_of(numbers, texts), [" in ", " not in ", " == ", " != "], lists),
    _text(texts, [" in ", " not in "], LITERALS),
    _text(numbers, " in [", numbers, ", i, 3]"),
    _text(
        "(",
        numbers,
        ").between(",
        NUMBERS,
        ", ",
        NUMBERS,
        ", ",
        ["", "inclusive='left'", "'neither'"],
        ")",
    ),
    _text(_of(NUMERIC, TEXTUAL), ".isin(", lists, ")"),
    _text(
        _of(NUMERIC, TEXTUAL, ["d"]),
        [
            ".isna()",
            ".notna()",
            ".duplicated()",
            ".duplicated(keep='last')",
            ".duplicated(keep=False)",
        ],
    ),
    _text(texts, ".str.contains(", PATTERNS, OPTIONS, ")"),
    _text(texts, [".str.startswith(", ".str.endswith("], LITERALS, ["", ", na=False"], ")"),
    _text(texts, ".str.startswith(('h', ", LITERALS, "))"),
    _text(anything, " ", COMPARES, " ", anything),
)
filters = st.recursive(
    _of(compared, compared, ["b", "t", "True"]),
    lambda below: _of(
        _text(below, [" and ", " or ", " & ", " | ", "&"], below),
        _text("(", below, ")", [" and ", " or ", " & ", " | ", " ^ ", " == "], "(", below, ")"),
        _text(["not ", "~"], "(", below, ")"),
        _text("not ", below),
        _text("(", below, ")", [".isna()", ".duplicated()", ".abs() > 0", " # spam"]),
    ),
    max_leaves=4,
)


@st.composite
def spliced(draw: Any) -> str:
    """A filter with pieces put in, or over it."""
    text = draw(filters)
    for piece in draw(st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=3)):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 2)))
        text = text[:start] + piece + text[stop:]
    return text


WORDS = [
    *HOSTILE,
    *COMPARES,
    *LITERALS,
    "s",
    "i",
    "b",
    " ",
    " or ",
    " == ",
    "(",
    ")",
    "'",
    '"',
    "`",
]
soup = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map("".join)
# What pandas.eval ran as code, where Python's parser saw texts, with other pieces in its places.
mismatched = st.tuples(
    _of([r'"\\"', r"'\\'", r'"\""', '""""""']),
    _of(["``", "```", "`", "`` `"]),
    _of(["`", "``"]),
    _of(["`", "", "``"]),
    _of(EVIL),
).map(
    lambda part: (
        f's == {part[0]} or s == "{part[1]}A{part[2]}" == s or '
        f"s == '{part[3]}C{part[1]}\" or {part[4]} == 0 #'"
    )
)
KINDS = {"filter": filters, "spliced": spliced(), "soup": soup, "mismatched": mismatched}
every = st.sampled_from(["filter"] * 6 + ["spliced"] * 3 + ["soup", "mismatched"]).flatmap(
    KINDS.get
)


# 2. What a tree means, by plain Python.
class Unknown(Exception):
    """Something that plain Python has another opinion of than the tables of today's pandas."""


class Rows:
    """A tree, evaluated for each row on its own by plain Python."""

    def __init__(self) -> None:
        self._duplicated: dict[Any, list[bool]] = {}

    def mask(self, node: Any) -> list[bool]:
        values = [self.value(node, row) for row in range(ROWS)]
        assert all(value is NA or isinstance(value, bool) for value in values), values
        return [value is not NA and value for value in values]

    def value(self, node: Any, row: int) -> Any:
        value = self._value(node, row)
        if isinstance(value, float) and math.isnan(value) and _has_gaps_of_its_own(node):
            raise Unknown("a number that is none, among those that may be missing")
        return value

    def _value(self, node: Any, row: int) -> Any:
        match node:
            case tree.Column():
                return PLAIN[node.name][row]
            case tree.Constant():
                return node.value
            case tree.Operation():
                below = list(tree.nodes(node))
                right = self.value(node.right, row)
                left = None if node.left is None else self.value(node.left, row)
                by_zero = right is not NA and right == 0 and node.symbol in ("/", "//", "%")
                if by_zero and (any(map(_is_length, below)) or _has_gaps_of_its_own(node)):
                    raise Unknown("0 beside numbers that may be missing, or -0.0 of a length")
                result = calculated(node.symbol, left, right)
                if isinstance(result, int) and abs(result) > 1 << 53:
                    if any(map(_is_length, below)):
                        raise Unknown("numbers with a point, as one of them is missing")
                    assert abs(result) < 1 << 63, "this does not fit, and had to be refused"
                return result
            case tree.Comparison():
                values = [self._listed(one, row) for one in node.operands]
                if _has_gaps_of_its_own(node) and any(
                    value != value for value in values if isinstance(value, float)
                ):
                    raise Unknown("a number that is none, beside one that may be missing")
                if all(
                    isinstance(one, tree.Constant) and one.value is None for one in node.operands
                ):
                    raise Unknown("None beside None: equal, and no row's")
                result: Any = True
                for symbol, left, right in zip(node.symbols, values, values[1:], strict=False):
                    result = both(result, compared_to(symbol, left, right, node))
                return result
            case tree.Not():
                value = self.value(node.of, row)
                if value is NA:
                    return NA
                return not value if isinstance(value, bool) else ~value
            case tree.Joined():
                values = [self.value(part, row) for part in node.parts]
                result = values[0]
                for value in values[1:]:
                    result = JOINS[node.symbol](result, value)
                return result
            case tree.Call():
                return self._called(node, row)
        raise AssertionError(node)

    def _listed(self, node: Any, row: int) -> Any:
        if isinstance(node, tree.Items):
            return [self.value(one, row) for one in node.values]
        return self.value(node, row)

    def _called(self, node: Any, row: int) -> Any:
        if node.name == "duplicated":
            if node not in self._duplicated:
                values = [self.value(node.of, row) for row in range(ROWS)]
                self._duplicated[node] = repeated(values, node.arguments.get("keep", "first"))
            return self._duplicated[node][row]
        value, named = self.value(node.of, row), node.arguments
        gap = value is None or value is NA or value != value
        match node.name:
            case "isna":
                return gap
            case "abs":
                return value if gap else abs(value)
            case "str.len":
                return math.nan if gap else len(value)
            case "str.lower" | "str.upper":
                return value if gap else getattr(value, node.name[4:])()
            case "str.strip":
                return value if gap else value.strip(named.get("to_strip"))
        if gap:
            return named.get("na", False)
        if node.name != "str.contains":
            return getattr(value, node.name[4:])(named["pat"])
        case = named.get("case", True)
        if not case and not (value + named["pat"]).isascii():
            raise Unknown("letters that fold to several")
        if named.get("regex", True):
            try:
                return bool(re.search(named["pat"], value, 0 if case else re.IGNORECASE))
            except re.error:
                raise Unknown("a pattern that Python does not take") from None
        return named["pat"] in value if case else named["pat"].lower() in value.lower()


def _is_length(node: Any) -> bool:
    return isinstance(node, tree.Call) and node.name == "str.len"


def _has_gaps_of_its_own(node: Any) -> bool:
    return any(isinstance(one, tree.Column) and one.name in ("n", "t") for one in tree.nodes(node))


def both(left: Any, right: Any) -> Any:
    if left is NA or right is NA:
        return False if left is False or right is False else NA
    return left & right


def either(left: Any, right: Any) -> Any:
    if left is NA or right is NA:
        return True if left is True or right is True else NA
    return left | right


def differing(left: Any, right: Any) -> Any:
    return NA if left is NA or right is NA else left ^ right


JOINS = {"and": both, "or": either, "^": differing}


def calculated(symbol: str, left: Any, right: Any) -> Any:
    if left is NA or right is NA:
        return NA
    right = right + 0 if isinstance(right, bool) else right
    if left is None:
        return -right
    left = left + 0 if isinstance(left, bool) else left
    if isinstance(left, datetime) or isinstance(right, (str, datetime)):
        raise Unknown("spans of time")
    whole = isinstance(left, int) and isinstance(right, int)
    if symbol in "+-*":
        return {"+": left + right, "-": left - right, "*": left * right}[symbol]
    if right == 0 or (not whole and (math.isinf(left) or math.isinf(right))):
        with np.errstate(all="ignore"):
            operands = np.float64(left), np.float64(right)
            functions = {"/": np.divide, "//": np.floor_divide, "%": np.remainder}
            return float(functions[symbol](*operands))
    return {"/": lambda: left / right, "//": lambda: left // right, "%": lambda: left % right}[
        symbol
    ]()


def compared_to(symbol: str, left: Any, right: Any, node: Any) -> Any:
    if isinstance(left, list) or isinstance(right, list):
        value, values = (right, left) if isinstance(left, list) else (left, right)
        if any(one is None for one in values):
            raise Unknown("None in a list stands for missing texts, not for missing numbers")
        if any(one is NA for one in values) or (value is NA and not is_constant(node)):
            raise Unknown("missing values among the columns of a list")
        holds = value is not NA and any(equal(value, one) for one in values)
        return holds if symbol in ("in", "==") else not holds
    if isinstance(left, str) or isinstance(right, str) or symbol in ("==", "!="):
        texts = [isinstance(one, str) for one in (left, right)]
        constant = any(isinstance(one, tree.Constant) for one in node.operands)
        if (left is NA or right is NA) and any(texts) and not constant:
            raise Unknown("whether a missing number is no text, or missing")
        if (left is NA or right is NA) and not any(texts):
            if any(one is None or isinstance(one, datetime) for one in (left, right)):
                raise Unknown("whether a missing number is no day, or missing")
            return NA
        if symbol in ("==", "!="):
            return equal(left, right) == (symbol == "==")
    if left is NA or right is NA:
        return NA
    if isinstance(left, datetime) or isinstance(right, datetime):
        left, right = moment(left), moment(right)
    if left is None or right is None or left != left or right != right:
        return False
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[symbol]


def is_constant(node: Any) -> bool:
    """Whether the lists of a comparison hold constants only."""
    lists = [one for one in node.operands if isinstance(one, tree.Items)]
    return all(isinstance(value, tree.Constant) for one in lists for value in one.values)


def equal(left: Any, right: Any) -> bool:
    if left is None or right is None or left is NA or right is NA:
        return False
    if isinstance(left, datetime) or isinstance(right, datetime):
        return moment(left) == moment(right)
    return bool(left == right)


def moment(value: Any) -> Any:
    """A number or text that stands beside a day."""
    if isinstance(value, datetime) or value is None:
        return value
    text = str(value)
    text = f"{text}-01-01" if len(text) == 4 else f"{text}-01" if len(text) == 7 else text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return value  # of a column, and equal to no day


def repeated(values: list[Any], keep: Any) -> list[bool]:
    keys = [
        "missing" if value is None or value is NA or value != value else (value,)
        for value in values
    ]
    counts = Counter(keys)
    kept = {
        key: (len(keys) - 1 - keys[::-1].index(key)) if keep == "last" else keys.index(key)
        for key in counts
    }
    return [counts[key] > 1 and (keep is False or kept[key] != row) for row, key in enumerate(keys)]


# 3. What runs meanwhile.
class Watch:
    """An audit hook: what happens between `with` and its end, besides Python's parser."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._on and not (event == "compile" and arguments[1] == "<unknown>"):
            self._on = False
            if event not in ("sys._getframe", "object.__getattr__"):  # of warnings, of data classes
                self.seen.append(f"{event} {arguments!r}"[:300])
            self._on = True

    def __enter__(self) -> None:
        self._on = True

    def __exit__(self, *_: object) -> None:
        self._on = False


def check(text: str, watch: Watch, counts: Counter[str]) -> None:
    """Raise AssertionError where a text is neither refused nor means what it says."""
    with watch:
        try:
            expression = Expression(text)
            mask = expression.mask(TABLE)
        except ConfigError as error:
            mask, refusal = None, str(error)
    assert not watch.seen, (text, watch.seen)
    if mask is None:
        assert refusal.startswith("dataset.filter: ")
        assert len(refusal) < 2000, refusal
        counts["refused"] += 1
        return
    try:
        expected = Rows().mask(expression._tree)
    except Unknown:
        counts["not compared"] += 1
        return
    assert mask.dtype == np.bool_
    assert mask.tolist() == expected, text
    counts["compared"] += 1


WARMING = (
    r"s == '\x68\N{DIGIT ONE}' and d > '2020' and o.str.contains('a|b') or ~i.duplicated() or "
    "k.str.lower().isin(['a']) and n * 2 > f or t ^ b or s.str.strip() < 'b'"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("error")
    watch, counts = Watch(), Counter[str]()
    codecs.lookup("unicode_escape")  # for what is wrong in a text
    Expression(WARMING).mask(TABLE)  # loads what Python's parser, pandas and pyarrow load late

    @seed(options.seed)
    @settings(
        max_examples=options.count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(every)
    def fuzz(text: str) -> None:
        check(text, watch, counts)

    fuzz()
    assert not Path("CANARY").exists()
    total = ", ".join(f"{counts[name]} {name}" for name in ("compared", "refused", "not compared"))
    print(f"{sum(counts.values())} texts: {total}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
