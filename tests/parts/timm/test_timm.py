"""Classifiers of timm's, by the line of docs/training.md: trusted, and made by timm itself."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from penstock import Run
from tests.support.program import run

# Not imported here: that takes a second of each process that collects tests.
pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")


def test_a_model_is_fine_tuned_from_a_file_of_timms(capsys, tmp_path, monkeypatch):
    import timm

    draw = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "pictures" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(number % 2 * 100, 156 + number % 2 * 100, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    torch.manual_seed(1)
    other = timm.create_model("test_resnet", num_classes=10)
    torch.save(other.state_dict(), tmp_path / "weights.pth")
    words = [
        "dataset=image_folder", f"dataset.root={tmp_path / 'pictures'}", "batch.size=8",
        "model={_target_: timm.create_model, model_name: test_resnet, num_classes: 2}",
        f"trainer.warm_start.path={tmp_path / 'weights.pth'}", "trainer.warm_start.without=fc",
        "optimizer.lr=0", "trainer.freeze.names=['layer?','conv?','bn?']", "trainer.max_epochs=1",
        "loader.num_workers=0", "trainer.report=false", f"run_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    refused = run(capsys, *words)
    assert refused.code == 2
    assert "trusted by --trust timm" in refused.err
    monkeypatch.setenv("PENSTOCK_TRUST", "timm")
    done = run(capsys, *words)
    assert done.code == 0, done.err
    assert "left out: fc.weight, fc.bias" in done.err
    model = Run(str(tmp_path / "run")).model()
    assert type(model) is type(other)
    own, theirs = model.state_dict(), other.state_dict()
    assert own.keys() == theirs.keys()
    for name, value in own.items():
        assert name.startswith("fc") or torch.equal(value, theirs[name]), name
