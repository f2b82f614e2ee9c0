"""One WAV, FLAC, Ogg, MP3 ... file to one tensor, by libsndfile (`soundfile`).

libsndfile reads a WAV that was cut off as a shorter one and notes it in its log, which is looked
at. Opening a file takes 100 us. Decoding releases Python's lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from penstock.datasets.arrays import not_finite
from penstock.datasets.reading.base import FolderDataset
from penstock.datasets.reading.file_kind import stranger
from penstock.errors import ConfigError, DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray
from penstock.terminal import watched

T = TypeVar("T")

EXTENSIONS = (
    *(".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3"),
    *(".aiff", ".aif", ".aifc", ".au", ".snd", ".w64", ".caf", ".rf64"),
)

_SHORTER = re.compile(r": (\d+) \(should be (\d+)\)")  # libsndfile, of a length in a header
# Lengths that writers use when they write into a pipe and cannot come back to correct them.
_OPEN_ENDED = range(0x7FFFF000, 0x1_0000_0000)
_REPLACE = "Replace it or remove it from the data."


class Header(NamedTuple):
    """The claims of a file: frames (of all channels at one time), rate in Hz, channels."""

    frames: int
    rate: int
    channels: int


def check_soundfile() -> Any:
    """The module `soundfile`; raises ConfigError unless it can be imported."""
    try:
        import soundfile  # type: ignore[import-untyped, unused-ignore]
    except (ImportError, OSError) as error:  # OSError: the package is there, libsndfile is not
        raise ConfigError(
            f"reading audio needs soundfile ({error}): pip install soundfile"
        ) from error
    return soundfile


def read_audio(
    source: str | bytes, limits: Limits = DEFAULT, name: str | None = None
) -> tuple[torch.Tensor, int]:
    """Decode an audio file: float32 [C, T], integers scaled to [-1, 1); and its rate in Hz.

    Cost for half a second at 8 kHz: 0.1 ms, most of it for opening the file.

    Args:
        source: a path of this machine, or the bytes of a file.
        limits: `audio_seconds`, and `record_bytes` of the decoded samples.
        name: for messages; None takes the path.

    Raises:
        DataError: the file is missing, not audio, without samples, cut short, damaged, not finite,
            or claims more than the limits, for which nothing is allocated.
        ConfigError: `soundfile` is not installed.
    """
    path = name or str(source)
    with _decoder(source, path) as decoder:
        frames, rate, _ = _header(decoder, path, limits)
        values: npt.NDArray[np.float32] = decoder.read(frames, dtype="float32", always_2d=True)
    if frames == 0:
        raise _refusal(path, "has no samples")
    if len(values) < frames:
        raise _refusal(
            path, f"was cut off: its header claims {frames} frames, but there are {len(values)}"
        )
    position = not_finite(values)
    if position is not None:
        raise DataError(
            f"audio {path!r}, frame {position[0]} ({position[0] / rate:.3f} s), "
            f"channel {position[1]}: {values[tuple(position)]} is not finite. {_REPLACE}"
        )
    return torch.from_numpy(np.ascontiguousarray(values.T)), rate


def read_header(source: str | bytes, limits: Limits = DEFAULT, name: str | None = None) -> Header:
    """Length, rate and channels of an audio file; 100 us; arguments and errors as `read_audio`."""
    path = name or str(source)
    with _decoder(source, path) as decoder:
        return _header(decoder, path, limits)


@contextmanager
def _decoder(source: str | bytes, path: str) -> Iterator[Any]:
    """libsndfile's reader of a file, from its beginning."""
    soundfile = check_soundfile()
    try:
        file = BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb", 512)  # noqa: SIM115
    except OSError as error:
        raise DataError(
            f"audio {path!r} cannot be read: {error.strerror}. "
            "Put it there or remove it from the data."
        ) from error
    # libsndfile reads a file by itself, without Python's lock.
    opened = file if isinstance(file, BytesIO) else file.fileno()
    try:
        with file, soundfile.SoundFile(opened, closefd=False) as decoder:
            for claimed, there in _SHORTER.findall(decoder.extra_info):
                if int(claimed) > int(there) and int(claimed) not in _OPEN_ENDED:
                    claims = f"a length in it is {claimed} bytes, and {there} are there"
                    raise _refusal(path, f"was cut off: {claims}")
            yield decoder
    except soundfile.LibsndfileError as error:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        detail, other = error.error_string.rstrip("."), stranger(content[:256])
        damage = f"is damaged or of an unknown format (libsndfile: {detail})"
        what = f"is not audio: {other}" if other is not None else damage
        raise _refusal(path, what) from error


def _header(decoder: Any, path: str, limits: Limits) -> Header:
    """Refuse invalid and too long recordings before anything is allocated for them."""
    header = frames, rate, channels = Header(decoder.frames, decoder.samplerate, decoder.channels)
    size = 4 * frames * channels
    if frames > 1 << 40:  # libsndfile counts 2^63 - 1 frames in some files that were cut off
        raise _refusal(path, "was cut off: it has no end")
    if frames > rate * limits.audio_seconds:
        excess = limits.refusal("audio_seconds", f"{frames / rate:.0f} s")
    elif size > limits.record_bytes:
        excess = limits.refusal("record_bytes", f"{size} bytes as float32")
    else:
        return header
    raise _refusal(path, f"claims {frames} frames of {channels} channel(s) at {rate} Hz: {excess}")


def _refusal(path: str, what: str) -> DataError:
    return DataError(f"audio {path!r} {what}. {_REPLACE}")


class AudioFolder(FolderDataset):
    """A dataset of recordings, one a file."""

    def audio(self, index: int) -> tuple[torch.Tensor, int]:
        """The recording of a sample, float32 [C, T], and its rate in Hz."""
        return self._audio(index, read_audio)

    def _audio(self, index: int, function: Callable[[str, Limits, str], T]) -> T:
        return self._read(index, lambda path, shown: function(path, self.limits, shown))

    @cached_property
    def _headers(self) -> IntArray:
        """Frames, Hz and channels of each file: int64[n, 3], 0 where a header cannot be read.

        One bad file should not hide the table of a million others; reading its sample gives the
        error.
        """

        def header_or_zeros(path: str, _: str) -> Header:
            try:
                return read_header(path, self.limits)
            except DataError:
                return Header(0, 0, 0)

        shown = watched(self._names(), len(self), "reading headers of audio")
        rows = [self.folder.read(name, header_or_zeros) for name in shown]
        return np.array(rows, np.int64).reshape(-1, 3)
