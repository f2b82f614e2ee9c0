"""How much may come out of compressed data: `limits.expansion`, as bytes."""

from __future__ import annotations

from pipeline.errors import DataError
from pipeline.files.limits import Limits

FREE = 64 << 20  # bytes that any file may expand to, however small it is


def allowed(packed: int, limits: Limits) -> int:
    """Bytes that may come out of `packed` bytes."""
    return FREE + int(limits.expansion * packed)


def check_expansion(found: int, packed: int, limits: Limits, name: str) -> None:
    """Raise DataError if `found` bytes are too many for `packed` compressed ones."""
    if found > allowed(packed, limits):
        shown = f"its {packed} compressed bytes expand to {found} or more"
        raise DataError(f"{name}: {limits.refusal('expansion', shown)}.")
