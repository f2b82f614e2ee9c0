"""The costs of rows: arithmetic over columns of numbers, as `batch.balance` has it.

    length            length + 0.002 * length ** 2            `image width` * `image height`

All of it is float64, as `9 ** 9 ** 9` in whole numbers would never end.
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


class RowCosts:
    """Costs of a dataset's rows, computed once: 8 bytes a row.

    Args:
        cost: arithmetic over columns.
        columns: of the dataset, one value a row.

    Raises:
        ConfigError: a column does not hold numbers.
        DataError: a cost is negative, infinite or no number.
    """

    def __init__(self, cost: Expression, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        for name in cost.columns:
            if columns[name].dtype.kind not in "iufb":
                reason = f"column {name!r} holds {columns[name].dtype}, and costs are numbers"
                raise ConfigError(Problem(cost.key, reason))
        numbers = {name: np.asarray(columns[name], np.float64) for name in cost.columns}
        self._costs = np.asarray(cost.values(numbers))
        wrong = np.flatnonzero(~(np.isfinite(self._costs) & (self._costs >= 0)))
        if wrong.size:
            row = wrong[0]
            held = ", ".join(f"{name} {columns[name][row]}" for name in cost.columns)
            raise DataError(
                f"row {row} costs {self._costs[row]} by {cost.key}={cost.text!r} "
                f"({held}); costs are 0 or more"
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
        costs = self._cost.values({TOKENS: np.float64(parts[:, 1] - parts[:, 0])})
        return np.nan_to_num(np.maximum(costs, 0.0))  # whatever numbers somebody subtracts


def costs_of(split: Split) -> Costs:
    """The costs of a map-style dataset's rows by `batch.balance`.

    A text's `length` is the number of tokens that the split's steps make, as samplers have it.
    Where the sampler packs rows into blocks, `tokens` is all that is known.

    Raises:
        ConfigError, DataError: the table lacks a column, or what is in it is no cost.
    """
    cost = Expression(split.config.batch.balance or "", "batch.balance", costs=True)
    if not split.packs:
        steps = split.transform.steps
        table = table_in_tokens({*cost.columns}, split.dataset, split.data.fields, steps)
        columns = {name: column_of(table, name, "balance", "batch") for name in cost.columns}
        return RowCosts(cost, columns)
    if others := [name for name in cost.columns if name != TOKENS]:
        reason = (
            f"{others[0]!r}, but the sampler packs rows into blocks, of which only the number "
            f"of each row's {TOKENS} is known; write e.g. {TOKENS} ** 2"
        )
        raise ConfigError(Problem("batch.balance", reason))
    return PartCosts(cost)
