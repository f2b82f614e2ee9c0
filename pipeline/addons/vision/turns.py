"""Images that EXIF turns, where boxes or masks are known in pixels of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from PIL import Image

from penstock.datasets.reading.base import FolderDataset
from penstock.datasets.reading.image import FORMATS, ORIENTATION
from penstock.errors import DataError

_LOOKED_AT = 2000  # headers of images on this machine: 0.2 s

_log = logging.getLogger(__name__)


def sizes_of(path: str) -> tuple[bool, tuple[int, int], tuple[int, int]] | None:
    """Whether EXIF turns an image, and width and height as stored and upright; None if damaged.

    Cost: 90 us, for its header alone.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            # Pillow's own method of PNG would decode it.
            orientation = Image.Image.getexif(image).get(ORIENTATION, 1)
            size = image.size[::-1] if orientation in (5, 6, 7, 8) else image.size
            sizes = (image.size, size) if image.format != "TIFF" else (size, image.size)
            return orientation in range(2, 9), *sizes
    except Exception:  # any error, for a damaged file; reading it says so
        return None


class PlacesInImages(FolderDataset):
    """A dataset of images and places in them, in pixels."""

    def check_turns(
        self,
        names: Sequence[str],
        what: str,
        orientation: str | None,
        size_of: Callable[[int], tuple[int, ...] | None],
    ) -> None:
        """Look before training at images that EXIF turns, with `what` is known of places in them.

        Args:
            names: of the images, in `folder`; in a store nobody looks.
            orientation: "apply", "ignore", or None for "apply" and a warning where nothing tells.
            size_of: width and height that belong to `what` is known, by the place in `names`.

        Raises:
            DataError: sizes belong to the other choice of `orientation`.
        """
        if self.folder.remote_files is not None:
            return
        turned, unknown, wrong = 0, [], []
        looked_at = range(0, len(names), len(names) // _LOOKED_AT + 1)
        for place in looked_at:
            sizes = self.folder.read(names[place], lambda path, _: sizes_of(path))
            if sizes is None or not sizes[0]:
                continue
            turned += 1
            other, taken = sizes[1:] if orientation != "ignore" else sizes[:0:-1]
            if taken == other:
                unknown.append(names[place])
            elif size_of(place) == other:
                wrong.append(names[place])
        found = f"EXIF's orientation turns {turned} of {len(looked_at)} images"
        if wrong:
            made, key = (
                ("turned", "apply") if orientation == "ignore" else ("as they are stored", "ignore")
            )
            raise DataError(
                f"{str(self.folder)!r}: {found}, and {what} of {len(wrong)} have the size of the "
                f"images {made}: {', '.join(wrong[:10])}. Set dataset.orientation={key}."
            )
        if unknown and orientation is None:
            _log.warning(
                "%s: %s, and for %d no size tells whether their %s were made for the turned images "
                "(as they are taken) or for the stored ones: %s. If these lie beside their objects "
                "in the report, set dataset.orientation=ignore; =apply ends this line",
                *(self.folder, found, len(unknown), what, ", ".join(unknown[:10])),
            )
