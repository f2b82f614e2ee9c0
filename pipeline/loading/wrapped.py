"""Datasets that hold some rows of another one, numbered anew from 0, as a filter leaves them.

The sampler, the plan and the ledger know the new numbers; messages, tables and quarantine files
name the dataset's own row beside it or in its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.order.columns import Column


class SomeRows(ABC):
    """Some rows of a map-style dataset, as a map-style dataset.

    It keeps the dataset's other attributes (`classes`, `facts`, `columns`, `draws` ...).

    Attributes:
        dataset: with all of its rows.
        reasons: how many rows filters have left out, by why.
    """

    dataset: Any
    reasons: dict[str, int]

    @abstractmethod
    def row(self, index: int) -> int:
        """The row of the dataset that has number `index` here; raises IndexError."""

    @abstractmethod
    def places(self, rows: Sequence[int]) -> dict[int, int]:
        """Those of the dataset's `rows` that are held, by their number here."""

    @abstractmethod
    def column(self, column: Column) -> Column:
        """The values of these rows in a column of all rows; nothing is copied."""

    @abstractmethod
    def told(self, fingerprint: Any) -> str:
        """A fingerprint of the dataset, followed by which rows are held."""

    @abstractmethod
    def untold(self, fingerprint: str) -> str:
        """The fingerprint of the dataset in one that `told` has given."""


def unfiltered(dataset: object) -> Any:
    """The dataset with all of its rows."""
    return dataset.dataset if isinstance(dataset, SomeRows) else dataset


def unfiltered_fingerprint(dataset: object, fingerprint: str) -> str:
    """The fingerprint of `unfiltered(dataset)`, given that of `dataset`."""
    return dataset.untold(fingerprint) if isinstance(dataset, SomeRows) else fingerprint


def own_row(dataset: object, index: int) -> int | None:
    """The dataset's own number of a row, where a filter has given it another one; else None."""
    return dataset.row(index) if isinstance(dataset, SomeRows) else None


def sample_name(index: int, row: int | None) -> str:
    """A sample for messages, by `own_row`: "17", or "17 (row 23 of the dataset)"."""
    return str(index) if row is None else f"{index} (row {row} of the dataset)"
