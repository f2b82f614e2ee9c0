"""Which rows of a dataset a run uses: expressions over its table, and the dataset that is left.

    length < 500 and label != "spam"
    `image width` >= 224 & (year in [2019, 2020] | source.str.startswith("news"))

An expression comes from a configuration, which may be a stranger's, and pandas would call any
method of any value in it. So it is parsed here, and only what `_ALLOWED` lists is let through.
Cost: pandas' own, once; afterwards a bit a row (order/selection.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.order.selection import Selection

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


def matching(table: Any, expression: str, key: str = "dataset.filter") -> Mask:
    """Whether `expression` holds for each row of a pandas table: bool[n].

    Args:
        expression: of columns (in backticks where a name is no identifier), numbers and texts;
            comparisons, `and`, `or`, `not`, `in`, arithmetic, and the methods isna, notna, between,
            isin, abs, duplicated, and of texts (`name.str`) contains, startswith, endswith, len,
            lower, upper and strip.

    Raises:
        ConfigError: it is something else, names no column, or does not fit a column's type.
    """
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return names.setdefault(found[1], f"column_{len(names)}_")

    def refused(reason: str) -> ConfigError:
        return ConfigError(Problem(key, f"{expression!r}: {reason}"))

    if len(expression) > _LONGEST:
        raise refused(f"it is longer than {_LONGEST} characters")
    if table is None:
        raise refused("the dataset has no table of metadata to filter by (docs/own_dataset.md)")
    text = _QUOTED.sub(renamed, expression)
    try:
        tree = ast.parse(text.strip(), mode="eval")
        used = _names(tree)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise refused(str(getattr(error, "msg", None) or error)) from None
    back = {new: old for old, new in names.items()}
    wanted = {name: back.get(name, name) for name in used}
    for column in wanted.values():
        if column not in table.columns:
            raise refused(f"there is no column {column!r}; there are {', '.join(table.columns)}")
    import pandas as pd

    columns = pd.DataFrame({name: table[column] for name, column in wanted.items()})
    try:
        found: Any = columns.eval(text, engine="python", local_dict={}, global_dict={})
    except Exception as error:  # whatever pandas meets in comparing columns with values
        raise refused(f"{type(error).__name__}: {error}") from None
    if isinstance(found, (bool, np.bool_)):
        found = np.full(len(table), bool(found))
    values = np.asarray(found)
    if values.dtype != np.bool_ and pd.api.types.is_bool_dtype(found):
        values = found.fillna(False).to_numpy(np.bool_)
    if values.dtype != np.bool_ or values.shape != (len(table),):
        raise refused("it gives no true or false for each row; compare a column with a value")
    return values


def first_of_each(table: Any, column: str, key: str = "dataset.unique") -> Mask:
    """Whether a row is the first with its value in `column`: bool[n]; raises ConfigError."""
    if table is None or column not in table.columns:
        known = "no table" if table is None else ", ".join(table.columns)
        raise ConfigError(Problem(key, f"there is no column {column!r}; there are {known}"))
    return ~np.asarray(table[column].duplicated(keep="first"))


def all_but(length: int, rows: Iterable[int], key: str = "dataset.without") -> Mask:
    """False for `rows`, True for the others: bool[length].

    Raises:
        ConfigError: a row does not exist.
    """
    mask = np.ones(length, np.bool_)
    for row in rows:
        if type(row) is not int or not 0 <= row < length:
            raise ConfigError(Problem(key, f"row {row!r} does not exist; there are {length} rows"))
        mask[row] = False
    return mask


class KeptRows:
    """The rows of a map-style dataset that a selection keeps, numbered anew from 0.

    Everything else that the dataset has (`classes`, `facts`, `columns` ...) is the dataset's own.

    Args:
        dataset: with `len()` and rows by index.
        selection: of its rows.
        reasons: how many rows were left out, by why.

    Raises:
        DataError: nothing is left.
    """

    def __init__(self, dataset: Any, selection: Selection, reasons: Mapping[str, int]) -> None:
        if not selection.count:
            why = ", ".join(f"{count} by {reason}" for reason, count in reasons.items() if count)
            raise DataError(f"none of {selection.length} samples is left: {why}")
        self.dataset, self.selection, self.reasons = dataset, selection, dict(reasons)

    def __len__(self) -> int:
        return self.selection.count

    def row(self, index: int) -> int:
        """The row of the dataset that has number `index` here."""
        return int(self.selection.select([index])[0])

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.row(index)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # copy and pickle look before there is one
            raise AttributeError(name)
        found = getattr(self.dataset, name)
        return self._for_rows(name, found) if name in _BY_ROW and callable(found) else found

    def _for_rows(self, name: str, function: Any) -> Any:
        return lambda index: function(self.row(index))

    @property
    def metadata(self) -> Any:
        """The rows of the dataset's table that are kept, numbered anew."""
        table = self.dataset.metadata
        kept = self.selection.select(np.arange(self.selection.count))
        return table.iloc[kept].reset_index(drop=True)

    @property
    def fingerprint(self) -> str:
        """The dataset's, and which rows of it are kept."""
        return f"{self.dataset.fingerprint} kept={self.selection.fingerprint}"

    def names_fingerprint(self) -> str:
        return f"{self.dataset.names_fingerprint()} kept={self.selection.fingerprint}"


class KeptRowsAtOnce(KeptRows):
    """The same of a dataset that reads many rows at once."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.dataset.__getitems__(self.selection.select(indices).tolist())


def kept_rows(dataset: Any, selection: Selection, reasons: Mapping[str, int]) -> KeptRows:
    """The rows of `dataset` that are kept; see `KeptRows`."""
    many = hasattr(dataset, "__getitems__")
    return (KeptRowsAtOnce if many else KeptRows)(dataset, selection, reasons)


_BY_ROW = frozenset({"path", "check"})


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
