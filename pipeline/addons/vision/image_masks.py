"""Images, and a mask of each: a class for every pixel, as a number or as a colour.

    root/images/a.jpg            root/masks/a.png                 divided by `val_fraction`
    root/images/train/a.jpg      root/masks/train/a.png           divided already, with val

Cost: one walk over both folders, no image opened; an image and a mask read a sample.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torchvision import tv_tensors

from penstock.datasets.files import Files, open_root, with_endings
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Split,
    Table,
    split_rows,
    table,
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

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
_MASKS = (".png", ".bmp", ".gif", ".tif", ".tiff")  # which lose nothing; a JPEG changes numbers
_LOOKED_AT = 100  # masks of training, where a class is in none: half a second
Byte = Annotated[int, Field(ge=0, le=255)]
Color = Annotated[Sequence[Byte], Field(min_length=3, max_length=3)]  # red, green, blue
Names = Annotated[Sequence[str], Field(min_length=1, max_length=255)]
Mask = npt.NDArray[np.uint8]

_log = logging.getLogger(__name__)


class ImageMasks(FolderDataset):
    """One sample: `image` (uint8 [3, H, W]) and `mask` (Mask uint8[H, W], a class each pixel).

    Args:
        root: folder of the data; a path or an address.
        split: "train", "val" or "test".
        classes: their names, in the order of their numbers from 0; or a mapping of names to
            colours, [red, green, blue], for masks of colours.
        images, masks: folders of the images and of the masks, relative to `root`; an image and
            its mask have the same name up to the ending.
        ignored: the number in masks of pixels that nobody has said anything of.
        ignored_color: their colour, for masks of colours; null: every colour is a class's.
        suffix: what the names of masks have more, before the ending: "_mask" for a_mask.png.
        reader: "torchvision", "pillow" or "skimage", of the images; Pillow reads masks.
        val_fraction, split_seed: share of the images that validate, and the seed of the split;
            without effect where both folders have "train" and "val" (and "test").
        files: access to addresses.
        limits: what a file and an image may claim.
        test_fraction: share of the images to keep for a test.
        orientation: "apply" (also null) turns images and masks as their own EXIF says; "ignore"
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
        classes: Names | Mapping[str, Color],
        split: Split = "train",
        images: str = "images",
        masks: str = "masks",
        ignored: Byte = 255,
        ignored_color: Color | None = None,
        suffix: str = "",
        reader: Reader = "torchvision",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader, self._turns = check_reader(reader, orientation), orientation != "ignore"
        self.limits, self.ignored, self.classes = limits, ignored, [*map(str, classes)]
        # Pixels of that class would be left out of the loss without a word.
        if ignored < len(classes):
            reason = f"{ignored} is a class's number; allowed: {len(classes)} to 255"
            raise ConfigError(Problem("dataset.ignored", reason))
        self._colors: dict[int, int] | None = None
        if isinstance(classes, Mapping):
            extra = [] if ignored_color is None else [(ignored, ignored_color)]
            pairs = [*enumerate(classes.values()), *extra]
            # As one number a colour, which NumPy finds faster than three.
            self._colors = {red << 16 | green << 8 | blue: n for n, (red, green, blue) in pairs}
            if len(self._colors) < len(pairs):
                raise ConfigError(Problem("dataset.classes", "a colour occurs twice"))
        root_folder = open_root(root, f"folders {images!r} and {masks!r}", files)
        self.folder, self._masks = root_folder.below(images), root_folder.below(masks)
        # Who has divided the folders has decided: a share of them would mix both again.
        divided = all(self.folder.below(name).exists() for name in ("train", "val"))
        if divided:
            self.folder, self._masks = self.folder.below(split), self._masks.below(split)
        for key, folder in (("images", self.folder), ("masks", self._masks)):
            if not folder.exists():
                hint = f"Put it there, or set dataset.{key}"
                raise DataError(f"dataset.{key}: {str(folder)!r} is missing. {hint}.")
        warns = divided or split == "train"  # of two splits of a folder, one
        found = with_endings(self.folder.files(), EXTENSIONS, str(self.folder) if warns else None)
        others = with_endings(self._masks.files(), _MASKS, str(self._masks) if warns else None)
        by_stem = {name.rpartition(".")[0]: name for name in others}
        stems = [name.rpartition(".")[0] + suffix for name in found]
        lacking = [stem for stem in stems if stem not in by_stem]
        if lacking or not found:
            raise DataError(
                f"{str(self.folder)!r}: {len(lacking)} of {len(found)} images have no mask, the "
                f"first {self._masks.path((lacking or [''])[0])}. Images end in "
                f"{', '.join(EXTENSIONS)}, and masks in {', '.join(_MASKS)}; dataset.suffix is "
                "what names of masks have more than names of images."
            )
        self.names = np.array([os.fsencode(name) for name in found])
        self._mask_names = np.array([os.fsencode(by_stem[stem]) for stem in stems])
        if not divided:
            rows = split_rows(self.names, split, val_fraction, split_seed, None, test_fraction)
            self.names, self._mask_names = self.names[rows], self._mask_names[rows]
        if split == "train":
            self._warn_of_absent()

    def _warn_of_absent(self) -> None:
        """Look before training whether each class has a pixel, and warn of those without."""
        counts = np.zeros(256, np.int64)
        # Evenly spaced, as masks of one scene often stand together.
        for name in self._mask_names[:: -(-len(self._mask_names) // _LOOKED_AT) or 1].tolist():
            with suppress(DataError):  # reading it says so, or leaves it out
                mask = self._masks.read(os.fsdecode(name), self._mask)
                counts += np.bincount(mask.ravel(), minlength=256)
            if counts[: len(self.classes)].all():
                return
        absent = [name for name, count in zip(self.classes, counts, strict=False) if not count]
        share = counts[self.ignored] / max(counts.sum(), 1)
        # Most tools write masks of one thing as 0 and 255, of which 255 would be ignored.
        names = ", ".join(
            f"{name}: [{n},{n},{n}]" for name, n in zip(self.classes, (0, 255), strict=False)
        )
        _log.warning(
            "%s: in the masks of training that were looked at, no pixel is of the classes %s, and "
            "%.0f%% of the pixels have the ignored number %d. No run can learn them. For masks of "
            '0 and 255 set "dataset.classes={%s}".',
            *(self._masks, ", ".join(absent[:10]), 100 * share, self.ignored, names),
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
                f"and its image {image.shape[-1]} x {image.shape[-2]}; if EXIF turns one, set "
                "dataset.orientation=ignore (pixels as they are stored) or apply."
            )
        return {"image": image, "mask": tv_tensors.Mask(torch.from_numpy(mask))}

    @property
    def metadata(self) -> Table:
        """A row per sample: the paths of the image and of its mask."""
        masks = [self._masks.path(os.fsdecode(name)) for name in self._mask_names.tolist()]
        return table({"path": self._paths(), "mask": masks})

    def _want(self, indices: npt.NDArray[np.int64]) -> float:
        masks = map(os.fsdecode, self._mask_names[indices].tolist())
        return super()._want(indices) + self._masks.want([*masks])

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and names and file sizes of this split's images and masks."""
        masks = [os.fsdecode(name) for name in self._mask_names.tolist()]
        parts: list[Part] = ["image_masks", self.reader, self.ignored, *self.classes]
        parts += ["numbers" if self._colors is None else repr(sorted(self._colors.items()))]
        parts += [*self._file_parts(sized), *masks]
        return [*parts, self._masks.sizes(masks)] if sized else parts

    def _mask(self, path: str, shown: str) -> Mask:
        """The classes of the pixels of a file: uint8[H, W]."""
        content = encoded_image(path, "pillow", shown, self.limits).content
        try:
            with opened_image(content, shown, self.limits) as image:
                # Asked before the pixels are loaded: Pillow counts pages by reading on in the file.
                pages = getattr(image, "n_frames", 1)
                picture = loaded(image, self._turns)
                stored = np.array(picture if self._colors is None else picture.convert("RGB"))
        except (MemoryError, DataError):
            raise
        except Exception as error:  # decoders raise any error for a damaged file
            wrong = f"is no image, truncated or damaged ({error}). Replace it or remove it"
            raise DataError(f"mask {shown!r} {wrong} from the data.") from error
        if pages > 1 or stored.dtype.kind == "f" or (stored.ndim > 2 and self._colors is None):
            raise DataError(
                f"mask {shown!r} has the colours of mode {picture.mode}, or several pages, and "
                "not one of numbers; for colours write dataset.classes as a mapping of names "
                "to colours"
            )
        if self._colors is None:
            mask, known = stored, (stored >= 0) & (stored < len(self.classes))
            known |= stored == self.ignored
        else:
            # In 64 bits: shifted, a red of 255 does not fit into its byte.
            codes = stored.astype(np.int64) @ [1 << 16, 1 << 8, 1]
            colors, numbers = np.array(sorted(self._colors.items())).T
            places = np.searchsorted(colors, codes).clip(max=len(colors) - 1)
            mask, known = numbers[places], colors[places] == codes
        if not known.all():
            raise DataError(
                f"mask {shown!r} has {'numbers' if self._colors is None else 'colours'} such as "
                f"{stored[~known][0].tolist()}, which is none of {len(self.classes)} classes "
                "(dataset.classes), nor ignored. Correct it or remove it from the data."
            )
        return mask.astype(np.uint8, copy=False)
