"""Requirements of the keys of fine-tuning on each other, checked before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.addons.finetuning import patterns
from penstock.addons.finetuning.groups import CHOICE, KINDS, OF_THE_RATE
from penstock.config.messages import nearest
from penstock.config.nodes import by_name
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.errors import ConfigError


def fits(config: Config, parts: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """All of them."""
    yield from _freeze(config)
    if config.trainer.recompute and config.trainer.compile:
        yield "trainer.recompute: is not for trainer.compile=true; set that to false"
    for key, node in by_name(config.optimizer or None, "optimizer").items():
        if isinstance(node, Mapping) and node.get("groups") is not None and key in parts:
            yield from _groups(f"{key}.groups", node, parts[key])


def _freeze(config: Config) -> Iterator[str]:
    section = config.trainer.freeze
    names = patterns.listed(section.names)
    if isinstance(section.until, list) and len(section.until) != len(names):
        yield (
            f"trainer.freeze.until: has {len(section.until)} epochs for {len(names)} names; give "
            "one for each, or a single one"
        )
    if section.until is not None and not names:
        yield "trainer.freeze.until: has no names; set trainer.freeze.names, patterns of weights"
    ends = section.until if isinstance(section.until, list) else [section.until]
    if any(ends) and names and config.distributed.strategy == "fsdp":
        yield (
            "trainer.freeze.until: is not for distributed=fsdp, which shards weights by what "
            "learns; set it to null, or distributed=ddp"
        )


def _groups(key: str, node: Mapping[str, Any], optimizer: Callable[..., Any]) -> Iterator[str]:
    groups, taken = node["groups"], arguments(optimizer).names
    if not isinstance(groups, Mapping):
        yield f"{key}: got {groups!r}, expected groups by name (docs/finetuning.md)"
        return
    if "params" not in taken:
        yield f"{key}: {optimizer.__name__} takes no weights in groups; choose another optimizer"
        return
    for name, group in groups.items():
        if group is not None:
            yield from _group(f"{key}.{name}", group, node, [n for n in taken if n != "params"])


def _group(key: str, group: Any, node: Mapping[str, Any], taken: list[str]) -> Iterator[str]:
    if not isinstance(group, Mapping):
        yield f"{key}: got {group!r}, expected {{names: [...], lr: ...}}"
        return
    known = [*CHOICE, *OF_THE_RATE, *taken]
    for name in group:
        if name not in known:
            yield f"{key}.{name}: is nothing that a group sets{nearest(str(name), known)}"
    if not any(group.get(name) for name in CHOICE):
        yield f"{key}: says no weights; give names (patterns) or kinds ({', '.join(KINDS)})"
    for name, words in ((name, group.get(name) or []) for name in CHOICE):
        try:
            patterns.check(f"{key}.{name}", patterns.listed(words))
        except (ConfigError, TypeError) as error:
            reason = error.problems[0].message if isinstance(error, ConfigError) else "no list"
            yield f"{key}.{name}: {reason}"
            continue
        for word in patterns.listed(words) if name == "kinds" else ():
            if word not in KINDS:
                yield f"{key}.kinds: {word!r}; allowed: {', '.join(KINDS)}"
    rates = [name for name in OF_THE_RATE if name in group]
    if len(rates) > 1:
        yield f"{key}: {' and '.join(rates)} both say the learning rate; leave one"
    if set(group) <= set(CHOICE):
        yield f"{key}: sets nothing; give lr, lr_scale, layer_decay, weight_decay ..."
    for name in (*rates, "weight_decay"):
        value = group.get(name, 0)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < float("inf"):
            yield f"{key}.{name}: {value!r}; allowed: numbers from 0 on"
    if {"lr_scale", "layer_decay"} & set(rates) and not isinstance(node.get("lr"), (int, float)):
        yield f"{key}.{rates[0]}: multiplies the optimizer's lr, which is not set"
