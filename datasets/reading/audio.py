"""One WAV or FLAC file to one tensor, by libsndfile (`soundfile`).

`read_audio` decodes a file; `read_header` says how long it is without decoding, for tables of many
files. WAV headers are read here: in 15 us, where libsndfile takes 100 us to open a file, and
because libsndfile takes a WAV that was cut off for a shorter one. Cost of reading half a second at
8 kHz: 0.1 ms, most of it the opening; libsndfile works without Python's lock.

What is refused: a file that is missing, no regular file, empty, no audio, without samples, cut
short, damaged, with values that are not finite, or longer by its header than the limits allow;
nothing is allocated for such a claim. The sampling rate is handed on as it is (see
`pipeline.transforms.audio.Resample`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pipeline.datasets.reading.file_kind import stranger
from pipeline.datasets.reading.folder import Folder
from pipeline.errors import ConfigError, DataError
from pipeline.files.limits import DEFAULT, Limits
from pipeline.files.regular_file import regular_descriptor
from pipeline.order.randomness import IntArray

T = TypeVar("T")

EXTENSIONS = (".wav", ".flac")

# Ways of coding of the `fmt ` chunk in which every frame takes the same number of bytes: PCM,
# float, A-law and mu-law. The last one is written in full further on in the chunk.
_PLAIN = (1, 3, 6, 7)
_EXTENSIBLE = 0xFFFE
# What writers put in for a length when they write into a pipe and cannot come back to correct it.
_OPEN_ENDED = range(0x7FFFF000, 0x1_0000_0000)
_REPLACE = "Replace it or take it out of the data."


class Header(NamedTuple):
    """What a file says of itself: frames (of all channels at one time), rate in Hz, channels."""

    frames: int
    rate: int
    channels: int


def check_soundfile() -> None:
    """Raise ConfigError unless `soundfile` can be imported here."""
    _soundfile()


def read_audio(path: str, limits: Limits = DEFAULT) -> tuple[torch.Tensor, int]:
    """Read the audio file `path`: float32 [C, T], integers scaled to [-1, 1); and its rate in Hz.

    Args:
        path: of this machine.
        limits: `audio_seconds`, and `record_bytes` of what is decoded.

    Raises:
        DataError: names the file, what is wrong with it and what to do.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(path) as file:
        header = _wav_header(file, path)
        with _decoder(file, path) as decoder:
            claimed = Header(decoder.frames, decoder.samplerate, decoder.channels)
            _check_header(claimed, path, limits)
            header = header or claimed
            values = decoder.read(dtype="float32", always_2d=True)
    _refuse_if(header.frames == 0, path, "holds no samples")
    _refuse_if(
        len(values) < header.frames,
        path,
        f"was cut off: its header promises {header.frames} frames, but there are {len(values)}",
    )
    _check_finite(path, values, header.rate)
    return torch.from_numpy(np.ascontiguousarray(values.T)), header.rate


def read_integers(path: str) -> npt.NDArray[np.int32]:
    """The samples of a file that `read_audio` reads, as they were coded: int32 [T, C]."""
    with _opened(path) as file, _decoder(file, path) as decoder:
        values: npt.NDArray[np.int32] = decoder.read(dtype="int32", always_2d=True)
        return values


def of_folder(folder: Folder, name: str, read: Callable[[str], T]) -> T:
    """`read(path)` of a file in a folder, here or at an address; messages name where it lies."""

    def read_it(path: str) -> T:
        try:
            return read(path)
        except DataError as error:
            raise DataError(str(error).replace(repr(path), repr(folder.path(name)))) from error

    return folder.read(name, read_it)


def read_header(path: str, limits: Limits = DEFAULT) -> Header:
    """Length, rate and channels of an audio file; 15 us for WAV, else 100 us.

    Raises:
        DataError: the file is missing, no audio, a WAV that was cut off, or claims too much.
        ConfigError: `soundfile` is not installed.
    """
    with _opened(path) as file:
        header = _wav_header(file, path)
        if header is None:
            with _decoder(file, path) as decoder:
                header = Header(decoder.frames, decoder.samplerate, decoder.channels)
    _check_header(header, path, limits)
    return header


def lengths_and_rates(
    folder: Folder, names: Iterable[str], limits: Limits = DEFAULT
) -> tuple[IntArray, IntArray]:
    """Frames and Hz of many files of a folder: int64[n] each, 0 where a header cannot be read.

    A bad file among a million should not hide the table of the others; reading the sample says
    what is wrong with it.
    """
    look = partial(_header_or_zeros, limits=limits)
    headers = [folder.read(name, look) for name in names]
    table = np.array(headers, dtype=np.int64).reshape(-1, 3)
    return table[:, 0].copy(), table[:, 1].copy()


def _header_or_zeros(path: str, limits: Limits) -> Header:
    try:
        return read_header(path, limits)
    except DataError:
        return Header(0, 0, 0)


def _soundfile() -> Any:
    try:
        import soundfile  # type: ignore[import-untyped, unused-ignore]
    except (ImportError, OSError) as error:  # OSError: the package is there, libsndfile is not
        raise ConfigError(
            f"reading audio needs soundfile ({error}): pip install soundfile"
        ) from error
    return soundfile


def _opened(path: str) -> BinaryIO:
    """The file, open for reading."""
    try:
        descriptor, _ = regular_descriptor(path)
    except OSError as error:
        raise DataError(
            f"audio {path!r} cannot be read: {error.strerror}. "
            "Put it there or take it out of the data."
        ) from error
    return open(descriptor, "rb", buffering=512)


@contextmanager
def _decoder(file: BinaryIO, path: str) -> Iterator[Any]:
    """libsndfile's reader of an open file, from its beginning."""
    soundfile = _soundfile()
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    try:
        with soundfile.SoundFile(file.fileno(), closefd=False) as decoder:
            yield decoder
    except soundfile.LibsndfileError as error:
        start = os.pread(file.fileno(), 256, 0)
        raise DataError(f"audio {path!r} {_complaint(start, error.error_string)}") from error


def _check_header(header: Header, path: str, limits: Limits) -> None:
    """Refuse what no recording is, and what is too long, before anything is allocated for it."""
    frames, rate, channels = header
    size = 4 * frames * channels
    short = size <= limits.record_bytes and frames <= rate * limits.audio_seconds
    if short and rate > 0 and channels > 0:
        return
    # libsndfile counts 2^63 - 1 frames in some files that were cut off.
    _refuse_if(frames > 1 << 40, path, "was cut off: it has no end")
    _refuse_if(rate < 1, path, f"has a sampling rate of {rate} Hz")
    _refuse_if(channels < 1, path, f"has {channels} channels")
    what = limits.refusal("record_bytes", f"{size} bytes as float32")
    if frames > rate * limits.audio_seconds:
        what = limits.refusal("audio_seconds", f"{frames / rate:.0f} s")
    _refuse_if(True, path, f"claims {frames} frames of {channels} channel(s) at {rate} Hz: {what}")


def _wav_header(file: BinaryIO, path: str) -> Header | None:
    """The header of a WAV file with frames of equal size; None for any other file.

    Raises:
        DataError: any WAV file has fewer samples than it says.
    """
    try:
        start = file.read(12)
        if start[:4] not in (b"RIFF", b"RF64") or start[8:] != b"WAVE":
            return None
        form, data = _chunks(file)
        there = os.fstat(file.fileno()).st_size - file.tell()
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(f"audio {path!r} cannot be read: {error}. {_REPLACE}") from error
    data = there if data > there and data in _OPEN_ENDED else data
    complaint = f"was cut off: it says it has {data} bytes of samples, but there are {there}"
    _refuse_if(data > there, path, complaint)
    return _header(form, data)


def _chunks(file: BinaryIO) -> tuple[bytes, int]:
    """Body of the `fmt ` chunk, and length of the samples, at whose start `file` then stands."""
    form, long_data = b"", 0
    while len(head := file.read(8)) == 8:
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
    return b"", 0


def _header(form: bytes, data: int) -> Header | None:
    """Read the body of the `fmt ` chunk; None when only a decoder knows how long the audio is."""
    fields = [int.from_bytes(form[at : at + 2], "little") for at in range(0, len(form) - 1, 2)]
    if len(fields) < 8:
        return None
    coding, channels, rate, frame_bytes = fields[0], fields[1], fields[2:4], fields[6]
    if coding == _EXTENSIBLE and len(fields) > 12:
        coding = fields[12]
    if coding not in _PLAIN or not frame_bytes:
        return None
    return Header(data // frame_bytes, rate[0] | rate[1] << 16, channels)


def _check_finite(path: str, values: npt.NDArray[np.float32], rate: int) -> None:
    if np.isfinite(values).all():
        return
    frame, channel = np.argwhere(~np.isfinite(values))[0].tolist()
    raise DataError(
        f"audio {path!r}, frame {frame} ({frame / rate:.3f} s), channel {channel}: "
        f"{values[frame, channel]} is not finite. {_REPLACE}"
    )


def _refuse_if(wrong: bool, path: str, what: str) -> None:
    if wrong:
        raise DataError(f"audio {path!r} {what}. {_REPLACE}")


def _complaint(start: bytes, error: str) -> str:
    other = stranger(start)
    if other is not None:
        return f"is no audio: {other}. {_REPLACE}"
    return f"is damaged or of an unknown format (libsndfile: {error.rstrip('.')}). {_REPLACE}"
