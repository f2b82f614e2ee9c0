import re

import numpy as np
import pytest
import torch

import penstock
from penstock.addons.reports import predictions
from penstock.build.training import TrainingParts
from penstock.transforms.image import Compose, Normalize


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
    parts = TrainingParts(penstock.compose(*faces, "loader=debug"))
    model, objective = parts.model(), parts.objective()
    before = torch.random.get_rng_state()
    path = predictions.draw(parts.data.val, model, objective, tmp_path / "p.png", count=5)
    assert path == tmp_path / "p.png"
    assert torch.equal(torch.random.get_rng_state(), before)
    images, landmarks, predicted, captions = drawn[0]
    rows = [parts.data.val.dataset[row] for row in (0, 3, 6, 8, 11)]
    # As the dataset has them, 48 pixels, where the model sees 64.
    assert all(torch.equal(one, row["image"]) for one, row in zip(images, rows, strict=True))
    assert len(images) == len(landmarks) == len(predicted) == 5
    for points, row in zip(landmarks, rows, strict=True):
        torch.testing.assert_close(points, row["landmarks"].as_subclass(torch.Tensor))
    alone = objective.metrics["nme"]
    alone.update(predicted[0][None], landmarks[0][None])
    assert captions[0] == f"nme {alone.compute():.3f}"


@pytest.mark.thorough
def test_pictures_of_a_dataset_that_was_written_for_torch_are_drawn(drawn, tmp_path, monkeypatch):
    """A tuple of a Pillow picture and a number, as large as the dataset has them."""
    monkeypatch.setenv("PENSTOCK_TRUST", "tests.own_parts")
    words = ["transform=images", "model=small_conv_net", "objective=classification", "loader=debug"]
    words += ["~dataset", "+dataset={_target_: tests.own_parts.Photos}"]
    parts = TrainingParts(penstock.compose(*words))
    predictions.draw(parts.data.val, parts.model(), parts.objective(), tmp_path / "p.png")
    images, _, _, captions = drawn[0]
    assert {tuple(one.shape) for one in images} == {(3, 40, 60)}
    assert [one.partition(" ")[0] in ("dark", "light") for one in captions] == [True] * 8


def test_classes_are_named(drawn, tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        for name in ("ants", "bees"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", (40, 40), "red").save(folder / "one.png")
    root = f"dataset.root={tmp_path / 'data'}"
    parts = TrainingParts(penstock.compose("dataset=image_folder", root, "loader=debug"))
    model = parts.model()
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 4.0])
    predictions.draw(parts.data.val, model, parts.objective(), tmp_path / "p.png")
    captions = drawn[0][3]
    assert captions == ["bees 98%\nnot ants", "bees 98%"]


def test_pictures_are_as_the_model_saw_them_where_a_later_step_moves_them(faces, drawn, tmp_path):
    crop = "+transform.val.cut={_target_: torchvision.transforms.v2.CenterCrop, size: 40}"
    parts = TrainingParts(
        penstock.compose(*faces, "loader=debug", crop, "+transform.val.cut._after_=resize")
    )
    predictions.draw(parts.data.val, parts.model(), parts.objective(), tmp_path / "p.png", count=2)
    images, landmarks, _, _ = drawn[0]
    assert all(one.shape == (3, 40, 40) for one in images)
    expected = parts.data.val.transform(parts.data.val.dataset[0])["landmarks"]
    torch.testing.assert_close(landmarks[0], expected.as_subclass(torch.Tensor))


def test_sequences_are_drawn_without_their_padding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = []
    monkeypatch.setattr(predictions, "signals", lambda *given: drawn.append(given) or given[1])
    parts = TrainingParts(
        penstock.compose(
            "dataset=sequences", "loader=debug", "dataset.root=seq", "dataset.count=40"
        )
    )
    path = tmp_path / "p.png"
    assert predictions.draw(parts.data.val, parts.model(), parts.objective(), path, count=4) == path
    values, _, captions = drawn[0]
    rows = [parts.data.val.dataset[row]["sequence"] for row in (0, 2, 5, 7)]
    assert all(torch.equal(one, row) for one, row in zip(values, rows, strict=True))
    assert all(re.fullmatch(r"\w+ \d+%(, not \w+)?", caption) for caption in captions)


def test_texts_and_tables_are_listed(tmp_path):
    (tmp_path / "t.tsv").write_text(
        "".join(f"{'ham' if n % 2 else 'spam'}\tno|{n} \x1b[31m\n" for n in range(40))
    )
    parts = TrainingParts(
        penstock.compose(
            "dataset=delimited_text",
            f"dataset.root={tmp_path}",
            "dataset.file=t.tsv",
            "loader=debug",
            "dataset.columns=[label,text]",
            f"dataset.cache_dir={tmp_path / 'cache'}",
        )
    )
    path = predictions.draw(
        parts.data.val, parts.model(), parts.objective(), tmp_path / "p.png", count=3
    )
    assert path == tmp_path / "p.md"
    lines = path.read_text().splitlines()
    assert lines[0] == "| row | sample | true | predicted |"
    assert len(lines) == 2 + 3
    row = r"\| \d \| no\\\|\d+ .\\\[31m \| (ham|spam) \| (ham|spam) \d+% \|"
    assert all(re.fullmatch(row, line) and "\x1b" not in line for line in lines[2:])
    np.save(tmp_path / "inputs.npy", np.arange(60, dtype=np.float32).reshape(20, 3))
    np.save(tmp_path / "targets.npy", np.linspace(0, 1, 20, dtype=np.float32))
    parts = TrainingParts(
        penstock.compose(
            "dataset=arrays", "objective=regression", "loader=debug", f"dataset.root={tmp_path}"
        )
    )
    path = predictions.draw(
        parts.data.val, parts.model(), parts.objective(), tmp_path / "q.png", count=2
    )
    row = parts.data.val.dataset[0]
    shown = path.read_text().splitlines()[2]
    assert f"| {', '.join(f'{one:.4g}' for one in row['input'].tolist())} |" in shown
    assert f"| {float(row['target']):.4g} |" in shown


def test_normalization_is_undone():
    image = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    step = Normalize({"mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3]})
    from torchvision import tv_tensors

    normalized = step({"image": tv_tensors.Image(image)})["image"]
    assert torch.equal(predictions.denormalized(normalized, Compose({"n": step})), image)
    assert predictions.denormalized(image, Compose({})) is image
