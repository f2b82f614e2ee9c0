"""How many bytes may come out of compressed data (`limits.expansion`), and come out of text."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import DataError
from penstock.files.limits import Limits

Buffer = Any  # bytes, or what gives them without a copy
FREE = 64 << 20  # bytes that any file may expand to, however small it is


def allowed(packed: int, limits: Limits) -> int:
    """Bytes that may come out of `packed` bytes."""
    return FREE + int(limits.expansion * packed)


def text_bytes(content: Buffer) -> int:
    """Bytes in memory, at most, of a text in UTF-8 or with a byte a character.

    Python gives all characters the width of the widest one. Cost: 0.1 ms a MiB.
    """
    values = np.frombuffer(content, np.uint8)
    highest = int(values.max(initial=0))
    # From 0xF0 on, four bytes of UTF-8 are one character beyond 16 bits.
    return len(values) * (1 if highest < 0x80 else 2 if highest < 0xF0 else 4)


def check_expansion(unpacked: int, packed: int, limits: Limits, name: str) -> None:
    """Raise DataError if `unpacked` bytes are too many for `packed` compressed ones."""
    if unpacked > allowed(packed, limits):
        shown = f"its {packed} compressed bytes expand to {unpacked} or more"
        raise DataError(f"{name}: {limits.refusal('expansion', shown)}.")
