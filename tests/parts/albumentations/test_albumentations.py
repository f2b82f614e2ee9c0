"""Albumentations: pictures, masks, landmarks and boxes move together."""

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.addons.albumentations import Albumentations
from penstock.config import targets
from penstock.errors import ConfigError, DataError
from penstock.loading.batch import batch_hash
from penstock.loading.collate import Stack
from penstock.loading.fetch import Compose, Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.order.seeding import scope
from tests.support import toy

library = pytest.importorskip("albumentations")
PLAN = Plan(Random(24, 0), 6)


def face(height=40, width=60):
    """A picture with a bright dot at each landmark, a mask of the dots and boxes around them."""
    points = torch.tensor([[10.0, 8.0], [45.0, 30.0]])
    picture = torch.zeros(3, height, width, dtype=torch.uint8)
    for x, y in points.long().tolist():
        picture[:, y - 1 : y + 2, x - 1 : x + 2] = 255
    boxes = torch.cat([points - 4, points + 4], dim=1)
    return {
        "image": tv_tensors.Image(picture),
        "mask": tv_tensors.Mask((picture[0] > 0).to(torch.uint8)),
        "landmarks": tv_tensors.KeyPoints(points, canvas_size=(height, width)),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "labels": torch.tensor([7, 8]),
        "name": "a",
    }


def brightest(picture, near):
    """The centre of the bright spot around a point, [x, y]."""
    x, y = (int(v) for v in near)
    low_x, low_y = max(x - 5, 0), max(y - 5, 0)
    part = picture[0].float()[low_y : y + 6, low_x : x + 6]
    rows, columns = (part > part.max() / 2).nonzero(as_tuple=True)
    return torch.tensor([columns.float().mean() + low_x, rows.float().mean() + low_y])


def follows(sample):
    for point in sample["landmarks"].as_subclass(torch.Tensor):
        spot = brightest(sample["image"], point)
        assert torch.allclose(spot, point, atol=1.0), (spot, point)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("penstock.addons.albumentations.Albumentations", True),
        ("skimage.io.imread", False),
        ("albumentations.HorizontalFlip", True),
        ("albumentations.Compose", True),
        ("albumentations.load", False),
        ("albumentations.from_dict", False),
    ],
)
def test_what_a_configuration_may_call_of_these_libraries(name, allowed):
    if allowed:
        assert callable(targets.resolve(name, "transform.train.x"))
        return
    with pytest.raises(ConfigError, match=r"transform\.train\.x"):
        targets.resolve(name, "transform.train.x")


@pytest.mark.parametrize("form", ["XYXY", "XYWH"])
def test_a_crop_moves_everything_of_a_sample(form):
    sample = face()
    sample["boxes"] = F.convert_bounding_box_format(sample["boxes"], new_format=form)
    sample |= {"names": ["eye", "mouth"], "masks": tv_tensors.Mask(sample["image"][:2] // 255)}
    step = Albumentations([library.Crop(5, 4, 35, 24)], with_boxes=["labels", "names"])
    made = step(sample)
    for name in ("image", "mask", "masks"):
        assert torch.equal(made[name], sample[name][..., 4:24, 5:35]), name
        assert type(made[name]) is type(sample[name])
    assert made["landmarks"].tolist() == [[5, 4], [40, 26]], "one lies outside now"
    assert made["landmarks"].canvas_size == made["boxes"].canvas_size == (20, 30)
    assert made["boxes"].format == sample["boxes"].format
    cut = torch.tensor([[1.0, 0, 9, 8] if form == "XYXY" else [1.0, 0, 8, 8]])
    torch.testing.assert_close(made["boxes"].as_subclass(torch.Tensor), cut)
    assert made["labels"].tolist() == [7]
    assert made["names"] == ["eye"]
    alone = step({"image": sample["image"], "name": "a"})
    assert (list(alone), alone["image"].shape) == (["image", "name"], (3, 20, 30))
    empty = step(
        {"image": sample["image"], "masks": tv_tensors.Mask(sample["mask"][None, None][:0])}
    )
    assert empty["masks"].shape == (0, 1, 20, 30), "a picture without objects"
    points = step({"image": sample["image"], "at": sample["landmarks"]})
    assert points["at"].tolist() == [[5, 4], [40, 26]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"labels": torch.ones(3)}, "no field 'labels' with a row for each of its 2 boxes"),
        ({"labels": None}, "no field 'labels'"),
        ({"at": face()["landmarks"]}, r"one field of KeyPoints, .* landmarks, at"),
        ({"boxes_2": face()["boxes"]}, r"one field of BoundingBoxes, .* boxes, boxes_2"),
        ({"image": None}, "one field of Image, and the sample has none"),
    ],
)
def test_fields_that_cannot_follow_the_picture(more, said):
    sample = {name: value for name, value in (face() | more).items() if value is not None}
    with pytest.raises(DataError, match=said):
        Albumentations([library.Crop(0, 0, 9, 9)], with_boxes=["labels"])(sample)


def test_with_albumentations_everything_follows():
    flip = Albumentations([library.HorizontalFlip(p=1.0)], with_boxes=["labels"])
    sample = face()
    made = flip(sample)
    for name in ("image", "mask", "landmarks"):
        assert torch.equal(made[name], F.horizontal_flip(sample[name])), name
    assert torch.allclose(made["boxes"], F.horizontal_flip(sample["boxes"]))
    assert made["boxes"].format == sample["boxes"].format
    assert made["labels"].tolist() == [7, 8]
    follows(made)
    rescaled = Albumentations([library.Resize(80, 120)])(sample)
    assert rescaled["landmarks"].canvas_size == (80, 120)
    follows(rescaled)


@pytest.mark.parametrize("wrapped", [True, False])
def test_albumentations_draws_from_the_samples_key_alone(wrapped):
    class Bare:
        """As people write it: a Compose in a transform."""

        def __init__(self, transforms):
            self.compose = library.Compose(transforms)

        def __call__(self, sample):
            image = self.compose(image=sample["image"].permute(1, 2, 0).numpy())["image"]
            return {**sample, "image": torch.from_numpy(image.copy()).permute(2, 0, 1)}

    def fetch():
        steps = [
            library.RandomBrightnessContrast(p=0.8),
            library.OneOf(
                [library.GaussNoise(p=1), library.HorizontalFlip(p=1), library.Blur(p=1)], p=0.9
            ),
            library.RandomCrop(8, 8),
        ]
        step = Albumentations(steps) if wrapped else Bare(steps)
        return Fetch(toy.Pictures(), Compose({"augment": step}), Stack(), 0, hashed=True)

    def hashes(order):
        made = fetch()
        with scope():
            return {step: batch_hash([made(PLAN.request(0, step))]) for step in order}

    found = hashes(range(4))
    assert found == hashes([2, 0, 3, 1])
    with Loader(PLAN, fetch(), LoaderOptions("process", 2)) as loader:
        assert [batch_hash([batch]) for batch in loader.epoch(0)] == list(found.values())
