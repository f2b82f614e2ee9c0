"""Opens regular files only; a DataError says what other files are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import DataError
from pipeline.files import regular_file


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, or a link to one, open for reading.

    Raises:
        OSError: it is missing, or may not be read.
        DataError: it is a folder, a pipe, a socket or a device.
    """
    return os.fdopen(regular_descriptor(path), "rb")


def regular_descriptor(path: str | Path) -> int:
    """The descriptor of a regular file that was opened for reading; errors as `open_regular`."""
    try:
        return regular_file.regular_descriptor(path)[0]
    except IsADirectoryError as error:
        raise DataError(f"{str(path)!r} is a folder, not a file. Name the file in it.") from error
    except regular_file.IrregularFileError as error:
        raise DataError(
            f"{str(path)!r} cannot be read: {error.strerror}. Replace it, or take it out."
        ) from error


def check_regular(path: str | Path) -> None:
    """Refuse other files before a library opens them; errors as `open_regular`."""
    os.close(regular_descriptor(path))
