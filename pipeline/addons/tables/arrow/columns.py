"""Columns of Arrow tables, the fields of samples that they become, and the classes of labels.

    kind      made of                                          value
    number    integers, bool, floats                           int; floats: float32 tensor []
    numbers   several such columns, put together               float32 [n]; int64 if all are whole
    tensor    lists, fixed_shape_tensor                        tensor; floats become float32
    label     dictionaries, text, integers, bool               int, a place in the classes
    text      strings                                          str
    image     bytes, or {bytes, path} as Hugging Face writes   Image, uint8 [3, H, W]
    bytes     the same                                         bytes
    audio     the same                                         float32 [C, T]
    rate      the same, of audio                               int, Hz
    texts     lists of strings                                 list of str

The default is the first kind in this table that a column can be, with three exceptions: bytes are
an image, a field `label` is a label, and lists of strings are left out. A schema by Hugging Face's
`datasets` says which columns are labels, and names their classes.

Cost: 1 to 5 us a cell, beside decoding an image; a row group is prepared in about 50 us a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from penstock.addons.storage.rows import no_column
from penstock.addons.tables.arrow.files import (
    ArrowFiles,
    features_of,
    in_one_piece,
    written_classes,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal[
    "number", "tensor", "label", "text", "image", "bytes", "audio", "rate", "texts", "numbers"
]
KINDS: tuple[Kind, ...] = get_args(Kind)[:-1]  # that a column alone can become
Fields = Mapping[str, str | Mapping[str, str | Sequence[str] | None] | None]
_TEXT = ("string", "large_string", "string_view")
_BINARY = ("binary", "large_binary", "binary_view", "fixed_size_binary")


@dataclass(frozen=True, slots=True)
class TableField:
    """A field of the samples, and the column of the files that it is made of.

    Attributes:
        more: further columns that are put together with it.
    """

    name: str
    column: str
    kind: Kind
    more: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """All columns that it is made of."""
        return (self.column, *self.more)


def require_pyarrow() -> None:
    """Raise ConfigError unless pyarrow can be imported; the first time takes 0.1 s."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        reason = "Parquet and Arrow need pyarrow: pip install pyarrow"
        raise ConfigError(Problem("dataset", reason)) from error


def kinds_of(kind: pa.DataType) -> tuple[Kind, ...]:
    """Kinds of fields that a column of this type can become, its own first; empty if none."""
    import pyarrow as pa

    if isinstance(kind, pa.FixedShapeTensorType):
        # Arrow's format and pyarrow 26's writer take `permutation` the other way round from each
        # other, so only those are sure that are their own inverse.
        order = kind.permutation or []
        return ("tensor",) if all(order[to] == at for at, to in enumerate(order)) else ()
    if isinstance(kind, pa.BaseExtensionType):
        return kinds_of(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return ("label", "text") if is_text(kind.value_type) else ()
    if is_text(kind):
        return ("text", "label")
    if pa.types.is_floating(kind):
        return ("number",)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return ("number", "label")
    if is_list(kind):
        while is_list(kind):
            kind = kind.value_type
        if is_text(kind):
            return ("texts",)
        types = pa.types
        numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        return ("tensor",) if numbers else ()
    if pa.types.is_struct(kind):
        kind = next((part.type for part in kind if part.name == "bytes"), None)
    is_content = str(kind).split("[")[0] in _BINARY
    return ("image", "bytes", "audio", "rate") if is_content else ()


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return str(kind) in _TEXT


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists, of one length or not."""
    import pyarrow as pa

    return has_lengths(kind) or bool(pa.types.is_fixed_size_list(kind))


def has_lengths(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of different lengths."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def choose_fields(
    schema: pa.Schema, fields: Fields | None, without: Sequence[str] = ()
) -> tuple[list[TableField], list[str]]:
    """The fields of the samples, and the names of columns that no field can be made of.

    Args:
        schema: of the files.
        fields: field -> null (the column of that name, of its own kind), a kind (the column of that
            name), {column, kind} or {columns: [...]}; None takes every column that can be taken.
        without: columns that are not data, with fields=None.

    Raises:
        ConfigError: there is no such column or kind, or a column is not of it.
    """
    if fields is not None:
        return [_chosen(schema, name, choice) for name, choice in fields.items()], []
    features = features_of(schema)
    kinds = {
        column.name: own_kind(column.type, column.name, features.get(column.name, {}))
        for column in schema
        if column.name not in without
    }
    chosen = [TableField(name, name, kind) for name, kind in kinds.items() if kind]
    return chosen, [name for name, kind in kinds.items() if not kind]


def _chosen(schema: pa.Schema, field: str, choice: object) -> TableField:
    key = f"dataset.fields.{field}"
    column, kind = field, choice
    if isinstance(choice, Mapping) and "columns" in choice:
        return _joined(schema, name=field, choice=choice)
    if isinstance(choice, Mapping):
        unknown = set(choice) - {"column", "kind"}
        if unknown:
            raise ConfigError(Problem(key, f"takes column and kind, not {sorted(unknown)[0]!r}"))
        column, kind = choice.get("column") or field, choice.get("kind")
    if column not in schema.names:
        raise ConfigError(Problem(key, no_column(column, schema.names)))
    type_ = schema.field(schema.names.index(column)).type
    if kind is None:
        kind = own_kind(type_, field, features_of(schema).get(column, {}))
    possible = kinds_of(type_)
    kind = kind or next(iter(possible), None)
    if kind in possible:
        return TableField(field, column, kind)
    known = " or ".join(filter(None, [", ".join(possible[:-1]), *possible[-1:]]))
    if not possible:
        reason = f"column {column!r} is {type_}, which no field can be made of; leave it out"
    elif kind in KINDS:
        reason = f"column {column!r} is {type_}; it can be {known}, not {kind}"
    else:
        reason = (
            f"unknown kind {kind!r}; column {column!r} can be {known} (for a "
            f"column of another name write {{column: ..., kind: ...}})"
        )
    raise ConfigError(Problem(key, reason))


def _joined(schema: pa.Schema, name: str, choice: Mapping[str, object]) -> TableField:
    """A field of several columns of numbers."""
    key = f"dataset.fields.{name}.columns"
    columns = choice["columns"]
    others = sorted(set(choice) - {"columns"})
    if others:
        raise ConfigError(Problem(key, f"stands alone: take out {others[0]!r}"))
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise ConfigError(Problem(key, "has to be a list of columns of numbers: [x0, x1]"))
    for column in columns:
        if column not in schema.names:
            raise ConfigError(Problem(key, no_column(column, schema.names)))
        type_ = schema.field(schema.names.index(column)).type
        if "number" not in kinds_of(type_):
            reason = f"column {column!r} is {type_}, and only numbers can be put together"
            raise ConfigError(Problem(key, reason))
    double = next((column for column in columns if columns.count(column) > 1), None)
    if double is not None:
        raise ConfigError(Problem(key, f"names the column {double!r} twice"))
    return TableField(name, columns[0], "numbers", tuple(columns[1:]))


def own_kind(kind: pa.DataType, field: str, feature: Mapping[str, object]) -> Kind | None:
    """The field that a column becomes by default, or None.

    Args:
        feature: its description by Hugging Face's `datasets`.
    """
    possible, written = kinds_of(kind), feature.get("_type")
    if "label" in possible and (field == "label" or written == "ClassLabel"):
        return "label"
    if "bytes" in possible and written == "Audio":
        return "bytes"
    return possible[0] if possible and possible != ("texts",) else None


def num_features(schema: pa.Schema, fields: Sequence[TableField]) -> int | None:
    """The last dimension of the first field of tensors or joined numbers whose type says it."""
    import pyarrow as pa

    for field in (field for field in fields if field.kind in ("tensor", "numbers")):
        if field.kind == "numbers":
            return len(field.sources)
        kind, size = schema.field(field.column).type, None
        if isinstance(kind, pa.FixedShapeTensorType):
            size = kind.shape[(kind.permutation or [-1])[-1]] if kind.shape else None
        while is_list(kind):
            size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
            kind = kind.value_type
        if size is not None:
            return size
    return None


def find_classes(
    files: ArrowFiles, labels: Sequence[TableField], classes: Sequence[str] | None, limits: Limits
) -> dict[str, list[str]]:
    """Names of the classes of each label field.

    They are `classes` (for the first label), those in the schema, or the values of the columns:
    texts in alphabetical order, "0" up to the largest number.

    Cost: nothing where they are known; else the label columns are read once.

    Raises:
        DataError: a column has no label, or more classes than `limits.classes`.
    """
    classes_of = {}
    for number, label in enumerate(labels):
        known = (classes if number == 0 else None) or written_classes(files.schema, label.column)
        names = list(known) if known else _in_files(files, label.column, limits)
        _check_count(files, label.column, limits, len(names), f"it has {len(names)} classes")
        classes_of[label.name] = names
    return classes_of


def _check_count(files: ArrowFiles, column: str, limits: Limits, count: int, claim: str) -> None:
    if count > limits.classes:
        refusal = limits.refusal("classes", claim)
        raise DataError(f"{files.name(0)!r}, column {column!r}: {refusal}.")


def _in_files(files: ArrowFiles, column: str, limits: Limits) -> list[str]:
    names: set[str] = set()
    largest = -1
    for group in watched(range(len(files)), len(files), f"looking for classes in {column}"):
        table, _ = files.read(group, [column])
        with files.reading(group):
            unique = _different(in_one_piece(table, column)).to_pylist()
        values = [value for value in unique if value is not None]
        if values and isinstance(values[0], str):
            names.update(values)
        elif values:
            largest = max(largest, *map(int, values))
        claim = f"label {largest}" if largest >= 0 else f"{len(names)} different labels"
        claim = f"{files.group_name(group)} has {claim}"
        _check_count(files, column, limits, max(len(names), largest + 1), claim)
    if not names and largest < 0:
        raise DataError(
            f"{files.name(0)!r}, column {column!r}: there are no labels in it. Name the classes "
            "with dataset.classes, or take another column in dataset.fields."
        )
    return sorted(names) if names else [str(number) for number in range(largest + 1)]


def _different(array: pa.Array) -> pa.Array:
    """The labels that there are in a column."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        return _plain_labels(array).unique()
    # Not of the decoded column, in which every row has the whole text.
    return _plain_labels(array.dictionary.take(array.indices.unique())).unique()


def _plain_labels(array: pa.Array) -> pa.Array:
    """Labels as strings or integers."""
    import pyarrow as pa

    return array.cast(pa.string() if is_text(array.type) else pa.int64())


def label_codes(array: pa.Array, classes: Sequence[str]) -> IntArray:
    """Places of a column's values in `classes`, int64[n]; -1 where it is none of them, or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        codes = np.append(label_codes(array.dictionary, classes), -1)  # -1: of nulls
        return codes[array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)]
    labels = _plain_labels(array)
    if is_text(labels.type):
        labels = pc.index_in(labels, value_set=pa.array(list(classes), pa.string()))
    filled = labels.cast(pa.int64()).fill_null(-1)
    codes = np.array(filled.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.where(codes < len(classes), np.maximum(codes, -1), -1)
