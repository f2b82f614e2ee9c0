"""Which files of a folder of Hugging Face's `datasets` belong to a split, and what they hold.

    root/dataset_dict.json, root/train/, root/test/ ...   DatasetDict.save_to_disk
    root/state.json, dataset_info.json, data-*.arrow      Dataset.save_to_disk
    root/dataset_info.json, imdb-train.arrow ...          a folder of the cache of load_dataset
    root/data/train-00000-of-00002.parquet ...            a repository; to_parquet

The names of splits divide the data: `train` trains, `validation` (valid, val, dev) validates, and
`test` (testing, eval, evaluation) is for the test. Without validation, the rows of `train` are
divided.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.addons.record_files.shard_files import ShardFiles
from penstock.addons.tables.arrow.files import SUFFIXES
from penstock.datasets.files import Files, open_root
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.paths import join

SPLITS = {
    "train": ("train", "training"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_DICT, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"
# train-00000-of-00002.parquet, imdb-train.arrow, train-00000-of-00001-0123456789abcdef.parquet
_NUMBERED = re.compile(r"(?:-\d{1,9}(?:-of-\d{1,9})?)?(?:-[0-9a-f]{16})?\.[a-z]+$")
_SAVE = (
    "Save a dataset there: datasets.load_dataset(NAME).save_to_disk(FOLDER), or download its "
    "Parquet files"
)


@dataclass
class Saved:
    """A folder: its files by the names of their splits.

    Attributes:
        root: the folder.
        splits: split -> names of files relative to `root`, in order; None: of none.
        features: column -> its description, as `dataset_info.json` has it; empty if none does.
        columns: that a format of `datasets` chose; None: all.
    """

    root: str
    splits: dict[str | None, list[str]] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    columns: list[str] | None = None

    def shards(self, split: str, names: Mapping[str, str]) -> ShardFiles:
        """The files of "train", "val" or "test".

        Args:
            names: of the splits, where they are others than usual.

        Raises:
            ConfigError: there is no such split, or none to train from.
        """
        if set(self.splits) == {None}:
            if names:
                reason = f"{self.root!r} is one dataset without splits; leave this key out"
                raise ConfigError(Problem("dataset.splits", reason))
            return self._files(None, divided=False, tested=False, whole=False)
        known = {role: self._named(role, names.get(role)) for role in SPLITS}
        if known["train"] is None:
            reason = f"there is no split 'train', only {self._shown()}"
            example = "say which one trains: dataset.splits={train: NAME}"
            raise ConfigError(Problem("dataset.splits", f"{reason}; {example}"))
        own = known[split]
        if own is None:  # its rows are taken from those of training
            own = known["train"]
        whole = split != "train" and known[split] is not None
        return self._files(own, known["val"] is not None, known["test"] is not None, whole)

    def _named(self, role: str, name: str | None) -> str | None:
        if name is None:
            return next((usual for usual in SPLITS[role] if usual in self.splits), None)
        if name not in self.splits:
            reason = f"{self.root!r} has no split {name!r}, only {self._shown()}"
            raise ConfigError(Problem(f"dataset.splits.{role}", reason))
        return name

    def _shown(self) -> str:
        return ", ".join(sorted(name for name in self.splits if name is not None)[:20])

    def _files(self, split: str | None, divided: bool, tested: bool, whole: bool) -> ShardFiles:
        names = self.splits[split]
        addresses = [join(self.root, name) for name in names]
        return ShardFiles(addresses, names, divided, tested, whole)


def saved(root: str, splits: Mapping[str, str], files: Files) -> Saved:
    """The tables and descriptions in the folder `root`.

    Raises:
        DataError: it is missing, has no table, or a description in it is damaged.
        ConfigError: it holds several datasets.
    """
    try:
        folder = open_root(root, "a dataset of Hugging Face", files)
    except DataError as error:
        raise DataError(f"{error} {_SAVE}.") from error
    root, names = str(folder), folder.files()
    there = set(names)
    if _DICT in there:
        return _of_dict(root, files, there)
    if _STATE in there:
        return _of_folder(root, "", files, there)
    tables = [
        name
        for name in names  # without the results that `datasets` has kept
        if name.endswith(SUFFIXES) and not name.rpartition("/")[2].startswith(("cache-", "_"))
    ]
    if not tables:
        raise DataError(
            f"dataset.root: {root!r} has none of {_DICT}, {_STATE} and files that end in "
            f"{', '.join(SUFFIXES)}. {_SAVE}."
        )
    inner = sorted({name.rpartition("/")[0] for name in there if name.endswith("/" + _STATE)})
    if inner:
        reason = f"{root!r} is no dataset, but has some in it: {', '.join(inner[:8])}; name one"
        raise ConfigError(Problem("dataset.root", reason))
    found = Saved(root)
    usual = {name for many in SPLITS.values() for name in many} | set(splits.values())
    info = _described(root, _INFO, files) if _INFO in there else {}
    found.features = _features(info, join(root, _INFO))
    if isinstance(info.get("splits"), dict):
        usual |= set(info["splits"])
    for name in tables:
        found.splits.setdefault(_split_of(name, usual), []).append(name)
    if len(found.splits) > 1:
        found.splits.pop(None, None)
    _check_alone(found, usual)
    return found


def _of_dict(root: str, files: Files, there: set[str]) -> Saved:
    names = _described(root, _DICT, files).get("splits")
    if not isinstance(names, list) or not names:
        raise _damaged(root, _DICT, "it names no splits")
    found = Saved(root)
    for name in names:
        part = _of_folder(root, f"{name}/", files, there)
        found.splits[name] = part.splits[None]
        found.features = found.features or part.features
        found.columns = part.columns if found.columns is None else found.columns
    return found


def _of_folder(root: str, below: str, files: Files, there: set[str]) -> Saved:
    """A saved dataset, in a folder of `root` or in itself."""
    if below + _STATE not in there:
        raise DataError(
            f"{join(root, below + _STATE)!r} is missing: the split was not saved whole. Save the "
            "dataset again."
        )
    state = _described(root, below + _STATE, files)
    listed = state.get("_data_files")
    names = [part.get("filename") if isinstance(part, dict) else None for part in listed or [None]]
    if not all(isinstance(name, str) for name in names):
        raise _damaged(root, below + _STATE, "it does not name its files")
    if state.get("_indices_data_files"):
        raise DataError(
            f"{join(root, below + _STATE)!r} was written by datasets 1, and its rows are in "
            "another order. Load it and save it again."
        )
    missing = next((name for name in names if below + str(name) not in there), None)
    if missing is not None:
        raise DataError(
            f"{join(root, below + str(missing))!r} is missing, which {_STATE} names. Save the "
            "dataset again."
        )
    columns = state.get("_format_columns")
    if state.get("_output_all_columns") or not isinstance(columns, list):
        columns = None
    found = Saved(root, {None: [below + str(name) for name in names]}, columns=columns)
    if below + _INFO in there:
        info = _described(root, below + _INFO, files)
        found.features = _features(info, join(root, below + _INFO))
    return found


def _described(root: str, name: str, files: Files) -> dict[str, Any]:
    """A JSON file of a folder."""
    try:
        content = files.read(join(root, name), lambda path: Path(path).read_bytes())
        return {**json.loads(content)}
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(root, name, str(error)) from error


def _damaged(root: str, name: str, reason: str) -> DataError:
    return DataError(f"{join(root, name)!r} is damaged: {reason}. Save the dataset again.")


def _features(info: Mapping[str, Any], name: str) -> dict[str, Any]:
    features = info.get("features") or {}
    if not isinstance(features, dict):
        raise DataError(f"{name!r}: `features` is no mapping. Save the dataset again.")
    return features


def _split_of(name: str, known: set[str]) -> str | None:
    """The split that the name of a file ends in, or a folder above it has."""
    parts = name.split("/")
    stem = _NUMBERED.sub("", parts[-1])
    for text in (stem, stem.rpartition("-")[2], *reversed(parts[:-1])):
        if text in known:
            return text
    return None


def _check_alone(found: Saved, usual: set[str]) -> None:
    """Raise ConfigError if the training files are those of several configurations."""
    if None in found.splits:
        return
    names: Sequence[str | None] = [name for name in SPLITS["train"] if name in found.splits]
    for split in names:
        folders = {
            "/".join(part for part in name.split("/")[:-1] if part not in usual)
            for name in found.splits[split]
        }
        if len(folders) > 1:
            several = ", ".join(sorted(folders)[:8])
            reason = f"{found.root!r} has several configurations: {several}; name one's folder"
            raise ConfigError(Problem("dataset.root", reason))
