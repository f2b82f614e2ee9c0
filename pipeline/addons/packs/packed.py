"""Packed data: samples of another dataset, decoded once, read from where they lie.

    table.feather           the dataset's table (`metadata`), with the `path` of each row, and its
                            `lengths`
    pack.json               its `classes` and `facts`, and the field whose texts it counts

`task=pack` makes the files and `data.packed=auto` uses them (docs/loading.md). Cost: 0.1 ms a file
to open; then a copy of each sample's numbers, for a whole batch at once if all samples have one
shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.addons.packs.folder import RECORD, Field, Pack
from penstock.addons.storage.arrays import CacheFolder
from penstock.datasets.files import DataFile, Files, open_root
from penstock.datasets.reading.base import fingerprint
from penstock.datasets.reading.image import undecoded
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.collate import Ragged, kinds_of
from penstock.loading.encoded import EncodedImage, StoredPictures
from penstock.loading.facts import Fields, classes_of, columns_of, facts_of, table_of
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

TABLE = "table.feather"
LENGTHS = "table.lengths"  # a column beside those of the dataset's table
_NUMBERS = ("tensor", "array", "int", "float", "bool")


class Packed(Dataset[dict[str, Any]]):
    """Samples as the dataset gave them that was packed, to the bit and of the same types.

    It has the optional members that the dataset has (docs/own_dataset.md), and they answer the
    same: `metadata`, `lengths` and `text_lengths`.

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
        is_one = at.first_missing([RECORD]) is None
        self.pack = Pack(at if is_one else at.below(split), files)
        self.record = record = self.pack.record
        # A pack of the training split, named by its own folder, would validate the model as well.
        if record["split"] != split:
            raise DataError(
                f"{folder!r} holds the split {record['split']!r}, not {split!r}; name the folder "
                "that both are in, as task=pack writes them with pack.out"
            )
        self.reader: str = record["reader"] or "torchvision"
        self.facts: dict[str, int] = record["facts"]
        self.classes: list[str] = record["classes"]
        self.fingerprint: str = record["fingerprint"]
        # Lengths in tokens are taken from it wherever there is one.
        if record["text"]:
            self.text_lengths = self._text_lengths

    def __len__(self) -> int:
        return self.pack.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        # Offsets have one entry more than there are rows, so numpy would take -1 for another row.
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
                images = [*map(self._image, rows.tolist(), values)]
                columns[name] = images if self.lazy else [image.decode() for image in images]
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

    def _image(self, row: int, content: bytes) -> EncodedImage:
        return undecoded(content, f"{self.pack.folder}, sample {row}", self.reader, self.limits)

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `fetch_batch` can be used: every field is of numbers of one shape, or texts."""
        return all(
            field.kind in ("str", "bytes") or (field.kind in _NUMBERS and field.shape is not None)
            for field in self.pack.fields.values()
        )

    @cached_property
    def fetches_pictures(self) -> bool:
        """Whether `fetch_batch` can leave pictures in place: there are some, and no points."""
        fields = self.pack.fields.values()
        # Points and boxes are told the size of their picture, which is known when it is copied.
        rest = [field for field in fields if not _is_picture(field)]
        return len(rest) < len(fields) and all(
            field.kind in _NUMBERS and not field.type and field.shape is not None for field in rest
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
        return kinds_of(self[0])

    @property
    def metadata(self) -> pd.DataFrame | None:
        """The table of the dataset that was packed, a row a sample."""
        table = self._table
        return table.drop(columns=LENGTHS, errors="ignore") if len(table.columns) else None

    @property
    def _table(self) -> pd.DataFrame:
        import pandas as pd

        return pd.read_feather(self.pack.files.path(self.pack.files.names.index(TABLE)))

    @cached_property
    def lengths(self) -> npt.NDArray[Any] | None:
        """The `lengths` of the dataset that was packed, if it had some."""
        # None where there are none: what looks for lengths takes that for a dataset without any.
        column = self._table.get(LENGTHS)
        return None if column is None else column.to_numpy()

    def names_fingerprint(self) -> str:
        """That of the dataset that was packed, at the time of packing."""
        return self.fingerprint

    def data_files(self) -> list[DataFile]:
        """The files that samples are read from: the pack's."""
        return self.pack.files.data_files()

    def _text_lengths(self, length: Callable[[str], int], name: str) -> npt.NDArray[np.int32]:
        """The length of each sample's text as `length` counts it: int32[N], kept under `name`."""
        texts = [field.name for field in self.pack.fields.values() if field.kind == "str"]
        # Lengths of another text than the dataset counts would give other blocks, without a word.
        if len(texts) != 1:
            reason = "rows are chosen by the length of a text, and the samples of the pack have "
            reason += f"{len(texts)} texts; set this to null"
            raise ConfigError(Problem("data.packed", reason))
        each = (self.pack.values(texts[0], np.array([row]))[0] for row in range(len(self)))
        # The name of a pack changes with its samples.
        cache = CacheFolder(self._cache_dir, f"packed-{self.record['name']}")
        return cache.text_lengths(f"lengths-{fingerprint([name])[:16]}", each, len(self), length)


def write_answers(folder: Path, dataset: Any, fields: Fields) -> dict[str, Any]:
    """Write what `dataset` tells besides its samples; returns the entries of pack.json.

    Raises:
        DataError: a column of its table cannot be packed.
    """
    import pandas as pd
    import pyarrow as pa

    table, path = table_of(dataset, fields), getattr(dataset, "path", None)
    whole = pd.DataFrame(index=range(len(dataset))) if table is None else table
    more, lengths = dict[str, Any](), columns_of(dataset).get("length")
    if lengths is not None:
        more[LENGTHS] = lengths
    if callable(path) and "path" not in whole:
        more["path"] = [path(row) for row in range(len(dataset))]
    try:
        # Feather keeps no index, and rows are numbered as samples are.
        whole.reset_index(drop=True).assign(**more).to_feather(folder / TABLE)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"the dataset's metadata cannot be packed: {str(error).splitlines()[0]}. Make its "
            "columns numbers, texts or categories."
        ) from error
    return {
        "reader": getattr(dataset, "reader", None),
        "facts": facts_of(dataset, fields),
        "classes": classes_of(dataset),
        "text": callable(getattr(dataset, "text_lengths", None)),
    }


def _is_picture(field: Field) -> bool:
    """Whether a field holds decoded pictures, uint8 [3, H, W]."""
    return field.channels_last and field.dtype == "|u1"
