"""A dataset of recordings: spoken digits.

Cost: one walk over the folders, 5 us a file; a sample reads its file, 0.2 ms and more. The table
also reads the recordings' headers, 100 us a file, when it is first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import ClassVar

import numpy as np

from penstock.addons.audio.reading import EXTENSIONS, check_soundfile, read_audio, read_header
from penstock.datasets.files import Files, open_root, with_endings
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Split,
    Table,
    check_split,
    table,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Index, Limits
from penstock.order.keys import IntArray
from penstock.terminal import watched

_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]{1,9})\.\w+")


class SpokenDigits(FolderDataset):
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
        check_split(split, "test")
        self.limits, self.classes = limits, [str(digit) for digit in range(10)]
        self.folder = open_root(root, f"{recordings!r}, the recordings", files).below(recordings)
        if not self.folder.exists():
            raise DataError(
                f"{str(self.folder)!r} is missing. Set dataset.recordings to the folder's name."
            )
        warns = str(self.folder) if split == "train" else None  # one of the two splits warns
        names = with_endings(self.folder.files(), EXTENSIONS, warns)
        if not names:
            raise DataError(
                f"{str(self.folder)!r} has no recordings (dataset.recordings: "
                f"{', '.join(EXTENSIONS)})."
            )
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
        audio, rate = self._read(index, lambda path, shown: read_audio(path, self.limits, shown))
        label, speaker = int(self.labels[index]), int(self.speaker_codes[index])
        return {"audio": audio, "rate": rate, "label": label, "speaker": speaker}

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
