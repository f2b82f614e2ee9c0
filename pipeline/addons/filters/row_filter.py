"""Expressions over a dataset's table, which say which of its rows a run uses.

    length < 500 and label != "spam"
    `image width` >= 224 & (year in [2019, 2020] | source.str.startswith("news"))

expressions.py says what they may hold, evaluation.py what they mean. A table is
evaluated in slices of rows, so what is computed on the way needs memory for a slice only.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.filters.evaluation import as_mask, as_values, evaluate
from penstock.addons.filters.expressions import Call, Column, Node, compares, nodes, read
from penstock.errors import ConfigError, Problem

Mask = npt.NDArray[np.bool_]

_LONGEST = 10_000  # characters of an expression
_AT_ONCE = 1 << 16  # rows of a slice


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
        try:
            self._tree = read(text, _LONGEST)
        except ValueError as error:
            raise self._refused(str(error)) from None
        every = list(nodes(self._tree))
        self.columns = tuple(sorted({node.name for node in every if isinstance(node, Column)}))
        # Those of others before them: nodes come after what is below them.
        self._of_all_rows = [
            node for node in every if isinstance(node, Call) and node.name == "duplicated"
        ]
        self.by_row = not self._of_all_rows

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
            raise self._refused(
                "the dataset has no table of metadata to filter by (docs/own_dataset.md)"
            )
        self.check(list(table.columns))
        columns = {name: table[name] for name in self.columns}
        length = len(table)
        mask = np.empty(length, np.bool_)
        try:
            with np.errstate(all="ignore"):
                known: dict[Node, Mask] = {}
                for node in self._of_all_rows:
                    known[node] = _duplicated(node, columns, known, length)
                for rows in _slices(length):
                    values = _rows_of(columns, known, rows)
                    mask[rows] = as_mask(evaluate(self._tree, values), rows.stop - rows.start)
        except Exception as error:  # whatever numpy and pandas meet in comparing columns and values
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise self._refused(reason) from None
        return mask

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(Problem(self.key, f"{_cut(self.text, 200)!r}: {_cut(reason, 600)}"))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def _slices(length: int) -> list[slice]:
    return [slice(start, min(start + _AT_ONCE, length)) for start in range(0, length, _AT_ONCE)]


def _rows_of(columns: Mapping[str, Any], known: Mapping[Node, Mask], rows: slice) -> dict[Any, Any]:
    values: dict[Any, Any] = {
        name: as_values(column.iloc[rows] if hasattr(column, "iloc") else column[rows])
        for name, column in columns.items()
    }
    return values | {node: mask[rows] for node, mask in known.items()}


def _duplicated(
    node: Call, columns: Mapping[str, Any], known: Mapping[Node, Mask], length: int
) -> Mask:
    """Whether the value that `node` is of stands in another row as well: bool[n]."""
    import pandas as pd

    parts = []
    for rows in _slices(length):
        values = evaluate(node.of, _rows_of(columns, known, rows))
        if not np.shape(values):
            raise ValueError(f"duplicated is of a column, and {values!r} is none")
        parts.append(pd.Series(values, copy=False))
    every = pd.concat(parts, ignore_index=True) if parts else pd.Series([], dtype=object)
    return np.asarray(every.duplicated(**node.arguments))


def matching(table: object, expression: str, key: str = "dataset.filter") -> Mask:
    """Whether `expression` holds for each row of a pandas table: bool[n]; see `Expression`."""
    return Expression(expression, key).mask(table)


def is_expression(text: str) -> bool:
    """Whether a text, which may be a path, can only be an expression."""
    return compares(text, _LONGEST)


def no_column(name: str, columns: Sequence[str]) -> str:
    """The message for a column that is not there."""
    near = difflib.get_close_matches(name, list(map(str, columns)), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"there is no column {name!r}{hint}; there are {', '.join(map(str, columns))}"
