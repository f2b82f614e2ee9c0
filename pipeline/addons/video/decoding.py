"""Frames of a video file by PyAV, decoded from the key frame before the first of them.

A file is taken for a stranger's. Its length is that of the frames in it, whatever its header says;
nothing else is opened on its behalf (a playlist names files and addresses); only known containers
and codecs are tried, and libav refuses a frame of more pixels than it may have before it makes room
for one. Cost: the file is read and taken apart, about 10 us a frame, without decoding; then every
frame from the key frame on is decoded, which takes 100 us at 64 px and 2 ms at 720 px.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits
from penstock.files.regular_file import read_regular
from penstock.order.randomness import IntArray

Frames = npt.NDArray[np.uint8]
Begin = Callable[[int], int]  # how many frames can begin a clip -> the one that does

_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,asf,flv,ogg"
_CODECS = (
    "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,av1,libdav1d,mpeg4,mpeg1video,mpeg2video,mjpeg,theora,"
    "wmv1,wmv2,wmv3,vc1,msmpeg4,msmpeg4v1,msmpeg4v2,flv,h263,ffv1,prores,rawvideo,"
    "aac,mp3,mp3float,opus,vorbis,flac,ac3,pcm_s16le"  # sound is only recognised
)
_STREAMS = 64  # of a file
_MOST = 1 << 18  # frames of a file: 2.4 hours at 30 a second, 0.4 kB of memory each
_REPLACE = "Replace it or remove it from the data."


def check_av() -> Any:
    """The module `av`; ConfigError if it is not installed."""
    if importlib.util.find_spec("av") is None:
        reason = "videos are decoded by PyAV: pip install 'penstock-loader[video]'"
        raise ConfigError(Problem("dataset", reason))
    import av

    return av


def read_clip(
    path: str,
    name: str,
    frames: int,
    stride: int,
    begin: Begin,
    size: int | None,
    most_decoded: int,
    limits: Limits,
) -> Frames:
    """Every `stride`-th frame, `frames` of them: uint8 [T, H, W, 3].

    Where the file is shorter, its last frame stands for those that are missing.

    Args:
        path: of this machine.
        name: its path or address, for messages.
        begin: chooses the first frame.
        size: pixels of the shorter side, to which larger frames are reduced; None: as they are.
        most_decoded: frames that may be decoded for the clip.
        limits: `record_bytes` of the file, `pixels` of a frame, and of all frames of the clip.

    Raises:
        DataError: the file is missing, empty, no video, cut off or damaged, changes the size of
            its frames, or claims more than it may.
    """
    with _opened(path, name, limits) as (stream, packets):
        times, counted = _times(packets)
        order = np.sort(times)
        first = begin(max(len(order) - (frames - 1) * stride, 1))
        asked = order[np.minimum(first + np.arange(frames) * stride, len(order) - 1)]
        start = _key_frame(packets, times, asked[0])
        last = int(np.flatnonzero(times <= asked[-1])[-1])
        if last - start >= most_decoded:
            raise DataError(
                f"video {name!r}: {last - start + 1} frames lie between a key frame and the end of "
                f"a clip, more than dataset.most_decoded={most_decoded}. Encode it with more key "
                "frames (ffmpeg -i IN -g 30 OUT), or raise that."
            )
        decoded = _decoded(stream, packets[start:], times[start], counted)
        pixels = _Pixels(name, frames, size, limits)
        for place, frame in _shown(decoded, asked):
            pixels.put(place, frame)
        return pixels.made()


def video_damage(path: str, limits: Limits) -> str | None:
    """The fault of a video whose clips can be read; None if it has none. Decodes all of it."""
    try:
        with _opened(path, path, limits) as (stream, packets):
            stream.codec_context.options |= {"err_detect": "explode"}
            count = 0
            for frame in _frames(stream, packets):
                count += 1
                if frame.is_corrupt:
                    return f"its frame {count - 1} is damaged"
            return None if count else "it has no frame that can be decoded"
    except DataError as error:
        return str(error)


@contextmanager
def _opened(path: str, name: str, limits: Limits) -> Iterator[tuple[Any, list[Any]]]:
    """The first video stream of a file, and its packets in the order in which they are decoded."""
    av = check_av()
    content = _content(path, name, limits)
    if not content:
        raise DataError(f"video {name!r} is empty. {_REPLACE}")
    only = {
        "format_whitelist": _CONTAINERS,
        "codec_whitelist": _CODECS,
        "protocol_whitelist": "none",
        "max_streams": str(_STREAMS),
    }
    # Of what is allocated, borders included; the sizes of frames are looked at below.
    most = {"max_pixels": str(2 * limits.pixels + (1 << 16))}

    def opened(stream_options: list[dict[str, str]]) -> Any:
        return av.open(
            io.BytesIO(content),
            container_options=only,
            stream_options=stream_options,
            io_open=_refused,
            buffer_size=1 << 18,
        )

    try:
        # The file and its packets are in memory at once.
        with ExitStack() as stack:
            try:
                container = stack.enter_context(opened([most] * _STREAMS))
            except ValueError:  # MPEG's program streams tell no streams before they are read
                container = stack.enter_context(opened([]))
            if not container.streams.video:
                kinds = sorted({stream.type for stream in container.streams})
                has = f"it has {' and '.join(kinds)}" if kinds else "it has none at all"
                raise DataError(f"video {name!r} has no stream of pictures ({has}). {_REPLACE}")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                known = "H.264, H.265, VP8, VP9, AV1 and MPEG are"
                raise DataError(f"video {name!r} has a codec that is not read; {known}. {_REPLACE}")
            stream.codec_context.thread_count = 1  # workers share the cores
            stream.codec_context.options = dict(most)
            _check_size(stream.width, stream.height, name, limits)
            packets = [
                packet
                for packet in itertools.islice(container.demux(stream), _MOST + 1)
                if packet.size
            ]
            if len(packets) > _MOST:
                raise DataError(f"video {name!r} has more than {_MOST} frames. Cut it into pieces.")
            if not packets:
                raise DataError(f"video {name!r} has no frames. {_REPLACE}")
            if stream.frames > len(packets) and "mp4" in container.format.name:
                raise DataError(
                    f"video {name!r} was cut off: its header lists {stream.frames} frames, and "
                    f"{len(packets)} are there. {_REPLACE}"
                )
            yield stream, packets
    except (av.error.FFmpegError, ValueError, EOFError) as error:
        detail = (getattr(error, "strerror", None) or str(error)).partition("\n")[0][:160]
        if isinstance(error, av.error.ArgumentError):  # as libav says of too many pixels
            detail += f", or more pixels a frame than limits.pixels={limits.pixels} allows"
        raise DataError(
            f"video {name!r} is truncated, damaged or of a kind that is not read ({detail}). "
            f"{_REPLACE}"
        ) from error


def _content(path: str, name: str, limits: Limits) -> bytes:
    try:
        return read_regular(path, limits)
    except DataError as error:
        raise DataError(f"video {name!r}: {error}; or cut it into pieces.") from error
    except OSError as error:
        raise DataError(
            f"video {name!r} cannot be read: {error.strerror}. "
            "Put it there or remove it from the data."
        ) from error


def _refused(url: str, flags: int, options: object) -> object:
    raise ValueError("it names another file or address, which is not opened")


def _times(packets: Sequence[Any]) -> tuple[IntArray, bool]:
    """When the frame of each packet is shown, and whether that is only its number.

    AVI has no times, and libav makes up some that do not survive reordering; in files that were put
    together they begin again. There, frames are counted.
    """
    known = {packet.pts for packet in packets}
    counted = None in known or len(known) < len(packets)
    counted = counted or packets[0].stream.container.format.name == "avi"
    times = range(len(packets)) if counted else [packet.pts for packet in packets]
    return np.array(times, np.int64), counted


def _key_frame(packets: Sequence[Any], times: IntArray, time: int) -> int:
    """The last key frame that is shown at `time` or before, else the first packet."""
    keys = np.array([packet.is_keyframe for packet in packets])
    before = np.flatnonzero(keys & (times <= time))
    return int(before[-1]) if len(before) else 0


def _frames(stream: Any, packets: Sequence[Any]) -> Iterator[Any]:
    for packet in [*packets, None]:
        yield from stream.codec_context.decode(packet)


def _decoded(
    stream: Any, packets: Sequence[Any], start: int, counted: bool
) -> Iterator[tuple[int, Any]]:
    """Frames as they are shown, each with its time, from that of the first packet on."""
    numbers = itertools.count(start)
    begun = not packets[0].is_keyframe
    for frame in _frames(stream, packets):
        # What is shown before its key frame needs the frames before that one, too.
        begun = begun or bool(frame.key_frame)
        if begun and (counted or frame.pts is None or frame.pts >= start):
            number = next(numbers)
            yield (number if counted or frame.pts is None else frame.pts), frame


def _shown(frames: Iterator[tuple[int, Any]], asked: IntArray) -> Iterator[tuple[int, Any]]:
    """For each time that is asked for, ascending, the frame that is shown then."""
    place, held = 0, None
    for time, frame in frames:
        while place < len(asked) and time > asked[place] and held is not None:
            yield place, held
            place += 1
        held = frame
        while place < len(asked) and time == asked[place]:
            yield place, held
            place += 1
        if place == len(asked):
            return
    for rest in range(place, len(asked)) if held is not None else ():
        yield rest, held


def _check_size(width: int, height: int, name: str, limits: Limits) -> None:
    if width * height > limits.pixels:
        claim = limits.refusal("pixels", f"{width} x {height} pixels a frame")
        raise DataError(f"video {name!r} claims {claim}; or remove it from the data.")


def _exact() -> int:
    """How frames are converted and reduced: alike on all machines, whatever their CPUs offer."""
    from av.video.reformatter import Interpolation

    return int(Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)


class _Pixels:
    """The pixels of a clip, for which room is made at its first frame."""

    def __init__(self, name: str, frames: int, size: int | None, limits: Limits) -> None:
        self._name, self._frames, self._size, self._limits = name, frames, size, limits
        self._pixels: Frames | None = None
        self._last: Any = None

    def put(self, place: int, frame: Any) -> None:
        """Convert a frame; one that stands at several places is converted once."""
        if frame is self._last and self._pixels is not None:
            self._pixels[place] = self._pixels[place - 1]
            return
        if frame.is_corrupt:
            raise DataError(f"video {self._name!r}: a frame of it is damaged. {_REPLACE}")
        if self._last is None:
            self._first = (frame.width, frame.height)
            self._turns = round(frame.rotation / 90) % 4
            self._make_room()
        elif (frame.width, frame.height) != self._first:
            before, now = (f"{w} x {h}" for w, h in (self._first, (frame.width, frame.height)))
            raise DataError(
                f"video {self._name!r}: its frames change their size from {before} to {now} "
                "pixels. Encode it again with one size, or remove it from the data."
            )
        self._last = frame
        width, height = self._scaled
        made = frame.to_ndarray(
            format="rgb24", width=width, height=height, interpolation=_exact(), threads=1
        )
        assert self._pixels is not None
        self._pixels[place] = np.rot90(made, self._turns)

    def made(self) -> Frames:
        if self._pixels is None:
            raise DataError(
                f"video {self._name!r} has no frame that can be decoded where a clip begins. "
                f"{_REPLACE}"
            )
        return self._pixels

    def _make_room(self) -> None:
        width, height = self._first
        _check_size(width, height, self._name, self._limits)
        factor = min(1.0, (self._size or min(width, height)) / min(width, height))
        self._scaled = width, height = (
            max(1, round(width * factor)),
            max(1, round(height * factor)),
        )
        pixels = self._frames * width * height
        if pixels > self._limits.pixels:
            claim = self._limits.refusal("pixels", f"{pixels} pixels")
            raise DataError(
                f"video {self._name!r}: a clip of {self._frames} frames of {width} x {height} has "
                f"{claim}; or set dataset.size or fewer dataset.frames."
            )
        shape = (width, height) if self._turns % 2 else (height, width)
        self._pixels = np.empty((self._frames, *shape, 3), np.uint8)
