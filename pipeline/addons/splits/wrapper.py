"""Applies `dataset.split` and `dataset.folds`: reads all rows and keeps the split's own."""

from __future__ import annotations

from typing import Any

from penstock.build.wrapper import SplitWrapper
from penstock.config.nodes import called, of_the_build
from penstock.config.signatures import arguments
from penstock.errors import ConfigError, Problem


class Splits(SplitWrapper):
    """Divides the rows of a dataset that are not divided otherwise."""

    def opened(self) -> Any:
        """The dataset with all its rows: those that train where it divides none itself."""
        if not self._said:
            return None
        train = self.split.data.train
        key, node = train.node
        names = arguments(called(node)).names
        none: dict[str, Any] = {
            name: 0.0 for name in ("val_fraction", "test_fraction") if name in names
        }
        return train.built(key, {**node, **none}, self.split.decodes)

    def wrapped(self, dataset: Any) -> Any:
        if not self._said:
            return dataset
        import numpy as np

        from penstock.addons.filters.kept import KeptRows, kept_rows
        from penstock.addons.filters.selection import Selection
        from penstock.addons.splits.division import SPLITS, Division
        from penstock.loading.dataset_facts import table_of
        from penstock.loading.wrapped import unfiltered

        every = unfiltered(dataset)
        kept = np.arange(len(every))
        if isinstance(dataset, KeptRows):
            kept = np.flatnonzero(dataset.selection.mask(0, len(every)))
        table: Any = table_of(every, self.split.data.fields)

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
        of = Division(**self._said).of(len(kept), column, names[kept] if is_named else None)
        chosen = of == SPLITS.index(self.split.name)
        mask = np.zeros(len(every), np.bool_)
        mask[kept[chosen]] = True
        if not chosen.any():
            reason = f"leaves no row to the {self.split.name} split, of {len(kept)}"
            raise ConfigError(Problem("dataset.split", reason))
        if hasattr(every, "learn_from"):  # else it would know rows that validate
            every.learn_from(kept[of == SPLITS.index("train")])
        if hasattr(every, "serve"):  # else its samples would be those of training
            every.serve(self.split.name)
        return kept_rows(every, Selection([mask]), {})

    @property
    def _said(self) -> dict[str, Any]:
        node = self.split.config.dataset
        said = {name: of_the_build(node, name) for name in ("folds", "fold")}
        return {**(of_the_build(node, "split") or {}), **said} if _any(node) else {}


def _any(node: Any) -> bool:
    return any(of_the_build(node, name) is not None for name in ("split", "folds", "fold"))
