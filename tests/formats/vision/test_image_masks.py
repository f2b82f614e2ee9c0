"""Pictures and masks of numbers or colours."""

import re

import numpy as np
import pytest
from PIL import Image

from penstock import build_train_loader, compose
from penstock.addons.vision.annotated_images import ImageMasks
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from tests.support.program import run

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
        data = ImageMasks(root, classes, shares=Shares(0.0), ignored_color=ignored)
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
        (Image.fromarray(NUMBERS), NAMES[:2], "has numbers such as 2"),
        (Image.new("RGB", (4, 2), (1, 2, 3)), COLORS, r"has colours such as \[1, 2, 3\]"),
        (Image.new("RGB", (4, 2)), NAMES, "has the colours of mode RGB"),
        (Image.new("L", (5, 2)), NAMES, "has 4 x 2 pixels, and 5 x 2 in its mask"),
    ],
)
def test_masks_that_do_not_fit_are_refused(tmp_path, mask, classes, said):
    data = ImageMasks(written(tmp_path, mask), classes, shares=Shares(0.0))
    with pytest.raises(DataError, match=said):
        data[0]


def test_damaged_and_missing_masks_are_refused(tmp_path):
    root = written(tmp_path, Image.fromarray(NUMBERS))
    path = tmp_path / "masks/a.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="is no image, truncated or damaged"):
        ImageMasks(root, NAMES, shares=Shares(0.0))[0]
    path.unlink()
    with pytest.raises(DataError, match=r"1 of 1 images have no mask, the first .*masks/a\."):
        ImageMasks(root, NAMES)
    with pytest.raises(DataError, match=r"have no mask, the first .*labels/a\..*dataset\.masks"):
        ImageMasks(root, NAMES, masks="labels")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset.classes=cat"], "dataset.classes"),
        (["dataset.classes=[a,b,c]", "objective.ignored=2"], "is a class's number"),
        (["dataset.classes={cat: [1, 2]}"], "at least 3 items"),
        (["dataset.classes={cat: [1, 2, 300]}"], "less than or equal to 255"),
        (["dataset.classes={cat: [1, 2, 3], owl: [1, 2, 3]}"], "occurs twice"),
    ],
)
def test_classes_that_cannot_be_are_refused(tmp_path, words, said):
    root = written(tmp_path, Image.fromarray(NUMBERS))
    with pytest.raises(ConfigError, match=said):
        build_train_loader(compose("dataset=image_masks", f"dataset.root={root}", *words))


def test_masks_of_pictures_that_exif_turns(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    root = written(tmp_path, Image.fromarray(NUMBERS))
    Image.new("RGB", (4, 2)).save(tmp_path / "images/a.jpg", exif=exif)
    with pytest.raises(
        DataError, match=r"4 x 2 in its mask .*a\.png'.* dataset.orientation=ignore"
    ):
        ImageMasks(root, NAMES, shares=Shares(0.0))[0]
    data = ImageMasks(root, NAMES, shares=Shares(0.0), orientation="ignore")
    assert data[0]["image"].shape == (3, 2, 4)
    # A mask that is turned as its picture is.
    Image.fromarray(NUMBERS).save(tmp_path / "masks/a.png", exif=exif)
    turned = ImageMasks(root, NAMES, shares=Shares(0.0))[0]["mask"]
    assert turned.tolist() == np.rot90(NUMBERS, -1).tolist()


def many(folder, values, ending="png"):
    """Four pictures, and masks of 0 with one half of each value in turn."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for row in range(4):
        mask = np.zeros((8, 8), np.uint8)
        mask[4:] = values[row % len(values)]
        Image.new("RGB", (8, 8)).save(folder / "images" / f"{row}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{row}.{ending}")
    return str(folder)


@pytest.mark.parametrize(
    ("values", "classes", "said"),
    [
        ([255], ["floor", "cat"], "no pixel is of the classes cat, and 50% of the"),
        ([0], ["floor", "cat"], "no pixel is of the classes cat, and 0% of the"),
        ([0, 1], NAMES, "no pixel is of the classes owl"),
        ([0, 1], ["floor", "cat"], None),
    ],
)
def test_classes_without_a_pixel_are_told_before_training(tmp_path, caplog, values, classes, said):
    ImageMasks(many(tmp_path / "a", values), classes, shares=Shares(0.0))
    assert (re.search(said, caplog.text) is not None) if said else not caplog.text


def test_masks_of_0_and_255_are_read_by_colours(tmp_path, caplog):
    root = many(tmp_path / "a", [255])
    ImageMasks(root, ["floor", "cat"])
    assert '"dataset.classes={floor: [0,0,0], cat: [255,255,255]}"' in caplog.text
    caplog.clear()
    colors = {"floor": [0, 0, 0], "cat": [255, 255, 255]}
    mask = ImageMasks(root, colors, shares=Shares(0.0))[0]["mask"]
    assert not caplog.text
    assert mask.unique().tolist() == [0, 1]


def test_a_class_in_no_mask_has_no_perfect_score(tmp_path, capsys):
    root = many(tmp_path / "a", [0])
    done = run(
        capsys, "dataset=image_masks", f"dataset.root={root}", "dataset.classes=[floor,cat]",
        "trainer=quick", "batch.size=2", "loader.num_workers=0", "trainer.report=false",
        "tracker=none", f"run_dir={tmp_path / 'run'}", "model.width=2",
    )  # fmt: skip
    assert done.code == 0
    said = done.out + done.err
    assert re.search(r"^miou +nan", said, re.MULTILINE)
    assert re.search(r"^iou/cat +nan", said, re.MULTILINE)
    assert "no pixel is of the classes cat" in said


def test_files_that_are_left_out_are_counted(tmp_path, caplog):
    root = many(tmp_path / "a", [0, 1])
    Image.new("RGB", (8, 8)).save(tmp_path / "a/images/x.bmp")
    Image.new("L", (8, 8)).save(tmp_path / "a/masks/y.png")
    Image.new("L", (8, 8)).save(tmp_path / "a/masks/0.bmp")
    ImageMasks(root, ["floor", "cat"])
    ImageMasks(root, ["floor", "cat"], "val")
    assert caplog.text.count("images: left out 1 file(s): 1 .bmp") == 1


def test_jpegs_are_no_masks(tmp_path):
    root = many(tmp_path / "a", [1], "jpg")
    with pytest.raises(DataError, match=r"4 of 4 images have no mask, .*masks in \.png"):
        ImageMasks(root, ["floor", "cat"])


@pytest.mark.parametrize("mode", ["1", "I;16", "I;16B", "I"])
def test_masks_of_other_depths(tmp_path, mode):
    numbers = np.array([[0, 1, 1, 0], [1, 1, 0, 0]])
    kinds = {"1": bool, "I;16": "<u2", "I;16B": ">u2", "I": "<i4"}
    image = Image.fromarray(numbers.astype(kinds[mode]))
    root = written(tmp_path, image, name="a.tif")
    assert ImageMasks(root, NAMES, shares=Shares(0.0))[0]["mask"].tolist() == numbers.tolist()


def test_a_mask_of_several_pages_is_refused(tmp_path):
    pages = [Image.fromarray(np.full((2, 4), page, np.uint8)) for page in range(2)]
    root = written(tmp_path, pages[0], name="a.tif")
    (path,) = tmp_path.rglob("masks/a.tif")
    pages[0].save(path, save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match="several pages"):
        ImageMasks(root, NAMES, shares=Shares(0.0))[0]


V2 = "torchvision.transforms.v2"
STEPS = [
    f"{{_target_: {V2}.RandomRotation, degrees: [45, 45]}}",
    f"{{_target_: {V2}.RandomAffine, degrees: [45, 45], fill: 9}}",
    f"{{_target_: {V2}.Pad, padding: 4}}",
    f"{{_target_: {V2}.RandomZoomOut, p: 1.0, side_range: [2.0, 2.0]}}",
    f"{{_target_: {V2}.RandomCrop, size: [24, 24], pad_if_needed: true}}",
    f"{{_target_: {V2}.CenterCrop, size: [23, 24]}}",
    f"{{_target_: {V2}.Compose, transforms: [{{_target_: {V2}.Pad, padding: 4}}]}}",
]
TURNED = "{_target_: penstock.transforms.batch_geometry.Affine, degrees: [45, 45]}"


@pytest.mark.parametrize("ignored", [255, 7])
@pytest.mark.parametrize("step", [*STEPS, TURNED])
def test_what_transforms_uncover_of_masks_is_ignored(tmp_path, step, ignored):
    section = "train_batch" if step is TURNED else "train"
    config = compose(
        "dataset=image_masks", f"dataset.root={many(tmp_path / 'a', [1])}", "batch.size=2",
        "dataset.classes=[floor,cat]", f"+transform.{section}.own={step}", "loader=debug",
        f"cache_dir={tmp_path}", "transform.train.resize.size=[16,16]",
        f"objective.ignored={ignored}",
    )  # fmt: skip
    with build_train_loader(config) as loader:
        masks = next(iter(loader))["mask"]
    assert masks.unique().tolist() == sorted([0, 1, ignored])
    if "RandomCrop" not in step:
        corners = masks[:, [0, 0, -1, -1], [0, -1, 0, -1]]
        assert (corners == ignored).sum() >= corners.numel() // 2
