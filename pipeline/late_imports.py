"""Packages of others whose import takes seconds, and of which a first step needs next to nothing.

    torch._dynamo       1.3 s, with sympy and triton: torchvision and torch's optimizers ask it for
                        three functions, which do nothing where nothing is compiled
    torch.fx.experimental.symbolic_shapes   0.5 s, with sympy: a backward pass from several numbers
                        asks it whether two shapes are equal
    torchmetrics        2.7 s, with scipy, matplotlib and transformers where these are installed:
                        its package imports all metrics, and a configuration names a few

Each is a module in `sys.modules` as ever, whose code runs when something of it is asked for that
is not here already: an attribute, or of `torch._dynamo` any module inside. So nothing is missing,
and nothing is another. `install` is called by the command line alone: in a program of somebody's
own, imports are theirs.

Tested with torch 2.15 and torchmetrics 1.9. Where a package has no such file, nothing is changed.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_UTILITIES = "torchmetrics.utilities"
_DYNAMO, _PLOT = "torch._dynamo", f"{_UTILITIES}.plot"
# Asked of every module by whoever goes through `sys.modules`, as the module `warnings` does.
_ASKED_OF_ALL = frozenset({"__warningregistry__", "__wrapped__", "__path__", "__file__"})


def install() -> None:
    """Let the packages above be imported late, from now on; those that are there stay."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _graph_break(*_: object, **__: object) -> None:
    """As torch's, outside of what is compiled."""


def _disable(fn: Any = None, *arguments: Any, **options: Any) -> Any:
    """As torch's: a function that is not compiled. Until there is a compiler, none is."""
    if not isinstance(fn, FunctionType):
        return _real(_DYNAMO, "disable")(fn, *arguments, **options)
    disabled: list[Any] = []

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _DYNAMO not in _whole:
            return fn(*args, **kwargs)
        if not disabled:
            disabled.append(_real(_DYNAMO, "disable")(fn, *arguments, **options))
        return disabled[0](*args, **kwargs)

    vars(call)["_torchdynamo_disable"] = True  # by which the compiler knows it
    return call


def _is_compile_supported(device_type: Any) -> Any:
    return _real(f"{_DYNAMO}.utils", "is_compile_supported")(device_type)


def _sym_eq(x: Any, y: Any) -> Any:
    if isinstance(x, tuple) and isinstance(y, tuple) and {*map(type, x), *map(type, y)} <= {int}:
        return x == y
    return _real(_SHAPES, "sym_eq")(x, y)


def _expect_true(a: Any, skip: int = 0) -> Any:
    return a if type(a) is bool else _real(_SHAPES, "expect_true")(a, skip + 1)


# What is there before a module's code has run, which then defines the same names.
_LATE: Mapping[str, Mapping[str, Any]] = {
    _DYNAMO: {"graph_break": _graph_break, "disable": _disable},
    f"{_DYNAMO}.utils": {"is_compile_supported": _is_compile_supported},
    _SHAPES: {"sym_eq": _sym_eq, "expect_true": _expect_true},
    "torchmetrics": {"_logger": logging.getLogger("torchmetrics")},
    "torchmetrics.functional": {},
}
_waiting: dict[str, Callable[[], None]] = {}  # runs the code of a module, by name
_whole = set[str]()  # whose code has run
_running = threading.RLock()
_LONGEST = 30.0  # seconds that a thread waits for another's import, which may wait for it


def _real(module: str, name: str) -> Any:
    _run(module)
    return getattr(sys.modules[module], name)


def _run(name: str) -> None:
    """Run a module's code, unless that was done or has begun."""
    if name.startswith(f"{_DYNAMO}."):
        _run(_DYNAMO)  # its modules import each other in the order of the package
    held = _running.acquire(timeout=_LONGEST)
    try:
        code = _waiting.pop(name, None)
        if code is not None:
            code()
            _whole.add(name)
    finally:
        if held:
            _running.release()


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in sys.modules:  # it is loaded again
            return None
        if name not in _LATE and name != _PLOT:
            if name.startswith(f"{_DYNAMO}.") and _DYNAMO in _waiting:
                _run(_DYNAMO)
            elif name.startswith("torchmetrics.") and _UTILITIES not in (name, *sys.modules):
                import_module(_UTILITIES)  # which imports the others so that they find each other
            if name in sys.modules:
                return ModuleSpec(name, _There(sys.modules[name]))
            return None
        inside = name.startswith(f"{_DYNAMO}.") and _DYNAMO not in _waiting
        spec = None if inside else PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = (_WithoutPlots if name == _PLOT else _Late)(spec.loader)
        return spec


class _There(Loader):
    """Gives a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Late(Loader):
    """Runs a module's code when something is asked of it that it does not have."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name, names = module.__name__, vars(module)

        def code() -> None:
            assert module.__spec__ is not None
            module.__spec__.loader = module.__loader__ = self._loader
            self._loader.exec_module(module)
            if names["__getattr__"] is ask:  # and not its own
                del names["__getattr__"]

        def ask(attribute: str) -> Any:
            if attribute not in _ASKED_OF_ALL:
                if (name, attribute) == ("torchmetrics", "Metric"):  # its retrieval asks for it
                    return import_module("torchmetrics.metric").Metric
                inside = f"{name}.{attribute}"
                if name == "torchmetrics" and PathFinder.find_spec(inside, names["__path__"]):
                    return import_module(inside)  # whose names need not those of all others
                _run(name)
                if attribute in names:
                    return names[attribute]
                own = names.get("__getattr__", ask)
                if own is not ask:
                    return own(attribute)
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

        _waiting[name] = code
        names.update(_LATE[name], __getattr__=ask)


class _WithoutPlots(_Late):
    """Imports torchmetrics' plots without matplotlib, until one of them is called."""

    def exec_module(self, module: ModuleType) -> None:
        imports: Any = import_module(f"{_UTILITIES}.imports")
        has = imports._MATPLOTLIB_AVAILABLE, imports._SCIENCEPLOT_AVAILABLE
        imports._MATPLOTLIB_AVAILABLE = imports._SCIENCEPLOT_AVAILABLE = False
        try:
            self._loader.exec_module(module)
        finally:
            imports._MATPLOTLIB_AVAILABLE, imports._SCIENCEPLOT_AVAILABLE = has

        def code() -> None:
            self._loader.exec_module(module)

        _waiting[module.__name__] = code
        for name, value in list(vars(module).items()):
            if name.startswith("plot_"):
                setattr(module, name, _called_late(value))


def _called_late(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _real(_PLOT, function.__name__)(*args, **kwargs)

    return call
