"""Rules on what chooses rows, and on what rows cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.addons.filters.costs import TOKENS, Arithmetic
from penstock.addons.filters.expressions import Expression, no_column
from penstock.config.messages import nearest, not_allowed
from penstock.config.nodes import SPLITS, Parts, choices_of_rows, datasets, datasets_found, filters
from penstock.config.schema import Config
from penstock.errors import ConfigError
from penstock.order.streams import is_stream


def rows(config: Config, parts: Parts) -> Iterator[str]:
    """Filters, and what else chooses rows: expressions, names of columns and rows, files."""
    of_splits = {"dataset": [f"dataset.{name}" for name in SPLITS]}
    for where, choices in choices_of_rows(config.dataset):
        kinds = [
            kind
            for key, kind in ((key, parts.get(key)) for key, _ in datasets(config.dataset))
            if kind is not None and where in ("dataset", key, *of_splits.get(key, ()))
        ]
        for kind in kinds:
            if is_stream(kind):
                yield (
                    f"{where}.{next(iter(choices))}: chooses rows by index, and {kind.__name__} is "
                    "a stream, which can only be read forwards; leave records out where it yields "
                    "them, or read the data with a dataset of rows"
                )
        columns: list[Any] = [getattr(kind, "columns", None) for kind in kinds]
        known = [names for names in columns if isinstance(names, (list, tuple))]
        for key, condition in filters(choices, where):
            if isinstance(condition, Mapping) and "_target_" in condition:
                continue
            if not isinstance(condition, str):
                allowed = "an expression, a node with _target_, or a list"
                yield f"{key}: {not_allowed(condition, allowed)}"
                continue
            try:
                expression = Expression(condition, key)
                for names in known:
                    expression.check(names)
            except ConfigError as error:
                yield from map(str, error.problems)
        column = choices.get("unique")
        if column is not None and not isinstance(column, str):
            yield f"{where}.unique: {not_allowed(column, 'the name of a column')}"
        elif column is not None:
            yield from (
                f"{where}.unique: {no_column(column, names)}"
                for names in known
                if column not in names
            )
        yield from _left_out(f"{where}.without", choices.get("without"))


def _left_out(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, str):
        if not Path(value).is_file():
            yield f"{key}: there is no file {value!r}; give a quarantine.csv, or a list of rows"
        return
    by_split = value if isinstance(value, Mapping) else {"train": value}
    listed = all(
        isinstance(rows, list) and all(type(row) is int for row in rows)
        for rows in by_split.values()
    )
    if not listed or not by_split.keys() <= {"train", "val"}:
        allowed = "rows of the training split, {train: rows, val: rows}, or a quarantine.csv"
        yield f"{key}: {not_allowed(value, allowed)}"


def balance(config: Config, parts: Parts) -> Iterator[str]:
    """Ranks are balanced by columns that the dataset has; of rows in blocks, by their tokens."""
    try:
        names = Arithmetic(config.batch.balance, "batch.balance").columns
    except ConfigError as error:
        yield from map(str, error.problems)
        return
    if config.batch.size is None:
        yield (
            "batch.balance: deals the rows of a batch to ranks, but batch.size=null passes samples "
            "through one by one; set batch.size, or batch.balance=null"
        )
    if getattr(parts.get("sampler"), "packs", False):
        others = [name for name in names if name != TOKENS]
        if others:
            yield (
                f"batch.balance: {others[0]!r}, but the sampler packs rows into blocks, of which "
                f"only the number of each row's {TOKENS} is known; write e.g. {TOKENS} ** 2"
            )
        return
    for key, dataset in datasets_found(config, parts):
        if key == "dataset.val":
            continue
        if is_stream(dataset):
            yield (
                f"batch.balance: {dataset.__name__} is a stream, whose rows have no costs before "
                "they are read; set batch.balance=null"
            )
            continue
        known = getattr(dataset, "columns", None)
        if not isinstance(known, (list, tuple)):  # the build finds out
            continue
        for name in names:
            if name not in known:
                yield (
                    f"batch.balance: {dataset.__name__} has no metadata column {name!r}"
                    f"{nearest(name, known)}; it has {', '.join(known)}"
                )
