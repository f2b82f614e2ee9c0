"""Pictures and masks of numbers or colours."""

import numpy as np
import pytest
from PIL import Image

from penstock.addons.vision.image_masks import ImageMasks
from penstock.errors import ConfigError, DataError

NAMES = ["background", "cat", "owl"]
COLORS = {"background": [0, 0, 0], "cat": [255, 0, 0], "owl": [0, 9, 200]}
NUMBERS = np.array([[0, 1, 2, 255], [2, 2, 1, 0]], np.uint8)


def written(folder, mask, below="", name="a.png"):
    for kind in ("images", "masks"):
        (folder / kind / below).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 2)).save(folder / "images" / below / "a.jpg")
    mask.save(folder / "masks" / below / name)
    return str(folder)


def test_numbers_palettes_and_colours_give_the_same(tmp_path):
    palette = Image.fromarray(NUMBERS)
    palette.putpalette([value for row in range(256) for value in (row, 0, 255 - row)])
    table = np.full((256, 3), 77, np.uint8)
    table[:3] = list(COLORS.values())
    kinds = {
        "numbers": (Image.fromarray(NUMBERS), NAMES, None),
        "palette": (palette, NAMES, None),
        "colors": (Image.fromarray(table[NUMBERS]), COLORS, [77, 77, 77]),
    }
    for kind, (mask, classes, ignored) in kinds.items():
        root = written(tmp_path / kind, mask)
        data = ImageMasks(root, classes, val_fraction=0.0, ignored_color=ignored)
        assert data[0]["mask"].tolist() == NUMBERS.tolist(), kind
        assert data.classes == NAMES


def test_divided_folders_and_suffixes(tmp_path):
    for split in ("train", "val"):
        root = written(tmp_path, Image.fromarray(NUMBERS), split, "a_mask.png")
    data = ImageMasks(root, NAMES, "val", suffix="_mask")
    assert [path.endswith("masks/val/a_mask.png") for path in data.metadata["mask"]] == [True]


@pytest.mark.parametrize(
    ("mask", "classes", "said"),
    [
        (Image.fromarray(NUMBERS), NAMES[:2], "has the number 2"),
        (Image.new("RGB", (4, 2), (1, 2, 3)), COLORS, r"has the colour \[1, 2, 3\]"),
        (Image.new("RGB", (4, 2)), NAMES, "has the colours of mode RGB"),
        (Image.new("L", (5, 2)), NAMES, "has 5 x 2 pixels, and its picture 4 x 2"),
    ],
)
def test_masks_that_do_not_fit_are_refused(tmp_path, mask, classes, said):
    data = ImageMasks(written(tmp_path, mask), classes, val_fraction=0.0)
    with pytest.raises(DataError, match=said):
        data[0]


def test_damaged_and_missing_masks_are_refused(tmp_path):
    root = written(tmp_path, Image.fromarray(NUMBERS))
    path = tmp_path / "masks/a.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="is no image, truncated or damaged"):
        ImageMasks(root, NAMES, val_fraction=0.0)[0]
    path.unlink()
    with pytest.raises(DataError, match=r"has no mask .*masks/a.png"):
        ImageMasks(root, NAMES)
    with pytest.raises(DataError, match=r"dataset.masks: .*labels' is missing"):
        ImageMasks(root, NAMES, masks="labels")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"classes": "cat"}, "a list of 1 to 255 names"),
        ({"classes": NAMES, "ignored": 2}, "is a class's number"),
        ({"classes": {"cat": [1, 2]}}, "is no colour"),
        ({"classes": {"cat": [1, 2, 3], "owl": [1, 2, 3]}}, "occurs twice"),
        ({"classes": NAMES, "masks": "../masks"}, "leads out"),
    ],
)
def test_arguments_that_cannot_be_are_refused(tmp_path, arguments, said):
    with pytest.raises(ConfigError, match=said):
        ImageMasks(written(tmp_path, Image.fromarray(NUMBERS)), **arguments)


def test_masks_of_pictures_that_exif_turns(tmp_path, caplog):
    exif = Image.Exif()
    exif[0x0112] = 6
    root = written(tmp_path, Image.fromarray(NUMBERS))
    Image.new("RGB", (4, 2)).save(tmp_path / "images/a.jpg", exif=exif)
    with pytest.raises(DataError, match=r"turns 1 of 1 .*a\.jpg. Set dataset.orientation=ignore"):
        ImageMasks(root, NAMES)
    data = ImageMasks(root, NAMES, val_fraction=0.0, orientation="ignore")
    assert data[0]["image"].shape == (3, 2, 4)
    # A mask that is turned as its picture is.
    Image.fromarray(NUMBERS).save(tmp_path / "masks/a.png", exif=exif)
    assert not caplog.text
    turned = ImageMasks(root, NAMES, val_fraction=0.0)[0]["mask"]
    assert turned.tolist() == np.rot90(NUMBERS, -1).tolist()
    for name in ("images/a.jpg", "masks/a.png"):
        Image.new("L", (4, 4)).save(tmp_path / name, exif=exif if name[0] == "i" else None)
    ImageMasks(root, NAMES)
    assert "for 1 no size tells whether their masks" in caplog.text
