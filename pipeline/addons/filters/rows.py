"""Which rows of a dataset a run uses: `data.filter`, `data.unique` and `data.without`.

1. `filter`: rows for which every expression, or function of the table, holds.
2. `unique`: of these, the first with its value in a column; rows without a value stay.
3. `without`: rows that a list or a quarantine file names are left out.

In this order: a row that is left out by name is not replaced by its duplicate. The rows are
numbered anew from 0 for the sampler, the plan and the ledger; messages, tables and quarantine files
name the dataset's own row beside it or in its place. Cost: 8 bytes a kept row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from penstock.config.messages import nearest
from penstock.config.targets import make
from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.facts import KEPT, Fields, SomeRows, table_of
from penstock.order.keys import IntArray
from penstock.order.plan import is_stream
from penstock.runs import quarantine

if TYPE_CHECKING:
    from penstock.build.data import Split

Mask = npt.NDArray[np.bool_]

_OF_A_ROW = frozenset({"path", "check", "about"})  # methods of one row
_OF_ROWS = frozenset({"want", "fetch_batch", "__getitems__"})  # of several
_A_ROW_EACH = frozenset({"targets", "labels", "_labels", "samples", "imgs"})


class KeptRows(SomeRows):
    """Some rows of a map-style dataset, as a dataset.

    Args:
        dataset: with `len()` and rows by index.
        mask: which rows are kept: bool[rows].
        reasons: how many rows were left out, by why.

    Raises:
        DataError: nothing is left.
    """

    def __init__(self, dataset: Any, mask: Mask, reasons: Mapping[str, int]) -> None:
        self.dataset, self.rows, self.reasons = dataset, np.flatnonzero(mask), dict(reasons)
        if not len(self.rows):
            why = ", ".join(f"{count} by {reason}" for reason, count in reasons.items() if count)
            raise DataError(f"none of {len(mask)} samples is left: {why}")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.rows[index])]

    def __getattr__(self, name: str) -> object:
        # copy and pickle look for members before there is a dataset
        if name == "dataset" or (name.startswith("__") and name not in _OF_ROWS):
            raise AttributeError(name)
        # A Subset's only loops, without the keys that `Fetch` gives to each sample's draws.
        if name == "__getitems__" and isinstance(self.dataset, Subset):
            raise AttributeError(name)
        member = getattr(self.dataset, name)
        if name in _OF_A_ROW and callable(member):
            return lambda index: member(int(self.rows[index]))
        if name == "__getitems__":
            return lambda indices: member(self.rows[np.asarray(indices, np.int64)].tolist())
        if name in _OF_ROWS and callable(member):
            return lambda indices, **how: member(self.rows[np.asarray(indices, np.int64)], **how)
        if name == "names_fingerprint":
            return lambda: self.fingerprint_with(member())
        if name == "text_lengths":
            return lambda *how: np.asarray(member(*how))[self.rows]
        if name in _A_ROW_EACH and hasattr(member, "__len__") and len(member) == len(self.dataset):
            several = isinstance(member, list | tuple)
            return [member[row] for row in self.rows.tolist()] if several else member[self.rows]
        return member

    def read_tokens(
        self, into: IntArray, places: IntArray, indices: IntArray, starts: IntArray, stops: IntArray
    ) -> IntArray:
        """Those of the dataset, where it writes tokens to where they belong."""
        return self.dataset.read_tokens(into, places, self.rows[indices], starts, stops)

    @cached_property
    def metadata(self) -> Any:
        """The rows of the dataset's table that are kept, numbered anew."""
        table = self.dataset.metadata
        return table.iloc[self.rows].reset_index(drop=True) if hasattr(table, "iloc") else table

    @cached_property
    def lengths(self) -> npt.NDArray[Any]:
        """The dataset's `lengths` of the kept rows."""
        return np.asarray(self.dataset.lengths)[self.rows]

    @property
    def source_lengths(self) -> dict[str, int]:
        """How many rows of each source of a mixture are kept."""
        lengths = self.dataset.source_lengths
        edges = np.searchsorted(self.rows, np.cumsum([0, *lengths.values()]))
        return dict(zip(lengths, np.diff(edges).tolist(), strict=True))

    @property
    def fingerprint(self) -> str:
        """The dataset's, and which rows of it are kept."""
        return self.fingerprint_with(getattr(self.dataset, "fingerprint", "") or len(self.dataset))

    def fingerprint_with(self, fingerprint: object) -> str:
        numbers = f"{len(self.dataset)}:".encode() + self.rows.tobytes()
        digest = hashlib.blake2b(numbers, digest_size=16).hexdigest()
        kept = f"{KEPT}{len(self.rows)}/{len(self.dataset)}"
        return f"{fingerprint}{kept}:{digest}"


def chosen(
    dataset: Any,
    keys: Mapping[str, Any],
    split: str,
    fields: Fields | None = None,
    fingerprint: Callable[[object], str] = lambda dataset: "",
) -> Any:
    """The rows of `dataset` that filters leave; `dataset` itself if they leave all.

    Args:
        keys: the values of `filter` (or `val_filter`), `unique` and `without`, by full key.
        split: "train", "val" or "test". A list of rows in `without` is of the training split.
        fields: names for samples that are no dicts.
        fingerprint: dataset -> fingerprint, for quarantine files; "": by path alone.

    Raises:
        ConfigError: a column or a row does not exist, a function gives no mask, or the dataset
            has no rows by index.
        DataError: nothing is left.
    """
    keys = {key: value for key, value in keys.items() if value is not None}
    if not keys:
        return dataset
    if is_stream(dataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            Problem(
                next(iter(keys)), f"chooses rows by index, and {type(dataset).__name__} has none"
            )
        )
    table = table_of(dataset, fields or Fields())
    mask, reasons = np.ones(len(dataset), np.bool_), dict[str, int]()
    for key, value in keys.items():
        if key.endswith("filter"):
            several = isinstance(value, list)
            for number, condition in enumerate(value if several else [value]):
                where = f"{key}[{number}]" if several else key
                shown, holds = _holds(condition, where, table, dataset)
                reasons[f"{where} ({shown:.60})"] = int((mask & ~holds).sum())
                mask &= holds
            continue
        if key.endswith("unique"):
            known = [*map(str, getattr(table, "columns", ()))]
            if value not in known:
                raise ConfigError(
                    Problem(key, f"there is no column {value!r}{nearest(value, known)}")
                )
            left = np.flatnonzero(mask)
            values = table[value].iloc[left]
            rows, key = left[(values.duplicated() & values.notna()).to_numpy()], f"{key} ({value})"
        else:
            rows = _named_rows(key, value, dataset, split, fingerprint)
        reasons[key] = int(mask[rows].sum())
        mask[rows] = False
    return dataset if mask.all() else KeptRows(dataset, mask, reasons)


def _holds(condition: Any, key: str, table: Any, dataset: Any) -> tuple[str, Mask]:
    """A condition in a few words, and whether it holds for each row."""
    if isinstance(condition, str):
        # Here, since splits divide by the class above, and importing pandas takes 0.2 s.
        from penstock.addons.filters.expressions import Expression

        shown, mask = condition, Expression(condition, key).mask(table)
    else:
        function, shown = condition, "a function"
        if isinstance(condition, Mapping):
            function = make({**condition, "_partial_": True}, key)
            shown = condition["_target_"]
        mask = np.asarray(function(dataset if table is None else table))
    if mask.dtype != np.bool_ or mask.shape != (len(dataset),):
        raise ConfigError(
            Problem(
                key,
                f"gave {mask.dtype} {mask.shape}; a filter gives true or false for each of "
                f"{len(dataset)} rows",
            )
        )
    return shown, mask


def _named_rows(
    key: str, value: Any, dataset: Any, split: str, fingerprint: Callable[[object], str]
) -> IntArray:
    """The rows of this split that `without` names."""
    if isinstance(value, str):
        try:
            named = [*quarantine.known_rows(value, split, fingerprint(dataset))]
        except ConfigError as error:
            raise ConfigError([Problem(key, one.message) for one in error.problems]) from None
    else:
        named = (value if isinstance(value, Mapping) else {"train": value}).get(split) or []
    rows = np.unique(np.asarray(named, np.int64))
    if outside := [row for row in rows.tolist() if not 0 <= row < len(dataset)]:
        raise ConfigError(
            Problem(
                key, f"row {outside[0]} does not exist; the {split} split has {len(dataset)} rows"
            )
        )
    return rows


def rows_of_split(split: Split, dataset: Any) -> Any:
    """The rows of a split's dataset that the configuration's filters leave."""
    data = split.config.data
    name = "filter" if split.is_train or data.val_filter is None else "val_filter"
    keys = {f"data.{key}": getattr(data, key) for key in (name, "unique", "without")}
    return chosen(dataset, keys, split.name, split.data.fields, split.fingerprint_of)


def filtered(
    dataset: Any,
    filter: str | Callable[[Any], Any] | list[str | Callable[[Any], Any]] | None = None,
    unique: str | None = None,
    without: str | list[int] | dict[str, list[int]] | None = None,
    split: str = "train",
) -> Any:
    """The rows of a dataset that remain, e.g. of a source of a mixture; as in `data`.

    Args:
        filter: a function is a node with `_partial_: true`.
    """
    return chosen(dataset, {"filter": filter, "unique": unique, "without": without}, split)
