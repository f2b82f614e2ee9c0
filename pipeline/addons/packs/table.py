"""A dataset's table of samples as `.npy` files of a pack, and back.

    numbers, dates    table.<k>.npy                       [N]
    categories        table.<k>.npy, their codes          and the categories in pack.json
    text              table.<k>.npy, UTF-8                and table.<k>.offsets.npy, int64[N + 1]

Missing text is marked in `table.<k>.missing.npy`. pandas is imported when the table is asked for.

A dataset's facts besides its samples, kept in its pack, which must answer the same.

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
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.addons.packs.fields import Numbers
from penstock.addons.packs.folder import NpyStream, Pack, damaged
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.bad_samples import path_of
from penstock.loading.facts import classes_of, columns_of, facts_of, table_of
from penstock.loading.fields import Fields
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

_LONGEST = 1 << 20  # bytes of a cell that is asked for alone
_PIECE = 65536  # rows of text that are turned into bytes at once


def write_table(folder: Path, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Write a table's columns; returns their entries in pack.json.

    Raises:
        DataError: a column is neither numbers nor dates, categories or text.
    """
    return [
        write_column(folder, str(name), f"table.{number}", table[name])
        for number, name in enumerate(table.columns)
    ]


def write_column(folder: Path, name: str, stem: str, column: pd.Series[Any]) -> dict[str, Any]:
    """Write a column to `stem`.npy and what belongs to it; returns its entry in pack.json."""
    return {"name": name, "file": stem, **_write(folder, stem, column)}


def _write(folder: Path, stem: str, column: pd.Series[Any]) -> dict[str, Any]:
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        categories = column.cat.categories.tolist()
        if not all(isinstance(category, (str, int, float, bool)) for category in categories):
            raise _refusal(column, "categories that are neither text nor numbers")
        _save(folder, stem, column.cat.codes.to_numpy(np.int32))
        return {"kind": "category", "categories": categories, "ordered": bool(column.cat.ordered)}
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufmM":
        _save(folder, stem, column.to_numpy())
        return {"kind": "numbers"}
    missing = column.isna().to_numpy()
    if not all(isinstance(value, str) for value in column[~missing]):
        raise _refusal(column, "values that are not text")
    text = NpyStream(folder / f"{stem}.npy", "|u1")
    offsets = np.zeros(len(column) + 1, np.int64)
    for start in range(0, len(column), _PIECE):
        piece = column.iloc[start : start + _PIECE]
        gone = missing[start : start + _PIECE]
        rows = [
            b"" if empty else value.encode("utf-8", "surrogateescape")
            for value, empty in zip(piece, gone, strict=True)
        ]
        offsets[start + 1 : start + 1 + len(rows)] = [len(row) for row in rows]
        text.append(np.frombuffer(b"".join(rows), np.uint8))
    np.cumsum(offsets, out=offsets)
    text.finish((int(offsets[-1]),))
    _save(folder, f"{stem}.offsets", offsets)
    if missing.any():
        _save(folder, f"{stem}.missing", missing)
    return {"kind": "text", "object": column.dtype == object, "missing": bool(missing.any())}


def _save(folder: Path, stem: str, values: Any) -> None:
    stream = NpyStream(folder / f"{stem}.npy", values.dtype.str)
    stream.append(values.view(np.int64) if values.dtype.kind in "mM" else values)
    stream.finish(values.shape)


def _refusal(column: pd.Series[Any], what: str) -> DataError:
    return DataError(
        f"the column {column.name!r} of the dataset's metadata has {what} ({column.dtype}), and "
        "cannot be packed; make it numbers, text or categories"
    )


def read_table(pack: Pack, limits: Limits = DEFAULT) -> pd.DataFrame | None:
    """The table of a pack, a row a sample; None if the dataset had none.

    Args:
        limits: `files` of its rows.

    Raises:
        DataError: it has too many rows, or is damaged.
    """
    import pandas as pd

    described = pack.record.get("table")
    if described is None:
        return None
    if pack.count > limits.files:
        refusal = limits.refusal("files", f"a table of {pack.count} rows")
        raise DataError(f"packed data {str(pack.folder)!r} has {refusal}.")
    try:
        columns = {column["name"]: _read(pack, column) for column in described}
        return pd.DataFrame(columns, index=pd.RangeIndex(pack.count))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(pack.folder, f"its table cannot be made: {error!r}") from error


def text_of(pack: Pack, stem: str, index: int) -> str:
    """One cell of the column of text in the files `stem`, without making the table.

    Raises:
        DataError: there is none.
    """
    offsets, text = _column(pack, f"{stem}.offsets", "iu", 1), pack.array(stem)
    start, stop = map(int, offsets[index : index + 2])
    if not 0 <= start <= stop <= min(len(text), start + _LONGEST):
        where = f"cell {index} of {stem!r}"
        raise damaged(pack.folder, f"{where} should be at {start} to {stop} of {len(text)}")
    return text[start:stop].tobytes().decode("utf-8", "surrogateescape")


def _column(pack: Pack, name: str, kinds: str, more: int = 0) -> Numbers:
    """An array of a table: one number for each row, and `more`; raises DataError."""
    array = pack.array(name)
    if array.dtype.kind not in kinds or array.shape != (pack.count + more,):
        raise damaged(
            pack.folder,
            f"{name!r} holds {array.dtype} {list(array.shape)}, and there are {pack.count} rows",
        )
    return array


def _read(pack: Pack, described: dict[str, Any]) -> Any:
    import pandas as pd

    stem = described["file"]
    if described["kind"] == "numbers":
        return np.array(_column(pack, stem, "biufmM"))
    if described["kind"] == "category":
        return pd.Categorical.from_codes(
            _column(pack, stem, "i").tolist(),
            categories=described["categories"],
            ordered=described["ordered"],
        )
    text = pack.array(stem).data
    places = _column(pack, f"{stem}.offsets", "i", 1)
    # Cells that lay over each other could be any number of times the file.
    inside = 0 <= places[0] <= places[-1] <= len(text)
    if not inside or (places[1:] < places[:-1]).any():
        raise DataError(
            f"packed data is damaged: {pack.file(f'{stem}.offsets.npy')!r}: its cells do "
            "not lie in a row. Delete the pack's folder to make it again."
        )
    offsets = places.tolist()
    missing = _column(pack, f"{stem}.missing", "b").tolist() if described["missing"] else None
    values = [
        str(text[offsets[row] : offsets[row + 1]], "utf-8", "surrogateescape")
        if missing is None or not missing[row]
        else None
        for row in range(pack.count)
    ]
    return pd.Series(values, dtype=object if described["object"] else "str")


LENGTHS = "table.lengths"  # no field has a file with a dot in its name
_PATH = "path"
_ROWS = 1 << 20  # rows


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
    lengths = columns_of(dataset).get("length")
    if lengths is not None:
        stream = NpyStream(folder / f"{LENGTHS}.npy", lengths.dtype.str)
        for start in range(0, len(dataset), _ROWS):
            stream.append(np.asarray(lengths[np.arange(start, min(start + _ROWS, len(dataset)))]))
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
    """The field whose texts `text_lengths` counts: "" if that is unknown, None without one."""
    if not callable(getattr(dataset, "text_lengths", None)):
        return None
    counted = np.asarray(dataset.text_lengths(len, "characters"))[rows].tolist()
    fields = [
        name
        for name, value in samples[0].items()
        if isinstance(value, str) and [len(sample[name]) for sample in samples] == counted
    ]
    return fields[0] if len(fields) == 1 else ""
