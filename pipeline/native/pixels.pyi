"""Regions of decoded pictures, resampled in one call of C without the interpreter's lock."""

from typing import Any

def crop_resize(
    pixels: Any,
    target: Any,
    region: tuple[float, float, float, float],
    inside: bool,
    flip: bool,
    normal: tuple[tuple[float, float, float], tuple[float, float, float]],
    /,
) -> None:
    """Resample a region of a picture into `target`, as `pipeline.native.jpeg.decode` does.

    Args:
        pixels: contiguous, uint8 [H, W, 3].
        target: contiguous, uint8 or float32 [3, height, width].
        region: left, top, right, bottom in pixels of the picture.
        inside: whether pixels beside the region must not count, as after a crop.
        flip: mirror the result.
        normal: scales and biases of the channels, for float32: value * scale + bias.

    Raises:
        ValueError: the picture, the target or the region is none.
        MemoryError: there is not enough.
    """
