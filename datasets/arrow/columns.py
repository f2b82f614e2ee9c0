"""Columns of Arrow tables, and the fields of samples that they become.

    kind      made of                                          value
    number    integers, bool, floats                           int; floats: float32 tensor []
    tensor    lists, fixed_shape_tensor                        tensor; floats become float32
    label     dictionaries, text, integers, bool               int, a place in the classes
    text      strings                                          str
    image     bytes, or {bytes, path} as Hugging Face writes   Image, uint8 [3, H, W]
    bytes     the same                                         bytes

Of the kinds that a column can be, the first in this table is its own, with two exceptions: bytes
are an image, and a field `label` is a label. A schema that Hugging Face's `datasets` wrote says
which columns are labels, and names their classes.

Cost: 1 to 5 us a cell, beside decoding an image; a row group is prepared in about 50 us a column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["number", "tensor", "label", "text", "image", "bytes"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Fields = Mapping[str, str | Mapping[str, str | None] | None]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the files and the field of the samples that it becomes."""

    field: str
    name: str
    kind: Kind


def require_pyarrow() -> None:
    """Raise ConfigError unless pyarrow can be imported; the first time takes 0.1 s."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        reason = "Parquet and Arrow need pyarrow: pip install pyarrow"
        raise ConfigError(Problem("dataset", reason)) from error


def kinds_of(kind: pa.DataType) -> tuple[Kind, ...]:
    """What a column of this type can be made into, its own kind first; nothing if it can't be."""
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return ("tensor",) if _is_clear(kind) else ()
    if isinstance(kind, pa.BaseExtensionType):
        return kinds_of(kind.storage_type)
    if types.is_dictionary(kind):
        return ("label", "text") if is_text(kind.value_type) else ()
    if is_text(kind):
        return ("text", "label")
    if types.is_boolean(kind) or types.is_integer(kind):
        return ("number", "label")
    if types.is_floating(kind):
        return ("number",)
    if is_list(kind):
        return ("tensor",) if _leaf(kind) else ()
    if types.is_struct(kind):
        inner = next((part.type for part in kind if part.name == "bytes"), None)
        return ("image", "bytes") if inner is not None and _is_binary(inner) else ()
    return ("image", "bytes") if _is_binary(kind) else ()


def _is_clear(kind: pa.FixedShapeTensorType) -> bool:
    """Whether the order of a tensor's dimensions can be told.

    Arrow's format and pyarrow 26's writer take `permutation` the other way round from each other,
    so only those are sure that are their own inverse.
    """
    order = kind.permutation or []
    return all(order[place] == number for number, place in enumerate(order))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    import pyarrow as pa

    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )  # fmt: skip


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists, of one length or not."""
    import pyarrow as pa

    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    )  # fmt: skip


def has_lengths(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of different lengths."""
    import pyarrow as pa

    return is_list(kind) and not pa.types.is_fixed_size_list(kind)


def _leaf(kind: pa.DataType) -> bool:
    """Whether the innermost values of a list are numbers."""
    import pyarrow as pa

    while is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )  # fmt: skip


def choose_columns(
    schema: pa.Schema, fields: Fields | None, without: Sequence[str] = ()
) -> tuple[list[Column], list[str]]:
    """The fields of the samples, and the names of columns that nothing can be made of.

    Args:
        schema: of the files.
        fields: output field -> null (the column of that name, of its own kind), a kind (the column
            of that name) or {column, kind}; None takes every column that can be taken.
        without: columns that are not data, with fields=None.

    Raises:
        ConfigError: there is no such column or kind, or a column is not of it.
    """
    if fields is not None:
        return [_chosen(schema, field, wanted) for field, wanted in fields.items()], []
    features = _features(schema)
    kinds = {
        one.name: _own_kind(one.type, one.name, features.get(one.name, {}))
        for one in schema
        if one.name not in without
    }
    columns = [Column(name, name, kind) for name, kind in kinds.items() if kind]
    return columns, [name for name, kind in kinds.items() if not kind]


def _chosen(schema: pa.Schema, field: str, wanted: Any) -> Column:
    key = f"dataset.fields.{field}"
    column, kind = field, wanted
    if isinstance(wanted, Mapping):
        unknown = set(wanted) - {"column", "kind"}
        if unknown:
            raise ConfigError(Problem(key, f"takes column and kind, not {sorted(unknown)[0]!r}"))
        column, kind = wanted.get("column") or field, wanted.get("kind")
    if column not in schema.names:
        near = get_close_matches(str(column), schema.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(schema.names)
        raise ConfigError(Problem(key, f"there is no column {column!r}{hint} (there are {known})"))
    return Column(field, column, _checked_kind(schema, key, field, column, kind))


def _checked_kind(schema: pa.Schema, key: str, field: str, column: str, kind: Any) -> Kind:
    type_ = schema.field(schema.names.index(column)).type
    own = _own_kind(type_, field, _features(schema).get(column, {}))
    if kind is None and own is not None:
        return own
    possible = kinds_of(type_)
    if kind in possible:
        chosen: Kind = kind
        return chosen
    if not possible:
        reason = f"column {column!r} is {type_}, which no field can be made of; leave it out"
    elif kind in KINDS:
        reason = f"column {column!r} is {type_}; it can be {' or '.join(possible)}, not {kind}"
    else:
        reason = (
            f"{kind!r} is no kind; column {column!r} can be {' or '.join(possible)} (for a column "
            f"of another name write {{column: ..., kind: ...}})"
        )
    raise ConfigError(Problem(key, reason))


def _own_kind(kind: pa.DataType, field: str, feature: Mapping[str, Any]) -> Kind | None:
    possible, written = kinds_of(kind), feature.get("_type")
    if "label" in possible and (field == "label" or written == "ClassLabel"):
        return "label"
    if "bytes" in possible and written == "Audio":
        return "bytes"
    return possible[0] if possible else None


def written_classes(schema: pa.Schema, column: str) -> list[str] | None:
    """Names of the classes of a label column, if the schema has them."""
    names = _features(schema).get(column, {}).get("names")
    return [str(name) for name in names] if names and isinstance(names, list) else None


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Column -> what Hugging Face's `datasets` says about it; empty when others wrote the file."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    features = found if isinstance(found, dict) else {}
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def num_features(schema: pa.Schema, columns: Sequence[Column]) -> int | None:
    """The last dimension of the first tensor field whose type says it."""
    for column in columns:
        if column.kind == "tensor":
            size = _last_dimension(schema.field(column.name).type)
            if size is not None:
                return size
    return None


def _last_dimension(kind: pa.DataType) -> int | None:
    import pyarrow as pa

    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.shape[(kind.permutation or [-1])[-1]] if kind.shape else None
    size = None
    while is_list(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        kind = kind.value_type
    return size
