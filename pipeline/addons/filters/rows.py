"""A dataset inside another one, such as a source of a mixture, with some of its rows.

sources:
  web: {_target_: penstock.addons.filters.rows.filtered, dataset: {...}, filter: length < 500}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.addons.filters.kept import RowChoice

Condition = str | Callable[[Any], Any]


def filtered(
    dataset: Any,
    filter: Condition | list[Condition] | None = None,
    unique: str | None = None,
    without: str | list[int] | dict[str, list[int]] | None = None,
    split: str = "train",
) -> Any:
    """The rows of `dataset` that are left; the arguments are those of `data.filter` and so on.

    Args:
        filter: a function is a node with `_partial_: true`.
    """
    given = {"filter": filter, "unique": unique, "without": without}
    return RowChoice(given, split).of(dataset)[0]
