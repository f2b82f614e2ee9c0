import io
import math
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from penstock.loading.loader import LoaderStats
from penstock.order.skipped import Skipped
from penstock.tasks import progress
from penstock.terminal import ProgressDisplay, bar, left, progress_shown, watched

RECORD = {
    "epoch": 3,
    "step": 100,
    "train/loss": 0.123456,
    "lr": 0.1,
    "seconds": 2.0,
    "samples_per_second": 1234.5,
    "wait_share": 0.07,
    "val/loss": 0.2,
    "val/nme": math.nan,
    "val/recall/ants": 0.5,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    for module in ("penstock.tasks.progress", "penstock.terminal"):
        monkeypatch.setattr(f"{module}.sys", SimpleNamespace(stderr=stream, stdout=None))
    return stream


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""
    clock = SimpleNamespace(now=1000.0)
    for module in ("penstock.tasks.progress", "penstock.terminal"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def shown(terminal):
    """What was drawn, one drawing a line, without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", terminal.getvalue())


def loader(samples=320, total=2.0, wait=0.5, skip=None):
    stats = LoaderStats(wait_seconds=wait, total_seconds=total, samples=samples)
    return SimpleNamespace(stats=stats, plan=SimpleNamespace(skipped=Skipped.of(skip)))


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


def test_an_epoch_takes_two_lines_of_a_narrow_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    progress.Lines(loader(), 12).on_epoch_end(RECORD)
    assert terminal.getvalue() == (
        "epoch  3 of 12  train/loss 0.1235  val/loss 0.2  val/nme nan\n"
        "  1,234 samples/s  7% waiting\n"
    )


def test_none_is_silent(capsys):
    display = progress.make("none", loader(), 12)
    display.on_epoch_start(0, 10, 0)
    display.on_epoch_end(RECORD)
    display.close()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("steps", [10, None])
def test_a_bar_on_a_terminal(terminal, monkeypatch, steps):
    monkeypatch.setattr(progress.Bar, "_seconds", 0.0)
    display = progress.make("auto", loader(), 12)
    assert isinstance(display, progress.Bar)
    display.on_epoch_start(3, steps, 0)
    display.on_losses(torch.tensor([0.1235]))
    display.on_batch(batch(3))
    assert f"4/{steps or '?'}" in shown(terminal)
    assert "epoch  3 of 12" in shown(terminal)
    assert "loss 0.1235  160 samples/s  25% waiting" in shown(terminal)
    display.on_epoch_end(RECORD)
    assert "val/loss 0.2" in terminal.getvalue()
    display.close()


def test_a_command_of_a_notebook_prints_lines(terminal, monkeypatch):
    """The terminal that a notebook gives it keeps every drawing of a bar."""
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    display = progress.make("auto", loader(), 12)
    display.on_epoch_start(3, 10, 0)
    display.on_epoch_end(RECORD)
    assert terminal.getvalue().startswith("epoch  3 of 12  train/loss 0.1235")
    assert isinstance(progress.make("rich", loader(), 12), progress.Bar)


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


def test_the_bar_shows_the_loss_of_the_last_batch_and_the_time_left(terminal, monkeypatch, clock):
    display = progress.make("auto", loader(), 12)
    display.on_epoch_start(0, 100, 20)
    clock.now += 10.0
    display.on_losses(torch.tensor([0.5, 1.5]))
    display.on_batch(batch(39))
    assert "40/100" in shown(terminal)
    assert "loss 1  160 samples/s  25% waiting  30 s left" in shown(terminal)
    display.close()


def test_batches_that_training_leaves_out_take_no_time(terminal, clock):
    display = progress.make("auto", loader(skip=[[3, 30], [3, 70]]), 12)
    display.on_epoch_start(3, 100, 10)
    clock.now += 20.0
    display.on_batch(batch(69 + 10))  # 20 before the range and 10 after it
    assert "80/100" in shown(terminal)
    assert "13 s left" in shown(terminal)  # for 20 more
    display.close()


def test_validation_has_a_bar_of_its_own(terminal, clock):
    display = progress.make("auto", loader(), 12)
    display.on_epoch_start(0, 100, 0)
    display.on_validation(0, 8)
    clock.now += 1.0
    display.on_validation(2, 8)
    display.on_epoch_end(RECORD)
    display.on_validation(0, 8)  # of the baseline
    clock.now += 1.0
    display.on_validation(4, 8)
    drawn = shown(terminal)
    assert "epoch  0 of 12, validation" in drawn
    assert "2/8 3 s left" in drawn
    assert "measuring" in drawn
    assert "4/8 1 s left" in drawn
    display.close()


def test_a_log_file_has_a_line_a_minute(capsys, clock):
    display = progress.make("auto", loader(), 12)
    display.on_epoch_start(3, 1000, 0)
    for step in range(1000):
        clock.now += 0.2  # 200 s
        display.on_losses(torch.tensor([0.25]))
        display.on_batch(batch(step))
    display.on_validation(0, 600)
    for step in range(600):
        clock.now += 0.2  # 120 s
        display.on_validation(step + 1, 600)
    display.on_epoch_end(RECORD)
    display.close()
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\r" not in err
    lines = [re.sub(r"\d+/", "N/", line) for line in err.splitlines()]
    assert len(lines) == 3 + 2 + 1, "and none for every batch"
    assert re.match(
        r"epoch  3 of 12  N/1000  loss 0.25  160 samples.s  25% waiting  2 min left", lines[0]
    )
    assert lines[3].startswith("epoch  3 of 12, validation  N/600  1 min left")


def test_an_epoch_of_seconds_has_one_line(capsys, clock):
    display = progress.make("plain", loader(), 1)
    display.on_epoch_start(0, 1000, 0)
    for step in range(1000):
        clock.now += 0.01
        display.on_batch(batch(step))
    display.on_epoch_end(RECORD)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("kind", ["plain", "rich"])
def test_that_it_compiles_and_has_compiled_is_reported(kind, terminal, clock):
    display = progress.make(kind, loader(), 2, compiles=True)
    for epoch in range(2):
        display.on_epoch_start(epoch, 10, 0)
        clock.now += 90.0
        display.on_batch(batch(0))
        display.on_batch(batch(1))
        display.on_validation(0, 8)
        clock.now += 30.0
        display.on_validation(1, 8)
        display.on_epoch_end(RECORD)
    display.on_validation(0, 8)  # of the baseline, which is not compiled
    display.close()
    lines = [line for line in shown(terminal).splitlines() if "compil" in line]
    assert [line[line.index("compil") :].strip() for line in lines] == [
        "compiling the model for training, before its first batch; this can take minutes "
        "(trainer.compile=true)",
        "compiled for training in 90 s",
        "compiling the model for validation, before its first batch; this can take minutes "
        "(trainer.compile=true)",
        "compiled for validation in 30 s",
    ]


def test_the_loss_is_looked_at_once_a_second(capsys, clock):
    display = progress.Lines(loader(), 2)
    display._seconds = 0.5
    display.on_epoch_start(0, 10, 0)
    for step, loss in enumerate([1.0, 2.0, 3.0, 4.0]):
        clock.now += 0.5
        display.on_losses(torch.tensor([loss, loss]))
        display.on_batch(batch(step))
    display.on_losses(torch.tensor([]))
    clock.now += 0.5
    display.on_batch(batch(4))
    assert re.findall(r"(\d)/10  loss (\d)", capsys.readouterr().err) == [
        ("1", "1"),
        ("2", "1"),
        ("3", "3"),
        ("4", "3"),
        ("5", "3"),
    ]


def test_a_batch_before_any_loss_and_after_no_time(capsys, clock):
    display = progress.Lines(loader(total=0.0, wait=0.0), 2)
    display._seconds = 1.0
    display.on_epoch_start(0, None, 2)
    clock.now += 1.0
    display.on_batch(batch(5))
    display.on_losses(torch.tensor([]))
    clock.now += 1.0
    display.on_batch(batch(6))
    clock.now += 0.9
    display.on_batch(batch(7))
    assert capsys.readouterr().err.splitlines() == [
        "epoch 0 of 2  6/?  320,000,000,000 samples/s  0% waiting",
        "epoch 0 of 2  7/?  320,000,000,000 samples/s  0% waiting",
    ]
    display.on_epoch_start(1, 10, 2)
    clock.now += 4.0
    display.on_batch(batch(5))
    assert capsys.readouterr().err.endswith("0% waiting  4 s left\n")


def test_a_bar_is_closed_with_its_last_batch_of_validation(terminal, clock):
    display = progress.Bar(loader(), 2)
    display.on_epoch_start(0, 10, 0)
    for done in range(3):
        clock.now += 1.0
        display.on_validation(done, 2)
        assert (display._bar is None) == (done == 2)
    display.on_validation(0, 0)
    assert display._bar is not None
    display.close()
    display._show(1, "x")
    before = terminal.getvalue()
    assert "x" not in before[-3:]


def test_a_line_of_a_record():
    record = {"tokens_per_second": 2345.6, "samples_per_second": 1.0, "wait_share": 0.5}
    assert progress.describe(record) == "2,346 tokens/s  50% waiting"
    record |= {"val/a/b": 1.0, "other/a": 1.0, "val/a": 12345.678, "shared_batches": 3.0}
    assert progress.describe(record) == (
        "val/a 1.235e+04  2,346 tokens/s  50% waiting  3 batches of other runs"
    )


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
