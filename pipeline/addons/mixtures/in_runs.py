"""What a run does with a mixture: rules, the sampler's orders, rows of each source.

A dataset is a mixture if it has `mixing` and `source_lengths`, as
`pipeline/addons/mixtures/mixture.py` or what a filter leaves of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.addons.mixtures.order import MixtureOrder
from penstock.addons.mixtures.weights import Mixing
from penstock.config.targets import arguments, called, make
from penstock.errors import ConfigError, Problem
from penstock.order.columns import ChosenRows, LengthTable
from penstock.order.keys import hash64
from penstock.order.plan import Plan
from penstock.order.samplers import Order
from penstock.training.epoch_metrics import Step
from penstock.training.observer import Observer, Record

if TYPE_CHECKING:
    from penstock.addons.mixtures.order import MixtureOrder
    from penstock.build.data import Split
    from penstock.tasks.fit import Fit


def with_mixture(
    split: Split, node: Mapping[str, Any], supply: dict[str, Any]
) -> Mapping[str, Any]:
    """A sampler's node with the orders of the sources; `supply` gets `mixing` and `order`."""
    mixing, inner = _mixing(split), node
    outer = arguments(called(node))
    while isinstance(inner.get("order"), Mapping):
        inner = inner["order"]
    if {"mixing", "order"}.isdisjoint(arguments(called(inner))):
        reason = (
            f"{called(inner).__name__} chooses rows of all sources by itself, and dataset.weights "
            "would not hold; set sampler=mixture, where sampler.sources may give each source such "
            "an order (docs/mixtures.md)"
        )
        raise ConfigError(Problem("sampler", reason))
    weights = split.config.dataset.get("weights") or {}
    changes = any(isinstance(weight, list) for weight in weights.values())
    if changes and "mixing" not in outer and split.config.dataset.get("knots") != "samples":
        reason = (
            f"a step of {called(node).__name__} has not batch.size samples of the mixture; write "
            "dataset.weights for numbers of samples, and set dataset.knots=samples"
        )
        raise ConfigError(Problem("dataset.knots", reason))
    order = (mixing, supply["seed"], supply["batch_size"], supply["tail"])
    supply["mixing"] = mixing
    supply["order"] = supply["order"] or partial(MixtureOrder, *order)
    return _with_source_orders(node, "sampler", mixing, supply)


def recorded(split: Split) -> dict[str, str]:
    """Entries of a split's fingerprint."""
    mixing, sources = _mixing(split), split.dataset.sources
    return mixing.recorded({name: split.fingerprint_of(sources[name]) for name in mixing.lengths})


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
    if function is None or "mixing" not in arguments(function):
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
                "metadata": rows,
            }
            orders[name] = make(orders[name], f"{key}.sources.{name}", own, nested=True)
        first += length
    return {**node, "sources": orders}


def _rows_of(table: partial[Any], start: int, stop: int) -> Any:
    whole = table()
    if isinstance(whole, LengthTable):
        return LengthTable(ChosenRows(whole.lengths, stop - start, lambda rows: rows + start))
    return None if whole is None else whole.iloc[start:stop].reset_index(drop=True)


class MixtureRows(Observer):
    """Adds rows and passes of each source to every epoch's record, and to the manifest.

    They count the whole run, from the order and not from batches, so resumed runs agree. Over a
    mixture that a sampler packs or repeats, an epoch that ends early is counted to a batch or so.

    Args:
        plan: of training, in the order `order` or one made of it.
        manifest: gets `mixture`, with `rows` and `passes` by source.
    """

    def __init__(self, plan: Plan, order: MixtureOrder, manifest: dict[str, Any]) -> None:
        self.plan, self.order, self.manifest = plan, order, manifest
        self._done = 0  # steps of the epoch

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self._done = done

    def on_steps(self, steps: Sequence[Step]) -> None:
        self._done = steps[-1].step + 1

    def on_record(self, record: Record) -> None:
        epoch, sampler = int(record["epoch"]), self.plan.sampler
        size = self.order.size(epoch)
        if sampler is self.order:
            position = min(self._done * self.plan.batch_size, size)
        else:
            times = getattr(sampler, "times", 1)
            used = sampler.size(epoch) // times if isinstance(sampler, Order) else size
            position = used * self._done // max(self.plan.steps(epoch), 1)
        rows = self.order.given(epoch, position)
        passes = self.order.passes(rows)
        for name in rows:
            record[f"mixture/{name}/rows"] = rows[name]
            record[f"mixture/{name}/passes"] = passes[name]
        self.manifest["mixture"] = {"rows": rows, "passes": passes}
        if not self.order.size(epoch + 1):
            self.enough = "the sources have given all passes that dataset.passes allows"


def observers(fit: Fit) -> list[Observer]:
    """The observer of a plan whose sampler is a mixture, or made of one; none for others."""
    plan = fit.train_loader.plan
    mixes = getattr(fit.data.train.dataset, "mixing", None) is not None
    if not mixes or not isinstance(plan, Plan) or plan.again:
        return []
    from penstock.addons.mixtures.order import MixtureOrder

    order: Any = plan.sampler
    while not isinstance(order, MixtureOrder) and order is not None:
        order = getattr(order, "order", None)
    return [] if order is None else [MixtureRows(plan, order, fit.folder.manifest)]
