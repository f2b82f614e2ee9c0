r"""Everything that Penstock prints: results to stdout, messages and progress to stderr.

Names of files, cells and texts of a configuration may hold escape sequences, which move a
terminal's cursor or retitle its window. They are shown as `\x1b`, and a character that the
terminal's encoding lacks by its number: printing never fails. Cost: 1 us a line.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from typing import Any, TextIO

# How `progress` is shown in this process: "plain" is a line every 30 s, "none" nothing, and "auto"
# a line that changes where stderr is a terminal, and plain elsewhere.
options = {"progress": "auto"}


def printable(text: object) -> str:
    """`text` with every character shown that would make a terminal do something."""
    # C0 but tab and newline, DEL, C1, and bytes of file names that are not UTF-8.
    return re.sub(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]",
        lambda match: f"\\x{ord(match[0]) & 0xFF:02x}",
        str(text),
    )


def one_line(text: object) -> str:
    """`text` as a part of one line: its tabs and newlines are shown, too."""
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


def say(*words: object, end: str = "\n") -> None:
    """Print a message to stderr; a full disk below it ends nothing."""
    with suppress(OSError):
        print(
            "\x1b[K" * sys.stderr.isatty()  # clears what a progress line has left here
            + printable(" ".join(map(str, words))),
            end=end,
            file=sys.stderr,
            flush=True,
        )


def put(*words: object) -> None:
    """Print a result to stdout."""
    text, encoding = " ".join(map(str, words)), sys.stdout.encoding or "utf-8"
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding))


class Handler(logging.StreamHandler[TextIO]):
    """Writes log records to stderr, with what is harmful shown."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def progress(
    what: str, total: float | None = None, unit: str = ""
) -> Iterator[Callable[..., None]]:
    """Show the progress of long work, which calls `show(done, note="")` as it proceeds.

        with progress("indexing a.csv", size, "bytes") as show:
            for place in places:
                ...
                show(place)

    The line on a terminal appears after a second and goes at the end. Worker processes show
    nothing. Cost: 0.2 us a call.
    """
    kind = "none" if parent_process() else options["progress"]
    is_screen = kind == "auto" and sys.stderr.isatty()
    begun, every = time.monotonic(), float("inf") if kind == "none" else 1 if is_screen else 30
    due = begun + every

    def show(done: float, note: str = "") -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due, place = now + every, f"{done:,.0f}/{f'{total:,.0f}' if total else '?'} {unit}"
            left = f"{(now - begun) * (total / done - 1):,.0f} s left" if total and done else ""
            bar = f"[{'#' * int(20 * min(done / total, 1)):.<20}]" if total and is_screen else ""
            line = "  ".join(filter(None, (one_line(what), bar, place.strip(), left, note)))
            # One column short: in the last one, a terminal begins a new line.
            say(
                line[: shutil.get_terminal_size().columns - 1 if is_screen else None],
                end="\r" if is_screen else "\n",
            )

    try:
        yield show
    finally:
        say(end="\r" if is_screen else "")


def watched(items: Iterable[Any], total: float | None, what: str) -> Iterator[Any]:
    """Yield `items`, whose progress is shown; cost: 0.2 us an item."""
    with progress(what, total) as show:
        for done, item in enumerate(items):
            show(done)
            yield item
