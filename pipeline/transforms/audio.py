"""Transforms of audio: sampling rate, length, loudness, noise, log-mel features.

A sample holds `audio`, float32[C, T], and `rate`, its frames a second in Hz. Transforms that draw
do so from torch's global generator, which fetch seeds from the sample's key. Those that keep
several recordings in step (an input and its target) take the names of their `fields`.

    Resample        to another rate
    RandomCrop      a part at random of what is longer
    PadOrCrop       exactly so long
    Gain            louder or softer
    Noise           white noise at a signal-to-noise ratio
    LogMel          waveform -> features: log power in mel bands
    Standardize     features to mean 0 and deviation 1, by sample
    MaskFeatures    bands and times left out (SpecAugment)

Cost for half a second at 8 kHz on one core: LogMel 0.07 ms, the others up to 0.05 ms each.

Sums run in numpy's float64: torch splits long ones among its threads, and then the last bits of a
sample would depend on who computed it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.transforms.mel import Scale, mel_filters
from pipeline.transforms.resampling import resample

Sample = dict[str, Any]


class Resample:
    """Bring audio to `rate` Hz, whatever the rate of its file (see `transforms/resampling.py`)."""

    def __init__(self, rate: int, fields: Sequence[str] = ("audio",)) -> None:
        _check("rate", rate, rate > 0, "more than 0 Hz")
        self.rate = rate
        self.fields = tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        before = _rate(sample, self)
        audio = _fields(sample, self.fields, self)
        changed = {name: resample(value, before, self.rate) for name, value in audio.items()}
        return {**sample, **changed, "rate": self.rate}


class RandomCrop:
    """A part of `seconds` at a random place; what is shorter is left as it is.

    Args:
        seconds: length of the part.
        fields: cropped at the same place; they have to be of equal length.
    """

    def __init__(self, seconds: float, fields: Sequence[str] = ("audio",)) -> None:
        _check("seconds", seconds, seconds > 0, "more than 0")
        self.seconds = seconds
        self.fields = tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        audio = _fields(sample, self.fields, self)
        wanted = _frames(self.seconds, _rate(sample, self))
        length = _common_length(audio, self)
        if length <= wanted:
            return sample
        start = _whole_below(length - wanted + 1)
        return {**sample, **{k: v[..., start : start + wanted] for k, v in audio.items()}}


class PadOrCrop:
    """Exactly `seconds`: the middle of what is longer, zeros behind what is shorter.

    Args:
        seconds: length afterwards.
        random: crop at a random place, and pad in front and behind by random shares.
        fields: treated alike; they have to be of equal length.
    """

    def __init__(
        self, seconds: float, random: bool = False, fields: Sequence[str] = ("audio",)
    ) -> None:
        _check("seconds", seconds, seconds > 0, "more than 0")
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
        field: the audio that it is added to; a target is left clean.
    """

    def __init__(
        self, snr_db: Sequence[float] = (10.0, 40.0), p: float = 1.0, field: str = "audio"
    ) -> None:
        _check("p", p, 0 <= p <= 1, "0 to 1")
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


class LogMel:
    """`audio` becomes `features`: float32[n_mels, frames], the log of the power in mel bands.

    Frames are `hop` apart and centred at 0, hop, 2 hop ...: T // hop + 1 of them, for which the
    audio is padded with zeros. Each is weighed by a Hann window, Fourier transformed and squared.
    Channels are mixed down first.

    Args:
        rate: in Hz; audio at another one is refused.
        n_fft: length of the Fourier transform in frames of audio.
        hop: frames of audio between two of the features.
        n_mels: bands.
        window: length of the window in frames of audio, at most n_fft; None takes n_fft.
        f_min, f_max: ends of the lowest and the highest band in Hz; None takes half the rate.
        scale: "slaney" (as librosa has it) or "htk"; see `pipeline.transforms.mel`.
        floor: power below which everything is silence; keeps the logarithm finite. The power of a
            sine of amplitude 1 adds up to n_fft * window / 16 or so over the bins around it.
        field, output: the field that is read, and the one that takes its place.
        keep: keep the audio beside the features.

    Raises:
        ConfigError: the numbers do not go together.
    """

    def __init__(
        self,
        rate: int,
        n_fft: int = 256,
        hop: int = 80,
        n_mels: int = 40,
        window: int | None = None,
        f_min: float = 20.0,
        f_max: float | None = None,
        scale: Scale = "slaney",
        floor: float = 1e-6,
        field: str = "audio",
        output: str = "features",
        keep: bool = False,
    ) -> None:
        _check("rate", rate, rate > 0, "more than 0 Hz")
        _check("n_fft", n_fft, n_fft > 1, "2 or more")
        _check("hop", hop, hop > 0, "1 or more")
        _check("n_mels", n_mels, n_mels > 0, "1 or more")
        window = n_fft if window is None else window
        _check("window", window, 1 < window <= n_fft, f"2 to {n_fft} (n_fft)")
        highest = rate / 2 if f_max is None else f_max
        _check("f_max", highest, 0 < highest <= rate / 2, f"up to {rate / 2:g} (half the rate)")
        _check("f_min", f_min, 0 <= f_min < highest, f"0 to {highest:g} (f_max)")
        _check("scale", scale, scale in ("slaney", "htk"), "slaney, htk")
        _check("floor", floor, floor > 0, "more than 0")
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
                "pipeline.transforms.audio.Resample in front of it, or change its rate"
            )
        kept = {k: v for k, v in sample.items() if self.keep or k != self.field}
        return {**kept, self.output: self.features(audio)}

    def features(self, audio: Tensor) -> Tensor:
        """float32[C, T] -> float32[n_mels, T // hop + 1]."""
        wave = audio[0] if len(audio) == 1 else audio.mean(0)
        half = self.n_fft // 2
        # torch.stft does the same, with checks that take twice as long as the work.
        frames = F.pad(wave, (half, half + self.n_fft % 2)).unfold(0, self.n_fft, self.hop)
        spectrum = torch.fft.rfft(frames * self._window)
        power = spectrum.real.square() + spectrum.imag.square()
        return (self._filters @ power.T).clamp_min(self.floor).log()


class Standardize:
    """Features less their mean, divided by their standard deviation; of this sample.

    Takes out how loud a recording is and how it was made. Constant features become 0.

    Args:
        fields: float32[bands, frames] each.
        by_band: every band by itself over time, and not all of them together.
    """

    def __init__(self, fields: Sequence[str] = ("features",), by_band: bool = False) -> None:
        self.fields = tuple(fields)
        self.by_band = by_band

    def __call__(self, sample: Sample) -> Sample:
        features = _fields(sample, self.fields, self)
        return {**sample, **{name: self._one(value) for name, value in features.items()}}

    def _one(self, value: Tensor) -> Tensor:
        array = value.numpy()
        axis = -1 if self.by_band else None
        mean = array.mean(axis, dtype=np.float64, keepdims=True)
        deviation = array.std(axis, dtype=np.float64, keepdims=True)
        return torch.from_numpy(((array - mean) / np.maximum(deviation, 1e-5)).astype(np.float32))


class MaskFeatures:
    """Random bands and times replaced by the mean (SpecAugment, Park et al. 2019, no warping).

    Args:
        bands: a mask covers up to so many neighbouring bands.
        share: a mask covers up to this share of the frames.
        count: masks of either kind.
        field: float32[bands, frames].
    """

    def __init__(
        self, bands: int = 6, share: float = 0.15, count: int = 1, field: str = "features"
    ) -> None:
        _check("bands", bands, bands >= 0, "0 or more")
        _check("share", share, 0 <= share <= 1, "0 to 1")
        _check("count", count, count >= 0, "0 or more")
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


def _frames(seconds: float, rate: int) -> int:
    return max(1, round(seconds * rate))


def _fields(sample: Sample, names: Sequence[str], transform: Any) -> dict[str, Tensor]:
    """The tensors of a sample that a transform works on."""
    for name in names:
        if not isinstance(sample.get(name), Tensor):
            tensors = ", ".join(k for k, v in sample.items() if isinstance(v, Tensor)) or "none"
            raise DataError(
                f"{type(transform).__name__} needs the field {name!r}; the sample's tensors: "
                f"{tensors}"
            )
    return {name: sample[name] for name in names}


def _rate(sample: Sample, transform: Any) -> int:
    if "rate" not in sample:
        raise DataError(
            f"{type(transform).__name__} needs the field 'rate' (frames a second, in Hz) beside "
            f"the audio; the sample has {', '.join(sample)}"
        )
    return int(sample["rate"])


def _common_length(audio: dict[str, Tensor], transform: Any) -> int:
    lengths = {name: value.shape[-1] for name, value in audio.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{type(transform).__name__} keeps its fields in step, but their lengths differ: "
            + ", ".join(f"{name} {length}" for name, length in lengths.items())
        )
    return next(iter(lengths.values()))


def _check(name: str, value: Any, good: bool, allowed: str) -> None:
    if not good:
        raise ConfigError(Problem(name, f"{value!r}; allowed: {allowed}"))


def _range(name: str, given: Sequence[float]) -> tuple[float, float]:
    good = not isinstance(given, str) and len(given) == 2 and given[0] <= given[1]
    _check(name, given, good, "[lowest, highest]")
    return float(given[0]), float(given[1])
