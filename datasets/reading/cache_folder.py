"""What is made of a file once and kept: whole or not at all, by one process at a time.

Files are written beside their place and renamed, so that nobody sees a part of them. A lock on top
of that saves the other processes of a machine from making the same; where there are no locks (some
network drives), each makes its own and one wins.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.datasets.reading.generated_folder import generated_folder
from pipeline.errors import DataError
from pipeline.files.own_files import check_tree, open_own, own_folder


class CacheFolder:
    """The part of a cache that belongs to one thing.

    Args:
        cache_dir: the cache, as configured; made if it is not there.
        key: name of the part, which changes with whatever it is made of.

    Raises:
        DataError: the cache cannot be written.
    """

    def __init__(self, cache_dir: str, key: str) -> None:
        self.path = Path(cache_dir).expanduser().absolute() / key

    def made(
        self, name: str, write: Callable[[Path], None], is_sound: Callable[[Path], bool]
    ) -> Path:
        """The folder `name` in this part, which `write(folder)` fills if it is not there.

        One that `is_sound` refuses is made again.

        Raises:
            NotOwnError: the cache, or what is in it, is another user's or leads elsewhere.
        """
        folder = self.path / name
        try:
            own_folder(self.path.parent, link=True)
            own_folder(self.path)
            if os.path.lexists(folder):
                check_tree(own_folder(folder))
                if is_sound(folder):
                    return folder
            with _locked(self.path / f".{name}.kept.lock"):  # another than `generated_folder` takes
                if folder.is_dir() and not is_sound(folder):
                    shutil.rmtree(folder)
                return generated_folder(folder, write)
        except OSError as error:
            raise DataError(self._refusal(error)) from error
        except DataError as error:
            if isinstance(error.__cause__, OSError):  # generated_folder speaks of dataset.root
                raise DataError(self._refusal(error.__cause__)) from error
            raise

    def _refusal(self, error: OSError) -> str:
        return (
            f"dataset.cache_dir: {str(self.path)!r} cannot be written: {error.strerror or error}. "
            "Set it to a folder that can be."
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process in at a time; none is kept out where the system has no locks."""
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
