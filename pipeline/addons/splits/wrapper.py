"""Applies `dataset.split` and `dataset.folds`: reads all rows and keeps the split's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.addons.filters.kept import KeptRows, kept_rows
from penstock.addons.filters.selection import Selection
from penstock.addons.splits.division import SPLITS, Division
from penstock.config.nodes import called
from penstock.config.signatures import arguments
from penstock.errors import ConfigError, Problem
from penstock.loading.dataset_facts import table_of
from penstock.loading.wrapped import unfiltered

if TYPE_CHECKING:
    from penstock.build.data import Split


def opened(split: Split) -> Any:
    """The dataset with all its rows: those that train where it divides none itself."""
    train = split.data.train
    key, node = train.node
    names = arguments(called(node)).names
    none: dict[str, Any] = {
        name: 0.0 for name in ("val_fraction", "test_fraction") if name in names
    }
    return train.built(key, {**node, **none}, split.decodes)


def divided(split: Split, dataset: Any, division: Mapping[str, Any]) -> Any:
    """The rows of one split, of the dataset with all of them or those that filters leave."""
    every = unfiltered(dataset)
    kept = np.arange(len(every))
    if isinstance(dataset, KeptRows):
        kept = np.flatnonzero(dataset.selection.mask(0, len(every)))
    table: Any = table_of(every, split.data.fields)

    def column(name: str, key: str) -> Any:
        known = [] if table is None else list(map(str, table.columns))
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has no table of metadata"
            raise ConfigError(Problem(key, f"the dataset has no column {name!r}; {has}"))
        return np.asarray(table[name])[kept]

    names: Any = getattr(every, "names", None)
    is_named = isinstance(names, np.ndarray) and len(names) == len(every)
    if reason := getattr(every, "undivided", ""):
        raise ConfigError(Problem("dataset.split", reason))
    of = Division(**division).of(len(kept), column, names[kept] if is_named else None)
    chosen = of == SPLITS.index(split.name)
    mask = np.zeros(len(every), np.bool_)
    mask[kept[chosen]] = True
    if not chosen.any():
        reason = f"leaves no row to the {split.name} split, of {len(kept)}"
        raise ConfigError(Problem("dataset.split", reason))
    if hasattr(every, "learn_from"):  # else it would know rows that validate
        every.learn_from(kept[of == SPLITS.index("train")])
    if hasattr(every, "serve"):  # else its samples would be those of training
        every.serve(split.name)
    return kept_rows(every, Selection([mask]), {})
