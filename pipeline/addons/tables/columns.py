"""Record batches as the columns of a pack, and back: the one conversion of cells.

    number, numbers, label    numbers of one shape a row; of a label, the number of its class
    tensor                    numbers of one shape, where the type says so; else of any shape a row
    text, image, bytes        their bytes

A cell that is null, not finite, too large, or a list that is no tensor makes its row bad: it is
stored as zeros or nothing, and refused when it is read. Cost: 0.1 us a row and column, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from penstock.addons.packs.folder import Column, Field
from penstock.addons.tables.kinds import (
    TableField,
    has_lengths,
    is_list,
    is_text,
    is_whole,
)
from penstock.datasets.arrays import plain_numbers
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def label_texts(array: pa.Array) -> tuple[list[str], IntArray]:
    """The values of a column of labels as texts, and which of them each row has: int64[n], -1 for
    a null."""
    if pa.types.is_dictionary(array.type):  # which may list texts that no row has
        array = array.dictionary_decode()
    coded = array.dictionary_encode()
    values = coded.dictionary.cast(pa.string() if is_text(array.type) else pa.int64())
    numbers = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return [*map(str, values.to_pylist())], numbers


def stored_field(field: TableField, schema: pa.Schema) -> Field:
    """How a pack stores a field; its shape is None if rows may differ in theirs."""
    if field.kind in ("number", "numbers"):
        # One float among them makes all of them floats: a tensor has one type.
        whole = all(is_whole(schema.field(name).type) for name in field.columns)
        shape = (len(field.columns),) * (field.kind == "numbers")
        kind = "int" if whole and not shape else "tensor"
        return Field(field.name, kind, "<i8" if whole else "<f4", len(shape), shape=shape)
    if field.kind == "label":
        return Field(field.name, "int", "<i8", 0, shape=())
    if field.kind != "tensor":
        kind = {"text": "str", "image": "file"}.get(field.kind, "bytes")
        return Field(field.name, kind, "|u1", 1, "Image" if kind == "file" else "")
    outer = inner = schema.field(field.columns[0]).type
    if isinstance(inner, pa.BaseExtensionType):
        inner = inner.storage_type
    sizes: list[int | None] = []
    while is_list(inner):
        sizes.append(None if has_lengths(inner) else inner.list_size)
        inner = inner.value_type
    # Of `fixed_shape_tensor`, and of the arrays of `datasets`.
    lengths = tuple(getattr(outer, "shape", sizes))
    dtype = plain_numbers(np.empty(0, inner.to_pandas_dtype())).dtype.str
    even = None if None in lengths else lengths
    return Field(field.name, "tensor", dtype, len(lengths), shape=even)


def converted(
    field: TableField,
    stored: Field,
    batch: pa.RecordBatch,
    classes: Sequence[str],
    limits: Limits,
) -> tuple[Column, Mask]:
    """A field of the rows of a batch, and which of them are bad, bool[n].

    Args:
        stored: its `stored_field`.
        classes: of a label, as its column writes them.
    """
    shape = stored.shape
    arrays = [batch.column(name) for name in field.columns]
    bad = np.any([_nulls(array) for array in arrays], axis=0)
    if field.kind == "tensor":
        numbers, shapes, wrong = _tensors(arrays[0], stored.dtype)
        bad |= wrong
        if shape is not None:
            right = ~bad & (shapes.prod(1) == math.prod(shape))
            filled = np.zeros((len(bad), *shape), numbers.dtype)  # a null row has no numbers
            filled[right] = numbers[np.repeat(right, shapes.prod(1))].reshape(-1, *shape)
            numbers, bad = filled, ~right
    elif shape is None:
        starts, numbers, missing = _content(arrays[0])
        shapes, bad = np.diff(starts)[:, None], bad | missing
    elif field.kind == "label":
        texts, places = label_texts(arrays[0])
        order = {text: number for number, text in enumerate(classes)}
        # A null is place -1, which finds the -1 at the end.
        numbers = np.array([*(order.get(text, -1) for text in texts), -1], np.int64)[places]
        bad |= numbers < 0
    else:
        numbers = np.empty((len(bad), len(arrays)), stored.dtype)
        for place, array in enumerate(arrays):
            values = _numbers(array)
            # Before the cast, in which a number beyond float32 becomes infinite.
            bad |= _wrong(values)
            with np.errstate(all="ignore"):  # of bad rows; and what is too large for a float32
                numbers[:, place] = values
    if shape is not None:
        shapes = np.broadcast_to(np.array(shape, np.int64), (len(bad), len(shape)))
    bad |= shapes.prod(1) * np.dtype(stored.dtype).itemsize > limits.record_bytes
    # A copy, as torch warns of memory that is Arrow's and may not be written.
    flat = np.array(numbers).reshape(-1).view(np.uint8)
    return Column(torch.from_numpy(flat), shapes.astype(np.int32)), bad


def _tensors(array: pa.Array, dtype: str) -> tuple[Array, IntArray, Mask]:
    """The numbers of nested lists, the lengths of each row's lists, and which rows are no tensors.

    The lists of a bad row have length 0, and its numbers are left out.
    """
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    rows, levels = np.arange(len(array)), []  # the row that each list of a level lies in
    bad = np.zeros(len(array), np.bool_)
    while is_list(array.type):
        bad[rows[_nulls(array)]] = True
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        size = np.zeros(len(bad), np.int64)
        if has_lengths(array.type):
            size[rows[::-1]] = lengths[::-1]  # a row's first list is written last
        else:
            size += array.type.list_size
        bad[rows[lengths != size[rows]]] = True
        rows, array = np.repeat(rows, lengths), pc.list_flatten(array)
        levels.append(size)
    values = _numbers(array)
    bad[rows[_nulls(array) | _wrong(values)]] = True
    shapes = np.stack(levels, 1)
    shapes[bad] = 0
    with np.errstate(all="ignore"):
        return values[~bad[rows]].astype(dtype), shapes, bad


def _content(array: pa.Array) -> tuple[IntArray, Array, Mask]:
    """Where the bytes of each row begin, int64[n + 1], all bytes, and which rows have none."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    # Hugging Face writes images as {bytes, path}; the path is of another machine.
    if pa.types.is_struct(array.type):
        array = array.field("bytes")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.cast(pa.large_string() if is_text(array.type) else pa.large_binary())
    _, offsets, content = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    everything = np.frombuffer(content or b"", np.uint8)
    return starts, everything[starts[0] : starts[-1]], _nulls(array)


def _nulls(array: pa.Array) -> Mask:
    return array.is_null().to_numpy(zero_copy_only=False)


def _numbers(array: pa.Array) -> Array:
    """The values of a column of numbers, 0 for nulls."""
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    return array.to_numpy(zero_copy_only=False)


def _wrong(values: Array) -> Mask:
    """Which numbers a sample cannot have: not finite, or beyond an int64."""
    if values.dtype == np.uint64:
        # torch has no uint64 that models take.
        return values > np.iinfo(np.int64).max
    return ~np.isfinite(values)
