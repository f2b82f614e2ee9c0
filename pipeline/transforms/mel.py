"""Mel filters: from the bins of a spectrum to bands as wide as hearing tells frequencies apart.

Two conventions are in use, each whole with its scale and its weights:

    htk       mel = 2595 log10(1 + f / 700) (O'Shaughnessy 1987, the HTK book); triangles of
              height 1
    slaney    linear to 1 kHz, 15 mel, and from there on by a factor of 6.4 every 27 mel (Slaney,
              "Auditory toolbox", 1998); triangles of area 1, so that white noise is flat
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pipeline.errors import ConfigError, Problem

Scale = Literal["htk", "slaney"]


def mel_filters(
    rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float, scale: Scale
) -> Tensor:
    """Weights float32[n_mels, n_fft // 2 + 1] that turn a power spectrum into mel bands.

    Band i is a triangle over frequency that rises from edge i to edge i + 1 and falls to edge
    i + 2; the n_mels + 2 edges are evenly spaced in mel, from `f_min` to `f_max` Hz.

    Raises:
        ConfigError: a band lies between two bins, so it would always be empty.
    """
    to_mel, to_hz = _SCALES[scale]
    ends = to_mel(torch.tensor([f_min, f_max], dtype=torch.float64)).tolist()
    edges = to_hz(torch.linspace(ends[0], ends[1], n_mels + 2, dtype=torch.float64))
    bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * (rate / n_fft)
    low, centre, high = (edges[i : n_mels + i, None] for i in range(3))
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    weights = torch.minimum(rising, falling).clamp_min(0)
    empty = torch.nonzero(weights.sum(1) == 0).flatten().tolist()
    if empty:
        at = edges[empty[0] + 1]
        raise ConfigError(
            Problem(
                "n_mels",
                f"{n_mels} bands are too many for n_fft={n_fft}: its bins are "
                f"{rate / n_fft:.0f} Hz apart, and none lies in band {empty[0]} at {at:.0f} Hz. "
                "Lower n_mels or raise n_fft (or f_min)",
            )
        )
    if scale == "slaney":
        weights = weights * (2 / (high - low))
    return weights.float()


def _htk_mel(hz: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + hz / 700)


def _htk_hz(mel: Tensor) -> Tensor:
    return 700 * (10 ** (mel / 2595) - 1)


_STEP = math.log(6.4) / 27  # of the logarithm of the frequency, a mel


def _slaney_mel(hz: Tensor) -> Tensor:
    return torch.where(hz < 1000, hz * 3 / 200, 15 + torch.log(hz.clamp_min(1) / 1000) / _STEP)


def _slaney_hz(mel: Tensor) -> Tensor:
    return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * _STEP))


_Conversion = Callable[[Tensor], Tensor]
_SCALES: dict[str, tuple[_Conversion, _Conversion]] = {
    "htk": (_htk_mel, _htk_hz),
    "slaney": (_slaney_mel, _slaney_hz),
}
