"""Crops and affine maps of whole batches of pictures, each row with parameters of its own.

    crop_resize     cut a box out of each row and bring it to one size, antialiased
    affine          turn, shift, scale and shear each row

Pixels are float32 or uint8, [B, C, H, W], contiguous or channels last, and come out as they came
in. Parameters are float64 or int64 on the CPU. On a CPU rows are worked on one by one, which keeps
them in its cache; elsewhere all at once.

What the rows are depends on their own pixels and parameters alone, to the last bit, for any batch
size and number of threads: sums that a batch could order otherwise (matrix products, `add` with a
factor) are written out. Between a CPU and a GPU, uint8 pixels differ by at most 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def row_by_row(images: Tensor) -> bool:
    """Whether pictures are worked on one by one, for the cache of a CPU, or all at once."""
    return images.device.type == "cpu"


def crop_resize(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes of the pictures, resized as torchvision does it with antialiasing.

    Args:
        images: [B, C, H, W].
        boxes: int64[B, 4]: top, left, height, width, inside of the picture.
        size: height and width of the result.
    """
    if not row_by_row(images):
        return crop_resize_dense(images, boxes, size)
    out = _like(images, size)
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        crop = images[row : row + 1, :, top : top + height, left : left + width]
        out[row] = F.interpolate(crop, size, mode="bilinear", antialias=True)[0]
    return out


def crop_resize_dense(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """The same by two matrix products a row, for a GPU; B * C * H * W' * (W + H') products."""
    rows, channels, height, width = images.shape
    down = resize_weights(boxes[:, 0], boxes[:, 2], height, size[0], images.device)
    across = resize_weights(boxes[:, 1], boxes[:, 3], width, size[1], images.device)
    pixels = images.to(torch.float32).reshape(rows, channels * height, width)
    pixels = torch.bmm(pixels, across.transpose(1, 2)).reshape(rows, channels, height, size[1])
    resized = torch.matmul(down[:, None], pixels)
    return _like(images, size).copy_(_rounded(resized, images.dtype))


def resize_weights(
    start: Tensor, extent: Tensor, length: int, size: int, device: torch.device | str = "cpu",
    inside: bool = True,
) -> Tensor:  # fmt: skip
    """How much each of `length` pixels counts for each of `size`: float32[B, size, length].

    A triangle as wide as the output's pixel, but not narrower than the input's, as in Pillow.

    Args:
        start, extent: [B], the part of the line that is resized.
        inside: whether pixels beside that part count for nothing.
    """
    first, span = (t.to(device, torch.float64)[:, None, None] for t in (start, extent))
    scale = span / size
    support = scale.clamp(min=1.0)
    centres = first + (torch.arange(size, device=device)[:, None] + 0.5) * scale
    pixels = torch.arange(length, device=device) + 0.5
    weights = (1 - (pixels - centres).abs() / support).clamp(min=0)
    if inside:
        weights = weights * ((pixels > first) & (pixels < first + span))
    return (weights / weights.sum(-1, keepdim=True)).to(torch.float32)


def crop_nearest(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes of masks [B, C, H, W], resized without making new values."""
    top, left, height, width = boxes.to(masks.device).unbind(1)
    down = top[:, None] + torch.arange(size[0], device=masks.device) * height[:, None] // size[0]
    across = left[:, None] + torch.arange(size[1], device=masks.device) * width[:, None] // size[1]
    rows = torch.arange(len(masks), device=masks.device)[:, None, None]
    picked = masks.movedim(1, -1)[rows, down[:, :, None], across[:, None, :]]
    return picked.movedim(-1, 1).contiguous()


def affine(images: Tensor, inverse: Tensor, fill: float = 0.0, nearest: bool = False) -> Tensor:
    """Each row seen through an affine map, as torchvision does it.

    Args:
        images: [B, C, H, W].
        inverse: float64[B, 2, 3], from an output's pixel to the input's, both counted from the
            picture's centre.
        fill: what lies outside of the picture, in the pixels' units.
        nearest: take the nearest pixel and not a mean of four; for masks.
    """
    if not row_by_row(images):
        return _affine(images, inverse, fill, nearest)
    out = torch.empty_like(images)
    together = torch.get_num_threads()  # grid_sample has a thread a row
    for row in range(0, len(images), together):
        rows = slice(row, row + together)
        out[rows] = _affine(images[rows], inverse[rows], fill, nearest)
    return out


def _affine(images: Tensor, inverse: Tensor, fill: float, nearest: bool) -> Tensor:
    grid = _grid(inverse.to(images.device, torch.float32), *images.shape[-2:])
    pixels = images.to(torch.float32)
    pixels = pixels - fill if fill else pixels
    mode = "nearest" if nearest else "bilinear"
    warped = F.grid_sample(pixels, grid, mode, padding_mode="zeros", align_corners=False)
    warped = _rounded(warped + fill if fill else warped, images.dtype)
    return warped.contiguous(memory_format=layout(images))


def _grid(inverse: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel comes from, float32[B, H, W, 2], -1 to 1 from edge to edge."""
    x = torch.arange(width, device=inverse.device) - (width - 1) / 2
    y = (torch.arange(height, device=inverse.device) - (height - 1) / 2)[:, None]
    a, b, c, d, e, f = inverse.flatten(1)[:, :, None, None].unbind(1)
    # Products and sums one by one: torch's affine_grid is a matrix product, which orders them by
    # the size of the batch.
    return torch.stack(
        [(x * a + y * b + c) * (2 / width), (x * d + y * e + f) * (2 / height)], dim=-1
    )


def _like(images: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.empty(
        (*images.shape[:2], *size), dtype=images.dtype, device=images.device,
        memory_format=layout(images),
    )  # fmt: skip


def layout(images: Tensor) -> torch.memory_format:
    """Whether pictures [B, C, H, W] lie channels last or channel by channel."""
    last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last and not images.is_contiguous() else torch.contiguous_format


def _rounded(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype) if dtype.is_floating_point else pixels.round_().clamp_(0, 255).to(dtype)
