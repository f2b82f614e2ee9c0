"""Audio at another sampling rate: band-limited interpolation with a windowed sinc.

1. The ratio of the rates is reduced to up / down; output n lies at n * down / up input frames.
2. Its value is the sum over the input frames near it, each weighed by a low-pass filter at their
   distance: a sinc that ends in a Kaiser window (Smith, "Digital audio resampling", 2002).
3. There are only `up` different fractions, so the weights are a bank of `up` rows, computed once
   for a ratio. Small banks are laid out so that 64 outputs or more are one row of a matrix product;
   for rates without a small ratio (44,101 to 8,000) each output picks its row.

The filter passes everything below 83 % of half the lower rate (within 0.01 %) and holds what lies
above half the lower rate down by 90 dB, so that next to nothing folds back. Cost on one core for a
second of audio: 0.1 to 0.5 ms (6 ms without a small ratio); once for a ratio, 1 to 5 ms (0.3 s).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

ATTENUATION = 90.0  # dB
ZEROS = 32  # crossings of the sinc on either side
_COUNT = 64  # outputs at once, at least; single ones would only copy
_LARGEST_BLOCK = 1 << 20  # weights, 4 MiB


def resample(audio: Tensor, rate: int, new_rate: int) -> Tensor:
    """Resample the last dimension from `rate` to `new_rate` Hz.

    Args:
        audio: float32[..., T]; beyond its ends it counts as 0.

    Returns:
        float32[..., ceil(T * new_rate / rate)]; its first frame lies at the time of the input's.
    """
    if rate == new_rate:
        return audio
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    length = -(-audio.shape[-1] * up // down)
    block = _block(up, down)
    if block is None:
        return _picked(audio, _bank(up, down), down, length)
    return _multiplied(audio, block, down * block.shape[1] // up, length)


def _multiplied(audio: Tensor, block: Tensor, step: int, length: int) -> Tensor:
    """Many outputs at once: stretches of input, `step` frames apart, times the block."""
    width, count = block.shape
    rows = -(-length // count)
    # The taps of the first output begin `before` frames ahead of it.
    before = (width - step - 1) // 2
    after = (rows - 1) * step + width - before - audio.shape[-1]
    stretches = F.pad(audio, (before, max(0, after))).unfold(-1, width, step)
    return (stretches[..., :rows, :] @ block).flatten(-2)[..., :length]


def _picked(audio: Tensor, bank: Tensor, down: int, length: int) -> Tensor:
    """Every output by itself: its neighbours times the bank's row for its fraction."""
    up, taps = bank.shape
    numbers = torch.arange(length)
    neighbours = F.pad(audio, (taps // 2 - 1, taps // 2 + 1)).unfold(-1, taps, 1)
    return (neighbours[..., numbers * down // up, :] * bank[numbers % up]).sum(-1)


@lru_cache(maxsize=16)
def _bank(up: int, down: int) -> Tensor:
    """Weights by fraction, float32[up, taps].

    Row n weighs the input frames from `n * down // up - taps / 2 + 1` on.
    """
    fractions = (torch.arange(up) * down % up).double() / up
    cutoff = _cutoff(up, down)
    reach = math.ceil(ZEROS / cutoff)
    bank = _low_pass(torch.arange(1 - reach, reach + 1) - fractions[:, None], cutoff)
    return (bank / bank.sum(1, keepdim=True)).float()  # a constant stays what it is


@lru_cache(maxsize=16)
def _block(up: int, down: int) -> Tensor | None:
    """The bank's rows side by side, each shifted to its place: float32[width, count].

    `count` outputs, a multiple of `up`, are a stretch of `width` input frames times it. None if it
    would be too large.
    """
    count = up * max(1, _COUNT // up)
    taps = 2 * math.ceil(ZEROS / _cutoff(up, down))
    step = down * count // up
    if count * (taps + step) > _LARGEST_BLOCK:
        return None
    numbers = torch.arange(count)
    starts = numbers * down // up
    block = torch.zeros(count, taps + step - 1)
    block.scatter_(1, starts[:, None] + torch.arange(taps), _bank(up, down)[numbers % up])
    return block.T.contiguous()


def _cutoff(up: int, down: int) -> float:
    """Middle of the filter's edge, as a share of half the input rate.

    The edge, as wide as Kaiser's formula has it, ends at half the lower rate.
    """
    half_edge = (ATTENUATION - 8) / (4.57 * 2 * math.pi * ZEROS)
    return min(1.0, up / down) / (1 + half_edge)


def _low_pass(distances: Tensor, cutoff: float) -> Tensor:
    """The filter's response `distances` (in input frames, float64) from its middle."""
    beta = 0.1102 * (ATTENUATION - 8.7)
    inside = (1 - (distances * cutoff / ZEROS) ** 2).clamp_min(0)
    window = torch.special.i0(beta * inside.sqrt()) / torch.special.i0(torch.tensor(beta).double())
    return torch.sinc(cutoff * distances) * window * (inside > 0)
