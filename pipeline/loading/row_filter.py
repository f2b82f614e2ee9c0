"""Expressions over a dataset's table, which say which of its rows a run uses.

    length < 500 and label != "spam"
    `image width` >= 224 & (year in [2019, 2020] | source.str.startswith("news"))

An expression comes from a configuration, which may be a stranger's, and pandas would call any
method of any value in it. So it is parsed here, and only what `_ALLOWED` lists is let through.
Cost: pandas' own.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, Problem

Mask = npt.NDArray[np.bool_]

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Invert, ast.USub,
    ast.BinOp, ast.BitAnd, ast.BitOr, ast.BitXor, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv,
    ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn,
    ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip
_METHODS = frozenset({"isna", "notna", "between", "isin", "abs", "duplicated"})
_OF_TEXT = frozenset({"contains", "startswith", "endswith", "len", "lower", "upper", "strip"})
_QUOTED = re.compile(r"`([^`]+)`")
_LONGEST = 10_000  # characters of an expression


class Expression:
    """An expression that is true or false for each row of a table.

    Args:
        text: of columns (in backticks where a name is no identifier), numbers and texts;
            comparisons, `and`, `or`, `not`, `in`, arithmetic, and the methods isna, notna, between,
            isin, abs, duplicated, and of texts (`name.str`) contains, startswith, endswith, len,
            lower, upper and strip.
        key: of the configuration, for messages.

    Attributes:
        columns: names of those that it reads.
        by_row: whether a row's value depends on no other row.

    Raises:
        ConfigError: it is something else.
    """

    def __init__(self, text: str, key: str = "dataset.filter") -> None:
        self.text, self.key = text, key
        names: dict[str, str] = {}

        def renamed(found: re.Match[str]) -> str:
            return names.setdefault(found[1], f"column_{len(names)}_")

        if len(text) > _LONGEST:
            raise self._refused(f"it is longer than {_LONGEST} characters")
        self._text = _QUOTED.sub(renamed, text)
        try:
            tree = ast.parse(self._text.strip(), mode="eval")
            used = _names(tree)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise self._refused(str(getattr(error, "msg", None) or error)) from None
        back = {new: old for old, new in names.items()}
        self._wanted = {name: back.get(name, name) for name in sorted(used)}
        self.columns = tuple(self._wanted.values())
        self.by_row = "duplicated" not in self._text

    def check(self, columns: Sequence[str]) -> None:
        """Raise ConfigError for a column that is not among `columns`."""
        for column in self.columns:
            if column not in columns:
                raise self._refused(no_column(column, columns))

    def mask(self, table: Any) -> Mask:
        """Whether it holds for each row of a pandas table: bool[n].

        Raises:
            ConfigError: the table lacks a column, or one does not fit what is done with it.
        """
        if table is None:
            raise self._refused("the dataset has no table of metadata to filter by "
                                "(docs/own_dataset.md)")  # fmt: skip
        self.check(list(table.columns))
        import pandas as pd

        columns = pd.DataFrame({name: table[column] for name, column in self._wanted.items()})
        try:
            found: Any = columns.eval(self._text, engine="python", local_dict={}, global_dict={})
        except Exception as error:  # whatever pandas meets in comparing columns with values
            raise self._refused(f"{type(error).__name__}: {error}") from None
        if isinstance(found, (bool, np.bool_)):
            found = np.full(len(table), bool(found))
        values = np.asarray(found)
        if values.dtype != np.bool_ and pd.api.types.is_bool_dtype(found):
            values = found.fillna(False).to_numpy(np.bool_)
        if values.dtype != np.bool_ or values.shape != (len(table),):
            raise self._refused("it gives no true or false for each row; compare a column with a "
                                "value")  # fmt: skip
        return values

    def _refused(self, reason: str) -> ConfigError:
        text = self.text if len(self.text) <= 200 else f"{self.text[:200]}..."
        return ConfigError(Problem(self.key, f"{text!r}: {reason}"))


def matching(table: Any, expression: str, key: str = "dataset.filter") -> Mask:
    """Whether `expression` holds for each row of a pandas table: bool[n]; see `Expression`."""
    return Expression(expression, key).mask(table)


def no_column(name: str, columns: Sequence[str]) -> str:
    """The message for a column that is not there."""
    near = difflib.get_close_matches(name, columns, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no column {name!r}{hint}; there are {', '.join(columns)}"


def _names(tree: ast.AST) -> set[str]:
    """The columns that an expression names; raises ValueError for what it may not hold."""
    names: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call):
            left += [_caller(node), *_plain(node)]
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, _ALLOWED):
            left += ast.iter_child_nodes(node)
        else:
            text = ast.unparse(node)
            raise ValueError(f"{text!r} is not allowed in a filter")
    return names


def _caller(node: ast.Call) -> ast.AST:
    """What the method of a call is of."""
    function = node.func
    if isinstance(function, ast.Attribute):
        of = function.value
        if isinstance(of, ast.Attribute) and of.attr == "str" and function.attr in _OF_TEXT:
            return of.value
        if function.attr in _METHODS:
            return of
    known = ", ".join(sorted(_METHODS) + [f"str.{name}" for name in sorted(_OF_TEXT)])
    raise ValueError(f"{ast.unparse(function)!r} may not be called; allowed: {known}")


def _plain(node: ast.Call) -> Sequence[ast.AST]:
    """The arguments of a call: plain values."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    for value in given:
        for inner in ast.walk(value):
            if not isinstance(inner, (ast.Constant, ast.List, ast.Tuple, ast.Load, ast.UnaryOp,
                                      ast.USub)):  # fmt: skip
                raise ValueError(f"{ast.unparse(value)!r} is no plain value")
    return given
