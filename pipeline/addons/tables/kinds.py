"""Columns of a table, and the fields of samples that they become.

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
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from penstock.addons.storage.rows import no_column
from penstock.errors import ConfigError, Problem

Kind = Literal["number", "tensor", "label", "text", "image", "bytes", "audio", "rate", "numbers"]
KINDS: tuple[Kind, ...] = get_args(Kind)[:-1]  # that a column alone can become
Fields = Mapping[str, str | Mapping[str, str | Sequence[str] | None] | None]
_BINARY = ("binary", "large_binary", "binary_view", "fixed_size_binary")
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
    if isinstance(kind, pa.BaseExtensionType) and hasattr(kind, "shape"):
        order = list(getattr(kind, "permutation", None) or [])
        # Arrow's format and pyarrow take another order the other way round from each other.
        return ("tensor",) if order == sorted(order) else ()
    # Other extension types mean what their storage means.
    if isinstance(kind, pa.BaseExtensionType):
        return kinds_of(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return ("label", "text") if is_text(kind.value_type) else ()
    if is_text(kind):
        return ("text", "label")
    if pa.types.is_floating(kind):
        return ("number",)
    if is_whole(kind):
        return ("number", "label")
    if is_list(kind):
        while is_list(kind):
            kind = kind.value_type
        return ("tensor",) if pa.types.is_floating(kind) or is_whole(kind) else ()
    if pa.types.is_struct(kind):
        kind = next((part.type for part in kind if part.name == "bytes"), None)
    is_content = str(kind).split("[")[0] in _BINARY
    return ("image", "bytes", "audio", "rate") if is_content else ()


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return str(kind) in ("string", "large_string", "string_view")


def is_whole(kind: pa.DataType) -> bool:
    """Whether a column of this type holds whole numbers or truth values."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists, of one length or not."""
    return has_lengths(kind) or bool(pa.types.is_fixed_size_list(kind))


def has_lengths(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of different lengths."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def features_of(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Column -> its description by Hugging Face's `datasets`; empty if that did not write it."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: value for name, value in features.items() if isinstance(value, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def written_classes(schema: pa.Schema, column: str) -> list[str] | None:
    """Names of the classes of a label column, if the schema has them."""
    names = features_of(schema).get(column, {}).get("names")
    return [str(name) for name in names] if names and isinstance(names, list) else None


def choose_fields(
    schema: pa.Schema, fields: Fields | None, without: Sequence[str], key: str
) -> list[TableField]:
    """The fields of the samples.

    Args:
        schema: of the files.
        fields: field -> null (the column of that name, of its own kind), a kind (the column of that
            name), {column, kind} or {columns: [...]}; None takes every column that can be taken.
        without: columns that are not data, with fields=None.
        key: of the configuration, before the name of a field.

    Raises:
        ConfigError: there is no such column or kind, or a column is not of it.
    """
    if fields is not None:
        return [_chosen(schema, name, choice, key + name) for name, choice in fields.items()]
    kinds = {n: _own_kind(schema, n, n) for n in schema.names if n not in without}
    made = [TableField(name, (name,), kind) for name, kind in kinds.items() if kind]
    # Samples of sound mean little without their rate; with two columns nobody knows whose it is.
    audio = [field for field in made if field.kind == "audio"]
    if len(audio) == 1 and "rate" not in kinds:
        made.append(TableField("rate", audio[0].columns, "rate"))
    return made


def _chosen(schema: pa.Schema, field: str, choice: object, key: str) -> TableField:
    given: Mapping[str, Any] = choice if isinstance(choice, Mapping) else {"kind": choice}
    joins = "columns" in given
    if {*given} - ({"columns"} if joins else {"column", "kind"}):
        reason = f"has {', '.join(given)}; allowed: column and kind, or columns alone"
        raise ConfigError(Problem(key, reason))
    names = given["columns"] if joins else [given.get("column") or field]
    if isinstance(names, str) or not names:
        raise ConfigError(Problem(key, "columns has to be a list of columns of numbers: [x0, x1]"))
    wanted: Any = None
    for name in names:
        if name not in schema.names:
            raise ConfigError(Problem(key, no_column(name, schema.names)))
        possible = kinds_of(schema.field(name).type)
        wanted = "number" if joins else given.get("kind") or _own_kind(schema, name, field)
        if wanted not in possible:
            reason = f"column {name!r} is {schema.field(name).type}, which can be "
            reason += f"{', '.join(possible) or 'no field'}, not {wanted}"
            raise ConfigError(Problem(key, f"{reason}; kinds: {', '.join(KINDS)}"))
    return TableField(field, tuple(names), "numbers" if joins else wanted)


def _own_kind(schema: pa.Schema, column: str, field: str) -> Kind | None:
    """The kind that a column becomes by default, or None."""
    possible = kinds_of(schema.field(column).type)
    written = features_of(schema).get(column, {}).get("_type")
    if "label" in possible and (field == "label" or written == "ClassLabel"):
        return "label"
    if "bytes" in possible and written in _WRITTEN:
        return _WRITTEN[written]
    return possible[0] if possible else None
