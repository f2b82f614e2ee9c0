"""What takes long shows its progress on a terminal, and Ctrl-C ends it without a trace."""

import io
import os
import pty
import re
import select
import subprocess
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from penstock import terminal
from tests.support.program import ROOT, run


class Screen(io.StringIO):
    def isatty(self):
        return True

    def text(self):
        return self.getvalue().replace("\r", "\n")


@pytest.fixture
def made(monkeypatch):
    """Makes a terminal for stderr, on which progress shows at once; pytest has one of its own."""

    def make():
        screen, clock = Screen(), count(0, 20)
        monkeypatch.setenv("COLUMNS", "150")
        monkeypatch.setitem(terminal.options, "progress", "auto")
        monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return make


def test_progress_stays_in_its_line_and_goes_with_an_error(made):
    screen = made()

    def fails():
        with terminal.progress("first", 5) as show:
            show(1, "a note " * 30)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    drawn, cleared, rest = screen.getvalue().split("\r")
    assert drawn.startswith("\x1b[Kfirst  [####................]  1/5  80 s left  a note a note")
    assert (len(drawn), cleared, rest) == (149 + len("\x1b[K"), "\x1b[K", "")


def test_a_file_gets_lines_and_nothing_where_none_are_wanted(made, capsys, monkeypatch):
    monkeypatch.setattr(made(), "isatty", lambda: False)
    for kind in ("auto", "none"):
        monkeypatch.setitem(terminal.options, "progress", kind)
        with terminal.progress("a\nfile", None, "bytes") as show:
            for done in (1000, 2000):
                show(done)
    assert sys.stderr.getvalue() == "a\\nfile  2,000/? bytes\n"


def test_results_go_where_they_are_sent_to_while_progress_is_shown(faces, made, capsys):
    screen = made()
    outcome = run(capsys, "task=digest", *faces, "loader=debug")
    assert "hashing batches" in screen.text()
    assert "total" not in screen.text()
    assert re.fullmatch(r"(\d+ \d+ \d+ \w+\n)+total \w+\n", outcome.out)


@pytest.mark.stress
def test_ctrl_c_on_a_real_terminal(tmp_path):
    words = ["task=digest", "dataset.count=5000", f"dataset.root={tmp_path / 'faces'}"]
    control, screen = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *words],
        stderr=screen,
        stdin=screen,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        cwd=tmp_path,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    ) as process:
        os.close(screen)
        said = read_until(control, rb"drawing faces.*\d/5,000")
        os.write(control, b"\x03")
        said += read_until(control, None)
        assert process.wait(600) == 130, said
        assert process.stdout.read() == b""
    os.close(control)
    assert said.rstrip().endswith(b"interrupted"), said
    assert b"Traceback" not in said
    assert [path.suffix for path in (tmp_path / "faces").iterdir()] == [".lock"]


def read_until(control, pattern):
    """What a terminal shows until `pattern`, or until nobody has it open any more."""
    said = b""
    while pattern is None or not re.search(pattern, said):
        ready, _, _ = select.select([control], [], [], 120)
        assert ready, said
        try:
            found = os.read(control, 4096)
        except OSError:  # Linux: the other side is closed
            found = b""
        if not found:
            break
        said += found
    return said
