"""Arrays that are made of a file once, kept in a cache and mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.datasets.files import generated_folder
from penstock.errors import DataError
from penstock.terminal import watched

NamedArrays = Mapping[str, npt.NDArray[Any]]


class CacheFolder:
    """The part of a cache that belongs to one file.

    Args:
        cache_dir: the cache, as configured; created if missing.
        key: name of the part, which changes with the file and how it is read.
    """

    def __init__(self, cache_dir: str, key: str) -> None:
        self.path = Path(cache_dir).expanduser().absolute() / key

    def text_lengths(
        self, name: str, texts: Iterable[str], count: int, length: Callable[[str], int]
    ) -> npt.NDArray[np.int32]:
        """`length` of each of the `count` texts, int32[count], kept as `name`; errors as `arrays`.

        Args:
            texts: are gone through only where no lengths are kept.
        """

        lengths = map(length, watched(texts, count, "counting tokens"))
        return self.arrays(name, lambda: {"lengths": np.fromiter(lengths, np.int32, count)})[
            "lengths"
        ]

    def arrays(self, name: str, make: Callable[[], NamedArrays]) -> NamedArrays:
        """The arrays of `make`, kept in the folder `name` and mapped.

        Raises:
            DataError: the cache cannot be written, or is damaged.
        """
        folder = self.path / name

        def write(empty: Path) -> None:
            for stem, array in make().items():
                np.save(empty / f"{stem}.npy", array)

        # Of several ranks one makes them, and the others wait.
        generated_folder(folder, write, "dataset.cache_dir")
        try:
            # Plain arrays: every access to a memmap makes an object of that slow class.
            return {
                path.stem: np.load(path, mmap_mode="r").view(np.ndarray)
                for path in folder.glob("*.npy")
            }
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{str(folder)!r} is damaged ({error}). Delete it.") from error
