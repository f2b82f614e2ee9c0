"""One WAV, FLAC, Ogg, MP3 ... file to one tensor, by libsndfile (`soundfile`).

libsndfile reads a WAV that was cut off as a shorter one and notes it in its log, which is looked
at. Opening a file takes 100 us. Decoding releases Python's lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.datasets.files import stranger
from penstock.errors import ConfigError, DataError
from penstock.files.limits import DEFAULT, Limits

EXTENSIONS = (
    *(".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3"),
    *(".aiff", ".aif", ".aifc", ".au", ".snd", ".w64", ".caf", ".rf64"),
)

_SHORTER = re.compile(r": (\d+) \(should be (\d+)\)")  # libsndfile, of a length in a header
# Writers into a pipe cannot come back to correct a length, and begin with one from here on.
_OPEN_ENDED = 0x7FFFF000


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
        limits: `audio_seconds` of the recording.
        name: for messages; None takes the path.

    Raises:
        DataError: the file is missing, not audio, without samples, cut short, damaged, or longer
            than the limit, for which nothing is allocated.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(source, limits, name or str(source)) as decoder:
        values = decoder.read(decoder.frames, dtype="float32", always_2d=True)
        # A compressed file that was cut off has a whole header.
        if not 0 < decoder.frames <= len(values):
            raise _refusal(
                name or str(source),
                f"claims {decoder.frames} frames, and {len(values)} can be read",
            )
        return torch.from_numpy(np.ascontiguousarray(values.T)), decoder.samplerate


def read_header(source: str | bytes, limits: Limits = DEFAULT, name: str | None = None) -> Header:
    """Length, rate and channels of an audio file; 100 us; arguments and errors as `read_audio`."""
    with _opened(source, limits, name or str(source)) as decoder:
        return Header(decoder.frames, decoder.samplerate, decoder.channels)


@contextmanager
def _opened(source: str | bytes, limits: Limits, path: str) -> Iterator[Any]:
    """libsndfile's reader of a file, from its beginning, if what the file claims is true."""
    soundfile = check_soundfile()
    try:
        # By a path libsndfile reads by itself, without Python's lock.
        file = BytesIO(source) if isinstance(source, bytes) else os.fsencode(source)
        start = (
            source[:256] if isinstance(source, bytes) else np.fromfile(file, "u1", 256).tobytes()
        )
        with soundfile.SoundFile(file) as decoder:
            for claimed, there in _SHORTER.findall(decoder.extra_info):
                if int(there) < int(claimed) < _OPEN_ENDED:
                    raise _refusal(
                        path,
                        f"was cut off: a length in it is {claimed} bytes, and {there} are there",
                    )
            seconds = decoder.frames / decoder.samplerate
            if seconds > limits.audio_seconds:
                excess = limits.refusal("audio_seconds", f"{seconds:.0f} s")
                raise _refusal(path, f"claims {decoder.frames} frames: {excess}")
            yield decoder
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error
    except soundfile.LibsndfileError as error:
        damage = f"is damaged or of an unknown format (libsndfile: {error.error_string})"
        other = stranger(start)
        raise _refusal(path, f"is not audio: {other}" if other else damage) from error


def _refusal(path: str, what: str) -> DataError:
    return DataError(f"audio {path!r} {what}. Replace it or remove it from the data.")
