"""COCO's JSON: what it gives, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from faster_coco_eval.core import mask as coco_mask
from PIL import Image

from penstock.addons.vision.annotated_images import Coco
from penstock.datasets.reading.base import Shares
from penstock.errors import DataError

WIDTH, HEIGHT = 20, 12


def bits():
    """A mask with runs of many lengths, larger and smaller than the ones before."""
    return np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.3


def runs_of(mask):
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff([0, *ends, flat.size]).tolist()
    return runs if not flat[0] else [0, *runs]


def compressed(mask):
    packed = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [HEIGHT, WIDTH], "counts": str(packed["counts"], "ascii")}


def content():
    polygon = [2, 2, 10, 2, 10, 9, 2, 9]
    objects = [
        {"image_id": 7, "category_id": 3, "bbox": [2, 2, 8, 7], "segmentation": [polygon]},
        {
            "image_id": 7,
            "category_id": 9,
            "bbox": [-4, 5, 8, 30],
            "segmentation": compressed(bits()),
        },
        {
            "image_id": 7,
            "category_id": 3,
            "iscrowd": 1,
            "bbox": [0, 0, 20, 12],
            "segmentation": {"size": [HEIGHT, WIDTH], "counts": runs_of(bits())},
        },
        {"image_id": 7, "category_id": 3, "bbox": [4, 4, 0, 3], "segmentation": [polygon]},
    ]
    for number, own in enumerate(objects):
        own["keypoints"] = [number, 1, 2, 3, 4, 1]
    return {
        "images": [
            {"id": number, "file_name": f"{number}.png", "width": WIDTH, "height": HEIGHT}
            for number in (7, 8, 9)
        ],
        "categories": [
            {"id": 9, "name": "owl"},
            {"id": 3, "name": "cat", "keypoints": ["nose", "tail"]},
        ],
        "annotations": objects,
    }


def written(folder, data):
    (folder / "images").mkdir(exist_ok=True)
    for number in (7, 8, 9):
        Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "images" / f"{number}.png")
    (folder / "annotations.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return str(folder)


def test_boxes_masks_and_keypoints(tmp_path):
    root = written(tmp_path, content())
    data = Coco(root, "train", masks=True, keypoints=True, shares=Shares(0.0))
    assert data.classes == ["background", "cat", "owl"]
    sample = data[0]
    # One has no width, and is left out; one is cut at the border.
    assert sample["boxes"].tolist() == [[2, 2, 10, 9], [0, 5, 4, 12], [0, 0, 20, 12]]
    assert sample["labels"].tolist() == [1, 2, 1]
    assert sample["crowd"].tolist() == [0, 0, 1]
    corners = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    corners[2:9, 2:10] = True
    assert torch.equal(sample["masks"][0].as_subclass(torch.Tensor), corners)
    assert all((sample["masks"][row].numpy() == bits()).all() for row in (1, 2))
    assert sample["keypoints"][1].tolist() == [[1, 1], [3, 4]]
    assert sample["visibility"][1].tolist() == [2, 1]
    empty = data[1]
    assert (empty["boxes"].shape, empty["masks"].shape) == ((0, 4), (0, HEIGHT, WIDTH))
    assert empty["keypoints"].shape == (0, 2, 2)


def changed(part, number, **values):
    data = content()
    data[part][number] |= values
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{", "is no JSON of COCO's: .*Invalid JSON"),
        ("{}", r"is no JSON of COCO's: 3 records are wrong: images: Field required"),
        (json.dumps(content()).replace("-4", "NaN"), r"annotations\.1\.bbox\.0: .* finite"),
        (
            changed("annotations", 0, image_id=70),
            "1 of 4 annotations have the image_id of no image",
        ),
        (changed("annotations", 1, category_id=8), r"category_id of no .* first annotations\[1\]"),
        (changed("annotations", 0, bbox=[1, 2, -3, 4]), r"annotations\.0\.bbox\.2: .* not -3"),
        (changed("annotations", 0, bbox=[1, 2, 3]), r"annotations\.0\.bbox\.3: Field required"),
        (changed("annotations", 0, bbox=[30, 2, 3, 4]), "have a bbox outside of their image"),
        (changed("annotations", 0, iscrowd="no"), r"annotations\.0\.iscrowd: .* not 'no'"),
        (changed("annotations", 0, keypoints=[1, 2]), "have other keypoints than their category"),
        (changed("annotations", 0, segmentation=[]), "1 of 4 annotations have no segmentation"),
        (changed("images", 0, file_name=None), r"1 records are wrong: images\.0\.file_name"),
        (
            changed("images", 0, file_name="1.png"),
            r"1 of 3 images are missing in .*, the first \['1.png'",
        ),
        (
            changed("images", 0, file_name="/a/8.png"),
            "0 of 3 images are missing .* or two are one file",
        ),
        (changed("images", 1, id=7), "images: an id or a name occurs twice"),
        (changed("images", 0, width=60.5), r"images\.0\.width: .* not 60\.5"),
        (changed("categories", 0, name="cat"), "categories: an id or a name occurs twice"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, data, said):
    root = written(tmp_path, data)
    with pytest.raises(DataError, match=said):
        Coco(root, keypoints=True, masks=True)


@pytest.mark.parametrize(
    "outline",
    [[[1, 2, 3, 4, 5]], [[1, 2, 3, "x", 5, 6]], {"size": [12, 21], "counts": [252]}, {"size": [1]}],
)
def test_outlines_that_do_not_fit_are_refused(tmp_path, outline):
    root = written(tmp_path, changed("annotations", 0, segmentation=outline))
    with pytest.raises(DataError, match=r"7\.png': a segmentation is"):
        Coco(root, masks=True, shares=Shares(0.0))[0]


def test_outlines_far_outside_cost_no_more_than_the_picture(tmp_path):
    far = [[-9e8, -9e8, 9e8, -9e8, 9e8, 9e8, -9e8, 9e8]]
    root = written(tmp_path, changed("annotations", 0, segmentation=far))
    assert Coco(root, masks=True, shares=Shares(0.0))[0]["masks"][0].all()


def test_a_picture_of_another_size_is_refused(tmp_path):
    root = written(tmp_path, content())
    Image.new("RGB", (WIDTH + 1, HEIGHT)).save(tmp_path / "images/7.png")
    with pytest.raises(DataError, match="21 x 12 pixels, and 20 x 12 in its annotations"):
        Coco(root, shares=Shares(0.0))[0]


def test_two_files_have_the_same_categories(tmp_path):
    root = written(tmp_path, content())
    other = content()
    (tmp_path / "val.json").write_text(json.dumps(other))
    train, val = (Coco(root, name, val_annotations="val.json") for name in ("train", "val"))
    assert len(train) == len(val) == 3
    assert train.fingerprint == val.fingerprint  # of the same objects
    assert torch.equal(train[0]["boxes"], val[0]["boxes"])
    other["categories"][0]["name"] = "dog"
    (tmp_path / "val.json").write_text(json.dumps(other))
    with pytest.raises(DataError, match=r"'dog'.*its classes are cat, owl"):
        Coco(root, "val", val_annotations="val.json")


def test_classes_are_numbered_by_the_names_of_training(tmp_path):
    data = content()
    data["categories"].append({"id": 1, "name": "ant"})
    root = written(tmp_path, data)
    other = content()  # its ids are others, and it has no ant
    other["categories"] = [{"id": 0, "name": "owl"}, {"id": 5, "name": "cat"}]
    for own in other["annotations"]:
        own["category_id"] = {3: 5, 9: 0}[own["category_id"]]
    (tmp_path / "val.json").write_text(json.dumps(other))
    train, val = (Coco(root, name, val_annotations="val.json") for name in ("train", "val"))
    assert train.classes == val.classes == ["background", "ant", "cat", "owl"]
    assert train[0]["labels"].tolist() == val[0]["labels"].tolist() == [2, 3, 2]


def test_a_category_above_others_without_objects_is_no_class(tmp_path, caplog):
    data = content()
    data["categories"][0]["supercategory"] = "zoo"
    data["categories"] += [{"id": 0, "name": "zoo"}, {"id": 4, "name": "dog"}]
    data["categories"][1]["supercategory"] = "cat"  # as COCO's person is its own
    root = written(tmp_path, data)
    one = Coco(root, shares=Shares(0.0))
    assert one.classes == ["background", "cat", "dog", "owl"]
    assert one[0]["labels"].tolist() == [1, 3, 1]
    assert "2 categories have no object" in caplog.text
    data["annotations"][0]["category_id"] = 0
    assert "zoo" in Coco(written(tmp_path, data)).classes


def windows(name):
    return f"C:\\data\\images\\{name}"


@pytest.mark.parametrize(
    "path",
    [
        windows,
        "/data/upload/7/{}".format,
        "/data/local-files/?d=images/{}".format,
        "s3://bucket/a%20b/{}".format,
    ],
)
def test_paths_of_other_machines_end_in_a_file_of_the_folder(tmp_path, path, caplog):
    data = content()
    plain = Coco(written(tmp_path, data), masks=True, shares=Shares(0.0))
    for own in data["images"]:
        own["file_name"] = path(own["file_name"])
    data["images"][2]["file_name"] = "9.png"
    read = Coco(written(tmp_path, data), masks=True, shares=Shares(0.0))
    assert read.fingerprint == plain.fingerprint
    assert "2 of 3 files are found by their base name" in caplog.text


def test_letters_of_names_are_those_of_the_folder(tmp_path):
    data = changed("images", 0, file_name="u\u0308b%20er.png")  # as macOS and URLs have them
    written(tmp_path, data)
    (tmp_path / "images/7.png").rename(tmp_path / "images/\u00fcb er.png")
    names = Coco(str(tmp_path), shares=Shares(0.0)).metadata["path"]
    assert any(name.endswith("/\u00fcb er.png") for name in names)


def test_what_is_left_out_and_cut_is_counted(tmp_path, caplog):
    data = content()
    data["annotations"][0]["bbox"] = [20.4, 2, 3, 4]  # outside by a tool's rounding
    root = written(tmp_path, data)
    assert len(Coco(root, shares=Shares(0.0))[0]["boxes"]) == 2
    assert "2 of 4 objects have a box without width or height" in caplog.text
    assert "2 of 4 objects have a box that is cut" in caplog.text
    assert "2 of 3 images have no object" in caplog.text
    for own in data["annotations"]:
        own["bbox"] = [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(DataError, match="all boxes lie between 0 and 1"):
        Coco(written(tmp_path, data))


def test_an_outline_of_several_polygons_is_what_any_of_them_covers(tmp_path):
    generator = np.random.default_rng(0)
    several = [[round(float(n), 1) for n in generator.uniform(0, 12, 6)] for _ in range(9)]
    root = written(tmp_path, changed("annotations", 0, segmentation=several))
    together = Coco(root, masks=True, shares=Shares(0.0))[0]["masks"][0].numpy()
    each = coco_mask.decode(coco_mask.frPyObjects(several, HEIGHT, WIDTH)).astype(bool)
    assert each.any(-1).sum() > each.sum((0, 1)).max()
    assert np.array_equal(together, each.any(-1))


def turned(root, orientation, size, told=None, count=5):
    """Pictures with a red box at x 4 to 24, y 6 to 20 of their stored pixels."""
    pixels = np.full((size[1], size[0], 3), 60, np.uint8)
    pixels[6:20, 4:24] = 230, 30, 30
    exif = Image.Exif()
    exif[0x0112] = orientation
    (root / "images").mkdir(parents=True)
    width, height = told or size
    data = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    for number in range(count):
        Image.fromarray(pixels).save(root / f"images/{number}.png", exif=exif if number else None)
        image = {"file_name": f"{number}.png", "id": number, "width": width, "height": height}
        box = {"image_id": number, "category_id": 1, "bbox": [4, 6, 20, 14]}
        data["images"].append(image if number else image | {"width": size[0], "height": size[1]})
        data["annotations"].append(box)
    (root / "annotations.json").write_text(json.dumps(data))
    return str(root)


def test_boxes_of_the_stored_and_of_the_upright_pictures(tmp_path):
    root = turned(tmp_path / "a", 6, (60, 40))
    with pytest.raises(DataError, match=r"60 x 40 in its annotations.*orientation=ignore"):
        Coco(root, shares=Shares(0.0))[1]
    for sample in Coco(root, shares=Shares(0.0), orientation="ignore"):
        left, top, right, bottom = sample["boxes"][0].int().tolist()
        red = (sample["image"][0] == 230).numpy()
        assert red[top:bottom, left:right].all()
        assert red.sum() == (bottom - top) * (right - left)
    root = turned(tmp_path / "b", 6, (60, 40), (40, 60))
    assert Coco(root, shares=Shares(0.0))[1]["image"].shape == (3, 60, 40)
    with pytest.raises(DataError, match=r"40 x 60 in its annotations.*dataset\.orientation"):
        Coco(root, shares=Shares(0.0), orientation="ignore")[1]
