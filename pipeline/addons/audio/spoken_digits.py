"""Spoken digits: the recordings of the Free Spoken Digit Dataset, or others named like them.

    root/recordings/<digit>_<speaker>_<take>.wav        (or .flac, .ogg, .mp3 ...)

The data: https://github.com/Jakobovski/free-spoken-digit-dataset, 3000 recordings of six speakers
at 8 kHz, CC BY-SA 4.0. Cost: one listing of the folder (3 us a file) and one file read a sample;
the table also reads the headers, 15 us a file, when it is first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.addons.audio.reading import EXTENSIONS, AudioFolder, check_soundfile
from penstock.datasets.files import Files, Root, open_root, with_endings
from penstock.datasets.reading.base import Part, Sample, Split, check_split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Index, Limits

if TYPE_CHECKING:
    import pandas as pd

_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]{1,9})\.\w+")


class SpokenDigits(AudioFolder):
    """One sample: `audio` (float32 [C, T]), `rate` (Hz), `label` (the digit), `speaker` (int).

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
        self.limits = limits
        folder = open_root(root, f"{recordings!r}, the folder of recordings", files)
        self.folder = folder.below(recordings)
        found = list(_recordings(self.folder, warns=split == "train"))
        self.classes = [str(digit) for digit in range(10)]
        self.speakers = sorted({speaker for _, _, speaker, _ in found})
        if unknown := sorted({*val_speakers}.difference(self.speakers)):
            reason = f"no speaker {unknown[0]!r} among {self.speakers}"
            raise ConfigError(Problem("dataset.val_speakers", reason))
        validates = split == "val"
        rows = [
            (name, digit, self.speakers.index(speaker), take)
            for name, digit, speaker, take in found
            if (speaker in val_speakers if val_speakers else take < val_takes) == validates
        ]
        if not rows:
            key = f"val_speakers={list(val_speakers)}" if val_speakers else f"{val_takes=}"
            raise DataError(f"dataset.{key} leaves the split {split!r} of {root!r} empty.")
        self.names = np.array([name for name, *_ in rows])
        numbers = np.array([row[1:] for row in rows], np.int64)
        self.labels, self.speaker_codes, self.takes = numbers.T

    def __getitem__(self, index: int) -> Sample:
        audio, rate = self.audio(index)
        label, speaker = int(self.labels[index]), int(self.speaker_codes[index])
        return {"audio": audio, "rate": rate, "label": label, "speaker": speaker}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, label, speaker, take, length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        import pandas as pd

        values = self._paths(), self.labels, self.speaker_codes, self.takes, *self._headers.T[:2]
        return pd.DataFrame(dict(zip(self.columns, values, strict=True)))

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The speakers, and this split's names and file sizes."""
        return ["spoken_digits", len(self.speakers), *self.speakers, *self._file_parts(sized)]


def _recordings(folder: Root, warns: bool) -> Iterator[tuple[bytes, int, str, int]]:
    """Name, digit, speaker and take of each audio file in `folder`, sorted by name."""
    if not folder.exists():
        raise DataError(f"{str(folder)!r} is missing. Set dataset.recordings to its name.")
    files = [name for name in folder.files() if "/" not in name]
    names = with_endings(files, EXTENSIONS, str(folder) if warns else None)
    if not names:
        ends = ", ".join(EXTENSIONS)
        raise DataError(f"{str(folder)!r} has no recordings (files that end in {ends}).")
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            raise DataError(
                f"audio {folder.path(name)!r}: the name has no digit, speaker and take. Recordings "
                "are named <digit>_<speaker>_<take>.wav, as 7_jackson_32.wav; rename or remove it."
            )
        yield os.fsencode(name), int(match[1]), match[2], int(match[3])
