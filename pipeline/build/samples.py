"""Configuration to dataset, sampler, names of fields and collate function.

What was written for torch works unchanged: a generator function is a stream, `(x, y)` gets names,
and a `collate_fn` is called as torch calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import isgeneratorfunction
from typing import Any

from torch.utils.data import IterableDataset

from penstock.addons.filters.kept import RowChoice, chosen, with_nested
from penstock.addons.mixtures.build import mixture_supply, with_source_orders
from penstock.addons.tokens.flatten import Flatten
from penstock.config import allow_list
from penstock.config.instantiate import Lazy, make
from penstock.config.nodes import collate_of as node_of
from penstock.config.nodes import of_the_build, without_own
from penstock.config.order_rules import no_order
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.errors import ConfigError, Problem
from penstock.loading.collate import Single
from penstock.loading.dataset_facts import (
    lengths_of,
    table_of,
    tokenizer_of,
    with_token_lengths,
)
from penstock.loading.named_fields import Fields, OwnCollate
from penstock.order.columns import LengthTable
from penstock.order.samplers import BatchStrategy, Order


class Yielded(IterableDataset[Any]):
    """The samples that a generator function yields; each epoch calls it again."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        return self.function()


def dataset_of(node: Mapping[str, Any], key: str, supply: Mapping[str, Any]) -> Any:
    """The dataset of a node.

    Args:
        supply: arguments that are handed on to it where it takes them.

    Raises:
        ConfigError: it makes a generator, of which there is only one pass.
    """
    node = with_nested(node, key, partial(_nested, supply=supply))
    target = node.get("_target_")
    if target is not None and isgeneratorfunction(allow_list.resolve(target, f"{key}._target_")):
        made = make({**node, "_partial_": True}, key, supply, nested=True)
        return Yielded(made)
    made = make(node, key, supply, nested=True)
    read_once = hasattr(made, "__next__") and not hasattr(made, "__getitem__")
    if read_once and not isinstance(made, IterableDataset):
        raise ConfigError(
            Problem(
                key,
                f"{target} gives a {type(made).__name__}, which can be read once, and "
                "every epoch and worker reads it again. Name the generator function itself, or "
                "a class with __iter__",
            )
        )
    return made


def _nested(node: Mapping[str, Any], key: str, supply: Mapping[str, Any]) -> Any:
    """The rows of a dataset inside another one's node that the node chooses."""
    dataset = dataset_of(without_own(node), key, supply)
    return RowChoice({key: chosen(node)}, supply["split"]).of(dataset)[0]


def sampler_of(
    config: Config,
    dataset: Any,
    batch_size: int,
    fields: Fields,
    steps: Mapping[str, Any],
    order: Order | None = None,
) -> Order | BatchStrategy:
    """The order of a split.

    Args:
        steps: of the split's transform; a text's length is the number of tokens that they make.
        order: in which every row is read once, for a sampler that packs rows; None: it is the
            training split, whose tail may be dropped.
    """
    table = partial(_table, config, dataset, fields, steps)
    supply = {
        "length": len(dataset),
        "seed": config.seed,
        # No lambda: it may go to worker processes, which look there for a bad row's substitute.
        "metadata": Lazy(table),
        "batch_size": batch_size,
        "tail": config.batch.tail if order is None else "keep",
        "order": order,
        "dataset": dataset,
        "data_source": dataset,
        "long_tail": bool(lengths_told(config, steps)),
    }
    node = config.sampler if order is None else _without(config.sampler, "order")
    supply |= mixture_supply(dataset, supply)
    return _sampler(with_source_orders(node, "sampler", supply), "sampler", supply)


def _sampler(node: Mapping[str, Any], key: str, supply: Mapping[str, Any]) -> Order | BatchStrategy:
    """The sampler of a node, whose `order` may be another one."""
    inner = node.get("order")
    if inner is None:
        node = _without(node, "order")
    elif isinstance(inner, Mapping) and "_target_" in inner:
        order = _sampler(inner, f"{key}.order", supply)
        if not isinstance(order, Order):
            raise ConfigError(Problem(f"{key}.order", no_order(type(order).__name__)))
        node, supply = _without(node, "order"), {**supply, "order": order}
    build = partial(make, node, key, supply, True)
    sampler = build()
    if isinstance(sampler, (Order, BatchStrategy)):
        return sampler
    from penstock.order.torch_samplers import adapt

    return adapt(build, supply["seed"], supply["length"])


def _without(node: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != name}


def _table(config: Config, dataset: Any, fields: Fields, steps: Mapping[str, Any]) -> Any:
    """What the sampler chooses rows by: the dataset's table, or its lengths alone."""
    read = _columns_read(config.sampler)
    if read == {"length"} and tokenizer_of(steps) is None:
        lengths = lengths_of(dataset)
        if lengths is not None:
            return LengthTable(lengths)
    return with_token_lengths(table_of(dataset, fields), dataset, steps if "length" in read else {})


def _columns_read(node: Mapping[str, Any]) -> set[str]:
    """The names of the columns by which a sampler, and an order in it, choose rows."""
    sampler = allow_list.resolve(node["_target_"], "sampler._target_")
    known = arguments(sampler).defaults
    names = getattr(sampler, "column_arguments", ())
    inner = node.get("order")
    deeper = _columns_read(inner) if isinstance(inner, Mapping) else set()
    values = (node.get(name, known.get(name)) for name in names)
    # What is no name is the column itself: a list of weights.
    return {value for value in values if isinstance(value, str)} | deeper


def lengths_told(config: Config, steps: Mapping[str, Any]) -> dict[str, str]:
    """How tokens are counted, if they are: a sampler by length depends on it besides the data."""
    tokenizer = tokenizer_of(steps) if "length" in _columns_read(config.sampler) else None
    return {} if tokenizer is None else {"lengths": tokenizer.counting}


def fields_of(config: Config) -> Fields:
    """Names for samples that are no dicts: `dataset.fields`, or what the objective asks for.

    Without names, positions are the objective's inputs and then its target.
    """
    inputs = [str(name) for name in config.objective.get("inputs") or ("input",)]
    padding = {f"{name}_lengths" for name in inputs}  # fields that a collate function adds
    target = str(config.objective.get("target", "target"))
    usual = list(dict.fromkeys([*(name for name in inputs if name not in padding), target]))
    return Fields(of_the_build(config.dataset, "fields"), usual)


def collate_of(config: Config, fields: Fields) -> Any:
    """The function that makes a batch of samples.

    What is not Penstock's own is called as torch calls a `collate_fn`: with samples as the dataset
    gives them, and without automatic batching (`batch.size=null`) with the sample itself.
    """
    node = config.collate
    made = make(node_of(node), "collate")
    target = allow_list.resolve(node["_target_"], "collate._target_")
    if (getattr(target, "__module__", None) or "") in (Single.__module__, Flatten.__module__):
        return made
    names = of_the_build(node, "fields") or fields.given
    return OwnCollate(made, Fields(names, fields.usual), one=config.batch.size is None)
