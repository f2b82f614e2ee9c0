"""Penstock: every batch has an address.

    from pipeline import build_train_loader, compose

    loader = build_train_loader(compose("sampler=weighted", "loader.num_workers=4"))
    for batch in loader: ...

Importing this package imports nothing else; the names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.build.data import build_train_loader, build_val_loader
    from pipeline.config.preflight import compose
    from pipeline.notebook import Run

__version__ = "0.1.0"

_HOMES = {
    "build_train_loader": "pipeline.build.data",
    "build_val_loader": "pipeline.build.data",
    "compose": "pipeline.config.preflight",
    "Run": "pipeline.notebook",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


__all__ = ["Run", "build_train_loader", "build_val_loader", "compose"]
