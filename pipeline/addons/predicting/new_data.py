"""Data without labels, as a run's model reads it.

    pictures         a folder of them at any depth, one file, or a list of files
    arrays           one .npy, or a folder that has the inputs' file
    anything else    what the dataset's own `of_learned` or `unlabelled` gives; else the run's
                     dataset at another root, without the column of labels where it can be

Where rows need what training rows say (categories, scales), a dataset has `learned`, a mapping of
plain values that goes into the run's manifest, and a class method `of_learned(root, learned, files,
limits)`. With a method `unlabelled(root)` alone, the training data has to be there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from penstock.addons.predicting.trained import Learned
from penstock.build.data import DataParts, Split
from penstock.config.targets import arguments, called, options
from penstock.datasets.arrays import Arrays, MappedArray
from penstock.datasets.files import DataFile, FolderFile, Root, open_root, with_endings
from penstock.datasets.image_folder import EXTENSIONS
from penstock.datasets.reading.base import FileDataset, FolderDataset, Part, Sample
from penstock.datasets.reading.image import check_reader, encoded_image, read_image
from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.files.limits import Limits
from penstock.loading.facts import unfiltered
from penstock.order.plan import Plan
from penstock.order.samplers import Subset


class NewData(Split):
    """The data to predict, with the transforms of validation.

    Args:
        root: where it lies; or a list of files.
        rows: "FROM:TO", which of them; None: all.
        learned: what the run's manifest says of its training data; None: that is opened.
    """

    def __init__(
        self,
        data: DataParts,
        root: str | Sequence[str],
        rows: str | None = None,
        learned: Learned | None = None,
    ) -> None:
        super().__init__(data, "test")
        self._root, self._rows, self._learned = root, rows, learned

    @cached_property
    def dataset(self) -> Any:
        key, node = self.data.train.node
        kind, limits = called(node), self.config.limits
        names = arguments(kind)
        learned, files = self._learned, options(self.config, "files")
        if learned is not None and learned.of_dataset and hasattr(kind, "of_learned"):
            return kind.of_learned(self._root, learned.of_dataset, files, limits)
        if hasattr(kind, "unlabelled"):
            return self._trained(key, node).unlabelled(self._root)
        is_class = isinstance(kind, type)  # and no function
        if is_class and issubclass(kind, FolderDataset) and "reader" in names:
            reader = check_reader(node.get("reader", "torchvision"), node.get("orientation"))
            return Pictures(self._root, reader, self.decodes, limits)
        if not isinstance(self._root, str):
            reason = f"{node['_target_']} has no rows of files; name a root"
            raise ConfigError(Problem("dataset.root", reason))
        if is_class and issubclass(kind, Arrays):
            return Inputs(self._root, str(self.data.config.dataset.get("inputs")), limits)
        # One that divides rows by itself would leave some of the new ones out.
        ours = kind.__module__.startswith("penstock.")
        if "root" not in node or (not ours and {"split", "train"} & set(names)):
            raise self.refusal("does not say how rows without labels are read")
        try:
            return self.data.train.read(self.decodes, **self._elsewhere(names, node))
        except PenstockError:
            raise
        except Exception as error:  # of a person's own class, made for files with labels
            reason = f"cannot read {self._root!r}: {type(error).__name__}: {error}"
            raise self.refusal(reason) from error

    def refusal(self, reason: str) -> ConfigError:
        """The error of a dataset that rows without labels are not for."""
        key, node = self.data.train.node
        advice = "give it a method unlabelled(root), which returns a dataset of samples without the"
        reason = f"{node['_target_']} {reason}; {advice} target (docs/predicting.md)"
        return ConfigError(Problem(key, reason))

    def _trained(self, key: str, node: Mapping[str, Any]) -> Any:
        """The training rows themselves."""
        if self._learned is None:
            return unfiltered(self.data.train.dataset)
        return unfiltered(DataParts(self.data.config, self.data.world).train.dataset)

    def _elsewhere(self, names: Collection[str], node: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the run's dataset for rows without labels at another root."""
        target = self.config.objective.get("target")
        made: dict[str, Any] = {"root": self._root}
        made |= {name: 0.0 for name in ("val_fraction", "test_fraction") if name in names}
        made |= {name: None for name in ("label", "val_file", "split_column") if name in names}
        if "file" in names and Path(str(self._root)).is_file():
            made["file"] = None
        if isinstance(node.get("fields"), Mapping) and "fields" in names:
            made["fields"] = {name: of for name, of in node["fields"].items() if name != target}
        return made

    @cached_property
    def plan(self) -> Plan:
        count = len(self.dataset)
        first, _, last = (self._rows or ":").partition(":")
        rows = range(count)[int(first or 0) : int(last or count)]
        if not rows:
            asked = "no rows" if self._rows is None else f"{count} rows, and none in {self._rows}"
            raise DataError(f"dataset.root: {self._root!r} has {asked}")
        return Plan(Subset(count, 0, indices=rows, shuffle=False), self.batch_size, "keep")


class Pictures(FolderDataset):
    """One sample: `image`, as in `ImageFolder`; files in the order of their names.

    Raises:
        DataError: there is none.
    """

    def __init__(self, root: str | Sequence[str], reader: str, lazy: bool, limits: Limits) -> None:
        self.reader, self.lazy, self.limits = reader, lazy, limits
        if not isinstance(root, str) or Path(root).is_file():
            paths = [root] if isinstance(root, str) else root
            self.folder = Root("")
            names = [str(Path(path).absolute())[1:] for path in paths]
        else:
            self.folder = open_root(root, "the pictures")
            names = with_endings(self.folder.files(), EXTENSIONS, root)
        if not names:
            raise DataError(
                f"dataset.root: {root!r} has no pictures: files that end in {', '.join(EXTENSIONS)}"
            )
        self.names = np.array([os.fsencode(name) for name in names])

    def __getitem__(self, index: int) -> Sample:
        read = encoded_image if self.lazy else read_image
        return {
            "image": self._read(
                index, lambda path, shown: read(path, self.reader, shown, self.limits)
            )
        }

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Names, and with `sized` sizes."""
        return ["pictures", *self._file_parts(sized)]


class Inputs(FileDataset):
    """One sample: `input`, as in `Arrays`.

    Raises:
        DataError: the file is missing or damaged.
    """

    def __init__(self, root: str, name: str, limits: Limits) -> None:
        path = Path(root)
        folder = path if path.is_dir() else path.parent
        file = FolderFile(open_root(str(folder), repr(name)), name if path.is_dir() else path.name)
        self._inputs = MappedArray(file, "dataset.root", limits)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> Sample:
        from penstock.datasets.arrays import block

        return {"input": block(self._inputs, np.array([index]))[0]}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The file, of a large one evenly spread blocks."""
        return ["inputs", *self._inputs.fingerprint_parts(sized)]

    def data_files(self) -> list[DataFile]:
        return [self._inputs.data_file()]
