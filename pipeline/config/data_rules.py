"""Rules on the keys of `dataset` and `transform` that are ours, for `config/contradictions.py`.

A rule gets the configuration and the callable of each part by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.addons.filters.row_filter import Expression, no_column
from penstock.config.messages import nearest, not_allowed
from penstock.config.nodes import (
    KEPT,
    SPLITS,
    called,
    choices_of_rows,
    datasets,
    filters,
    is_of_a_split,
    of_the_build,
)
from penstock.config.schema import Config
from penstock.distributed import world
from penstock.errors import ConfigError
from penstock.loading.collate import List, Single
from penstock.order.streams import is_stream
from penstock.transforms.image import Normalize

KEY = "dataset.fingerprint"
MODES = ("names", "sizes", "content")
_NEEDS = {"names": ("names_fingerprint",), "content": ("data_files", "path")}


def mode_of(config: Config) -> str:
    """How datasets are told apart, one of MODES."""
    mode: str = config.dataset.get("fingerprint", "sizes")
    return mode


def dataset_keys(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """Names and facts of a dataset, and what `fingerprint` needs of it."""
    for key, node in (("dataset", config.dataset), ("collate", config.collate)):
        names = of_the_build(node, "fields")
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            yield f"{key}.fields: {not_allowed(names, 'names of positions: [image, label]')}"
        elif len(set(names)) != len(names) or not names:
            given = ", ".join(names) or "no name"
            yield f"{key}.fields: got {given}; every position needs a name of its own"
    for split in SPLITS:
        own = config.dataset.get(split) if is_of_a_split(config.dataset, split) else None
        for name in (own or {}).keys() - set(KEPT):
            yield (
                f"dataset.{split}.{name}: unknown{nearest(name, KEPT)}; beside dataset._target_, a "
                f"split may have {', '.join(KEPT)}"
            )
    facts = of_the_build(config.dataset, "facts")
    if facts is not None and not (
        isinstance(facts, Mapping) and all(type(one) is int for one in facts.values())
    ):
        yield f"dataset.facts: {not_allowed(facts, 'whole numbers by name')}"
    if called(config.collate) is Single and config.batch.size is not None:
        yield (
            f"collate: Single takes one sample, and batch.size is {config.batch.size}; set "
            "batch.size=null, or collate=stack"
        )
    mode = mode_of(config)
    if mode not in MODES:
        yield f"{KEY}: {not_allowed(mode, ' | '.join(MODES), MODES)}"
        return
    for name, _ in datasets(config.dataset):
        kind, needed = found.get(name), _NEEDS.get(mode, ())
        if needed and isinstance(kind, type) and not any(hasattr(kind, one) for one in needed):
            yield (
                f"{KEY}: {mode} needs the files of a dataset, and {kind.__name__} does not tell "
                f"them: it has no `{needed[0]}()` (docs/own_dataset.md); add it, or set the key to "
                "sizes"
            )


def packed(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """Packs, given or to be made."""
    where = config.dataset.get("packed")
    if where is not None and (not isinstance(where, str) or not where):
        yield f"dataset.packed: {not_allowed(where, 'auto, the path of a pack, or null')}"
    if where is None and config.task != "pack":
        return
    key = "task" if config.task == "pack" else "dataset.packed"
    for name, _ in datasets(config.dataset):
        kind = found.get(name)
        if isinstance(kind, type) and is_stream(kind):
            yield (
                f"{key}: {kind.__name__} is a stream, which can only be read forwards; packing is "
                "for datasets with rows"
            )
    pack = config.option("pack")
    if pack is not None and pack.format == "encoded" and pack.size is not None:
        yield (
            f"pack.size: {pack.size} would decode the files that pack.format=encoded keeps; "
            "set pack.size=null or pack.format=pixels"
        )


def batch_steps(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """Transforms of batches need stacked fields; mixing needs pairs; pixels are normalised once."""
    for split in ("train", "val"):
        steps, section = _steps(config, f"{split}_batch"), f"transform.{split}_batch"
        if steps and config.batch.size is None:
            yield (
                f"{section}: works on batches, but batch.size=null passes samples through one by "
                f"one; set batch.size, or {section}={{}}"
            )
        if steps and found.get("collate") is List:
            yield (
                f"{section}: works on stacked fields, but collate=list stacks nothing; set "
                "collate=stack"
            )
        first, *others = [
            key
            for key, step in {**_steps(config, split), **steps}.items()
            if isinstance(step, type) and issubclass(step, Normalize)
        ] or [""]
        for other in others:
            yield (
                f"{other}: normalises what {first} has normalised; leave one of them out, "
                f"{first}=null"
            )
        mixing = [key for key, step in steps.items() if getattr(step, "together", 1) > 1]
        if mixing and split == "val":
            yield (
                f"{mixing[0]}: mixes samples of validation, whose metrics are of samples as they "
                "are; move it to transform.train_batch"
            )
        elif mixing:
            yield from _pairs(config, mixing[0])


def _pairs(config: Config, key: str) -> Iterator[str]:
    size, ranks = config.batch.size, world.launched_size()
    if size is None or size % (2 * ranks) == 0:
        return
    low = size // (2 * ranks) * 2 * ranks
    ways = " or ".join(str(one) for one in (low, low + 2 * ranks) if one)
    yield (
        f"batch.size: {size} cannot be cut into pairs for {ranks} process(es), and {key} mixes "
        f"pairs; take {ways}"
    )


def _steps(config: Config, section: str) -> dict[str, Any]:
    """The callables of a section of transforms, by key, without those that are wrong."""
    nodes = getattr(config.transform, section)
    found = {f"transform.{section}.{name}": called(node) for name, node in nodes.items()}
    return {key: step for key, step in found.items() if step is not None}


def rows(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """Filters, and what else chooses rows: expressions, names of columns and rows, files."""
    of_splits = {"dataset": [f"dataset.{name}" for name in SPLITS]}
    for where, given in choices_of_rows(config.dataset):
        kinds = [
            kind
            for key, kind in ((key, found.get(key)) for key, _ in datasets(config.dataset))
            if kind is not None and where in ("dataset", key, *of_splits.get(key, ()))
        ]
        for kind in kinds:
            if is_stream(kind):
                yield (
                    f"{where}.{next(iter(given))}: chooses rows by index, and {kind.__name__} is a "
                    "stream, which can only be read forwards; leave records out where it yields "
                    "them, or read the data with a dataset of rows"
                )
        columns: list[Any] = [getattr(kind, "columns", None) for kind in kinds]
        told = [one for one in columns if isinstance(one, (list, tuple))]
        for key, one in filters(given, where):
            if isinstance(one, Mapping) and "_target_" in one:
                continue
            if not isinstance(one, str):
                yield (
                    f"{key}: {not_allowed(one, 'an expression, a node with _target_, or a list')}"
                )
                continue
            try:
                expression = Expression(one, key)
                for names in told:
                    expression.check(names)
            except ConfigError as error:
                yield from map(str, error.problems)
        column = given.get("unique")
        if column is not None and not isinstance(column, str):
            yield f"{where}.unique: {not_allowed(column, 'the name of a column')}"
        elif column is not None:
            yield from (
                f"{where}.unique: {no_column(column, names)}"
                for names in told
                if column not in names
            )
        yield from _left_out(f"{where}.without", given.get("without"))


def _left_out(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, str):
        if not Path(value).is_file():
            yield f"{key}: there is no file {value!r}; give a quarantine.csv, or a list of rows"
        return
    by_split = value if isinstance(value, Mapping) else {"train": value}
    listed = all(
        isinstance(one, list) and all(type(row) is int for row in one) for one in by_split.values()
    )
    if not listed or not by_split.keys() <= {"train", "val"}:
        allowed = "rows of the training split, {train: rows, val: rows}, or a quarantine.csv"
        yield f"{key}: {not_allowed(value, allowed)}"


RULES = (batch_steps, packed, dataset_keys, rows)
