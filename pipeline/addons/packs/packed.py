"""Packed data: samples of another dataset, decoded once, read from where they lie.

`task=pack` makes the files and `data.packed=auto` uses them (docs/packing.md). Cost: 0.1 ms a
file to open; then a copy of each sample's numbers, for a whole batch at once if all samples have
one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.packs.fields import Field
from penstock.addons.packs.folder import RECORD, Pack, damaged, is_pack
from penstock.addons.packs.remote import RemotePack
from penstock.addons.packs.table import LENGTHS, read_table, text_of
from penstock.addons.storage.arrays import CacheFolder
from penstock.datasets.files import DataFile, Files, open_root
from penstock.datasets.reading.base import fingerprint
from penstock.datasets.reading.image import check_reader, decode_image
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.files.paths import is_remote
from penstock.loading.encoded import EncodedImage, StoredPictures
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

    from penstock.addons.storage.client import Client


_NUMBERS = ("tensor", "array", "int", "float", "bool")
_TOGETHER = 1024  # rows, whose pages a machine keeps in memory
_KINDS = {"Image": "image", "Mask": "mask", "KeyPoints": "keypoints"}


class Packed(Dataset[dict[str, Any]]):
    """Samples as the dataset gave them that was packed, to the bit and of the same types.

    It has the optional members that the dataset has (docs/own_dataset.md), and they answer the
    same: `lengths`, `columns`, `path` and `text_lengths`. One that cannot refuses when it is asked.

    Args:
        folder: a pack, or a folder with a pack for each split ("train", "val"); or the address of
            one, of which only what batches need is fetched (`remote.py`).
        split: "train" or "val".
        lazy: give packed image files undecoded, for a transform that decodes; the build sets it.
        limits: what a packed image file may claim.
        cache_dir: keeps the lengths of texts.
        files: access to addresses; None takes the defaults.

    Attributes:
        classes: names of the classes, if the dataset had any.
        facts: numbers for models, such as num_classes.
        fingerprint: the dataset's own if its samples were packed as they are, so that addresses
            keep their meaning; another one if they were made smaller.

    Raises:
        DataError: there is no pack, or it is damaged.
    """

    draws = False  # reading a sample takes no random numbers

    def __init__(
        self,
        folder: str,
        split: str = "train",
        lazy: bool = False,
        limits: Limits = DEFAULT,
        cache_dir: str = "data/cache/text",
        files: Files | None = None,
    ) -> None:
        self.limits, self._cache_dir = limits, cache_dir
        self.pack = _opened(folder, split, files or Files())
        record = self.pack.record
        if record.get("split", split) != split:
            raise DataError(
                f"{folder!r} holds the split {record['split']!r}, not {split!r}; name the folder "
                "that both are in, as task=pack writes them with pack.out"
            )
        self.lazy = lazy
        self.reader = record.get("reader") or "torchvision"
        if any(field.kind == "file" for field in self.pack.fields.values()):
            check_reader(self.reader)
        self.facts: dict[str, int] = dict(record.get("facts") or {})
        self.classes: list[str] = list(record.get("classes") or [])
        self.fingerprint: str = record["fingerprint"]

    def __len__(self) -> int:
        return self.pack.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} samples, not one numbered {index}")
        return {name: self._value(field, index) for name, field in self.pack.fields.items()}

    def _value(self, field: Field, index: int) -> Any:
        canvas = None
        if field.has_canvas:
            canvas = self.pack.canvases(field.name, np.array([index]))[0]
        stored = self.pack.row(field.name, index)
        value = field.value(stored, canvas)
        if field.kind != "file":
            return value
        decoder = partial(decode_image, reader=self.reader, limits=self.limits)
        name = f"{self.pack.folder}, sample {index}"
        if self.pack.record["path"] is not None:
            name = self._path(index)
        image = EncodedImage(value, name, decoder, self.limits.pixels)
        return image if self.lazy else image.decode()

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch, those with fields of one shape read at once."""
        rows = np.asarray(indices, dtype=np.int64)
        columns = {name: self._values(field, rows) for name, field in self.pack.fields.items()}
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def _values(self, field: Field, rows: Any) -> list[Any]:
        if not self.pack.is_even(field.name):
            return [self._value(field, index) for index in rows.tolist()]
        canvases: Sequence[Any] = [None] * len(rows)
        if field.has_canvas:
            canvases = self.pack.canvases(field.name, rows)
        block = self.pack.rows(field.name, rows)
        if field.kind in ("int", "float", "bool"):
            return list(block.tolist())
        return [
            field.value(np.asarray(row), canvas)
            for row, canvas in zip(block, canvases, strict=True)
        ]

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `fetch_batch` can be used: every field is of numbers of one shape."""
        return self.pack.even and all(field.kind in _NUMBERS for field in self.pack.fields.values())

    @cached_property
    def fetches_pictures(self) -> bool:
        """Whether `fetch_batch` can leave pictures in place: there are some, and no points."""
        fields = self.pack.fields.values()
        rest = [field for field in fields if not _is_picture(field)]
        return len(rest) < len(fields) and all(
            field.kind in _NUMBERS and not field.type and self.pack.is_even(field.name)
            for field in rest
        )

    def fetch_batch(
        self, indices: Sequence[int], in_place: bool = False
    ) -> dict[str, torch.Tensor | StoredPictures]:
        """The samples stacked, tensors [B, ...], in one copy a field.

        Args:
            in_place: leave pictures where they lie; they may be of any sizes.
        """
        rows = np.asarray(indices, dtype=np.int64)
        batch: dict[str, torch.Tensor | StoredPictures] = {}
        for name, field in self.pack.fields.items():
            if in_place and _is_picture(field):
                pixels, starts, shapes = self.pack.places(name, rows)
                batch[name] = StoredPictures(pixels, starts, *shapes.T)
            else:
                batch[name] = field.tensor(self.pack.rows(name, rows))
        return batch

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kinds of fields for transforms of batches: see `penstock.loading.collate.kinds_of`."""
        kinds = {}
        for name, field in self.pack.fields.items():
            if field.type == "BoundingBoxes":
                kinds[name] = f"boxes/{field.attributes['format'].lower()}"
            elif field.type in _KINDS:
                kinds[name] = _KINDS[field.type]
        return kinds

    @property
    def metadata(self) -> pd.DataFrame | None:
        """The table of the dataset that was packed, a row a sample."""
        return read_table(self.pack, self.limits)

    def names_fingerprint(self) -> str:
        """That of the dataset that was packed, at the time of packing."""
        return self.fingerprint

    def data_files(self) -> list[DataFile]:
        """The files that samples are read from: the pack's."""
        if isinstance(self.pack, RemotePack):
            return self.pack.data_files()
        return [DataFile(name, self.pack.file(name)) for name in self.pack.record["files"]]

    @property
    def remote_files(self) -> Client | None:
        """The fetcher of the pack, if it is at an address."""
        return self.pack.remote if isinstance(self.pack, RemotePack) else None

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of what rows are read from, if the pack is at one."""
        return self.pack.files_of(indices) if isinstance(self.pack, RemotePack) else []

    def __getattr__(self, name: str) -> Any:
        """Members that only some datasets have, and that others ask for with `hasattr`."""
        pack = self.__dict__.get("pack")  # copy and pickle look before there is one
        record = {} if pack is None else pack.record
        if name == "lengths" and record.get("lengths"):
            lengths = self.pack.array(LENGTHS)
            if lengths.dtype.kind not in "iu" or lengths.shape != (len(self),):
                raise damaged(self.pack.folder, f"it has lengths {list(lengths.shape)}")
            return lengths
        if name == "columns" and record.get("columns") is not None:
            return tuple(record["columns"])
        if name == "path" and record.get("path") is not None:
            return self._path
        if name == "text_lengths" and record.get("text") is not None:
            return self._text_lengths
        if name == "check" and record.get("checks"):
            return self._check
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _path(self, index: int) -> str:
        return text_of(self.pack, self.pack.record["path"]["file"], index)

    def _check(self, index: int) -> str | None:
        raise ConfigError(
            Problem(
                "data.packed",
                "damage that reading does not show is looked for in the "
                "files of the dataset, and a pack has none; check the dataset itself: set this "
                "to null",
            )
        )

    def _text_lengths(self, length: Callable[[str], int], name: str) -> npt.NDArray[np.int32]:
        """The length of each sample's text as `length` counts it: int32[N], kept under `name`."""
        field = self.pack.fields.get(self.pack.record["text"])
        if field is None:
            raise ConfigError(
                Problem(
                    "data.packed",
                    "rows are chosen by the length of a text, and the pack "
                    "has no field with the texts that `text_lengths` of the dataset counts; "
                    "set this to null",
                )
            )

        if isinstance(self.pack, RemotePack):
            key = fingerprint([str(self.pack.folder), self.pack.version()])
        else:
            folder = Path(self.pack.folder)
            written = (folder / RECORD).stat()
            key = fingerprint([str(folder.resolve()), written.st_mtime_ns, written.st_size])
        cache = CacheFolder(self._cache_dir, f"packed-{key}")
        texts = (self._value(field, row) for row in range(len(self)))
        kept_as = f"lengths-{fingerprint([name])[:16]}"
        return cache.text_lengths(kept_as, texts, len(self), length)


def _opened(folder: str, split: str, files: Files) -> Pack:
    """The pack of a split in a folder, or that folder itself."""
    if is_remote(folder):
        at = open_root(folder, "a pack", files)
        divided = at.first_missing([f"{split}/{RECORD}"]) is None
        return RemotePack(at.below(split) if divided else at, files)
    path = Path(folder).expanduser()
    return Pack(path / split if not is_pack(path) and (path / split).is_dir() else path)


def _is_picture(field: Field) -> bool:
    """Whether a field holds decoded pictures, uint8 [C, H, W]."""
    return field.channels_last and field.dtype == "|u1"
