"""Gives samplers the facts of a mixture: its shares, its order, and the orders of its sources.

A dataset is a mixture if it has `mixing` and `source_lengths`, as
`pipeline/addons/mixtures/mixture.py` or what a filter leaves of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.addons.mixtures.order import MixtureOrder
from penstock.addons.mixtures.weights import Mixing
from penstock.config.instantiate import Lazy, make
from penstock.config.nodes import called
from penstock.config.signatures import arguments
from penstock.order.columns import ChosenRows, LengthTable
from penstock.order.randomness import hash64

if TYPE_CHECKING:
    from penstock.build.data import Split


def with_mixture(
    split: Split, node: Mapping[str, Any], supply: dict[str, Any]
) -> Mapping[str, Any]:
    """A sampler's node with the orders of the sources; `supply` gets `mixing` and `order`."""
    mixing = _mixing(split)
    order = (mixing, supply["seed"], supply["batch_size"], supply["tail"])
    supply["mixing"] = mixing
    supply["order"] = supply["order"] or Lazy(partial(MixtureOrder, *order))
    return _with_source_orders(node, "sampler", mixing, supply)


def recorded(split: Split) -> dict[str, str]:
    """Entries of a split's fingerprint."""
    mixing, sources, fingerprint = _mixing(split), split.dataset.sources, split.identity.of
    return mixing.recorded({name: fingerprint(sources[name]) for name in mixing.lengths})


def _mixing(split: Split) -> Mixing:
    """How the dataset of a split mixes its sources.

    Raises:
        ConfigError: a key of it is wrong.
    """
    return Mixing(dict(split.dataset.source_lengths), **split.dataset.mixing)


def _with_source_orders(
    node: Mapping[str, Any], key: str, mixing: Mixing, supply: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A sampler's node in which `sources`, the orders of single sources, are made.

    Each gets the number of rows, the seed and the part of the table that are the source's own.
    """
    if isinstance(node.get("order"), Mapping):
        inner = _with_source_orders(node["order"], f"{key}.order", mixing, supply)
        node = {**node, "order": inner}
    function = called(node)
    if function is None or "mixing" not in arguments(function).names:
        return node
    first, orders = 0, dict(node.get("sources") or {})
    for name, length in mixing.lengths.items():
        if name in orders:
            rows = partial(_rows_of, supply["metadata"], first, first + length)
            own = {
                **supply,
                "length": length,
                "order": None,
                "mixing": None,
                "seed": hash64(supply["seed"], "mixture", name),
                "metadata": Lazy(rows),
            }
            orders[name] = make(orders[name], f"{key}.sources.{name}", own, nested=True)
        first += length
    return {**node, "sources": orders}


def _rows_of(table: Lazy, start: int, stop: int) -> Any:
    whole = table.compute()
    if isinstance(whole, LengthTable):
        return LengthTable(ChosenRows(whole.lengths, stop - start, lambda rows: rows + start))
    return None if whole is None else whole.iloc[start:stop].reset_index(drop=True)
