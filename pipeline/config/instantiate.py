"""Plain values to objects: the one place where a `_target_` is called.

Every name goes through `config/allow_list.py` and then through hydra's `instantiate`, which has a
gate of its own; the very object that was checked is called. Arguments are built inside out from
plain values, and never read again as YAML or as interpolations, which could hide an unchecked
`_target_`. A `_partial_` is a plain functools.partial: hydra's own costs 130 us a call.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from hydra.utils import instantiate

from penstock.config import allow_list
from penstock.config.signatures import SPECIAL, arguments
from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.files.pretrained import read_weights_as_tensors

_DTYPES = {
    f"torch.{name}": getattr(torch, name)
    for name in ("uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}
_KNOWN = ("torch.", "torchvision.", "torchmetrics.", "penstock.", "albumentations.", "skimage.")


def make(node: Any, key: str, supply: Mapping[str, Any] | None = None, nested: bool = False) -> Any:
    """Build a tree of plain values: mappings with a `_target_` become what it makes.

    Args:
        node: plain values; text such as "torch.float32" becomes the dtype.
        key: full key of the node, for messages.
        supply: arguments for the callable at the root, by name, where it takes them and the node
            doesn't set them. A value that is a `Lazy` is computed when it is taken.
        nested: supply them to the nodes inside as well.

    Raises:
        ConfigError: a name may not be called, or a part refuses its arguments.
    """
    inner = supply if nested else None
    if isinstance(node, Mapping):
        values = {
            name: make(value, f"{key}.{name}", inner, nested)
            for name, value in node.items()
            if name not in SPECIAL
        }
        if "_target_" not in node:
            return values
        places = node.get("_args_", [])
        positional = [make(v, f"{key}._args_[{i}]", inner, nested) for i, v in enumerate(places)]
        function = _function(node["_target_"], f"{key}._target_")
        known = arguments(function)
        taken = {*known.positional[: len(positional)], *values}
        supplied = {
            name: value.compute() if isinstance(value, Lazy) else value
            for name, value in (supply or {}).items()
            if name in known.names and name not in taken
        }
        values = supplied | values
        if node.get("_partial_", False):
            return partial(function, *positional, **values)
        return _call(function, positional, values, key)
    if isinstance(node, (list, tuple)):
        return [make(value, f"{key}[{i}]", inner, nested) for i, value in enumerate(node)]
    return _DTYPES.get(node, node) if isinstance(node, str) else node


@dataclass(frozen=True)
class Lazy:
    """A supplied argument that is computed only if something takes it."""

    compute: Callable[[], Any]


@lru_cache(maxsize=512)
def _passed_by_hydra(name: str) -> Any:
    """The object that hydra finds under a name and would call, past its own checks."""
    return instantiate({"_target_": name, "_partial_": True}, _convert_="all").func


def _function(name: str, key: str) -> Any:
    function = allow_list.resolve(name, key)
    try:
        located = _passed_by_hydra(name)
    except Exception as error:
        raise ConfigError(Problem(key, f"hydra refuses {name}: {error}")) from error
    if located is not function and located != function:  # bound methods are made anew, but equal
        raise ConfigError(Problem(key, f"{name} changed between its check and its call"))
    if name.startswith("torchvision.models."):
        read_weights_as_tensors()
    return function


def _call(function: Any, positional: list[Any], values: dict[str, Any], key: str) -> Any:
    home = getattr(function, "__module__", None) or ""
    try:
        return function(*positional, **values)
    except ConfigError as error:
        raise ConfigError([_inside(problem, key) for problem in error.problems]) from error
    except PenstockError:
        raise
    except Exception as error:
        if home.startswith("torchvision.datasets.") and _is_of_files(error):
            what = str(error) or type(error).__name__
            raise DataError(
                f"{key}: {function.__name__}: its files cannot be read: {what}"
            ) from error
        if not isinstance(error, (TypeError, ValueError)):
            raise
        if not home.startswith(_KNOWN):
            error.add_note(f"while building {key} ({function.__module__}.{function.__qualname__})")
            raise  # the user's own code: its traceback says more
        raise ConfigError(
            Problem(key, f"{function.__name__} refuses its arguments: {error}")
        ) from error


def _is_of_files(error: Exception) -> bool:
    """Whether a torchvision dataset failed at its files, and not at its arguments.

    Its readers state what they expect by `assert`, by indexing and by whatever numpy or pickle
    raise; its arguments are checked in `__init__` itself and by `verify_str_arg`.
    """
    if not isinstance(error, (TypeError, ValueError)):
        return not isinstance(error, (ImportError, MemoryError))
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.name not in (_call.__name__, "__init__", "verify_str_arg")


def _inside(problem: Problem, key: str) -> Problem:
    """A part's own problem with its key in this configuration."""
    inside = problem.key == key or problem.key.startswith(key + ".")
    if inside or not problem.key:
        return Problem(problem.key or key, problem.message)
    first, _, rest = problem.key.partition(".")
    name = rest if first == key.partition(".")[0] and rest else problem.key
    return Problem(f"{key}.{name}", problem.message)
