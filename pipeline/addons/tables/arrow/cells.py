"""Cells of Arrow columns as the values that samples hold.

`read_cells` prepares a column of one row group and gives a function from a row to its value. A cell
that cannot be read raises `CellError`; its neighbours stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.addons.audio.reading import read_audio, read_header
from penstock.addons.storage.rows import plain_tensor
from penstock.addons.tables.arrow.columns import TableField, is_list, label_codes
from penstock.datasets.reading.image import decode_image, undecoded
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pyarrow as pa

Cells = Callable[[int], Any]
Array = npt.NDArray[Any]


class CellError(ValueError):
    """A cell cannot be read; names neither file nor row.

    Attributes:
        column: that it is in, where its field has several.
    """

    column: str | None = None


def read_cells(
    field: TableField,
    arrays: Sequence[pa.Array],
    classes: Sequence[str],
    reader: str,
    limits: Limits,
    where: Callable[[int], str] | None = None,
    outside: Callable[[str], bytes] | None = None,
) -> Cells:
    """Row of `arrays` -> value.

    Args:
        field: that the arrays are made into.
        arrays: the columns of the field in one row group, in one piece each.
        classes: names of the classes of a label.
        reader: of images.
        limits: of a cell.
        where: images stay undecoded, with this name for a row's.
        outside: the content of a file that a cell has only the path of.
    """
    if field.kind == "numbers":
        return _joined(field, arrays, classes, reader, limits)
    array = arrays[0]
    if field.kind == "number":
        cells = _numbers(array)
    elif field.kind == "tensor":
        cells = _tensors(array, limits)
    elif field.kind == "label":
        cells = _labels(array, classes)
    elif field.kind == "text":
        cells = _within(array, lambda row: str(array[row].as_py()), limits)
    elif field.kind == "texts":
        cells = lambda row: _texts(array[row], limits)  # noqa: E731
    else:
        content = cells = _within(array, _contents(array, outside), limits)
        if field.kind == "image" and where is not None:
            cells = lambda row: undecoded(content(row), where(row), reader, limits)  # noqa: E731
        elif field.kind == "image":
            cells = lambda row: decode_image(content(row), field.column, reader, limits)  # noqa: E731
        elif field.kind == "audio":
            cells = lambda row: read_audio(content(row), limits, field.column)[0]  # noqa: E731
        elif field.kind == "rate":
            cells = lambda row: read_header(content(row), limits, field.column).rate  # noqa: E731
    if array.null_count == 0:
        return cells
    valid = array.is_valid().to_numpy(zero_copy_only=False)

    def cell(row: int) -> Any:
        if not valid[row]:
            raise CellError("there is no value (null)")
        return cells(row)

    return cell


def _within(array: pa.Array, cells: Cells, limits: Limits) -> Cells:
    """Cells of texts or bytes, none of which is larger than `limits` allow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(array.type):
        array = array.field("bytes")
    coded = pa.types.is_dictionary(array.type)
    if not str(array.type).endswith("_view"):
        lengths = pc.binary_length(array.dictionary if coded else array)
        if (pc.max(lengths).as_py() or 0) <= limits.record_bytes:
            return cells

    def cell(row: int) -> Any:
        content = (array[row].value if coded else array[row]).as_buffer()
        if content is not None and content.size > limits.record_bytes:
            raise CellError(limits.refusal("record_bytes", f"the cell has {content.size} bytes"))
        return cells(row)

    return cell


def _plain_numbers(array: pa.Array) -> Array:
    """The values of a column of numbers, 0 for nulls; not copied if there are none."""
    if array.null_count:
        array = array.fill_null(False if str(array.type) == "bool" else 0)
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _numbers(array: pa.Array) -> Cells:
    values = _plain_numbers(array)
    if values.dtype.kind != "f":
        return lambda row: int(values[row])

    def cell(row: int) -> torch.Tensor:
        if not np.isfinite(values[row]):
            raise CellError(f"{values[row]} is not finite")
        return torch.tensor(float(values[row]), dtype=torch.float32)

    return cell


def _joined(
    field: TableField,
    arrays: Sequence[pa.Array],
    classes: Sequence[str],
    reader: str,
    limits: Limits,
) -> Cells:
    """Cells of several columns of numbers."""
    parts = [
        (name, read_cells(TableField(field.name, name, "number"), [array], classes, reader, limits))
        for name, array in zip(field.sources, arrays, strict=True)
    ]

    def cell(row: int) -> torch.Tensor:
        values = []
        for name, cells in parts:
            try:
                values.append(cells(row))
            except CellError as error:
                error.column = name
                raise
        whole = all(type(value) is int for value in values)
        return torch.tensor(values, dtype=torch.int64 if whole else torch.float32)

    return cell


def _labels(array: pa.Array, classes: Sequence[str]) -> Cells:
    codes = label_codes(array, classes)

    def cell(row: int) -> int:
        if codes[row] < 0:
            known = ", ".join(classes[:8]) + (" ..." if len(classes) > 8 else "")
            raise CellError(f"{array[row].as_py()!r} is none of the {len(classes)} classes {known}")
        return int(codes[row])

    return cell


def _texts(cell: pa.ListScalar, limits: Limits) -> list[str]:
    """A list of texts."""
    size = cell.values.nbytes
    if size > limits.record_bytes:
        raise CellError(limits.refusal("record_bytes", f"the cell has {size} bytes"))
    if cell.values.null_count:
        raise CellError("a text of its list is null")
    texts: list[str] = cell.values.to_pylist()
    return texts


def _contents(array: pa.Array, outside: Callable[[str], bytes] | None) -> Cells:
    """Cells of bytes, or of structs of bytes and the path of their file."""
    import pyarrow as pa

    if not pa.types.is_struct(array.type):
        return lambda row: array[row].as_py()

    def cell(row: int) -> bytes:
        value = array[row].as_py()
        if value["bytes"] is None:
            path = value.get("path")
            if outside is not None and path is not None:
                return outside(path)
            raise CellError(f"there are no bytes, only the path {path!r}; write the files into it")
        content: bytes = value["bytes"]
        return content

    return cell


def _tensors(array: pa.Array, limits: Limits) -> Cells:
    import pyarrow as pa

    shape: list[int] | None = None
    order: list[int] | None = None
    if isinstance(array.type, pa.FixedShapeTensorType):
        shape, order, array = list(array.type.shape), array.type.permutation, array.storage
    levels = []  # the outermost first
    while is_list(array.type):
        if pa.types.is_fixed_size_list(array.type):
            levels.append(_Level(int(array.type.list_size), int(array.offset), _holes(array)))
        else:
            starts = array.offsets.to_numpy().astype(np.int64)
            levels.append(_Level(None, starts, _holes(array)))
        array = array.values
    numbers, holes = _plain_numbers(array), _holes(array)

    def cell(row: int) -> torch.Tensor:
        start, stop, lengths = row, row + 1, []
        for level in levels:
            start, stop, length = level.inside(start, stop)
            lengths.append(length)
        _check_full(holes, start, stop)
        size = (stop - start) * numbers.itemsize
        if size > limits.record_bytes:
            raise CellError(limits.refusal("record_bytes", f"the cell has {size} bytes"))
        block = plain_tensor(numbers[start:stop]).reshape(shape or lengths)
        return block if order is None else block.permute(order)

    return cell


class _Level(NamedTuple):
    """One level of nested lists."""

    size: int | None  # of every list; None if they differ
    starts: int | IntArray  # of the first list if they have one size; else of each, int64[n + 1]
    holes: Array | None  # bool[n], which lists are null; None if none is

    def inside(self, start: int, stop: int) -> tuple[int, int, int]:
        """Where the values of lists start .. stop-1 lie one level below, and how many each has."""
        _check_full(self.holes, start, stop)
        if isinstance(self.starts, int):
            size = self.size or 0
            return (start + self.starts) * size, (stop + self.starts) * size, size
        sizes = np.diff(self.starts[start : stop + 1])
        size = int(sizes[0]) if len(sizes) else 0
        if (sizes != size).any():
            other = int(sizes[sizes != size][0])
            raise CellError(f"its lists have lengths {size} and {other}; a tensor has one")
        return int(self.starts[start]), int(self.starts[stop]), size


def _holes(array: pa.Array) -> Array | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _check_full(holes: Array | None, start: int, stop: int) -> None:
    if holes is not None and holes[start:stop].any():
        raise CellError(f"value {int(np.argmax(holes[start:stop]))} of the list is null")
