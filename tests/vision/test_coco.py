"""COCO's JSON: what it gives, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from faster_coco_eval.core import mask as coco_mask
from PIL import Image

from penstock.addons.vision.coco import Coco
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
    data = Coco(root, "train", masks=True, keypoints=True, val_fraction=0.0)
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
        ("{", "it is cut off"),
        ("[" * 100_000, "cannot be read: it is not JSON"),
        ("[]", "holds a list"),
        ("{}", "images: is missing"),
        (json.dumps(content()).replace("-4", "NaN"), "bbox is"),
        (changed("annotations", 0, image_id=70), "no image has the id 70"),
        (changed("annotations", 0, category_id=4), "no category has the id 4"),
        (changed("annotations", 0, category_id="3"), "category_id is '3'"),
        (changed("annotations", 0, bbox=[1, 2, -3, 4]), "bbox is"),
        (changed("annotations", 0, bbox=[1, 2, 3]), "bbox is"),
        (changed("annotations", 0, bbox=[1, 2, 3, 1e12]), "bbox is"),
        (changed("annotations", 0, bbox=[30, 2, 3, 4]), "is outside of its image"),
        (changed("annotations", 0, iscrowd="no"), "iscrowd is 'no'"),
        (changed("annotations", 0, keypoints=[1, 2]), "keypoints are"),
        (changed("annotations", 0, keypoints=[1, 2, 0] * 3), "keypoints are"),
        (changed("images", 0, file_name="../7.png"), "file_name is"),
        (changed("images", 0, file_name="1.png"), "is missing. Put it there"),
        (changed("images", 0, file_name="8.png"), "occurs twice"),
        (changed("images", 1, id=7), "occurs twice"),
        (changed("images", 0, width=10**30), "more than limits.pixels"),
        (changed("images", 0, height=-1), "height is -1"),
        (changed("categories", 0, id=3), "occurs twice"),
        (changed("categories", 0, name=None), "its name is None"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, data, said):
    root = written(tmp_path, data)
    with pytest.raises(DataError, match=said):
        Coco(root, keypoints=True)


@pytest.mark.parametrize(
    ("outline", "said"),
    [
        (None, "segmentation is None"),
        ([[1, 2, 3, 4, 5]], "a polygon is"),
        ([[1, 2, 3, 4]], "a polygon is"),
        ([[1, 2, 3, "4", 5, 6]], "a polygon is"),
        ({"size": [12, 21], "counts": [252]}, "RLE of size"),
        ({"size": [12, 20], "counts": [10**9]}, "no lengths of runs"),
        ({"size": [12, 20], "counts": [-5, 245]}, "no lengths of runs"),
        ({"size": [12, 20], "counts": [200, 100]}, "add up to 300, not 240"),
        ({"size": [12, 20], "counts": "PPPPPPPPPPPPPPPPPPPPPPPPPPPPPP"}, "no lengths of runs"),
        ({"size": [12, 20], "counts": "\x00\u1234"}, "no lengths of runs"),
    ],
)
def test_outlines_that_do_not_fit_are_refused(tmp_path, outline, said):
    root = written(tmp_path, changed("annotations", 0, segmentation=outline))
    with pytest.raises(DataError, match=said):
        Coco(root, masks=True, val_fraction=0.0)[0]


def test_outlines_far_outside_cost_no_more_than_the_picture(tmp_path):
    far = [[-9e8, -9e8, 9e8, -9e8, 9e8, 9e8, -9e8, 9e8]]
    root = written(tmp_path, changed("annotations", 0, segmentation=far))
    assert Coco(root, masks=True, val_fraction=0.0)[0]["masks"][0].all()


def test_a_picture_of_another_size_is_refused(tmp_path):
    root = written(tmp_path, content())
    Image.new("RGB", (WIDTH + 1, HEIGHT)).save(tmp_path / "images/7.png")
    with pytest.raises(DataError, match="21 x 12 pixels, and 20 x 12 in its annotations"):
        Coco(root, val_fraction=0.0)[0]


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
    with pytest.raises(DataError, match="other categories"):
        Coco(root, "val", val_annotations="val.json")


def test_an_outline_of_several_polygons_is_what_any_of_them_covers(tmp_path):
    generator = np.random.default_rng(0)
    several = [[round(float(n), 1) for n in generator.uniform(0, 12, 6)] for _ in range(9)]
    root = written(tmp_path, changed("annotations", 0, segmentation=several))
    together = Coco(root, masks=True, val_fraction=0.0)[0]["masks"][0].numpy()
    each = coco_mask.decode(coco_mask.frPyObjects(several, HEIGHT, WIDTH)).astype(bool)
    assert each.any(-1).sum() > each.sum((0, 1)).max()
    assert np.array_equal(together, each.any(-1))
