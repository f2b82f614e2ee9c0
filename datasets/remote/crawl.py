"""The progress of one listing: stores and web servers give pages, perhaps without an end.

A listing fails when it has more files than `limits.files`, goes deeper than any sound folder, has
had many folders or pages in a row without one file, or when a store gives the same page again. It
logs its progress every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time

from pipeline.errors import DataError
from pipeline.files.limits import Limits

_log = logging.getLogger(__name__)

_BARREN = 10_000  # pages and folders in a row without a file
_FIRST_LOG, _NEXT_LOG = 5.0, 15.0  # seconds


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
        self._next_log = self._began + _FIRST_LOG

    def start(self, folder: str) -> None:
        """Start a folder, perhaps again: files of it that were counted are forgotten."""
        with self._lock:
            self._total -= self._files.pop(folder, 0)

    def page(self, folder: str, files: int) -> None:
        """Count the files of one more page of a folder.

        Raises:
            DataError: there are too many, or none for too many pages.
        """
        with self._lock:
            self._files[folder] = self._files.get(folder, 0) + files
            self._total += files
            self._barren = 0 if files else self._barren + 1
            total, barren = self._total, self._barren
            now = time.monotonic()
            due = now > self._next_log
            if due:
                self._next_log = now + _NEXT_LOG
        if total > self._limits.files:
            refusal = self._limits.refusal("files", f"{total} files, and perhaps does not end")
            raise DataError(f"{self._address!r} lists {refusal}")
        if barren > _BARREN:
            raise self.endless(f"{barren} folders or pages in a row hold no file")
        if due:
            seconds = now - self._began
            _log.info("listing %s: %d files so far, %.0f s", self._address, total, seconds)

    def endless(self, reason: str) -> DataError:
        """The error of a listing that does not end."""
        return DataError(
            f"{self._address!r} cannot be listed: {reason}, so it may never end. Check the "
            "address, or give one further down."
        )
