"""Packed data: samples of another dataset, decoded once, read from where they lie.

    table.feather           the dataset's table (`metadata`), whole
    table.lengths.npy       [N], its `lengths`
    table.path.npy          UTF-8, its `path(index)`, and table.path.offsets.npy, int64[N + 1]
    pack.json               its `classes`, `facts`, `columns`, and the field whose texts it counts

`task=pack` makes the files and `data.packed=auto` uses them (docs/packing.md). Cost: 0.1 ms a file
to open; then a copy of each sample's numbers, for a whole batch at once if all samples have one
shape.
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
from penstock.addons.packs.folder import RECORD, Pack
from penstock.addons.storage.arrays import CacheFolder
from penstock.datasets.files import DataFile, Files, open_root
from penstock.datasets.reading.base import fingerprint
from penstock.datasets.reading.image import check_reader, decode_image
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.collate import Ragged
from penstock.loading.encoded import EncodedImage, StoredPictures
from penstock.loading.facts import Fields, classes_of, columns_of, facts_of, table_of
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

TABLE, LENGTHS, PATH = "table.feather", "table.lengths", "table.path"
_NUMBERS = ("tensor", "array", "int", "float", "bool")
_KINDS = {"Image": "image", "Mask": "mask", "KeyPoints": "keypoints"}


class Packed(Dataset[dict[str, Any]]):
    """Samples as the dataset gave them that was packed, to the bit and of the same types.

    It has the optional members that the dataset has (docs/own_dataset.md), and they answer the
    same: `lengths`, `columns`, `path` and `text_lengths`.

    Args:
        folder: a pack, or a folder with a pack for each split ("train", "val"); or the address of
            one, of whose large fields only what batches need is fetched.
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
        self.limits, self._cache_dir, self.lazy = limits, cache_dir, lazy
        at = open_root(folder, "a pack", files)
        divided = at.first_missing([RECORD]) is not None
        self.pack = Pack(at.below(split) if divided else at, files)
        record = self.pack.record
        if record.get("split", split) != split:
            raise DataError(
                f"{folder!r} holds the split {record['split']!r}, not {split!r}; name the folder "
                "that both are in, as task=pack writes them with pack.out"
            )
        self.reader = check_reader(record.get("reader") or "torchvision")
        self.facts: dict[str, int] = dict(record.get("facts") or {})
        self.classes: list[str] = list(record.get("classes") or [])
        self.fingerprint: str = record["fingerprint"]
        if record.get("columns") is not None:
            self.columns = tuple(record["columns"])
        if record.get("path"):
            self.path = self._path
        if record.get("text") is not None:
            self.text_lengths = self._text_lengths
        if record.get("checks"):
            self.check = self._check

    def __getattr__(self, name: str) -> Any:
        # Lengths are mapped, and so no attribute that would be copied to workers.
        if name == "lengths" and self.__dict__["pack"].record.get("lengths"):
            return self.pack.array(LENGTHS)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __len__(self) -> int:
        return self.pack.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} samples, not one numbered {index}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch."""
        rows = np.asarray(indices, dtype=np.int64)
        columns: dict[str, list[Any]] = {}
        for name, field in self.pack.fields.items():
            columns[name] = values = self.pack.values(name, rows)
            if field.kind == "file":
                pairs = zip(rows.tolist(), values, strict=True)
                columns[name] = [self._image(row, content) for row, content in pairs]
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

    def _image(self, row: int, content: bytes) -> Any:
        name = f"{self.pack.folder}, sample {row}"
        if self.pack.record.get("path"):
            name = self._path(row)
        decoder = partial(decode_image, reader=self.reader, limits=self.limits)
        image = EncodedImage(content, name, decoder, self.limits.pixels)
        return image if self.lazy else image.decode()

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `fetch_batch` can be used: every field is of numbers of one shape, or texts."""
        fields = self.pack.fields.items()
        return all(
            field.kind in ("str", "bytes") or (field.kind in _NUMBERS and self.pack.is_even(name))
            for name, field in fields
        )

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
    ) -> dict[str, torch.Tensor | Ragged | list[Any] | StoredPictures]:
        """The samples stacked, tensors [B, ...], in one copy a field.

        Args:
            in_place: leave pictures where they lie; they may be of any sizes.
        """
        rows = np.asarray(indices, dtype=np.int64)
        batch: dict[str, torch.Tensor | Ragged | list[Any] | StoredPictures] = {}
        for name, field in self.pack.fields.items():
            if in_place and _is_picture(field):
                pixels, starts, shapes = self.pack.places(name, rows)
                batch[name] = StoredPictures(pixels, starts, *shapes.T)
            else:
                batch[name] = self.pack.gathered(name, rows)
        return batch

    def want(self, indices: IntArray) -> float:
        """Rows are read soon: fetch them ahead, if the pack is at an address."""
        return self.pack.want(np.asarray(indices, np.int64))

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
        import pandas as pd

        if not self.pack.record.get("table"):
            return None
        return pd.read_feather(self.pack.files.path(self.pack.files.names.index(TABLE)))

    def names_fingerprint(self) -> str:
        """That of the dataset that was packed, at the time of packing."""
        return self.fingerprint

    def data_files(self) -> list[DataFile]:
        """The files that samples are read from: the pack's."""
        return self.pack.files.data_files()

    def _path(self, index: int) -> str:
        return self.pack.texts(PATH, np.array([index]))[0]

    def _check(self, index: int) -> str | None:
        reason = "damage that reading does not show is looked for in the files of the dataset, and "
        reason += "a pack has none; check the dataset itself: set this to null"
        raise ConfigError(Problem("data.packed", reason))

    def _text_lengths(self, length: Callable[[str], int], name: str) -> npt.NDArray[np.int32]:
        """The length of each sample's text as `length` counts it: int32[N], kept under `name`."""
        field = self.pack.record["text"]
        if not field:
            reason = "rows are chosen by the length of a text, and the pack has no field with the "
            reason += "texts that the dataset counts, or several; set this to null"
            raise ConfigError(Problem("data.packed", reason))
        files = self.pack.files
        key = fingerprint([files.key(number) for number in range(len(files))])
        texts = (self.pack.values(field, np.array([row]))[0] for row in range(len(self)))
        cache = CacheFolder(self._cache_dir, f"packed-{key}")
        return cache.text_lengths(f"lengths-{fingerprint([name])[:16]}", texts, len(self), length)


def write_answers(
    folder: Path, dataset: Any, fields: Fields, rows: IntArray, samples: Sequence[Any]
) -> Any:
    """Write what `dataset` tells besides its samples; returns the entries of pack.json.

    Args:
        rows, samples: some rows of it, and their samples.

    Raises:
        DataError: a column of its table cannot be packed.
    """
    import pyarrow as pa

    table, columns = table_of(dataset, fields), getattr(dataset, "columns", None)
    if table is not None:
        try:
            table.reset_index(drop=True).to_feather(folder / TABLE)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                f"the dataset's metadata cannot be packed: {str(error).splitlines()[0]}. Make its "
                "columns numbers, texts or categories."
            ) from error
    lengths = columns_of(dataset).get("length")
    if lengths is not None:
        np.save(folder / f"{LENGTHS}.npy", lengths)
    paths = callable(getattr(dataset, "path", None))
    if paths:
        texts = [
            dataset.path(row).encode("utf-8", "surrogateescape") for row in range(len(dataset))
        ]
        np.save(folder / f"{PATH}.npy", np.frombuffer(b"".join(texts), np.uint8))
        np.save(folder / f"{PATH}.offsets.npy", np.cumsum([0, *map(len, texts)]))
    text = None
    if callable(getattr(dataset, "text_lengths", None)):
        counted = np.asarray(dataset.text_lengths(len, "characters"))[rows].tolist()
        strings = [name for name, value in samples[0].items() if isinstance(value, str)]
        counted_in = [name for name in strings if [len(s[name]) for s in samples] == counted]
        text = counted_in[0] if len(counted_in) == 1 else ""
    return {
        "reader": getattr(dataset, "reader", None),
        "facts": facts_of(dataset, fields),
        "classes": classes_of(dataset),
        "table": table is not None,
        "lengths": lengths is not None,
        "path": paths,
        "checks": callable(getattr(dataset, "check", None)),
        "text": text,
        "columns": [*map(str, columns)] if isinstance(columns, (list, tuple)) else None,
    }


def _is_picture(field: Field) -> bool:
    """Whether a field holds decoded pictures, uint8 [3, H, W]."""
    return field.channels_last and field.dtype == "|u1"
