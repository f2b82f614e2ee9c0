"""Classifiers of timm's: as they are, from weights of a file, never from the network."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.program import run

# Not imported here: that takes a second of each process that collects tests.
pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(24):
        place = folder / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        pixels = draw.integers(number % 2 * 100, 156 + number % 2 * 100, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def words(pictures, *more):
    return [
        "dataset=image_folder",
        f"dataset.root={pictures}",
        "model=timm",
        "model.name=test_resnet",
        "batch.size=8",
        "trainer.max_epochs=1",
        "loader.num_workers=0",
        "tracker=none",
        "trainer.pictures=false",
        "trainer.report=false",
        *more,
    ]


def test_a_model_is_fine_tuned_from_a_file_of_timms(capsys, pictures, tmp_path):
    import timm

    torch.manual_seed(1)
    other = timm.create_model("test_resnet", pretrained=False, num_classes=10)
    torch.save(other.state_dict(), tmp_path / "weights.pth")
    start = [f"trainer.warm_start.path={tmp_path / 'weights.pth'}", "optimizer.lr=0"]
    said = run(capsys, *words(pictures, *start, f"run_dir={tmp_path / 'run'}"))
    assert said.code == 2
    assert "of another shape: fc.weight float32[10" in said.err
    start += ["trainer.warm_start.without=fc", "trainer.freeze.names=['layer%','conv%','bn%']"]
    start[-1] = "trainer.freeze.names=['layer?','conv?','bn?']"
    done = run(capsys, *words(pictures, *start, f"run_dir={tmp_path / 'run'}"))
    assert done.code == 0, done.err
    assert "left out: fc.weight, fc.bias" in done.err
    from penstock import Run

    model = Run(str(tmp_path / "run")).model()
    assert type(model) is type(other)
    own, theirs = model.state_dict(), other.state_dict()
    assert own.keys() == theirs.keys()
    for name, value in own.items():
        assert name.startswith("fc") or torch.equal(value, theirs[name]), name


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["model.name=restnet18"],
            "restnet18: ValueError: no model of timm's (did you mean",
        ),
        (
            ["model.name=resnet18.a1_in1k"],
            "(did you mean 'resnet18'?). Nothing is fetched",
        ),
        (["model.name='hf-hub:me/x'"], "no model of timm's. Nothing is fetched"),
        (["model.name='local-dir:x'"], "no model of timm's. Nothing is fetched"),
        (["model.arguments={pretrained: true}"], "pretrained: names files or downloads"),
        (["model.arguments={checkpoint_path: x}"], "checkpoint_path: names files or downloads"),
        (
            ["model.arguments={num_classes: 3}"],
            "multiple values for keyword argument",
        ),
        (["model.arguments={drop: 1}"], "model: test_resnet: TypeError: "),
        (["model.name=vit_tiny_patch16_224"], "arguments.img_size: (224, 224), and pictures have"),
    ],
)
def test_what_does_not_go_is_one_message(capsys, pictures, tmp_path, more, message):
    done = run(capsys, *words(pictures, *more, f"run_dir={tmp_path / 'run'}"))
    assert done.code == 2, done.err
    assert message in done.err
    assert "Traceback" not in done.err
