"""Clips of video files, by PyAV, in folders (a class a folder) or named by a table.

    root/<class>/.../video.mp4            divided by `val_fraction`, each class alike
    root/train/<class>/..., root/val/...  divided already, when both folders exist; and root/test

Frame `n` is the `n`th that a player shows from the beginning. Frames are numbered by the times of
their packets, so only those from the key frame before a clip on are decoded: 100 us a frame at
64 px, 2 ms at 720 px, and 10 us a packet of the whole file. A file whose times say nothing (AVI
with B-frames, joined files) or whose first frames cannot be decoded is decoded from its beginning,
once to count and once to read.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import numpy.typing as npt
import torch
from av.video.reformatter import Interpolation
from torchvision import tv_tensors

from penstock.addons.image_tables.image_table import ImageTable
from penstock.datasets.files import Files, Root, open_root, with_endings
from penstock.datasets.image_folder import Extensions, ImageFolder
from penstock.datasets.reading.base import FolderDataset, Part, Sample, Split
from penstock.errors import DataError
from penstock.files.data import read_file
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.order.keys import IntArray, hash64, key_at_hand, uniform_at

EXTENSIONS = (
    ".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg", ".vob", ".ts", ".mts",
    ".m2ts", ".wmv", ".asf", ".flv", ".ogv", ".3gp", ".mxf", ".dv",
)  # fmt: skip
Frames = npt.NDArray[np.uint8]
Begin = Callable[[int], int]  # how many frames can begin a clip -> the one that does

# Not playlists, which name other files and addresses.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegts,asf,flv,ogg,mxf,dv"
_ONLY = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
# The same bytes on all machines, whatever their CPUs offer.
_EXACT = int(Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT)


class Clips(NamedTuple):
    """How a clip is cut out of a file.

    Attributes:
        frames: of a clip.
        stride: every n-th frame of the file is one of the clip.
        size: pixels of the shorter side, to which larger frames are reduced while they are decoded;
            None: as they are.
        drawn: whether its beginning follows from the sample's key; else the clip is the middle.
    """

    frames: int
    stride: int
    size: int | None
    drawn: bool

    def parts(self) -> list[Part]:
        """For a fingerprint."""
        return [self.frames, self.stride, self.size or "whole", "drawn" if self.drawn else "middle"]

    def of(self, path: str, shown: str, limits: Limits) -> tv_tensors.Video:
        """The clip of a file, uint8 [T, 3, H, W]; errors as for `read_clip`."""
        # By the key of the sample, so that a file read twice gives the same clip.
        share = uniform_at(hash64(key_at_hand(), "clip"), 0) if self.drawn else None

        def begin(choices: int) -> int:
            return (choices - 1) // 2 if share is None else int(choices * share)

        clip = read_clip(path, shown, self.frames, self.stride, begin, self.size, limits)
        return tv_tensors.Video(torch.from_numpy(clip).permute(0, 3, 1, 2))


class ClipDataset(FolderDataset):
    """One sample: `video`, the clip of a file, uint8 [T, 3, H, W], cut out as `clips` says."""

    clips: Clips

    def __getitem__(self, index: int) -> Sample:
        read = self.clips.of
        return {"video": self._read(index, lambda path, shown: read(path, shown, self.limits))}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, and the files' names and sizes."""
        return ["new_clips", *self.clips.parts(), *self._file_parts(sized)]

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether reading a sample takes random numbers."""
        return self.clips.drawn

    def serve(self, split: str) -> None:
        """Give the samples of a split that another dataset was asked for: only training draws."""
        self.clips = self.clips._replace(drawn=self.clips.drawn and split == "train")

    @property
    def learned(self) -> dict[str, Any]:
        """How new videos are cut: their middle clips."""
        return self.clips._replace(drawn=False)._asdict()

    @classmethod
    def unlabelled(
        cls,
        root: str | Sequence[str],
        learned: Mapping[str, Any],
        files: Files | None,
        limits: Limits,
    ) -> FolderDataset:
        """The clips of the videos of a folder, of a file, or of a list of files.

        Raises:
            DataError: there is none.
        """
        made = ClipDataset()
        made.clips, made.limits, made.folder = Clips(**learned), limits, Root("")
        # Files of a list lie anywhere: their names are paths from the system's root.
        paths = [root] if isinstance(root, str) else root
        names = [str(Path(path).absolute())[1:] for path in paths]
        if isinstance(root, str) and not Path(root).is_file():
            made.folder = open_root(root, "the videos")
            names = with_endings(made.folder.files(), EXTENSIONS, root)
        if not names:
            allowed = ", ".join(EXTENSIONS)
            raise DataError(f"dataset.root: {root!r} has no videos: files that end in {allowed}")
        made.names = np.array([os.fsencode(name) for name in names])
        return made


class VideoClips(ClipDataset, ImageFolder):
    """One sample: `video` (uint8 [frames, 3, H, W]) and `label` (int).

    In training, where a clip begins is drawn by the sample's key; elsewhere it is the middle of its
    file. A file with fewer frames ends with its last one, repeated. Classes are sorted by name and
    numbered from 0; samples are in the order of class and path.

    Args:
        root: folder of the classes, or of "train" and "val"; a path or an address.
        split: "train", "val" or "test".
        frames, stride, size: see `Clips`.
        extensions: of videos, in small letters; other files are skipped with one warning.
        val_fraction: share of each class that validates; without effect when `root` is divided
            already.
        split_seed: another seed, another split.
        files: access to addresses.
        limits: `record_bytes` of a file, `pixels` of a frame and of a whole clip.
        test_fraction: share of each class to keep for a test.

    Raises:
        DataError: as `ImageFolder`, and where a video cannot be read.
        ConfigError: an argument is invalid.
    """

    holds = "videos"

    def __init__(
        self,
        root: str,
        split: Split = "train",
        frames: Count = 16,
        stride: Count = 2,
        size: Count | None = None,
        extensions: Extensions = EXTENSIONS,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self.clips = Clips(frames, stride, size, split == "train")
        super().__init__(
            root,
            split,
            extensions=extensions,
            val_fraction=val_fraction,
            split_seed=split_seed,
            files=files,
            limits=limits,
            test_fraction=test_fraction,
        )

    def __getitem__(self, index: int) -> Sample:
        return super().__getitem__(index) | {"label": int(self.labels[index])}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, the classes, and this split's names, file sizes and labels."""
        parts = ["video_clips", *self.clips.parts(), len(self.classes), *self.classes]
        return [*parts, *self._file_parts(sized), self.labels]


class ClipTable(ClipDataset, ImageTable):
    """One sample: `video`, as in `VideoClips`, and what `ImageTable` makes of columns.

    Args:
        videos: the folder that paths start from, relative to `root`.
        frames, stride, size: see `Clips`.
        root, table, split, path, label, labels, separator, classes, numbers, caption, group,
            split_column, repeated, val_fraction, split_seed, delimiter, encoding, files, limits,
            test_fraction: as in `ImageTable`.

    Raises:
        DataError, ConfigError: as `ImageTable` and `VideoClips`.
    """

    def __init__(
        self,
        root: str,
        table: str,
        split: Split = "train",
        frames: Count = 16,
        stride: Count = 2,
        size: Count | None = None,
        path: str = "path",
        videos: str = ".",
        label: str | None = None,
        labels: Sequence[str] | str | None = None,
        separator: str = "|",
        classes: Sequence[str] | None = None,
        numbers: Sequence[str] | None = None,
        caption: str | None = None,
        group: str | None = None,
        split_column: str | None = None,
        repeated: bool = False,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self.clips = Clips(frames, stride, size, split == "train")
        super().__init__(
            root,
            table,
            split,
            path=path,
            images=videos,
            label=label,
            labels=labels,
            separator=separator,
            classes=classes,
            numbers=numbers,
            caption=caption,
            group=group,
            split_column=split_column,
            repeated=repeated,
            val_fraction=val_fraction,
            split_seed=split_seed,
            delimiter=delimiter,
            encoding=encoding,
            files=files,
            limits=limits,
            test_fraction=test_fraction,
        )

    def __getitem__(self, index: int) -> Sample:
        return super().__getitem__(index) | self.facts_of(index)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, and the parts of `ImageTable`."""
        return ["clip_table", *self.clips.parts(), *ImageTable.fingerprint_parts(self, sized)]


def read_clip(
    path: str, name: str, frames: int, stride: int, begin: Begin, size: int | None, limits: Limits
) -> Frames:
    """Every `stride`-th frame, `frames` of them: uint8 [T, H, W, 3].

    Where the file is shorter, its last frame stands for those that are missing.

    Args:
        path: of this machine.
        name: its path or address, for messages.
        begin: chooses the first frame.
        size: pixels of the shorter side, to which larger frames are reduced; None: as they are.
        limits: `record_bytes` of the file.

    Raises:
        DataError: the file is missing, empty, no video, cut off or damaged, or claims more than it
            may.
    """
    with _opened(path, name, limits) as (stream, packets):
        numbers, length = _numbered(stream, packets)
        first = begin(max(length - (frames - 1) * stride, 1))
        wanted = np.minimum(first + np.arange(frames) * stride, length - 1).tolist()
        starts, stop = [0], len(packets)
        if numbers is not None:
            keys = [place for place, packet in enumerate(packets) if packet.is_keyframe]
            starts = [key for key in keys if numbers[key] <= wanted[0]][::-1] or [0]
            stop = int(np.flatnonzero(numbers <= wanted[-1])[-1]) + 1
        for start in starts:  # some of H.264 need the key frames before, too
            made = dict[int, Frames]()
            for count, frame in enumerate(_frames(stream, packets[start:stop])):
                number = count if numbers is None else int(numbers[frame.pts])
                if number in wanted:
                    made[number] = _pixels(frame, size)
                if len(made) == len({*wanted}):
                    break
            # Joined files may change their size in the middle.
            if {*made} == {*wanted} and len({own.shape for own in made.values()}) == 1:
                return np.stack([made[number] for number in wanted])
            # Else the decoder goes on from the frames of this try.
            stream.codec_context.flush_buffers()
        raise ValueError(
            f"some of its frames {wanted[0]} to {wanted[-1]} change their size or need others"
        )


def _numbered(stream: Any, packets: list[Any]) -> tuple[IntArray | None, int]:
    """The number of the frame that each packet is shown as, and how many frames are shown.

    Packets that an edit list hides have the number of the next frame; None: frames have to be
    counted from the beginning. Packets and frames get their place in `packets` for a time.
    """
    times = [packet.pts for packet in packets]
    known = [packet.pts for packet in packets if not packet.is_discard]
    # AVI has no times, and libav makes up some; joined files have the same ones twice; and frames
    # that are shown before the first key frame need others that were cut off.
    made_up = stream.container.format.name == "avi" and stream.codec_context.has_b_frames
    if made_up or None in known or len({*known}) < len(known) or min(known) < (times[0] or 0):
        length = sum(1 for _ in _frames(stream, packets))
        stream.codec_context.flush_buffers()
        return None, length
    for place, packet in enumerate(packets):
        # Decoders hand the time of a packet on to its frame: so it carries the packet's number.
        packet.pts = place
    at = np.array([min(known) - 1 if time is None else time for time in times], np.int64)
    return np.searchsorted(np.sort(known), at), len(known)


@contextmanager
def _opened(path: str, name: str, limits: Limits) -> Iterator[tuple[Any, list[Any]]]:
    """The first video stream of a file, and its packets from the first key frame on."""
    try:
        # In memory, so that libav can open no other file or address that this one names.
        content = io.BytesIO(read_file(path, limits))
        with av.open(content, "r", container_options=_ONLY, buffer_size=1 << 18) as container:
            stream: Any = container.streams.best("video")
            if stream is None or stream.codec_context is None:
                raise ValueError("it has no stream of pictures that is read")
            stream.codec_context.thread_count = 1  # workers share the cores
            packets = [packet for packet in container.demux(stream) if packet.size]
            # Of MP4: what its edit list leaves. Elsewhere it grows as the file is read.
            listed = len(stream.index_entries)
            if not packets or (listed > len(packets) and "mp4" in container.format.name):
                raise ValueError(f"its header lists {listed} frames, and {len(packets)} are there")
            skipped = itertools.dropwhile(lambda packet: not packet.is_keyframe, packets)
            yield stream, list(skipped) or packets
    except (av.error.FFmpegError, OSError, ValueError, DataError) as error:
        detail = getattr(error, "strerror", None) or error
        raise DataError(
            f"video {name!r} is missing, truncated, damaged or of a kind that is not read "
            f"({detail}). Encode it again (ffmpeg -i IN OUT.mp4), or remove it from the data."
        ) from error


def _frames(stream: Any, packets: Sequence[Any]) -> Iterator[Any]:
    for packet in [*packets, None]:
        yield from stream.codec_context.decode(packet)


def _pixels(frame: Any, size: int | None) -> Frames:
    """A frame as it is shown, reduced: uint8 [H, W, 3]."""
    if frame.is_corrupt:
        raise ValueError("a frame is damaged")
    shorter = min(frame.width, frame.height)
    factor = min(1.0, (size or shorter) / shorter)
    wide, high = (max(1, round(side * factor)) for side in (frame.width, frame.height))
    made = frame.to_ndarray(
        format="rgb24", width=wide, height=high, interpolation=_EXACT, threads=1
    )
    if (matrix := frame.side_data.get("DISPLAYMATRIX")) is None:
        return made
    # Phones store a turned or mirrored picture: where a pixel at (x, y) is shown is (x, y) times
    # this, the axes swapped and mirrored.
    x, y = np.frombuffer(matrix, np.int32).reshape(3, 3)[:2, :2]
    if abs(x[1]) > abs(x[0]):
        made, x, y = made.swapaxes(0, 1), y, x
    return made[:: -1 if y[1] < 0 else 1, :: -1 if x[0] < 0 else 1]
