"""Recordings and their targets: an audio file and a `.npy` file of the same name.

    root/<name>.wav        the input: a mixture, a noisy recording       (or .flac, .ogg, .mp3 ...)
    root/<name>.npy        its target, float [C, T]: the sources in it, the clean recording

Cost: one walk over the folders, 5 us a file; a sample reads its two files, 0.2 ms and more. The
table also reads the recordings' headers, 100 us a file, when it is first needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from penstock.addons.audio.reading import EXTENSIONS, AudioFolder, check_soundfile
from penstock.datasets.arrays import MappedArray
from penstock.datasets.files import DataFile, Files, FolderFile, Root, open_root, with_endings
from penstock.datasets.reading.base import Part, Sample, Split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd


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
        warned = str(self.folder) if split == "train" else None
        inputs_of = _by_stem(self.folder, EXTENSIONS, (".npy",), "dataset.inputs", warned)
        partners = _by_stem(self.targets, (".npy",), EXTENSIONS, "dataset.targets", None)
        if not inputs_of:
            raise DataError(f"{str(self.folder)!r} has no audio ({', '.join(EXTENSIONS)}).")
        alone = sorted(inputs_of.keys() ^ partners.keys())
        if alone:
            name = inputs_of.get(alone[0]) or partners[alone[0]]
            more = f", nor have {len(alone) - 1} others" if len(alone) > 1 else ""
            raise DataError(
                f"{name!r} has no partner{more}: each recording in {str(self.folder)!r} needs a "
                f".npy file of its name in {str(self.targets)!r}. Add it or remove the file."
            )
        stems = sorted(inputs_of)
        every = np.array([os.fsencode(stem) for stem in stems])
        rows = split_rows(every, split, val_fraction, split_seed, None, test_fraction)
        chosen = [stems[row] for row in rows]
        self.names = np.array([os.fsencode(inputs_of[stem]) for stem in chosen])
        self.target_names = np.array([os.fsencode(partners[stem]) for stem in chosen])

    def __getitem__(self, index: int) -> Sample:
        audio, rate = self.audio(index)
        stored = MappedArray(self._target(index), "dataset.targets", self.limits).array
        if (
            stored.dtype.kind != "f"
            or stored.ndim not in (1, 2)
            or stored.shape[-1] != audio.shape[1]
        ):
            raise DataError(
                f"target {self.target_path(index)!r} is {stored.dtype} {list(stored.shape)}; it "
                f"has to be floats, [C, T] or [T], of the {audio.shape[1]} frames of its input "
                f"{self.path(index)!r}."
            )
        target = torch.from_numpy(np.array(stored, dtype=np.float32, ndmin=2))
        return {"audio": audio, "target": target, "rate": rate}

    def target_path(self, index: int) -> str:
        """The path or address of the target of a pair."""
        return str(self._target(index))

    def _want(self, indices: IntArray) -> float:
        targets = map(os.fsdecode, self.target_names[indices].tolist())
        return super()._want(indices) + self.targets.want([*targets])

    def _target(self, index: int) -> FolderFile:
        return FolderFile(self.targets, os.fsdecode(self.target_names[index]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, target (its path), length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        import pandas as pd

        targets = map(self.target_path, range(len(self)))
        values = self._paths(), list(targets), *self._headers.T[:2]
        return pd.DataFrame(dict(zip(self.columns, values, strict=True)))

    @property
    def facts(self) -> dict[str, int]:
        """Channels of the first pair: num_features of its input, num_outputs of its target."""
        pair = self[0]
        return {"num_features": len(pair["audio"]), "num_outputs": len(pair["target"])}

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
    folder: Root, endings: tuple[str, ...], partners: tuple[str, ...], key: str, warned: str | None
) -> dict[str, str]:
    """Names of the files with one of `endings`, by name without it; `partners` may be there."""
    if not folder.exists():
        raise DataError(f"{str(folder)!r} is missing. Set {key} to the folder's name.")
    files = [name for name in folder.files() if not name.lower().endswith(partners)]
    found = with_endings(files, endings, warned)
    names = {name.rpartition(".")[0]: name for name in found}
    if len(names) < len(found):
        twice = sorted(set(found) - set(names.values()))[0]
        raise DataError(f"{str(folder)!r} has another recording beside {twice!r} of its name.")
    return names
