"""Pictures, and a mask of each: a class for every pixel, as a number or as a colour.

    root/images/a.jpg            root/masks/a.png                 divided by `val_fraction`
    root/images/train/a.jpg      root/masks/train/a.png           divided already, with val

Cost: one walk over both folders, no picture opened; a picture and a mask read a sample.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.datasets.arrays import check_classes
from penstock.datasets.files import Files, open_root, with_endings
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Split,
    check_split,
    split_rows,
)
from penstock.datasets.reading.image import (
    Orientation,
    Reader,
    check_reader,
    encoded_image,
    loaded,
    opened_image,
    read_image,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed

if TYPE_CHECKING:
    import pandas as pd

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
_MASKS = (".png", ".bmp", ".gif", ".tif", ".tiff")  # which lose nothing; a JPEG changes numbers
_LOOKED_AT = 100  # masks of training, where a class is in none: half a second
Mask = npt.NDArray[np.uint8]

_log = logging.getLogger(__name__)


class ImageMasks(FolderDataset):
    """One sample: `image` (uint8 [3, H, W]) and `mask` (Mask uint8[H, W], a class each pixel).

    Args:
        root: folder of the data; a path or an address.
        split: "train", "val" or "test".
        classes: their names, in the order of their numbers from 0; or a mapping of names to
            colours, [red, green, blue], for masks of colours.
        images, masks: folders of the pictures and of the masks, relative to `root`; a picture and
            its mask have the same name up to the ending.
        ignored: the number in masks of pixels that nobody has said anything of.
        ignored_color: their colour, for masks of colours; null: every colour is a class's.
        suffix: what the names of masks have more, before the ending: "_mask" for a_mask.png.
        reader: "torchvision", "pillow" or "skimage", of the pictures; Pillow reads masks.
        val_fraction, split_seed: share of the pictures that validate, and the seed of the split;
            without effect where both folders have "train" and "val".
        files: access to addresses.
        limits: what a file and a picture may claim.
        test_fraction: share of the pictures to keep for a test.
        orientation: "apply" (also null) turns pictures and masks as their own EXIF says; "ignore"
            takes both as they are stored.

    Raises:
        DataError: a folder or a mask is missing. A mask of another size, or with a number or colour
            that is no class's, is refused when it is read.
        ConfigError: classes or another argument are invalid.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "mask")

    def __init__(
        self,
        root: str,
        classes: Sequence[str] | Mapping[str, Sequence[int]],
        split: Split = "train",
        images: str = "images",
        masks: str = "masks",
        ignored: int = 255,
        ignored_color: Sequence[int] | None = None,
        suffix: str = "",
        reader: Reader = "torchvision",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader = check_reader(reader, orientation)
        check_split(split, val_fraction, test_fraction)
        self.limits, self.ignored = limits, ignored
        self._mask_reader = check_reader("pillow", orientation)
        self.classes, self._colors = _classes(classes, ignored, ignored_color)
        check_classes(len(self.classes), "dataset.classes", limits)
        root_folder = open_root(root, f"folders {images!r} and {masks!r}", files)
        for key, name in (("images", images), ("masks", masks)):
            if not root_folder.below(name).exists():
                hint = f"Put it there, or set dataset.{key}"
                raise DataError(f"dataset.{key}: {root_folder.path(name)!r} is missing. {hint}.")
        self.folder, self._masks = root_folder.below(images), root_folder.below(masks)
        divided = all(self.folder.below(name).exists() for name in ("train", "val"))
        tested = divided and self.folder.below("test").exists()
        whole = tested if split == "test" else divided and (split == "val" or tested)
        if divided:
            split_folder = "train" if split == "test" and not tested else split
            self.folder, self._masks = (
                self.folder.below(split_folder),
                self._masks.below(split_folder),
            )
        shown = str if divided or split == "train" else lambda folder: None  # of two splits, one
        pictures = with_endings(self.folder.files(), EXTENSIONS, shown(self.folder))
        if not pictures:
            ends = ", ".join(EXTENSIONS)
            raise DataError(f"{str(self.folder)!r} has no images (files that end in {ends}).")
        mask_files = with_endings(self._masks.files(), _MASKS, shown(self._masks))
        there = {name.rpartition(".")[0]: name for name in mask_files}
        stems = [name.rpartition(".")[0] + suffix for name in pictures]
        if lacking := [name for name in stems if name not in there]:
            raise DataError(
                f"{len(lacking)} of {len(pictures)} pictures in {str(self.folder)!r} have no mask, "
                f"the first {self._masks.path(lacking[0])} (with {', '.join(_MASKS)}). Put them "
                "there or remove the pictures; dataset.suffix is what names of masks have more "
                "than names of pictures."
            )
        names = np.array([os.fsencode(name) for name in pictures])
        of_masks = np.array([os.fsencode(there[stem]) for stem in stems])
        if not whole:
            share = 0.0 if divided else val_fraction
            rows = split_rows(names, split, share, split_seed, None, test_fraction)
            names, of_masks = names[rows], of_masks[rows]
        self.names, self._mask_names = names, of_masks
        if split == "train":
            self._check_classes()

    def _check_classes(self) -> None:
        """Look before training whether each class has a pixel, and warn of those without."""
        counts = np.zeros(256, np.int64)
        for name in self._mask_names[:: -(-len(self._mask_names) // _LOOKED_AT) or 1].tolist():
            with suppress(DataError):  # reading it says so, or leaves it out
                mask = self._masks.read(os.fsdecode(name), self._mask)
                counts += np.bincount(mask.ravel(), minlength=256)
            if counts[: len(self.classes)].all():
                return
        absent = [name for name, count in zip(self.classes, counts, strict=False) if not count]
        share = counts[self.ignored] / max(counts.sum(), 1)
        hint = ""
        if len(self.classes) == 2 and share and self._colors is None:
            first, second = self.classes
            hint = (
                f' For masks of 0 and {self.ignored} set "dataset.classes={{{first}: [0,0,0], '
                f'{second}: [{self.ignored},{self.ignored},{self.ignored}]}}".'
            )
        _log.warning(
            "%s: in the masks of training that were looked at, no pixel is of the classes %s, and "
            "%.0f%% of the pixels have the ignored number %d. No run can learn them.%s",
            *(self._masks, ", ".join(absent[:10]), 100 * share, self.ignored, hint),
        )

    def __getitem__(self, index: int) -> Sample:
        image = self._read(
            index, lambda path, shown: read_image(path, self.reader, shown, self.limits)
        )
        name = os.fsdecode(self._mask_names[index])
        mask = self._masks.read(name, self._mask)
        if mask.shape != image.shape[-2:]:
            raise DataError(
                f"mask {self._masks.path(name)!r} has {mask.shape[1]} x {mask.shape[0]} pixels, "
                f"and its picture {image.shape[-1]} x {image.shape[-2]}; if EXIF turns one, set "
                "dataset.orientation=ignore (pixels as they are stored) or apply."
            )
        return {"image": image, "mask": tv_tensors.Mask(torch.from_numpy(mask))}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: the paths of the picture and of its mask."""
        import pandas as pd

        masks = [self._masks.path(os.fsdecode(name)) for name in self._mask_names.tolist()]
        return pd.DataFrame({"path": self._paths(), "mask": masks})

    def _want(self, indices: npt.NDArray[np.int64]) -> float:
        masks = map(os.fsdecode, self._mask_names[indices].tolist())
        return super()._want(indices) + self._masks.want([*masks])

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and names and file sizes of this split's pictures and masks."""
        masks = [os.fsdecode(name) for name in self._mask_names.tolist()]
        parts: list[Part] = ["image_masks", self.reader, self.ignored, *self.classes]
        parts += ["numbers" if self._colors is None else repr(sorted(self._colors.items()))]
        parts += [*self._file_parts(sized), *masks]
        return [*parts, self._masks.sizes(masks)] if sized else parts

    def _mask(self, path: str, shown: str) -> Mask:
        """The classes of the pixels of a file: uint8[H, W]."""
        if self._colors is not None:
            wide = read_image(path, self._mask_reader, shown, self.limits).numpy().astype(np.uint32)
            colors = (wide[0] << 16) | (wide[1] << 8) | wide[2]
            known = np.array(sorted(self._colors), np.uint32)
            numbers = np.array([self._colors[color] for color in known.tolist()], np.uint8)
            places = np.minimum(np.searchsorted(known, colors), len(known) - 1)
            strange = colors[known[places] != colors]
            if strange.size:
                color = int(strange.min())
                parts = [color >> 16, color >> 8 & 255, color & 255]
                raise self._unknown(shown, f"the colour {parts}")
            mask: Mask = numbers[places]
            return mask
        stored = _numbers_of(path, shown, self.limits, self._mask_reader == "pillow")
        unknown = (stored < 0) | (stored >= len(self.classes))
        strange = stored[unknown & (stored != self.ignored)]
        if strange.size:
            raise self._unknown(shown, f"the number {strange.min()}")
        return stored.astype(np.uint8, copy=False)

    def _unknown(self, shown: str, what: str) -> DataError:
        return DataError(
            f"mask {shown!r} has {what}, which is none of {len(self.classes)} classes "
            "(dataset.classes), nor ignored. Correct it or remove it from the data."
        )


def _classes(
    classes: Sequence[str] | Mapping[str, Sequence[int]],
    ignored: int,
    ignored_color: Sequence[int] | None,
) -> tuple[list[str], dict[int, int] | None]:
    """The names, and the class of each colour (red << 16 | green << 8 | blue)."""
    if isinstance(classes, str) or not 1 <= len(classes) <= 255:
        reason = f"{classes!r}; a list of 1 to 255 names is needed, or a mapping of them to colours"
        raise ConfigError(Problem("dataset.classes", reason))
    names = [str(name) for name in classes]
    if not 0 <= ignored <= 255 or ignored < len(names):
        reason = f"{ignored} is a class's number; allowed: {len(names)} to 255"
        raise ConfigError(Problem("dataset.ignored", reason))
    if not isinstance(classes, Mapping):
        return names, None
    colors: dict[int, int] = {}
    pairs = [(number, color) for number, color in enumerate(classes.values())]
    if ignored_color is not None:
        pairs.append((ignored, ignored_color))
    for number, color in pairs:
        parts = list(color) if isinstance(color, Sequence) else []
        if len(parts) != 3 or not all(type(p) is int and 0 <= p <= 255 for p in parts):
            reason = f"{color!r} is no colour; write [red, green, blue] of 0 to 255"
            raise ConfigError(Problem("dataset.classes", reason))
        key = parts[0] << 16 | parts[1] << 8 | parts[2]
        if key in colors:
            raise ConfigError(Problem("dataset.classes", f"the colour {parts} occurs twice"))
        colors[key] = number
    return names, colors


def _numbers_of(path: str, shown: str, limits: Limits, turns: bool) -> npt.NDArray[Any]:
    """The numbers of a mask of one channel, or the entries of a palette: of its own type [H, W]."""
    content = encoded_image(path, "pillow", shown, limits).content
    try:
        with opened_image(content, shown, limits) as image:
            if (image.mode not in ("1", "L", "P") and not image.mode.startswith("I")) or getattr(
                image, "n_frames", 1
            ) > 1:
                raise DataError(
                    f"mask {shown!r} has the colours of mode {image.mode}, or several pages, and "
                    "not one of numbers; for colours write dataset.classes as a mapping of names "
                    "to colours"
                )
            return np.array(loaded(image, turns))
    except (MemoryError, DataError):
        raise
    except Exception as error:  # decoders raise any error for a damaged file
        detail = str(error).partition("\n")[0][:120]
        wrong = f"is no image, truncated or damaged ({detail}). Replace it or remove it"
        raise DataError(f"mask {shown!r} {wrong} from the data.") from error
