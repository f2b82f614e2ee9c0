"""Trackers that fail, hang or are slow cost one warning, and never the run."""

import threading
import time
from pathlib import Path

import pytest

from penstock.addons.trackers import tracker
from penstock.addons.trackers.tracker import Tracked, TrackedRun, Tracker, points
from tests.support import tracked
from tests.support.program import run

NUMBERS = (
    "--trust tests dataset=numbers batch.size=8 trainer.max_epochs=2 trainer.log_every=1 "
    "trainer.baseline=false trainer.progress=none trainer.pictures=false loader=debug "
    "run_dir=run"
).split()


class Failing(Tracker):
    """Raises in the methods that `at` names."""

    def __init__(self, at: str, run: TrackedRun | None = None):
        self.at = at
        self._fail("made")

    def _fail(self, place):
        if place in self.at.split("+"):
            raise ConnectionError("https://server is gone\nand more")

    def log(self, metrics, step):
        self._fail("log")

    def file(self, path):
        self._fail("file")

    def close(self, status):
        self._fail("close")


class Hanging:
    """Never returns from a log."""

    def __init__(self):
        self.released = threading.Event()

    def log(self, metrics, step):
        self.released.wait()


class Keeping:
    """A tracker of a person's own: no base class, and two methods."""

    def __init__(self):
        self.calls = []

    def log(self, metrics, step):
        self.calls.append(("log", dict(metrics), step))

    def close(self, status):
        self.calls.append(status)


@pytest.mark.parametrize("at", ["made", "log", "file", "close", "log+close"])
def test_a_failure_is_one_warning_and_others_go_on(at, tmp_path, capsys):
    kept = Keeping()
    (tmp_path / "config.yaml").touch()
    bad = Tracked("tracker.bad", lambda: Failing(at), tmp_path)
    for each in (bad, Tracked("tracker.good", lambda: kept, tmp_path)):
        each.on_log({"train/loss": 1.0, "step": 1, "epoch": 0})
        each.on_close("done")
    assert kept.calls == [("log", {"train/loss": 1.0, "train/epoch": 0}, 1), "done"]
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert "tracker.bad: ConnectionError: https://server is gone. The run continues" in said


def test_a_server_that_comes_back_gets_the_rest(tmp_path, capsys):
    kept, tries = Keeping(), iter([OSError("down")])

    def make():
        for error in tries:
            raise error
        return kept

    sent = Tracked("tracker.late", make, tmp_path)
    for step in (1, 2):
        sent.on_log({"step": step, "epoch": 0})
    sent.on_close("failed")
    assert kept.calls == [("log", {"train/epoch": 0}, 2), "failed"]
    assert capsys.readouterr().err.count("WARNING") == 1


def test_one_that_hangs_costs_a_bounded_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(tracker.END_SECONDS, "done", 0.3)
    hanging = Hanging()
    sent = Tracked("tracker.bad", lambda: hanging, tmp_path)
    began = time.monotonic()
    for step in range(50):
        sent.on_log({"lr": 0.1, "step": step, "epoch": 0})
    sent.on_close("done")
    assert 0.3 <= time.monotonic() - began < 60
    hanging.released.set()
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert "tracker.bad: it did not end in time" in said


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    from tests.support.own_parts import NUMBERS as text

    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(text)
    return ["--config-dir", "conf", *NUMBERS]


def test_a_run_ends_well_whatever_its_trackers_do(numbers, capsys):
    name = f"{__name__}.Failing"
    done = run(
        capsys,
        *numbers,
        "tracker=tensorboard",
        f"+tracker.bad={{_target_: {name}, at: log+close}}",
        f"+tracker.worse={{_target_: {name}, at: made}}",
    )
    assert done.code == 0, done.err
    assert done.err.count("WARNING") == 2
    assert {step for _, step, _ in tracked.tensorboard(Path("run"))} == set(range(1, 9))


def test_names_have_one_value_a_step_and_none_is_a_folder_of_another():
    log = {"event": "log", "epoch": 1, "step": 5, "train/loss": 0.5, "ms/read": 1.0}
    epoch = {**log, "event": "epoch", "seconds": 2.0, "val/loss": 0.25}
    names = [*points("log", log), *points("epoch", epoch)]
    assert (
        names
        == (
            "train/loss ms/read train/epoch epoch/train/loss epoch/ms/read epoch/seconds val/loss"
        ).split()
    )
    assert not any(other.startswith(f"{one}/") for one in names for other in names)


def test_tensorboard_keeps_the_configuration(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from penstock.addons.trackers.tensorboard import TensorBoard

    told = TrackedRun("1", "a/b", tmp_path, {"seed": 3, "model": {"width": 8}}, {})
    TensorBoard(tmp_path / "board", told).close("done")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    (text,) = events.Tensors("configuration/text_summary")
    assert b"model:\n  width: 8" in text.tensor_proto.string_val[0]
