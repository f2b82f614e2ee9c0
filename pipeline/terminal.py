r"""Everything that Penstock prints: results to stdout, messages and progress to stderr.

Names of files, cells and texts of a configuration may hold escape sequences, which move a
terminal's cursor or retitle its window. They are shown as `\x1b`, and a character that the
terminal's encoding lacks by its number: printing never fails. Cost: 1 us a line.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import parent_process
from typing import Any, TypeVar

Item = TypeVar("Item")

_options = {"progress": "auto"}


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


def say(*words: object) -> None:
    """Print a message to stderr; a full disk below it ends nothing."""
    with suppress(OSError):
        print(printable(" ".join(map(str, words))), file=sys.stderr, flush=True)


def put(*words: object) -> None:
    """Print a result to stdout."""
    text, encoding = " ".join(map(str, words)), sys.stdout.encoding or "utf-8"
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding))


class Handler(logging.Handler):
    """Says log records, to whatever sys.stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; errors in its arguments are reported as logging does."""
        try:
            say(self.format(record))
        except Exception:
            self.handleError(record)


@contextmanager
def progress_shown(kind: str) -> Iterator[None]:
    """Show long things inside of the context as bars ("rich"), lines ("plain") or not at all.

    "auto" is bars where stderr is a terminal, and lines elsewhere.
    """
    before, _options["progress"] = _options["progress"], kind
    try:
        yield
    finally:
        _options["progress"] = before


@contextmanager
def progress(
    what: str, total: float | None = None, unit: str = ""
) -> Iterator[Callable[..., None]]:
    """Show how far a long thing has come; `show(done, note="")` is called as it goes on.

        with progress("indexing a.csv", size, "bytes") as show:
            for place in places:
                ...
                show(place)

    A bar appears after a second and goes at the end; a line comes every 30 s. Worker processes show
    nothing, nor does anything while another bar is drawn. Cost: 0.2 us a call.
    """
    # A notebook keeps every drawing of a `!command` as a line of its own.
    is_screen = sys.stderr.isatty() and "JPY_PARENT_PID" not in os.environ
    every, due = (0.1, 1.0) if _options["progress"] in ("rich", is_screen and "auto") else (30, 30)
    due += float("inf") if _options["progress"] == "none" or parent_process() else time.monotonic()
    bar: Any = None

    def show(done: float, note: str = "") -> None:
        nonlocal due, bar
        if time.monotonic() < due:
            return
        due = time.monotonic() + every
        place = f"{done:,.0f}/{'?' if total is None else f'{total:,.0f}'} {unit}".rstrip()
        if every > 1:
            say(f"{one_line(what)}  {place}  {note}".rstrip())
        elif bar is not None:
            bar.update(bar.task_ids[0], completed=done, place=place, note=note, refresh=True)
        elif not hasattr(sys.stderr, "rich_proxied_file"):  # else another bar is drawn
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            # It has no thread of its own: a lock that it held would stay locked in forked workers.
            bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[place]}  {task.fields[note]}", markup=False),
                TimeRemainingColumn(compact=True),
                console=Console(file=sys.stderr),
                transient=True,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
            )
            bar.add_task(one_line(what), total=total, completed=done, place=place, note=note)
            stack.enter_context(bar)

    with ExitStack() as stack:
        yield show


def watched(items: Iterable[Item], total: float | None, what: str) -> Iterator[Item]:
    """Yield `items`, whose progress is shown; cost: 0.2 us an item."""
    with progress(what, total) as show:
        for done, item in enumerate(items):
            show(done)
            yield item
