"""Regions of JPEG files, decoded and resampled in one call of C without the interpreter's lock."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

library: str  # what it was compiled against

def decode(
    contents: Sequence[Buffer],
    target: Any,
    facts: Any,
    regions: Any,
    inside: bool,
    channels_last: bool,
    reduce: bool,
    normal: tuple[tuple[float, float, float], tuple[float, float, float]],
    place: Any,
    outcomes: Any,
    /,
) -> None:
    """Decode a region of each of B JPEG files into `target`, one after the other.

    Args:
        contents: the files' bytes, B of them.
        target: contiguous, uint8 or float32 [B, 3, height, width].
        facts: int64 [B, 4], of the pictures as they are to be looked at: width and height as the
            caller has them from the header, the orientation of EXIF (1 to 8), which is applied, and
            whether to mirror the result.
        regions: float64 [B, 4]: left, top, right, bottom in pixels of the upright picture.
        inside: whether pixels beside the region must not count, as after a crop; else the filter
            reaches over its border.
        channels_last: the target is uint8 [B, height, width, 3].
        reduce: let the DCT decode at 1/2, 1/4 or 1/8 where that still covers the result.
        normal: scales and biases of the channels, for float32: value * scale + bias.
        place: int64 [1]; before each file its number is written there.
        outcomes: int64 [B]; each becomes how often the decoder warned of damage (0: the file is
            whole as far as it was read), -1 where another decoder has to do it (a kind of JPEG or
            a size that this one leaves to others, or facts or a region that are out of bounds), or
            -2 where no picture could be made of the file.

    Raises:
        ValueError: an argument is of another type or shape.
        MemoryError: there is not enough.
    """
