"""Datasets of recordings: spoken digits, and pairs of a recording and its target.

Cost: one walk over the folders, 5 us a file; a sample reads its file, 0.2 ms and more. The table
also reads the recordings' headers, 100 us a file, when it is first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import ClassVar

import numpy as np
import torch

from penstock.addons.audio.reading import EXTENSIONS, check_soundfile, read_audio, read_header
from penstock.datasets.arrays import MappedArray
from penstock.datasets.files import DataFile, Files, FolderFile, Root, open_root, with_endings
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Split,
    Table,
    check_split,
    split_rows,
    table,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Index, Limits, Seed
from penstock.order.keys import IntArray
from penstock.terminal import watched

_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]{1,9})\.\w+")


class AudioFolder(FolderDataset):
    """A dataset of recordings, one a file."""

    def audio(self, index: int) -> tuple[torch.Tensor, int]:
        """The recording of a sample, float32 [C, T], and its rate in Hz."""
        return self._read(index, lambda path, shown: read_audio(path, self.limits, shown))

    @cached_property
    def _headers(self) -> IntArray:
        """Frames, Hz and channels of each file: int64[n, 3]."""
        headers = np.zeros((len(self), 3), np.int64)
        for row, name in enumerate(watched(self._names(), len(self), "reading headers of audio")):
            # One bad file should not hide the table of a million others: it has zeros, and its
            # sample gives the error.
            with suppress(DataError):
                headers[row] = self.folder.read(
                    name, lambda path, _: read_header(path, self.limits)
                )
        return headers


class SpokenDigits(AudioFolder):
    """The recordings of the Free Spoken Digit Dataset, or others named like them.

        root/recordings/<digit>_<speaker>_<take>.wav        (or .flac, .ogg, .mp3 ...)

    The data: https://github.com/Jakobovski/free-spoken-digit-dataset, 3000 recordings of six
    speakers at 8 kHz, CC BY-SA 4.0.

    One sample: `audio` (float32 [C, T]), `rate` (Hz), `label` (the digit), `speaker` (int).

    Samples are in the order of their file names. The default split is the data's own: takes 0 to 4
    of every digit and speaker validate.

    Args:
        root: folder of the recordings' folder; a path or an address.
        split: "train" or "val".
        recordings: the folder of the files, relative to `root`.
        val_takes: takes with a number below this one validate.
        val_speakers: names of speakers who validate, instead of `val_takes`; harder for a model.
        files: access to addresses.
        limits: what a file and the folder may claim.

    Attributes:
        classes: names of the digits.
        speakers: names of the speakers of both splits, sorted; `speaker` is a position in it.

    Raises:
        DataError: the folder is missing or has no recordings, a name has another form, or the split
            is empty. Errors inside of a file are raised when it is read.
        ConfigError: there is no such split or speaker; `soundfile` is not installed.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "label", "speaker", "take", "length", "rate")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        recordings: str = "recordings",
        val_takes: Index = 5,
        val_speakers: Sequence[str] = (),
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        check_soundfile()
        check_split(split)
        self.limits, self.classes = limits, [str(digit) for digit in range(10)]
        self.folder = open_root(root, f"{recordings!r}, the recordings", files).below(recordings)
        names = _files(self.folder, EXTENSIONS, "dataset.recordings", warns=split == "train")
        parsed = [match for name in names if (match := _NAME.fullmatch(name))]
        if len(parsed) < len(names):
            other = sorted({*names} - {match[0] for match in parsed})[0]
            raise DataError(
                f"audio {self.folder.path(other)!r}: the name has no digit, speaker and take. "
                "Recordings are named <digit>_<speaker>_<take>.wav, as 7_jackson_32.wav; rename or "
                "remove it."
            )
        digits, takes = np.array([[int(own[1]), int(own[3])] for own in parsed]).T
        speakers = np.array([own[2] for own in parsed])
        # Of both splits, so that a number means the same person in each.
        self.speakers = sorted({*speakers.tolist()})
        if unknown := sorted({*val_speakers}.difference(self.speakers)):
            reason = f"no speaker {unknown[0]!r} among {self.speakers}"
            raise ConfigError(Problem("dataset.val_speakers", reason))
        # By speakers it is harder: no voice is in both splits.
        validates = np.isin(speakers, val_speakers) if val_speakers else takes < val_takes
        rows = np.flatnonzero(validates == (split == "val"))
        if not len(rows):
            key = f"val_speakers={list(val_speakers)}" if val_speakers else f"{val_takes=}"
            raise DataError(f"dataset.{key} leaves the split {split!r} of {root!r} empty.")
        self.names = np.array([os.fsencode(name) for name in names])[rows]
        self.labels, self.takes = digits[rows], takes[rows]
        self.speaker_codes = np.searchsorted(self.speakers, speakers)[rows]

    def __getitem__(self, index: int) -> Sample:
        audio, rate = self.audio(index)
        label, speaker = int(self.labels[index]), int(self.speaker_codes[index])
        return {"audio": audio, "rate": rate, "label": label, "speaker": speaker}

    @property
    def metadata(self) -> Table:
        """A row per sample: path, label, speaker, take, length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        values = self._paths(), self.labels, self.speaker_codes, self.takes, *self._headers.T[:2]
        return table(dict(zip(self.columns, values, strict=True)))

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The speakers, and this split's names and file sizes."""
        return ["spoken_digits", len(self.speakers), *self.speakers, *self._file_parts(sized)]


class AudioPairs(AudioFolder):
    """Recordings and their targets: an audio file and a `.npy` file of the same name.

        root/<name>.wav     the input: a mixture, a noisy recording       (or .flac, .ogg, .mp3 ...)
        root/<name>.npy     its target, float [C, T]: the sources in it, the clean recording

    One sample: `audio` (float32 [C, T]), `target` (float32 [C', T]) and `rate` (Hz).

    Samples are in the order of their names; the names decide who validates.

    Args:
        root: folder of both folders; a path or an address.
        split: "train", "val" or "test".
        inputs: folder of the audio files and of folders of them, relative to `root`.
        targets: the same for the `.npy` files; [T] stands for [1, T].
        val_fraction, split_seed: share of the pairs that validate, and the seed of the split.
        files: access to addresses.
        limits: what a file and the folders may claim.
        test_fraction: share of the pairs that are kept for a test.

    Raises:
        DataError: a folder is missing, there are no pairs, or a file has no partner. Errors inside
            of a file are raised when it is read: another shape, another length than the partner's.
        ConfigError: the split or its share is out of range; `soundfile` is not installed.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "target", "length", "rate")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        inputs: str = ".",
        targets: str = ".",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_soundfile()
        self.limits = limits
        folder = open_root(root, "the audio files and their .npy targets", files)
        self.folder, self.targets = folder.below(inputs), folder.below(targets)
        found = _files(self.folder, EXTENSIONS, "dataset.inputs", split == "train", (".npy",))
        audio = {name.rpartition(".")[0]: name for name in found}
        if len(audio) < len(found):
            twice = sorted({*found}.difference(audio.values()))[0]
            raise DataError(
                f"{str(self.folder)!r} has another recording beside {twice!r} of its name."
            )
        arrays = _files(self.targets, (".npy",), "dataset.targets", warns=False)
        partners = {name.rpartition(".")[0]: name for name in arrays}
        if alone := sorted(audio.keys() ^ partners.keys()):
            name = audio.get(alone[0]) or partners[alone[0]]
            more = f", nor have {len(alone) - 1} others" if len(alone) > 1 else ""
            raise DataError(
                f"{name!r} has no partner{more}: each recording in {str(self.folder)!r} needs a "
                f".npy file of its name in {str(self.targets)!r}. Add it or remove the file."
            )
        # Without endings: the same recordings in another format are divided alike.
        stems = sorted(audio)
        every = np.array([os.fsencode(stem) for stem in stems])
        rows = split_rows(every, split, val_fraction, split_seed, None, test_fraction)
        self.names = np.array([os.fsencode(audio[stems[row]]) for row in rows])
        self.target_names = [partners[stems[row]] for row in rows]

    def __getitem__(self, index: int) -> Sample:
        audio, rate = self.audio(index)
        file = FolderFile(self.targets, self.target_names[index])
        stored = MappedArray(file, "dataset.targets", self.limits).array
        is_array = stored.dtype.kind == "f" and stored.ndim in (1, 2)
        if not is_array or stored.shape[-1] != audio.shape[1]:
            raise DataError(
                f"target {str(file)!r} is {stored.dtype} {list(stored.shape)}; it "
                f"has to be floats, [C, T] or [T], of the {audio.shape[1]} frames of its input "
                f"{self.path(index)!r}."
            )
        # A copy, as the file is mapped and may only be read.
        target = torch.from_numpy(np.array(stored, dtype=np.float32, ndmin=2))
        return {"audio": audio, "target": target, "rate": rate}

    def _want(self, indices: IntArray) -> float:
        targets = [self.target_names[index] for index in indices.tolist()]
        return super()._want(indices) + self.targets.want(targets)

    @property
    def metadata(self) -> Table:
        """A row per sample: path, target (its path), length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        targets = [self.targets.path(name) for name in self.target_names]
        return table(
            dict(zip(self.columns, (self._paths(), targets, *self._headers.T[:2]), strict=True))
        )

    @property
    def facts(self) -> dict[str, int]:
        """Channels of the first pair: num_features of its input, num_outputs of its target."""
        pair = self[0]
        return {"num_features": len(pair["audio"]), "num_outputs": len(pair["target"])}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """This split's names and file sizes."""
        names, targets = self._names(), self.target_names
        sizes = [self.folder.sizes(names), self.targets.sizes(targets)] if sized else []
        return ["audio_pairs", *names, *targets, *sizes]

    def data_files(self) -> Iterator[DataFile]:
        return chain(super().data_files(), map(self.targets.data_file, self.target_names))


def _files(
    folder: Root, endings: tuple[str, ...], key: str, warns: bool, others: tuple[str, ...] = ()
) -> list[str]:
    """Names of the files with one of `endings`; those with one of `others` may be there, too."""
    if not folder.exists():
        raise DataError(f"{str(folder)!r} is missing. Set {key} to the folder's name.")
    # Targets that stand beside their recordings are not counted as left out.
    files = [name for name in folder.files() if not name.lower().endswith(others)]
    names = with_endings(files, endings, str(folder) if warns else None)
    if not names:
        raise DataError(f"{str(folder)!r} has no recordings ({key}: {', '.join(endings)}).")
    return names
