"""Images in folders: both layouts, what is skipped, and what is refused."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from penstock import compose
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError

INSECTS = Path(__file__).parents[3].parent / "shared" / "data" / "hymenoptera"


def write(root, *names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (number * 20 % 256, 0, 0)).save(path, "JPEG")
    return root


@pytest.fixture
def flat(tmp_path):
    cats = [f"cat/{number}.jpg" for number in range(8)]
    return write(
        tmp_path / "pets", *cats, "dog/a.png", "dog/more/b.JPEG", "dog/c.jpg", "dog/d.webp"
    )


@pytest.fixture
def divided(tmp_path):
    return write(
        tmp_path / "pets",
        "train/cat/0.jpg",
        "train/cat/1.jpg",
        "train/dog/2.jpg",
        "val/cat/3.jpg",
        "val/dog/4.jpg",
    )


def test_a_sample(flat):
    data = ImageFolder(str(flat), shares=Shares(0.0))
    assert len(data) == 12
    sample = data[9]
    assert isinstance(sample["image"], tv_tensors.Image)
    assert sample["image"].shape == (3, 6, 8)
    assert sample["image"].dtype == torch.uint8
    assert sample["label"] == 1
    assert Path(data.path(9)).name == "c.jpg"  # sorted: dog/a.png, dog/c.jpg, dog/d.webp ...


def test_each_class_is_divided_alike(flat):
    train, val = (ImageFolder(str(flat), split, shares=Shares(0.25)) for split in ("train", "val"))
    assert (len(train), len(val)) == (9, 3)
    assert val.labels.tolist() == [0, 0, 1]
    assert not set(train.metadata["path"]) & set(val.metadata["path"])


def test_facts_metadata_and_classes(flat):
    data = ImageFolder(str(flat))
    assert data.classes == ["cat", "dog"]
    assert data.facts == {"num_classes": 2, "num_outputs": 2}
    table = data.metadata
    assert tuple(table.columns) == ImageFolder.columns
    for row in table.itertuples(index=False):
        assert Path(row[0]).is_file()
        assert f"/{row[2]}/" in row[0]
        assert data.classes[row[1]] == row[2]


def test_folders_that_are_divided_already(divided):
    train, val = ImageFolder(str(divided)), ImageFolder(str(divided), "val", shares=Shares(0.9))
    assert train.labels.tolist() == [0, 0, 1]
    assert val.labels.tolist() == [0, 1]
    assert Path(val.path(1)) == divided / "val" / "dog" / "4.jpg"
    with pytest.raises(ConfigError, match=r"dataset\.root: .*is divided and has no folder 'test'"):
        ImageFolder(str(divided), "test")


def test_a_class_may_lack_validation_images(divided):
    (divided / "val" / "dog" / "4.jpg").unlink()
    (divided / "val" / "dog").rmdir()
    assert ImageFolder(str(divided), "val").facts["num_classes"] == 2
    (divided / "val" / "dog").mkdir()
    assert ImageFolder(str(divided), "val").labels.tolist() == [0]


def test_other_files_are_counted_once(flat, caplog):
    (flat / "cat" / "notes.txt").write_text("")
    (flat / "cat" / "z.gif").write_text("")
    (flat / "dog" / ".DS_Store").write_text("")
    (flat / ".cache").mkdir()
    ImageFolder(str(flat))
    ImageFolder(str(flat), "val")
    (record,) = caplog.records
    assert "left out 2 file(s): 1 .txt, 1 .gif" in " ".join(record.getMessage().split())


def test_the_fingerprint(flat, tmp_path):
    prints = {ImageFolder(str(flat)).fingerprint, ImageFolder(str(flat), "val").fingerprint}
    prints.add(ImageFolder(str(flat), reader="pillow").fingerprint)
    moved = flat.rename(tmp_path / "elsewhere")
    assert ImageFolder(str(moved)).fingerprint in prints
    assert len(prints) == 3
    for image in (moved / "cat").iterdir():
        Image.new("RGB", (80, 60)).save(image)
    assert ImageFolder(str(moved)).fingerprint not in prints


def refused(root, match, split="train"):
    with pytest.raises(DataError, match=match):
        ImageFolder(str(root), split)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], r"dataset\.root: .*pets.* is missing\. Set dataset\.root"),
        (["0.jpg"], "has no folders in it: .*one for each class"),
        (
            ["cat/0.jpg", "bird/a.txt"],
            r"class 'bird': .*bird' has no such files\. .*set\.extensions",
        ),
        (["train/cat/0.jpg"], "'train' of classes and none named 'val'"),
    ],
)
def test_folders_that_are_no_dataset(tmp_path, names, message):
    root = write(tmp_path / "pets", *names)
    for path in root.rglob("*.txt"):
        path.write_text("no image")
    refused(root, message)


def test_a_validation_class_without_training(divided):
    write(divided, "val/bird/0.jpg")
    refused(
        divided, r"val/bird': the training split has no class 'bird' \(it has cat, dog\)", "val"
    )


def test_a_class_named_train(tmp_path):
    root = write(tmp_path, "train/0.jpg", "bus/0.jpg")
    assert ImageFolder(str(root)).classes == ["bus", "train"]


@pytest.mark.parametrize("extensions", [".jpg", ["jpg"], [".JPG"], []])
def test_wrong_extensions(flat, extensions):
    with pytest.raises(ConfigError, match=r"dataset\.extensions: .*(array|pattern|at least 1)"):
        compose("dataset=image_folder", f"dataset.root={flat}", f"+dataset.extensions={extensions}")


@pytest.mark.skipif(not INSECTS.is_dir(), reason="the shared data is not here")
def test_ants_and_bees(caplog):
    train, val = ImageFolder(str(INSECTS)), ImageFolder(str(INSECTS), "val")
    assert (len(train), len(val)) == (244, 153)
    assert train.classes == val.classes == ["ants", "bees"]
    assert "imageNotFound.gif" in caplog.text
