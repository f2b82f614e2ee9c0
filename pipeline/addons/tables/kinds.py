"""Columns of a table, the fields of samples that they become, and their one conversion.

    kind      made of                                          value
    number    integers, bool, floats                           int; floats: float32 tensor []
    numbers   several such columns, put together               float32 [n]; int64 if all are whole
    tensor    lists, fixed_shape_tensor, arrays of `datasets`  tensor; floats become float32
    label     dictionaries, text, integers, bool               int, a place in the classes
    text      strings                                          str
    image     bytes, or {bytes, path} as Hugging Face writes   Image, uint8 [3, H, W]
    bytes     the same                                         bytes
    audio     the same                                         float32 [C, T]
    rate      the same, of audio                               int, Hz

The default is the first kind in this table that a column can be, with two exceptions: bytes are an
image, and a field `label` is a label. A schema by Hugging Face's `datasets` says which columns are
labels, and names their classes.

A pack stores numbers of one shape a row, or of any where the type of a tensor leaves it open; of a
label the number of its class; of text and files their bytes. A cell that is null, not finite, too
large, or a list that is no tensor makes its row bad: it is stored as zeros or nothing, and refused
when it is read. Cost: 0.1 us a row and column, once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from penstock.addons.packs.folder import Column, Field
from penstock.addons.storage.rows import no_column
from penstock.datasets.arrays import plain_numbers
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Kind = Literal["number", "tensor", "label", "text", "image", "bytes", "audio", "rate", "numbers"]
Fields = Mapping[str, str | Mapping[str, str | Sequence[str] | None] | None]
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
# What bytes become by their description; others are images.
_WRITTEN: dict[str, Kind] = {"Audio": "audio", "Value": "bytes", "Video": "bytes", "Pdf": "bytes"}


@dataclass(frozen=True, slots=True)
class TableField:
    """A field of the samples, and the columns that it is made of, one but for "numbers"."""

    name: str
    columns: tuple[str, ...]
    kind: Kind


def kinds_of(kind: pa.DataType) -> tuple[Kind, ...]:
    """Kinds of fields that a column of this type can become, its own first; empty if none."""
    # Arrow's format and pyarrow take a permutation the other way round from each other.
    if (order := getattr(kind, "permutation", None)) and [*order] != sorted(order):
        return ()
    while isinstance(kind, pa.BaseExtensionType):  # which means what its storage means
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return ("label", "text") if is_text(kind.value_type) else ()
    if is_text(kind):
        return ("text", "label")
    if pa.types.is_floating(kind):
        return ("number",)
    if is_whole(kind):
        return ("number", "label")
    if isinstance(kind, _LISTS):
        while isinstance(kind, _LISTS):
            kind = kind.value_type
        return ("tensor",) if pa.types.is_floating(kind) or is_whole(kind) else ()
    if pa.types.is_struct(kind):
        kind = next((part.type for part in kind if part.name == "bytes"), None)
    return (
        ("image", "bytes", "audio", "rate")
        if str(kind).startswith(("binary", "large_binary", "fixed_size_binary"))
        else ()
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return str(kind) in ("string", "large_string", "string_view")


def is_whole(kind: pa.DataType) -> bool:
    """Whether a column of this type holds whole numbers or truth values."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def written(schema: pa.Schema, column: str) -> dict[str, Any]:
    """The description of a column by Hugging Face's `datasets`; empty if that did not write it."""
    feature = (
        json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
        .get("info", {})
        .get("features", {})
        .get(column)
    )
    return feature if isinstance(feature, dict) else {}


def choose_fields(schema: pa.Schema, fields: Fields | None, key: str) -> list[TableField]:
    """The fields of the samples.

    Args:
        schema: of the files.
        fields: field -> null (the column of that name, of its own kind), a kind (the column of that
            name), {column, kind} or {columns: [...]}; None takes every column that can be taken.
        key: of the configuration, above the name of a field.

    Raises:
        ConfigError: there is no such column or kind, or a column is not of it.
    """
    if fields is None:
        fields = {name: kind for name in schema.names if (kind := _own_kind(schema, name, name))}
        # Samples of sound mean little without their rate; with two columns, whose is it?
        audio = [name for name, kind in fields.items() if kind == "audio"]
        if len(audio) == 1 and "rate" not in schema.names:
            fields = {**fields, "rate": {"column": audio[0], "kind": "rate"}}
    return [_chosen(schema, name, choice, f"{key}.{name}") for name, choice in fields.items()]


def _chosen(schema: pa.Schema, field: str, choice: object, key: str) -> TableField:
    given: Mapping[str, Any] = choice if isinstance(choice, Mapping) else {"kind": choice}
    joins = "columns" in given
    names = given["columns"] if joins else [given.get("column") or field]
    extra = {*given} - ({"columns"} if joins else {"column", "kind"})
    if extra or isinstance(names, str) or not names:
        raise ConfigError(
            Problem(
                key,
                f"{dict(given)}; allowed: column and kind, or columns alone, a list of numbers",
            )
        )
    for name in names:
        if name not in schema.names:
            raise ConfigError(Problem(key, no_column(name, schema.names)))
        possible = kinds_of(schema.field(name).type)
        wanted: Any = "number" if joins else given.get("kind") or _own_kind(schema, name, field)
        if wanted not in possible:
            raise ConfigError(
                Problem(
                    key,
                    f"column {name!r} is {schema.field(name).type}, which can be "
                    f"{', '.join(possible) or 'no field'}, not {wanted}; "
                    f"kinds: {', '.join(get_args(Kind))}",
                )
            )
    return TableField(field, tuple(names), "numbers" if joins else wanted)


def _own_kind(schema: pa.Schema, column: str, field: str) -> Kind | None:
    """The kind that a column becomes by default, or None."""
    possible, feature = kinds_of(schema.field(column).type), written(schema, column).get("_type")
    if "label" in possible and (field == "label" or feature == "ClassLabel"):
        return "label"
    own = next(iter(possible), None)
    return _WRITTEN.get(str(feature), own) if "bytes" in possible else own


def stored_field(field: TableField, schema: pa.Schema) -> Field:
    """How a pack stores a field; its shape is None if rows may differ in theirs."""
    kinds = [schema.field(name).type for name in field.columns]
    match field.kind:
        case "number" | "numbers":
            # One float among them makes all of them floats: a tensor has one type.
            whole = all(map(is_whole, kinds))
            shape = (len(kinds),) * (field.kind == "numbers")
            return Field(
                field.name,
                "int" if whole and not shape else "tensor",
                "<i8" if whole else "<f4",
                len(shape),
                shape=shape,
            )
        case "label":
            return Field(field.name, "int", "<i8", 0, shape=())
        case "tensor":
            inner, sizes = getattr(kinds[0], "storage_type", kinds[0]), list[int | None]()
            while isinstance(inner, _LISTS):
                sizes.append(getattr(inner, "list_size", None))
                inner = inner.value_type
            # Of `fixed_shape_tensor`, and of the arrays of `datasets`.
            lengths = tuple(getattr(kinds[0], "shape", sizes))
            return Field(
                field.name,
                "tensor",
                plain_numbers(np.empty(0, inner.to_pandas_dtype())).dtype.str,
                len(lengths),
                shape=None if None in lengths else lengths,
            )
    kind = {"text": "str", "image": "file"}.get(field.kind, "bytes")
    return Field(field.name, kind, "|u1", 1, "Image" if kind == "file" else "")


def converted(
    field: TableField,
    stored: Field,
    batch: pa.RecordBatch,
    classes: Sequence[str] | None,
    codes: Mapping[str, dict[str, int]],
    limits: Limits,
) -> tuple[Column, Mask]:
    """A field of the rows of a batch, and which of them are bad, bool[n].

    Args:
        stored: its `stored_field`.
        classes, codes: of a label, see `label_numbers`; codes by the name of a field.
    """
    arrays, shape = [_plain(batch.column(name)) for name in field.columns], stored.shape
    bad = np.any([_nulls(array) for array in arrays], axis=0)
    match field.kind:
        case "number" | "numbers":
            numbers: Array = np.empty((len(bad), len(arrays)), stored.dtype)
            for place, array in enumerate(arrays):
                # Looked at before the cast, in which one beyond float32 becomes infinite.
                values, wrong = _numbers(array)
                bad |= wrong
                with np.errstate(all="ignore"):  # of bad rows; and what is too large for a float32
                    numbers[:, place] = values
        case "label":
            numbers = label_numbers(arrays[0], classes, {} if classes else codes[field.name])
            bad |= numbers < 0
        case "tensor":
            numbers, shapes, wrong = _tensors(arrays[0], stored.dtype)
            bad |= wrong
            if shape is not None:
                bad |= shapes.prod(1) != math.prod(shape)
                filled = np.zeros((len(bad), *shape), numbers.dtype)  # a bad row has no numbers
                filled[~bad] = numbers[np.repeat(~bad, shapes.prod(1))].reshape(-1, *shape)
                numbers = filled
        case _:
            cells = arrays[0].cast(
                pa.large_string() if is_text(arrays[0].type) else pa.large_binary()
            )
            starts = np.frombuffer(cells.buffers()[1], np.int64)[cells.offset :][: len(bad) + 1]
            # A copy, as torch warns of memory that is Arrow's and may not be written.
            numbers = np.array(
                np.frombuffer(cells.buffers()[2] or b"", np.uint8)[starts[0] : starts[-1]]
            )
            shapes = np.diff(starts)[:, None]
    if shape is not None:
        shapes = np.full((len(bad), len(shape)), shape, np.int32)
    if shape != ():  # a number is never too large
        bad |= shapes.prod(1) * np.dtype(stored.dtype).itemsize > limits.record_bytes
    return Column(
        torch.from_numpy(numbers.reshape(-1).view(np.uint8)), shapes.astype(np.int32, copy=False)
    ), bad


def label_numbers(
    array: pa.Array, classes: Sequence[str] | None, codes: dict[str, int]
) -> IntArray:
    """The class of each row of a column of labels, int64[n]; -1 for a null and for what is none.

    Args:
        classes: as the column writes them, in order. None: not known yet; each new one
            gets the next number in `codes`.
    """
    coded = _plain(array).dictionary_encode()
    kind = pa.string() if is_text(coded.type.value_type) else pa.int64()
    texts = [*map(str, coded.dictionary.cast(kind).to_pylist())]
    if classes is None:
        # A number below 0 is no class.
        for text in filter(lambda text: kind != pa.int64() or text[0] != "-", texts):
            codes.setdefault(text, len(codes))
    else:
        codes = {text: number for number, text in enumerate(classes)}
    # A null is place 0 among the values, also where there is no text.
    numbers = np.array([codes.get(text, -1) for text in texts] or [-1], np.int64)
    return np.where(_nulls(coded), -1, numbers[_values(coded.indices)])


def _plain(array: pa.Array) -> pa.Array:
    """A column as its cells: of extension types, of a dictionary, or of {bytes, path}."""
    array = getattr(array, "storage", array)
    # Hugging Face writes images as {bytes, path}; the path is of another machine.
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, "bytes")
    # A dictionary may list texts that no row has.
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _tensors(array: pa.Array, dtype: str) -> tuple[Array, IntArray, Mask]:
    """The numbers of nested lists, the lengths of each row's lists, and which rows are no tensors.

    The lists of a bad row have length 0, and its numbers are left out.
    """
    rows, levels = np.arange(len(array)), []  # the row that each list of a level lies in
    bad = np.zeros(len(array), np.bool_)
    while isinstance(array.type, _LISTS):
        bad[rows[_nulls(array)]] = True
        lengths = _values(pc.list_value_length(array))
        size = np.full(len(bad), getattr(array.type, "list_size", 0))  # where a row has no list
        size[rows[::-1]] = lengths[::-1]  # a row's first list is written last
        bad[rows[lengths != size[rows]]] = True
        rows, array = np.repeat(rows, lengths), pc.list_flatten(array)
        levels.append(size)
    values, wrong = _numbers(array)
    bad[rows[_nulls(array) | wrong]] = True
    shapes = np.stack(levels, 1)
    shapes[bad] = 0
    with np.errstate(all="ignore"):
        return values[~bad[rows]].astype(dtype), shapes, bad


def _nulls(array: pa.Array) -> Mask:
    return (
        np.from_dlpack(array.is_null().cast(pa.uint8())).view(np.bool_)
        if array.null_count
        else np.zeros(len(array), np.bool_)
    )


def _values(array: pa.Array) -> Array:
    """The values of a column of numbers, 0 for nulls."""
    # Not by `to_numpy`, which imports pandas: 0.4 s of CPU.
    plain = array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array
    values = np.frombuffer(plain.buffers()[1] or b"", plain.type.to_pandas_dtype())[
        plain.offset : plain.offset + len(plain)
    ]
    return np.where(_nulls(array), values.dtype.type(0), values) if array.null_count else values


def _numbers(array: pa.Array) -> tuple[Array, Mask]:
    """The values of a column of numbers, 0 for nulls, and which of them a sample cannot have: not
    finite, or beyond an int64."""
    values = _values(array)
    # torch has no uint64 that models take.
    return values, (
        values > np.iinfo(np.int64).max if values.dtype == np.uint64 else ~np.isfinite(values)
    )
