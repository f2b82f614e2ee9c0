import pytest
import torch

import pipeline
from pipeline.build import Parts
from pipeline.tasks import predictions
from pipeline.transforms import Compose, Normalize


@pytest.fixture
def drawn(monkeypatch):
    """What would have been drawn."""
    calls = []

    def keep(images, path, landmarks=None, predicted=None, captions=None):
        calls.append((images, landmarks, predicted, captions))
        return path

    monkeypatch.setattr(predictions, "contact_sheet", keep)
    return calls


def test_landmarks_of_samples_spread_over_the_split(faces, drawn, tmp_path):
    parts = Parts(pipeline.compose(*faces, "loader=debug"))
    model, objective = parts.model(), parts.objective()
    before = torch.random.get_rng_state()
    path = predictions.draw(parts, model, objective, tmp_path / "p.png", count=5)
    assert path == tmp_path / "p.png"
    assert torch.equal(torch.random.get_rng_state(), before)
    images, landmarks, predicted, captions = drawn[0]
    assert images.dtype == torch.uint8
    assert landmarks.shape == predicted.shape == (5, 68, 2)
    rows = [parts.transform("val")(parts.dataset("val")[row]) for row in (0, 3, 6, 8, 11)]
    torch.testing.assert_close(landmarks, torch.stack([row["landmarks"] for row in rows]))
    normalized = torch.stack([row["image"] for row in rows])
    assert torch.equal(images, predictions.denormalized(normalized, parts.transform("val")))
    alone = objective.metrics["nme"]
    alone.update(predicted[:1], landmarks[:1])
    assert captions[0] == f"nme {alone.compute():.3f}"


def test_classes_are_named(drawn, tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        for name in ("ants", "bees"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (40, 40), "red").save(folder / "one.png")
    root = f"dataset.root={tmp_path / 'data'}"
    parts = Parts(pipeline.compose("dataset=image_folder", root, "loader=debug"))
    model = parts.model()
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 4.0])
    predictions.draw(parts, model, parts.objective(), tmp_path / "p.png")
    captions = drawn[0][3]
    assert captions == ["bees 98%\nnot ants", "bees 98%"]


def test_there_is_no_picture_without_images(drawn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["dataset=sequences", "loader=debug", "dataset.root=seq"]
    parts = Parts(pipeline.compose(*overrides))
    assert predictions.draw(parts, parts.model(), parts.objective(), tmp_path / "p.png") is None
    assert drawn == []


def test_normalization_is_undone():
    image = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    step = Normalize({"mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3]})
    from torchvision import tv_tensors

    normalized = step({"image": tv_tensors.Image(image)})["image"]
    assert torch.equal(predictions.denormalized(normalized, Compose({"n": step})), image)
    assert predictions.denormalized(image, Compose({})) is image
