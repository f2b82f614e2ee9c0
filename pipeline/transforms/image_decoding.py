"""Transforms that decode only the wanted part of a JPEG file, at the wanted size.

The crop follows from the sample's key and the header's size. `native` (pipeline/native) decodes,
resizes, mirrors and writes it in one call without Python's lock; `pure` uses torchvision and
Pillow. Other files (PNG, CMYK, damaged ...) are decoded in full by the dataset's own reader.
Cost: benchmarks/README.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.encoded import TURNED, EncodedImage, StoredPictures, notices
from penstock.files.limits import Limits
from penstock.loading.output import allocate, allocate_row
from penstock.order.keys import KeyArray, key_at_hand
from penstock.transforms import native_images, pure_images
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.crops import CenterCrop, Crops, RandomAreaCrop, Whole, side_lengths
from penstock.transforms.image import Compose, Sample
from penstock.transforms.jpeg_header import JpegHeader, jpeg_header
from penstock.transforms.native_images import Normal

Decoder = Literal["auto", "native", "pure"]
Size = int | Sequence[int]
Pixels = npt.NDArray[Any]


_NONE = JpegHeader(1, 1, 0)  # for files without a header; C skips them


class Decode:
    """Base class: encoded pictures become [3, *size]; decoded ones are cropped and resized alike.

    Args:
        size: of the result, one side or (height, width), in pixels.
        crop: which part of the picture.
        decoder: "native", "pure", or "auto" for native where it was built.
        reduce: let the DCT decode large files at 1/2, 1/4 or 1/8 where that still covers the
            result: faster, and a grey level or two from the result of the whole file.

    Attributes:
        decoder: "native" or "pure".
        keyed: no generator is drawn from.

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
        self._kind: type[np.generic] = np.uint8

    def normalizing(self, normalize: BatchNormalize) -> Decode:
        """This transform with the batch transform `normalize` done while decoding."""
        changed = copy.copy(self)
        scale = 1 / (255 * np.array(normalize.std))
        bias = -np.array(normalize.mean) / np.array(normalize.std)
        changed._normal = tuple(scale.tolist()), tuple(bias.tolist())
        changed._kind = np.float32
        return changed

    def __call__(self, sample: Sample) -> Sample:
        key = key_at_hand() if self.crop.draws else 0
        return {name: self._one(value, key) for name, value in sample.items()}

    @property
    def takes_batches(self) -> bool:
        """Whether `decode_batch` can be used."""
        return self.decoder == "native" and native_images.pixels() is not None

    def decode_batch(
        self,
        pictures: Sequence[EncodedImage] | StoredPictures,
        keys: KeyArray,
        channels_last: bool = False,
    ) -> torch.Tensor | None:
        """The pictures of the samples with these keys: [B, 3, *size]; None to do them one by one.

        Args:
            channels_last: of files, uint8 [B, *size, 3].

        Raises:
            DataError: one of them is bad.
        """
        shape = (*self.size, 3) if channels_last else (3, *self.size)
        array, tensor = allocate((len(keys), *shape), np.dtype(self._kind))
        if isinstance(pictures, StoredPictures):
            if (pictures.channels != 3).any():
                return None
            crops = self.crop.many(keys, pictures.widths, pictures.heights)
            done = native_images.crop_resize(pictures, crops, array, self._normal)
            return tensor if done else None
        headers = [checked_header(file) or _NONE for file in pictures]
        sizes = np.array(headers, np.int64)
        contents = [file.content for file in pictures]
        decoded = native_images.decode(
            contents,
            headers,
            self.crop.many(keys, sizes[:, 0], sizes[:, 1]),
            array,
            self.reduce,
            self._normal,
            channels_last,
        )
        for row in np.flatnonzero(~decoded).tolist():
            target = array[row].transpose(2, 0, 1) if channels_last else array[row]
            self._put(self._from_pixels(pictures[row].decode(), int(keys[row])), target)
        return tensor

    def _one(self, value: Any, key: int) -> Any:
        if isinstance(value, (EncodedImage, tv_tensors.Image)):
            row = allocate_row((3, *self.size), self._kind)
            if isinstance(value, EncodedImage):
                if not self._decoded(value, key, row.array):
                    self._put(self._from_pixels(value.decode(), key), row.array)
            elif not self._cut_natively(value, key, row.array):
                self._put(self._from_pixels(value, key), row.array)
            return row.tensor.as_subclass(tv_tensors.Image)
        if isinstance(value, tv_tensors.TVTensor):
            raise DataError(
                f"{type(self).__name__} moves no {type(value).__name__} along with the picture; "
                "use the transforms of torchvision or of penstock.transforms.batch_geometry"
            )
        return value

    def _decoded(self, image: EncodedImage, key: int, target: Pixels) -> bool:
        """Whether the decoder could decode the file into `target`."""
        header = checked_header(image)
        if header is None:
            return False
        crop = self.crop(key, header.width, header.height)
        if self.decoder == "native":
            crops = Crops.of([crop], crop.inside)
            done = native_images.decode(
                [image.content], [header], crops, target[None], self.reduce, self._normal
            )
            return bool(done[0])
        pixels = pure_images.decode(image.content, header, crop, self.size, self.reduce)
        if pixels is not None:
            self._put(pixels, target)
        return pixels is not None

    def _from_pixels(self, image: torch.Tensor, key: int) -> Pixels:
        """The crop of a whole picture, uint8 [3, H, W]."""
        if image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3:
            raise DataError(
                f"{type(self).__name__} takes uint8 pictures [3, H, W], not {image.dtype} "
                f"{list(image.shape)}"
            )
        pixels = image.as_subclass(torch.Tensor)
        return pure_images.resize(
            pixels, self.crop(key, pixels.shape[2], pixels.shape[1]), self.size
        )

    def _cut_natively(self, image: torch.Tensor, key: int, target: Pixels) -> bool:
        """Whether C could crop a decoded picture into `target`: uint8 in a layout that it knows."""
        plain = image.dtype == torch.uint8 and image.ndim == 3 and len(image) == 3
        if not (plain and self.takes_batches):
            return False
        pixels = image.as_subclass(torch.Tensor).permute(1, 2, 0)
        if not pixels.is_contiguous():
            return False
        crop = self.crop(key, pixels.shape[1], pixels.shape[0])
        crops = Crops.of([crop], crop.inside)
        stored = StoredPictures.of(pixels.numpy())
        return native_images.crop_resize(stored, crops, target[None], self._normal)

    def _put(self, pixels: Pixels, target: Pixels) -> None:
        """Write bytes [3, *size] into the target, normalised if that is asked for."""
        # numpy works in this thread alone; torch would wake others for it.
        if self._normal is None:
            np.copyto(target, pixels)
            return
        pixels = np.ascontiguousarray(pixels)  # transposing bytes is faster than floats
        for channel, scale, bias in zip(range(3), *self._normal, strict=True):
            np.multiply(pixels[channel], np.float32(scale), out=target[channel])
            target[channel] += np.float32(bias)


class DecodeRandomResizedCrop(Decode):
    """A part of random area and shape, resized and perhaps mirrored: uint8 [3, *size].

    Args:
        size, decoder, reduce: as for `Decode`.
        scale: share of the picture's area, [least, largest].
        ratio: width by height, [least, largest].
        flip: probability to mirror it.
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
        super().__init__(size, RandomAreaCrop(scale, ratio, flip), decoder, reduce)


class DecodeResizeCenterCrop(Decode):
    """The middle of the picture resized: uint8 [3, *size].

    Args:
        size, decoder, reduce: as for `Decode`.
        resize: length of the shorter side before the middle is cut out; None cuts out as much as
            fits.
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
    """The whole picture, resized without keeping its shape: uint8 [3, *size]. See `Decode`."""

    def __init__(self, size: Size, decoder: Decoder = "auto", reduce: bool = True) -> None:
        super().__init__(size, Whole(), decoder, reduce)


def decode_step(transform: Compose) -> Decode | None:
    """The first step of a transform that decodes, if one does."""
    return next((step for step in transform.steps.values() if isinstance(step, Decode)), None)


def fused(transform: Compose, batch: BatchCompose) -> tuple[Compose, BatchCompose]:
    """The same steps with normalising done while decoding, where that comes next.

    The values are the same to the last bit; it saves a pass over the batch.
    """
    steps, rest = dict(transform.steps), dict(batch.steps)
    last, first = next(reversed(steps), None), next(iter(rest), None)
    if last is None or first is None:
        return transform, batch
    decode, normalize = steps[last], rest.pop(first)
    if not (
        isinstance(decode, Decode)
        and type(normalize) is BatchNormalize
        and not normalize.channels_last
        and len(normalize.mean) == 3
    ):
        return transform, batch
    steps[last] = decode.normalizing(normalize)
    return Compose(steps), BatchCompose(rest, batch.seed)


def _chosen(decoder: str) -> Literal["native", "pure"]:
    if decoder not in ("auto", "native", "pure"):
        raise ConfigError(Problem("decoder", f"got {decoder!r}, expected auto | native | pure"))
    if decoder == "native" and native_images.jpeg() is None:
        raise ConfigError(
            Problem(
                "decoder",
                "'native' was not built: install libjpeg-turbo's headers (libjpeg-dev) and a C "
                "compiler and install Penstock again, or set decoder=pure",
            )
        )
    if decoder == "auto" and native_images.jpeg() is None:
        missing = "the native decoder was not built; it needs libjpeg-dev and a C compiler"
        notices.setdefault("decoder", f"JPEG files are decoded in Python: {missing}")
    return "pure" if decoder == "pure" or native_images.jpeg() is None else "native"


def checked_header(image: EncodedImage) -> JpegHeader | None:
    """The header of a JPEG file; None where the dataset's own reader has to decode it.

    Raises:
        DataError: it claims more pixels than the dataset allows.
    """
    header = jpeg_header(image.content)
    if header is None:
        return None
    if header.orientation > 1:
        notices.setdefault("turned", TURNED.format(image.name))
    pixels = header.width * header.height
    if pixels > image.most_pixels:
        refusal = Limits(pixels=image.most_pixels).refusal("pixels", f"{pixels} pixels")
        raise DataError(
            f"image {image.name!r} claims {header.width} x {header.height} pixels: {refusal}; or "
            "take it out of the data."
        )
    return header


def thread_safe(transform: Compose | Mapping[str, Any]) -> bool:
    """Whether all steps draw from torch alone, if at all, so that threads may run them."""
    steps = transform.steps if isinstance(transform, Compose) else transform
    ours = ("penstock.", "torchvision.transforms.v2")
    return all(
        thread_safe(step)
        if isinstance(step, Compose)
        else type(step).__module__.startswith(ours) and getattr(step, "thread_safe", True)
        for step in steps.values()
    )
