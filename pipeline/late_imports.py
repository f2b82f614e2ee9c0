"""Packages of others whose import takes long, and of which a first step needs next to nothing.

    torchmetrics    1 s of CPU: its package imports all metrics, with scipy and transformers where
                    these are installed, and a configuration names a few
    torch._dynamo   0.7 s, with sympy: torchvision, torch's optimizers and process groups ask it for
                    some functions, which do nothing where nothing is compiled

After `install`, they are in `sys.modules` before their code has run. The code runs when something
is asked for that is not there: nothing is missing. A module inside of torchmetrics is imported
alone; one of the compiler's after its package.

The command line alone calls `install`; in a program of somebody's own, imports are theirs. Tested
with torchmetrics 1.9 and torch 2.15.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

_running = RLock()
_DYNAMO = "torch._dynamo"


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # The module `warnings`, for one, asks this of all modules, and needs no code for it; each
        # `from a.b import c` asks whether b is a package.
        own = vars(self).get("_waiting", {})
        if name in {"__warningregistry__", "__wrapped__", "__path__"} - own.keys():
            raise AttributeError(name)
        if inside := sys.modules.get(f"{self.__name__}.{name}"):
            return inside
        # Modules inside ask for it while they are imported; the package would import them again.
        if (self.__name__, name) == ("torchmetrics", "Metric"):
            return import_module("torchmetrics.metric").Metric
        with _running:  # another thread waits until all of it is there
            import_module(vars(self)["_first"])
            if vars(self).pop("_waiting", None) is not None:
                vars(self).pop("trace_rules", None)  # which its modules import
                vars(self).update(own)
                self.__loader__.exec_module(self)  # type: ignore[union-attr]
        return super().__getattribute__(name)


def install() -> None:
    """Let these be imported late, from now on, unless they are there."""
    for name in ("torchmetrics", "torchmetrics.functional", "torchmetrics.metric"):
        if name not in sys.modules and (spec := find_spec(name)):
            # The logger is what modules inside ask the package for.
            _put(spec, "torchmetrics.utilities", _logger=logging.getLogger("torchmetrics"))
    if "torch" not in sys.modules and (torch := find_spec("torch")):
        compiler: Any = _put(
            PathFinder.find_spec(_DYNAMO, torch.submodule_search_locations),
            "torch",
            graph_break=lambda *args, **options: None,
            # A group of ranks empties its caches.
            trace_rules=SimpleNamespace(clear_lru_cache=lambda: None),
            # A function is only marked as one that is not compiled: until there is a compiler, none
            # is, and then it knows it by the mark.
            disable=lambda function=None, *args, **options: (
                vars(function).update(_torchdynamo_disable=True) or function
                if isinstance(function, FunctionType)
                else [compiler.config, compiler.disable][1](function, *args, **options)
            ),
        )
        path = compiler._waiting["__path__"] = vars(compiler).pop("__path__")
        utilities: Any = _put(
            PathFinder.find_spec(f"{_DYNAMO}.utils", path),
            f"{_DYNAMO}.config",  # which runs the package's code
            get_optimize_ddp_mode=lambda: "ddp_optimizer",  # its default
            is_compile_supported=lambda device: [
                utilities.counters,
                utilities.is_compile_supported,
            ][1](device),
        )


def _put(spec: Any, first: str, **names: Any) -> Any:
    """A module whose code waits, with names that need none; `first` is imported before it runs."""
    module: Any = module_from_spec(spec)
    module.__class__ = _Late
    vars(module).update(names, _first=first, _waiting={})
    sys.modules[spec.name] = module
    return module
