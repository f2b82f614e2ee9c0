"""Rules on samplers, and on what they need of datasets, batches and collate functions.

For `config/rules.py`. A rule gets the configuration and the callable of each part by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.messages import nearest, not_allowed
from penstock.config.nodes import Parts, called, datasets_found
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.order.samplers import BatchStrategy
from penstock.order.streams import StreamOrder

Messages = Iterator[str]


def columns(config: Config, parts: Parts) -> Messages:
    """A metadata column that a sampler reads has to be one that the dataset says it has."""
    sampler: Any = parts.get("sampler")
    if not hasattr(sampler, "column_arguments"):
        return
    values = {**arguments(sampler).defaults, **config.sampler}
    names = sampler.column_arguments
    if "weights" in names and values.get("weights") is not None:
        names = ("weights",)  # explicit weights replace a column to balance
    for key, dataset in datasets_found(config, parts):
        known = getattr(dataset, "columns", None)
        if key == "data.val_dataset" or known is None:
            continue
        for name in names:
            column = values.get(name)
            if isinstance(column, str) and column not in known:
                yield (
                    f"sampler.{name}: {dataset.__name__} has no metadata column "
                    f"{column!r}{nearest(column, known)}; it has {', '.join(known)}"
                )


def tail(config: Config, parts: Parts) -> Messages:
    from torch.utils.data import BatchSampler

    tail = config.batch.tail
    sampler: Any = parts.get("sampler")
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


def distributed_sampler(config: Config, parts: Parts) -> Messages:
    from torch.utils.data import DistributedSampler

    sampler = parts.get("sampler")
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


def nested_order(config: Config, parts: Parts) -> Messages:
    """A sampler may have another one inside, which gives rows one by one."""
    from torch.utils.data import BatchSampler

    key, sampler = "sampler", parts.get("sampler")
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


def repetitions(config: Config, parts: Parts) -> Messages:
    """Rows are repeated inside of a batch."""
    sampler: Any = parts.get("sampler")
    size, times = config.batch.size, config.sampler.get("times")
    if size is None or not isinstance(times, int) or times <= 0:
        return
    from penstock.order.composed import Repeated

    if isinstance(sampler, type) and issubclass(sampler, Repeated) and size % times:
        low = size // times * times
        ways = " or ".join(str(even) for even in (low, low + times) if even)
        yield (
            f"sampler.times: {times} does not divide batch.size={size}, so a row's repetitions "
            f"would be in two batches; take batch.size={ways}"
        )


def packing(config: Config, parts: Parts) -> Messages:
    """Blocks need a sampler that forms them and a collate function that knows what they are."""
    sampler, collate = (getattr(parts.get(key), "packs", False) for key in ("sampler", "collate"))
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


RULES = (
    columns,
    tail,
    distributed_sampler,
    nested_order,
    repetitions,
    packing,
)
