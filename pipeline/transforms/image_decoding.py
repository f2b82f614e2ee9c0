"""Transforms that decode only the wanted part of a JPEG file, at the wanted size.

The crop follows from the sample's key and the header's size. `native` (pipeline/native) decodes,
resizes, mirrors and writes it in one call without Python's lock. `pure` lets Pillow decode large
files at a fraction of their size; all else (also PNG, CMYK, damaged ...) the dataset's own reader
decodes in full. Cost: benchmarks/README.md.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import torch
from PIL import ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from torchvision import tv_tensors

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction
from penstock.loading import worker_status
from penstock.loading.encoded import EncodedImage, StoredPictures, allocate, notices
from penstock.loading.fetch import Compose
from penstock.order.keys import KeyArray, key_at_hand
from penstock.transforms import native_images
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.crops import (
    CenterCrop,
    Crops,
    RandomAreaCrop,
    Ratios,
    Shares,
    Size,
    side_lengths,
)
from penstock.transforms.image import Sample
from penstock.transforms.jpeg_header import JpegHeader, jpeg_header
from penstock.transforms.native_images import Normal, Pixels, with_pillow

Decoder = Literal["auto", "native", "pure"]


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
        changed = copy.copy(self)  # the step itself may be used without a batch transform
        scale = 1 / (255 * np.array(normalize.std))
        bias = -np.array(normalize.mean) / np.array(normalize.std)
        changed._normal, changed._kind = (tuple(scale.tolist()), tuple(bias.tolist())), np.float32
        return changed

    def __call__(self, sample: Sample) -> Sample:
        # Outside of samples the key would be drawn from torch, also for a crop that needs none.
        key = np.uint64(key_at_hand() if self.crop.draws else 0)
        return {name: self._transformed(value, key) for name, value in sample.items()}

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
        tensor = allocate((len(keys), *shape), np.dtype(self._kind))
        array = tensor.numpy()
        if isinstance(pictures, StoredPictures):
            if (pictures.channels != 3).any():
                return None
            crops = self.crop(keys, pictures.widths, pictures.heights)
            done = native_images.crop_resize(pictures, crops, array, self._normal)
            return tensor if done else None
        self._decode(pictures, keys, array, channels_last)
        return tensor

    def _transformed(self, value: Any, key: np.uint64) -> Any:
        if not isinstance(value, (EncodedImage, tv_tensors.TVTensor)):
            return value
        if not isinstance(value, (EncodedImage, tv_tensors.Image)):
            raise DataError(
                f"{type(self).__name__} moves no {type(value).__name__} along with the picture; "
                "use penstock.transforms.pixels or penstock.transforms.batch_geometry"
            )
        pixels = np.empty((3, *self.size), self._kind)
        if isinstance(value, EncodedImage):
            self._decode([value], np.array([key]), pixels[None])
        else:
            self._put(self._cut(value, key), pixels)
        return torch.from_numpy(pixels).as_subclass(tv_tensors.Image)

    def _decode(
        self,
        files: Sequence[EncodedImage],
        keys: KeyArray,
        target: Pixels,
        channels_last: bool = False,
    ) -> None:
        """Write the crops of files into `target`, [B, 3, *size]."""
        # Sizes come first: a crop depends on them, and C is told which part to decode.
        # None: the dataset's own reader decodes the file, or refuses it.
        headers = [
            header if header and header.width * header.height <= file.most_pixels else None
            for file, header in ((file, jpeg_header(file.content)) for file in files)
        ]
        known = [header or JpegHeader(1, 1, 0) for header in headers]  # C skips the latter
        widths, heights, _ = np.array(known, np.int64).T
        crops = self.crop(keys, widths, heights)
        # 0: decoded, and complete as far as it was read. Without C, all are still to be decoded.
        outcomes = np.ones(len(files), np.int64)
        if self.decoder == "native":
            native_images.module("jpeg").decode(
                [file.content for file in files],
                target,
                np.column_stack([known, crops.flips]).astype(np.int64),
                crops.regions,
                crops.inside,
                channels_last,
                self.reduce,
                self._normal or native_images.AS_IT_IS,
                worker_status.place(),
                outcomes,
            )
        for row in np.flatnonzero(outcomes).tolist():
            worker_status.place()[0] = row
            file, header, crop, pixels = files[row], headers[row], None, None
            if header is not None and self.decoder == "pure":
                crop = Crops(crops.regions[[row]], crops.flips[[row]], crops.inside)
                pixels = _reduced(file.content, header, crop, self.size) if self.reduce else None
            if pixels is None:  # the dataset's reader decodes all, or says what is wrong
                pixels = self._cut(file.decode(), keys[row], crop)
            self._put(pixels, target[row].transpose(2, 0, 1) if channels_last else target[row])

    def _cut(self, image: torch.Tensor, key: np.uint64, crops: Crops | None = None) -> Pixels:
        """The crop of a whole picture, uint8 [3, H, W]; where it lies follows from the key."""
        if image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3:
            raise DataError(
                f"{type(self).__name__} takes uint8 pictures [3, H, W], not {image.dtype} "
                f"{list(image.shape)}"
            )
        height, width = np.array(image.shape[1:])[:, None]
        crops = crops or self.crop(np.array([key]), width, height)
        return native_images.resized(
            image.as_subclass(torch.Tensor)[None], crops, self.size, self.decoder == "native"
        )[0].numpy()

    def _put(self, pixels: Pixels, target: Pixels) -> None:
        """Write bytes [3, *size] into the target, normalised if the transform normalises."""
        # numpy works in this thread alone; torch would wake others for it.
        if self._normal is None:
            np.copyto(target, pixels)
        else:
            scale, bias = np.array(self._normal, np.float32)[:, :, None, None]
            # Transposing bytes is faster than floats.
            np.multiply(np.ascontiguousarray(pixels), scale, out=target)
            target += bias


class DecodeRandomResizedCrop(Decode):
    """A part of random area and shape, resized and perhaps mirrored: uint8 [3, *size].

    Args:
        size, decoder, reduce: as for `Decode`.
        scale: share of the picture's area.
        ratio: width by height.
        flip: probability to mirror it.
    """

    def __init__(
        self,
        size: Size,
        scale: Shares = (0.08, 1.0),
        ratio: Ratios = (3 / 4, 4 / 3),
        flip: Fraction = 0.5,
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
        resize: Count | None = None,
        decoder: Decoder = "auto",
        reduce: bool = True,
    ) -> None:
        super().__init__(size, CenterCrop(side_lengths(size), resize), decoder, reduce)


class DecodeResize(Decode):
    """The whole picture, resized without keeping its shape: uint8 [3, *size]. See `Decode`."""

    def __init__(self, size: Size, decoder: Decoder = "auto", reduce: bool = True) -> None:
        super().__init__(size, CenterCrop(), decoder, reduce)


def decode_step(transform: Compose) -> Decode | None:
    """The first step of a transform that decodes, if one does."""
    return next((step for step in transform.steps.values() if isinstance(step, Decode)), None)


def fused(transform: Compose, batch: BatchCompose) -> tuple[Compose, BatchCompose]:
    """The same steps with normalising done while decoding, where that comes next.

    The values are the same to the last bit; it saves a pass over the batch.
    """
    steps, rest = dict(transform.steps), dict(batch.steps)
    last, first = next(reversed(steps), ""), next(iter(rest), "")
    decode, normalize = steps.get(last), rest.pop(first, None)
    if not (
        isinstance(decode, Decode)
        and type(normalize) is BatchNormalize  # a class derived from it may do something else
        and len(normalize.mean) == 3
    ):
        return transform, batch
    steps[last] = decode.normalizing(normalize)
    return Compose(steps), BatchCompose(rest, batch.seed)


def _chosen(decoder: Decoder) -> Literal["native", "pure"]:
    built = native_images.module("jpeg") is not None
    if decoder == "native" and not built:
        raise ConfigError(
            Problem(
                "decoder",
                "'native' was not built: install libjpeg-turbo's headers (libjpeg-dev) and a C "
                "compiler and install Penstock again, or set decoder=pure",
            )
        )
    if decoder == "auto" and not built:
        notices.setdefault(
            "decoder",
            "JPEG files are decoded in Python: the native decoder was not built; it needs "
            "libjpeg-dev and a C compiler",
        )
    return "native" if built and decoder != "pure" else "pure"


def _reduced(
    content: bytes, header: JpegHeader, crop: Crops, size: tuple[int, int]
) -> Pixels | None:
    """A region of a JPEG file that the DCT decodes at 1/2, 1/4 or 1/8, uint8 [3, *size].

    None if that would not cover the result, or if Pillow cannot decode the file.
    """
    left, top, right, bottom = crop.regions[0]
    most = int(min((right - left) / size[1], (bottom - top) / size[0]))
    if most < 2:
        return None
    with (
        suppress(RuntimeError, OSError, SyntaxError, ValueError),
        JpegImageFile(io.BytesIO(content)) as image,
    ):
        image.draft(None, (image.width // most, image.height // most))
        upright = ImageOps.exif_transpose(image) if header.orientation > 1 else image
        # To convert RGB to RGB would copy all of it.
        coloured = upright if upright.mode == "RGB" else upright.convert("RGB")
        return with_pillow(coloured, crop, 0, size, image.decoderconfig[0]).transpose(2, 0, 1)
    return None


def thread_safe(transform: Compose) -> bool:
    """Whether all steps draw from torch alone, if at all, so that threads may run them."""
    return all(
        thread_safe(step)
        if isinstance(step, Compose)
        else type(step).__module__.startswith(("penstock.", "torchvision.transforms.v2"))
        and getattr(step, "thread_safe", True)
        for step in transform.steps.values()
    )
