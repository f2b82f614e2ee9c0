"""One WAV, FLAC, Ogg, MP3 ... file to one tensor, by libsndfile (`soundfile`).

libsndfile reads a file that was cut off as a shorter one and notes it in its log, which is looked
at. Opening a file takes 100 us. Decoding releases Python's lock.
"""

from __future__ import annotations

import os
import re
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
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.mapped_array import not_finite
from penstock.datasets.reading.root import Root
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
_PAGE = 27 + 255 + 255 * 255  # bytes of a page of Ogg, at most
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
    path: str, limits: Limits = DEFAULT, name: str | None = None
) -> tuple[torch.Tensor, int]:
    """Read an audio file: float32 [C, T], integers scaled to [-1, 1); and its rate in Hz.

    Cost for half a second at 8 kHz: 0.1 ms, most of it for opening the file.

    Args:
        path: of this machine.
        limits: `audio_seconds`, and `record_bytes` of the decoded samples.
        name: its path or address, for messages, where this is a copy of it.

    Raises:
        DataError: the file is missing, not regular, empty, not audio, without samples, cut short,
            damaged, not finite, or claims more than the limits, for which nothing is allocated.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(path, name or path) as file:
        return _decoded(file, name or path, limits)


def decode_audio(content: bytes, name: str, limits: Limits = DEFAULT) -> tuple[torch.Tensor, int]:
    """The same from the bytes of a file; `name` is for messages."""
    return _decoded(BytesIO(content), name, limits)


def _decoded(file: BinaryIO, path: str, limits: Limits) -> tuple[torch.Tensor, int]:
    with _decoder(file, path) as decoder:
        header = Header(decoder.frames, decoder.samplerate, decoder.channels)
        _check_header(header, path, limits)
        frames, rate, _ = header
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


def read_header(path: str, limits: Limits = DEFAULT, name: str | None = None) -> Header:
    """Length, rate and channels of an audio file; 100 us; arguments as for `read_audio`.

    Raises:
        DataError: the file is missing, not audio, a WAV that was cut off, or claims too much.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(path, name or path) as file:
        return _header(file, name or path, limits)


def header_of(content: bytes, name: str, limits: Limits = DEFAULT) -> Header:
    """The same from the bytes of a file; `name` is for messages."""
    return _header(BytesIO(content), name, limits)


def _header(file: BinaryIO, path: str, limits: Limits) -> Header:
    with _decoder(file, path) as decoder:
        header = Header(decoder.frames, decoder.samplerate, decoder.channels)
    _check_header(header, path, limits)
    return header


def headers(folder: Root, names: Sequence[str], limits: Limits = DEFAULT) -> IntArray:
    """Frames, Hz and channels of many files: int64[n, 3], 0 where a header cannot be read.

    One bad file should not hide the table of a million others; reading its sample gives the error.
    """

    def header_or_zeros(path: str, _: str) -> Header:
        try:
            return read_header(path, limits)
        except DataError:
            return Header(0, 0, 0)

    shown = watched(names, len(names), "reading headers of audio")
    return np.array([folder.read(name, header_or_zeros) for name in shown], np.int64).reshape(-1, 3)


def _opened(path: str, name: str) -> BinaryIO:
    try:
        return Path(path).open("rb", buffering=512)
    except OSError as error:
        raise DataError(
            f"audio {name!r} cannot be read: {error.strerror}. "
            "Put it there or remove it from the data."
        ) from error


@contextmanager
def _decoder(file: BinaryIO, path: str) -> Iterator[Any]:
    """libsndfile's reader of an open file, from its beginning."""
    soundfile = check_soundfile()
    # libsndfile reads a file by itself, without Python's lock.
    source = file if isinstance(file, BytesIO) else file.fileno()
    try:
        with soundfile.SoundFile(source, closefd=False) as decoder:
            for claimed, there in _SHORTER.findall(decoder.extra_info):
                if int(claimed) > int(there) and int(claimed) not in _OPEN_ENDED:
                    claims = f"a length in it is {claimed} bytes, and {there} are there"
                    raise _refusal(path, f"was cut off: {claims}")
            if decoder.format == "OGG":
                _check_last_page(file, path)
            yield decoder
    except soundfile.LibsndfileError as error:
        file.seek(0)
        other = stranger(file.read(256))
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
    if frames > rate * limits.audio_seconds:
        excess = limits.refusal("audio_seconds", f"{frames / rate:.0f} s")
    elif size > limits.record_bytes:
        excess = limits.refusal("record_bytes", f"{size} bytes as float32")
    else:
        return
    raise _refusal(path, f"claims {frames} frames of {channels} channel(s) at {rate} Hz: {excess}")


def _check_last_page(file: BinaryIO, path: str) -> None:
    """Refuse a file of Ogg that does not end where its last page does."""
    place = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _PAGE))
    _, _, page = file.read().rpartition(b"OggS")
    file.seek(place)
    parts = page[23 : 23 + page[22]] if len(page) > 22 else b""
    if len(page) != 23 + len(parts) + sum(parts):
        raise _refusal(path, "was cut off: its last page is not whole")


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
        return headers(self.folder, self._names(), self.limits)
