"""Structs of Thrift's compact protocol, in which Parquet writes its footer and pages' headers.

Only what is asked for is kept. Numbers are cut to their width as Arrow does: a walk that differed
from its own would miss what Arrow reads. Cost: about 0.7 us a field.

Format: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Number of a field -> what is wanted of it: of a struct, or of each struct of a list, that of its
# fields; of a number, its bits.
Wanted = Mapping[int, Any]

_DEPTH = 12  # of structs and lists; Parquet has eight
_STRUCT, _LISTS, _MAP = 12, (9, 10), 11
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}  # true, false (both in the field's own byte), a byte, a double
_INTEGERS = {4: 16, 5: 32, 6: 64}  # bits of each type


def read_struct(
    content: bytes, at: int, wanted: Wanted, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """The wanted fields of a struct that begins at `at`, and where it ends.

    A field of another type than is wanted counts for nothing.

    Raises:
        IndexError: `content` ends before it does.
        ValueError: it is no struct.
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
        if number not in wanted:
            at = _skip(content, at, kind, depth)
        else:
            fields[number], at = _value(content, at, kind, wanted[number], depth)
    return fields, at + 1


def _value(content: bytes, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    if isinstance(wanted, int):
        if _INTEGERS.get(kind) == wanted:
            return _integer(content, at, wanted)
    elif kind == _STRUCT:
        return read_struct(content, at, wanted, _deeper(depth))
    elif kind in _LISTS:
        count, inner, at = _list(content, at)
        if inner == _STRUCT:
            found = []
            for _ in range(count):
                one, at = read_struct(content, at, wanted, _deeper(depth))
                found.append(one)
            return found, at
        return None, _skip_all(content, at, inner, count, depth)
    return None, _skip(content, at, kind, depth)


def _skip(content: bytes, at: int, kind: int, depth: int) -> int:
    """Where a value of a type ends."""
    if kind in _INTEGERS:
        return _varint(content, at)[1]
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind == 8:  # a string or bytes
        length, at = _varint(content, at)
        if at + length > len(content):
            raise IndexError
        return at + length
    if kind == _STRUCT:
        return read_struct(content, at, {}, _deeper(depth))[1]
    if kind in _LISTS:
        count, inner, at = _list(content, at)
        return _skip_all(content, at, inner, count, depth)
    raise ValueError(f"it has a field of type {kind}")


def _skip_all(content: bytes, at: int, kind: int, count: int, depth: int) -> int:
    depth = _deeper(depth)
    for _ in range(count):
        at = at + 1 if kind in (1, 2) else _skip(content, at, kind, depth)
    return at


def _list(content: bytes, at: int) -> tuple[int, int, int]:
    """Count and type of a list's entries, and where they begin."""
    count, kind = content[at] >> 4, content[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(content, at)
    if count > len(content) - at:  # each entry has a byte at least
        raise IndexError
    return count, kind, at


def _deeper(depth: int) -> int:
    if depth >= _DEPTH:
        raise ValueError("its structs are nested too deeply")
    return depth + 1


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
