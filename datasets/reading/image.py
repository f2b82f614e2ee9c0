"""One image file to one tensor, by the library a person names.

    torchvision    JPEG, PNG, WebP, GIF; the fastest, and decodes without Python's lock
    pillow         the most formats
    skimage        scikit-image's `imread`; the most formats, TIFF by tifffile

All of them give uint8 [3, H, W]: grey, palette, CMYK and 16-bit images become 8-bit RGB, an alpha
channel is dropped, and the EXIF orientation is applied. In memory the channels of a pixel lie
together, as decoders give them: nothing is copied, and torchvision resizes that layout fastest.
Cost for a JPEG of 128 px on one core: 0.1 ms (torchvision), 0.2 ms (pillow), 0.4 ms (skimage).

What is refused: a file that is missing, empty, no image, cut short, or damaged. The checksums of
PNG are checked; JPEG carries none, so damage inside one that leaves it decodable goes unseen.
"""

from __future__ import annotations

import difflib
import importlib.util
import io
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)
from torchvision import tv_tensors

from datasets.reading.file_kind import stranger
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.images.encoded import EncodedImage

if TYPE_CHECKING:
    from PIL import Image

Reader = Literal["torchvision", "pillow", "skimage"]
Pixels = npt.NDArray[np.generic]

_RGB = 3  # torchvision.io.ImageReadMode.RGB.value, which warns when it is looked up
_ORIENTATION = 0x0112  # the EXIF tag
_PNG = b"\x89PNG\r\n\x1a\n"


def read_image(path: str, reader: str = "torchvision", name: str = "") -> tv_tensors.Image:
    """Read the image file `path` as RGB: uint8 [3, H, W].

    Args:
        path: of this machine.
        reader: "torchvision", "pillow" or "skimage".
        name: what messages call it, if not by its path: its address.

    Raises:
        DataError: names the file, what is wrong with it and what to do.
        ConfigError: there is no such reader.
    """
    return decode_image(_content(path), name or path, reader)


def encoded_image(path: str, reader: str = "torchvision", name: str = "") -> EncodedImage:
    """The image file `path`, undecoded; arguments and errors as for `read_image`."""
    name = name or path
    return EncodedImage(_content(path), name, partial(decode_image, reader=reader))


def decode_image(content: bytes, name: str, reader: str = "torchvision") -> tv_tensors.Image:
    """Decode the bytes of an image file as RGB: uint8 [3, H, W].

    Args:
        content: of a JPEG, a PNG ...
        name: what messages call it; for a file, its path.
        reader: as for `read_image`.
    """
    if reader not in _READERS:
        check_reader(reader)
    try:
        if content.startswith(_PNG):
            _check_png(content)
        return tv_tensors.Image(_READERS[reader](content))
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever they like over a damaged file
        raise DataError(f"image {name!r} {_complaint(content[:256], reader, error)}") from error


def check_reader(reader: str) -> None:
    """Raise ConfigError unless `reader` can be used here."""
    if reader not in _READERS:
        near = difflib.get_close_matches(reader, _READERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        allowed = ", ".join(_READERS)
        raise ConfigError(
            Problem("dataset.reader", f"no reader {reader!r}; allowed: {allowed}{hint}")
        )
    if reader == "skimage" and importlib.util.find_spec("skimage") is None:
        raise ConfigError(
            Problem(
                "dataset.reader",
                "'skimage' needs scikit-image: pip install scikit-image",
            )
        )


def _with_torchvision(content: bytes) -> torch.Tensor:
    # `torchvision.io.decode_image` is this operator and a DeprecationWarning (0.29), which could be
    # silenced only for all threads at once.
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    image: torch.Tensor = torch.ops.image.decode_image(data, _RGB, True)
    if image.ndim == 4:  # an animation: its first frame
        image = image[0]
    if image.dtype == torch.uint16:
        image = (image.to(torch.int32) >> 8).to(torch.uint8)
    if content[8:12] == b"WEBP":  # the operator applies the orientation of JPEG and PNG only
        with _opened(content) as header:
            image = _upright(image, header.getexif().get(_ORIENTATION, 1))
    return image


def _with_pillow(content: bytes) -> torch.Tensor:
    from PIL import ImageOps

    with _opened(content) as image:
        image.load()
        wide = image.mode.startswith("I")  # 16 bits; Pillow's own conversion would clip them
        upright = ImageOps.exif_transpose(image)
        return _rgb(np.array(upright if wide else upright.convert("RGB")))


def _with_skimage(content: bytes) -> torch.Tensor:
    from skimage.io import imread

    # The header comes first: imageio leaves files open that it can make nothing of.
    with _opened(content) as header:
        pixels: Pixels = imread(io.BytesIO(content))
        if pixels.ndim == 4:  # an animation: its first frame
            pixels = pixels[0]
        if header.mode == "CMYK":
            pixels = _cmyk_to_rgb(pixels)
        if header.mode == "P" and pixels.ndim == 2:  # TIFF: the entries, without their colours
            palette = header.getpalette("RGB") or []
            pixels = np.array(palette, np.uint8).reshape(-1, 3)[pixels.astype(np.intp)]
        return _upright(_rgb(pixels), header.getexif().get(_ORIENTATION, 1))


_READERS: dict[str, Callable[[bytes], torch.Tensor]] = {
    "torchvision": _with_torchvision,
    "pillow": _with_pillow,
    "skimage": _with_skimage,
}


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # all at once, so a buffer would only be copied
            return file.read()
    except OSError as error:
        raise DataError(
            f"image {path!r} cannot be read: {error.strerror}. "
            "Put it there or take it out of the data."
        ) from error


def _opened(content: bytes) -> Image.Image:
    """The header of an image; its pixels are decoded when they are first asked for."""
    from PIL import Image

    return Image.open(io.BytesIO(content))


def _cmyk_to_rgb(pixels: Pixels) -> Pixels:
    from PIL import Image

    return np.array(Image.fromarray(pixels, "CMYK").convert("RGB"))


def _rgb(pixels: Pixels) -> torch.Tensor:
    """bool, uint8 or 16-bit [H, W] or [H, W, 1 to 4] -> uint8 [3, H, W]."""
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * 255
    elif pixels.dtype in (
        np.uint16,
        np.int32,
    ):  # Pillow keeps some 16-bit images in int32
        pixels = (pixels.astype(np.int32) >> 8).clip(0, 255).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        raise ValueError(f"its pixels are {pixels.dtype}, not 8 or 16 bits")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    channels = pixels.shape[2]
    if channels in (1, 2):  # grey, and grey with alpha
        pixels = np.repeat(pixels[:, :, :1], 3, axis=2)
    elif channels not in (3, 4):
        raise ValueError(f"it has {channels} channels")
    return torch.from_numpy(np.ascontiguousarray(pixels[:, :, :3])).permute(2, 0, 1)


def _upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """Apply an EXIF orientation (1 to 8; anything else changes nothing) to [3, H, W]."""
    if orientation in (5, 6, 7, 8):
        image = image.transpose(1, 2)
    flips = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation)
    return image.flip(flips) if flips else image


def _check_png(content: bytes) -> None:
    """Walk the chunks of a PNG and their checksums; about 1 GB/s.

    torchvision's decoder takes the whole process down on some damaged files, and every decoder
    accepts one that is cut after its last pixel.
    """
    view, at = memoryview(content), len(_PNG)
    while at + 12 <= len(view):
        length = int.from_bytes(view[at : at + 4], "big")
        kind, end = bytes(view[at + 4 : at + 8]), at + 12 + length
        if end > len(view):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise ValueError(f"the checksum of its part {kind!r} at byte {at} does not fit")
        if kind == b"IEND":
            return
        at = end
    raise ValueError("it ends before its last part")


def _complaint(start: bytes, reader: str, error: Exception) -> str:
    """What is wrong with a file that starts with `start`, and what to do about it."""
    replace = "Replace it or take it out of the data."
    other = stranger(start)
    if other is not None:
        return f"is no image: {other}. {replace}"
    # What is left of torchvision's text without the place in its source and its C++ stack.
    detail = re.sub(r"^.*\.cpp:\d+, ", "", str(error).split("\n")[0]) or type(error).__name__
    if "Unsupported image file" in detail:
        return (
            "has a format that reader 'torchvision' does not know (it reads JPEG, PNG, WebP and "
            "GIF). Convert it, or set dataset.reader=pillow."
        )
    return f"is truncated or damaged (reader {reader!r}: {detail}). {replace}"
