"""Audio at another sampling rate: band-limited interpolation with a windowed sinc.

With the ratio of the rates reduced to up / down, output n lies at n * down / up input frames. It is
the sum of the input frames near it, each times a sinc with a Kaiser window at its distance (Smith,
"Digital audio resampling", 2002). There are only `up` different fractions, so the weights are a
bank of `up` rows, computed once for a ratio.

The filter passes everything below 83 % of half the lower rate (within 0.01 %) and attenuates by 90
dB above half the lower rate. Cost on one core for a second of audio: 0.1 to 0.5 ms (6 ms without a
small ratio, as 44,101 to 8,000); once for a ratio, 1 to 5 ms (0.3 s). A ratio whose bank would be
larger than `_LARGEST_BANK` is refused: a file says what its rate is.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.errors import DataError

ATTENUATION = 90.0  # dB
ZEROS = 32  # crossings of the sinc on either side
_COUNT = 64  # outputs at once, at least; single ones would only copy
_LARGEST_BLOCK = 1 << 20  # weights, 4 MiB
_LARGEST_BANK = 1 << 23  # weights, 32 MiB


def resample(audio: Tensor, rate: int, new_rate: int) -> Tensor:
    """Resample the last dimension from `rate` to `new_rate` Hz; 0 is assumed beyond the ends.

    float32[..., T] becomes float32[..., ceil(T * new_rate / rate)]; the first frames coincide.

    Raises:
        DataError: the rates have no ratio that is small enough.
    """
    if rate == new_rate:
        return audio
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    length = -(-audio.shape[-1] * up // down)
    weights = up * 2 * math.ceil(ZEROS / _cutoff(up, down))
    if weights > _LARGEST_BANK:
        raise DataError(
            f"audio at {rate} Hz cannot be resampled to {new_rate} Hz: their ratio is {up} / "
            f"{down}, and a filter for it would have {weights} weights. Check the rate that the "
            "file claims, or resample it in steps."
        )
    block = _block(up, down)
    if block is None:  # each output: its neighbours times the bank's row for its fraction
        bank = _bank(up, down)
        taps = bank.shape[1]
        numbers = torch.arange(length)
        neighbours = F.pad(audio, (taps // 2 - 1, taps // 2 + 1)).unfold(-1, taps, 1)
        return (neighbours[..., numbers * down // up, :] * bank[numbers % up]).sum(-1)
    # Many outputs at once: stretches of input, `step` frames apart, times the block.
    width, count = block.shape
    step, rows = down * count // up, -(-length // count)
    # The taps of the first output begin `before` frames ahead of it.
    before = (width - step - 1) // 2
    after = (rows - 1) * step + width - before - audio.shape[-1]
    stretches = F.pad(audio, (before, max(0, after))).unfold(-1, width, step)
    return (stretches[..., :rows, :] @ block).flatten(-2)[..., :length]


@lru_cache(maxsize=8)
def _bank(up: int, down: int) -> Tensor:
    """Weights by fraction, float32[up, taps].

    Row n weighs the input frames from `n * down // up - taps / 2 + 1` on.
    """
    fractions = (torch.arange(up) * down % up).double() / up
    cutoff = _cutoff(up, down)
    reach = math.ceil(ZEROS / cutoff)
    distances = torch.arange(1 - reach, reach + 1) - fractions[:, None]
    beta = 0.1102 * (ATTENUATION - 8.7)
    inside = (1 - (distances * cutoff / ZEROS) ** 2).clamp_min(0)
    window = torch.special.i0(beta * inside.sqrt()) / torch.special.i0(torch.tensor(beta).double())
    bank = torch.sinc(cutoff * distances) * window * (inside > 0)
    return (bank / bank.sum(1, keepdim=True)).float()  # a constant keeps its value


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
    """Middle of the filter's edge, as a share of half the input rate; it ends at half the lower
    rate, and Kaiser's formula gives its width.
    """
    half_edge = (ATTENUATION - 8) / (4.57 * 2 * math.pi * ZEROS)
    return min(1.0, up / down) / (1 + half_edge)
