"""Applies `dataset.filter`, `unique`, `without` and `batch.balance` to a split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.build.wrapper import SplitWrapper
from penstock.config.nodes import is_of_a_split, of_the_build, without_own
from penstock.order.plan import Costs


class Filters(SplitWrapper):
    """Leaves rows of datasets out, and tells what rows cost."""

    def wrapped(self, dataset: Any) -> Any:
        config, name = self.split.config.dataset, self.split.name
        choices = {"dataset": _chosen(config)}
        if "_target_" not in config or is_of_a_split(config, name):
            choices[f"dataset.{name}"] = _chosen(config.get(name) or {})
        if not any(choices.values()):
            return dataset
        from penstock.addons.filters.kept import RowChoice

        choice = RowChoice(choices, name, self.split.data.fields, self.split.identity.of)
        kept, self.left_out = choice.of(dataset)
        return kept

    def node(self, key: str, node: Mapping[str, Any], supply: dict[str, Any]) -> Mapping[str, Any]:
        """A dataset's node, in which the nodes inside that choose rows are built."""
        if key.partition(".")[0] != "dataset":
            return node
        lazy = supply["lazy"]
        return {name: self._built(value, f"{key}.{name}", lazy) for name, value in node.items()}

    def _built(self, node: Any, key: str, lazy: bool) -> Any:
        if isinstance(node, list):
            return [self._built(item, f"{key}[{number}]", lazy) for number, item in enumerate(node)]
        if not isinstance(node, Mapping):
            return node
        own = without_own(node)
        if "_target_" in node and len(own) < len(node):
            from penstock.addons.filters.kept import RowChoice

            dataset = self.split.built(key, own, lazy)
            return RowChoice({key: _chosen(node)}, self.split.name).of(dataset)[0]
        return {name: self._built(value, f"{key}.{name}", lazy) for name, value in node.items()}

    def costs(self) -> Costs | None:
        from penstock.addons.filters.costs import costs_of

        return costs_of(self.split)


def _chosen(node: Mapping[str, object]) -> dict[str, object]:
    """The keys `filter`, `unique` and `without` of a node, where they are not its arguments."""
    values = {name: of_the_build(node, name) for name in ("filter", "unique", "without")}
    return {name: value for name, value in values.items() if value is not None}
