"""Rules on samplers, and on what they need of datasets, batches and collate functions.

For `config/contradictions.py`. A rule gets the configuration and the callable of each part by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.addons.filters.costs import TOKENS, Arithmetic
from penstock.config.messages import nearest, not_allowed
from penstock.config.nodes import called, datasets
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.errors import ConfigError
from penstock.order.composed import Repeated
from penstock.order.samplers import BatchStrategy
from penstock.order.streams import StreamOrder, is_stream

Found = Mapping[str, Any]
Messages = Iterator[str]


def datasets_found(config: Config, found: Found) -> list[tuple[str, Any]]:
    """Key and callable of each dataset."""
    keys = [key for key, _ in datasets(config.dataset)]
    return [(key, found[key]) for key in keys if found.get(key) is not None]


def columns(config: Config, found: Found) -> Messages:
    """A metadata column that a sampler reads has to be one that the dataset says it has."""
    sampler: Any = found.get("sampler")
    if not hasattr(sampler, "column_arguments"):
        return
    values = {**arguments(sampler).defaults, **config.sampler}
    names = sampler.column_arguments
    if "weights" in names and values.get("weights") is not None:
        names = ("weights",)  # explicit weights replace a column to balance
    for key, dataset in datasets_found(config, found):
        known = getattr(dataset, "columns", None)
        if key == "dataset.val" or known is None:
            continue
        for name in names:
            column = values.get(name)
            if isinstance(column, str) and column not in known:
                yield (
                    f"sampler.{name}: {dataset.__name__} has no metadata column "
                    f"{column!r}{nearest(column, known)}; it has {', '.join(known)}"
                )


def tail(config: Config, found: Found) -> Messages:
    from torch.utils.data import BatchSampler

    tail = config.batch.tail
    sampler: Any = found.get("sampler")
    if tail == "keep":
        return
    forms = isinstance(sampler, type) and issubclass(sampler, (BatchStrategy, BatchSampler))
    if forms and tail == "pad":
        yield (
            f"batch.tail: pad cannot fill {sampler.__name__}'s batches, which it forms itself; set "
            "batch.tail=keep"
        )
    elif forms and "tail" not in arguments(sampler).names:
        yield (
            f"batch.tail: drop has nothing to drop: {sampler.__name__} forms its batches itself; "
            "set batch.tail=keep"
        )
    if config.batch.size is None:  # torch refuses `batch_size=None` with `drop_last=True`
        yield (
            f"batch.tail: {tail} is for batches, but batch.size=null passes samples through one by "
            "one; set batch.tail=keep, or batch.size"
        )


def packing(config: Config, found: Found) -> Messages:
    """Blocks need a sampler that forms them and a collate function that knows what they are."""
    sampler, collate = (getattr(found.get(key), "packs", False) for key in ("sampler", "collate"))
    if sampler and not collate:
        yield (
            f"collate: {config.collate['_target_']} knows no blocks, which the sampler packs rows "
            "into; set collate=packed"
        )
    steps = [
        f"transform.{section}.{name}"
        for section in ("train_batch", "val_batch")
        for name, node in getattr(config.transform, section).items()
        if node is not None
    ]
    if sampler and steps:
        yield (
            f"{steps[0]}: transforms of batches take a row for each sample, "
            "and rows of packed batches are blocks; transform samples instead (transform.train)"
        )
    tokens, room = config.sampler.get("tokens"), config.collate.get("pad_to")
    if sampler and collate and isinstance(tokens, int) and isinstance(room, int) and room < tokens:
        yield (
            f"collate.pad_to: {room} is less than the {tokens} tokens of a block (sampler.tokens); "
            f"set collate.pad_to={tokens}"
        )
    if sampler and config.batch.size is None:
        yield (
            "batch.size: null passes samples through one by one, and the sampler packs them into "
            "blocks; set batch.size to the number of blocks"
        )


def distributed_sampler(config: Config, found: Found) -> Messages:
    from torch.utils.data import DistributedSampler

    sampler = found.get("sampler")
    if isinstance(sampler, type) and issubclass(sampler, DistributedSampler):
        yield (
            "sampler._target_: DistributedSampler would share the data out a second time: every "
            "global batch is formed first and then dealt out to the ranks; set sampler=random"
        )


def no_order(name: str) -> str:
    """Why a sampler cannot be the order of another one."""
    return (
        f"{name} forms batches of its own, and an order gives rows one by one; name an order "
        "(random, weighted, subset, curriculum, repeated), or use it as the sampler itself"
    )


def nested_order(config: Config, found: Found) -> Messages:
    """A sampler may have another one inside, which gives rows one by one."""
    from torch.utils.data import BatchSampler

    key, sampler = "sampler", found.get("sampler")
    node: Mapping[str, Any] = config.sampler
    while node.get("order") is not None and sampler is not None:
        inner = node["order"]
        if "order" not in arguments(sampler).names:
            return  # told with the sampler's other arguments
        if not isinstance(inner, Mapping) or "_target_" not in inner:
            yield f"{key}.order: {not_allowed(inner, 'an order, {_target_: ...}, or null')}"
            return
        key, node, sampler = f"{key}.order", inner, called(inner)
        if isinstance(sampler, type) and issubclass(sampler, StreamOrder):
            yield f"{key}: {sampler.__name__} is the order of a stream, which has no rows"
        elif isinstance(sampler, type) and issubclass(sampler, (BatchStrategy, BatchSampler)):
            yield f"{key}: {no_order(sampler.__name__)}"


def repetitions(config: Config, found: Found) -> Messages:
    """Rows are repeated inside of a batch."""
    sampler: Any = found.get("sampler")
    size, times = config.batch.size, config.sampler.get("times")
    if not (isinstance(sampler, type) and issubclass(sampler, Repeated)) or size is None:
        return
    if isinstance(times, int) and times > 0 and size % times:
        low = size // times * times
        ways = " or ".join(str(one) for one in (low, low + times) if one)
        yield (
            f"sampler.times: {times} does not divide batch.size={size}, so a row's repetitions "
            f"would stand in two batches; take batch.size={ways}"
        )


def mixture(config: Config, found: Found) -> Messages:
    """Only samplers that follow the order of a mixture keep its shares, and only it has one."""
    outer: Any = found.get("sampler")
    sampler, node = outer, config.sampler
    while isinstance(node.get("order"), Mapping):
        node = node["order"]
        sampler = called(node)
    for key, dataset in datasets_found(config, found):
        if key == "dataset.val" or None in (outer, sampler) or is_stream(dataset):
            continue
        taken = arguments(sampler).names
        if not getattr(dataset, "mixes", False):
            if "mixing" in taken:
                yield (
                    f"sampler: {sampler.__name__} mixes the sources of dataset=mixture, and "
                    f"{dataset.__name__} has none; set sampler=random"
                )
            continue
        given = config.dataset if "_target_" in config.dataset else config.dataset["train"]
        if not {"mixing", "order"} & set(taken):
            yield (
                f"sampler: {sampler.__name__} chooses rows of all sources by itself, and "
                "dataset.weights would not hold; set sampler=mixture, where sampler.sources may "
                "give each source such an order (docs/mixtures.md)"
            )
        if config.dataset.get("packed") is not None:
            yield (
                "dataset.packed: a pack is one dataset without sources; pack each source "
                "(task=pack), and name the packs in dataset.sources"
            )
        weights = given.get("weights") or {}
        changing = isinstance(weights, Mapping) and any(
            isinstance(one, list) for one in weights.values()
        )
        if changing and "mixing" not in arguments(outer).names and given.get("knots") != "samples":
            yield (
                f"{key}.knots: a step of {outer.__name__} has not batch.size samples of the "
                "mixture; write dataset.weights for numbers of samples, and set "
                f"{key}.knots=samples"
            )


def balance(config: Config, found: Found) -> Messages:
    """Ranks are balanced by columns that the dataset has; of rows in blocks, by their tokens."""
    if config.batch.balance is None:
        return
    try:
        names = Arithmetic(config.batch.balance, "batch.balance").names
    except ConfigError as error:
        yield from map(str, error.problems)
        return
    if config.batch.size is None:
        yield (
            "batch.balance: deals the rows of a batch to ranks, but batch.size=null passes samples "
            "through one by one; set batch.size, or batch.balance=null"
        )
    if getattr(found.get("sampler"), "packs", False):
        others = [name for name in names if name != TOKENS]
        if others:
            yield (
                f"batch.balance: {others[0]!r}, but the sampler packs rows into blocks, of which "
                f"only the number of each row's {TOKENS} is known; write e.g. {TOKENS} ** 2"
            )
        return
    for key, dataset in datasets_found(config, found):
        if key == "dataset.val":
            continue
        if is_stream(dataset):
            yield (
                f"batch.balance: {dataset.__name__} is a stream, whose rows have no costs before "
                "they are read; set batch.balance=null"
            )
            continue
        known = getattr(dataset, "columns", None)
        if not isinstance(known, (list, tuple)):  # the build finds out
            continue
        for name in names:
            if name not in known:
                yield (
                    f"batch.balance: {dataset.__name__} has no metadata column {name!r}"
                    f"{nearest(name, known)}; it has {', '.join(known)}"
                )


RULES = (
    columns,
    tail,
    packing,
    distributed_sampler,
    mixture,
    nested_order,
    repetitions,
    balance,
)
