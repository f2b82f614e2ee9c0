"""Recordings and what should become of them: an audio file and a `.npy` file of the same name.

    root/<name>.wav        the input: a mixture, a noisy recording       (or .flac)
    root/<name>.npy        its target, float [C, T]: the sources in it, the clean recording

Inputs and targets may lie in folders of their own (`inputs`, `targets`), and in folders below
those. Both of a pair have the same number of frames. Cost: one walk over the folders (5 us a file),
no file opened; a sample reads its two files, 0.2 ms and more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset

from pipeline.datasets.files import Files
from pipeline.datasets.reading.audio import (
    EXTENSIONS,
    check_soundfile,
    lengths_and_rates,
    of_folder,
    read_audio,
    read_header,
)
from pipeline.datasets.reading.damage import audio_damage
from pipeline.datasets.reading.data_file import DataFile
from pipeline.datasets.reading.fingerprint import Fingerprinted, Part
from pipeline.datasets.reading.folder import File, Folder
from pipeline.datasets.reading.mapped_array import MappedArray
from pipeline.datasets.reading.root import open_root
from pipeline.datasets.reading.split import Split, check_split, split_rows
from pipeline.errors import DataError
from pipeline.files.limits import DEFAULT, Limits
from pipeline.order.randomness import IntArray

if TYPE_CHECKING:
    import pandas as pd


class AudioPairs(Fingerprinted, Dataset[dict[str, Any]]):
    """One sample: `audio` (float32 [C, T]), `target` (float32 [C', T]) and `rate` (Hz).

    Samples are in the order of their names; the names decide who validates.

    Args:
        root: folder of both folders; a path or an address.
        split: "train" or "val".
        inputs: folder of the audio files, relative to `root`.
        targets: folder of the `.npy` files, relative to `root`; [T] stands for [1, T].
        val_fraction: share of the pairs that validate.
        split_seed: another seed, another split.
        files: how to get at what lies at an address.
        limits: what a file and the folders may claim.

    Raises:
        DataError: a folder is missing, there are no pairs, or a file has no partner. What is wrong
            inside of a file is said when it is read: values that are not finite, another shape,
            another length than the partner's.
        ConfigError: the split or its share is none; `soundfile` is not installed.
    """

    draws = False  # reading a sample takes no random numbers
    columns: ClassVar[tuple[str, ...]] = ("path", "target", "length", "rate")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        inputs: str = ".",
        targets: str = ".",
        val_fraction: float = 0.2,
        split_seed: int = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        check_soundfile()
        check_split(split, val_fraction)
        self.limits = limits
        folder = open_root(root, "the audio files and their .npy targets", files, limits)
        self.inputs = _existing(folder.below(inputs), "dataset.inputs")
        self.targets = _existing(folder.below(targets), "dataset.targets")
        found = _by_stem(self.inputs, EXTENSIONS)
        partners = _by_stem(self.targets, (".npy",))
        _check_partners(self.inputs, found, self.targets, partners)
        stems = sorted(found)
        every = np.array([os.fsencode(stem) for stem in stems])
        chosen = [stems[row] for row in split_rows(every, split, val_fraction, split_seed)]
        self.names = np.array([os.fsencode(found[stem]) for stem in chosen])
        self.target_names = np.array([os.fsencode(partners[stem]) for stem in chosen])

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        read = partial(read_audio, limits=self.limits)
        audio, rate = of_folder(self.inputs, os.fsdecode(self.names[index]), read)
        target = _read_target(self._target(index), self.limits)
        if target.shape[1] != audio.shape[1]:
            swapped = target.shape[0] == audio.shape[1]
            hint = " It looks like [T, C]; save it as [C, T]." if swapped else ""
            raise DataError(
                f"target {self.target_path(index)!r} is {list(target.shape)}, but its input "
                f"{self.path(index)!r} has {audio.shape[1]} frames; both have to have as many."
                + hint
            )
        return {"audio": audio, "target": target, "rate": rate}

    def check(self, index: int) -> str | None:
        """What is wrong with the input of a pair although it can be read; None: nothing."""
        damage = partial(audio_damage, limits=self.limits)
        return self.inputs.read(os.fsdecode(self.names[index]), damage)

    def path(self, index: int) -> str:
        """Where the input of a pair lies: a path or an address."""
        return self.inputs.path(os.fsdecode(self.names[index]))

    def target_path(self, index: int) -> str:
        """Where the target of a pair lies: a path or an address."""
        return str(self._target(index))

    def _target(self, index: int) -> File:
        return File(self.targets, os.fsdecode(self.target_names[index]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, target (its path), length (frames), rate (Hz).

        Length and rate are 0 where a file's header cannot be read.
        """
        import pandas as pd

        lengths, rates = self._headers
        paths = [self.path(index) for index in range(len(self))]
        targets = [self.target_path(index) for index in range(len(self))]
        return pd.DataFrame({"path": paths, "target": targets, "length": lengths, "rate": rates})

    @property
    def facts(self) -> dict[str, int]:
        """What a model must know, from the first pair: channels in and out of it."""
        target = MappedArray(self._target(0), "dataset.targets")
        outputs = target.shape[0] if len(target.shape) == 2 else 1
        header = of_folder(self.inputs, os.fsdecode(self.names[0]), read_header)
        return {"num_features": header.channels, "num_outputs": outputs}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """This split's names and file sizes."""
        names = [os.fsdecode(name) for name in self.names.tolist()]
        targets = [os.fsdecode(name) for name in self.target_names.tolist()]
        sizes = [self.inputs.sizes(names), self.targets.sizes(targets)] if sized else []
        return ["audio_pairs", *names, *targets, *sizes]

    def data_files(self) -> Iterator[DataFile]:
        for folder, names in ((self.inputs, self.names), (self.targets, self.target_names)):
            yield from (folder.data_file(os.fsdecode(name)) for name in names)

    @cached_property
    def _headers(self) -> tuple[IntArray, IntArray]:
        names = map(os.fsdecode, self.names.tolist())
        return lengths_and_rates(self.inputs, names, self.limits)


def _existing(folder: Folder, key: str) -> Folder:
    if not folder.exists():
        raise DataError(f"{str(folder)!r} is missing. Set {key} to the folder's name.")
    return folder


def _by_stem(folder: Folder, extensions: tuple[str, ...]) -> dict[str, str]:
    """Names (relative, forward slashes) of the files with one of `extensions`, by name without it.

    Hidden files and folders are passed over.
    """
    found: dict[str, str] = {}
    for name in folder.files():
        if not name.lower().endswith(extensions):
            continue
        stem = name.rpartition(".")[0]
        if stem in found:
            raise DataError(f"{str(folder)!r} has both {found[stem]!r} and {name!r}.")
        found[stem] = name
    return found


def _check_partners(
    inputs: Folder, found: dict[str, str], targets: Folder, partners: dict[str, str]
) -> None:
    if not found:
        raise DataError(f"{str(inputs)!r} holds no audio (files that end in .wav or .flac).")
    for these, those, folder, where, what in (
        (found, partners, inputs, targets, "target (.npy)"),
        (partners, found, targets, inputs, "input (.wav or .flac)"),
    ):
        alone = sorted(these.keys() - those.keys())
        if alone:
            more = f", nor have {len(alone) - 1} others" if len(alone) > 1 else ""
            raise DataError(
                f"{folder.path(these[alone[0]])!r} has no {what} of its name in {str(where)!r}"
                f"{more}. Add it or take the file out."
            )


def _read_target(path: File, limits: Limits) -> torch.Tensor:
    """A target, float32 [C, T]."""
    stored = MappedArray(path, "dataset.targets", limits)
    size = max(stored.dtype.itemsize, 4) * math.prod(stored.shape)
    if size > limits.record_bytes:
        raise DataError(
            f"target {str(path)!r} has {limits.refusal('record_bytes', f'{size} bytes')}."
        )
    if stored.dtype.kind != "f" or len(stored.shape) not in (1, 2):
        raise DataError(
            f"target {str(path)!r} is {stored.dtype} {list(stored.shape)}; it has to be floats, "
            "[C, T] or [T]."
        )
    values = np.array(stored.array, dtype=np.float32, ndmin=2)
    if not np.isfinite(values).all():
        channel, frame = np.argwhere(~np.isfinite(values))[0].tolist()
        raise DataError(
            f"target {str(path)!r}, channel {channel}, frame {frame}: {values[channel, frame]} is "
            "not finite. Replace it or take the pair out of the data."
        )
    return torch.from_numpy(values)
