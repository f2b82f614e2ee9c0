"""One image file to one tensor, by the library a person names.

    torchvision    JPEG; the fastest, and decodes without Python's lock; PNG, WebP and GIF by Pillow
    pillow         the most formats
    skimage        the same: scikit-image's `imread` reads bytes by Pillow

All give uint8 [3, H, W]: grey, palette and CMYK become RGB, an alpha channel is dropped, and the
EXIF orientation is applied, unless the reader's name ends in " as stored" (`check_reader` makes it
so for `orientation=ignore`). Pixels of more than 8 bits are scaled from `limits.levels` to 256
levels. What is lost of a file (levels, frames, transparency) is told once, by `notices`. In memory
the channels of a pixel lie together, as decoders give them: nothing is copied, and torchvision
resizes that layout fastest. Cost for a JPEG of 128 px on one core: 0.1 ms (torchvision), 0.2 ms
(pillow).
"""

from __future__ import annotations

import difflib
import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)
from torchvision import tv_tensors

from penstock.datasets.reading.file_kind import stranger
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.encoded import TURNED, EncodedImage, notices
from penstock.files.limits import DEFAULT, Limits
from penstock.terminal import say
from penstock.transforms.jpeg_header import has_jpeg_end, jpeg_header, without_exif

if TYPE_CHECKING:
    from PIL import Image

Reader = Literal[
    "torchvision",
    "pillow",
    "skimage",
    "torchvision as stored",
    "pillow as stored",
    "skimage as stored",
]
Orientation = Literal["apply", "ignore"]  # of EXIF
Pixels = npt.NDArray[np.generic]

_RGB = 3  # torchvision.io.ImageReadMode.RGB.value, which warns when it is looked up
_ORIENTATION = 0x0112  # the EXIF tag
# Part of a reader's name, so that it reaches packs, tars, fingerprints and every other place that
# knows the reader.
_AS_STORED = " as stored"
# Formats that Pillow may open, the usual ones first. Not its PostScript, which starts Ghostscript,
# nor containers of pictures and of compressed data of any size.
_FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "AVIF",
    "JPEG2000",
    "PPM",
    "DIB",
    "PCX",
    "QOI",
    "SGI",
    "DDS",
    "TGA",
)
_PNG, _PNG_END = b"\x89PNG", b"IEND\xaeB`\x82"
_REPLACE = "Replace it or remove it from the data."


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
        DataError: the file is missing, not regular, empty, not an image, cut short, damaged, or
            claims more than the limits, for which nothing is allocated. The checksums of PNG are
            verified; JPEG has none, so damage that leaves it decodable goes unnoticed.
        ConfigError: there is no such reader.
    """
    encoded = encoded_image(path, reader, name, limits)
    return decode_image(encoded.content, encoded.name, reader, limits)


def encoded_image(
    path: str, reader: str = "torchvision", name: str = "", limits: Limits = DEFAULT
) -> EncodedImage:
    """The image file `path`, undecoded; arguments and errors as for `read_image`."""
    name = name or path
    try:
        content = read_file(path, limits)
    except DataError as error:
        raise DataError(f"image {name!r}: {error}; or remove it from the data.") from error
    except OSError as error:
        raise DataError(
            f"image {name!r} cannot be read: {error.strerror}. "
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
    library = reader.removesuffix(_AS_STORED)
    if library not in _READERS:
        check_reader(reader)
    looks = library == reader and "turned" not in notices and b"Exif" in content[:64]
    if looks and (header := jpeg_header(content)) is not None and header.orientation > 1:
        notices.setdefault("turned", TURNED.format(name))
    try:
        if content.startswith(_PNG):  # readers look at few of its checksums
            opened_image(content, name, limits).verify()
            if _PNG_END not in content:
                raise ValueError("truncated PNG file")
        return tv_tensors.Image(_READERS[library](content, name, limits, library == reader))
    except (ImportError, MemoryError, DataError):
        raise
    except Exception as error:  # decoders raise any error for a damaged file
        bomb = re.search(r"\((\d+) pixels\) exceeds limit", str(error))  # said by Pillow
        if bomb:
            raise DataError(
                f"image {name!r} claims {limits.refusal('pixels', f'{bomb[1]} pixels')}; or "
                "remove it from the data."
            ) from error
        # torchvision's message without the place in its source and its C++ stack.
        detail = re.sub(r"^.*\.cpp:\d+, ", "", str(error).split("\n")[0]) or type(error).__name__
        wrong = f"is truncated or damaged (reader {reader!r}: {detail}). {_REPLACE}"
        other = stranger(content[:256])
        frame = re.search(rb"\xff[\xc0-\xc3]..(.)", content, re.DOTALL)
        if content.startswith(b"\xff\xd8") and frame and frame[1] != b"\x08":
            wrong = f"is a JPEG of {frame[1][0]} bits a colour, not 8. Convert it to PNG."
        if other is not None:
            wrong = f"is not an image: {other}. {_REPLACE}"
        elif "Unsupported image file" in detail:
            wrong = (
                "has a format that reader 'torchvision' does not know (it reads JPEG, PNG, WebP "
                "and GIF). Convert it, or set dataset.reader=pillow."
            )
        raise DataError(f"image {name!r} {wrong}") from error


def check_reader(reader: str, orientation: Orientation | None = None) -> str:
    """The reader by the name that `read_image` takes, with what it does about EXIF.

    Args:
        orientation: "ignore" takes pixels as they are stored; "apply" and None turn them.

    Raises:
        ConfigError: it cannot be used here.
    """
    library = reader.removesuffix(_AS_STORED)
    if orientation not in (None, "apply", "ignore"):
        raise ConfigError(Problem("dataset.orientation", f"{orientation!r}; apply | ignore"))
    if library not in _READERS:
        near = difflib.get_close_matches(reader, _READERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        reason = f"no reader {reader!r}; allowed: {', '.join(_READERS)}{hint}"
        raise ConfigError(Problem("dataset.reader", reason))
    return library + _AS_STORED if orientation == "ignore" else reader


def _check_size(width: int, height: int, name: str, limits: Limits) -> None:
    if width * height > limits.pixels:
        refusal = limits.refusal("pixels", f"{width * height} pixels")
        claim = f"{width} x {height} pixels: {refusal}"
        raise DataError(f"image {name!r} claims {claim}; or remove it from the data.")


def _with_torchvision(content: bytes, name: str, limits: Limits, turns: bool) -> torch.Tensor:
    if content.startswith((_PNG, b"GIF8")) or content[8:12] == b"WEBP":
        # torchvision's decoder (0.29) crashes the whole process over pixels of a PNG that are
        # damaged inside of chunks whose checksums are right, and decodes animations whole.
        return _with_pillow(content, name, limits, turns)
    header = jpeg_header(content)
    if header is not None:
        _check_size(header.width, header.height, name, limits)
    elif content.startswith(b"\xff\xd8"):
        opened_image(content, name, limits).close()
    # `torchvision.io.decode_image` is this operator and a DeprecationWarning (0.29), which could be
    # silenced only for all threads at once.
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    image: torch.Tensor = torch.ops.image.decode_image(data, _RGB, turns)
    return image


def _with_pillow(content: bytes, name: str, limits: Limits, turns: bool) -> torch.Tensor:
    with opened_image(content, name, limits) as image:
        many, deep = getattr(image, "is_animated", False), ";16" in str(getattr(image, "tile", ""))
        wide = image.mode.startswith(("I", "F"))  # Pillow's own conversion would clip them
        turned = loaded(image, turns)
        if many and image.format != "MPO":  # a photo with a second one behind it
            notices["frames"] = (
                f"image {name!r} has several frames; of such files the first is read"
            )
        if (
            "alpha" not in notices
            and image.has_transparency_data
            and not wide
            and np.array(image.convert("RGBA").getchannel("A")).min() < 255
        ):
            notices["alpha"] = (
                f"image {name!r} has transparent pixels; they are read in the colours that are "
                "stored below, which may be any"
            )
        if deep and content.startswith(_PNG) and image.mode in ("RGB", "RGBA"):
            # Pillow keeps the upper bytes. This decoder crashes over what Pillow has refused above.
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            colours = torch.ops.image.decode_image(data, _RGB, turns).permute(1, 2, 0)
            return _rgb(colours.numpy(), name, limits)
        pixels = np.array(turned if wide else turned.convert("RGB"))
        if deep and not wide:
            if limits.levels != DEFAULT.levels:
                raise DataError(
                    f"image {name!r}: Pillow keeps 8 of 16 bits of colours in {image.format}, so "
                    f"limits.levels={limits.levels} comes too late. Convert it to PNG."
                )
            pixels = pixels * np.uint16(257)
        return _rgb(pixels, name, limits)


def loaded(image: Image.Image, turns: bool) -> Image.Image:
    """The pixels of an opened image, upright or as they are stored."""
    orientation = image.getexif().get(_ORIENTATION, 1)
    image.load()
    return _turned(image, image.format, orientation, turns)


def _turned(pixels: Image.Image, kind: str | None, orientation: int, turns: bool) -> Image.Image:
    if kind == "TIFF":  # Pillow has turned its pixels; 6 and 8 undo each other
        orientation, turns = {6: 8, 8: 6}.get(orientation, orientation), not turns
    method = _TURNS.get(orientation) if turns else None
    return pixels if method is None else pixels.transpose(method)  # type: ignore[arg-type]


def sizes_of(path: str) -> tuple[bool, tuple[int, int], tuple[int, int]] | None:
    """Whether EXIF turns an image, and width and height as stored and upright; None if damaged.

    Cost: 90 us, for its header alone.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=_FORMATS) as image:
            # Pillow's own method of PNG would decode it.
            orientation = Image.Image.getexif(image).get(_ORIENTATION, 1)
            size = image.size[::-1] if orientation in (5, 6, 7, 8) else image.size
            sizes = (image.size, size) if image.format != "TIFF" else (size, image.size)
            return orientation in _TURNS, *sizes
    except Exception:  # any error, for a damaged file; reading it says so
        return None


_READERS: dict[str, Callable[[bytes, str, Limits, bool], torch.Tensor]] = {
    "torchvision": _with_torchvision,
    "pillow": _with_pillow,
    "skimage": _with_pillow,
}
# The number of Pillow's method (`Image.Transpose`) to turn a picture upright, by its orientation.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def opened_image(content: bytes, name: str, limits: Limits) -> Image.Image:
    """An image whose pixels are decoded on first use."""
    from PIL import Image

    # Pillow's own limit is the whole process's. It is never lowered, and ours is checked below.
    if Image.MAX_IMAGE_PIXELS is not None and limits.pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limits.pixels
    image = Image.open(io.BytesIO(content), formats=_FORMATS)
    _check_size(*image.size, name, limits)
    return image


def _rgb(pixels: Pixels, name: str, limits: Limits) -> torch.Tensor:
    """uint8 [H, W, 3], or whole numbers [H, W] or [H, W, 3] -> uint8 [3, H, W]."""
    if pixels.dtype != np.uint8:
        lowest, brightest = int(pixels.min()), int(pixels.max())
        if pixels.dtype.kind == "f" or lowest < 0:
            raise DataError(
                f"image {name!r} has pixels of {pixels.dtype} from {pixels.min():g} to "
                f"{pixels.max():g}; which are black and white is not known. Convert them to whole "
                "numbers from 0."
            )
        if brightest >= limits.levels:
            refusal = limits.refusal("levels", f"the grey level {brightest}")
            raise DataError(f"image {name!r} has {refusal}; or remove it from the data.")
        if 0 < brightest < DEFAULT.levels // 4 and limits.levels == DEFAULT.levels:
            levels = max(256, 1 << brightest.bit_length())
            notices["levels"] = (
                f"image {name!r} has 16 bits, and its brightest pixel is {brightest}, so "
                f"{(brightest >> 8) + 1} of 256 grey levels are left. If no image has more than "
                f"{levels} levels, set limits.levels={levels}"
            )
        pixels = (pixels.astype(np.int64) * 256 // limits.levels).astype(np.uint8)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)


# Damage that decoders ignore, for `task=check`.
#
#     JPEG    libjpeg's own warnings (invalid bytes, data that ends too early); no end marker
#     WebP    shorter than its header claims
#     GIF     no last byte
#
# Reading verifies the checksums of PNG. Cost: one more decoding of a JPEG.

_stderr = threading.Lock()


def image_damage(path: str, limits: Limits = DEFAULT) -> str | None:
    """Damage in an image file that can be decoded; None if none is found."""
    content = read_file(path, limits)
    if content.startswith(b"\xff\xd8"):
        if not has_jpeg_end(content):
            return "it has no end marker: it was cut off, or its end was never written"
        warnings = _libjpeg_warnings(content)
        return f"libjpeg warns: {warnings[0]}" if warnings else None
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        claimed = int.from_bytes(content[4:8], "little") + 8
        if claimed > len(content):
            return f"it was cut off: it claims {claimed} bytes, but there are {len(content)}"
    if content.startswith(b"GIF8") and not content.rstrip(b"\0").endswith(b";"):
        return "it has no end: it was cut off, or its end was never written"
    return None


def _libjpeg_warnings(content: bytes) -> list[str]:
    """libjpeg's warnings while it decodes; torchvision lets it print to this process's stderr."""
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    with _stderr, tempfile.TemporaryFile() as file:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            torch.ops.image.decode_image(data, _RGB, True)
        except RuntimeError:
            pass  # reading reports it
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    others = [line for line in lines if "JPEG" not in line]
    if others:  # another thread's
        say("\n".join(others))
    return [line.strip() for line in lines if "JPEG" in line]
