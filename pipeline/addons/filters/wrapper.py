"""Applies `dataset.filter`, `unique` and `without` to a split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.addons.filters.kept import RowChoice
from penstock.config.nodes import is_of_a_split, of_the_build, without_own

if TYPE_CHECKING:
    from penstock.build.data import Split


def chosen_rows(split: Split, dataset: Any) -> tuple[Any, dict[str, int]]:
    """The rows of a split's dataset that filters leave, and how many they leave out, by why."""
    config, name = split.config.dataset, split.name
    choices = {"dataset": _chosen(config)}
    if "_target_" not in config or is_of_a_split(config, name):
        choices[f"dataset.{name}"] = _chosen(config.get(name) or {})
    if not any(choices.values()):
        return dataset, {}
    return RowChoice(choices, name, split.data.fields, split.identity.of).of(dataset)


def with_rows_chosen(split: Split, key: str, node: Mapping[str, Any], lazy: bool) -> dict[str, Any]:
    """A dataset's node, in which the nodes inside that choose rows are built."""
    return {name: _built(split, value, f"{key}.{name}", lazy) for name, value in node.items()}


def _built(split: Split, node: Any, key: str, lazy: bool) -> Any:
    if isinstance(node, list):
        return [_built(split, item, f"{key}[{number}]", lazy) for number, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    own = without_own(node)
    if "_target_" in node and len(own) < len(node):
        return RowChoice({key: _chosen(node)}, split.name).of(split.built(key, own, lazy))[0]
    return with_rows_chosen(split, key, node, lazy)


def _chosen(node: Mapping[str, object]) -> dict[str, object]:
    """The keys `filter`, `unique` and `without` of a node, where they are not its arguments."""
    values = {name: of_the_build(node, name) for name in ("filter", "unique", "without")}
    return {name: value for name, value in values.items() if value is not None}
