"""One WAV or FLAC file to one tensor, by libsndfile (`soundfile`).

libsndfile reads a WAV that was cut off as a shorter one, so its length is compared with the one in
its header. Opening a file takes 100 us. Decoding releases Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from penstock.datasets.reading.file_kind import stranger
from penstock.datasets.reading.folder import Folder
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.mapped_array import not_finite
from penstock.errors import ConfigError, DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.order.randomness import IntArray
from penstock.terminal import watched

T = TypeVar("T")

EXTENSIONS = (".wav", ".flac")

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


def read_audio(path: str, limits: Limits = DEFAULT) -> tuple[torch.Tensor, int]:
    """Read an audio file: float32 [C, T], integers scaled to [-1, 1); and its rate in Hz.

    Cost for half a second at 8 kHz: 0.1 ms, most of it for opening the file.

    Args:
        path: of this machine.
        limits: `audio_seconds`, and `record_bytes` of the decoded samples.

    Raises:
        DataError: the file is missing, not regular, empty, not audio, without samples, cut short,
            damaged, not finite, or claims more than the limits, for which nothing is allocated.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(path) as file:
        return _decoded(file, path, limits)


def decode_audio(content: bytes, name: str, limits: Limits = DEFAULT) -> tuple[torch.Tensor, int]:
    """The same from the bytes of a file; `name` is for messages."""
    return _decoded(BytesIO(content), name, limits)


def _decoded(file: BinaryIO, path: str, limits: Limits) -> tuple[torch.Tensor, int]:
    with _decoder(file, path) as decoder:
        header = Header(decoder.frames, decoder.samplerate, decoder.channels)
        _check_header(header, path, limits)
        frames, rate, _ = header
        values: npt.NDArray[np.float32] = decoder.read(dtype="float32", always_2d=True)
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


def read_header(path: str, limits: Limits = DEFAULT) -> Header:
    """Length, rate and channels of an audio file; 100 us.

    Raises:
        DataError: the file is missing, not audio, a WAV that was cut off, or claims too much.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(path) as file:
        return _header(file, path, limits)


def header_of(content: bytes, name: str, limits: Limits = DEFAULT) -> Header:
    """The same from the bytes of a file; `name` is for messages."""
    return _header(BytesIO(content), name, limits)


def _header(file: BinaryIO, path: str, limits: Limits) -> Header:
    with _decoder(file, path) as decoder:
        header = Header(decoder.frames, decoder.samplerate, decoder.channels)
    _check_header(header, path, limits)
    return header


def lengths_and_rates(
    folder: Folder, names: Sequence[str], limits: Limits = DEFAULT
) -> tuple[IntArray, IntArray]:
    """Frames and Hz of many files: int64[n] each, 0 where a header cannot be read.

    One bad file should not hide the table of a million others; reading its sample gives the error.
    """

    def header_or_zeros(path: str, _: str) -> Header:
        try:
            return read_header(path, limits)
        except DataError:
            return Header(0, 0, 0)

    shown = watched(names, len(names), "reading headers of audio")
    headers = [folder.read(name, header_or_zeros) for name in shown]
    table = np.array(headers, dtype=np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy()


def _opened(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb", buffering=512)
    except OSError as error:
        raise DataError(
            f"audio {path!r} cannot be read: {error.strerror}. "
            "Put it there or remove it from the data."
        ) from error


@contextmanager
def _decoder(file: BinaryIO, path: str) -> Iterator[Any]:
    """libsndfile's reader of an open file, from its beginning."""
    soundfile = check_soundfile()
    if isinstance(file, BytesIO):
        source: BytesIO | int = file
        _check_length(file.getvalue()[:28], len(file.getvalue()), path)
    else:
        source = file.fileno()  # libsndfile reads it by itself, without Python's lock
        _check_length(os.pread(source, 28, 0), os.fstat(source).st_size, path)
    try:
        with soundfile.SoundFile(source, closefd=False) as decoder:
            yield decoder
    except soundfile.LibsndfileError as error:
        head = os.pread(source, 256, 0) if isinstance(source, int) else source.getvalue()[:256]
        other = stranger(head)
        if other is not None:
            raise _refusal(path, f"is not audio: {other}") from error
        detail = error.error_string.rstrip(".")
        raise _refusal(
            path, f"is damaged or of an unknown format (libsndfile: {detail})"
        ) from error


def _check_header(header: Header, path: str, limits: Limits) -> None:
    """Refuse invalid and too long recordings before anything is allocated for them."""
    frames, rate, channels = header
    size = 4 * frames * channels
    if frames > 1 << 40:  # libsndfile counts 2^63 - 1 frames in some files that were cut off
        raise _refusal(path, "was cut off: it has no end")
    if rate < 1:
        raise _refusal(path, f"has a sampling rate of {rate} Hz")
    if channels < 1:
        raise _refusal(path, f"has {channels} channels")
    if frames > rate * limits.audio_seconds:
        excess = limits.refusal("audio_seconds", f"{frames / rate:.0f} s")
    elif size > limits.record_bytes:
        excess = limits.refusal("record_bytes", f"{size} bytes as float32")
    else:
        return
    raise _refusal(path, f"claims {frames} frames of {channels} channel(s) at {rate} Hz: {excess}")


def _check_length(head: bytes, there: int, path: str) -> None:
    """Refuse a WAV that is shorter than its header claims; `head` are its first 28 bytes."""
    is_long = head[:4] == b"RF64"  # of 4 GiB and more
    claimed = int.from_bytes(head[20:28] if is_long else head[4:8], "little")
    if (is_long or head[:4] == b"RIFF") and claimed + 8 > there and claimed not in _OPEN_ENDED:
        raise _refusal(path, f"was cut off: it claims {claimed + 8} bytes, but there are {there}")


def _refusal(path: str, what: str) -> DataError:
    return DataError(f"audio {path!r} {what}. {_REPLACE}")


class AudioFolder(FolderDataset):
    """A dataset of recordings, one a file."""

    def audio(self, index: int) -> tuple[torch.Tensor, int]:
        """The recording of a sample, float32 [C, T], and its rate in Hz."""
        return self._audio(index, read_audio)

    def _audio(self, index: int, function: Callable[[str, Limits], T]) -> T:
        def named(path: str, shown: str) -> T:
            try:
                return function(path, self.limits)
            except DataError as error:  # it names the copy of a file that was fetched
                raise DataError(str(error).replace(repr(path), repr(shown))) from error

        return self._read(index, named)

    @cached_property
    def _headers(self) -> tuple[IntArray, IntArray]:
        return lengths_and_rates(self.folder, self._names(), self.limits)
