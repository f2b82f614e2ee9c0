"""Rules on `dataset.split`, `dataset.folds` and `dataset.fold`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.addons.splits.division import KEYS, SPLITS
from penstock.config.messages import nearest, not_allowed
from penstock.config.nodes import Parts, datasets, of_the_build
from penstock.config.schema import Config

_KEY = "dataset.split"
_COLUMNS = ("by", "group", "stratify", "time", "column")
_WAYS = ("group", "stratify", "time", "column", "files")


def divided(config: Config, parts: Parts) -> Iterator[str]:
    """Keys and values, and what excludes each other."""
    node = config.dataset
    said, folds, fold = (of_the_build(node, name) for name in ("split", "folds", "fold"))
    if said is None and folds is None and fold is None:
        return
    said = {} if said is None else said
    if not isinstance(said, Mapping):
        yield f"{_KEY}: {not_allowed(said, 'a mapping, as {val: 0.2, test: 0.1, group: patient}')}"
        return
    if [key for key, _ in datasets(node)] != ["dataset"]:
        yield f"{_KEY}: dataset.train and dataset.val are divided already; leave it out"
    if node.get("packed") is not None:
        yield f"{_KEY}: a pack is of one split; set dataset.packed=null"
    for name in said.keys() - set(KEYS):
        yield f"{_KEY}.{name}: unknown{nearest(str(name), KEYS)}; there are {', '.join(KEYS)}"
    shares = {name: said.get(name, 0.0) for name in ("val", "test")}
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            yield f"{_KEY}.{name}: {not_allowed(share, 'a share, 0 to 1')}"
            return
    if sum(shares.values()) >= 1:
        yield f"{_KEY}.test: val and test together leave no rows to train on"
    for name in _COLUMNS:
        if said.get(name) is not None and not isinstance(said[name], str):
            yield f"{_KEY}.{name}: {not_allowed(said[name], 'the name of a column')}"
    if type(said.get("seed", 0)) is not int or said.get("seed", 0) < 0:
        yield f"{_KEY}.seed: {not_allowed(said['seed'], 'a whole number')}"
    ways = [name for name in _WAYS if said.get(name)]
    if len(ways) > 1:
        yield f"{_KEY}.{ways[1]}: rows are divided by {ways[0]} already; choose one of the two"
    yield from _files(said.get("files"))
    yield from _folds(folds, fold, shares["val"], ways)


def _files(files: Any) -> Iterator[str]:
    if files is None:
        return
    listed = isinstance(files, Mapping) and all(isinstance(path, str) for path in files.values())
    if not listed or not files or not files.keys() <= set(SPLITS):
        yield f"{_KEY}.files: {not_allowed(files, 'files by split: {val: FILE, test: FILE}')}"


def _folds(folds: Any, fold: Any, share: float, ways: list[str]) -> Iterator[str]:
    if folds is None and fold is None:
        if not share and not {"column", "files"} & set(ways):
            yield f"{_KEY}: says no share that validates; set dataset.split.val or dataset.folds"
        return
    if type(folds) is not int or folds < 2:
        yield f"dataset.folds: {not_allowed(folds, 'a whole number from 2 on')}"
    elif type(fold) is not int or not 0 <= fold < folds:
        every = "; -m sweep.folds=all runs all of them" if fold is None else ""
        yield f"dataset.fold: {not_allowed(fold, f'0 to {folds - 1}')}{every}"
    if share:
        yield f"{_KEY}.val: a fold validates; leave it out, or dataset.folds"
    for name in {"time", "column", "files"} & set(ways):
        yield f"dataset.folds: rows are divided by {name}, which makes no folds"
