"""Penstock: every batch has an address.

    from penstock import build_train_loader, compose

    loader = build_train_loader(compose("sampler=weighted", "loader.num_workers=4"))
    for batch in loader: ...

Importing this package imports nothing else; the names below are loaded when they are first used.
`__init__.pyi` has them for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "DataLoader": "penstock.loading.dataloader",
    "Loader": "penstock.loading.loader",
    "DataModule": "penstock.addons.frameworks.lightning",
    "TorchLoader": "penstock.addons.frameworks.torch_loader",
    "Run": "penstock.runs.run",
    "build_train_loader": "penstock.build.data",
    "build_val_loader": "penstock.build.data",
    "compose": "penstock.config.compose",
    "gathered": "penstock.distributed.parallel",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
