"""The costs of rows: arithmetic over columns of numbers, as `batch.balance` has it.

    length            length + 0.002 * length ** 2            `image width` * `image height`

All of it is float64, as `9 ** 9 ** 9` in whole numbers would never end. It is evaluated for the
rows of a batch only, so a column that is mapped from a file stays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.addons.filters.expressions import Expression
from penstock.addons.tokens.lengths import table_in_tokens
from penstock.errors import ConfigError, DataError, Problem
from penstock.order.columns import column_of
from penstock.order.keys import FloatArray, IntArray
from penstock.order.plan import Costs

if TYPE_CHECKING:
    from penstock.build.data import Split


TOKENS = "tokens"  # of a row, or of its part, that stand in a block

_CHECKED = 1 << 20  # rows at once


class Arithmetic(Expression):
    """A number for each row, from numbers that it has.

    Args:
        text: columns (in backticks where a name is no identifier), numbers, + - * / ** and
            brackets.
        key: of the configuration, for messages.

    Raises:
        ConfigError: it is something else, or names no column.
    """

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text, key, costs=True)
        if not self.columns:
            raise self._refused("it names no column, so all rows would cost the same")

    def __call__(self, columns: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
        """The numbers for rows whose columns are given, float64[n]; 1 us and 5 ns a row."""
        values = {name: np.asarray(columns[name], np.float64) for name in self.columns}
        return np.asarray(self.values(values))  # `RowCosts` finds what is no number then


class RowCosts:
    """Costs of a dataset's rows.

    Args:
        cost: of a row.
        columns: of the dataset, one value a row.

    Raises:
        ConfigError: a column does not hold numbers.
        DataError: a cost is negative, infinite or no number. All rows are looked at, once: 20 ns
            each.
    """

    def __init__(self, cost: Arithmetic, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self._cost, self._columns = cost, dict(columns)
        for name, column in self._columns.items():
            if column.dtype.kind not in "iufb":
                reason = f"column {name!r} holds {column.dtype}, and costs are numbers"
                raise ConfigError(Problem(cost.key, reason))
        length = min(map(len, self._columns.values()))
        for start in range(0, length, _CHECKED):
            stop = start + _CHECKED
            costs = cost({name: column[start:stop] for name, column in self._columns.items()})
            wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
            if wrong.size:
                row = start + int(wrong[0])
                held = ", ".join(f"{name} {column[row]}" for name, column in self._columns.items())
                raise DataError(
                    f"row {row} costs {costs[wrong[0]]} by {cost.key}={cost.text!r} "
                    f"({held}); costs are 0 or more"
                )

    def __call__(self, indices: IntArray, parts: IntArray | None = None) -> FloatArray:
        return self._cost({name: column[indices] for name, column in self._columns.items()})


class PartCosts:
    """Costs of rows in blocks, from the number of tokens that each has there.

    Args:
        cost: of a row, or of its part; it reads `tokens` only.
    """

    def __init__(self, cost: Arithmetic) -> None:
        self._cost = cost

    def __call__(self, indices: IntArray, parts: IntArray | None) -> FloatArray:
        assert parts is not None
        costs = self._cost({TOKENS: parts[:, 1] - parts[:, 0]})
        return np.nan_to_num(np.maximum(costs, 0.0))  # whatever numbers somebody subtracts


def costs_of(split: Split) -> Costs:
    """The costs of a map-style dataset's rows by `batch.balance`.

    A text's `length` is the number of tokens that the split's steps make, as samplers have it.
    Where the sampler packs rows into blocks, `tokens` is all that is known.

    Raises:
        ConfigError, DataError: the table lacks a column, or what is in it is no cost.
    """
    cost = Arithmetic(split.config.batch.balance or "", "batch.balance")
    if split.packs:
        if others := [name for name in cost.columns if name != TOKENS]:
            reason = (
                f"{others[0]!r}, but the sampler packs rows into blocks, of which only the number "
                f"of each row's {TOKENS} is known; write e.g. {TOKENS} ** 2"
            )
            raise ConfigError(Problem("batch.balance", reason))
        return PartCosts(cost)
    steps = split.transform.steps
    table = table_in_tokens({*cost.columns}, split.dataset, split.data.fields, steps)
    columns = {name: column_of(table, name, "balance", "batch") for name in cost.columns}
    return RowCosts(cost, columns)
