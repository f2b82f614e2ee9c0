"""torchmetrics, of which a run needs a few classes.

Its package imports all of its metrics, with scipy and transformers where these are installed: 1 s
of CPU, or a third of a first step. After `install`, the packages `torchmetrics` and
`torchmetrics.functional` are in `sys.modules` before their code has run, and a module inside is
imported alone. The code runs when something is asked for that is not there: nothing is missing.

The command line alone calls `install`; in a program of somebody's own, imports are theirs. Tested
with torchmetrics 1.9.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

_running = RLock()


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # The module `warnings`, for one, asks this of all modules, and needs no metrics for it.
        if name in ("__warningregistry__", "__wrapped__"):
            raise AttributeError(name)
        if inside := sys.modules.get(f"{self.__name__}.{name}"):
            return inside
        # Modules inside ask for it while they are imported; the package would import them again.
        if (self.__name__, name) == ("torchmetrics", "Metric"):
            return import_module("torchmetrics.metric").Metric
        with _running:  # another thread waits until all of it is there
            import_module("torchmetrics.utilities")  # in another order, it and `metric` fail
            if vars(self).pop("_is_waiting", False):
                self.__loader__.exec_module(self)  # type: ignore[union-attr]
        return super().__getattribute__(name)


def install() -> None:
    """Let torchmetrics be imported late, from now on, unless it is there."""
    for name in ("torchmetrics", "torchmetrics.functional", "torchmetrics.metric"):
        if name not in sys.modules and (spec := find_spec(name)):
            module = sys.modules[name] = module_from_spec(spec)
            module.__class__ = _Late
            # What modules inside ask the package for.
            vars(module).update(_is_waiting=True, _logger=logging.getLogger("torchmetrics"))
