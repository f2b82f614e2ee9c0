"""Clips of video files that a table names, whose columns say what is known of each."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.addons.image_tables.image_table import ImageTable
from penstock.addons.video.clips import ClipDataset, Clips
from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import Part, Sample
from penstock.datasets.reading.split import Split
from penstock.files.limits import DEFAULT, Limits
from penstock.ranges import Count, Fraction, Seed


class ClipTable(ClipDataset, ImageTable):
    """One sample: `video`, as in `VideoClips`, and what `ImageTable` makes of columns.

    Args:
        videos: the folder that paths start from, relative to `root`.
        frames, stride, size, most_decoded: see `Clips`.
        root, table, split, path, label, labels, separator, classes, numbers, caption, group,
            split_column, repeated, val_fraction, split_seed, delimiter, encoding, files, limits,
            test_fraction: as in `ImageTable`.

    Raises:
        DataError, ConfigError: as `ImageTable` and `VideoClips`.
    """

    def __init__(
        self,
        root: str,
        table: str,
        split: Split = "train",
        frames: Count = 16,
        stride: Count = 2,
        size: Count | None = None,
        most_decoded: Count = 3000,
        path: str = "path",
        videos: str = ".",
        label: str | None = None,
        labels: Sequence[str] | str | None = None,
        separator: str = "|",
        classes: Sequence[str] | None = None,
        numbers: Sequence[str] | None = None,
        caption: str | None = None,
        group: str | None = None,
        split_column: str | None = None,
        repeated: bool = False,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self.clips = Clips(frames, stride, size, most_decoded, split == "train")
        super().__init__(
            root,
            table,
            split,
            path=path,
            images=videos,
            label=label,
            labels=labels,
            separator=separator,
            classes=classes,
            numbers=numbers,
            caption=caption,
            group=group,
            split_column=split_column,
            repeated=repeated,
            val_fraction=val_fraction,
            split_seed=split_seed,
            delimiter=delimiter,
            encoding=encoding,
            files=files,
            limits=limits,
            test_fraction=test_fraction,
        )

    def __getitem__(self, index: int) -> Sample:
        return {"video": self.clip(index), **self.facts_of(index)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How clips are cut, and the parts of `ImageTable`."""
        return ["clip_table", *self.clips.parts(), *ImageTable.fingerprint_parts(self, sized)]
