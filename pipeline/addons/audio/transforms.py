"""Transforms of audio: samples with `audio`, float32[C, T], and its `rate` in Hz.

They draw from torch's global generator, which fetch seeds from the sample's key. All is computed
in float64 by NumPy without BLAS, and rounded to float32 at the end, so that every processor gives
the same bits. Cost for half a second at 8 kHz on one core: LogMel 0.25 ms, Noise 0.4 ms, the
others up to 0.1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Index, PositiveFloat
from penstock.transforms.crops import Range

Sample = dict[str, Any]
Floats = npt.NDArray[np.float64]
Scale = Literal["htk", "slaney"]

ATTENUATION = 90.0  # dB, of the filter that resamples
ZEROS = 32  # crossings of its sinc on either side
_BITS = 24
_COUNT = 64  # outputs at once, at least; single ones would only copy
_LARGEST = 1 << 22  # weights, 32 MiB
_STEP = math.log(6.4) / 27  # of the logarithm of the frequency, a mel
# Frames whose spectrum is made at once: of a long recording it takes six times the memory of the
# features.
_FRAMES = 2048


def resample(audio: Tensor, rate: int, new_rate: int) -> Tensor:
    """Resample the last dimension from `rate` to `new_rate` Hz; 0 is assumed beyond the ends.

    Band-limited interpolation with a windowed sinc: with the ratio of the rates reduced to up /
    down, output n lies at n * down / up input frames. It is the sum of the input frames near it,
    each times a sinc with a Kaiser window at its distance (Smith, "Digital audio resampling",
    2002). The filter passes everything below 83 % of half the lower rate (within 0.01 %) and
    attenuates by 90 dB above half the lower rate. Cost on one core for a second of audio: 0.2 to
    1 ms; once for a ratio, 10 to 100 ms.

    float32[..., T] becomes float32[..., ceil(T * new_rate / rate)]; the first frames coincide.

    Raises:
        DataError: the rates have no ratio of small numbers, as 44,101 to 8,000.
    """
    # Most data has the rate that is wanted: nothing is copied.
    if rate == new_rate:
        return audio
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    length = -(-audio.shape[-1] * up // down)
    filters, reach, step = _filters(up, down)
    # Frames and weights are whole numbers of 25 bits: float64 holds their sums, below 2^53,
    # exactly, so every processor and every BLAS gives the same bits.
    samples = audio.double()
    # By the loudest frame, so that quiet recordings keep as many bits.
    exponent = math.frexp(float(samples.abs().max()) if length else 0.0)[1]
    whole = (samples * 2.0 ** (_BITS - exponent)).round().reshape(-1, 1, audio.shape[-1])
    padded = F.pad(whole, (reach - 1, step + 2 * reach))
    sums = F.conv1d(padded, filters, stride=step).transpose(1, 2).flatten(1)[:, :length]
    return (sums * 2.0 ** (exponent - 2 * _BITS)).float().reshape(*audio.shape[:-1], length)


@lru_cache(maxsize=16)
def _filters(up: int, down: int) -> tuple[Tensor, int, int]:
    """What outputs weigh input frames by, how far a filter reaches, and the step.

    Stretches of input, `step` frames apart, give `count` outputs each; the filters are whole
    numbers, float64[count, 1, width]. Output n's taps begin `reach` - 1 frames before input frame
    `n * down // up`.
    """
    # Middle of the filter's edge, as a share of half the input rate; it ends at half the lower
    # rate, and Kaiser's formula gives its width.
    half_edge = (ATTENUATION - 8) / (4.57 * 2 * math.pi * ZEROS)
    cutoff = min(1.0, up / down) / (1 + half_edge)
    reach, count = math.ceil(ZEROS / cutoff), up * max(1, _COUNT // up)
    step = down * count // up
    # A ratio of two large primes would need a filter for each of thousands of outputs.
    if count * (2 * reach + step) > _LARGEST:
        raise DataError(
            f"audio cannot be resampled by {up} / {down}, the ratio of its new and its own rate in "
            "Hz. Check the rate that the file claims, or resample the file beforehand"
        )
    numbers = np.arange(count)
    distances = np.arange(1 - reach, reach + 1) - (numbers * down % up / up)[:, None]
    inside = np.maximum(1 - (distances * cutoff / ZEROS) ** 2, 0)
    # The Bessel function I0 of the Kaiser window, by its series; it is scaled away below.
    beta = 0.1102 * (ATTENUATION - 8.7)
    terms = [(beta / 2) ** (2 * n) / math.factorial(n) ** 2 for n in range(39, -1, -1)]
    angles = (math.pi * cutoff * distances).ravel().tolist()  # np.sin depends on the processor
    sinc = np.array([math.sin(angle) / angle if angle else 1.0 for angle in angles])
    bank = sinc.reshape(distances.shape) * np.polyval(terms, inside) * (inside > 0)
    whole = np.rint(bank / bank.sum(1, keepdims=True) * 2.0**_BITS)  # a constant keeps its value
    filters = np.zeros((count, 2 * reach - 1 + step))
    places = (numbers * down // up)[:, None] + np.arange(2 * reach)
    np.put_along_axis(filters, places, whole, 1)
    return torch.from_numpy(filters)[:, None], reach, step


class Resample:
    """Convert audio to `rate` Hz (see `resample`)."""

    def __init__(self, rate: Count, fields: Sequence[str] = ("audio",)) -> None:
        self.rate, self.fields = rate, fields

    def __call__(self, sample: Sample) -> Sample:
        *audio, rate = _needed(sample, self, *self.fields, "rate")
        changed = [resample(values, int(rate), self.rate) for values in audio]
        return sample | dict(zip(self.fields, changed, strict=True)) | {"rate": self.rate}


class RandomCrop:
    """A part of `seconds` at a random place; shorter audio stays as it is.

    Args:
        seconds: length of the part.
        fields: cropped at the same place; all of one length.
    """

    def __init__(self, seconds: PositiveFloat, fields: Sequence[str] = ("audio",)) -> None:
        self.seconds, self.fields = seconds, fields

    def __call__(self, sample: Sample) -> Sample:
        *audio, rate = _needed(sample, self, *self.fields, "rate")
        lengths = [values.shape[-1] for values in audio]
        if len({*lengths}) > 1:
            of = ", ".join(f"{name} {n}" for name, n in zip(self.fields, lengths, strict=True))
            raise DataError(f"RandomCrop keeps its fields in step, but their lengths differ: {of}")
        frames = max(1, round(self.seconds * int(rate)))
        if frames >= lengths[0]:
            return sample
        # One draw for all fields: a mixture stays in step with its sources.
        start = _whole_below(lengths[0] - frames + 1)
        parts = [values[..., start : start + frames] for values in audio]
        return sample | dict(zip(self.fields, parts, strict=True))


class Gain:
    """Louder or softer by a random number of decibels.

    Args:
        db: lowest and highest, e.g. [-6, 6].
        fields: changed by the same factor.
    """

    def __init__(self, db: Range = (-6.0, 6.0), fields: Sequence[str] = ("audio",)) -> None:
        self.db, self.fields = db, fields

    def __call__(self, sample: Sample) -> Sample:
        # One factor for all fields: a mixture stays the sum of its sources.
        factor, audio = 10 ** (_between(self.db) / 20), _needed(sample, self, *self.fields)
        return sample | {n: v * factor for n, v in zip(self.fields, audio, strict=True)}


class Noise:
    """White noise at a random ratio of signal to noise; silence stays silent.

    Args:
        snr_db: lowest and highest ratio of the powers in decibels, e.g. [10, 40].
        p: probability.
        field: the audio that it is added to.
    """

    def __init__(
        self, snr_db: Range = (10.0, 40.0), p: Fraction = 1.0, field: str = "audio"
    ) -> None:
        self.snr_db, self.p, self.field = snr_db, p, field

    def __call__(self, sample: Sample) -> Sample:
        (audio,) = _needed(sample, self, self.field)
        # Drawn before the ratio, so that `p` does not change how loud noise is.
        if torch.rand(()).item() >= self.p:
            return sample
        samples = audio.numpy().astype(np.float64)
        power = float(np.square(samples).mean()) / 10 ** (_between(self.snr_db) / 10)
        # torch's own depends on the processor; of NumPy's generators this one never changes.
        noise = np.random.RandomState(_whole_below(1 << 32)).standard_normal(samples.shape)
        noisy = samples + math.sqrt(power) * noise
        return sample | {self.field: torch.from_numpy(noisy.astype(np.float32))}


def mel_filters(
    rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float, scale: Scale
) -> Floats:
    """Weights float64[n_mels, n_fft // 2 + 1] that turn a power spectrum into mel bands.

    Band i is a triangle over frequency that rises from edge i to edge i + 1 and falls to edge
    i + 2; the n_mels + 2 edges are evenly spaced in mel, from `f_min` to `f_max` Hz. htk:
    O'Shaughnessy 1987, the HTK book. slaney: linear to 1 kHz, 15 mel, then by a factor of 6.4 every
    27 mel (Slaney, "Auditory toolbox", 1998).

    Raises:
        ConfigError: a band lies between two bins, so it would always be empty.
    """

    def to_mel(hz: float) -> float:
        if scale == "htk":
            return 2595 * math.log10(1 + hz / 700)
        return hz * 3 / 200 if hz < 1000 else 15 + math.log(hz / 1000) / _STEP

    def to_hz(mel: float) -> float:
        if scale == "htk":
            return 700 * (10 ** (mel / 2595) - 1)
        return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * _STEP)

    low, high = to_mel(f_min), to_mel(f_max)
    edges = np.array([to_hz(low + (high - low) * n / (n_mels + 1)) for n in range(n_mels + 2)])
    bins = np.arange(n_fft // 2 + 1) * (rate / n_fft)
    left, centre, right = (edges[i : n_mels + i, None] for i in range(3))
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    weights: Floats = np.maximum(np.minimum(rising, falling), 0)
    empty = np.flatnonzero(weights.sum(1) == 0).tolist()
    if empty:
        raise ConfigError(
            Problem(
                "n_mels",
                f"{n_mels} bands are too many for n_fft={n_fft}: its bins are "
                f"{rate / n_fft:.0f} Hz apart, and none lies in band {empty[0]} at "
                f"{edges[empty[0] + 1]:.0f} Hz. Lower n_mels or raise n_fft (or f_min)",
            )
        )
    # Of slaney's, triangles of area 1, white noise is flat.
    return weights * (2 / (right - left)) if scale == "slaney" else weights


class LogMel:
    """`audio` becomes `features`: float32[n_mels, frames], the log of the power in mel bands.

    The T // hop + 1 frames are centred at 0, hop, 2 hop ..., in audio padded with zeros. Each is
    multiplied by a Hann window, Fourier transformed and squared. Channels are mixed down first.

    Args:
        rate: in Hz; audio at another one is refused.
        n_fft: length of the Fourier transform in frames of audio.
        hop: frames of audio between two frames of the features.
        n_mels: number of bands.
        window: length of the window in frames of audio, at most n_fft; None takes n_fft.
        f_min, f_max: ends of the lowest and the highest band in Hz; None takes half the rate.
        scale: "slaney" (as in librosa; triangles of area 1) or "htk" (of height 1).
        floor: lowest power; keeps the logarithm finite. The power of a sine of amplitude 1 adds up
            to about n_fft * window / 16 over the bins around it.
        field, output: the field that is read, and the one that replaces it.
        keep: keep the audio, too.

    Raises:
        ConfigError: the arguments contradict each other.
    """

    def __init__(
        self,
        rate: Count,
        n_fft: Annotated[int, Field(ge=2)] = 256,
        hop: Count = 80,
        n_mels: Count = 40,
        window: Annotated[int, Field(ge=2)] | None = None,
        f_min: Annotated[float, Field(ge=0)] = 20.0,
        f_max: float | None = None,
        scale: Scale = "slaney",
        floor: PositiveFloat = 1e-6,
        field: str = "audio",
        output: str = "features",
        keep: bool = False,
    ) -> None:
        window, highest = window or n_fft, rate / 2 if f_max is None else f_max
        if window > n_fft or not f_min < highest <= rate / 2:
            raise ConfigError(
                Problem(
                    "window" if window > n_fft else "f_max",
                    f"window is {window} of at most n_fft={n_fft}, and f_min={f_min:g} to f_max="
                    f"{highest:g} have to rise, up to half the rate, {rate / 2:g}",
                )
            )
        self.rate, self.n_fft, self.hop, self.floor = rate, n_fft, hop, floor
        self.field, self.output, self.keep = field, output, keep
        before, turn = (n_fft - window) // 2, 2 * math.pi / window
        # By math.cos, as NumPy's depends on the processor.
        hann = [0.5 - 0.5 * math.cos(turn * n) for n in range(window)]
        self._window = np.pad(hann, (before, n_fft - window - before))
        filters = mel_filters(rate, n_fft, n_mels, f_min, highest, scale)
        # Only the bins of each band, and as many for each: int64 and float64 [n_mels, width].
        width = int((filters > 0).sum(1).max())
        first = np.minimum((filters > 0).argmax(1), filters.shape[1] - width)
        self._bins = first[:, None] + np.arange(width)
        self._weights = np.take_along_axis(filters, self._bins, 1)

    def __call__(self, sample: Sample) -> Sample:
        audio, rate = _needed(sample, self, self.field, "rate")
        if rate != self.rate:
            raise DataError(
                f"LogMel is set to {self.rate} Hz, but the audio is at {rate} Hz. Put "
                "penstock.addons.audio.transforms.Resample in front of it, or change its rate"
            )
        kept = {k: v for k, v in sample.items() if self.keep or k != self.field}
        return kept | {self.output: self.features(audio)}

    def features(self, audio: Tensor) -> Tensor:
        """float32[C, T] or float32[T] -> float32[n_mels, T // hop + 1]."""
        wave = audio.numpy().astype(np.float64).reshape(-1, audio.shape[-1]).mean(0)
        half, count = self.n_fft // 2, len(wave) // self.hop + 1
        # Of an odd n_fft, the last frame reaches one further.
        padded = np.pad(wave, (half, half + self.n_fft % 2))
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.n_fft)[:: self.hop]
        bands = np.empty((len(self._bins), count))
        for start in range(0, count, _FRAMES):
            spectrum = np.fft.rfft(frames[start : start + _FRAMES] * self._window)
            power = spectrum.real**2 + spectrum.imag**2
            # Without BLAS, whose sums depend on the processor.
            part = np.einsum("fmb,mb->mf", power[:, self._bins], self._weights)
            bands[:, start : start + _FRAMES] = part
        return torch.from_numpy(_log(np.maximum(bands, self.floor)).astype(np.float32))


def _log(values: Floats) -> Floats:
    """The natural logarithm by sums and products: NumPy's depends on the processor."""
    mantissa, exponent = np.frexp(values)
    small = mantissa < math.sqrt(0.5)
    mantissa[small] *= 2
    ratio = (mantissa - 1) / (mantissa + 1)
    # ln(x) = 2 (r + r^3 / 3 + r^5 / 5 + ...), which is exact to 1e-16 as r is below 0.172.
    series = np.polyval([1 / power for power in range(17, 0, -2)], ratio * ratio)
    made: Floats = (exponent - small) * math.log(2) + 2 * ratio * series
    return made


class Standardize:
    """Features less their mean, divided by their standard deviation, by sample.

    This removes the loudness of a recording. Constant features become 0.

    Args:
        fields: float32[bands, frames] each.
        by_band: each band by itself over time instead of all together.
    """

    def __init__(self, fields: Sequence[str] = ("features",), by_band: bool = False) -> None:
        self.fields, self.by_band = fields, by_band

    def __call__(self, sample: Sample) -> Sample:
        axis, changed = -1 if self.by_band else None, []
        for values in _needed(sample, self, *self.fields):
            array = values.numpy().astype(np.float64)
            # Constant features have none, and become 0.
            deviation = np.maximum(array.std(axis, keepdims=True), 1e-5)
            scaled = (array - array.mean(axis, keepdims=True)) / deviation
            changed.append(torch.from_numpy(scaled.astype(np.float32)))
        return sample | dict(zip(self.fields, changed, strict=True))


class MaskFeatures:
    """Random bands and times replaced by the mean (SpecAugment, Park et al. 2019, no warping).

    Args:
        bands: most neighbouring bands under a mask.
        share: largest share of the frames under a mask.
        count: masks of either kind.
        field: float32[bands, frames].
    """

    def __init__(
        self, bands: Index = 6, share: Fraction = 0.15, count: Index = 1, field: str = "features"
    ) -> None:
        self.bands, self.share, self.count, self.field = bands, share, count, field

    def __call__(self, sample: Sample) -> Sample:
        (features,) = _needed(sample, self, self.field)
        # In float64, as sums in float32 depend on their order; the input is not changed.
        masked, mean = features.clone(), float(features.numpy().mean(dtype=np.float64))
        height, width = features.shape
        for _ in range(self.count):
            masked[_stretch(height, min(self.bands, height))] = mean
            masked[:, _stretch(width, int(self.share * width))] = mean
        return {**sample, self.field: masked}


def _stretch(length: int, longest: int) -> slice:
    """A random part of `range(length)`, 0 to `longest` long."""
    extent = _whole_below(longest + 1)
    start = _whole_below(length - extent + 1)
    return slice(start, start + extent)


def _whole_below(limit: int) -> int:
    return int(torch.randint(limit, ()))


def _between(bounds: Range) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * torch.rand(()).item()


def _needed(sample: Sample, transform: object, *names: str) -> list[Any]:
    """The fields of a sample that a transform works on."""
    for name in names:
        if name not in sample:
            raise DataError(
                f"{type(transform).__name__} needs the field {name!r}; the sample has "
                f"{', '.join(sample)}"
            )
    return [sample[name] for name in names]
