"""Batch transforms that decode JPEG files on the batch's device: with nvJPEG on a GPU.

Other files (PNG, CMYK, damaged ...) are decoded on the CPU by the dataset's own reader. Without a
GPU all are, one by one as samples (`DecodeFiles`), so that a bad one is its sample's. Worth it
where the CPU is the bottleneck: nvJPEG decodes whole files at full size and takes time from
training. Pixels differ by rounding from those of other decoders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)
from torch import Tensor
from torch.nn.functional import interpolate

from penstock.errors import DataError
from penstock.files.batch_bytes import reserve
from penstock.loading.batch import Batch
from penstock.loading.compose import Compose
from penstock.loading.encoded import EncodedImage
from penstock.order.randomness import KeyedRandom
from penstock.transforms.batch import BatchCompose
from penstock.transforms.crops import CenterCrop, Crop, RandomAreaCrop, side_lengths
from penstock.transforms.image_decoding import Size, checked_header
from penstock.transforms.jpeg_header import upright
from penstock.transforms.warping import resize_weights

_RGB = 3  # torchvision.io.ImageReadMode


@dataclass(frozen=True)
class DecodedImage(EncodedImage):
    """A file and its pixels, uint8 [3, H, W], upright."""

    pixels: Tensor


class DecodeFiles:
    """A step for samples that decodes their files, for `DecodeBatch` on a CPU; the build adds it.

    Raises:
        DataError: a file is bad.
    """

    decodes = True
    keyed = True  # it draws nothing

    def __call__(self, sample: Any) -> Any:
        return {
            name: _decoded(value) if isinstance(value, EncodedImage) else value
            for name, value in sample.items()
        }


class DecodeBatch:
    """Base class: the files of a batch become uint8 [B, 3, *size].

    Args:
        size: of the result, one side or (height, width), in pixels.
        crop: which part of each picture.

    Raises:
        DataError: no field of the batch holds image files, or one of them is bad.
    """

    decodes = True  # the build asks the dataset for undecoded pictures

    def __init__(self, size: Size, crop: RandomAreaCrop | CenterCrop) -> None:
        self.size = side_lengths(size)
        self.crop = crop

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        device = next((v.device for v in batch.values() if isinstance(v, Tensor)), "cpu")
        crops = [
            name
            for name, value in batch.items()
            if isinstance(value, list) and value and isinstance(value[0], EncodedImage)
        ]
        if not crops:
            raise DataError(
                f"{type(self).__name__} decodes image files, and no field of the batch "
                f"({', '.join(batch)}) holds any: take a dataset of images with an argument `lazy` "
                "(image_folder, face_landmarks), and leave transform.train empty"
            )
        keys = random.keys.tolist()
        for name in crops:
            pictures = _pixels(batch[name], torch.device(device))
            reserve(3 * len(keys) * math.prod(self.size), f"{len(keys)} pictures")
            out = torch.empty((len(keys), 3, *self.size), dtype=torch.uint8, device=device)
            for row, (pixels, key) in enumerate(zip(pictures, keys, strict=True)):
                crop = self.crop(key, pixels.shape[2], pixels.shape[1])
                resized = _cut if crop.inside else _seen
                part = resized(pixels, crop, self.size)
                out[row] = (part.flip(-1) if crop.flip else part).round_().clamp_(0, 255)
            batch[name] = out
        return batch


class DecodeBatchRandomResizedCrop(DecodeBatch):
    """A part of random area and shape, resized and perhaps mirrored: uint8 [B, 3, *size].

    Args:
        size: of the result, one side or (height, width), in pixels.
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
    ) -> None:
        super().__init__(size, RandomAreaCrop(scale, ratio, flip))


class DecodeBatchResizeCenterCrop(DecodeBatch):
    """The middle of each picture resized: uint8 [B, 3, *size].

    Args:
        size: of the result, one side or (height, width), in pixels.
        resize: length of the shorter side before the middle is cut out; None cuts out as much as
            fits.
    """

    def __init__(self, size: Size, resize: int | None = None) -> None:
        super().__init__(size, CenterCrop(side_lengths(size), resize))


def files_first(transform: Compose, batch: BatchCompose) -> Compose:
    """The steps for samples; with one that decodes files, if the first of `batch` needs them."""
    if not isinstance(next(iter(batch.steps.values()), None), DecodeBatch):
        return transform
    return Compose({**transform.steps, "decode files": DecodeFiles()})


def _pixels(files: list[EncodedImage], device: torch.device) -> list[Tensor]:
    """The whole pictures, upright, uint8 [3, H, W]."""
    if device.type != "cuda":
        images = (file if isinstance(file, DecodedImage) else _decoded(file) for file in files)
        return [image.pixels.to(device) for image in images]
    headers = [checked_header(file) for file in files]
    data = [
        torch.frombuffer(bytearray(file.content), dtype=torch.uint8)
        for file, header in zip(files, headers, strict=True)
        if header is not None
    ]
    decoded = iter(())
    try:
        # The operator and not `torchvision.io`, which warns that TorchCodec will take its place.
        decoded = iter(torch.ops.image.decode_jpegs_cuda(data, _RGB, device) if data else ())
    except RuntimeError:  # one of them is damaged, or of a kind that the decoder does not know
        headers = [None] * len(files)
    return [
        file.decode().as_subclass(Tensor).to(device)
        if header is None
        else upright(next(decoded), header.orientation)
        for file, header in zip(files, headers, strict=True)
    ]


def _decoded(file: EncodedImage) -> DecodedImage:
    """The file with its pixels, decoded on the CPU; raises DataError if it is bad."""
    header, pixels = checked_header(file), None
    if header is not None:
        reserve(3 * header.width * header.height, f"image {file.name!r}")
        data = torch.frombuffer(bytearray(file.content), dtype=torch.uint8)
        with suppress(RuntimeError):  # the dataset's reader tells what is wrong
            pixels = upright(torch.ops.image.decode_jpeg(data, _RGB, False), header.orientation)
    if pixels is None:
        pixels = file.decode().as_subclass(Tensor)
    return DecodedImage(file.content, file.name, file.decoder, file.most_pixels, pixels)


def _cut(pixels: Tensor, crop: Crop, size: tuple[int, int]) -> Tensor:
    """A crop at whole pixels, resized as after cutting it out: float32 [3, *size]."""
    left, top, right, bottom = map(int, crop[:4])
    part = pixels[None, :, top:bottom, left:right].to(torch.float32)
    return interpolate(part, size, mode="bilinear", antialias=True)[0]


def _seen(pixels: Tensor, crop: Crop, size: tuple[int, int]) -> Tensor:
    """A crop at any place, resized with the pixels beside it: float32 [3, *size]."""
    rows, columns = (
        resize_weights(
            torch.tensor([low]), torch.tensor([high - low]), length, side, pixels.device, False
        )[0]
        for low, high, length, side in (
            (crop.top, crop.bottom, pixels.shape[1], size[0]),
            (crop.left, crop.right, pixels.shape[2], size[1]),
        )
    )
    return rows @ pixels.to(torch.float32) @ columns.T
