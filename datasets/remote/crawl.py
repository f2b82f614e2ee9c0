"""How long a listing goes on: stores and web servers are asked page by page, and may never end.

A listing ends with an error when it has more files than `limits.files`, goes deeper than any sound
folder, has had many folders or pages in a row without one file, or when a store hands out the same
page again. Every few seconds it says how far it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable

from pipeline.errors import DataError
from pipeline.files.limits import Limits

_log = logging.getLogger(__name__)

DEEPEST = 64  # folders inside of each other
_BARREN = 10_000  # pages and folders in a row without a file
_ALIKE = 8  # folders inside of each other with the very same names
_FIRST_WORD, _NEXT_WORD = 5.0, 15.0  # seconds


class Crawl:
    """One listing of all that is below an address; used by several threads.

    Args:
        address: for messages.
        limits: `files` is what it may have.
    """

    def __init__(self, address: str, limits: Limits) -> None:
        self._address = address
        self._limits = limits
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._total = self._barren = 0
        self._began = time.monotonic()
        self._word = self._began + _FIRST_WORD

    def start(self, folder: str) -> None:
        """Begin with a folder, perhaps once more; what it had so far doesn't count."""
        with self._lock:
            self._total -= self._files.pop(folder, 0)

    def page(self, folder: str, files: int) -> None:
        """Count the files of one more page of a folder.

        Raises:
            DataError: they are too many, or there were none for too long.
        """
        with self._lock:
            self._files[folder] = self._files.get(folder, 0) + files
            self._total += files
            self._barren = 0 if files else self._barren + 1
            total, barren = self._total, self._barren
            now = time.monotonic()
            speaks = now > self._word
            if speaks:
                self._word = now + _NEXT_WORD
        if total > self._limits.files:
            raise DataError(
                f"{self._address!r} lists "
                + self._limits.refusal("files", f"{total} files, and perhaps does not end")
            )
        if barren > _BARREN:
            raise self.endless(f"{barren} folders or pages in a row hold no file")
        if speaks:
            seconds = now - self._began
            _log.info("listing %s: %d files so far, %.0f s", self._address, total, seconds)

    def deep(self, level: int) -> None:
        """Raise DataError for folders that go too deep."""
        if level > DEEPEST:
            raise self.endless(f"its folders go deeper than {DEEPEST} levels")

    def alike(self, levels: int) -> None:
        """Raise DataError for folders that hold themselves."""
        if levels >= _ALIKE:
            raise self.endless(f"{levels} folders inside of each other have the same names")

    def endless(self, reason: str) -> DataError:
        """The error of a listing that does not end."""
        return DataError(
            f"{self._address!r} cannot be listed: {reason}, so it may never end. Check the "
            "address, or give one further down."
        )


class Tokens:
    """Marks of the pages of one folder, none of which may come twice."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._seen: set[int] = set()

    def next(self, token: Hashable) -> None:
        """Raise DataError for a mark that was there before, or is none."""
        key = hash(token)
        if not token or key in self._seen:
            raise self._crawl.endless("its store hands out the same page again and again")
        self._seen.add(key)
