r"""Everything that Penstock prints, made harmless for a terminal.

Names of files, cells and texts of a configuration may hold escape sequences, which move a
terminal's cursor or retitle its window, and marks that turn the direction of reading around. They
are shown as `\x1b` or `\u202e`, a byte of a file name that is not UTF-8 as `\xff`, and a character
that the terminal's encoding lacks by its number: printing never fails. Cost: 1 us a line.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Item = TypeVar("Item")
ProgressKind = Literal["auto", "rich", "plain", "none"]

REFRESH_SECONDS = 0.1  # between two drawings of a bar
FIRST_BAR_SECONDS = 1.0  # after which a bar appears
LINE_SECONDS = 30.0  # between two lines where there is no bar
_NARROW = 72  # columns of a terminal in which no bar fits beside its numbers
_LONGEST_NAME = 60  # characters
_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))

# C0 but tab and newline, DEL, C1, marks of direction, separators of lines, tags, surrogates, and
# what XML has no place for.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f\ud800-\udfff\ufffe\uffff]"
)
_IN_A_LINE = re.compile(f"[\t\n]|{_HARMFUL.pattern}")
_UNDECODED = range(0xDC80, 0xDD00)  # bytes 0x80 to 0xff, as os.fsdecode gives them


_kind: ProgressKind = "auto"
_drawn: list[object] = []  # the bar that is drawn; one at most


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
    shown = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    if stream is not sys.stderr:
        stream.write(shown)
        return
    try:
        stream.write(shown)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:  # a log on a full disk: messages never end what they are about
        pass


def fitted(text: str, hanging: int = 2, stream: Literal["stderr", "stdout"] = "stderr") -> str:
    """`text` with lines that end between words on a terminal of less than 72 columns.

    Words between two spaces and the next two, such as a name with its value, stay together if they
    fit. Files, pipes and wider terminals get the text as it is. Print commands to copy without it.

    Args:
        hanging: columns before what continues a line.
        stream: where the text will be printed.
    """
    target = sys.stderr if stream == "stderr" else sys.stdout
    if not (target and target.isatty()):
        return text
    from shutil import get_terminal_size

    width = get_terminal_size().columns
    if width >= _NARROW:
        return text
    return "\n".join(
        part for line in text.split("\n") for part in _broken(line, width, " " * hanging)
    )


def _broken(text: str, width: int, indent: str) -> Iterator[str]:
    from textwrap import wrap

    lines = [""]
    for gap, words in re.findall(r"( *)(\S+(?: \S+)*)", text):
        if len(lines[-1] + gap) > len(indent) and len(lines[-1] + gap + words) > width:
            lines.append(indent + words)
        else:
            lines[-1] += gap + words
    for line in lines:
        words = line.lstrip()
        yield from wrap(
            words,
            width,
            initial_indent=line.removesuffix(words),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


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


def draws(stream: TextIO | None) -> bool:
    """Whether a bar can be drawn again and again in the same place of `stream`.

    A notebook gives the commands of a cell that begin with `!` a terminal, and keeps every drawing
    as a line of its own. Jupyter sets the variable for its kernels, and not for its terminals.
    """
    return bool(stream and stream.isatty()) and "JPY_PARENT_PID" not in os.environ


@contextmanager
def progress_shown(kind: ProgressKind) -> Iterator[None]:
    """Show long things in this way inside of the context.

    Args:
        kind: "rich" is bars, "plain" lines, "auto" bars where stderr is a terminal and lines
            elsewhere.
    """
    global _kind
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before


def bar() -> Progress:
    """A progress bar on stderr, with fields `place` and `numbers`; the caller refreshes it.

    It has no thread of its own: worker processes are forked from this one, and a lock that a thread
    holds would stay locked in them. While one is drawn, no `ProgressDisplay` draws another.
    """
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    class OnlyBar(Progress):
        def start(self) -> None:
            _drawn.append(self)
            super().start()

        def stop(self) -> None:
            super().stop()
            if self in _drawn:
                _drawn.remove(self)

    fields = "task.description", "task.fields[place]", "task.fields[numbers]"
    screen = console(sys.stderr)
    is_narrow = screen.width < _NARROW
    # There it has no bar, and cuts the end of the line instead of each of its columns.
    rest = Column(no_wrap=True, ratio=1) if is_narrow else None
    what, place, numbers = (
        TextColumn(f"{{{field}}}", markup=False, table_column=column)
        for field, column in zip(fields, (None, None, rest), strict=True)
    )
    # A result that goes to a file must not be taken to the terminal.
    shares = bool(sys.stdout and sys.stdout.isatty())
    return OnlyBar(
        what,
        *([] if is_narrow else [BarColumn()]),
        place,
        numbers,
        console=screen,
        expand=is_narrow,
        transient=True,
        auto_refresh=False,
        redirect_stdout=shares,
    )


class ProgressDisplay:
    """How far a long thing has come, and the time left.

        with ProgressDisplay("indexing a.csv", size, "bytes") as shown:
            for place in places:
                ...
                shown.to(place)

    On a terminal, it is a bar that appears after a second, and goes at the end, also where an error
    or Ctrl-C ends it; elsewhere, a line every 30 s. Worker processes and other threads than the
    main one show nothing, nor does anything while another bar is drawn. Cost: 0.2 us a call.

    Args:
        what: is done, in a few words; may name a file.
        total: of `unit`; None where nobody knows.
        unit: "bytes", "s" or "" for anything that is counted.
    """

    def __init__(
        self, what: str, total: float | None = None, unit: Literal["", "bytes", "s"] = ""
    ) -> None:
        self._what, self._total, self._unit = _shortened(one_line(what)), total, unit
        self._bar: Progress | None = None
        self._done, self._note = 0.0, ""
        self._began = time.perf_counter()
        self.is_shown = bool(sys.stderr) and _kind != "none" and _is_main()
        self._bars = _kind == "rich" or (_kind == "auto" and draws(sys.stderr))
        self._due = math.inf
        if self.is_shown:
            self._due = self._began + (FIRST_BAR_SECONDS if self._bars else LINE_SECONDS)

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._due = math.inf
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def to(self, done: float, note: str = "") -> None:
        """Show that `done` of the total is done, with a few more words."""
        self._done, self._note = done, note
        if time.perf_counter() >= self._due:
            self._show()

    def add(self, more: float = 1) -> None:
        """Show that so much more is done."""
        self.to(self._done + more, self._note)

    def _show(self) -> None:
        now = time.perf_counter()
        self._due = now + (REFRESH_SECONDS if self._bars else LINE_SECONDS)
        place = _place(self._done, self._total, self._unit)
        rest = left(self._done, self._total, now - self._began)
        numbers = "  ".join(filter(None, (self._note, rest)))
        if not self._bars:
            say("  ".join(filter(None, (self._what, place, numbers))))
            return
        if self._bar is None:
            if _drawn:
                return
            self._bar = bar()
            self._bar.add_task(self._what, total=self._total, place=place, numbers=numbers)
            self._bar.start()
        task = self._bar.tasks[0].id
        self._bar.update(task, completed=self._done, place=place, numbers=numbers)
        self._bar.refresh()


@contextmanager
def progress(
    what: str, total: float | None = None, unit: str = ""
) -> Iterator[Callable[..., None]]:
    """Show how far a long thing has come, on stderr; `show(done, note="")` is called as it goes on.

        with progress("indexing a.csv", size, "bytes") as show:
            for place in places:
                ...
                show(place)

    On a terminal, a bar appears after a second and goes at the end; elsewhere, a line comes every
    30 s. Worker processes show nothing. Cost: 0.2 us a call.
    """
    draws_bars = _kind == "rich" or (_kind == "auto" and draws(sys.stderr))
    is_shown = _kind != "none" and _is_main()
    bars: Progress | None = None
    due = time.monotonic() + (FIRST_BAR_SECONDS if draws_bars else LINE_SECONDS)

    def show(done: float, note: str = "") -> None:
        nonlocal due, bars
        if time.monotonic() < due or not is_shown:
            return
        due = time.monotonic() + (REFRESH_SECONDS if draws_bars else LINE_SECONDS)
        place = f"{done:,.0f}/{'?' if total is None else f'{total:,.0f}'} {unit}".rstrip()
        if not draws_bars:
            say("  ".join(filter(None, (what, place, note))))
            return
        if bars is None:
            bars = bar()
            bars.add_task(one_line(what), total=total, place=place, numbers=note)
            bars.start()
        bars.update(bars.task_ids[0], completed=done, place=place, numbers=note)
        bars.refresh()

    try:
        yield show
    finally:
        if bars is not None:
            bars.stop()


def watched(items: Iterable[Item], total: float | None, what: str) -> Iterator[Item]:
    """Yield `items`, whose progress a `ProgressDisplay` shows; cost: 0.2 us an item."""
    with ProgressDisplay(what, total) as display:
        for done, item in enumerate(items):
            display.to(done)
            yield item


def _is_main() -> bool:
    """Whether this is the main thread of a process that is no worker."""
    from multiprocessing import parent_process

    return parent_process() is None and threading.current_thread() is threading.main_thread()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 24]}...{text[-21:]}"


def _place(done: float, total: float | None, unit: str) -> str:
    if unit == "bytes":
        large = max(done, total or 0)
        size, name = next((size_of for size_of in _SIZES if large >= size_of[0]), (1, "bytes"))
        shown = f"{done / size:.1f}" if size > 1 else f"{done:.0f}"
        most = "" if total is None else f"/{total / size:.1f}" if size > 1 else f"/{total:.0f}"
        return f"{shown}{most} {name}"
    most = "" if total is None else f"/{total:.0f}"
    return f"{done:.0f}{most}{' s' if unit == 's' else ''}"


def left(done: float, total: float | None, seconds: float) -> str:
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
