"""A dataset's table of samples as `.npy` files of a pack, and back.

    numbers, dates    table.<k>.npy                       [N]
    categories        table.<k>.npy, their codes          and the categories in pack.json
    text              table.<k>.npy, UTF-8                and table.<k>.offsets.npy, int64[N + 1]

Missing text is marked in `table.<k>.missing.npy`. pandas is imported when the table is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import DataError
from pipeline.packing.folder import Pack
from pipeline.packing.npy import NpyStream

if TYPE_CHECKING:
    import pandas as pd

_PIECE = 65536  # rows of text that are turned into bytes at once


def write_table(folder: Path, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Write a table's columns; returns their entries in pack.json.

    Raises:
        DataError: a column is neither numbers nor dates, categories or text.
    """
    return [
        {"name": str(name), "file": f"table.{number}", **_write(folder, number, table[name])}
        for number, name in enumerate(table.columns)
    ]


def _write(folder: Path, number: int, column: pd.Series[Any]) -> dict[str, Any]:
    import pandas as pd

    stem = f"table.{number}"
    if isinstance(column.dtype, pd.CategoricalDtype):
        categories = column.cat.categories.tolist()
        if not all(isinstance(one, (str, int, float, bool)) for one in categories):
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


def read_table(pack: Pack) -> pd.DataFrame | None:
    """The table of a pack, a row a sample; None if the dataset had none."""
    import pandas as pd

    described = pack.record.get("table")
    if described is None:
        return None
    columns = {one["name"]: _read(pack, one) for one in described}
    return pd.DataFrame(columns, index=pd.RangeIndex(pack.count))


def text_of(pack: Pack, column: str, index: int) -> str | None:
    """One cell of a column of text, without making the table; None where there is none."""
    for described in pack.record.get("table") or ():
        if described["name"] == column and described["kind"] == "text":
            stem = described["file"]
            start, stop = pack.array(f"{stem}.offsets")[index : index + 2]
            return pack.array(stem)[start:stop].tobytes().decode("utf-8", "surrogateescape")
    return None


def _read(pack: Pack, described: dict[str, Any]) -> Any:
    import pandas as pd

    stem = described["file"]
    if described["kind"] == "numbers":
        return np.array(pack.array(stem))
    if described["kind"] == "category":
        return pd.Categorical.from_codes(
            pack.array(stem).tolist(), categories=described["categories"],
            ordered=described["ordered"],
        )  # fmt: skip
    text = pack.array(stem).tobytes()
    offsets = pack.array(f"{stem}.offsets").tolist()
    missing = pack.array(f"{stem}.missing").tolist() if described["missing"] else None
    values = [
        text[offsets[row] : offsets[row + 1]].decode("utf-8", "surrogateescape")
        if missing is None or not missing[row] else None
        for row in range(pack.count)
    ]  # fmt: skip
    return pd.Series(values, dtype=object if described["object"] else "str")
