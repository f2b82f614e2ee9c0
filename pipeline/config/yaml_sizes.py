"""The limits of a configuration file, checked before anything is made of it."""

from __future__ import annotations

from typing import Any, TextIO

import yaml

MOST_TEXT = 4 << 20  # characters of a file, with its aliases written out
_DEEPEST = 100  # mappings and lists inside of each other
_OF_A_VALUE = 32  # characters that a value counts for, beside its own
PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is one


def check(file: TextIO) -> None:
    """Raise ValueError where values lie too deep, or those that a text refers to, written out each
    time, are too many. The parser in C recurses.
    """
    sizes: dict[str, int] = {}  # of what is anchored
    open_ones: list[tuple[str | None, int]] = []  # anchors, and the size before
    size = referred = 0
    for event in yaml.parse(file, PARSER):
        before = size
        size += _OF_A_VALUE
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:  # inside of itself
                raise ValueError(f"{file.name}: *{event.anchor} refers to what it is in")
            referred += sizes[event.anchor]
            size += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            size += len(event.value)
            if event.anchor:
                sizes[event.anchor] = size - before
        elif isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, before))
            if len(open_ones) > _DEEPEST:
                raise ValueError(f"{file.name} has values inside of more than {_DEEPEST} others")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_ones.pop()
            if anchor:
                sizes[anchor] = size - before
        if referred and size > MOST_TEXT:
            raise ValueError(f"{file.name}: its aliases stand for more than {MOST_TEXT >> 20} MiB")
