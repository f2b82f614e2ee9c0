"""Regions of JPEG files, decoded and resampled in one call of C without the interpreter's lock."""

from typing_extensions import Buffer

class Unsupported(ValueError):
    """A kind of JPEG, or a size, that this decoder leaves to others."""

class Damaged(ValueError):
    """No picture could be made of the file."""

library: str  # what it was compiled against

def decode(
    data: Buffer,
    target: Buffer,
    image_size: tuple[int, int],
    region: tuple[float, float, float, float],
    inside: bool,
    size: tuple[int, int],
    orientation: int,
    flip: bool,
    reduce: bool,
    normal: tuple[tuple[float, float, float], tuple[float, float, float]],
    /,
) -> tuple[int, str]:
    """Decode a region of a JPEG file into `target`.

    Args:
        data: the file's bytes.
        target: contiguous, uint8 or float32 [3, height, width].
        image_size: (width, height) upright, as the caller has it from the header.
        region: left, top, right, bottom in pixels of the upright picture.
        inside: whether pixels beside the region must not count, as after a crop; else the filter
            reaches over its border.
        size: (height, width) of the result.
        orientation: of EXIF, 1 to 8, which is applied.
        flip: mirror the result.
        reduce: let the DCT decode at 1/2, 1/4 or 1/8 where that still covers the result.
        normal: scales and biases of the channels, for float32: value * scale + bias.

    Returns:
        How often the decoder warned of damage, and its first warning.

    Raises:
        Unsupported: another decoder has to do it.
        Damaged: no picture could be made of the file.
        ValueError: the target or another argument is none.
        MemoryError: there is not enough.
    """
