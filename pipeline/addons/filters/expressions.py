"""Expressions over columns: what `data.filter`, `batch.balance` and `sample` may hold.

    length < 500 and label != "spam"              length + 0.002 * length ** 2
    `image width` >= 224 & (year in [2019, 2020] | source.str.startswith("news"))

Python's own parser reads a text, which may be a stranger's. What is not on the list below is
refused, so that no name of Python and no method of an object is reached. The rest means what it
means to pandas: `and`, `or`, `not` and `in` become `&`, `|`, `~` and `isin` of columns.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem

Mask = npt.NDArray[np.bool_]

_LONGEST = 10_000  # characters
_Nodes = tuple[type[ast.AST], ...]
_ARITHMETIC: _Nodes = (
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
)
_ARITHMETIC += (ast.UnaryOp, ast.UAdd, ast.USub)
_COSTS: _Nodes = (*_ARITHMETIC, ast.Pow)
_FILTERS: _Nodes = (
    *_ARITHMETIC,
    ast.FloorDiv,
    ast.Mod,
    ast.BitXor,
    ast.unaryop,
    ast.Compare,
    ast.cmpop,
)
_FILTERS += (ast.BoolOp, ast.boolop, ast.List, ast.Tuple, ast.Call, ast.Attribute, ast.keyword)
_OF_TEXTS = ("contains", "startswith", "endswith", "len", "lower", "upper", "strip")
_METHODS = ("isna", "notna", "abs", "isin", "between", "duplicated", *_OF_TEXTS)
# What a text is divided into where that matters; all else is left to Python's parser.
_LEXEMES = re.compile(
    r"""'''(?:[^'\\]|\\.|'(?!''))*''' | \"""(?:[^"\\]|\\.|"(?!""))*\"""
      | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | \#[^\n]*
      | `(?P<name>(?:[^`]|``)+)` | (?P<and>&) | (?P<or>\|)""",
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
        self.text, self.key = text, key
        try:
            tree, quoted = _parsed(text)
            _check(tree, quoted, costs)
            names = dict[str, str]()  # a column by the name that it has in the code
            for node in ast.walk(tree):
                if isinstance(node, ast.Name):
                    names[f"c_{node.id}"] = quoted.get(node.id, node.id)
                    node.id = f"c_{node.id}"
            self._days = {
                (names[name], day) for node in ast.walk(tree) for name, day in _beside_texts(node)
            }
            self._truths = {names[node.id] for node in _truths(tree) if isinstance(node, ast.Name)}
            code = ast.fix_missing_locations(ast.Expression(_ForPandas().visit(tree)))
            self._names, self._code = names, compile(code, "<expression>", "eval")
        except (RecursionError, MemoryError):
            raise self._refused("it is too deep") from None
        except (SyntaxError, ValueError, OverflowError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise self._refused(reason) from None
        self.columns = tuple(dict.fromkeys(names.values()))

    def check(self, columns: Sequence[str]) -> None:
        """Raise ConfigError for a column that is not among `columns`."""
        for column in self.columns:
            if column not in columns:
                raise self._refused(no_column(column, columns))

    def values(self, columns: Any) -> Any:
        """What it gives for columns by name; raises ConfigError where they do not fit."""
        given = {alias: columns[name] for alias, name in self._names.items()}
        try:
            with np.errstate(all="ignore"):
                return eval(self._code, {"__builtins__": {}, "_isin": _isin}, given)
        except Exception as error:  # whatever numpy and pandas meet in columns and values
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise self._refused(reason) from None

    def mask(self, table: Any) -> Mask:
        """Whether it holds for each row of a table, pandas' or of columns by name: bool[n].

        Raises:
            ConfigError: the table lacks a column, or one does not fit what is done with it.
        """
        if table is None:
            raise self._refused(
                "the dataset has no table of metadata to filter by (docs/own_dataset.md)"
            )
        import pandas as pd

        self.check(columns_of_table(table))
        columns = {name: _series(table[name]) for name in self.columns}
        for name, day in self._days:
            # pandas also takes "now" and "10:30", which mean something else each day.
            if columns[name].dtype.kind == "M" and not re.match(r"\d{4}", day):
                raise self._refused(f"a day is written as '2026-01-31', not {day!r}")
        for name in self._truths:
            if columns[name].dtype.kind in "iuf":
                raise self._refused(f"{name!r} is a number and no comparison; write {name} > 0")
        values = self.values(columns)
        length = len(table) if hasattr(table, "iloc") else len(next(iter(table.values())))
        if isinstance(values, (bool, np.bool_)):
            return np.full(length, bool(values))
        if np.shape(values) == (length,):
            series = pd.Series(values)
            if series.dtype.kind == "b":
                return np.asarray(series.fillna(False), np.bool_)
        raise self._refused("it gives no true or false for each row; compare a column with a value")

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(Problem(self.key, f"{self.text[:200]!r}: {reason[:600]}"))


def matching(table: object, expression: str, key: str = "data.filter") -> Mask:
    """Whether `expression` holds for each row of a pandas table: bool[n]; see `Expression`."""
    return Expression(expression, key).mask(table)


def is_expression(text: str) -> bool:
    """Whether a text, which may be a path, can only be an expression."""
    try:
        tree, _ = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "`" in text
    return isinstance(tree, (ast.Compare, ast.BoolOp, ast.Call, ast.UnaryOp))


def columns_of_table(table: Any) -> list[str]:
    """Names of the columns of a table, or of columns by name."""
    return [str(name) for name in getattr(table, "columns", table)]


def no_column(name: object, known: Sequence[str]) -> str:
    """A message about a column that is not there."""
    return f"there is no column {name!r}{nearest(str(name), known)}; there are {', '.join(known)}"


def _series(column: Any) -> Any:
    """A column numbered from 0, whole numbers of it with 64 bits."""
    import pandas as pd

    series = pd.Series(column.array if hasattr(column, "array") else np.asarray(column))
    if series.dtype == object and pd.api.types.infer_dtype(series, skipna=True) == "boolean":
        return series.astype("boolean")
    small = isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu"
    return series.astype(np.int64) if small and series.dtype != np.uint64 else series


def _isin(series: Any, values: Any) -> Any:
    """What `isin` gives; texts beside days are days."""
    if series.dtype.kind == "M":
        import pandas as pd

        values = pd.DatetimeIndex(values, tz=series.dt.tz)
    return series.isin(values)


def _parsed(text: str) -> tuple[ast.expr, dict[str, str]]:
    """Python's tree of a text, and what stood in backticks by the name that it has in there."""
    if len(text) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST} characters")
    prefix, names = "quoted_", dict[str, str]()
    while prefix in text:
        prefix += "_"

    def replaced(lexeme: re.Match[str]) -> str:
        if lexeme["and"] or lexeme["or"]:
            return " and " if lexeme["and"] else " or "
        if lexeme["name"] is None:
            return lexeme[0]
        name = f"{prefix}{len(names)}_"
        names[name] = lexeme["name"].replace("``", "`")
        return f" {name} "

    with warnings.catch_warnings():  # of "\." in a text
        warnings.simplefilter("ignore")
        return ast.parse(_LEXEMES.sub(replaced, text).strip(), mode="eval").body, names


def _check(tree: ast.expr, quoted: dict[str, str], costs: bool) -> None:
    """Raise ValueError for a node that is not on the list."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if costs and not isinstance(node, _COSTS):
            raise ValueError("allowed are columns, numbers, + - * / ** and brackets")
        shown = ast.unparse(node)[:100]
        for name, column in quoted.items():
            shown = shown.replace(name, f"`{column}`")
        if isinstance(node, (ast.Is, ast.IsNot)):
            raise ValueError("`is` is not allowed in an expression; write == or isna()")
        if isinstance(node, ast.Call):
            of = node.func
            if not isinstance(of, ast.Attribute) or of.attr not in _METHODS:
                allowed = ", ".join(_METHODS)
                shown = ast.unparse(of)[:100]
                raise ValueError(f"{shown!r} may not be called; allowed: {allowed}")
            of_text = isinstance(of.value, ast.Attribute) and of.value.attr == "str"
            if of_text != (of.attr in _OF_TEXTS):
                raise ValueError(f"{shown!r}: write e.g. title.str.len(), and title.isna()")
        elif isinstance(node, ast.Attribute):
            if id(node) not in called and node.attr != "str":
                raise ValueError(f"{shown!r} is not allowed in an expression")
        elif isinstance(node, ast.Constant):
            if costs:
                if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
                    raise ValueError(f"{node.value!r} is no number")
                node.value = float(node.value)
            if node.value is not None and type(node.value) not in (bool, int, float, str):
                raise ValueError(f"{shown!r} is no number and no text")
        elif isinstance(node, ast.BinOp):
            for side in (node.left, node.right):  # no `label + "x"`, no `"x" * 9`
                if _is_text(side) or isinstance(side, (ast.List, ast.Tuple)):
                    raise ValueError(f"{ast.unparse(side)[:100]} is no number")
        elif isinstance(node, (ast.List, ast.Tuple)):
            for item in node.elts:
                if not isinstance(getattr(item, "operand", item), ast.Constant):
                    raise ValueError(f"{ast.unparse(item)[:100]!r} is no plain value")
        elif not costs and not isinstance(node, _FILTERS):
            raise ValueError(f"{shown!r} is not allowed in an expression")


def _beside_texts(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each column that a node compares with a text, and the text."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        operands = [node.func.value, *node.args, *(argument.value for argument in node.keywords)]
    else:
        return
    items = [item for one in operands for item in getattr(one, "elts", [one])]
    texts = [item.value for item in items if isinstance(item, ast.Constant)]
    for item in items:
        if isinstance(item, ast.Name):
            for text in texts:
                if isinstance(text, str):
                    yield item.id, text
                elif isinstance(text, (int, float)) and not isinstance(text, bool):  # no day
                    yield item.id, f"the number {text}"


def _truths(tree: ast.expr) -> Iterator[ast.expr]:
    """Operands of `and`, `or`, `not` and ~; raises ValueError for those that are no comparison."""
    for node in ast.walk(tree):
        operands = node.values if isinstance(node, ast.BoolOp) else []
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
            operands = [node.operand]
        for operand in operands:
            number = isinstance(operand, ast.Constant) and not isinstance(operand.value, bool)
            if number or (
                isinstance(operand, ast.BinOp) and not isinstance(operand.op, ast.BitXor)
            ):
                raise ValueError(
                    f"{ast.unparse(operand)[:100]!r} is no comparison; give each one brackets"
                )
        yield from operands


class _ForPandas(ast.NodeTransformer):
    """Writes `and`, `or`, `not`, `in` and chained comparisons as pandas has them."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        return _joined(operator, node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.UnaryOp(ast.Invert(), node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        of = node.func
        if isinstance(of, ast.Attribute) and of.attr == "isin":
            return ast.Call(ast.Name("_isin", ast.Load()), [of.value, *node.args], node.keywords)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        parts = list[ast.expr]()
        for operator, (left, right) in zip(
            node.ops, pairwise([node.left, *node.comparators]), strict=True
        ):
            listed = isinstance(operator, (ast.In, ast.NotIn))
            if isinstance(left, (ast.List, ast.Tuple)) or (listed and _is_text(left)):
                left, right = right, left
            if not listed and not isinstance(right, (ast.List, ast.Tuple)):
                parts.append(ast.Compare(left, [operator], [right]))
                continue
            if isinstance(left, (ast.List, ast.Tuple)) or not isinstance(
                operator, (ast.In, ast.NotIn, ast.Eq, ast.NotEq)
            ):
                raise ValueError("a list stands beside `in` or ==, with a column on the other side")
            if _is_text(right):
                right = ast.List([right], ast.Load())
            if not isinstance(right, (ast.List, ast.Tuple)):
                raise ValueError("`in` needs a list: label in ['ham', 'spam']")
            found = ast.Call(ast.Name("_isin", ast.Load()), [left, right], [])
            negative = isinstance(operator, (ast.NotIn, ast.NotEq))
            parts.append(ast.UnaryOp(ast.Invert(), found) if negative else found)
        return _joined(ast.BitAnd(), parts)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _joined(operator: ast.operator, parts: Sequence[ast.expr]) -> ast.expr:
    made = parts[0]
    for part in parts[1:]:
        made = ast.BinOp(made, operator, part)
    return made
