"""Transforms of audio: samples with `audio`, float32[C, T], and its `rate` in Hz.

They draw from torch's global generator, which fetch seeds from the sample's key. Sums are numpy's
in float64: torch splits long ones among its threads, which changes the last bits. Cost for half a
second at 8 kHz on one core: LogMel 0.07 ms, the others up to 0.05 ms each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Index, PositiveFloat
from penstock.transforms.resampling import resample

Sample = dict[str, Any]
Scale = Literal["htk", "slaney"]

_Conversion = Callable[[Tensor], Tensor]
_STEP = math.log(6.4) / 27  # of the logarithm of the frequency, a mel
# Hz to mel, and back. htk: O'Shaughnessy 1987, the HTK book. slaney: linear to 1 kHz, 15 mel, then
# by a factor of 6.4 every 27 mel (Slaney, "Auditory toolbox", 1998).
_SCALES: dict[str, tuple[_Conversion, _Conversion]] = {
    "htk": (
        lambda hz: 2595 * torch.log10(1 + hz / 700),
        lambda mel: 700 * (10 ** (mel / 2595) - 1),
    ),
    "slaney": (
        lambda hz: torch.where(
            hz < 1000, hz * 3 / 200, 15 + torch.log(hz.clamp_min(1) / 1000) / _STEP
        ),
        lambda mel: torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * _STEP)),
    ),
}


class Resample:
    """Convert audio to `rate` Hz (see `transforms/resampling.py`)."""

    def __init__(self, rate: Count, fields: Sequence[str] = ("audio",)) -> None:
        self.rate = rate
        self.fields = tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        before = _rate(sample, self)
        audio = _fields(sample, self.fields, self)
        changed = {name: resample(value, before, self.rate) for name, value in audio.items()}
        return {**sample, **changed, "rate": self.rate}


class RandomCrop:
    """A part of `seconds` at a random place; shorter audio stays as it is.

    Args:
        seconds: length of the part.
        fields: cropped at the same place; all of one length.
    """

    def __init__(self, seconds: PositiveFloat, fields: Sequence[str] = ("audio",)) -> None:
        self.seconds = seconds
        self.fields = tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        audio = _fields(sample, self.fields, self)
        frames = _frames(self.seconds, _rate(sample, self))
        length = _common_length(audio, self)
        if length <= frames:
            return sample
        start = _whole_below(length - frames + 1)
        return {**sample, **{k: v[..., start : start + frames] for k, v in audio.items()}}


class PadOrCrop:
    """Exactly `seconds`: the middle of longer audio, shorter audio with zeros at its end.

    Args:
        seconds: length afterwards.
        random: crop at a random place, and pad at random at both ends.
        fields: treated alike; all of one length.
    """

    def __init__(
        self, seconds: PositiveFloat, random: bool = False, fields: Sequence[str] = ("audio",)
    ) -> None:
        self.seconds = seconds
        self.random = random
        self.fields = tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        audio = _fields(sample, self.fields, self)
        missing = _frames(self.seconds, _rate(sample, self)) - _common_length(audio, self)
        if self.random:
            front = int(math.copysign(_whole_below(abs(missing) + 1), missing))
        else:
            front = 0 if missing > 0 else -(-missing // 2)
        # Negative padding crops.
        return {**sample, **{k: F.pad(v, (front, missing - front)) for k, v in audio.items()}}


class Gain:
    """Louder or softer by a random number of decibels.

    Args:
        db: lowest and highest, e.g. [-6, 6].
        fields: changed by the same factor.
    """

    def __init__(
        self, db: Sequence[float] = (-6.0, 6.0), fields: Sequence[str] = ("audio",)
    ) -> None:
        self.db = _range("db", db)
        self.fields = tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        factor = 10 ** (_between(*self.db) / 20)
        audio = _fields(sample, self.fields, self)
        return {**sample, **{name: value * factor for name, value in audio.items()}}


class Noise:
    """White noise at a random ratio of signal to noise; silence stays silent.

    Args:
        snr_db: lowest and highest ratio of the powers in decibels, e.g. [10, 40].
        p: probability.
        field: the audio that it is added to.
    """

    def __init__(
        self, snr_db: Sequence[float] = (10.0, 40.0), p: Fraction = 1.0, field: str = "audio"
    ) -> None:
        self.snr_db = _range("snr_db", snr_db)
        self.p = p
        self.field = field

    def __call__(self, sample: Sample) -> Sample:
        (audio,) = _fields(sample, (self.field,), self).values()
        if torch.rand(()).item() >= self.p:
            return sample
        power = float(np.square(audio.numpy(), dtype=np.float64).mean())
        deviation = math.sqrt(power / 10 ** (_between(*self.snr_db) / 10))
        return {**sample, self.field: audio + deviation * torch.randn(audio.shape)}


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
        raise ConfigError(
            Problem(
                "n_mels",
                (
                    f"{n_mels} bands are too many for n_fft={n_fft}: its bins are "
                    f"{rate / n_fft:.0f} Hz apart, and none lies in band {empty[0]} at "
                    f"{edges[empty[0] + 1]:.0f} Hz. "
                    "Lower n_mels or raise n_fft (or f_min)"
                ),
            )
        )
    if scale == "slaney":  # triangles of area 1, so that white noise is flat
        weights = weights * (2 / (high - low))
    return weights.float()


# Frames whose spectrum is made at once. Of a long recording it would take six times the memory of
# the features, in pieces that lie between those of a batch's recordings.
_FRAMES = 2048


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
        n_fft: int = 256,
        hop: Count = 80,
        n_mels: Count = 40,
        window: int | None = None,
        f_min: float = 20.0,
        f_max: float | None = None,
        scale: Scale = "slaney",
        floor: PositiveFloat = 1e-6,
        field: str = "audio",
        output: str = "features",
        keep: bool = False,
    ) -> None:
        _check("n_fft", n_fft, n_fft > 1, "2 or more")
        window = n_fft if window is None else window
        _check("window", window, 1 < window <= n_fft, f"2 to {n_fft} (n_fft)")
        highest = rate / 2 if f_max is None else f_max
        _check("f_max", highest, 0 < highest <= rate / 2, f"up to {rate / 2:g} (half the rate)")
        _check("f_min", f_min, 0 <= f_min < highest, f"0 to {highest:g} (f_max)")
        self.rate, self.n_fft, self.hop, self.floor = rate, n_fft, hop, floor
        self.field, self.output, self.keep = field, output, keep
        before = (n_fft - window) // 2
        self._window = F.pad(torch.hann_window(window), (before, n_fft - window - before))
        self._filters = mel_filters(rate, n_fft, n_mels, f_min, highest, scale)

    def __call__(self, sample: Sample) -> Sample:
        (audio,) = _fields(sample, (self.field,), self).values()
        rate = _rate(sample, self)
        if rate != self.rate:
            raise DataError(
                f"LogMel is set to {self.rate} Hz, but the audio is at {rate} Hz. Put "
                "penstock.transforms.audio.Resample in front of it, or change its rate"
            )
        kept = {k: v for k, v in sample.items() if self.keep or k != self.field}
        return {**kept, self.output: self.features(audio)}

    def features(self, audio: Tensor) -> Tensor:
        """float32[C, T] or float32[T] -> float32[n_mels, T // hop + 1]."""
        if audio.dim() not in (1, 2):
            shape = list(audio.shape)
            raise DataError(f"LogMel takes audio of the shape [C, T] or [T], and this has {shape}")
        wave = audio.reshape(-1, audio.shape[-1])
        wave = wave[0] if len(wave) == 1 else wave.mean(0)
        half = self.n_fft // 2
        count = len(wave) // self.hop + 1
        # Windowed frames, their spectrum (as many complex numbers as half of these) and its power.
        # torch.stft does the same, with checks that take twice as long as the work.
        frames = F.pad(wave, (half, half + self.n_fft % 2)).unfold(0, self.n_fft, self.hop)
        if count <= _FRAMES:
            features = self._bands(frames)
        else:
            features = wave.new_empty(len(self._filters), count)
            for start in range(0, count, _FRAMES):
                stop = start + _FRAMES
                features[:, start:stop] = self._bands(frames[start:stop])
        return features.clamp_min_(self.floor).log_()

    def _bands(self, frames: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfft(frames * self._window)
        power: Tensor = spectrum.real.square() + spectrum.imag.square()
        return self._filters @ power.T


class Standardize:
    """Features less their mean, divided by their standard deviation, by sample.

    This removes the loudness of a recording. Constant features become 0.

    Args:
        fields: float32[bands, frames] each.
        by_band: each band by itself over time instead of all together.
    """

    def __init__(self, fields: Sequence[str] = ("features",), by_band: bool = False) -> None:
        self.fields = tuple(fields)
        self.by_band = by_band

    def __call__(self, sample: Sample) -> Sample:
        sample, axis = dict(sample), -1 if self.by_band else None
        for name, value in _fields(sample, self.fields, self).items():
            array = value.numpy()
            mean = array.mean(axis, dtype=np.float64, keepdims=True)
            deviation = array.std(axis, dtype=np.float64, keepdims=True)
            scaled = (array - mean) / np.maximum(deviation, 1e-5)
            sample[name] = torch.from_numpy(scaled.astype(np.float32))
        return sample


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
        self.bands = bands
        self.share = share
        self.count = count
        self.field = field

    def __call__(self, sample: Sample) -> Sample:
        (features,) = _fields(sample, (self.field,), self).values()
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


def _between(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _frames(seconds: PositiveFloat, rate: int) -> int:
    return max(1, round(seconds * rate))


def _fields(sample: Sample, names: Sequence[str], transform: object) -> dict[str, Tensor]:
    """The tensors of a sample that a transform works on."""
    for name in names:
        if not isinstance(sample.get(name), Tensor):
            tensors = ", ".join(k for k, v in sample.items() if isinstance(v, Tensor)) or "none"
            raise DataError(
                f"{type(transform).__name__} needs the field {name!r}; the sample's tensors: "
                f"{tensors}"
            )
    return {name: sample[name] for name in names}


def _rate(sample: Sample, transform: object) -> int:
    if "rate" not in sample:
        raise DataError(
            f"{type(transform).__name__} needs the field 'rate' (frames a second, in Hz) beside "
            f"the audio; the sample has {', '.join(sample)}"
        )
    return int(sample["rate"])


def _common_length(audio: dict[str, Tensor], transform: object) -> int:
    lengths = {name: value.shape[-1] for name, value in audio.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{type(transform).__name__} keeps its fields in step, but their lengths differ: "
            + ", ".join(f"{name} {length}" for name, length in lengths.items())
        )
    return next(iter(lengths.values()))


def _check(name: str, value: object, good: bool, allowed: str) -> None:
    if not good:
        raise ConfigError(Problem(name, f"{value!r}; allowed: {allowed}"))


def _range(name: str, bounds: Sequence[float]) -> tuple[float, float]:
    good = not isinstance(bounds, str) and len(bounds) == 2 and bounds[0] <= bounds[1]
    _check(name, bounds, good, "[lowest, highest]")
    return float(bounds[0]), float(bounds[1])
