"""Datasets of Hugging Face in a folder of this machine, or at an address; a row a sample.

`datasets` is not needed: a folder that it saved is Arrow files with a description in JSON.
`saved.py` says which folders there are, and `views.py` what becomes of their features.

Cost: that of uncompressed Arrow files, whose rows cost only their pages (`tables/parquet.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.audio.reading import check_soundfile
from penstock.addons.huggingface.saved import SPLITS, saved
from penstock.addons.huggingface.views import FeatureFiles
from penstock.addons.record_files.shard_files import ShardFiles
from penstock.addons.tables.arrow.cells import CellError
from penstock.addons.tables.arrow.columns import Fields, Kind, TableField
from penstock.addons.tables.arrow.files import ArrowFiles, features_of
from penstock.addons.tables.arrow.table import ArrowTable
from penstock.addons.tables.parquet import Parquet
from penstock.addons.tables.parquet_stream import ParquetStream
from penstock.datasets.files import open_root
from penstock.datasets.reading.base import Part, Split
from penstock.datasets.reading.image import Reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import read_file
from penstock.files.limits import Count, Fraction, Limits, Seed

if TYPE_CHECKING:
    from penstock.datasets.files import Files

# What bytes become, by their description; others are images.
_CONTENTS: dict[str, Kind] = {
    "Image": "image",
    "Audio": "audio",
    "Value": "bytes",
    "Video": "bytes",
    "Pdf": "bytes",
    "Nifti": "bytes",
}


class _Featured(ArrowTable):
    """The shared part of the map-style dataset and the stream; the first of their bases."""

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Those of the table, and what stands for nulls."""
        parts = super().fingerprint_parts(sized)
        return [*parts, *(f"{name}={value!r}" for name, value in sorted(self._nulls.items()))]

    def _read_as(
        self,
        splits: Mapping[str, str] | None,
        nulls: Mapping[str, Any] | None,
        external: str | None,
        lazy: bool,
    ) -> None:
        """Set what the constructor of the table needs."""
        unknown = next((name for name in splits or {} if name not in SPLITS), None)
        if unknown is not None:
            reason = f"there is no {unknown!r}; allowed: {', '.join(SPLITS)}"
            raise ConfigError(Problem("dataset.splits", reason))
        self._splits = {role: name for role, name in (splits or {}).items() if name is not None}
        self._nulls = dict(nulls or {})
        self.lazy = lazy
        self._folder: Path | None = None
        if external is not None:
            self._folder = Path(str(open_root(external, "the files that rows name"))).resolve()
            self.outside = self._read_outside
        self._described: Mapping[str, Any] = {}
        self._chosen: list[str] | None = None

    def _shards(self, root: str, split: str) -> ShardFiles:
        found = saved(root, self._splits, self._files)
        self._described, self._chosen = found.features, found.columns
        return found.shards(split, self._splits)

    def _opened(self, shards: ShardFiles) -> ArrowFiles:
        return FeatureFiles(shards.addresses, self._files, self._described, self._nulls)

    def _chosen_fields(
        self, fields: Fields | None, split_column: str | None, warn: bool
    ) -> list[TableField]:
        made: list[TableField] = []
        features = features_of(self.files.schema)
        for known in super()._chosen_fields(fields, split_column, warn):
            if fields is None and not self._is_of_format(known.column):
                continue
            if fields is None or _kind_of(fields[known.name]) is None:
                written = str(features.get(known.column, {}).get("_type"))
                if known.kind in ("image", "bytes"):
                    known = replace(known, kind=_CONTENTS.get(written, known.kind))
            made.append(known)
        if fields is None:
            made += _rates(made)
        if any(known.kind in ("audio", "rate") for known in made):
            check_soundfile()
        return made

    def _is_of_format(self, column: str) -> bool:
        """Whether the columns that were chosen when the dataset was saved have this one."""
        chosen = self._chosen
        return chosen is None or any(
            column == name or column.startswith(f"{name}.") for name in chosen
        )

    def _read_outside(self, path: str) -> bytes:
        """The content of a file that a row names; inside of `external` alone."""
        assert self._folder is not None
        try:
            file = (self._folder / path).resolve()
            if not file.is_relative_to(self._folder):
                raise CellError(f"its file {path!r} is outside of dataset.external")
            return read_file(file, self._limits)
        except (OSError, ValueError, DataError) as error:
            if isinstance(error, CellError):
                raise
            reason = getattr(error, "strerror", None) or error
            raise CellError(f"its file {path!r} cannot be read: {reason}") from error


def _kind_of(choice: object) -> object:
    """The kind that a choice of `fields` names."""
    return choice.get("kind", choice.get("columns")) if isinstance(choice, Mapping) else choice


def _rates(fields: Sequence[TableField]) -> list[TableField]:
    """The fields of the rates of audio: `rate` of a single one."""
    audio = [known for known in fields if known.kind == "audio"]
    taken = {known.name for known in fields}
    alone = len(audio) == 1 and "rate" not in taken
    names = ["rate" if alone else f"{known.name}_rate" for known in audio]
    return [
        TableField(name, known.column, "rate")
        for name, known in zip(names, audio, strict=True)
        if name not in taken
    ]


class HuggingFace(_Featured, Parquet):
    """One sample: a row, with the fields that its columns become by their features.

    Args:
        root: the folder: of `save_to_disk`, of the cache of `load_dataset`, or of Parquet or Arrow
            files whose names or folders begin with a split; here or at an address.
        split: "train", "val" or "test".
        splits: of the folder, for each of these: {val: dev}; null takes the usual names.
        fields: as in `penstock.addons.tables.parquet.Parquet`; a struct's are `x.a`. Null takes the
            columns of the format that was saved, or all, and adds the `rate` of audio.
        nulls: column -> what stands for its nulls: {text: "", age: 0}; others are refused.
        external: folder of files that rows have the paths of, and not the content.
        split_column, classes, metadata_columns, val_fraction, split_seed, reader, cache_mb, files,
            limits, test_fraction: as in `penstock.addons.tables.parquet.Parquet`.
        lazy: give images undecoded, for a transform that decodes; the build sets it.

    Raises:
        DataError: a file is missing, damaged or of another schema, or a split is empty.
        ConfigError: pyarrow or soundfile is not installed, or there is no such split, column,
            configuration or folder.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        splits: Mapping[str, str] | None = None,
        nulls: Mapping[str, Any] | None = None,
        external: str | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        metadata_columns: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        cache_mb: Count = 512,
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._read_as(splits, nulls, external, lazy)
        super().__init__(
            root,
            split,
            fields,
            split_column,
            classes,
            metadata_columns,
            val_fraction,
            split_seed,
            reader,
            cache_mb,
            files,
            limits,
            test_fraction,
        )


class HuggingFaceStream(_Featured, ParquetStream):
    """The same as a stream: row group after row group.

    Args:
        root, split, fields, splits, nulls, external: as in `HuggingFace`.
        split_column, classes, val_fraction, split_seed, reader, cache_mb, files, lazy, limits,
            test_fraction: as there.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        splits: Mapping[str, str] | None = None,
        nulls: Mapping[str, Any] | None = None,
        external: str | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        cache_mb: Count = 512,
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._read_as(splits, nulls, external, lazy)
        super().__init__(
            root,
            split,
            fields,
            split_column,
            classes,
            val_fraction,
            split_seed,
            reader,
            cache_mb,
            files,
            limits,
            test_fraction,
        )
