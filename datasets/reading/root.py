"""Folders that a dataset is read from, and what to say when one is not there."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.datasets.files import Files
from pipeline.datasets.reading.folder import Folder, LocalFolder, RemoteFolder
from pipeline.datasets.remote.store import is_remote, local_path
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.limits import DEFAULT, Limits


def open_root(
    root: str, holds: str, files: Files | None = None, limits: Limits = DEFAULT
) -> Folder:
    """The folder `root`, a path of this machine or an address.

    A path is checked; an address is first asked for when something in it is needed.

    Args:
        root: as it was configured.
        holds: what a person has to put there, for the message: "the images and their CSV".
        files: how to get at what lies at an address; None takes the defaults.
        limits: `files` of one walk through a folder of this machine.

    Raises:
        DataError: there is no such folder of this machine, or it may not be read.
        ConfigError: there is no store of such addresses, or it needs something installed.
    """
    if not is_remote(root):
        return LocalFolder(existing_root(local_path(root), holds), limits)
    files = files or Files()
    files.catalog.store(root)
    return RemoteFolder(files, root)


def existing_root(root: str, holds: str) -> Path:
    """Return the folder `root` of this machine; raise DataError when it is none or is unreadable.

    Args:
        root: as it was configured, absolute or relative to the working folder.
        holds: what a person has to put there, for the message: "the images and their CSV".
    """
    if "://" in root:
        raise ConfigError(
            Problem("dataset.root", f"{root!r} is an address, and this dataset reads only folders "
                    "of this machine. Copy the data here first")
        )  # fmt: skip
    path = Path(root).expanduser()
    way_out = f"Set dataset.root to the folder that holds {holds}."
    if not path.exists():
        raise DataError(f"dataset.root: {str(path)!r} ({path.absolute()}) is missing. {way_out}")
    if not path.is_dir():
        raise DataError(f"dataset.root: {str(path)!r} is no folder. {way_out}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"dataset.root: {str(path)!r} may not be read by this user. {way_out}")
    return path
