"""Whether a node's arguments fit the callable that its `_target_` names, without calling it.

Unknown names (with the nearest that exists), missing ones (less those that the build supplies) and
values that plainly contradict their annotation.
An annotation that cannot be judged on a plain value lets everything pass.

Cost: about 0.1 ms a node.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

from pipeline.config.messages import not_allowed
from pipeline.config.parsing import unknown_key
from pipeline.errors import Problem

# Keys of a node that are no arguments of its callable.
SPECIAL = frozenset({"_target_", "_args_", "_partial_", "_convert_", "_recursive_"})

# What torchmetrics.Metric takes out of its **kwargs by hand.
_METRIC_OPTIONS = (
    "compute_on_cpu", "dist_sync_on_step", "process_group", "dist_sync_fn",
    "distributed_available_fn", "sync_on_compute", "compute_with_cache",
)  # fmt: skip

# Annotations that are narrower than what is documented and accepted.
_WRONG_HINTS = frozenset({("RandomErasing", "value")})

_Parameter = inspect.Parameter


class Arguments:
    """The arguments that a callable takes.

    Attributes:
        names: those that can be given by name.
        defaults: value by name.
        required: those without a default.
        positional: those that positional arguments fill, in order.
        open: whether any other name is taken too.
        many: whether any number of positional arguments is taken.
        hints: annotation by name, where it can be evaluated.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = _parameters(function)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        fillable = (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
        self.names = [p.name for p in named]
        self.defaults = {p.name: p.default for p in named if p.default is not p.empty}
        self.required = [p.name for p in named if p.default is p.empty]
        self.positional = [p.name for p in parameters if p.kind in fillable]
        self.many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.hints = {
            name: hint
            for name, hint in _hints(function).items()
            if (_name(function), name) not in _WRONG_HINTS
        }
        if self.open:
            self._follow(function)

    def accepts(self, name: str, value: Any) -> bool:
        """Whether a plain value can be meant for an argument."""
        if name in self.defaults and value is self.defaults[name]:
            return True  # `size: int = None` is written more often than it should be
        return fits(value, self.hints[name])

    def _follow(self, function: Callable[..., Any]) -> None:
        """Learn what **kwargs take from whoever they are handed on to, where that is known."""
        for further in _handed_on(function):
            if further is None:
                return
            self.names += [name for name in further if name not in self.names]
        self.open = False


@lru_cache(maxsize=512)
def arguments(function: Callable[..., Any]) -> Arguments:
    """The arguments of a callable."""
    return Arguments(function)


def _parameters(function: Callable[..., Any]) -> list[_Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C without a signature: anything goes
        return [_Parameter("args", _Parameter.VAR_POSITIONAL),
                _Parameter("kwargs", _Parameter.VAR_KEYWORD)]  # fmt: skip


def _handed_on(function: Callable[..., Any]) -> Iterator[list[str] | None]:
    """Names taken further on, from each in turn; None where that cannot be known."""
    if isinstance(function, type):
        yield from _bases(function)
        return
    made = _hints(function).get("return")
    if function.__module__.startswith("torchvision.models") and isinstance(made, type):
        # A builder of torchvision hands its **kwargs on to the class that it returns.
        yield None if arguments(made).open else arguments(made).names
    else:
        yield None


def _bases(cls: type) -> Iterator[list[str] | None]:
    """The arguments of the base classes, up to the first that takes no **kwargs."""
    for base in cls.__mro__[1:]:
        if f"{base.__module__}.{base.__name__}" == "torchmetrics.metric.Metric":
            yield list(_METRIC_OPTIONS)
            return
        if base is object or "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        yield [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return
    yield None


def check(
    function: Callable[..., Any], node: Mapping[str, Any], key: str, supplied: Collection[str] = ()
) -> list[Problem]:
    """What is wrong with the arguments of one node.

    Args:
        node: `_target_` and its arguments.
        key: full key of the node.
        supplied: names that the build puts in when the callable takes them.
    """
    known = arguments(function)
    given = [name for name in node if name not in SPECIAL]
    positional = node["_args_"] if isinstance(node.get("_args_"), list) else []
    problems = [
        unknown_key(f"{key}.{name}", str(name), known.names, f"argument of {_name(function)}")
        for name in given
        if name not in known.names and not known.open
    ]
    if len(positional) > len(known.positional) and not known.many:
        problems.append(Problem(
            f"{key}._args_", f"{len(positional)} positional arguments, but {_name(function)} takes "
            f"{len(known.positional)}"
        ))  # fmt: skip
    if not node.get("_partial_"):
        # A misspelt name has been reported; what it was meant for is not missing as well.
        meant = _meant(given, known)
        filled = {*given, *supplied, *meant, *known.positional[: len(positional)]}
        problems += [
            Problem(f"{key}.{name}", f"is missing; {_name(function)} needs it")
            for name in known.required
            if name not in filled
        ]
    problems += [
        Problem(f"{key}.{name}", not_allowed(node[name], allowed_by(known.hints[name])))
        for name in given
        if name in known.hints and not known.accepts(name, node[name])
    ]
    return problems


def _meant(given: Sequence[str], known: Arguments) -> set[str]:
    """The names that misspelt ones were probably meant for."""
    unknown = [name for name in given if name not in known.names]
    return {near for name in unknown for near in get_close_matches(name, known.names, n=1)}


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(function, "__init__", function)
                                     if isinstance(function, type) else function)  # fmt: skip
    except Exception:  # an annotation for type checkers only, which cannot be evaluated here
        return {}


_TENSOR = ("torch", "Tensor")  # by name: `--help` does not wait for torch
_PLAIN = (int, float, bool, str, types.NoneType)


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be meant by an annotation; True where that cannot be known."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, member) for member in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in _PLAIN:
        return _fits_plain(value, hint)
    if origin in (list, tuple, Sequence):
        return isinstance(value, (list, tuple)) or _is_node(value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if (getattr(hint, "__module__", ""), getattr(hint, "__qualname__", "")) == _TENSOR:
        return _is_node(value)  # a configuration cannot write it down
    return True


def _fits_plain(value: Any, hint: Any) -> bool:
    if _is_node(value):
        return True
    if hint is float:
        return _is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _is_node(value: Any) -> bool:
    """Whether a value is yet to be built, and so may become anything."""
    return isinstance(value, Mapping) and "_target_" in value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text",
          types.NoneType: "null"}  # fmt: skip


def allowed_by(hint: Any) -> str:
    """An annotation in words."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(allowed_by(member) for member in get_args(hint))
    if origin is Literal:
        return " | ".join(map(str, get_args(hint)))
    if origin in (list, tuple, Sequence):
        return "a list"
    if origin in (dict, Mapping):
        return "a mapping"
    return _WORDS.get(hint, str(getattr(hint, "__name__", hint)))
