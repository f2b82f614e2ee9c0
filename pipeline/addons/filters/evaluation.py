"""Evaluates expressions for rows: walks their trees (expressions.py) over columns.

Numbers and booleans are arrays, and follow numpy; what numpy has no type for (texts, categories,
days, columns with missing values of their own) is a pandas Series, and follows pandas. Whole
numbers are of 64 bits in arithmetic, and what does not fit is refused. Days are read as ISO 8601
has them: pandas would also take `now`, and 10:30 for that of today.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.filters.expressions import (
    Call,
    Column,
    Comparison,
    Constant,
    Items,
    Joined,
    Node,
    Not,
    Operation,
)

Columns = Mapping[Any, Any]

_FLOAT = np.dtype(np.float64)
_WORD = 1 << 63  # whole numbers are below it
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": np.power,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "^": operator.xor,
}
_MOMENT = re.compile(
    r"\d{4}(-\d\d(-\d\d([ T]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d:?\d\d)?)?)?)?|\d{8}",
    re.ASCII,
)


def evaluate(tree: Node, columns: Columns) -> Any:
    """The values of a tree for some rows.

    Args:
        columns: by name, as `as_values` makes them; and by node what each `duplicated` gives,
            which depends on all rows.

    Returns:
        A value for each row: an array of booleans or numbers, or a pandas Series of what numpy has
        no type for; or one value for all.

    Raises:
        ValueError, TypeError ...: the columns do not fit what is done with them.
    """
    return _EVALUATE[type(tree)](tree, columns)


def as_values(column: Any) -> Any:
    """A column, or a result, as `evaluate` has them."""
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
        import pandas as pd

        if isinstance(column, pd.Series):  # rows of another index would be matched by it
            column = pd.Series(column.array, dtype=column.dtype, copy=False)
        else:
            column = pd.Series(column, copy=False)
        if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "biuf":
            return column
    return np.asarray(column)


def as_mask(values: Any, length: int) -> npt.NDArray[np.bool_]:
    """Whether each of `length` rows holds, by what `evaluate` gave: bool[length].

    Raises:
        ValueError: it gave no true or false for each row.
    """
    if isinstance(values, (bool, np.bool_)):
        return np.full(length, bool(values))
    with suppress(ValueError):
        values = _truth(values)
        if _is_series(values):
            values = values.fillna(False).to_numpy(np.bool_)
        if values.shape == (length,):
            return np.asarray(values)
    raise ValueError("it gives no true or false for each row; compare a column with a value")


def _is_series(values: Any) -> bool:
    return hasattr(values, "array")


def _series(values: Any) -> Any:
    import pandas as pd

    return pd.Series(values, copy=False) if isinstance(values, np.ndarray) else values


def _is_float(values: object) -> bool:
    """Whether nothing is left to be asked before values are calculated with."""
    return isinstance(values, float) or (type(values) is np.ndarray and values.dtype == _FLOAT)


def _whole(values: object) -> bool:
    """Whether values are whole numbers."""
    if isinstance(values, int):
        return not isinstance(values, bool)
    return getattr(getattr(values, "dtype", None), "kind", "") in ("i", "u")


def _operation(node: Operation, columns: Columns) -> Any:
    right = evaluate(node.right, columns)
    if node.left is None:
        right = _numbers(right)
        if node.symbol == "+":
            return right
        if _whole(right):
            _check_fits("-", 0, right)
        return as_values(-right) if _is_series(right) else -right
    left, symbol = evaluate(node.left, columns), node.symbol
    if _is_float(left) and _is_float(right):
        return _OPERATORS[symbol](left, right)
    if isinstance(left, str):
        left, right = _moment(right, left), _series(right)
    elif isinstance(right, str):
        left, right = _series(left), _moment(left, right)
    else:
        left, right = _numbers(left), _numbers(right)
        if _whole(left) and _whole(right):
            return _whole_operation(symbol, left, right)
    values = _OPERATORS[symbol](left, right)
    return as_values(values) if _is_series(values) else values


def _numbers(values: Any) -> Any:
    """Values that arithmetic may have, whole ones as int64; texts times a number know no bounds."""
    if isinstance(values, int):
        _check_word(values)
    if isinstance(values, np.ndarray):
        if values.dtype == np.uint64:
            _check_word(int(values.max(initial=0)))
        return values.astype(np.int64, copy=False) if values.dtype.kind in "biu" else values
    if not _is_series(values):
        return values
    import pandas as pd

    if values.dtype == object:
        match pd.api.types.infer_dtype(values, skipna=True):
            case "integer":
                return values.astype("Int64")
            case "floating" | "mixed-integer-float" | "empty":
                return values.to_numpy(np.float64)
            case "decimal":
                return values
    elif values.dtype.kind in "biu":
        return values.astype("Int64")
    elif values.dtype.kind in "fmM":
        return values
    raise ValueError(f"arithmetic is of numbers, and a column of it holds {values.dtype}")


def _check_word(value: int) -> None:
    if not -_WORD <= value < _WORD:
        raise ValueError(f"{value} does not fit 64 bits with a sign")


def _whole_operation(symbol: str, left: Any, right: Any) -> Any:
    """Arithmetic of whole numbers; by 0, arrays of them are divided as for other numbers."""
    arrays = isinstance(left, np.ndarray) or isinstance(right, np.ndarray)
    series = _is_series(left) or _is_series(right)
    if symbol in ("//", "%") and arrays and not series and not np.all(right):
        return _OPERATORS[symbol](_floats(left), _floats(right))
    _check_fits(symbol, left, right)
    values = _OPERATORS[symbol](left, right)
    return as_values(values) if _is_series(values) else values


def _check_fits(symbol: str, left: Any, right: Any) -> None:
    """Raise ValueError where a result is beyond 64 bits, where numpy would give a wrong one."""
    if symbol not in ("+", "-", "*"):
        return
    if np.any(np.abs(_OPERATORS[symbol](_floats(left), _floats(right))) >= _WORD):
        raise ValueError(f"{symbol} gives whole numbers that do not fit 64 bits")


def _floats(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values.astype(np.float64)
    return values.to_numpy(np.float64, na_value=np.nan) if _is_series(values) else float(values)


def _comparison(node: Comparison, columns: Columns) -> Any:
    left, result = evaluate(node.operands[0], columns), None
    for symbol, operand in zip(node.symbols, node.operands[1:], strict=True):
        right = evaluate(operand, columns)
        holds = _compared(symbol, left, right)
        result = holds if result is None else _join("and", result, holds)
        left = right
    return result


def _compared(symbol: str, left: Any, right: Any) -> Any:
    if isinstance(left, list) or isinstance(right, list):
        values, items = (right, left) if isinstance(left, list) else (left, right)
        holds = _is_in(values, items)
        return holds if symbol in ("in", "==") else _inverted(holds)
    compare = _OPERATORS[symbol]
    if not _is_rows(left) and not _is_rows(right):
        return compare(left, right)
    if _is_rows(left) and _is_rows(right):
        if _is_series(left) or _is_series(right):
            return as_values(compare(_series(left), _series(right)))
        return compare(left, right)
    values, value = (left, right) if _is_rows(left) else (right, left)
    if _is_of_days(values) and value is not None:
        value = _moment(values, value)
    elif isinstance(value, str) and symbol in ("==", "!=") and values.dtype.kind != "m":
        # As a list of it, as pandas has it: a missing value is not equal to it.
        holds = _is_in(values, [value])
        return holds if symbol == "==" else _inverted(holds)
    elif not isinstance(value, str) and value is not None and isinstance(values, np.ndarray):
        return compare(left, right)
    values = _series(values)
    return as_values(compare(values, value) if _is_rows(left) else compare(value, values))


def _is_rows(values: object) -> bool:
    """Whether there is a value for each row, and not one for all."""
    return isinstance(values, np.ndarray) or _is_series(values)


def _is_in(values: Any, items: Sequence[Any]) -> Any:
    """Whether values are in a list of constants, or of columns."""
    if any(map(_is_rows, items)):
        return reduce(partial(_join, "or"), (_compared("==", values, other) for other in items))
    if not _is_rows(values):
        return values in items
    if _is_of_days(values):
        items = [None if value is None else _moment(values, value) for value in items]
    return as_values(_series(values).isin(items))


def _is_of_days(values: object) -> bool:
    """Whether values are days, or times of a day."""
    kind = getattr(getattr(values, "dtype", None), "type", None)
    if not isinstance(kind, type):
        return False
    return issubclass(kind, (date, np.datetime64)) or kind.__name__ == "Period"


def _moment(days: Any, value: Any) -> Any:
    """A text or a number that stands beside days, as one of them.

    Raises:
        ValueError: it is not written as ISO 8601 has it, or stands beside something else.
    """
    import pandas as pd

    text = str(value)
    if not _is_of_days(days):
        raise ValueError(f"{text!r} is no number")
    if not _MOMENT.fullmatch(text):
        raise ValueError(f"a day is written as '2026-01-31' or '2026-01-31 12:30:00', not {text!r}")
    kind = days.dtype
    if isinstance(kind, pd.PeriodDtype):
        return pd.Period(text, freq=kind.freq)  # type: ignore[arg-type]  # offsets are as good
    moment, zone = pd.Timestamp(text), getattr(kind, "tz", None)
    if kind.type is date:
        return moment.date()
    return moment.tz_localize(zone) if zone is not None and moment.tz is None else moment


def _inverted(values: Any) -> Any:
    if isinstance(values, (bool, np.bool_)):
        return not values
    return ~(_numbers(values) if _whole(values) else _truth(values))


def _joined(node: Joined, columns: Columns) -> Any:
    result = evaluate(node.parts[0], columns)
    for part in node.parts[1:]:
        result = _join(node.symbol, result, evaluate(part, columns))
    return result


def _join(symbol: str, left: object, right: object) -> object:
    """`and`, `or` or ^ of truths; & and | of columns of whole numbers are of their bits."""
    bits = symbol != "^" and _whole(left) and _whole(right)
    left, right = map(_numbers if bits else _truth, (left, right))
    values = _OPERATORS[symbol](left, right)
    return as_values(values) if _is_series(values) else values


def _truth(values: Any) -> Any:
    """Values that are true, false or missing; raises ValueError for others."""
    if isinstance(values, (bool, np.bool_)) or getattr(values, "dtype", None) == np.bool_:
        return values
    if _is_series(values) and values.dtype.kind == "b":
        return values
    if _is_series(values) and values.dtype == object:
        import pandas as pd

        if pd.api.types.infer_dtype(values, skipna=True) == "boolean":
            return values.astype("boolean")
    raise ValueError(
        "`and`, `or`, `not`, &, |, ^ and ~ join comparisons, and one side of them is none; "
        "give each comparison brackets"
    )


def _called(node: Call, columns: Columns) -> Any:
    if node in columns:
        return columns[node]
    values = evaluate(node.of, columns)
    if not _is_rows(values):
        raise ValueError(f"{node.name} is of a column, and {values!r} is none")
    if node.name == "abs":
        values = _numbers(values)
        if _whole(values):
            _check_fits("-", 0, values)
        return np.abs(values) if isinstance(values, np.ndarray) else as_values(values.abs())
    return as_values(_METHODS[node.name](_series(values), **node.arguments))


def _contains(
    texts: Any, pat: str, pattern: str = "", case: bool = True, regex: bool = True, **na: bool
) -> Any:
    if pattern:
        return _searched(texts, pattern, case, **_missing(texts, na))
    if case or not regex:
        return texts.str.contains(pat, case=case, regex=False, **_missing(texts, na))
    escaped = re.escape(pat)  # to fold cases as a regular expression does
    return texts.str.contains(escaped, case=False, regex=True, **_missing(texts, na))


def _missing(texts: Any, na: dict[str, bool]) -> dict[str, bool]:
    """Nothing stands in a missing text; types with a missing value of their own keep it."""
    return na or ({"na": False} if texts.dtype == object else {})


def _searched(texts: Any, pattern: str, case: bool, na: bool | None = None) -> Any:
    """Whether RE2 finds a pattern in each text; pyarrow has it."""
    import pandas as pd

    try:
        import pyarrow as pa
        from pyarrow import compute
    except ImportError:
        raise ValueError(
            "regular expressions need pyarrow: pip install 'penstock-loader[tables]'; "
            "regex=False searches for the text as it stands"
        ) from None
    rows = texts.str and texts.array  # raises AttributeError where there are none
    if texts.dtype.type is not str:  # objects, categories
        rows = [text if isinstance(text, str) else None for text in texts]
    matches = compute.match_substring_regex(
        pa.array(rows, type=pa.large_string()), pattern, ignore_case=not case
    )
    values = matches.fill_null(bool(na)).to_numpy(zero_copy_only=False)
    if na is None and getattr(texts.dtype, "na_value", None) is pd.NA:
        return pd.Series(pd.arrays.BooleanArray(values, texts.isna().to_numpy()))
    return pd.Series(values)


_METHODS: dict[str, Callable[..., Any]] = {
    "isna": lambda values: values.isna(),
    "str.contains": _contains,
    "str.startswith": lambda texts, pat, **na: texts.str.startswith(pat, **_missing(texts, na)),
    "str.endswith": lambda texts, pat, **na: texts.str.endswith(pat, **_missing(texts, na)),
    "str.len": lambda texts: texts.str.len(),
    "str.lower": lambda texts: texts.str.lower(),
    "str.upper": lambda texts: texts.str.upper(),
    "str.strip": lambda texts, to_strip=None: texts.str.strip(to_strip),
}
_EVALUATE: dict[type, Callable[[Any, Columns], Any]] = {
    Column: lambda node, columns: columns[node.name],
    Constant: lambda node, columns: node.value,
    Items: lambda node, columns: [evaluate(item, columns) for item in node.values],
    Operation: _operation,
    Comparison: _comparison,
    Not: lambda node, columns: _inverted(evaluate(node.of, columns)),
    Joined: _joined,
    Call: _called,
}
