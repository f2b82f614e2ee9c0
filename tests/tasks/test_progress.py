import io
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from penstock.terminal import ProgressDisplay, bar, left, progress_shown, watched


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr("penstock.terminal.sys", SimpleNamespace(stderr=stream, stdout=None))
    return stream


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("penstock.terminal.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def shown(terminal):
    """What was drawn, one drawing a line, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", terminal.getvalue())


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 10, 5.0, ""),
        (3, None, 5.0, ""),
        (5, 10, 5.0, "5 s left"),
        (10, 10, 5.0, "0 s left"),
        (1, 2, 90.0, "2 min left"),
        (1, 100, 60.0, "1 h 39 min left"),
    ],
)
def test_time_left(done, total, seconds, text):
    assert left(done, total, seconds) == text


def test_what_is_gone_through_has_a_bar_on_a_terminal_only(terminal, clock, capsys):
    assert list(watched(ticking(range(30), clock), 30, "drawing faces")) == list(range(30))
    assert re.search(r"drawing faces .* 10/30 22 s left", shown(terminal))
    terminal.isatty = lambda: False
    terminal.truncate(0)
    assert list(watched(range(30), 30, "drawing faces")) == list(range(30))
    assert terminal.getvalue() == ""


def ticking(items, clock):
    for item in items:
        clock.now += 1.0
        yield item


@pytest.fixture
def kind(monkeypatch):
    monkeypatch.setattr("penstock.terminal._kind", "auto")


def test_a_bar_appears_after_a_second_and_goes(terminal, clock, kind):
    with ProgressDisplay("indexing a[red].csv\n", 3_000_000_000, "bytes") as display:
        clock.now += 0.9
        display.to(1e9)
        assert terminal.getvalue() == ""
        clock.now += 0.1
        display.to(1.5e9, "2 wrong")
    drawn = shown(terminal)
    assert r"indexing a[red].csv\n" in drawn
    assert "1.5/3.0 GB 2 wrong  1 s left" in drawn
    assert terminal.getvalue().endswith(("\x1b[2K", "\x1b[?25h"))  # the line is empty again


def test_one_bar_is_drawn_at_a_time(terminal, clock, kind):
    with ProgressDisplay("packing", 10) as outer, ProgressDisplay("downloading", 10) as inner:
        clock.now += 2.0
        outer.to(1)
        inner.to(1)
        assert "downloading" not in shown(terminal)
    with ProgressDisplay("hashing", 10) as later:
        clock.now += 2.0
        later.to(1)
    assert "hashing" in shown(terminal)


def test_a_line_every_half_minute_where_there_is_no_terminal(capsys, clock, kind):
    with ProgressDisplay("tuning", 100, "s") as display:
        for second in range(100):
            display.to(second)
            clock.now += 1.0
    lines = [
        "tuning  30/100 s  1 min left",
        "tuning  60/100 s  40 s left",
        "tuning  90/100 s  10 s left",
    ]
    assert capsys.readouterr().err.splitlines() == lines
    with ProgressDisplay("listing a") as display:
        clock.now += 31.0
        display.to(12)
    assert capsys.readouterr().err == "listing a  12\n"


def test_nothing_is_shown_where_nobody_asked_for_it(capsys, clock, kind, monkeypatch):
    def shows():
        with ProgressDisplay("packing", 100) as display:
            clock.now += 31.0
            display.to(1)
        return bool(capsys.readouterr().err)

    assert shows()
    with progress_shown("none"):
        assert not shows()
    assert shows()
    seen = []
    other = threading.Thread(target=lambda: seen.append(shows()))
    other.start()
    other.join()
    assert seen == [False]
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "a worker's")
    assert not shows()


@pytest.mark.parametrize("slow", [range(0), range(100), range(3, 2_000, 7)])
def test_all_that_is_watched_comes(terminal, clock, kind, slow):
    def items():
        for number in range(2_000):
            clock.now += 0.2 if number in slow else 1e-7
            yield number

    assert list(watched(items(), 2_000, "looking")) == list(range(2_000))
    assert ("looking" in shown(terminal)) == bool(slow)


def test_watching_costs_next_to_nothing(terminal, kind):
    count = 100_000

    def seconds(items):
        began = time.process_time()
        for _ in items:
            pass
        return time.process_time() - began

    each = min(seconds(watched(range(count), count, "looking")) for _ in range(5)) / count
    assert each < 2e-6  # 0.06 us where nothing else runs


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (60, "epoch 12 of 300 55/120 loss 0.01637  1,234 samples/s  12% w…"),
        (80, "epoch 12 of 300   55/120 loss 0.01637  1,234 samples/s  12% waiting  13 min left"),
    ],
)
def test_a_narrow_terminal_cuts_the_end_of_the_line_alone(monkeypatch, width, line):
    monkeypatch.setattr(sys, "stderr", Terminal())
    for name, value in (("COLUMNS", str(width)), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    shown = bar()
    numbers = "loss 0.01637  1,234 samples/s  12% waiting  13 min left"
    shown.add_task("epoch 12 of 300", total=120, completed=55, place="55/120", numbers=numbers)
    shown.console.print(shown.get_renderable())
    text = re.sub(r"\x1b\[[0-9;]*m", "", sys.stderr.getvalue()).rstrip()
    assert text == line  # without colours, what is not done of a bar is blank
