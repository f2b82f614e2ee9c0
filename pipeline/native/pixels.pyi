"""Regions of decoded pictures, resampled in one call of C without the interpreter's lock."""

from typing import Any

def crop_resize(
    pixels: Any,
    target: Any,
    facts: Any,
    regions: Any,
    inside: bool,
    channels_last: bool,
    normal: tuple[tuple[float, float, float], tuple[float, float, float]],
    place: Any,
    /,
) -> None:
    """Resample a region of each of B pictures into `target`, as `penstock.native.jpeg.decode` does.

    Args:
        pixels: contiguous bytes that the pictures are in, each as [height, width, 3].
        target: contiguous, uint8 or float32 [B, 3, height, width].
        facts: int64 [B, 4]: the byte at which a picture begins, its height and width, and whether
            to mirror the result.
        regions: float64 [B, 4]: left, top, right, bottom in pixels of the picture.
        inside: whether pixels beside the region must not count, as after a crop.
        channels_last: the target is uint8 [B, height, width, 3].
        normal: scales and biases of the channels, for float32: value * scale + bias.
        place: int64 [1]; before each picture its number is written there.

    Raises:
        ValueError: an argument is of another type or shape, or a picture or its region is out of
            bounds; results before it are written.
        MemoryError: there is not enough.
    """
