"""Clips of video files in folders: a class a folder.

    root/<class>/.../video.mp4            divided by `val_fraction`, each class alike
    root/train/<class>/..., root/val/...  divided already, when both folders exist; and root/test

Cost: one walk over the folders, no video opened; and one file read a sample, of which the frames
from a key frame to the end of the clip are decoded (see `decoding.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from penstock.addons.image_tables.image_table import ImageTable
from penstock.addons.video.decoding import check_av, read_clip, video_damage
from penstock.datasets.files import Files, Root, open_root, with_endings
from penstock.datasets.image_folder import Extensions, ImageFolder
from penstock.datasets.reading.base import FolderDataset, Part, Sample, Split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.order.keys import hash64, key_at_hand, uniform_at

EXTENSIONS = (
    ".mp4",
    ".m4v",
    ".mov",
    ".webm",
    ".mkv",
    ".avi",
    ".mpg",
    ".mpeg",
    ".vob",
    ".ts",
    ".mts",
    ".m2ts",
    ".wmv",
    ".asf",
    ".flv",
    ".ogv",
    ".3gp",
    ".mxf",
    ".dv",
)


class Clips:
    """How a clip is cut out of a file.

    Args:
        frames: of a clip.
        stride: every n-th frame of the file is one of the clip.
        size: pixels of the shorter side, to which larger frames are reduced while they are decoded;
            None: as they are.
        most_decoded: frames that may be decoded for a clip, from the key frame before it on.
        drawn: whether its beginning follows from the sample's key; else the clip is the middle.

    Raises:
        ConfigError: `most_decoded` is too small, or PyAV is not installed.
    """

    def __init__(
        self, frames: Count, stride: Count, size: Count | None, most_decoded: Count, drawn: bool
    ) -> None:
        check_av()
        if most_decoded < (frames - 1) * stride + 1:
            reason = f"{most_decoded} are fewer than a clip of {frames} at a stride of {stride} has"
            raise ConfigError(Problem("dataset.most_decoded", reason))
        self.frames, self.stride, self.size = frames, stride, size
        self.most_decoded, self.drawn = most_decoded, drawn

    def middle(self) -> Clips:
        """The same without a draw."""
        return Clips(self.frames, self.stride, self.size, self.most_decoded, drawn=False)

    def parts(self) -> list[Part]:
        """For a fingerprint."""
        return [self.frames, self.stride, self.size or "whole", "drawn" if self.drawn else "middle"]

    def of(self, path: str, shown: str, limits: Limits) -> tv_tensors.Video:
        """The clip of a file, uint8 [T, 3, H, W]; errors as for `read_clip`."""
        key = hash64(key_at_hand(), "clip") if self.drawn else None

        def begin(choices: int) -> int:
            return (choices - 1) // 2 if key is None else int(choices * uniform_at(key, 0))

        clip = read_clip(
            path, shown, self.frames, self.stride, begin, self.size, self.most_decoded, limits
        )
        return tv_tensors.Video(torch.from_numpy(clip).permute(0, 3, 1, 2))


class ClipDataset(FolderDataset):
    """Videos whose clips are cut out as `clips` says."""

    clips: Clips

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Whether reading a sample takes random numbers."""
        return self.clips.drawn

    def check(self, index: int) -> str | None:
        return self._read(index, lambda path, _: video_damage(path, self.limits))

    def serve(self, split: str) -> None:
        """Give the samples of a split that another dataset was asked for: only training draws."""
        self.clips = self.clips if split == "train" else self.clips.middle()

    @property
    def learned(self) -> dict[str, Any]:
        """How new videos are cut: their middle clips."""
        return vars(self.clips.middle())

    @classmethod
    def unlabelled(
        cls,
        root: str | Sequence[str],
        learned: Mapping[str, Any],
        files: Files | None,
        limits: Limits,
    ) -> FolderDataset:
        """The clips of the videos of a folder, of a file, or of a list of files."""
        return NewClips(root, Clips(**learned), limits)

    def clip(self, index: int) -> tv_tensors.Video:
        """The clip of a sample, uint8 [T, 3, H, W]."""
        return self._read(index, lambda path, shown: self.clips.of(path, shown, self.limits))


class VideoClips(ClipDataset, ImageFolder):
    """One sample: `video` (uint8 [frames, 3, H, W]) and `label` (int).

    In training, where a clip begins is drawn by the sample's key; elsewhere it is the middle of its
    file. A file with fewer frames ends with its last one, repeated. Classes are sorted by name and
    numbered from 0; samples are in the order of class and path.

    Args:
        root: folder of the classes, or of "train" and "val"; a path or an address.
        split: "train", "val" or "test".
        frames, stride, size, most_decoded: see `Clips`.
        extensions: of videos, in small letters; other files are skipped with one warning.
        val_fraction: share of each class that validates; without effect when `root` is divided
            already.
        split_seed: another seed, another split.
        files: access to addresses.
        limits: `record_bytes` of a file, `pixels` of a frame and of a whole clip.
        test_fraction: share of each class to keep for a test.

    Raises:
        DataError: as `ImageFolder`, and where a video cannot be read.
        ConfigError: an argument is invalid, or PyAV is not installed.
    """

    holds = "videos"

    def __init__(
        self,
        root: str,
        split: Split = "train",
        frames: Count = 16,
        stride: Count = 2,
        size: Count | None = None,
        most_decoded: Count = 3000,
        extensions: Extensions = EXTENSIONS,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self.clips = Clips(frames, stride, size, most_decoded, split == "train")
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
        return {"video": self.clip(index), "label": int(self.labels[index])}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, the classes, and this split's names, file sizes and labels."""
        parts = ["video_clips", *self.clips.parts(), len(self.classes), *self.classes]
        return [*parts, *self._file_parts(sized), self.labels]


class NewClips(ClipDataset):
    """One sample: `video`, as in `VideoClips`; files in the order of their names.

    Raises:
        DataError: there is none.
    """

    def __init__(self, root: str | Sequence[str], clips: Clips, limits: Limits) -> None:
        self.clips, self.limits = clips, limits
        if not isinstance(root, str) or Path(root).is_file():
            self.folder = Root("")
            paths = [root] if isinstance(root, str) else root
            names = [str(Path(path).absolute())[1:] for path in paths]
        else:
            self.folder = open_root(root, "the videos")
            names = with_endings(self.folder.files(), EXTENSIONS, root)
        if not names:
            allowed = ", ".join(EXTENSIONS)
            raise DataError(f"dataset.root: {root!r} has no videos: files that end in {allowed}")
        self.names = np.array([os.fsencode(name) for name in names])

    def __getitem__(self, index: int) -> Sample:
        return {"video": self.clip(index)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, and the files' names and sizes."""
        return ["new_clips", *self.clips.parts(), *self._file_parts(sized)]


class ClipTable(ClipDataset, ImageTable):
    """One sample: `video`, as in `VideoClips`, and what `ImageTable` makes of columns.

    Args:
        videos: the folder that paths start from, relative to `root`.
        frames, stride, size, most_decoded: see `Clips`.
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
        most_decoded: Count = 3000,
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
        self.clips = Clips(frames, stride, size, most_decoded, split == "train")
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
        return {"video": self.clip(index), **self.facts_of(index)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, and the parts of `ImageTable`."""
        return ["clip_table", *self.clips.parts(), *ImageTable.fingerprint_parts(self, sized)]
