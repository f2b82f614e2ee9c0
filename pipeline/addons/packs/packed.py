"""Packed data: samples of another dataset, decoded once, read from where they lie.

    table.feather           the dataset's table (`metadata`), with the `path` of each row, and its
                            `lengths`
    pack.json               its `classes` and `facts`

`task=pack` makes the files and `data.packed=auto` uses them (docs/loading.md). Cost: 0.1 ms a file
to open; then a copy of each sample's numbers, for a whole batch at once if all samples have one
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.addons.packs.folder import RECORD, Field, Pack
from penstock.datasets.files import DataFile, Files, open_root
from penstock.datasets.reading.image import undecoded
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.collate import Ragged, kinds_of
from penstock.loading.encoded import EncodedImage, StoredPictures
from penstock.loading.facts import Fields, classes_of, columns_of, facts_of, table_of

if TYPE_CHECKING:
    import pandas as pd

TABLE = "table.feather"
_NUMBERS = ("tensor", "array", "int", "float", "bool")


class Packed(Pack, Dataset[dict[str, Any]]):
    """Samples as the dataset gave them that was packed, to the bit and of the same types.

    Its `metadata` is that of the dataset, with the dataset's `lengths` as a column, and its texts
    where the dataset counts their tokens.

    Args:
        folder: a pack, or a folder with a pack for each split ("train", "val"); or the address of
            one, of whose large fields only what batches need is fetched.
        split: "train" or "val".
        lazy: give packed image files undecoded, for a transform that decodes; the build sets it.
        limits: what a packed image file may claim.
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
        files: Files | None = None,
    ) -> None:
        self.limits, self.lazy = limits, lazy
        at = open_root(folder, "a pack", files)
        is_one = at.first_missing([RECORD]) is None
        super().__init__(at if is_one else at.below(split))
        record = self.record
        # A pack of the training split, named by its own folder, would validate the model as well.
        if record["split"] != split:
            raise DataError(
                f"{folder!r} holds the split {record['split']!r}, not {split!r}; name the folder "
                "that both are in, as task=pack writes them with pack.out"
            )
        self.reader: str = record["reader"] or "torchvision"
        self.facts, self.classes = record["facts"], record["classes"]
        self.fingerprint: str = record["fingerprint"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        # Offsets have one entry more than there are rows, so numpy would take -1 for another row.
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} samples, not one numbered {index}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch."""
        rows = np.asarray(indices, dtype=np.int64)
        columns: dict[str, list[Any]] = {}
        for name, field in self.fields.items():
            columns[name] = values = self.values(name, rows)
            if field.kind == "file":
                images = [*map(self._image, rows.tolist(), values)]
                columns[name] = images if self.lazy else [image.decode() for image in images]
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

    def _image(self, row: int, content: bytes) -> EncodedImage:
        return undecoded(content, f"{self.folder}, sample {row}", self.reader, self.limits)

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `fetch_batch` can be used: every field is of numbers of one shape, or texts."""
        return all(
            field.kind in ("str", "bytes") or (field.kind in _NUMBERS and field.shape is not None)
            for field in self.fields.values()
        )

    @cached_property
    def fetches_pictures(self) -> bool:
        """Whether `fetch_batch` can leave pictures in place: there are some, and no points."""
        fields = self.fields.values()
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
        return {
            name: self.pictures(name, rows)
            if in_place and _is_picture(field)
            else self.gathered(name, rows)
            for name, field in self.fields.items()
        }

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kinds of fields for transforms of batches: see `penstock.loading.collate.kinds_of`."""
        return kinds_of(self[0])

    @property
    def metadata(self) -> pd.DataFrame | None:
        """The table of the dataset that was packed, a row a sample, with its `lengths`."""
        import pandas as pd

        table = pd.read_feather(self.files.path(self.files.names.index(TABLE)))
        # Texts whose tokens the dataset counts: a column of characters would give other blocks.
        names = [name for name, of in self.fields.items() if of.kind == "str" and name not in table]
        if self.record["text"]:
            rows = np.arange(len(self))
            table = table.assign(**{name: self.values(name, rows) for name in names})
        return table if len(table.columns) else None

    def names_fingerprint(self) -> str:
        """That of the dataset that was packed, at the time of packing."""
        return self.fingerprint

    def data_files(self) -> list[DataFile]:
        """The files that samples are read from: the pack's."""
        return self.files.data_files()


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
    if lengths is not None and "length" not in whole:
        more["length"] = lengths
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
