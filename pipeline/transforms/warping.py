"""Crops and affine maps of batches of pictures, each row with parameters of its own.

Pixels are float32 or uint8 [B, C, H, W]; parameters are float64 or int64 on the CPU. A row depends
on its own pixels and parameters alone, to the last bit: sums whose order could depend on the batch
(matrix products, `add` with a factor) are written out. Between a CPU and a GPU, uint8 pixels differ
by at most 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.transforms.crops import Crops
from penstock.transforms.native_images import resized


def crop_resize(images: Tensor, crops: Crops, size: tuple[int, int]) -> Tensor:
    """Regions of the pictures, resized with antialiasing; uint8 on a CPU by `native_images`.

    Others by two matrix products a row: B * C * H * W' * (W + H') products.

    Args:
        images: [B, C, H, W].
        crops: at whole pixels.
        size: height and width of the result.
    """
    if images.device.type == "cpu" and images.dtype == torch.uint8:
        return resized(images, crops, size)
    rows, channels, height, width = images.shape
    left, top, right, bottom = torch.from_numpy(crops.regions).unbind(1)
    down = _resize_weights(top, bottom - top, height, size[0], images.device)
    across = _resize_weights(left, right - left, width, size[1], images.device)
    pixels = images.to(torch.float32).reshape(rows, channels * height, width)
    pixels = torch.bmm(pixels, across.transpose(1, 2)).reshape(rows, channels, height, size[1])
    return _rounded(torch.matmul(down[:, None], pixels), images.dtype)


def _resize_weights(
    start: Tensor, extent: Tensor, length: int, size: int, device: torch.device
) -> Tensor:
    """Weights of each of `length` pixels for each of `size`: float32[B, size, length].

    A triangle as wide as the output's pixel, but not narrower than the input's, as in Pillow.

    Args:
        start, extent: [B], the part of the line that is resized; pixels outside have no weight.
    """
    first, span = (t.to(device, torch.float64)[:, None, None] for t in (start, extent))
    scale = span / size
    centres = first + (torch.arange(size, device=device)[:, None] + 0.5) * scale
    pixels = torch.arange(length, device=device) + 0.5
    weights = (1 - (pixels - centres).abs() / scale.clamp(min=1.0)).clamp(min=0)
    weights = weights * ((pixels > first) & (pixels < first + span))
    return (weights / weights.sum(-1, keepdim=True)).to(torch.float32)


def crop_nearest(masks: Tensor, crops: Crops, size: tuple[int, int]) -> Tensor:
    """Regions of masks [B, C, H, W], resized by nearest neighbours."""
    regions = torch.from_numpy(crops.regions).to(masks.device, torch.int64)
    left, top, right, bottom = regions[:, :, None].unbind(1)
    down = top + torch.arange(size[0], device=masks.device) * (bottom - top) // size[0]
    across = left + torch.arange(size[1], device=masks.device) * (right - left) // size[1]
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
    return warped.round_().to(images.dtype) if nearest else _rounded(warped, images.dtype)


def _rounded(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype) if dtype.is_floating_point else pixels.round_().clamp_(0, 255).to(dtype)
