"""One WAV or FLAC file to one tensor, by libsndfile (`soundfile`).

WAV headers are read here: in 15 us, where libsndfile takes 100 us to open a file, and because
libsndfile reads a WAV that was cut off as a shorter one. Decoding releases Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from penstock.datasets.reading.file_kind import stranger
from penstock.datasets.reading.folder import Folder
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.plain_tensor import not_finite
from penstock.errors import ConfigError, DataError
from penstock.files.batch_bytes import reserve, temporary
from penstock.files.limits import DEFAULT, Limits
from penstock.files.regular_file import regular_descriptor
from penstock.order.randomness import IntArray
from penstock.terminal import watched

T = TypeVar("T")

EXTENSIONS = (".wav", ".flac")

# Formats of the `fmt ` chunk in which every frame takes the same number of bytes: PCM, float, A-law
# and mu-law. The extensible format has the actual one further on in the chunk.
_PLAIN = (1, 3, 6, 7)
_EXTENSIBLE = 0xFFFE
# Lengths that writers use when they write into a pipe and cannot come back to correct them.
_OPEN_ENDED = range(0x7FFFF000, 0x1_0000_0000)
_MOST_CHUNKS = 1000  # of a WAV; a file of zeros is one of empty chunks without an end
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
    header = _wav_header(file, path)
    with _decoder(file, path) as decoder:
        claimed = Header(decoder.frames, decoder.samplerate, decoder.channels)
        _check_header(claimed, path, limits)
        frames, rate, _ = header or claimed
        size = 4 * claimed.frames * claimed.channels
        reserve(size, f"audio {path!r}")
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
    with temporary(0 if claimed.channels == 1 else size, f"audio {path!r}"):
        return torch.from_numpy(np.ascontiguousarray(values.T)), rate


def read_integers(path: str) -> npt.NDArray[np.int32]:
    """The samples of a file that `read_audio` reads, as encoded: int32 [T, C]."""
    with _opened(path) as file, _decoder(file, path) as decoder:
        values: npt.NDArray[np.int32] = decoder.read(dtype="int32", always_2d=True)
        return values


def read_header(path: str, limits: Limits = DEFAULT) -> Header:
    """Length, rate and channels of an audio file; 15 us for WAV, else 100 us.

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
    header = _wav_header(file, path)
    if header is None:
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
        return open(regular_descriptor(path)[0], "rb", buffering=512)
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
        file.seek(0)
    else:
        source = file.fileno()  # libsndfile reads it by itself, without Python's lock
        os.lseek(source, 0, os.SEEK_SET)
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


def _wav_header(file: BinaryIO, path: str) -> Header | None:
    """The header of a WAV file with frames of equal size; None for other files.

    DataError if any WAV file has fewer samples than it claims.
    """
    try:
        start = file.read(12)
        if start[:4] not in (b"RIFF", b"RF64") or start[8:] != b"WAVE":
            return None
        form, data = _chunks(file)
        begin = file.tell()
        there = file.seek(0, os.SEEK_END) - begin
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(f"audio {path!r} cannot be read: {error}. {_REPLACE}") from error
    if data > there:
        if data not in _OPEN_ENDED:
            raise _refusal(
                path, f"was cut off: it claims {data} bytes of samples, but there are {there}"
            )
        data = there
    fields = [int.from_bytes(form[at : at + 2], "little") for at in range(0, len(form) - 1, 2)]
    if len(fields) < 8:
        return None
    coding, channels, rate, frame_bytes = fields[0], fields[1], fields[2:4], fields[6]
    if coding == _EXTENSIBLE and len(fields) > 12:
        coding = fields[12]
    if coding not in _PLAIN or not frame_bytes:
        return None
    return Header(data // frame_bytes, rate[0] | rate[1] << 16, channels)


def _chunks(file: BinaryIO) -> tuple[bytes, int]:
    """Body of the `fmt ` chunk, and length of the samples; leaves `file` at their start."""
    form, long_data = b"", 0
    for _ in range(_MOST_CHUNKS):
        if len(head := file.read(8)) < 8:
            return b"", 0
        name, length = head[:4], int.from_bytes(head[4:], "little")
        if name == b"data":
            return form, long_data or length
        body = file.read(min(length, 40)) if name in (b"fmt ", b"ds64") else b""
        if name == b"fmt ":
            form = body
        elif name == b"ds64":  # of RF64, for files of 4 GiB and more
            long_data = int.from_bytes(body[8:16], "little")
        # A chunk of odd length is followed by a byte of padding.
        file.seek(length + length % 2 - len(body), os.SEEK_CUR)
    raise ValueError(f"more than {_MOST_CHUNKS:,} chunks come before its samples")


def _refusal(path: str, what: str) -> DataError:
    return DataError(f"audio {path!r} {what}. {_REPLACE}")


class AudioFolder(FolderDataset):
    """A dataset of recordings, one a file."""

    def check(self, index: int) -> str | None:
        from penstock.datasets.reading.damage import audio_damage  # which imports this module

        return self._audio(index, audio_damage)

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
