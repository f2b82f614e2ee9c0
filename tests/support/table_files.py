"""Tables with a column of every kind, written in every format."""

import io
import json

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FORMATS = ("parquet", "arrow", "compressed.feather", "stream.arrow")


def picture(number, size=8):
    """A PNG whose pixels all are `number`."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (size, size), (number % 256,) * 3).save(buffer, "PNG")
    return buffer.getvalue()


def make(count, first=0, **changes):
    """Rows `first` .. `first + count - 1`; a column is changed, added, or left out by None."""
    rows = range(first, first + count)
    columns = {
        "number": pa.array(rows, pa.int32()),
        "real": pa.array([row / 4 for row in rows], pa.float64()),
        "flag": pa.array([row % 2 == 0 for row in rows]),
        "text": pa.array([f"row {row} é" for row in rows]),
        "label": pa.array([("cat", "dog", "emu")[row % 3] for row in rows]),
        "sequence": pa.array([[float(row)] * (row % 5) for row in rows], pa.list_(pa.float32())),
        "vector": pa.array([[row, row + 1, row + 2] for row in rows], pa.list_(pa.uint16(), 3)),
        "image": pa.array([picture(row) for row in rows], pa.binary()),
    }
    columns |= changes
    return pa.table({name: column for name, column in columns.items() if column is not None})


def write(path, table, group=10, metadata=None):
    """Write `table` in the format of the path's suffix, `group` rows at a time."""
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
        return path
    compression = "lz4" if "compressed" in path.name else None
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
    with path.open("wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=group)
    return path


def tensors(values):
    """A `fixed_shape_tensor` column of an array [N, ...]."""
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
