"""A step that reads a clip out of a video file, by PyAV.

Datasets of image files give the bytes of videos as they give those of images: `ImageFolder` a class
a folder, `ImageTable` by the columns of a table. Frame `n` is the `n`th that a player shows from
the beginning. Frames are numbered by the times of their packets, so only those from the key frame
before a clip on are decoded: 100 us a frame at 64 px, 2 ms at 720 px, and 10 us a packet of the
whole file. A file whose times say nothing (AVI with B-frames, joined files) or whose first frames
cannot be decoded is decoded from its beginning, once to count and once to read.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from av.video.reformatter import Interpolation
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.files.limits import Count
from penstock.loading.encoded import EncodedImage
from penstock.order.keys import hash64, key_at_hand, uniform_at

Frames = npt.NDArray[np.uint8]

# The same bytes on all machines, whatever their CPUs offer.
_EXACT = int(Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)


class DecodeClip:
    """A clip, `video` uint8 [frames, 3, H, W], instead of the bytes of a file, `image`.

    A file with fewer frames ends with its last one, repeated.

    Args:
        frames: of a clip.
        stride: every n-th frame of the file is one of the clip.
        size: pixels of the shorter side, to which larger frames are reduced while they are decoded;
            None: as they are.
        random: where a clip begins is drawn by the sample's key; else it is the middle of its file.

    Raises:
        DataError: a file is empty, no video, cut off or damaged.
    """

    decodes = True  # the build asks the dataset for undecoded files
    keyed = True  # no generator is drawn from
    thread_safe = False  # Python's lock is held while a file is taken apart
    extensions = (
        ".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg", ".vob", ".ts", ".mts",
        ".m2ts", ".wmv", ".asf", ".flv", ".ogv", ".3gp", ".mxf", ".dv",
    )  # fmt: skip

    def __init__(
        self, frames: Count = 16, stride: Count = 2, size: Count | None = None, random: bool = True
    ) -> None:
        self.frames, self.stride, self.size, self.random = frames, stride, size, random

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        file = sample.get("image")
        if not isinstance(file, EncodedImage):
            return sample  # a dataset of one's own has decoded its videos
        # By the key of the sample, so that a file read twice gives the same clip.
        share = uniform_at(hash64(key_at_hand(), "clip"), 0) if self.random else None
        clip = self.read(file.content, file.name, share)
        video = tv_tensors.Video(torch.from_numpy(clip).permute(0, 3, 1, 2))
        return {"video": video} | {name: sample[name] for name in sample if name != "image"}

    def read(self, content: bytes, name: str, share: float | None) -> Frames:
        """Every `stride`-th frame of a file, `frames` of them: uint8 [T, H, W, 3].

        Args:
            name: its path or address, for messages.
            share: of the frames that can begin a clip, those before the one that does, in [0, 1);
                None: the clip in the middle.
        """
        # From memory and without protocols, so that libav opens no other file that this one names.
        options = {"protocol_whitelist": "none"}
        try:
            with av.open(
                io.BytesIO(content), container_options=options, buffer_size=1 << 18
            ) as container:
                return self._clip(container, share)
        except (av.error.FFmpegError, ValueError) as error:
            detail = getattr(error, "strerror", None) or error
            raise DataError(
                f"video {name!r} is truncated, damaged or of a kind that is not read ({detail}). "
                "Encode it again (ffmpeg -i IN OUT.mp4), or remove it from the data."
            ) from error

    def _clip(self, container: Any, share: float | None) -> Frames:
        stream = container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise ValueError("it has no stream of pictures that is read")
        decoder = stream.codec_context
        decoder.thread_count = 1  # workers share the cores
        packets = [packet for packet in container.demux(stream) if packet.size]
        # Of MP4: what its edit list leaves. Elsewhere it grows as the file is read.
        listed = len(stream.index_entries) if "mp4" in container.format.name else 1
        if listed > len(packets):
            raise ValueError(f"its header lists {listed} frames, and {len(packets)} are there")
        packets = packets[next((n for n, one in enumerate(packets) if one.is_keyframe), 0) :]
        known = [packet.pts for packet in packets if not packet.is_discard]
        counted = (
            # It has no times, and libav makes up some.
            (container.format.name == "avi" and decoder.has_b_frames)
            or None in known
            or len({*known}) < len(known)  # files that were joined
            or min(known) < (packets[0].pts or 0)  # frames that need others, which were cut off
        )

        def decoded(start: int) -> Iterator[Any]:
            decoder.flush_buffers()  # else it goes on from the frames of the last try
            for packet in [*packets[start:], None]:
                yield from decoder.decode(packet)

        times = range(sum(1 for _ in decoded(0))) if counted else sorted(known)
        begins = max(len(times) - (self.frames - 1) * self.stride, 1)
        first = (begins - 1) // 2 if share is None else int(begins * share)
        wanted = np.minimum(first + np.arange(self.frames) * self.stride, len(times) - 1).tolist()
        keys = [] if counted else [n for n, one in enumerate(packets) if one.is_keyframe]
        before = [n for n in keys if (packets[n].pts or 0) <= times[wanted[0]]]
        for start in (*before[-1:], 0):  # H.264 that refreshes by rows needs all before, too
            made = dict[int, Frames]()
            for count, frame in enumerate(decoded(start)):
                number = count if counted else bisect_left(times, frame.pts)
                if number in wanted:
                    made[number] = self._pixels(frame)
                if number >= wanted[-1]:
                    break
            if made.keys() == {*wanted}:
                return np.stack([made[number] for number in wanted])
        raise ValueError(f"some of its frames {wanted[0]} to {wanted[-1]} need others")

    def _pixels(self, frame: Any) -> Frames:
        """A frame as it is shown, reduced: uint8 [H, W, 3]."""
        if frame.is_corrupt:
            raise ValueError("a frame is damaged")
        factor = min(1.0, (self.size or math.inf) / min(frame.width, frame.height))
        wide, high = (max(1, round(side * factor)) for side in (frame.width, frame.height))
        made = frame.to_ndarray(
            format="rgb24", width=wide, height=high, interpolation=_EXACT, threads=1
        )
        # Phones store a picture as the sensor lies.
        return np.rot90(made, frame.rotation // 90)
