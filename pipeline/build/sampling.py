"""Configuration to plan: the sampler of a split, the columns it chooses by, and costs of rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.config import targets
from penstock.config.messages import show
from penstock.config.schema import Config
from penstock.config.targets import arguments, make
from penstock.errors import ConfigError, Problem
from penstock.loading.dataset_facts import lengths_of, table_of, tokenizer_of, with_token_lengths
from penstock.loading.named_fields import Fields
from penstock.order.columns import LengthTable
from penstock.order.plan import Plan, not_empty
from penstock.order.samplers import BatchStrategy, Order, Sequential
from penstock.order.skipped import Skipped
from penstock.order.streams import StreamOrder, StreamPlan, is_stream, length_of
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.build.data import Split


def plan_of(split: Split) -> Plan | StreamPlan:
    """Which samples of a split belong to which address. Validation reads every row in order.

    Raises:
        ConfigError: an epoch has no batch, or nothing tells what rows cost.
    """
    config, dataset = split.config, split.dataset
    tail = config.batch.tail if split.is_train else "keep"
    trainer, again = config.trainer, split.is_train and config.trainer.overfit_batches is not None
    try:
        skipped = Skipped.of(trainer.skip if split.is_train else None)
    except ValueError as error:
        raise ConfigError(Problem("trainer.skip", str(error))) from error
    most = trainer.overfit_batches or trainer.limit_batches.get(split.name)
    short = most, again, skipped
    if is_stream(dataset):
        stream = StreamOrder(config.seed)
        if split.is_train and _function(config.sampler) is StreamOrder:
            stream = make(config.sampler, "sampler", {"seed": config.seed})
        return StreamPlan(stream, split.batch_size, tail, length_of(dataset), *short)
    rows = length_of(dataset)
    if not rows:
        raise split.empty(rows)
    costs = None
    if split.is_train and split.config.batch.balance is not None:
        from penstock.addons.filters.costs import costs_of

        costs = costs_of(split)
    sampler: Order | BatchStrategy = Sequential(rows)
    if split.is_train:
        sampler = sampler_of(split, None)
    elif split.packs:
        sampler = sampler_of(split, Sequential(rows))
    together = split.batch_transform.together
    plan = Plan(sampler, split.batch_size, tail, together, *short, costs=costs)
    return not_empty(plan, rows, config.sampler["_target_"].rpartition(".")[2])


def sampler_of(split: Split, order: Order | None) -> Order | BatchStrategy:
    """The order of a split.

    Args:
        order: in which every row is read once, for a sampler that packs rows; None: it is the
            training split, whose tail may be dropped.
    """
    config, dataset, steps = split.config, split.dataset, split.transform.steps
    supply: dict[str, Any] = {
        "length": len(dataset),
        "seed": config.seed,
        # No lambda: it may go to worker processes, which look there for a bad row's substitute.
        "metadata": partial(_table, config, dataset, split.data.fields, steps),
        "batch_size": split.batch_size,
        "tail": config.batch.tail if order is None else "keep",
        "order": order,
        "dataset": dataset,
        "data_source": dataset,
        "long_tail": bool(lengths_told(config, steps)),
    }
    node: Mapping[str, Any]
    node = config.sampler if order is None else _without_order(config.sampler)
    if getattr(dataset, "mixing", None) is not None:
        from penstock.addons.mixtures.in_runs import with_mixture

        node = with_mixture(split, node, supply)
    sampler, tail = _sampler(node, "sampler", supply), config.batch.tail
    taken = arguments(_function(node))
    if order is None and isinstance(sampler, BatchStrategy) and "batch_size" not in taken:
        name, size = type(sampler).__name__, config.batch.size
        say(f"batch.size: {size} is for validation only; {name} makes batches of its own size")
    drops = tail == "keep" or (tail == "drop" and "tail" in taken)
    if order is None and isinstance(sampler, BatchStrategy) and not drops:
        name = type(sampler).__name__
        reason = f"{tail} is not for {name}, which forms its batches itself; set batch.tail=keep"
        raise ConfigError(Problem("batch.tail", reason))
    return sampler


def _sampler(node: Mapping[str, Any], key: str, supply: Mapping[str, Any]) -> Any:
    """The sampler of a node, whose `order` may be another one."""
    inner = node.get("order")
    if inner is None:
        node = _without_order(node)
    elif isinstance(inner, Mapping) and "_target_" in inner:
        order = _sampler(inner, f"{key}.order", supply)
        if not isinstance(order, Order):
            reason = (
                f"{type(order).__name__} forms batches of its own, or reads a stream, and an order "
                "gives rows one by one: random, weighted, subset, curriculum, repeated"
            )
            raise ConfigError(Problem(f"{key}.order", reason))
        node, supply = _without_order(node), {**supply, "order": order}
    else:
        raise ConfigError(Problem(f"{key}.order", f"got {show(inner)}, expected a node or null"))
    build = partial(make, node, key, supply, True)
    sampler = build()
    if isinstance(sampler, (Order, BatchStrategy, StreamOrder)):
        return sampler  # a stream's is no order of another sampler
    from penstock.order.torch_samplers import adapt

    return adapt(build, supply["seed"], supply["length"])


def _without_order(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != "order"}


def _function(node: Mapping[str, object]) -> Any:
    return targets.resolve(node["_target_"], "sampler._target_")


def packs_rows(config: Config) -> bool:
    """Whether the sampler puts rows together into blocks."""
    packs = bool(getattr(_function(config.sampler), "packs", False))
    collate = targets.resolve(config.collate["_target_"], "collate._target_")
    if packs and not getattr(collate, "packs", False):
        reason = f"{collate.__name__} knows no blocks, which the sampler packs rows into"
        raise ConfigError(Problem("collate", f"{reason}; set collate=packed"))
    return packs


def _table(config: Config, dataset: object, fields: Fields, steps: Mapping[str, object]) -> object:
    """The facts by which the sampler chooses rows: the dataset's table, or its lengths alone."""
    read = _columns_read(config.sampler)
    if read == {"length"} and tokenizer_of(steps) is None:
        lengths = lengths_of(dataset)
        if lengths is not None:
            return LengthTable(lengths)
    return with_token_lengths(table_of(dataset, fields), dataset, steps if "length" in read else {})


def _columns_read(node: Mapping[str, object]) -> set[str]:
    """The names of the columns by which a sampler, and an order in it, choose rows."""
    sampler = _function(node)
    known = {name: one.default for name, one in arguments(sampler).items()}
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
