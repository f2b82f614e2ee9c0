import io
import math
import re
from types import SimpleNamespace

import pytest

from pipeline.loader import LoaderStats
from pipeline.tasks import progress

RECORD = {
    "epoch": 3, "step": 100, "train/loss": 0.123456, "lr": 0.1, "seconds": 2.0,
    "samples_per_second": 1234.5, "wait_share": 0.07, "val/loss": 0.2, "val/nme": math.nan,
    "val/recall/ants": 0.5,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    for module in ("pipeline.tasks.progress", "pipeline.terminal"):
        monkeypatch.setattr(f"{module}.sys", SimpleNamespace(stderr=stream))
    return stream


def loader(samples=320, total=2.0, wait=0.5):
    stats = LoaderStats(wait_seconds=wait, total_seconds=total, samples=samples)
    return SimpleNamespace(stats=stats)


def batch(step):
    return SimpleNamespace(request=SimpleNamespace(step=step))


def test_a_line_an_epoch_where_there_is_no_terminal(capsys):
    display = progress.make("auto", loader(), 12)
    display.on_epoch_start(3, 10, 0)
    display.on_batch(batch(0))
    display.on_log(RECORD)
    display.on_epoch_end(RECORD)
    display.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "epoch  3 of 12  train/loss 0.1235  val/loss 0.2  val/nme nan  "
        "1,234 samples/s  7% waiting\n"
    )


def test_none_is_silent(capsys):
    display = progress.make("none", loader(), 12)
    display.on_epoch_start(0, 10, 0)
    display.on_epoch_end(RECORD)
    display.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("steps", [10, None])
def test_a_bar_on_a_terminal(terminal, monkeypatch, steps):
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0.0)
    display = progress.make("auto", loader(), 12)
    assert isinstance(display, progress.Bar)
    display.on_epoch_start(3, steps, 0)
    display.on_log(RECORD)
    display.on_batch(batch(3))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert f"4/{steps or '?'}" in shown
    assert "epoch  3 of 12" in shown
    assert "loss 0.1235  160 samples/s  25% waiting" in shown
    display.on_epoch_end(RECORD)
    assert "val/loss 0.2" in terminal.getvalue()
    display.close()


def test_the_bar_is_not_drawn_at_every_batch(terminal):
    display = progress.Bar(loader(), 12)
    display.on_epoch_start(0, 1000, 0)
    for step in range(1000):
        display.on_batch(batch(step))
    assert terminal.getvalue().count("epoch") < 50
    display.close()


def test_closing_in_the_middle_gives_the_cursor_back(terminal):
    display = progress.Bar(loader(), 12)
    display.on_epoch_start(0, 10, 0)
    display.close()
    display.close()
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")
