"""Whether a node's arguments fit the callable that its `_target_` names, without calling it.

Finds unknown and missing names, and values that contradict their annotation; an annotation that
cannot be judged on a plain value accepts everything. Cost: about 0.1 ms a node.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le

from penstock.config.messages import describe, not_allowed
from penstock.config.parsing import unknown_key
from penstock.errors import Problem

# Keys of a node that are no arguments of its callable.
SPECIAL = frozenset({"_target_", "_args_", "_partial_", "_convert_", "_recursive_"})

# What torchmetrics.Metric takes out of its **kwargs by hand.
_METRIC_OPTIONS = (
    "compute_on_cpu",
    "dist_sync_on_step",
    "process_group",
    "dist_sync_fn",
    "distributed_available_fn",
    "sync_on_compute",
    "compute_with_cache",
)

# Annotations that are narrower than what is documented and accepted.
_WRONG_HINTS = frozenset({("RandomErasing", "value")})

_Parameter = inspect.Parameter
_NOTHING = object()


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

    def __init__(self, function: Callable[..., object]) -> None:
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
            further, self.open = _passed_on(function)
            self.names += [name for name in further if name not in self.names]


@lru_cache(maxsize=512)
def arguments(function: Callable[..., Any]) -> Arguments:
    """The arguments of a callable."""
    return Arguments(function)


def _parameters(function: Callable[..., object]) -> list[_Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C without a signature: anything goes
        return [
            _Parameter("args", _Parameter.VAR_POSITIONAL),
            _Parameter("kwargs", _Parameter.VAR_KEYWORD),
        ]


def _passed_on(function: Callable[..., object]) -> tuple[list[str], bool]:
    """Names that **kwargs take from the callable they are passed to, and whether it is open."""
    if isinstance(function, type):
        return _of_bases(function)
    made = _hints(function).get("return")
    if function.__module__.startswith("torchvision.models") and isinstance(made, type):
        # A builder of torchvision passes its **kwargs on to the class that it returns.
        known = arguments(made)
        return ([], True) if known.open else (known.names, False)
    return [], True


def _of_bases(cls: type) -> tuple[list[str], bool]:
    """The same of the base classes, up to the first that takes no **kwargs."""
    names: list[str] = []
    for base in cls.__mro__[1:]:
        if f"{base.__module__}.{base.__name__}" == "torchmetrics.metric.Metric":
            return [*names, *_METRIC_OPTIONS], False
        if base is object or "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names += [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, False
    return names, True


def check(
    function: Callable[..., Any], node: Mapping[str, Any], key: str, supplied: Collection[str] = ()
) -> list[Problem]:
    """The problems with the arguments of one node.

    Args:
        node: `_target_` and its arguments.
        key: full key of the node.
        supplied: names that the build puts in when the callable takes them.
    """
    known = arguments(function)
    named = [name for name in node if name not in SPECIAL]
    unknown = [name for name in named if name not in known.names]
    positional = node["_args_"] if isinstance(node.get("_args_"), list) else []
    problems = [
        unknown_key(f"{key}.{name}", str(name), known.names, f"argument of {_name(function)}")
        for name in unknown
        if not known.open
    ]
    if len(positional) > len(known.positional) and not known.many:
        problems.append(
            Problem(
                f"{key}._args_",
                f"{len(positional)} positional arguments, but {_name(function)} takes "
                f"{len(known.positional)}",
            )
        )
    if not node.get("_partial_"):
        # A misspelt name has been reported; what it was meant for is not missing as well.
        meant = [near for name in unknown for near in get_close_matches(name, known.names, n=1)]
        filled = {*named, *supplied, *meant, *known.positional[: len(positional)]}
        problems += [
            Problem(f"{key}.{name}", f"is missing; {_name(function)} needs it")
            for name in known.required
            if name not in filled
        ]
    problems += [
        Problem(f"{key}.{name}", not_allowed(node[name], describe(known.hints[name])))
        for name in named
        # `size: int = None` is written more often than it should be
        if name in known.hints
        and node[name] is not known.defaults.get(name, _NOTHING)
        and not fits(node[name], known.hints[name])
    ]
    return problems


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _hints(function: Callable[..., object]) -> dict[str, object]:
    made = getattr(function, "__init__", function) if isinstance(function, type) else function
    names = getattr(inspect.unwrap(made), "__globals__", {})
    hints: dict[str, object] = {}
    for name, annotation in getattr(made, "__annotations__", {}).items():
        with suppress(Exception):  # one for type checkers only, which cannot be evaluated here
            one = types.SimpleNamespace(__annotations__={name: annotation})
            hints |= typing.get_type_hints(one, names, include_extras=True)
    return hints


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be meant by an annotation; True where that cannot be known."""
    origin = get_origin(hint)
    if origin is Annotated:
        return fits(value, hint.__origin__) and all(
            _within(value, bound) for bound in hint.__metadata__
        )
    if origin in (Union, types.UnionType):
        return any(fits(value, member) for member in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if isinstance(value, Mapping) and "_target_" in value:
        return True  # it is yet to be built, and may become anything
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if hint in (bool, str, types.NoneType):
        return isinstance(value, hint)
    if origin in (list, Sequence):
        return isinstance(value, (list, tuple)) and all(fits(v, get_args(hint)[0]) for v in value)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if origin in (dict, Mapping):
        entries = value.values() if isinstance(value, Mapping) else ()
        hints = (*get_args(hint), Any, Any)[:2]
        return isinstance(value, Mapping) and all(fits(entry, hints[1]) for entry in entries)
    # A configuration cannot write a tensor. By name: `--help` does not wait for torch.
    name = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
    return name != "torch.Tensor"


def _within(value: Any, bound: Any) -> bool:
    """Whether a number lies within a bound of `penstock.ranges`."""
    if isinstance(bound, Ge):
        return bool(value >= bound.ge)
    if isinstance(bound, Gt):
        return bool(value > bound.gt)
    return not isinstance(bound, Le) or bool(value <= bound.le)
