"""Frames of a video file by PyAV: frame `n` is the `n`th that a player shows from the beginning.

Frames are numbered by the times of their packets, so only those from the key frame before a clip on
are decoded: 100 us a frame at 64 px, 2 ms at 720 px, and 10 us a packet of the whole file. A file
whose times say nothing (AVI with B-frames, joined files) or whose first frames cannot be decoded is
decoded from its beginning, once to count and once to read.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

Frames = npt.NDArray[np.uint8]
Begin = Callable[[int], int]  # how many frames can begin a clip -> the one that does

# Not playlists, which name other files and addresses.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,asf,flv,ogg,mxf,dv"


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
        limits: `record_bytes` of the file and `pixels` of a frame.

    Raises:
        DataError: the file is missing, empty, no video, cut off or damaged, or claims more than it
            may.
    """
    with _opened(path, name, limits) as (stream, packets):
        numbers, length = _numbered(stream, packets)
        first = begin(max(length - (frames - 1) * stride, 1))
        wanted = np.minimum(first + np.arange(frames) * stride, length - 1)
        starts, stop, needed = [0], len(packets), {*wanted.tolist()}
        if numbers is not None:
            keys = [place for place, packet in enumerate(packets) if packet.is_keyframe]
            starts = [key for key in keys if numbers[key] <= wanted[0]][::-1] or [0]
            stop = int(np.flatnonzero(numbers <= wanted[-1])[-1]) + 1
        for start in starts:  # some of H.264 need the key frames before, too
            if stop - start > most_decoded:
                raise DataError(
                    f"video {name!r}: {stop - start} frames lie between a key frame and the end of "
                    f"a clip, more than dataset.most_decoded={most_decoded}. Encode it with more "
                    "key frames (ffmpeg -i IN -g 30 OUT.mp4), or raise that."
                )
            made = dict[int, Frames]()
            for count, frame in enumerate(_frames(stream, packets[start:stop])):
                number = count if numbers is None else int(numbers[frame.pts])
                if number in needed:
                    made[number] = _pixels(frame, name, size, limits)
                if len(made) == len(needed):
                    break
            if {*made} == needed and len({own.shape for own in made.values()}) == 1:
                return np.stack([made[number] for number in wanted.tolist()])
            stream.codec_context.flush_buffers()
        raise DataError(
            f"video {name!r}: some of its frames {wanted[0]} to {wanted[-1]} (of {length}) "
            "cannot be decoded, or change their size. Encode it again (ffmpeg -i IN OUT.mp4), "
            "or remove it from the data."
        )


def video_damage(path: str, limits: Limits) -> str | None:
    """The fault of a video whose clips can be read; None if it has none. Decodes all of it."""
    try:
        with _opened(path, path, limits) as (stream, packets):
            _, length = _numbered(stream, packets)
            stream.codec_context.options |= {"err_detect": "explode"}
            damaged = [frame.is_corrupt for frame in _frames(stream, packets)]
            if any(damaged):
                return f"its frame {damaged.index(True)} is damaged"
            if len(damaged) < length:
                return f"{len(damaged)} of its {length} frames can be decoded"
            return None
    except DataError as error:
        return str(error)


def _numbered(stream: Any, packets: list[Any]) -> tuple[IntArray | None, int]:
    """The number of the frame that each packet is shown as, and how many frames are shown.

    Packets that an edit list hides have the number of the next frame; None: frames have to be
    counted from the beginning. Packets and frames get their place in `packets` for a time.
    """
    times, hidden = [packet.pts for packet in packets], [packet.is_discard for packet in packets]
    known = [time for time, is_hidden in zip(times, hidden, strict=True) if not is_hidden]
    # AVI has no times, and libav makes up some; joined files have the same ones twice; and frames
    # that are shown before the first key frame need others that were cut off.
    made_up = stream.container.format.name == "avi" and stream.codec_context.has_b_frames
    if made_up or None in known or len({*known}) < len(known) or min(known) < (times[0] or 0):
        length = sum(1 for _ in _frames(stream, packets))
        stream.codec_context.flush_buffers()
        return None, length
    for place, packet in enumerate(packets):
        packet.pts = place
    at = np.array([min(known) - 1 if time is None else time for time in times], np.int64)
    return np.searchsorted(np.sort(known), at), len(known)


@contextmanager
def _opened(path: str, name: str, limits: Limits) -> Iterator[tuple[Any, list[Any]]]:
    """The first video stream of a file, and its packets from the first key frame on."""
    av = check_av()
    try:
        content = io.BytesIO(read_file(path, limits))
    except (OSError, DataError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"video {name!r} cannot be read: {reason}.") from error
    only = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
    try:
        with av.open(content, container_options=only, buffer_size=1 << 18) as container:
            if not container.streams.video or container.streams.video[0].codec_context is None:
                kinds = sorted({stream.type for stream in container.streams})
                raise ValueError(f"no stream of pictures that is read, but {' and '.join(kinds)}")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1  # workers share the cores
            packets = [packet for packet in container.demux(stream) if packet.size]
            # Of MP4: what its edit list leaves. Elsewhere it grows as the file is read.
            listed = len(stream.index_entries)
            if not packets or (listed > len(packets) and "mp4" in container.format.name):
                raise ValueError(f"its header lists {listed} frames, and {len(packets)} are there")
            skipped = itertools.dropwhile(lambda packet: not packet.is_keyframe, packets)
            yield stream, list(skipped) or packets
    except (av.error.FFmpegError, ValueError) as error:
        detail = getattr(error, "strerror", None) or error
        raise DataError(
            f"video {name!r} is truncated, damaged or of a kind that is not read ({detail}). "
            "Replace it or remove it from the data."
        ) from error


def _frames(stream: Any, packets: Sequence[Any]) -> Iterator[Any]:
    for packet in [*packets, None]:
        yield from stream.codec_context.decode(packet)


def _pixels(frame: Any, name: str, size: int | None, limits: Limits) -> Frames:
    """A frame as it is shown, reduced: uint8 [H, W, 3]."""
    from av.video.reformatter import Interpolation

    if frame.is_corrupt or frame.width * frame.height > limits.pixels:
        claim = limits.refusal("pixels", f"{frame.width} x {frame.height} pixels")
        wrong = "is damaged" if frame.is_corrupt else f"has {claim}"
        raise DataError(f"video {name!r}: a frame {wrong}. Replace it or remove it from the data.")
    shorter = min(frame.width, frame.height)
    factor = min(1.0, (size or shorter) / shorter)
    # Alike on all machines, whatever their CPUs offer.
    exact = int(Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)
    made = frame.to_ndarray(
        format="rgb24",
        width=max(1, round(frame.width * factor)),
        height=max(1, round(frame.height * factor)),
        interpolation=exact,
        threads=1,
    )
    matrix = frame.side_data.get("DISPLAYMATRIX")
    # Where a pixel at (x, y) is shown: (x, y) times this, the axes swapped and mirrored.
    x, y = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2] if matrix else np.eye(2)
    turned = bool(abs(x[1]) > abs(x[0]))
    across, down = (y[0], x[1]) if turned else (x[0], y[1])
    upright = made.swapaxes(0, 1) if turned else made
    return upright[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1]
