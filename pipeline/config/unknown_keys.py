"""Messages about keys, and options of groups, that don't exist: which one may be meant.

In this order: an argument that the YAML leaves out, the name that another program has for it, a key
of nearly that name beside it, a key of that name elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from penstock import program
from penstock.config import familiar as familiar_names
from penstock.config import parsing, targets
from penstock.config.familiar import instead
from penstock.config.hydra_loader import ConfigLoader
from penstock.config.messages import nearest
from penstock.config.schema import TASK_KEYS, Config
from penstock.errors import ConfigError, Problem

_PLUGINS = {
    "hydra/launcher": "hydra-joblib-launcher, hydra-submitit-launcher or hydra-ray-launcher",
    "hydra/sweeper": "hydra-ax-sweeper",
}


def option(group: str, name: str, known: Sequence[str]) -> Problem:
    """The problem of an option that a group doesn't have."""
    if sentence := instead(group, name):
        return Problem(group, f"{name} {sentence}")
    way = familiar_names.choice(group, name)
    hint = familiar_names.hint(way) or nearest(name.lower(), known)
    more = f"; plugins bring more: pip install {_PLUGINS[group]}" if group in _PLUGINS else ""
    return Problem(group, f"has no {name!r}{hint}; choose one of {', '.join(known)}{more}")


def key(key: str, value: str, config: DictConfig, loader: ConfigLoader) -> Problem:
    """The problem of a key that isn't in a composed configuration.

    Args:
        value: as it was given.
        loader: knows the groups.
    """
    if sentence := instead(key, value):
        return Problem(key, sentence)
    node: Any = config
    where, (name, *rest) = "", key.split(".")
    while rest and (below := _child(node, name)) is not None:
        node, where = below, f"{where}.{name}".lstrip(".")
        name, *rest = rest
    known = list(map(str, node)) if isinstance(node, DictConfig) else []
    if not where:
        known = [section for section in known if section != "hydra"]
        return Problem(key, _at_the_top(name, value, known, config, loader))
    function = None
    with suppress(ConfigError, TypeError, OmegaConfBaseException):
        function = targets.resolve(node["_target_"], "") if "_target_" in node else None
    if function is not None:
        if where == "dataset" and name == "limits":
            return Problem(
                key,
                "is a section of its own: set limits.pixels, "
                "limits.record_bytes ... (see conf/limits)",
            )
        taken = [word for word in targets.arguments(function) if word not in known]
        if name in taken:
            return Problem(
                key, f"is not in the YAML, but {function.__name__} takes it: add it with +{key}=..."
            )
        known = [word for word in known if not word.startswith("_")] + taken
    way = familiar_names.key(f"{where}.{name}", value)
    if way:
        return Problem(key, f"unknown key {name!r}{familiar_names.hint(way)}")
    allowed = f"; {where} has {', '.join(known)}" if known else f"; {where} has no keys"
    arguments = {} if function is None else targets.arguments(function)
    is_open = function is None or any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    if not rest and is_open and _is_open(where):
        allowed += f"; to add one: {program.joined([f'+{key}={value}'])}"
    hint = nearest(name, known) or _elsewhere(name, config)
    return Problem(key, f"unknown key {name!r}{hint}{allowed}")


def _is_open(where: str) -> bool:
    """Whether the schema leaves the names in a mapping open."""
    model: Any = Config
    for part in where.split("."):
        field = model.model_fields.get(part)
        model = parsing.section(field.annotation) if field else None
        if model is None:
            return True
    return False


def _at_the_top(
    name: str, value: str, known: list[str], config: DictConfig, loader: ConfigLoader
) -> str:
    way = familiar_names.key(name, value)
    if way:
        return f"unknown key{familiar_names.hint(way)}"
    if name in TASK_KEYS:
        read = loader.repository.load_config
        tasks = [
            task
            for task in loader.get_group_options("task")
            if (file := read(f"task/{task}")) is not None and name in file.config
        ]
        return f"is a key of task={' | '.join(tasks)}, and not of task={config.task}"
    groups = [str(group) for group in loader.list_groups("") if group != "hydra"]
    hint = _elsewhere(name, config) or nearest(name, {*known, *groups})
    return f"unknown key{hint}; there are {', '.join(sorted({*known, *groups}))}"


def _elsewhere(name: str, config: DictConfig) -> str:
    """The keys of that name in other sections."""
    keys = []
    for section in (str(top) for top in config if top != "hydra"):
        node = _child(config, section)
        below = map(str, node) if isinstance(node, DictConfig) else ()
        keys += [section] * (section == name)
        keys += [f"{section}.{inner}" for inner in below if inner == name]
    return f" (did you mean {' or '.join(keys[:3])}?)" if keys else ""


def _child(node: object, part: str) -> object:
    """A node's value; None if it has none."""
    try:
        return node[part] if isinstance(node, DictConfig) else None
    except OmegaConfBaseException:
        return None
