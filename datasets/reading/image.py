"""One image file to one tensor.

    torchvision    JPEG; the fastest, and decodes without Python's lock; other formats by Pillow
    pillow         all formats
    skimage        the same: scikit-image's `imread` reads by Pillow

All give uint8 [3, H, W]: grey, palette and CMYK become RGB, an alpha channel is dropped, and the
EXIF orientation is applied, unless the reader's name ends in " as stored" (`check_reader` makes it
so for `orientation=ignore`). Pixels of more than 8 bits are scaled from `limits.levels` to 256
levels. What a file loses (levels, frames, transparency) is logged once, by `notices`. In memory
the channels of a pixel lie together, as decoders give them: nothing is copied, and torchvision
resizes that layout fastest. Cost for a JPEG of 128 px on one core: 0.1 ms (torchvision), 0.2 ms
(pillow).
"""

from __future__ import annotations

import io
import re
from functools import partial
from typing import Literal

import numpy as np
import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)
from PIL import Image, ImageOps
from torchvision import tv_tensors

from penstock.datasets.files import stranger
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.encoded import TURNED, EncodedImage, notices
from penstock.transforms.jpeg_header import jpeg_header, without_exif

Reader = Literal[
    "torchvision",
    "pillow",
    "skimage",
    "torchvision as stored",
    "pillow as stored",
    "skimage as stored",
]
Orientation = Literal["apply", "ignore"]  # of EXIF

# Formats that Pillow may open, the usual ones first. Not its PostScript, which starts Ghostscript,
# nor containers of pictures and of compressed data of any size.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000"),
    *("PPM", "DIB", "PCX", "QOI", "SGI", "DDS", "TGA"),
)
ORIENTATION = 0x0112  # the EXIF tag
# Part of a reader's name, so that it reaches packs, tars, fingerprints and every other place that
# knows the reader.
_AS_STORED = " as stored"


def read_image(
    path: str, reader: str = "torchvision", name: str = "", limits: Limits = DEFAULT
) -> tv_tensors.Image:
    """Read the image file `path` as RGB: uint8 [3, H, W].

    Args:
        path: of this machine.
        reader: "torchvision", "pillow" or "skimage"; with " as stored" it ignores EXIF.
        name: for messages, if not the path: its address.
        limits: `record_bytes` of the file and `pixels` of the picture.

    Raises:
        DataError: the file is missing, not an image, cut short, damaged, or claims more than the
            limits. Damage that leaves a file decodable goes unnoticed.
    """
    return encoded_image(path, reader, name, limits).decode()


def encoded_image(
    path: str, reader: str = "torchvision", name: str = "", limits: Limits = DEFAULT
) -> EncodedImage:
    """The image file `path`, undecoded; arguments and errors as for `read_image`."""
    name = name or path
    try:
        content = read_file(path, limits)
    except (DataError, OSError) as error:
        raise DataError(
            f"image {name!r} cannot be read: {getattr(error, 'strerror', None) or error}. "
            "Put it there or remove it from the data."
        ) from error
    return undecoded(content, name, reader, limits)


def undecoded(content: bytes, name: str, reader: str, limits: Limits) -> EncodedImage:
    """The bytes of an image file for a transform that decodes; arguments as for `decode_image`."""
    if reader.endswith(_AS_STORED):
        content = without_exif(content)  # decoders of a part of a JPEG know no reader
    decoder = partial(decode_image, reader=reader, limits=limits)
    return EncodedImage(content, name, decoder, limits.pixels)


def decode_image(
    content: bytes, name: str, reader: str = "torchvision", limits: Limits = DEFAULT
) -> tv_tensors.Image:
    """Decode the bytes of an image file as RGB: uint8 [3, H, W].

    Args:
        content: of a JPEG, a PNG ...
        name: for messages; of a file, its path.
        reader, limits: as for `read_image`.
    """
    library, turns = reader.removesuffix(_AS_STORED), not reader.endswith(_AS_STORED)
    header = jpeg_header(content) if turns or library == "torchvision" else None
    if turns and header is not None and header.orientation > 1:
        notices.setdefault("turned", TURNED.format(name))
    try:
        if library == "torchvision" and content.startswith(b"\xff\xd8"):
            if header is None or header.width * header.height > limits.pixels:
                opened_image(content, name, limits).close()
            # `torchvision.io.decode_image` is this operator and a DeprecationWarning (0.29), which
            # could be silenced only for all threads at once. Of other formats, it crashes over
            # damaged PNG files and decodes animations whole.
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            # 3 is the value of `ImageReadMode.RGB`, which warns when it is looked up.
            return tv_tensors.Image(torch.ops.image.decode_image(data, 3, turns))
        with opened_image(content, name, limits) as image:
            return tv_tensors.Image(_rgb(image, turns, name, limits))
    except (ImportError, MemoryError, DataError):
        raise
    except Exception as error:  # decoders raise any error for a damaged file
        # Torch begins with a line of its own code, "decode_jpeg, /x/decode_jpeg.cpp:171, ".
        detail, other = (
            re.sub(r"^.*\.cpp:\d+, ", "", str(error).split("\n")[0]) or type(error).__name__,
            stranger(content[:256]),
        )
        damaged = f"truncated or damaged (reader {reader!r}: {detail})"
        raise DataError(
            f"image {name!r} is {damaged if other is None else f'not an image: {other}'}. Replace "
            "it or remove it from the data."
        ) from error


def check_reader(reader: str, orientation: Orientation | None = None) -> str:
    """The reader by the name that `read_image` takes, with what it does about EXIF.

    Args:
        orientation: "ignore" takes pixels as they are stored; "apply" and None turn them.

    Raises:
        ConfigError: there is no such reader.
    """
    if reader not in (names := Reader.__args__):  # type: ignore[attr-defined]
        reason = f"no reader {reader!r}; allowed: {', '.join(names)}"
        raise ConfigError(Problem("dataset.reader", reason))
    return reader.removesuffix(_AS_STORED) + _AS_STORED if orientation == "ignore" else reader


def opened_image(content: bytes, name: str, limits: Limits) -> Image.Image:
    """An image whose pixels are decoded on first use; DataError if it has too many."""
    # Pillow's own limit is the whole process's. It is never lowered, and ours is checked below.
    if Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, limits.pixels)
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    if image.width * image.height > limits.pixels:
        refusal = limits.refusal("pixels", f"{image.width * image.height} pixels")
        raise DataError(
            f"image {name!r} claims {image.width} x {image.height} pixels: {refusal}; or remove it "
            "from the data."
        )
    return image


def loaded(image: Image.Image, turns: bool) -> Image.Image:
    """The pixels of an opened image, upright or as they are stored."""
    if not turns:
        image.getexif().pop(ORIENTATION, None)
    image.load()
    return ImageOps.exif_transpose(image)


def _rgb(image: Image.Image, turns: bool, name: str, limits: Limits) -> torch.Tensor:
    deep = ";16" in str(getattr(image, "tile", ""))  # 16 bits a colour; empty once it is loaded
    picture = loaded(image, turns)
    if picture.mode.startswith(("I", "F")):  # Pillow's own conversion would clip them
        pixels = np.array(picture)
        lowest, brightest = pixels.min(), pixels.max()
        if pixels.dtype.kind == "f" or lowest < 0 or brightest >= limits.levels:
            raise DataError(
                f"image {name!r} has pixels of {pixels.dtype} from {lowest:g} to {brightest:g}, "
                f"and limits.levels={limits.levels} says that whole numbers from 0 to "
                f"{limits.levels - 1} go from black to white. Convert it, raise limits.levels, or "
                "remove it from the data."
            )
        if 0 < brightest < DEFAULT.levels // 4 and limits.levels == DEFAULT.levels:
            levels = max(256, 1 << int(brightest).bit_length())
            notices["levels"] = (
                f"image {name!r} has 16 bits, and its brightest pixel is {brightest}, so "
                f"{(int(brightest) >> 8) + 1} of 256 grey levels are left. If no image has more "
                f"than {levels} levels, set limits.levels={levels}"
            )
        grey = (pixels.astype(np.int64) * 256 // limits.levels).astype(np.uint8)
        pixels = np.repeat(grey[:, :, None], 3, axis=2)
    else:
        if deep and limits.levels != DEFAULT.levels:
            raise DataError(
                f"image {name!r}: Pillow keeps the upper 8 of 16 bits of colours, so "
                f"limits.levels={limits.levels} comes too late. Convert it to grey or to 8 bits."
            )
        if (
            "alpha" not in notices
            and picture.has_transparency_data
            and np.array(picture.convert("RGBA").getchannel("A")).min() < 255
        ):
            notices["alpha"] = (
                f"image {name!r} has transparent pixels; they are read in the colours that are "
                "stored below, which may be any"
            )
        pixels = np.array(picture.convert("RGB"))
        if deep and pixels.max() < 64:
            notices["levels"] = (
                f"image {name!r} has 16 bits a colour, of which Pillow keeps the upper 8: its "
                f"brightest is {pixels.max()} of 255. Scale its colours to 16 bits, or to 8"
            )
    return torch.from_numpy(pixels).permute(2, 0, 1)
