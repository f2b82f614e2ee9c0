"""Folders that a dataset is read from, and what to say when one is not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import DataError


def existing_root(root: str, holds: str) -> Path:
    """Return the folder `root`; raise DataError when it is none or may not be read.

    Args:
        root: as it was configured, absolute or relative to the working folder.
        holds: what a person has to put there, for the message: "the images and their CSV".
    """
    path = Path(root).expanduser()
    way_out = f"Set dataset.root to the folder that holds {holds}."
    if not path.exists():
        raise DataError(f"dataset.root: {str(path)!r} ({path.absolute()}) is missing. {way_out}")
    if not path.is_dir():
        raise DataError(f"dataset.root: {str(path)!r} is no folder. {way_out}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"dataset.root: {str(path)!r} may not be read by this user. {way_out}")
    return path


def file_sizes(root: Path, names: Iterable[str]) -> list[int]:
    """Sizes in bytes of the files `names` under `root`; about 5 us a file, none is opened."""
    try:
        return [(root / name).stat().st_size for name in names]
    except OSError as error:
        raise DataError(f"cannot look at {error.filename!r}: {error.strerror}") from error
