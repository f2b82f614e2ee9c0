"""Audio at another sampling rate: band-limited interpolation with a windowed sinc.

With the ratio of the rates reduced to up / down, output n lies at n * down / up input frames. It is
the sum of the input frames near it, each times a sinc with a Kaiser window at its distance (Smith,
"Digital audio resampling", 2002). The filter passes everything below 83 % of half the lower rate
(within 0.01 %) and attenuates by 90 dB above half the lower rate.

Frames and weights are rounded to whole numbers of 25 bits. Their sums stay below 2^53, so float64
holds them exactly, and every processor and every BLAS gives the same bits.
Cost on one core for a second of audio: 0.2 to 1 ms; once for a ratio, 10 to 100 ms.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.errors import DataError

ATTENUATION = 90.0  # dB
ZEROS = 32  # crossings of the sinc on either side
_BITS = 24
_COUNT = 64  # outputs at once, at least; single ones would only copy
_LARGEST = 1 << 22  # weights, 32 MiB


def resample(audio: Tensor, rate: int, new_rate: int) -> Tensor:
    """Resample the last dimension from `rate` to `new_rate` Hz; 0 is assumed beyond the ends.

    float32[..., T] becomes float32[..., ceil(T * new_rate / rate)]; the first frames coincide.

    Raises:
        DataError: the rates have no ratio of small numbers, as 44,101 to 8,000.
    """
    if rate == new_rate:
        return audio
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    length = -(-audio.shape[-1] * up // down)
    # Middle of the filter's edge, as a share of half the input rate; it ends at half the lower
    # rate, and Kaiser's formula gives its width.
    half_edge = (ATTENUATION - 8) / (4.57 * 2 * math.pi * ZEROS)
    cutoff = min(1.0, up / down) / (1 + half_edge)
    reach, count = math.ceil(ZEROS / cutoff), up * max(1, _COUNT // up)
    step = down * count // up
    if count * (2 * reach + step) > _LARGEST:
        raise DataError(
            f"audio at {rate} Hz cannot be resampled to {new_rate} Hz: their ratio is {up} / "
            f"{down}. Check the rate that the file claims, or resample the file beforehand"
        )
    samples = audio.double()
    exponent = math.frexp(float(samples.abs().max()) if length else 0.0)[1]
    whole = (samples * 2.0 ** (_BITS - exponent)).round().reshape(-1, 1, audio.shape[-1])
    # Stretches of input, `step` frames apart, give `count` outputs each.
    filters = _filters(up, down, cutoff)
    padded = F.pad(whole, (reach - 1, step + 2 * reach))
    sums = F.conv1d(padded, filters, stride=step).transpose(1, 2).flatten(1)[:, :length]
    made = (sums * 2.0 ** (exponent - 2 * _BITS)).float()
    return made.reshape(*audio.shape[:-1], length)


@lru_cache(maxsize=16)
def _filters(up: int, down: int, cutoff: float) -> Tensor:
    """What outputs weigh each input frame of a stretch by: whole numbers, float64[count, 1, width].

    Output n's taps begin `reach` - 1 frames before input frame `n * down // up`.
    """
    reach, count = math.ceil(ZEROS / cutoff), up * max(1, _COUNT // up)
    numbers = np.arange(count)
    distances = np.arange(1 - reach, reach + 1) - (numbers * down % up / up)[:, None]
    inside = np.maximum(1 - (distances * cutoff / ZEROS) ** 2, 0)
    # The Bessel function I0 of the Kaiser window, by its series; it is scaled away below.
    term, window = np.ones_like(inside), np.ones_like(inside)
    for order in range(1, 40):
        term = term * inside * (0.1102 * (ATTENUATION - 8.7) / (2 * order)) ** 2
        window = window + term
    angles = (math.pi * cutoff * distances).ravel().tolist()
    sinc = np.array([math.sin(angle) / angle if angle else 1.0 for angle in angles])
    bank = sinc.reshape(distances.shape) * window * (inside > 0)
    whole = np.rint(bank / bank.sum(1, keepdims=True) * 2.0**_BITS)  # a constant keeps its value
    filters = np.zeros((count, 1, 2 * reach - 1 + down * count // up))
    for number, start in enumerate((numbers * down // up).tolist()):
        filters[number, 0, start : start + 2 * reach] = whole[number]
    return torch.from_numpy(filters)
