"""Reads structs of Thrift's compact protocol, in which Parquet writes its footer and page headers.

Only wanted fields are kept. Numbers are cut to their width as Arrow does: a walk that differed from
Arrow's own would miss what it reads. Cost: about 0.7 us a field.

Format: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Number of a field -> its bits, for an integer; its wanted fields, for a struct; a list of these,
# for a list of structs.
Wanted = Mapping[int, Any]

_DEPTH = 16  # of structs and lists; Parquet has eight
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}  # true, false (both in the field's own byte), a byte, a double
_INTEGERS = {4: 16, 5: 32, 6: 64}  # bits of each type
_BYTES, _LISTS, _STRUCT = 8, (9, 10), 12


def read_struct(
    content: bytes, at: int, wanted: Wanted, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """The wanted fields of a struct that begins at `at`, and where it ends.

    A field of another type than the wanted one is left out.

    Raises:
        IndexError: `content` ends before the struct does.
        ValueError: it is not a struct.
    """
    fields: dict[int, Any] = {}
    number = 0
    while content[at]:
        kind, step = content[at] & 15, content[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(content, at, 16)
        value, at = _value(content, at, kind, wanted.get(number), depth)
        if value is not None:
            fields[number] = value
    return fields, at + 1


def _value(content: bytes, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    """A value, None unless it is of the wanted type, and where it ends."""
    if kind in _INTEGERS:
        value, at = _integer(content, at, _INTEGERS[kind])
        return value if wanted == _INTEGERS[kind] else None, at
    if kind in _FIXED:
        return None, at + _FIXED[kind]
    if kind == _BYTES:
        length, at = _varint(content, at)
        if at + length > len(content):
            raise IndexError
        return None, at + length
    if depth >= _DEPTH:
        raise ValueError("its structs are nested too deeply")
    if kind == _STRUCT:
        inner = wanted if isinstance(wanted, Mapping) else None
        found, at = read_struct(content, at, inner or {}, depth + 1)
        return None if inner is None else found, at
    if kind in _LISTS:
        return _list(content, at, wanted[0] if isinstance(wanted, list) else None, depth + 1)
    raise ValueError(f"it has a field of type {kind}")


def _list(content: bytes, at: int, wanted: Any, depth: int) -> tuple[list[Any] | None, int]:
    count, kind = content[at] >> 4, content[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(content, at)
    if count > len(content) - at:  # each entry has a byte at least
        raise IndexError
    found = []
    for _ in range(count):
        value, at = (None, at + 1) if kind in (1, 2) else _value(content, at, kind, wanted, depth)
        found.append(value)
    return None if wanted is None or kind != _STRUCT else found, at


def _integer(content: bytes, at: int, bits: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    value &= (1 << bits) - 1
    return (value >> 1) ^ -(value & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 128:
        value |= (content[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("a number in it is too long")
    return value | content[at] << shift, at + 1
