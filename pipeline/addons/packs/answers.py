"""What a dataset tells besides its samples, written into its pack, which has to answer the same.

    metadata               table.<k>.npy (table.py)
    lengths                table.lengths.npy, [N]
    path(index)            the table's column `path` if that is the same, else table.path.npy
    text_lengths(...)      the name of the field whose texts it counts
    classes, facts, columns    themselves, in pack.json

Members that look at the dataset's own files, such as `check`, are only named, for a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.addons.packs.npy import NpyStream
from penstock.addons.packs.table import write_column, write_table
from penstock.loading.bad_samples import path_of
from penstock.loading.dataset_facts import classes_of, facts_of, lengths_of, table_of
from penstock.loading.named_fields import Fields
from penstock.order.randomness import IntArray

LENGTHS = "table.lengths"  # no field has a file with a dot in its name
_PATH = "path"
_PIECE = 1 << 20  # rows


def write_answers(
    folder: Path, dataset: Any, fields: Fields, rows: IntArray, samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Write what `dataset` tells; returns the entries of pack.json.

    Args:
        rows, samples: some rows of it, and their samples.

    Raises:
        DataError: a column of its table cannot be packed.
    """
    table = table_of(dataset, fields)
    lengths = lengths_of(dataset)
    if lengths is not None:
        stream = NpyStream(folder / f"{LENGTHS}.npy", lengths.dtype.str)
        for start in range(0, len(dataset), _PIECE):
            stream.append(np.asarray(lengths[np.arange(start, min(start + _PIECE, len(dataset)))]))
        stream.finish((len(dataset),))
    path: dict[str, Any] | None = None
    described = None if table is None else write_table(folder, table)
    if callable(getattr(dataset, "path", None)):
        import pandas as pd

        paths = pd.Series([path_of(dataset, row) for row in range(len(dataset))], dtype=object)
        if table is not None and _PATH in table and paths.tolist() == table[_PATH].tolist():
            path = next(column for column in described or () if column["name"] == _PATH)
        else:
            path = write_column(folder, _PATH, "table.path", paths)
    columns = getattr(dataset, "columns", None)
    return {
        "reader": getattr(dataset, "reader", None),
        "facts": facts_of(dataset, fields),
        "classes": classes_of(dataset),
        "table": described,
        "lengths": lengths is not None,
        "path": path,
        "text": _text_of(dataset, rows, samples),
        "columns": [*map(str, columns)] if isinstance(columns, (list, tuple)) else None,
        "checks": callable(getattr(dataset, "check", None)),
    }


def _text_of(dataset: Any, rows: IntArray, samples: Sequence[Mapping[str, Any]]) -> str | None:
    """The field whose texts `text_lengths` counts: "" if that cannot be told, None without one."""
    if not callable(getattr(dataset, "text_lengths", None)):
        return None
    counted = np.asarray(dataset.text_lengths(len, "characters"))[rows].tolist()
    fields = [
        name
        for name, value in samples[0].items()
        if isinstance(value, str) and [len(sample[name]) for sample in samples] == counted
    ]
    return fields[0] if len(fields) == 1 else ""
