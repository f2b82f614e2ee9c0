"""Images in a folder, and a table that says what is known of each.

    root/table.csv      path,label,age,caption,patient
                        cats/0001.jpg,cat,3.5,a cat on a mat,p17
    root/cats/0001.jpg  (the path is relative to root, or to `images`)

Which column is what says the configuration; the others stand in `metadata`, for filters and
samplers. Cost: the table in memory; one listing of each folder that it names, no image opened; and
one image read a sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageDraw

from penstock.addons.tables.read import exact
from penstock.addons.tabular.frames import read_frame
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import Files, generated_data, open_root
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Shares,
    Split,
    table,
)
from penstock.datasets.reading.image import (
    Orientation,
    Reader,
    check_reader,
    encoded_image,
    read_image,
)
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Count, Limits, Seed
from penstock.order.keys import IntArray, hash64
from penstock.terminal import watched

_CORNERS = {"circle": 48, "square": 4, "triangle": 3, "star": 10}
_COLORS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (38, 98, 214),
    "yellow": (240, 196, 25),
}
_SIZES = {"small": 0.13, "large": 0.21}  # radii, as shares of the picture's side
_SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}
# What a sample has of the fields of a row: tensors of their own, which a transform may write to.
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "label": int,
    "labels": torch.tensor,
    "numbers": torch.tensor,
    "caption": str,
}


class ImageTable(FolderDataset):
    """One sample: `image` (uint8 [3, H, W], or as `lazy` says), and of the columns that are named:

    `label` (int), `labels` (float32 [C] of 0 and 1), `numbers` (float32 [K]), `caption` (str).

    Samples are in the order of their paths, and rows of one file in that of the table.

    Args:
        root: folder of the table; a path or an address.
        table: name of the table in it: .csv, .tsv, .parquet, .arrow or .feather.
        split: "train", "val" or "test".
        path: the column of paths.
        images: the folder that paths start from, relative to `root`.
        label: the column of a class; null, or with `labels`: none.
        labels: columns of 0 and 1, a class each; or one column of the names of all classes that a
            row has, between `separator`s.
        separator: of names in one column of `labels`.
        classes: names of the classes of `label`, or of one column of `labels`, in order; null:
            those of the whole table, by name.
        numbers: columns of numbers.
        caption: the column of a text.
        split_column: the column that says train, val (or validation) or test; null: by
            `shares`.
        repeated: a file may be in several rows, as one with several captions; all are in one
            split.
        reader: "torchvision", "pillow" or "skimage".
        shares: of the rows that validate and test, of each class alike (of several labels, of the
            rarest that a row has).
        delimiter: of columns; null: a tab for .tsv, else a comma.
        encoding: of a CSV or TSV.
        files: access to addresses.
        lazy: give `image` as an EncodedImage, undecoded, for a transform of
            `penstock.transforms.image_decoding`; the build sets it for those.
        limits: what a file and the table may claim.
        orientation: "apply" turns images as their EXIF says; "ignore" takes them as they are
            stored, for `numbers` that are positions in these; None: "apply".

    Raises:
        DataError: the table or an image is missing, or the table has a mistake: a path twice, a
            class that is not in `classes`, a number that is not finite. Names the row and the
            column.
        ConfigError: there is no such column, or an argument is invalid.
    """

    def __init__(
        self,
        root: str,
        table: str,
        split: Split = "train",
        path: str = "path",
        images: str = ".",
        label: str | None = None,
        labels: Sequence[str] | str | None = None,
        separator: str = "|",
        classes: Sequence[str] | None = None,
        numbers: Sequence[str] | None = None,
        caption: str | None = None,
        split_column: str | None = None,
        repeated: bool = False,
        reader: Reader = "torchvision",
        shares: Shares = Shares(),
        delimiter: str | None = None,
        encoding: str = "utf-8",
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader, self.lazy, self.limits = check_reader(reader, orientation), lazy, limits
        # A sample has one class or several.
        label = label if labels is None else None
        folder = open_root(root, f"the table {table!r}", files)
        if folder.first_missing([table]) is not None:
            raise DataError(
                f"dataset.table: {folder.path(table)!r} is missing. Name one below dataset.root."
            )
        roles = {"path": path, "label": label, "labels": labels, "caption": caption}
        frame = read_frame(
            folder.path(table),
            {**roles, "split_column": split_column, "numbers": numbers},
            # These are names even where all cells of a CSV look like numbers: 0001 is not 1.
            texts=[name for name in roles.values() if isinstance(name, str)],
            files=files,
            delimiter=delimiter,
            encoding=encoding,
        )
        self.folder, names = folder.below(images), frame.texts(path)
        if not repeated:
            frame.refuse(
                path,
                pd.Series(names).duplicated(),
                "is in an earlier row, too. Remove one of the rows; or, if a file may be in "
                "several, set dataset.repeated=true",
            )
        # One listing a folder, and no look at each file: by much the faster on a network's disk.
        missing = self.folder.first_missing(names)
        if missing is not None:
            raise frame.error(
                missing,
                path,
                f"is missing ({self.folder.path(names[missing])!r}). Put it there or remove the "
                "row (or set dataset.images to the folder that paths start from)",
            )
        self.classes = [*map(str, classes or ())]
        self.fields, strata = dict[str, Any](), None
        if label is not None:
            self.classes = self.classes or sorted({*frame.texts(label)})
            check_classes(len(self.classes), f"{frame.name!r}, column {label!r}", limits)
            self.fields["label"] = strata = frame.codes(label, self.classes, all_known=True)
        if isinstance(labels, str):
            cells = [
                {*map(str.strip, (word or "").split(separator))} - {""}
                for word in frame.words(labels)
            ]
            self.classes = self.classes or sorted(set[str]().union(*cells))
            # Before the array that has a column a class.
            check_classes(len(self.classes), f"{frame.name!r}, column {labels!r}", limits)
            flags = np.array([[name in cell for name in self.classes] for cell in cells])
            others = flags.sum(1) < [*map(len, cells)]
            frame.refuse(labels, others, f"is none of the classes {', '.join(self.classes[:8])}")
        elif labels is not None:
            self.classes = [*labels]
            flags = np.stack([frame.numbers(name, complete=True) for name in labels], 1)
            for name, values in zip(labels, flags.T, strict=True):
                wrong = "is neither 0 nor 1. Correct it, or take the column out of dataset.labels"
                frame.refuse(name, values * values != values, wrong)
        if labels is not None:
            self.fields["labels"] = flags.astype(np.float32)
            # A row of several labels has no class of its own to be divided by: the rarest is. One
            # without a label is of a class of its own.
            rarest = np.where(flags, flags.sum(0), np.inf).argmin(1)
            strata = np.where(flags.any(1), rarest, flags.shape[1])
        if numbers:
            values = np.stack([frame.numbers(name, complete=True) for name in numbers], 1)
            for name, beyond in zip(
                numbers, (np.abs(values) > np.finfo(np.float32).max).T, strict=True
            ):
                frame.refuse(
                    name, beyond, "is beyond float32. Correct it, or store it in other units"
                )
            self.fields["numbers"] = values.astype(np.float32)
        if caption is not None:
            self.fields["caption"] = np.array(frame.texts(caption), object)
        # Bytes: names of files need not be text.
        encoded = np.array([*map(os.fsencode, names)])
        files_of, firsts, file_of = np.unique(encoded, return_index=True, return_inverse=True)
        if split_column is not None:
            parts = [_SPLITS.get(name.lower()) for name in frame.texts(split_column)]
            frame.refuse(split_column, pd.isna(parts), "is none of train, val, test. Correct it")
            chosen = np.array(parts) == split
        else:
            # Rows of one file belong together, and have no class of their own.
            alike = strata[firsts] if strata is not None and len(firsts) == len(names) else None
            own = shares.rows(split, files_of, alike)
            chosen = np.isin(file_of, own)
        # In the order of paths, so that another order of the table changes no sample.
        by_name = np.argsort(file_of, kind="stable")
        self.rows: IntArray = by_name[chosen[by_name]]
        self.names = encoded[self.rows]
        self.fields = {name: values[self.rows] for name, values in self.fields.items()}
        # Of this split only; workers share it, as it is never written to.
        self._table = frame.table.take(self.rows)

    def __getitem__(self, index: int) -> Sample:
        read = encoded_image if self.lazy else read_image
        image = self._read(index, lambda path, shown: read(path, self.reader, shown, self.limits))
        facts = {name: _VALUES[name](values[index]) for name, values in self.fields.items()}
        return {"image": image, **facts}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: all columns of the table, as numbers where all cells are numbers.

        With the columns `path` (of the file), and with a label also `label` (its number) and
        `class`, instead of columns that are called so.
        """
        cells = {name: exact(self._table[name]) for name in self._table.column_names}
        own = {"label": self.fields["label"]} if "label" in self.fields else {}
        return table({**cells, "path": self._paths(), **own}, self.classes if own else ())

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_classes, num_outputs."""
        numbers = self.fields.get("numbers")
        return super().facts or ({} if numbers is None else {"num_outputs": numbers.shape[1]})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and columns."""
        columns = [self.fields.get(name, "none") for name in ("label", "labels", "numbers")]
        parts = [*self._file_parts(sized), *self.fields.get("caption", []), *columns]
        return ["image_table", self.reader, len(self.classes), *self.classes, *parts]


class DrawnScenes(ImageTable):
    """Two shapes, each small or large and of one of four colours, one above or beside the other.

    Samples as in `ImageTable`: of the columns `label` (both shapes), `colors` (both colours),
    `labels` (colours and shapes that occur), `caption` and the number `angle` (of the first shape,
    in degrees). Scene `i` is a function of (seed, i, size), so a larger `count` begins with the
    same scenes.

    The first use writes pictures and table into a folder of `root` that is named by its arguments:
    1 ms and 2 kB a picture of 64 px.

        path,label,colors,labels,caption,angle
        scene_000000.jpg,circle and square,blue and red,blue|circle|red|square,a small red circle...

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        count: of scenes of all splits.
        size: height and width in pixels, 32 to 512.
        seed: other scenes for another seed.
        split, label, labels, numbers, caption, shares, reader, lazy, limits: as in `ImageTable`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Count = 2000,
        size: Count = 64,
        seed: Seed = 0,
        label: str | None = "label",
        labels: str | None = None,
        numbers: list[str] | None = None,
        caption: str | None = None,
        shares: Shares = Shares(),
        reader: Reader = "torchvision",
        lazy: bool = False,
        limits: Limits = DEFAULT,
    ) -> None:
        name = f"{count}x{size}-seed{seed}-v1"  # another version when the drawings change
        with generated_data(
            root, "drawn_scenes", name, lambda folder: _write(folder, count, size, seed)
        ) as made:
            super().__init__(
                made,
                "scenes.csv",
                split,
                label=label,
                labels=labels,
                numbers=numbers,
                caption=caption,
                reader=reader,
                shares=shares,
                lazy=lazy,
                limits=limits,
            )


def _write(folder: Path, count: int, size: int, seed: int) -> None:
    rows, large = list[dict[str, str]](), size * 4
    ramp = np.linspace(0, 1, large)
    for number in watched(range(count), count, "drawing scenes"):
        # A key for each scene, so that it does not depend on those before it; and draws stand in
        # one order, whatever comes of them.
        random = np.random.default_rng(hash64(seed, "scene", number))
        # Grey that slowly changes from corner to corner.
        grey = random.uniform(70, 190) + random.uniform(-50, 50) * ramp[:, None]
        grey = (grey + random.uniform(-50, 50) * ramp)[..., None] + random.uniform(-12, 12, 3)
        # Reduced at the end, which makes smooth edges; ImageDraw itself draws steps.
        picture = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
        above, drawn = bool(random.integers(2)), list[tuple[str, str, str, float]]()
        for place in (0.27, 0.73):
            shape, color, scale = (str(random.choice([*of])) for of in (_CORNERS, _COLORS, _SIZES))
            along, across = place + random.uniform(-0.05, 0.05), random.uniform(0.28, 0.72)
            angle = float(random.uniform(0, 360))
            radius, points = _SIZES[scale] * random.uniform(0.92, 1.08), np.arange(_CORNERS[shape])
            turns = points * (2 * np.pi / len(points)) + np.radians(angle)
            radii = np.where(points % 2, 0.42 if shape == "star" else 1.0, 1.0)[:, None]
            corners = np.stack([np.cos(turns), np.sin(turns)], axis=1) * radii * radius
            corners = (corners + ((across, along) if above else (along, across))) * large
            fill = tuple(int(level + random.uniform(-18, 18)) for level in _COLORS[color])
            ImageDraw.Draw(picture).polygon([*map(tuple, corners.tolist())], fill=fill)
            drawn.append((shape, color, f"a {scale} {color} {shape}", angle))
        shapes, colors, words, angles = zip(*drawn, strict=True)
        row = {
            "path": f"scene_{number:06d}.jpg",
            "label": " and ".join(sorted(shapes)),
            "colors": " and ".join(sorted(colors)),
            "labels": "|".join(sorted({*shapes, *colors})),
            "caption": f"{words[0]} {'above' if above else 'left of'} {words[1]}",
            "angle": f"{angles[0]:.1f}",
        }
        picture.resize((size, size), Image.Resampling.LANCZOS).save(
            folder / row["path"], quality=92
        )
        rows.append(row)
    pd.DataFrame(rows).to_csv(folder / "scenes.csv", index=False, lineterminator="\n")
