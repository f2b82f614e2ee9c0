"""What the build supplies to samplers over a mixture: its shares, its order, and those of sources.

A dataset is a mixture if it has `mixing` and `source_lengths`, as
`pipeline/addons/mixtures/mixture.py` or what a filter leaves of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.addons.mixtures.order import MixtureOrder
from penstock.addons.mixtures.weights import Mixing
from penstock.config.instantiate import Lazy, make
from penstock.config.nodes import called
from penstock.config.signatures import arguments
from penstock.order.columns import ChosenRows, LengthTable
from penstock.order.randomness import hash64


def mixing_of(dataset: Any) -> Mixing | None:
    """How a dataset mixes its sources; None if it is no mixture.

    Raises:
        ConfigError: a key of it is wrong.
    """
    given = getattr(dataset, "mixing", None)
    return None if given is None else Mixing(dict(dataset.source_lengths), **given)


def mixture_supply(dataset: Any, supply: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments `mixing` and `order` of samplers over a mixture; none for other datasets.

    Args:
        supply: the other arguments; an order among them stays.
    """
    mixing = mixing_of(dataset)
    if mixing is None:
        return {}
    order = supply["order"] or Lazy(
        partial(MixtureOrder, mixing, supply["seed"], supply["batch_size"], supply["tail"])
    )
    return {"mixing": mixing, "order": order}


def with_source_orders(
    node: Mapping[str, Any], key: str, supply: Mapping[str, Any]
) -> dict[str, Any]:
    """A sampler's node in which `sources`, the orders of single sources, are made.

    Each gets the number of rows, the seed and the part of the table that are the source's own.
    """
    if isinstance(node.get("order"), Mapping):
        node = {**node, "order": with_source_orders(node["order"], f"{key}.order", supply)}
    mixing, function = supply.get("mixing"), called(node)
    if mixing is None or function is None or "mixing" not in arguments(function).names:
        return dict(node)
    first, made = 0, {}
    given = node.get("sources") or {}
    for name, length in mixing.lengths.items():
        if name in given:
            own = {
                **supply,
                "length": length,
                "order": None,
                "mixing": None,
                "seed": hash64(supply["seed"], "mixture", name),
                "metadata": Lazy(partial(_rows_of, supply["metadata"], first, first + length)),
            }
            made[name] = make(given[name], f"{key}.sources.{name}", own, nested=True)
        first += length
    return {**node, "sources": {**given, **made}}


def _rows_of(table: Lazy, start: int, stop: int) -> Any:
    whole = table.compute()
    if isinstance(whole, LengthTable):
        return LengthTable(ChosenRows(whole.lengths, stop - start, lambda rows: rows + start))
    return None if whole is None else whole.iloc[start:stop].reset_index(drop=True)


def recorded_mixture(dataset: Any, told: Callable[[Any], str]) -> dict[str, str]:
    """The entries of a run's fingerprint for a mixture; none for other datasets.

    Args:
        told: dataset -> fingerprint.
    """
    mixing = mixing_of(dataset)
    if mixing is None:
        return {}
    weights = mixing.weights or dict.fromkeys(mixing.lengths)
    number = mixing.num_samples or sum(mixing.lengths.values())
    return {
        **{
            f"dataset.sources.{name}": f"{length} samples, {told(dataset.sources[name])}"
            for name, length in mixing.lengths.items()
        },
        **{f"dataset.weights.{name}": json.dumps(weight) for name, weight in weights.items()},
        **{f"dataset.passes.{name}": str(times) for name, times in mixing.passes.items()},
        "dataset.linear": str(mixing.linear),
        "dataset.knots": mixing.knots,
        "dataset.stop": mixing.stop,
        "dataset.num_samples": str(number),
    }
