"""Environment variables that a configuration reads: noted, and kept from leaving the machine.

`${oc.env:NAME}` is for paths and numbers that differ between machines, but a configuration from a
stranger can ask for credentials too. So the variables behind each key are noted however an
interpolation leads there, and files get what was written instead of the value. In addresses,
headers and options of stores a variable is refused unless the command line has --allow-env NAME.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from penstock import installed
from penstock.config import disclosure
from penstock.config.disclosure import Origin, Plain
from penstock.config.messages import allowing
from penstock.errors import Problem

VARIABLE = "PENSTOCK_ALLOW_ENV"

# Numbers of threads, choices of devices and whether something is said. A name belongs here if no
# value of it makes a library load a file, run a program or talk to another machine.
HARMLESS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "VECLIB_MAXIMUM_THREADS",
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEAVING = re.compile(
    "(options|headers?|kwargs|prox(y|ies)|params|cookies|endpoint|url|uri|address)$", re.IGNORECASE
)
_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.\-])(?!file:)[A-Za-z][A-Za-z0-9+.\-]*://", re.IGNORECASE)
_STAYS = (".cache_dir",)  # of `Files`: where on this machine

_names: ContextVar[list[str] | None] = ContextVar("names", default=None)
_origins: ContextVar[dict[str, Origin] | None] = ContextVar("origins", default=None)
_read: dict[str, str] = {}  # what was read by this process -> its name


def check_allowed(names: list[str]) -> list[Problem]:
    """Problems with the names that --allow-env was given."""
    return [
        Problem("--allow-env", f"{name!r} is not the name of a variable such as DATA_ROOT")
        for name in names
        if not _NAME.fullmatch(name)
    ]


@contextmanager
def _resolving(function: Callable[..., object]) -> Iterator[None]:
    """Let `${oc.env:...}` be resolved by `function`."""
    OmegaConf.register_new_resolver("oc.env", function, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


@contextmanager
def traced() -> Iterator[dict[str, Origin]]:
    """Note what comes from the environment in everything that is resolved meanwhile, by key."""
    origins: dict[str, Origin] = {}
    token = _origins.set(origins)
    try:
        with _resolving(_env):
            yield origins
    finally:
        _origins.reset(token)


@contextmanager
def reading() -> Iterator[list[str]]:
    """The names of variables that are read meanwhile, if anything traces them."""
    names: list[str] = []
    token = _names.set(names)
    try:
        yield names
    finally:
        _names.reset(token)
    outer = _names.get()
    if outer is not None:
        outer += names


def note(key: str, text: object, names: list[str], value: Any) -> None:
    """Note that the value at `key`, written as `text`, came from the variables `names`."""
    origins = _origins.get()
    if origins is not None and names:
        written = text if isinstance(text, str) else f"${{oc.env:{names[0]}}}"
        origins[key] = Origin(written, tuple(dict.fromkeys(names)), value)


def _env(*arguments: Any) -> object:
    value = oc.env(*arguments)
    names = _names.get()
    if names is not None:
        names.append(str(arguments[0]))
    if len(str(value)) >= 4:  # shorter ones stand everywhere
        _read[str(value)] = str(arguments[0])
    return value


def unresolved(text: str) -> str:
    """`text` with values that this process read from the environment replaced by their names.

    Passwords in URLs are masked first: a name in the middle of a URL would hide it as one.
    """
    text = disclosure.urls(text)
    for value in sorted(_read, key=len, reverse=True):
        text = text.replace(value, f"${{oc.env:{_read[value]}}}")
    return text


def unread() -> AbstractContextManager[None]:
    """Let `${oc.env:NAME}` give `$NAME`, for what only shows a configuration."""
    return _resolving(lambda name, *_: f"${name}")


def check(config: Plain) -> list[Problem]:
    """Refuse variables whose values would leave this machine, unless they were named."""
    free = os.environ.get(VARIABLE, "").split(",")
    problems = []
    for key, origin in config.origins.items():
        names = [name for name in origin.names if name not in free]
        where = _leaves(config, key, origin) if names else ""
        if where:
            reason = (
                f"{origin.text} would send {', '.join(names)} of the environment away from this "
                f"machine, {where}. If it may: {allowing('--allow-env', ','.join(names), 'NAME')}"
            )
            problems.append(Problem(key, reason))
    return problems


def _leaves(config: Mapping[str, Any], key: str, origin: Origin) -> str:
    """How a value would leave the machine; empty if it stays."""
    if any(_ADDRESS.search(text) for text in (*_texts(origin.value), origin.text)):
        return "inside of an address"
    sent = (node for sends in installed.asked(config, "sends") for node in sends.sent(config))
    if any(key.startswith(f"{node}.") for node in sent):
        return "to a tracker's server"
    if any(_LEAVING.search(part) for part in re.split(r"[.\[\]]+", key)):
        return "in the options of a store"
    beside = _part_of(config, key)
    if not key.endswith(_STAYS) and any(_ADDRESS.match(text) for text in _texts(beside)):
        return "as a name below the address that stands beside it"
    return ""


def _part_of(config: Mapping[str, object], key: str) -> object:
    """The innermost part (a mapping with a _target_) that a key is in; {} if it is in none."""
    node: Any = config
    part: object = {}
    for name in re.split(r"[.\[\]]+", key.rstrip("]")):
        if isinstance(node, Mapping):
            part = node if "_target_" in node else part
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
    return part


def _texts(node: object) -> Iterator[str]:
    """Every text at any depth, names of keys included."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        yield from _texts([*map(str, node), *node.values()])
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _texts(value)
