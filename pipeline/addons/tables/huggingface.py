"""Datasets that Hugging Face's `datasets` has saved: its library finds the files, which are tables.

    datasets.load_dataset(NAME).save_to_disk(FOLDER)

Parquet files, as repositories have them, need no library: `dataset=parquet` reads them. Forwards,
`dataset=parquet_stream` reads the files of a saved folder by the names of its splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from penstock.addons.storage.files import RecordFiles
from penstock.addons.tables.kinds import Fields
from penstock.addons.tables.read import Csv
from penstock.addons.tables.table import Parquet
from penstock.datasets.reading.base import Split
from penstock.datasets.reading.image import Reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Fraction, Limits, Seed

_USUAL = {
    "train": ("train", "training"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


class HuggingFace(Parquet):
    """One sample: a row, with the fields that its columns become by their features.

    Args:
        root: the folder of `save_to_disk`, on this machine.
        split: "train", "val" or "test".
        splits: of the folder, for each of these: {val: dev}; null takes the usual names. Without
            one for validation, rows of the training split validate.
        fields, split_column, classes, val_fraction, split_seed, reader,
            cache_dir, limits, test_fraction: as in `penstock.addons.tables.table.Parquet`.
        lazy: give images undecoded, for a transform that decodes; the build sets it.

    Raises:
        DataError: the folder is none of `save_to_disk`, or as `Parquet`.
        ConfigError: `datasets` is not installed, there is no such split, or as `Parquet`.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        splits: Mapping[str, str] | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        cache_dir: str = "data/cache/tables",
        lazy: bool = False,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        saved = _files(root)
        named = {role: [name] for role, name in (splits or {}).items()}
        known = {
            role: next((name for name in named.get(role, usual) if name in saved), None)
            for role, usual in _USUAL.items()
        }
        if None not in saved and (
            known["train"] is None or not {*named} <= {r for r in known if known[r]}
        ):
            reason = f"{root!r} has the splits {', '.join(map(str, saved))}; say which one trains, "
            raise ConfigError(
                Problem("dataset.splits", f"{reason}and which validates: {{train: NAME}}")
            )

        def files_of(split: str) -> RecordFiles:
            own = saved[known[split] or known["train"]]
            made = RecordFiles([*map(str, own)], [p.relative_to(root).as_posix() for p in own])
            made.divided, made.tested = known["val"] is not None, known["test"] is not None
            made.whole = split != "train" and known[split] is not None
            return made

        self._cache_dir = cache_dir
        self._open(
            files_of,
            split,
            fields,
            split_column,
            classes,
            (val_fraction, split_seed, test_fraction),
            reader,
            limits,
            Csv(),
            lazy,
        )


def _files(root: str) -> dict[str | None, list[Path]]:
    """Split -> its Arrow files; None: of a dataset without splits."""
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        reason = "reads folders of Hugging Face's library: pip install datasets"
        raise ConfigError(Problem("dataset", reason)) from error
    try:
        loaded = datasets.load_from_disk(root)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"dataset.root: {root!r} is no folder of datasets.Dataset.save_to_disk: "
            f"{str(error).splitlines()[0]}. Parquet files are read by dataset=parquet."
        ) from error
    parts = dict(loaded) if isinstance(loaded, dict) else {None: loaded}
    return {n: [Path(file["filename"]) for file in of.cache_files] for n, of in parts.items()}
