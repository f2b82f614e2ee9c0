"""Transforms that decode: the part of a JPEG file that is wanted, at the size that is wanted.

1. The crop follows from the sample's key and the size in the header, before anything is decoded;
   so it is the same whoever decodes, and no generator is drawn from.
2. `native` (pipeline/native) decodes that region at the DCT's scale that still covers the result,
   resizes it with antialiasing, mirrors it and writes it where the batch will be, in one call
   without Python's lock. `pure` does the same with torchvision and Pillow.
3. What is no plain and whole JPEG file (PNG, CMYK, damaged ...) is decoded in full by the dataset's
   own reader, one by one, and then cropped; so a bad file is refused in its words.

Cost for 500 x 375 to 224 x 224 on one core: see docs/benchmarks.md.
"""

from __future__ import annotations

import copy
import importlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)
from torch.nn.functional import interpolate
from torchvision import tv_tensors

from pipeline import slots
from pipeline.batch_colors import Normalize
from pipeline.batch_transforms import BatchCompose
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.images.crops import CenterCrop, Crop, RandomResizedCrop, Whole
from pipeline.images.encoded import EncodedImage
from pipeline.images.jpeg_header import JpegHeader, jpeg_header
from pipeline.randomness import key_at_hand
from pipeline.slots import Slot
from pipeline.transforms import Compose, Sample

Decoder = Literal["auto", "native", "pure"]
Size = int | Sequence[int]
Pixels = npt.NDArray[Any]
Normal = tuple[tuple[float, ...], tuple[float, ...]]  # scale and bias of each channel, of bytes

MOST_PIXELS = 2**28  # of a JPEG file; its pixels take three times as many bytes

_SAME: Normal = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))


@cache
def native() -> Any:
    """The module `pipeline.native.jpeg`, or None where it was not built."""
    try:
        return importlib.import_module("pipeline.native.jpeg")
    except ImportError:
        return None


@cache
def native_pixels() -> Any:
    """The module `pipeline.native.pixels`, or None where it was not built."""
    try:
        return importlib.import_module("pipeline.native.pixels")
    except ImportError:
        return None


class Decode:
    """What the transforms of this file have in common: encoded pictures become [3, *size].

    Pictures that are decoded already are cropped and resized alike.

    Args:
        size: of the result, one side or (height, width), in pixels.
        crop: which part of the picture.
        decoder: "native", "pure", or "auto" for native where it was built.
        reduce: let the DCT decode large files at 1/2, 1/4 or 1/8 where that still covers the
            result: faster, and a grey level or two from what the whole file would give.

    Attributes:
        decoder: "native" or "pure".
        keyed: that no generator is drawn from.

    Raises:
        ConfigError: "native" was not built.
    """

    keyed = True
    decodes = True  # the build asks the dataset for undecoded pictures

    def __init__(self, size: Size, crop: Any, decoder: Decoder, reduce: bool) -> None:
        self.size = side_lengths(size)
        self.crop = crop
        self.decoder = _chosen(decoder)
        self.reduce = reduce
        self._normal: Normal | None = None

    def normalizing(self, normalize: Normalize) -> Decode:
        """This transform, with the batch transform `normalize` done by the way."""
        changed = copy.copy(self)
        scale = 1 / (255 * np.array(normalize.std))
        bias = -np.array(normalize.mean) / np.array(normalize.std)
        changed._normal = tuple(scale.tolist()), tuple(bias.tolist())
        return changed

    def __call__(self, sample: Sample) -> Sample:
        key = key_at_hand() if self.crop.draws else 0
        return {name: self._one(value, key) for name, value in sample.items()}

    def _one(self, value: Any, key: int) -> Any:
        if isinstance(value, EncodedImage):
            return self._decoded(value, key).as_subclass(tv_tensors.Image)
        if isinstance(value, tv_tensors.Image):
            slot = self._slot()
            if not self._cut_natively(value, key, slot.array):
                self._put(self._from_pixels(value, key), slot.array)
            return slot.tensor.as_subclass(tv_tensors.Image)
        if isinstance(value, tv_tensors.TVTensor):
            raise DataError(
                f"{type(self).__name__} moves no {type(value).__name__} along with the picture; "
                "use the transforms of torchvision or of pipeline.batch_geometry"
            )
        return value

    def _slot(self) -> Slot:
        dtype = np.uint8 if self._normal is None else np.float32
        return slots.take((3, *self.size), dtype)

    def _decoded(self, image: EncodedImage, key: int) -> torch.Tensor:
        target, tensor = self._slot()
        header = jpeg_header(image.content)
        if header is None:
            self._put(self._from_pixels(image.decode(), key), target)
            return tensor
        if header.width * header.height > MOST_PIXELS:
            raise too_large(image, header)
        crop = self.crop(key, header.width, header.height)
        decode = self._natively if self.decoder == "native" else self._purely
        if not decode(image.content, header, crop, target):
            self._put(self._from_pixels(image.decode(), key), target)
        return tensor

    def _natively(self, content: bytes, header: JpegHeader, crop: Crop, target: Pixels) -> bool:
        """Whether the file was fit for it, and whole as far as it was read."""
        jpeg = native()
        try:
            warnings, _ = jpeg.decode(
                content, target, header[:2], crop[:4], crop.inside, self.size,
                header.orientation, crop.flip, self.reduce, self._normal or _SAME,
            )  # fmt: skip
        except (jpeg.Unsupported, jpeg.Damaged):
            return False
        return bool(warnings == 0)

    def _purely(self, content: bytes, header: JpegHeader, crop: Crop, target: Pixels) -> bool:
        """Whether the file was fit for it."""
        try:
            if crop.inside and self._reduction(crop) == 1:
                data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                pixels = self._cut(torch.ops.image.decode_jpeg(data, 3, True), crop)
            else:
                pixels = self._with_pillow(content, header, crop)
        except (RuntimeError, OSError, SyntaxError, ValueError):
            return False
        self._put(pixels, target)
        return True

    def _reduction(self, crop: Crop) -> int:
        """The largest divisor of the DCT at which the crop still covers the result."""
        rows, columns = self.size
        found = 1
        while (
            self.reduce and found < 8
            and crop.right - crop.left >= columns * found * 2
            and crop.bottom - crop.top >= rows * found * 2
        ):  # fmt: skip
            found *= 2
        return found

    def _with_pillow(self, content: bytes, header: JpegHeader, crop: Crop) -> Pixels:
        from PIL import ImageOps
        from PIL.JpegImagePlugin import JpegImageFile

        with JpegImageFile(io.BytesIO(content)) as image:
            wanted = self._reduction(crop)
            if wanted > 1:
                image.draft(None, (image.width // wanted, image.height // wanted))
            divisor = image.decoderconfig[0] if image.decoderconfig else 1
            image.load()
            upright = image if header.orientation == 1 else ImageOps.exif_transpose(image)
            return self._resized(upright.convert("RGB"), crop, divisor)

    def _resized(self, image: Any, crop: Crop, divisor: int = 1) -> Pixels:
        """A part of a Pillow image that was decoded at 1 / `divisor`: [3, *size]."""
        from PIL import Image

        left, top, right, bottom = (side / divisor for side in crop[:4])
        right, bottom = min(right, image.width), min(bottom, image.height)
        if crop.inside:
            x, y = int(left), int(top)
            image = image.crop((x, y, -int(-right // 1), -int(-bottom // 1)))
            left, top, right, bottom = left - x, top - y, right - x, bottom - y
        box = (left, top, right, bottom)
        resized = image.resize(self.size[::-1], Image.Resampling.BILINEAR, box=box)
        return _mirrored(np.asarray(resized).transpose(2, 0, 1), crop)

    def _cut(self, pixels: torch.Tensor, crop: Crop) -> Pixels:
        """A crop at whole pixels, resized by torch."""
        left, top, right, bottom = map(int, crop[:4])
        # numpy makes it contiguous in this thread; torch would share the copy out to others, and
        # waiting for them costs more than all the rest.
        part = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()[top:bottom, left:right])
        channels_last = torch.from_numpy(part).permute(2, 0, 1)[None]
        resized = interpolate(channels_last, self.size, mode="bilinear", antialias=True)
        return _mirrored(resized[0].numpy(), crop)

    def _from_pixels(self, image: torch.Tensor, key: int) -> Pixels:
        """The crop of a whole picture, uint8 [3, H, W]."""
        from PIL import Image

        if image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3:
            raise DataError(
                f"{type(self).__name__} takes uint8 pictures [3, H, W], not {image.dtype} "
                f"{list(image.shape)}"
            )
        pixels = image.as_subclass(torch.Tensor)
        crop = self.crop(key, pixels.shape[2], pixels.shape[1])
        if crop.inside:
            return self._cut(pixels, crop)
        whole = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
        return self._resized(Image.fromarray(whole), crop)

    def _cut_natively(self, image: torch.Tensor, key: int, target: Pixels) -> bool:
        """Whether a decoded picture lay in memory as C wants it, and was worked on there."""
        module = native_pixels() if self.decoder == "native" else None
        if module is None or image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3:
            return False
        pixels = image.as_subclass(torch.Tensor).permute(1, 2, 0)
        if not pixels.is_contiguous():
            return False
        crop = self.crop(key, pixels.shape[1], pixels.shape[0])
        try:
            module.crop_resize(
                pixels.numpy(), target, crop[:4], crop.inside, crop.flip, self._normal or _SAME
            )
        except ValueError:  # too large a picture, or too small a result
            return False
        return True

    def _put(self, pixels: Pixels, target: Pixels) -> None:
        """Write bytes [3, *size] into the target, normalised if that is asked for."""
        # numpy works in this thread alone; torch would wake others for it.
        if self._normal is None:
            np.copyto(target, pixels)
            return
        for channel, scale, bias in zip(range(3), *self._normal, strict=True):
            np.multiply(pixels[channel], np.float32(scale), out=target[channel])
            target[channel] += np.float32(bias)


class DecodeRandomResizedCrop(Decode):
    """A part of random area and shape, resized and perhaps mirrored: uint8 [3, *size].

    Args:
        size: of the result, one side or (height, width), in pixels.
        scale: share of the picture's area, [least, largest].
        ratio: width by height, [least, largest].
        flip: probability to mirror it.
        decoder: "auto", "native" or "pure".
        reduce: let the DCT decode large files at 1/2, 1/4 or 1/8 where that still covers the
            result.
    """

    def __init__(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        decoder: Decoder = "auto",
        reduce: bool = True,
    ) -> None:
        super().__init__(size, RandomResizedCrop(scale, ratio, flip), decoder, reduce)


class DecodeResizeCenterCrop(Decode):
    """The middle of the picture resized: uint8 [3, *size].

    Args:
        size: of the result, one side or (height, width), in pixels.
        resize: length to which the shorter side is brought before the middle is cut out; None
            cuts out as much as fits.
        decoder, reduce: as for `DecodeRandomResizedCrop`.
    """

    def __init__(
        self,
        size: Size,
        resize: int | None = None,
        decoder: Decoder = "auto",
        reduce: bool = True,
    ) -> None:
        super().__init__(size, CenterCrop(side_lengths(size), resize), decoder, reduce)


class DecodeResize(Decode):
    """All of the picture, resized without regard to its shape: uint8 [3, *size].

    Args:
        size, decoder, reduce: as for `DecodeRandomResizedCrop`.
    """

    def __init__(self, size: Size, decoder: Decoder = "auto", reduce: bool = True) -> None:
        super().__init__(size, Whole(), decoder, reduce)


def decode_step(transform: Compose) -> Decode | None:
    """The first step of a transform that decodes, if one does."""
    return next((step for step in transform.steps.values() if isinstance(step, Decode)), None)


def fused(transform: Compose, batch: BatchCompose) -> tuple[Compose, BatchCompose]:
    """The same steps with normalising done while decoding, where the two stand side by side.

    The values are the same to the last bit; what is saved is going over the batch once more.
    """
    steps, rest = dict(transform.steps), dict(batch.steps)
    last, first = next(reversed(steps), None), next(iter(rest), None)
    if last is None or first is None:
        return transform, batch
    decode, normalize = steps[last], rest.pop(first)
    if not isinstance(decode, Decode) or type(normalize) is not Normalize:
        return transform, batch
    if normalize.channels_last or len(normalize.mean) != 3:
        return transform, batch
    steps[last] = decode.normalizing(normalize)
    return Compose(steps), BatchCompose(rest, batch.seed)


def side_lengths(size: Size) -> tuple[int, int]:
    """Height and width of a result; otherwise a ConfigError."""
    sides = [size, size] if isinstance(size, int) else list(size)
    if len(sides) != 2 or min(sides) < 1:
        raise ConfigError(Problem("size", f"got {size!r}, expected a side or [height, width]"))
    return int(sides[0]), int(sides[1])


def _chosen(decoder: str) -> Literal["native", "pure"]:
    if decoder not in ("auto", "native", "pure"):
        raise ConfigError(Problem("decoder", f"got {decoder!r}, expected auto | native | pure"))
    if decoder == "native" and native() is None:
        raise ConfigError(
            Problem(
                "decoder",
                "'native' was not built: install libjpeg-turbo's headers (libjpeg-dev) and a C "
                "compiler and install Penstock again, or set decoder=pure",
            )
        )
    return "pure" if decoder == "pure" or native() is None else "native"


def too_large(image: EncodedImage, header: JpegHeader) -> DataError:
    """What is said of a file with more than `MOST_PIXELS`."""
    return DataError(
        f"image {image.name!r} has {header.width} x {header.height} pixels, more than 2^28. "
        "Make it smaller or take it out of the data."
    )


def _mirrored(pixels: Pixels, crop: Crop) -> Pixels:
    return pixels[:, :, ::-1] if crop.flip else pixels


def describe(step: Decode) -> str:
    """The decoder in a few words, for people."""
    if step.decoder == "native":
        return f"native JPEG decoder ({native().library})"
    built = "" if native() else " (the native one was not built: it needs libjpeg-dev)"
    return f"JPEG decoder in pure Python{built}"


def thread_safe(transform: Compose | Mapping[str, Any]) -> bool:
    """Whether all steps draw from torch alone, if at all, so that threads may run them."""
    steps = transform.steps if isinstance(transform, Compose) else transform
    ours = ("pipeline.", "torchvision.transforms.v2")
    return all(type(step).__module__.startswith(ours) for step in steps.values())
