import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pipeline.runs.tracker import Nothing, TensorBoard


def test_tensorboard_files_hold_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Image.new("RGB", (8, 6), "red").save(tmp_path / "picture.png")
    tracker = TensorBoard(tmp_path / "tracker")
    assert not (tmp_path / "tracker").exists(), "the folder is made by the first log"
    tracker.log({"train/loss": 0.5, "lr": 0.1}, step=3)
    tracker.log({"train/loss": 0.25}, step=6)
    tracker.picture("curves", tmp_path / "picture.png", step=6)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tracker"), {"images": 0})
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(3, 0.5), (6, 0.25)]
    assert events.Scalars("lr")[0].value == pytest.approx(0.1)
    image = events.Images("curves")[0]
    assert (image.width, image.height) == (8, 6)


def test_closing_early_or_twice_is_fine(tmp_path):
    tracker = TensorBoard(str(tmp_path / "tracker"))
    tracker.close()
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = Nothing()
    tracker.log({"loss": 1.0}, 0)
    tracker.picture("missing", tmp_path / "missing.png", 0)
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_importing_is_cheap():
    code = (
        "import pipeline.runs.tracker, pipeline.runs.pictures, sys;"
        "print([m for m in ('tensorboard', 'matplotlib', 'PIL') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
