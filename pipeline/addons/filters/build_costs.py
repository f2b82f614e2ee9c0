"""The costs of rows: `batch.balance`, by which ranks get theirs, and `loader.cost`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.addons.filters.costs import Arithmetic, Costs, PartCosts, RowCosts
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.loading.dataset_facts import table_of, with_token_lengths
from penstock.loading.named_fields import Fields
from penstock.order.samplers import column_of
from penstock.order.streams import is_stream


def costs_of(
    config: Config, dataset: Any, fields: Fields, steps: Mapping[str, Any], packs: bool
) -> Costs | None:
    """The costs of a map-style dataset's rows; None where ranks are not balanced.

    Args:
        steps: of the split's transform; a text's `length` is the number of tokens that they make,
            as samplers have it.
        packs: whether the sampler packs rows into blocks; `tokens` is all that is known then.

    Raises:
        ConfigError, DataError: the table lacks a column, or what is in it is no cost.
    """
    if config.batch.balance is None:
        return None
    cost = Arithmetic(config.batch.balance, "batch.balance")
    if packs:
        return PartCosts(cost)
    table = table_of(dataset, fields)
    if "length" in cost.names:
        table = with_token_lengths(table, dataset, steps)
    return RowCosts(cost, {name: column_of(table, name, "balance", "batch") for name in cost.names})


def sample_costs(config: Config, dataset: Any, fields: Fields) -> Any:
    """The column `loader.cost`; None without one, and of a stream, which has no table.

    Raises:
        ConfigError, DataError: there is no such column, or it holds no numbers.
    """
    name = config.loader.cost
    if name is None or is_stream(dataset):
        return None
    costs = column_of(table_of(dataset, fields), name, "cost", "loader")
    if costs.dtype.kind not in "iuf":
        reason = f"column {name!r} holds {costs.dtype}, and costs are numbers"
        raise ConfigError(Problem("loader.cost", reason))
    return costs
