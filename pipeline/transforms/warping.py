"""Crops and affine maps of batches of pictures, each row with parameters of its own.

Pixels are float32 or uint8 [B, C, H, W], and keep their memory format; parameters are float64 or
int64 on the CPU. A row depends on its own pixels and parameters alone, to the last bit: sums whose
order could depend on the batch (matrix products, `add` with a factor) are written out. Between a
CPU and a GPU, uint8 pixels differ by at most 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def row_by_row(images: Tensor) -> bool:
    """Whether to process rows one by one, which keeps them in a CPU's cache, or all at once."""
    return images.device.type == "cpu"


def crop_resize(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes of the pictures, resized with antialiasing as in torchvision.

    Args:
        images: [B, C, H, W].
        boxes: int64[B, 4]: top, left, height, width, within the picture.
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
    start: Tensor,
    extent: Tensor,
    length: int,
    size: int,
    device: torch.device | str = "cpu",
    inside: bool = True,
) -> Tensor:
    """Weights of each of `length` pixels for each of `size`: float32[B, size, length].

    A triangle as wide as the output's pixel, but not narrower than the input's, as in Pillow.

    Args:
        start, extent: [B], the part of the line that is resized.
        inside: whether pixels outside of that part have no weight.
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
    """Boxes of masks [B, C, H, W], resized by nearest neighbours."""
    top, left, height, width = boxes.to(masks.device).unbind(1)
    down = top[:, None] + torch.arange(size[0], device=masks.device) * height[:, None] // size[0]
    across = left[:, None] + torch.arange(size[1], device=masks.device) * width[:, None] // size[1]
    rows = torch.arange(len(masks), device=masks.device)[:, None, None]
    picked = masks.movedim(1, -1)[rows, down[:, :, None], across[:, None, :]]
    return picked.movedim(-1, 1).contiguous()


def affine(images: Tensor, inverse: Tensor, fill: float = 0.0, nearest: bool = False) -> Tensor:
    """Each row under an affine map, as in torchvision.

    Args:
        images: [B, C, H, W].
        inverse: float64[B, 2, 3], from an output's pixel to the input's, both counted from the
            picture's centre.
        fill: value outside of the picture, in the pixels' units.
        nearest: take the nearest pixel instead of a mean of four; for masks, of any whole numbers.
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
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    matrix = inverse.to(images.device, torch.float32)
    a, b, c, d, e, f = matrix.flatten(1)[:, :, None, None].unbind(1)
    # Where each pixel comes from, -1 to 1 from edge to edge. Products and sums one by one: torch's
    # affine_grid is a matrix product, which orders them by the size of the batch.
    grid = torch.stack(
        [(x * a + y * b + c) * (2 / width), (x * d + y * e + f) * (2 / height)], dim=-1
    )
    pixels = images.to(torch.float32)
    pixels = pixels - fill if fill else pixels
    mode = "nearest" if nearest else "bilinear"
    warped = F.grid_sample(pixels, grid, mode, padding_mode="zeros", align_corners=False)
    warped = warped + fill if fill else warped
    warped = warped.round_().to(images.dtype) if nearest else _rounded(warped, images.dtype)
    return warped.contiguous(memory_format=layout(images))


def _like(images: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.empty(
        (*images.shape[:2], *size),
        dtype=images.dtype,
        device=images.device,
        memory_format=layout(images),
    )


def layout(images: Tensor) -> torch.memory_format:
    """The memory format of pictures [B, C, H, W]."""
    last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last and not images.is_contiguous() else torch.contiguous_format


def _rounded(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype) if dtype.is_floating_point else pixels.round_().clamp_(0, 255).to(dtype)
