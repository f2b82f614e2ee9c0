"""Expressions over columns: what `data.filter`, `batch.balance` and `sample` may hold.

    length < 500 and label != "spam"              length + 0.002 * length ** 2
    `image width` >= 224 & (year in [2019, 2020] | source.str.startswith("news"))

Python's parser reads a text, which may be a stranger's. A node that is not on the list is refused,
so the text reaches no name of Python and no method that is not named here. The rest means what it
means to pandas; `and`, `or`, `not`, `in` and comparisons become calls of the functions below.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from penstock.addons.filters.rows import Mask
from penstock.config.messages import nearest
from penstock.errors import ConfigError, DataError, Problem
from penstock.order.columns import column_of
from penstock.order.keys import FloatArray, IntArray
from penstock.order.plan import Costs

if TYPE_CHECKING:
    from penstock.build.data import Split

TOKENS = "tokens"  # of a row, or of its part, that stand in a block
_SMALL = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_LONGEST = 10_000  # characters
_COSTS = (
    *(ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow),
)
_FILTERS = (
    *_COSTS[:-1],  # a power of whole numbers may never end
    *(ast.FloorDiv, ast.Mod, ast.BitXor, ast.Not, ast.Invert, ast.BoolOp, ast.And, ast.Or),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.List, ast.Tuple, ast.Call),
)
_OPERATORS = {
    **{"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"},
    **{"Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "Pow": "pow"},
    **{"FloorDiv": "floordiv", "Mod": "mod", "BitXor": "xor"},
}
_OF_TEXTS = ("contains", "startswith", "endswith", "len", "lower", "upper", "strip")
_METHODS = ("isna", "notna", "abs", "isin", "between", "duplicated", *_OF_TEXTS)
# What arithmetic is for, as pandas' `infer_dtype` names it.
_NUMBERS = (
    *("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty"),
    *("datetime64", "datetime", "date", "timedelta64", "timedelta"),
)
# Quotes are found first, as an & or a backtick inside of them is a part of the text.
_LEXEMES = re.compile(
    r"""'''(?:[^'\\]|\\.|'(?!''))*''' | \"""(?:[^"\\]|\\.|"(?!""))*\"""
      | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | \#[^\n]*
      | `(?P<name>(?:[^`]|``)+)` | & | \|""",
    re.VERBOSE | re.DOTALL,
)


class Expression:
    """An expression over the columns of a table.

    Args:
        text: of columns (in backticks where a name is no identifier), numbers and texts;
            comparisons, `and`, `or`, `not`, `in`, arithmetic, and the methods isna, notna, between,
            isin, abs, duplicated, and of texts (`name.str`) contains, startswith, endswith, len,
            lower, upper and strip.
        key: of the configuration, for messages.
        costs: only columns, numbers, + - * / ** and brackets, all of it in float64.

    Attributes:
        columns: names of those that it reads.

    Raises:
        ConfigError: it is something else.
    """

    def __init__(self, text: str, key: str = "data.filter", costs: bool = False) -> None:
        self.text, self.key, self._costs = text, key, costs
        try:
            tree, quoted = _parsed(text)
            rewrite = _Rewrite(quoted, costs)
            code = ast.fix_missing_locations(ast.Expression(rewrite.visit(tree)))
            self._names, self._code = rewrite.names, compile(code, "<expression>", "eval")
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise self._refused(getattr(error, "msg", str(error) or "it is too deep")) from None
        if costs and not self._names:
            raise self._refused("it names no column, so all rows would cost the same")
        self.columns = tuple(dict.fromkeys(self._names.values()))

    def values(self, columns: Any) -> Any:
        """What it gives for columns by name; raises ConfigError where they do not fit."""
        known = {alias: columns[name] for alias, name in self._names.items()}
        try:
            if self._costs:  # whole numbers would overflow, and `9 ** 9 ** 9` of them never ends
                known = {alias: np.asarray(column, np.float64) for alias, column in known.items()}
            with np.errstate(all="ignore"):
                return eval(self._code, {"__builtins__": {}, **_CALLED}, known)
        except Exception as error:  # whatever numpy and pandas meet in columns and values
            raise self._refused(f"{type(error).__name__}: {error}") from None

    def mask(self, table: Any) -> Mask:
        """Whether it holds for each row of a table of pandas: bool[n].

        Raises:
            ConfigError: the table lacks a column, or one does not fit what is done with it.
        """
        if table is None:
            raise self._refused(
                "the dataset has no table of metadata to filter by (docs/own_dataset.md)"
            )
        known = [*map(str, table.columns)]
        for column in self.columns:
            if column not in known:
                raise self._refused(
                    f"there is no column {column!r}{nearest(column, known)}; there are "
                    f"{', '.join(known)}"
                )
        values = self.values({name: _series(table[name]) for name in self.columns})
        if isinstance(values, (bool, np.bool_)):
            values = pd.Series(values, range(len(table)))
        if not isinstance(values, pd.Series) or values.dtype.kind != "b":
            raise self._refused("it gives no true or false; compare a column with a value")
        return np.asarray(values.fillna(False), np.bool_)

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(Problem(self.key, f"{self.text[:200]!r}: {reason[:600]}"))


def is_expression(text: str) -> bool:
    """Whether a text, which may be a path, can only be an expression."""
    try:
        tree, _ = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "`" in text
    return isinstance(tree, (ast.Compare, ast.BoolOp, ast.Call, ast.UnaryOp))


def _parsed(text: str) -> tuple[ast.expr, dict[str, str]]:
    """Python's tree of a text, and what stood in backticks by the name that it has in there."""
    if len(text) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST} characters")
    names = dict[str, str]()

    def replaced(lexeme: re.Match[str]) -> str:
        if lexeme["name"] is None:
            return {"&": " and ", "|": " or "}.get(lexeme[0], lexeme[0])
        name = f"quoted_{len(names)}_"
        names[name] = lexeme["name"].replace("``", "`")
        return f" {name} "

    with warnings.catch_warnings(action="ignore"):  # of "\." in a text
        return ast.parse(_LEXEMES.sub(replaced, text).strip(), mode="eval").body, names


class _Rewrite(ast.NodeTransformer):
    """Refuses nodes that are not on the list, and makes calls of those that pandas has not.

    Columns are renamed, so that none has the name of a function that is called.
    """

    def __init__(self, quoted: dict[str, str], costs: bool) -> None:
        self.names = dict[str, str]()  # a column by the name that it has in the code
        self._quoted, self._costs = quoted, costs

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _COSTS if self._costs else _FILTERS):
            allowed = "; allowed are columns, numbers, + - * / ** and brackets" * self._costs
            what = ast.unparse(node)[:100] or type(node).__name__
            raise ValueError(f"{what!r} is not allowed{allowed}")
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        self.names[f"c_{node.id}"] = self._quoted.get(node.id, node.id)
        return ast.Name(f"c_{node.id}", ast.Load())

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        allowed = (int, float) if self._costs else (int, float, bool, str, type(None))
        if type(node.value) not in allowed:
            raise ValueError(f"{node.value!r} is no number")
        return ast.Constant(float(node.value)) if self._costs else node  # type: ignore[arg-type]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        kind = ast.Constant(type(self.visit(node.op)).__name__)
        return _call("arithmetic", kind, self.visit(node.left), self.visit(node.right))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return _call(type(node.op).__name__, *map(self.visit, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return _call(type(self.visit(node.op)).__name__, self.visit(node.operand))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        kinds = [ast.Constant(type(self.visit(one)).__name__) for one in node.ops]
        pairs = pairwise(map(self.visit, [node.left, *node.comparators]))
        parts = [_call("compared", kind, *pair) for kind, pair in zip(kinds, pairs, strict=True)]
        return _call("And", *parts)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        method, owner = getattr(node.func, "attr", None), getattr(node.func, "value", None)
        if method not in _METHODS:
            what, allowed = ast.unparse(node.func)[:100], ", ".join(_METHODS)
            raise ValueError(f"{what!r} may not be called; allowed: {allowed}")
        if (getattr(owner, "attr", None) == "str") != (method in _OF_TEXTS):
            raise ValueError(f"{method}: write e.g. title.str.len(), and title.isna()")
        column: Any = getattr(owner, "value", None) if method in _OF_TEXTS else owner
        arguments = map(self.visit, [column, *node.args])
        keywords = [ast.keyword(one.arg, self.visit(one.value)) for one in node.keywords]
        return _call("method", ast.Constant(method), *arguments, keywords=keywords)


def _call(name: str, *arguments: ast.expr, keywords: Sequence[ast.keyword] = ()) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*arguments], [*keywords])


def _series(column: Any) -> Any:
    """A column numbered from 0, whole numbers of it with 64 bits."""
    series = pd.Series(column.array if hasattr(column, "array") else np.asarray(column))
    if series.dtype == object and pd.api.types.infer_dtype(series, skipna=True) == "boolean":
        return series.astype("boolean")
    # 8 bits would overflow in `width * height > 50000`; all of a uint64 needs them.
    return series.astype(np.int64) if str(series.dtype) in _SMALL else series


def _truth(value: Any) -> Any:
    """A truth value, or one per row; beside `and`, pandas would combine the bits of a number."""
    if isinstance(value, (bool, np.bool_)):
        return np.bool_(value)  # ~True is -2
    if not isinstance(value, pd.Series) or value.dtype.kind != "b":
        raise ValueError("`and`, `or` and `not` join comparisons; write e.g. length > 0")
    return value


def _compared(kind: str, left: Any, right: Any) -> Any:
    """A comparison; with a list, whether a column has one of its values."""
    if "In" in kind or isinstance(right, list | tuple):
        if kind not in ("In", "NotIn", "Eq", "NotEq"):
            raise ValueError("a list stands beside `in` or ==, with a column on the other side")
        matches = _method("isin", left, [right] if isinstance(right, str) else right)
        return ~matches if "Not" in kind else matches
    _check_days(left, [right])
    _check_days(right, [left])
    return getattr(operator, _OPERATORS[kind])(left, right)


def _arithmetic(kind: str, left: Any, right: Any) -> Any:
    for side in (left, right):
        holds = pd.api.types.infer_dtype(side if getattr(side, "ndim", 0) else [side])
        # A text times 9999999999 fills the memory, also where a column or a list holds it.
        if holds not in _NUMBERS:
            raise ValueError(f"arithmetic is for numbers and days, not for {holds} values")
    return getattr(operator, _OPERATORS[kind])(left, right)


def _method(name: str, column: Any, *arguments: Any, **keywords: Any) -> Any:
    if not isinstance(column, pd.Series):
        raise ValueError(f"{name} is a method of columns")
    values = arguments[0] if name == "isin" else arguments
    if not isinstance(values, list | tuple) or (name == "isin" and any(map(np.ndim, values))):
        raise ValueError("`in` and isin take a list, as in label in ['ham', 'spam']")
    _check_days(column, values)
    if name == "isin" and column.dtype.kind == "M":  # pandas finds no text among days
        return column.isin(pd.DatetimeIndex(values, tz=column.dt.tz))
    return getattr(column.str if name in _OF_TEXTS else column, name)(*arguments, **keywords)


def _check_days(column: Any, values: Any) -> None:
    """pandas also takes "now" and "10:30" for days, which mean something else each day."""
    if isinstance(column, pd.Series) and column.dtype.kind == "M":
        for value in values:
            if isinstance(value, int | float) or (
                isinstance(value, str) and not re.match(r"\d{4}", value)
            ):
                raise ValueError(f"a day is written as '2026-01-31', not {value!r}")


_CALLED = {
    "And": lambda *values: reduce(operator.and_, map(_truth, values)),
    "Or": lambda *values: reduce(operator.or_, map(_truth, values)),
    "Not": lambda value: ~_truth(value),
    "Invert": lambda value: ~_truth(value),
    "UAdd": operator.pos,
    "USub": operator.neg,
    "arithmetic": _arithmetic,
    "compared": _compared,
    "method": _method,
}


class RowCosts:
    """Costs of a dataset's rows, computed once: 8 bytes a row.

    Args:
        cost: arithmetic over columns.
        columns: of the dataset, one value a row.

    Raises:
        ConfigError: a column does not hold numbers.
        DataError: a cost is negative, infinite or no number.
    """

    def __init__(self, cost: Expression, columns: Mapping[str, Any]) -> None:
        self._costs = np.asarray(cost.values(columns))
        wrong = np.flatnonzero(~(np.isfinite(self._costs) & (self._costs >= 0)))
        if wrong.size:
            row = wrong[0]
            values = ", ".join(f"{name} {columns[name][row]}" for name in cost.columns)
            raise DataError(
                f"row {row} costs {self._costs[row]} by {cost.key}={cost.text!r} "
                f"({values}); costs are 0 or more"
            )

    def __call__(self, indices: IntArray, parts: IntArray | None = None) -> FloatArray:
        return self._costs[indices]


class PartCosts:
    """Costs of rows in blocks, from the number of tokens that each has there.

    Args:
        cost: of a row, or of its part; it reads `tokens` only.
    """

    def __init__(self, cost: Expression) -> None:
        self._cost = cost

    def __call__(self, indices: IntArray, parts: IntArray | None) -> FloatArray:
        assert parts is not None
        lengths = {TOKENS: parts[:, 1] - parts[:, 0]}
        return np.nan_to_num(np.maximum(self._cost.values(lengths), 0.0))


def costs_of(split: Split) -> Costs:
    """The costs of a map-style dataset's rows by `batch.balance`.

    A text's `length` is the number of tokens that the split's steps make, as samplers have it.
    Where the sampler packs rows into blocks, `tokens` is all that is known.

    Raises:
        ConfigError, DataError: the table lacks a column, or what is in it is no cost.
    """
    cost = Expression(split.config.batch.balance or "", "batch.balance", costs=True)
    if not split.packs:
        from penstock.addons.tokens.lengths import table_in_tokens  # of no use to a filter

        steps = split.transform.steps
        table = table_in_tokens({*cost.columns}, split.dataset, split.data.fields, steps)
        columns = {name: column_of(table, name, "balance", "batch") for name in cost.columns}
        return RowCosts(cost, columns)
    if others := [name for name in cost.columns if name != TOKENS]:
        raise ConfigError(
            Problem(
                "batch.balance",
                f"{others[0]!r}, but the sampler packs rows into blocks, of which only the number "
                f"of each row's {TOKENS} is known; write e.g. {TOKENS} ** 2",
            )
        )
    return PartCosts(cost)
