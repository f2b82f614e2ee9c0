"""Marks of a dataset's content without a fingerprint: 16 of its rows, its table, its files.

A dataset that has no fingerprint is known by its code, its arguments and its length, and by this.
The process that makes batches reads it, as one more request behind the first (`Loader`): so no
generator of the training loop moves, no file is opened in a process that forks later, and nobody
waits for it before the first batch. It knows 16 rows of many: equal samples do not make two
datasets the same.

    rows     row:hash, separated by spaces; evenly spread, or the first records of a stream
    table    a hash of `metadata`, or of torch's `targets`; of long columns, of values spread evenly
    files    a hash of names and sizes: of `data_files()`, or of the files that these rows have

Rows are read as they are, before any transform, with generators seeded for each by its place among
the 16. The first two are read again: data that is drawn without a seed says nothing. A row that
cannot be read is left out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.loading.dataset_facts import columns_of
from penstock.loading.known_by import written
from penstock.loading.named_fields import Fields
from penstock.order.plan import Request
from penstock.order.randomness import IntArray

ROWS = 16
AGAIN = 2  # of them, which are read twice
_NO_STEP = -1  # so that no batch has its address
_MOST_VALUES = 1 << 16  # of a column, and of its texts
_MOST_FILES = 1000

Seen = dict[str, str]


@dataclass(frozen=True, slots=True)
class SampleRequest(Request):
    """Asks for what is seen of the dataset instead of a batch; `indices` are the rows."""

    @classmethod
    def of(cls, length: int | None) -> SampleRequest:
        """Of a dataset with that many rows; None: of a stream."""
        rows = np.arange(ROWS)
        if length is not None:
            rows = _spread(length, ROWS)
        return cls(0, _NO_STEP, np.arange(len(rows)), rows, len(rows))


def _spread(length: int, count: int) -> IntArray:
    """At most `count` of the numbers below `length`, evenly spread; 0 if there is none."""
    numbers = np.linspace(0, max(length - 1, 0), count).round().astype(np.int64)
    # Each once. `np.unique` imports numpy.ma, which takes 20 ms.
    return numbers[np.diff(numbers, prepend=-1) > 0]


def seen_of(
    dataset: object, fields: Fields, hashes: Sequence[Callable[[], bytes]], rows: Sequence[int]
) -> Seen:
    """The marks of a dataset; without `rows` if a second reading gives other rows.

    Args:
        hashes: one a row: reads it and returns a hash of it.
        rows: their numbers.
    """
    digests: dict[int, str] = {}
    for row, read in zip(rows, hashes, strict=True):
        with suppress(Exception):  # bad, or of a type that has no hash: training meets it, too
            digests[row] = read().hex()[:16]
    again = dict(list(zip(rows, hashes, strict=True))[:AGAIN])
    with suppress(Exception):
        if any(read().hex()[:16] != digests[row] for row, read in again.items() if row in digests):
            digests = {}
    seen = {"rows": written(digests)} if digests else {}
    for name, parts in (("table", _table(dataset, fields)), ("files", _files(dataset, rows))):
        with suppress(Exception):  # made by code of somebody's own
            digest = hashlib.blake2b(digest_size=8)
            count = 0
            for part in parts:
                count += 1
                digest.update(b"%d;" % len(part) + part)
            if count:
                seen[name] = digest.hexdigest()
    return seen


def _table(dataset: Any, fields: Fields) -> Iterator[bytes]:
    """Name, type and values of each column."""
    table: Any = getattr(dataset, "metadata", None)
    columns: Mapping[str, Any] = columns_of(dataset, fields)
    if hasattr(table, "columns"):
        columns = {str(name): table[name] for name in table.columns}
    for name, column in columns.items():
        count = len(column)
        values = column.iloc if hasattr(column, "iloc") else column
        if count > _MOST_VALUES:
            values = values[np.linspace(0, count - 1, _MOST_VALUES).astype(np.int64)]
        array = np.asarray(column if count <= _MOST_VALUES else values)
        yield f"{name} {count} {array.dtype}".encode()
        if array.dtype.kind in "biufcmM":
            yield np.ascontiguousarray(array).tobytes()
        else:
            yield "\0".join(map(_text, array.tolist())).encode("utf-8", "surrogatepass")


def _text(value: Any) -> str:
    """A value of a column; of an object, whose text may name its address, the type alone."""
    plain = value is None or isinstance(value, (str, bytes, int, float, os.PathLike))
    return str(value) if plain else type(value).__qualname__


def _files(dataset: Any, rows: Sequence[int]) -> Iterator[bytes]:
    """Name and size of some files, and how many there are."""
    if callable(getattr(dataset, "data_files", None)):
        listed = [[str(part) for part in file] for file in dataset.data_files()]
        yield str(len(listed)).encode()
        some = _spread(len(listed), min(len(listed), _MOST_FILES)).tolist() if listed else []
        files = [listed[number] for number in some]
    elif callable(getattr(dataset, "path", None)):
        paths = [str(dataset.path(row)) for row in rows]
        files = [[Path(path).name, path] for path in paths]
    else:
        return
    for name, path, *version in files:
        try:
            size = str(Path(path).stat().st_size)
        except (OSError, ValueError):  # at an address, where the version tells
            size = " ".join(version)
        yield f"{name}\0{size}".encode("utf-8", "surrogateescape")
