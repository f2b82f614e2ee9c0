"""Spoken digits: the recordings of the Free Spoken Digit Dataset, or others named like them.

    root/recordings/<digit>_<speaker>_<take>.wav        (or .flac)

The data: https://github.com/Jakobovski/free-spoken-digit-dataset, 3000 recordings of six speakers
at 8 kHz, CC BY-SA 4.0. Its own split is the default: takes 0 to 4 of every digit and speaker
validate. `val_speakers` holds out whole speakers instead, which asks more of a model.

Cost: one listing of the folder (3 us a file) and one file read a sample. The table also reads the
headers, 15 us a file, when it is first asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from pipeline.datasets.files import Files
from pipeline.datasets.reading.audio import (
    EXTENSIONS,
    check_soundfile,
    lengths_and_rates,
    of_folder,
    read_audio,
)
from pipeline.datasets.reading.damage import audio_damage
from pipeline.datasets.reading.data_file import DataFile
from pipeline.datasets.reading.fingerprint import Fingerprinted, Part
from pipeline.datasets.reading.folder import Folder
from pipeline.datasets.reading.labels import check_classes
from pipeline.datasets.reading.root import open_root
from pipeline.datasets.reading.split import Split
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.limits import DEFAULT, Limits
from pipeline.order.randomness import IntArray

if TYPE_CHECKING:
    import pandas as pd

_NAME = re.compile(r"([0-9])_([^_]+)_([0-9]{1,9})\.\w+")


class SpokenDigits(Fingerprinted, Dataset[dict[str, Any]]):
    """One sample: `audio` (float32 [C, T]), `rate` (Hz), `label` (the digit), `speaker` (int).

    Samples are in the order of their file names.

    Args:
        root: folder of the recordings' folder; a path or an address.
        split: "train" or "val".
        recordings: the folder of the files, relative to `root`.
        val_takes: takes with a number below this one validate.
        val_speakers: names of speakers who validate, in place of `val_takes`.
        files: how to get at what lies at an address.
        limits: what a file and the folder may claim.

    Attributes:
        classes: names of the digits.
        speakers: names of the speakers of both splits, sorted; a sample's `speaker` is a place
            in it.

    Raises:
        DataError: the folder is missing or holds no recordings, a name cannot be made sense of, or
            the split is empty. What is wrong inside of a file is said when it is read.
        ConfigError: `split` or a speaker's name is none; `soundfile` is not installed.
    """

    draws = False  # reading a sample takes no random numbers
    columns: ClassVar[tuple[str, ...]] = ("path", "label", "speaker", "take", "length", "rate")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        recordings: str = "recordings",
        val_takes: int = 5,
        val_speakers: Sequence[str] = (),
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        check_soundfile()
        if split not in ("train", "val"):
            raise ConfigError(Problem("dataset.split", f"{split!r} is neither 'train' nor 'val'"))
        self.limits = limits
        holds = f"{recordings!r} with <digit>_<speaker>_<take>.wav in it"
        folder = open_root(root, holds, files, limits)
        self.folder = folder.below(recordings)
        names = _recordings(self.folder)
        parsed = (_parsed(self.folder.path(name), name) for name in names)
        digits, speakers, takes = zip(*parsed, strict=True)
        self.classes = [str(digit) for digit in range(10)]
        self.speakers = sorted(set(speakers))
        check_classes(len(self.speakers), str(self.folder), limits)
        places = {speaker: place for place, speaker in enumerate(self.speakers)}
        codes = np.array([places[one] for one in speakers], dtype=np.int64)
        numbers = np.array(takes, dtype=np.int64)
        held_out = numbers < val_takes
        if val_speakers:
            held_out = np.isin(codes, _places(val_speakers, self.speakers))
        rows = np.flatnonzero(held_out if split == "val" else ~held_out)
        if not len(rows):
            key = f"val_speakers={list(val_speakers)}" if val_speakers else f"{val_takes=}"
            raise DataError(f"dataset.{key} leaves the split {split!r} of {root!r} empty.")
        self.names = np.array([os.fsencode(name) for name in names])[rows]
        self.labels = np.array(digits, dtype=np.int64)[rows]
        self.speaker_codes, self.takes = codes[rows], numbers[rows]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        read = partial(read_audio, limits=self.limits)
        audio, rate = of_folder(self.folder, os.fsdecode(self.names[index]), read)
        return {
            "audio": audio,
            "rate": rate,
            "label": int(self.labels[index]),
            "speaker": int(self.speaker_codes[index]),
        }

    def check(self, index: int) -> str | None:
        """What is wrong with the recording of a sample although it can be read; None: nothing."""
        damage = partial(audio_damage, limits=self.limits)
        return self.folder.read(os.fsdecode(self.names[index]), damage)

    def path(self, index: int) -> str:
        """Where the recording of a sample lies: a path or an address."""
        return self.folder.path(os.fsdecode(self.names[index]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, label, speaker, take, length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        import pandas as pd

        lengths, rates = self._headers
        paths = [self.path(index) for index in range(len(self))]
        values = paths, self.labels, self.speaker_codes, self.takes, lengths, rates
        return pd.DataFrame(dict(zip(self.columns, values, strict=True)))

    @property
    def facts(self) -> dict[str, int]:
        """What a model must know: num_classes, num_outputs."""
        return {"num_classes": len(self.classes), "num_outputs": len(self.classes)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The speakers, and this split's names and file sizes."""
        names = [os.fsdecode(name) for name in self.names.tolist()]
        sizes = [self.folder.sizes(names)] if sized else []
        return ["spoken_digits", len(self.speakers), *self.speakers, *names, *sizes]

    def data_files(self) -> Iterator[DataFile]:
        return (self.folder.data_file(os.fsdecode(name)) for name in self.names)

    @cached_property
    def _headers(self) -> tuple[IntArray, IntArray]:
        names = map(os.fsdecode, self.names.tolist())
        return lengths_and_rates(self.folder, names, self.limits)


def _recordings(folder: Folder) -> list[str]:
    """Names of the audio files in `folder`, sorted; hidden and other files are passed over."""
    if not folder.exists():
        raise DataError(f"{str(folder)!r} is missing. Set dataset.recordings to its name.")
    found = [name for name in folder.files() if "/" not in name]
    names = [name for name in found if name.lower().endswith(EXTENSIONS)]
    if not names:
        raise DataError(f"{str(folder)!r} holds no recordings (files that end in .wav or .flac).")
    return names


def _parsed(path: str, name: str) -> tuple[int, str, int]:
    """Digit, speaker and take of a recording."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise DataError(
            f"audio {path!r}: the name says no digit, speaker and take. Recordings are "
            "named <digit>_<speaker>_<take>.wav, as 7_jackson_32.wav; rename it or take it out."
        )
    return int(match[1]), match[2], int(match[3])


def _places(names: Sequence[str], speakers: list[str]) -> list[int]:
    if isinstance(names, str):
        raise ConfigError(Problem("dataset.val_speakers", f"{names!r}; write it as [{names}]"))
    for name in names:
        if name not in speakers:
            near = get_close_matches(name, speakers, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                Problem("dataset.val_speakers", f"no speaker {name!r} among {speakers}{hint}")
            )
    return [speakers.index(name) for name in names]
