"""Trackers that fail, hang or are slow cost one warning, and never the run."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from penstock.addons.trackers import observing
from penstock.addons.trackers.observing import Guarded, Tracked, start
from penstock.addons.trackers.tensorboard import TensorBoard
from penstock.addons.trackers.tracker import TrackedRun, Tracker, points
from penstock.errors import ConfigError, Problem
from tests import tracked
from tests.program import run

NUMBERS = [
    "--trust",
    "tests",
    "dataset=numbers",
    "batch.size=8",
    "trainer.max_epochs=2",
    "trainer.log_every=1",
    "trainer.baseline=false",
    "trainer.progress=none",
    "trainer.pictures=false",
    "loader=debug",
    "run_dir=run",
]


class Failing(Tracker):
    """Raises in the methods that `at` names."""

    def __init__(self, at: str, run: TrackedRun | None = None):
        self.at = at
        self.run = run
        self._fail("made")

    def _fail(self, place):
        if place in self.at.split("+"):
            raise ConnectionError("https://server is gone\nand more")

    def start(self):
        self._fail("start")

    def log(self, metrics, step):
        self._fail("log")

    def picture(self, name, path, step):
        self._fail("picture")

    def file(self, path):
        self._fail("file")

    def close(self, ending="done"):
        self._fail("close")


class Hanging:
    """Never returns from a log."""

    def __init__(self):
        self.released = threading.Event()

    def log(self, metrics, step):
        self.released.wait()

    def picture(self, name, path, step):
        pass

    def close(self):
        pass


class Keeping:
    """A tracker of a person's own: no base class, three methods."""

    def __init__(self):
        self.calls = []

    def log(self, metrics, step):
        self.calls.append(("log", dict(metrics), step))

    def picture(self, name, path, step):
        self.calls.append(("picture", name, step))

    def close(self):
        self.calls.append("close")


def sender(makers, folder):
    """The observer that sends to trackers by their constructors."""
    history = SimpleNamespace(history=[{"step": 1}])
    fit = SimpleNamespace(folder=SimpleNamespace(path=folder), result=history)
    return Tracked([Guarded(key, make) for key, make in makers.items()], fit)


@pytest.mark.parametrize("at", ["made", "start", "log", "picture", "file", "close", "log+close"])
def test_a_failure_is_one_warning_and_others_go_on(at, tmp_path, capsys):
    kept = Keeping()
    (tmp_path / "config.yaml").touch()
    sent = sender({"tracker.bad": lambda: Failing(at), "tracker.good": lambda: kept}, tmp_path)
    sent.on_log({"train/loss": 1.0, "step": 1})
    sent.on_file("curves", tmp_path / "curves.png")
    sent.on_close("done")
    assert kept.calls == [("log", {"train/loss": 1.0}, 1), ("picture", "curves", 1), "close"]
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert "tracker.bad: ConnectionError: https://server is gone. The run continues" in said


def test_one_that_hangs_costs_a_bounded_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(observing.END_SECONDS, "done", 0.3)
    monkeypatch.setattr(observing, "MOST_WAITING", 3)
    hanging, kept = Hanging(), Keeping()
    sent = sender({"tracker.bad": lambda: hanging, "tracker.good": lambda: kept}, tmp_path)
    began = time.monotonic()
    for step in range(50):
        sent.on_log({"lr": 0.1, "step": step})
        while len(kept.calls) <= step:  # it has no more room either
            time.sleep(0.001)
    sent.on_close("done")
    assert 0.3 <= time.monotonic() - began < 60
    assert len(kept.calls) == 51
    hanging.released.set()
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert "tracker.bad: it hangs, with 3 calls waiting" in said


def test_what_a_constructor_refuses_is_an_error_of_the_configuration(tmp_path):
    def make():
        raise ConfigError(Problem("tracker.x.uri", "is wrong"))

    with pytest.raises(ConfigError, match=r"tracker\.x\.uri: is wrong"):
        sender({"tracker.x": make}, tmp_path)


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    from tests.own_parts import NUMBERS as text

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
        f"+tracker.bad={{_target_: {name}, at: start+log}}",
        f"+tracker.worse={{_target_: {name}, at: made}}",
    )
    assert done.code == 0, done.err
    assert done.err.count("WARNING") == 2
    assert {step for _, step, _ in tracked.tensorboard(Path("run"))} == set(range(1, 9))


def test_names_have_one_value_a_step_and_none_is_a_folder_of_another():
    log = {"event": "log", "epoch": 1, "step": 5, "train/loss": 0.5, "ms/read": 1.0}
    epoch = {**log, "event": "epoch", "seconds": 2.0, "val/loss": 0.25}
    names = [*points("log", log), *points("epoch", epoch)]
    assert names == [
        "train/epoch",
        "train/loss",
        "ms/read",
        "epoch/train/loss",
        "epoch/ms/read",
        "epoch/seconds",
        "val/loss",
    ]
    assert not any(other.startswith(f"{one}/") for one in names for other in names)


def test_tensorboard_keeps_pictures_and_the_configuration(tmp_path):
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Image.new("RGB", (8, 6), "red").save(tmp_path / "picture.png")
    told = TrackedRun(tmp_path, {"seed": 3, "model": {"width": 8}}, {})
    board = TensorBoard(tmp_path / "board", told)
    board.start()
    board.picture("curves", tmp_path / "picture.png", step=6)
    board.close()
    events = EventAccumulator(str(tmp_path / "board"), {"images": 0})
    events.Reload()
    image = events.Images("curves")[0]
    assert (image.width, image.height) == (8, 6)
    (text,) = events.Tensors("configuration/text_summary")
    assert b"\n    model:\n      width: 8" in text.tensor_proto.string_val[0]


@pytest.mark.stress
def test_nothing_is_imported_that_was_not_chosen():
    code = (
        "import penstock.addons.trackers.mlflow, penstock.addons.trackers.wandb, penstock, sys;"
        "import penstock.addons.trackers.tensorboard;"
        "penstock.compose('tracker=[tensorboard,mlflow,wandb]', 'task=digest');"
        "print([m for m in ('tensorboard', 'mlflow', 'wandb') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.thorough
def test_trackers_get_their_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    told = TrackedRun(tmp_path, {}, {})

    def close(tracker):
        for guarded in start(penstock.compose(tracker).tracker, tmp_path, told):
            guarded.call("close")
            guarded.wait(300)

    close("tracker=[tensorboard,none]")
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    close("tracker={_target_: penstock.addons.trackers.tensorboard.TensorBoard}")
    assert any(path.is_file() for path in tmp_path.iterdir())
    close("tracker=[]")


def test_records_of_a_fit_go_to_the_trackers(tmp_path):
    kept = Keeping()
    sent = sender({"tracker.good": lambda: kept}, tmp_path)
    sent.on_log({"epoch": 0, "step": 5, "train/loss": 0.5})
    sent.on_epoch_end({"epoch": 0, "step": 8, "train/loss": 0.4, "val/nme": 0.1})
    sent.on_file("curves", Path("curves.png"))
    sent.on_file("run", Path("run"))
    sent.on_close("done")
    assert kept.calls == [
        ("log", {"train/epoch": 0, "train/loss": 0.5}, 5),
        ("log", {"epoch/train/loss": 0.4, "val/nme": 0.1}, 8),
        ("picture", "curves", 1),
        "close",
    ]
