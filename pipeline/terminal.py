r"""Everything that Penstock prints, made harmless for a terminal.

Names of files, cells and texts of a configuration may hold escape sequences, which move a
terminal's cursor or retitle its window, and marks that turn the direction of reading around. They
are shown as `\x1b` or `\u202e`, a byte of a file name that is not UTF-8 as `\xff`, and a character
that the terminal's encoding lacks by its number: printing never fails. Cost: 1 us a line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")

REFRESH_SECONDS = 0.1  # between two drawings of a bar

# C0 but tab and newline, DEL, C1, marks of direction, separators of lines, tags, surrogates.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_IN_A_LINE = re.compile(f"[\t\n]|{_HARMFUL.pattern}")
_UNDECODED = range(0xDC80, 0xDD00)  # bytes 0x80 to 0xff, as os.fsdecode gives them


def printable(text: object) -> str:
    """`text` with every character shown that would make a terminal do something.

    Tabs and newlines remain: they are our own layout.
    """
    return _HARMFUL.sub(_shown, str(text))


def one_line(text: object) -> str:
    """`text` as a part of one line: its tabs and newlines are shown, too."""
    return _IN_A_LINE.sub(_shown, str(text))


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x0D or code in _UNDECODED:
        return f"\\x{code & 0xFF:02x}"
    return match[0].encode("unicode_escape").decode()


def say(*words: object) -> None:
    """Print a message to stderr."""
    _write(sys.stderr, " ".join(map(str, words)) + "\n")


def put(*words: object, flush: bool = False) -> None:
    """Print a result to stdout."""
    _write(sys.stdout, " ".join(map(str, words)) + "\n")
    if flush:
        sys.stdout.flush()


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # a process without a terminal
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
    if stream is sys.stderr:
        stream.flush()


def console(stream: TextIO, **options: Any) -> Console:
    """A console of rich's that prints its own colours, and escapes the texts that it is given."""
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        def render(self, *arguments: Any, **named: Any) -> Iterator[Segment]:
            for part in super().render(*arguments, **named):
                safe = part.control or not _HARMFUL.search(part.text)
                yield part if safe else Segment(printable(part.text), part.style)

    return Harmless(file=stream, markup=False, **options)


def bar() -> Progress:
    """A progress bar on stderr, with a field `numbers`; the caller refreshes it.

    It has no thread of its own: worker processes are forked from this one, and a lock that a thread
    holds would stay locked in them.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        console=console(sys.stderr), transient=True, auto_refresh=False,
    )  # fmt: skip


def watched(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield `items`, with a progress bar if stderr is a terminal."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield from items
        return
    began = shown = time.perf_counter()
    with bar() as drawn:
        task = drawn.add_task(what, total=total, numbers="")
        for done, item in enumerate(items):
            now = time.perf_counter()
            if now - shown >= REFRESH_SECONDS:
                drawn.update(task, completed=done, numbers=left(done, total, now - began))
                drawn.refresh()
                shown = now
            yield item


def left(done: int, total: int | None, seconds: float) -> str:
    """The time left if `done` of `total` took that long; "" where nobody knows."""
    if not done or total is None:
        return ""
    rest = round(seconds * max(total - done, 0) / done)
    if rest < 60:
        return f"{rest} s left"
    minutes = round(rest / 60)
    if minutes < 60:
        return f"{minutes} min left"
    return f"{minutes // 60} h {minutes % 60:02} min left"


class Handler(logging.Handler):
    """Writes to whatever sys.stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; errors in its arguments are reported as logging does."""
        try:
            say(self.format(record))
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)


@contextmanager
def harmless_libraries() -> Iterator[None]:
    """Let warnings and logs of other libraries, which name files, come through this module too."""
    kept, last = warnings.formatwarning, logging.lastResort

    def formatted(*arguments: Any, **named: Any) -> str:
        return printable(kept(*arguments, **named))

    warnings.formatwarning = formatted
    logging.lastResort = Handler(logging.WARNING)
    try:
        yield
    finally:
        warnings.formatwarning, logging.lastResort = kept, last


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back what others print, and print it at the end through this module."""
    out, err = StringIO(), StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        _write(sys.stderr, err.getvalue())
        _write(sys.stdout, out.getvalue())
