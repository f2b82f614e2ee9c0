"""Recordings and their targets: an audio file and a `.npy` file of the same name.

    root/<name>.wav        the input: a mixture, a noisy recording       (or .flac, .ogg, .mp3 ...)
    root/<name>.npy        its target, float [C, T]: the sources in it, the clean recording

Cost: one walk over the folders (5 us a file), and on this machine the recordings' headers (100 us a
file), for what differs between them; a sample reads its two files, 0.2 ms and more.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from penstock.addons.audio.reading import EXTENSIONS, AudioFolder, check_soundfile, read_header
from penstock.datasets.arrays import MappedArray, not_finite
from penstock.datasets.files import DataFile, Files, FolderFile, Root, open_root, with_endings
from penstock.datasets.reading.base import Part, Sample
from penstock.datasets.reading.split import Split, check_split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)


class AudioPairs(AudioFolder):
    """One sample: `audio` (float32 [C, T]), `target` (float32 [C', T]) and `rate` (Hz).

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
            of a file are raised when it is read: values that are not finite, another shape, another
            length than the partner's.
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
        check_split(split, val_fraction, test_fraction)
        self.limits = limits
        folder = open_root(root, "the audio files and their .npy targets", files)
        self.folder, self.targets = folder.below(inputs), folder.below(targets)
        warns = split == "train"
        inputs_of = _by_stem(self.folder, EXTENSIONS, (".npy",), "dataset.inputs", warns)
        partners = _by_stem(
            self.targets, (".npy",), EXTENSIONS, "dataset.targets", warns and inputs != targets
        )
        if not inputs_of:
            ends = ", ".join(EXTENSIONS)
            raise DataError(f"{str(self.folder)!r} has no audio (files that end in {ends}).")
        for names, others, folder, other_folder, kind in (
            (inputs_of, partners, self.folder, self.targets, "target (.npy)"),
            (partners, inputs_of, self.targets, self.folder, "input (.wav, .flac ...)"),
        ):
            alone = sorted(names.keys() - others.keys())
            if alone:
                more = f", nor have {len(alone) - 1} others" if len(alone) > 1 else ""
                raise DataError(
                    f"{folder.path(names[alone[0]])!r} has no {kind} of its name in "
                    f"{str(other_folder)!r}{more}. Add it or remove the file."
                )
        stems = sorted(inputs_of)
        every = np.array([os.fsencode(stem) for stem in stems])
        rows = split_rows(every, split, val_fraction, split_seed, None, test_fraction)
        chosen = [stems[row] for row in rows]
        self.names = np.array([os.fsencode(inputs_of[stem]) for stem in chosen])
        self.target_names = np.array([os.fsencode(partners[stem]) for stem in chosen])
        if warns and self.folder.remote_files is None:
            self._compare()

    def _compare(self) -> None:
        """Warn of recordings at several rates, or of several numbers of channels."""
        good = self._headers[self._headers[:, 1] > 0]
        for values, what, instead in (
            (
                good[:, 1],
                "Hz",
                "put Resample first, with both fields",
            ),
            (good[:, 2], "channels", "make them alike, or use batch.size=1"),
        ):
            counts = Counter(values.tolist()).most_common(10)
            if len(counts) > 1:
                found = ", ".join(f"{count} of {value} {what}" for value, count in counts)
                _log.warning("%s: recordings differ: %s; %s.", self.folder, found, instead)

    def __getitem__(self, index: int) -> Sample:
        audio, rate = self.audio(index)
        target = _read_target(self._target(index), self.limits)
        if target.shape[1] != audio.shape[1]:
            swapped = target.shape[0] == audio.shape[1]
            hint = " It looks like [T, C]; save it as [C, T]." if swapped else ""
            raise DataError(
                f"target {self.target_path(index)!r} is {list(target.shape)}, but its input "
                f"{self.path(index)!r} has {audio.shape[1]} frames; their lengths must be equal."
                + hint
            )
        return {"audio": audio, "target": target, "rate": rate}

    def target_path(self, index: int) -> str:
        """The path or address of the target of a pair."""
        return str(self._target(index))

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of both files of pairs."""
        return [[self.path(index), self.target_path(index)] for index in indices]

    def _target(self, index: int) -> FolderFile:
        return FolderFile(self.targets, os.fsdecode(self.target_names[index]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, target (its path), length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        import pandas as pd

        lengths, rates, _ = self._headers.T
        targets = [self.target_path(index) for index in range(len(self))]
        columns = {"path": self._paths(), "target": targets, "length": lengths, "rate": rates}
        return pd.DataFrame(columns)

    @property
    def facts(self) -> dict[str, int]:
        """Channels of the first pair: num_features of its input, num_outputs of its target."""
        target = MappedArray(self._target(0), "dataset.targets", self.limits)
        outputs = target.shape[0] if len(target.shape) == 2 else 1
        return {"num_features": self._audio(0, read_header).channels, "num_outputs": outputs}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """This split's names and file sizes."""
        names, targets = self._names(), self._target_names()
        sizes = [self.folder.sizes(names), self.targets.sizes(targets)] if sized else []
        return ["audio_pairs", *names, *targets, *sizes]

    def data_files(self) -> Iterator[DataFile]:
        return chain(super().data_files(), map(self.targets.data_file, self._target_names()))

    def _target_names(self) -> list[str]:
        return [os.fsdecode(name) for name in self.target_names.tolist()]


def _by_stem(
    folder: Root, endings: tuple[str, ...], partners: tuple[str, ...], key: str, warns: bool
) -> dict[str, str]:
    """Names of the files with one of `endings`, by name without it; `partners` may be there."""
    if not folder.exists():
        raise DataError(f"{str(folder)!r} is missing. Set {key} to the folder's name.")
    names: dict[str, str] = {}
    files = [name for name in folder.files() if not name.lower().endswith(partners)]
    for name in with_endings(files, endings, str(folder) if warns else None):
        stem = name.rpartition(".")[0]
        if stem in names:
            raise DataError(f"{str(folder)!r} has both {names[stem]!r} and {name!r}.")
        names[stem] = name
    return names


def _read_target(path: FolderFile, limits: Limits) -> torch.Tensor:
    """A target, float32 [C, T]."""
    stored = MappedArray(path, "dataset.targets", limits)
    size = max(stored.dtype.itemsize, 4) * math.prod(stored.shape)
    if size > limits.record_bytes:
        raise DataError(
            f"target {str(path)!r} has {limits.refusal('record_bytes', f'{size} bytes')}."
        )
    if stored.dtype.kind != "f" or len(stored.shape) not in (1, 2):
        raise DataError(
            f"target {str(path)!r} is {stored.dtype} {list(stored.shape)}; it must be floats, "
            "[C, T] or [T]."
        )
    values = np.array(stored.array, dtype=np.float32, ndmin=2)
    position = not_finite(values)
    if position is not None:
        raise DataError(
            f"target {str(path)!r}, channel {position[0]}, frame {position[1]}: "
            f"{values[tuple(position)]} is not finite. Replace it or remove the pair from the data."
        )
    return torch.from_numpy(values)
