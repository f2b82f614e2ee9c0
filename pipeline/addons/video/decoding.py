"""Frames of a video file by PyAV: frame `n` is the `n`th that a player shows from the beginning.

Each packet carries its number in place of a time, and so does the frame that libav makes of it. The
order in which frames are shown is that of the packets' times; where a file has none to rely on, as
AVI, frames are counted from a key frame on. Packets that an edit list hides are decoded and not
shown. A frame that is not exactly the one that is asked for is never given: reading begins at an
earlier key frame, or the file is refused.

A file is taken for a stranger's: nothing else is opened on its behalf (a playlist names files and
addresses). Cost: the file is read and taken apart, about 10 us a frame, without decoding; then
every frame from the key frame on is decoded, which takes 100 us at 64 px and 2 ms at 720 px.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

Frames = npt.NDArray[np.uint8]
Begin = Callable[[int], int]  # how many frames can begin a clip -> the one that does

_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,asf,flv,ogg,mxf,dv"
_MOST = 1 << 18  # frames of a file: 2.4 hours at 30 a second, 0.4 kB of memory each
_REORDERED = 17  # frames that may be decoded before the first of them is shown: 16 in H.264
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
    with _opened(path, name, limits) as film:
        first = begin(max(film.length - (frames - 1) * stride, 1))
        asked = np.minimum(first + np.arange(frames) * stride, film.length - 1)
        keys = [place for place, packet in enumerate(film.packets) if packet.is_keyframe] or [0]
        stop = int(np.flatnonzero(film.numbers <= asked[-1])[-1]) + 1
        stop += _REORDERED if film.counted else 0
        pixels = _Pixels(name, frames, size, limits)
        missing = set(asked.tolist())
        for start in reversed([key for key in keys if film.numbers[key] <= asked[0]]):
            if stop - start > most_decoded:
                raise DataError(
                    f"video {name!r}: {stop - start} frames lie between a key frame and the end of "
                    f"a clip, more than dataset.most_decoded={most_decoded}. Encode it with more "
                    "key frames (ffmpeg -i IN -g 30 OUT), or raise that."
                )
            begun = None  # the first frame that can be decoded from here on
            for number, frame in _shown(film, start, stop):
                begun = number if begun is None else begun
                if number in missing:
                    pixels.put(asked == number, frame)
                    missing.remove(number)
                if not missing:
                    return pixels.made
            if begun is not None and begun <= asked[0]:
                break
            # What is shown before its key frame needs the frames before that one, too.
            film.stream.codec_context.flush_buffers()
        raise DataError(
            f"video {name!r}: its frame {min(missing)} of {film.length} cannot be decoded, or is "
            "stored in two packets, as fields of television are. Encode it again (ffmpeg -i IN "
            "OUT.mp4), or remove it from the data."
        )


def video_damage(path: str, limits: Limits) -> str | None:
    """The fault of a video whose clips can be read; None if it has none. Decodes all of it."""
    try:
        with _opened(path, path, limits) as film:
            film.stream.codec_context.options |= {"err_detect": "explode"}
            count = 0
            for count, frame in enumerate(_frames(film.stream, film.packets), 1):
                if frame.is_corrupt:
                    return f"its frame {count - 1} is damaged"
            if count < film.length:
                return f"{count} of its {film.length} frames can be decoded"
            return None
    except DataError as error:
        return str(error)


class _Film(NamedTuple):
    """The first stream of pictures of a file.

    Attributes:
        packets: as they are decoded, from the first key frame on; `pts` is the place here.
        numbers: of the frame that each packet is shown as; for one that is not shown, of the next
            frame. If `counted`, the least that it can be.
        length: frames that are shown.
        counted: whether their order is only known when they are decoded.
        lost: frames that are shown before the first key frame, and need those that were cut off.
    """

    stream: Any
    packets: list[Any]
    numbers: IntArray
    length: int
    counted: bool
    lost: int = 0


def _film(stream: Any, packets: list[Any]) -> _Film:
    """Number the packets, and find in which order their frames are shown."""
    packets = list(itertools.dropwhile(lambda packet: not packet.is_keyframe, packets)) or packets
    times = [packet.pts for packet in packets]
    shown = np.array([not packet.is_discard for packet in packets])
    for place, packet in enumerate(packets):
        packet.pts = place
    known = [time for time, is_shown in zip(times, shown, strict=True) if is_shown]
    # AVI has no times, and libav makes up some; files that were joined have the same ones twice.
    counted = stream.container.format.name == "avi" or None in known
    if counted or len(set(known)) < len(known):
        if len(known) < len(packets):
            raise ValueError("its edit list shows two frames at one time")
        places, lost = np.arange(len(packets)), 0
        if stream.codec_context.has_b_frames:
            numbers = [
                frame.pts for frame in itertools.islice(_frames(stream, packets), _REORDERED)
            ]
            stream.codec_context.flush_buffers()
            lost = _leading(numbers, 0, len(packets)) - (numbers.index(0) if 0 in numbers else 0)
        return _Film(stream, packets, places - lost, len(packets) - lost, True, lost)
    order = np.array(known, np.int64)
    at = np.array([min(known) - 1 if time is None else time for time in times], np.int64)
    if order.min() < at[0] and shown[0]:  # shown before the key frame, and decodable or not
        first = next(_frames(stream, packets), None)
        order = order[order >= at[first.pts]] if first is not None else order
        stream.codec_context.flush_buffers()
    return _Film(stream, packets, np.searchsorted(np.sort(order), at), len(order), False)


def _shown(film: _Film, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Frames as they are shown from the key frame at `start` on, each with its number."""
    stop = min(stop, len(film.packets))
    frames = _frames(film.stream, film.packets[start:stop])
    if not film.counted:
        yield from ((int(film.numbers[frame.pts]), frame) for frame in frames)
        return
    if start:
        frames = itertools.dropwhile(lambda frame: frame.pts != start, frames)
    ahead = list(itertools.islice(frames, _REORDERED))
    number = start and start - film.lost + _leading([frame.pts for frame in ahead], start, stop)
    yield from enumerate(itertools.chain(ahead, frames), number)


def _leading(places: list[int], key: int, stop: int) -> int:
    """Packets that follow a key frame and are shown before it, by what is shown after it."""
    after = places[places.index(key) + 1 :] if key in places else []
    return min(after, default=stop) - key - 1


@contextmanager
def _opened(path: str, name: str, limits: Limits) -> Iterator[_Film]:
    """The first video stream of a file."""
    av = check_av()
    content = _content(path, name, limits)
    if not content:
        raise DataError(f"video {name!r} is empty. {_REPLACE}")
    only = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
    try:
        # The file and its packets are in memory at once.
        with av.open(
            io.BytesIO(content), container_options=only, io_open=_refused, buffer_size=1 << 18
        ) as container:
            if not container.streams.video:
                kinds = sorted({stream.type for stream in container.streams})
                has = f"it has {' and '.join(kinds)}" if kinds else "it has none at all"
                raise DataError(f"video {name!r} has no stream of pictures ({has}). {_REPLACE}")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                known = "H.264, H.265, VP8, VP9, AV1 and MPEG are"
                raise DataError(f"video {name!r} has a codec that is not read; {known}. {_REPLACE}")
            stream.codec_context.thread_count = 1  # workers share the cores
            # Of what is allocated, borders included; the sizes of frames are looked at below.
            stream.codec_context.options = {"max_pixels": str(2 * limits.pixels + (1 << 16))}
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
            # Of MP4: what its edit list leaves. Elsewhere it grows as the file is read.
            listed = len(stream.index_entries)
            if listed > len(packets) and "mp4" in container.format.name:
                raise DataError(
                    f"video {name!r} was cut off: its header lists {listed} frames, and "
                    f"{len(packets)} are there. {_REPLACE}"
                )
            yield _film(stream, packets)
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
        return read_file(path, limits)
    except DataError as error:
        raise DataError(f"video {name!r}: {error}; or cut it into pieces.") from error
    except OSError as error:
        raise DataError(
            f"video {name!r} cannot be read: {error.strerror}. "
            "Put it there or remove it from the data."
        ) from error


def _refused(url: str, flags: int, options: object) -> object:
    raise ValueError("it names another file or address, which is not opened")


def _frames(stream: Any, packets: Sequence[Any]) -> Iterator[Any]:
    for packet in [*packets, None]:
        yield from stream.codec_context.decode(packet)


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

    made: Frames

    def __init__(self, name: str, frames: int, size: int | None, limits: Limits) -> None:
        self._name, self._frames, self._size, self._limits = name, frames, size, limits
        self._first: tuple[int, int] | None = None

    def put(self, places: npt.NDArray[np.bool_], frame: Any) -> None:
        """Convert a frame, which may stand at several places."""
        if frame.is_corrupt:
            raise DataError(f"video {self._name!r}: a frame of it is damaged. {_REPLACE}")
        if self._first is None:
            self._make_room(frame)
        elif (frame.width, frame.height) != self._first:
            before, now = (f"{w} x {h}" for w, h in (self._first, (frame.width, frame.height)))
            raise DataError(
                f"video {self._name!r}: its frames change their size from {before} to {now} "
                "pixels. Encode it again with one size, or remove it from the data."
            )
        width, height = self._scaled
        made = frame.to_ndarray(
            format="rgb24", width=width, height=height, interpolation=_exact(), threads=1
        )
        self.made[places] = (made.swapaxes(0, 1) if self._turned else made)[self._upright]

    def _make_room(self, frame: Any) -> None:
        width, height = self._first = (frame.width, frame.height)
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
        # Where a pixel at (x, y) is shown: (x, y) times this, the axes swapped and mirrored.
        matrix = frame.side_data.get("DISPLAYMATRIX")
        x, y = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2] if matrix else np.eye(2)
        self._turned = bool(abs(x[1]) > abs(x[0]))
        across, down = (y[0], x[1]) if self._turned else (x[0], y[1])
        self._upright = (
            slice(None, None, -1 if down < 0 else 1),
            slice(None, None, -1 if across < 0 else 1),
        )
        shape = (width, height) if self._turned else (height, width)
        self.made = np.empty((self._frames, *shape, 3), np.uint8)
