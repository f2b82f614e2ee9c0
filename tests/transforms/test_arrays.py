"""Albumentations, scikit-image and their like: pictures, landmarks and boxes move together."""

import importlib.util
import sys
from functools import partial

import numpy as np
import pytest
import torch
from skimage import color, exposure, filters, transform, util
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.config import targets
from penstock.errors import ConfigError, DataError
from penstock.loading.collate import Stack
from penstock.loading.compose import Compose
from penstock.loading.fetch import Fetch, batch_hash
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.keys import begin_sample
from penstock.order.plan import Plan
from penstock.order.randomness import scope
from penstock.order.samplers import Random
from penstock.transforms.arrays import Albumentations, OnPicture, Rescale
from tests import toy
from tests.transforms import stand_in

MISSING = importlib.util.find_spec("albumentations") is None
needs_albumentations = pytest.mark.skipif(MISSING, reason="albumentations is not installed")
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


def test_rescale_is_scikit_images_resize_and_everything_follows():
    sample = face()
    big = Rescale(80)(sample)
    assert big["image"].shape == (3, 80, 120)
    assert big["image"].dtype == torch.uint8
    follows(big)
    assert big["mask"].shape == (80, 120)
    assert set(big["mask"].unique().tolist()) == {0, 1}
    assert big["landmarks"].canvas_size == big["boxes"].canvas_size == (80, 120)
    assert torch.equal(big["boxes"].as_subclass(torch.Tensor), sample["boxes"] * 2)
    array = np.asarray(sample["image"].permute(1, 2, 0))
    theirs = np.rint(transform.resize(array, (20, 30), anti_aliasing=True) * 255)
    ours = Rescale([20, 30])(sample)["image"].permute(1, 2, 0).numpy()
    assert np.array_equal(ours, theirs.astype(np.uint8))
    assert big["labels"] is sample["labels"]


@pytest.mark.parametrize("size", [0, [3], [1, 2, 3], "a", [4, -1], 2.5])
def test_rescale_refuses_what_is_no_size(size):
    if size == [3]:  # the shorter side, as torchvision has it
        assert Rescale(size)(face())["image"].shape == (3, 3, 4)
        return
    with pytest.raises(ConfigError, match="expected pixels"):
        Rescale(size)


FUNCTIONS = {
    "gamma": partial(exposure.adjust_gamma, gamma=2.0),
    "floats": exposure.equalize_adapthist,
    "channel_axis": partial(filters.gaussian, sigma=2.0),
    "preserve_range": partial(filters.gaussian, sigma=2.0, preserve_range=True),
    "one channel": color.rgb2gray,
    "inverted": util.invert,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_pictures_gives_bytes_for_bytes(name):
    random = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8, generator=random)
    sample = {**face(), "image": tv_tensors.Image(picture)}
    array = picture.permute(1, 2, 0).numpy()
    axis = {"channel_axis": -1} if "axis" in name or "range" in name else {}
    wanted = FUNCTIONS[name](array, **axis).astype(float)
    wanted *= 1 if wanted.max() > 1 else 255
    made = OnPicture(FUNCTIONS[name])(sample)["image"]
    assert isinstance(made, tv_tensors.Image)
    assert made.dtype == torch.uint8
    assert np.abs(made.permute(1, 2, 0).numpy().squeeze() - wanted).max() <= 0.5
    assert torch.equal(picture, sample["image"])


def test_noise_of_scikit_image_depends_on_the_sample_alone():
    noise = OnPicture(util.random_noise)

    def made(key):
        begin_sample(key)
        try:
            return noise(face())["image"]
        finally:
            begin_sample(None)

    assert torch.equal(made(3), made(3))
    assert not torch.equal(made(3), made(4))


def test_what_imgaug_and_its_like_take_and_give():
    class Augmenter:
        def __call__(self, *, image):
            return {"image": 255 - image}

    made = OnPicture(Augmenter(), keyword="image")(face())
    assert torch.equal(made["image"], 255 - face()["image"])


def test_a_function_that_moves_the_picture_is_refused_beside_landmarks():
    for function in (partial(transform.rotate, angle=10), partial(transform.rescale, scale=0.5)):
        with pytest.raises(DataError, match=r"but not mask, landmarks, boxes"):
            OnPicture(function)(face())
        alone = OnPicture(function)({"image": face()["image"], "label": 1})
        assert alone["image"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"x": torch.zeros(3)}, "no picture"),
        ({"a": face()["image"], "b": face()["image"]}, r"2 pictures \(a, b\); set picture"),
        ((1, 2), "is a tuple"),
    ],
)
def test_a_sample_without_one_picture_is_refused(sample, said):
    with pytest.raises(DataError, match=said):
        OnPicture(util.invert)(sample)


def test_the_picture_that_is_named():
    sample = {"a": face()["image"], "b": face()["image"], "c": 1}
    made = OnPicture(util.invert, picture="b")(sample)
    assert torch.equal(made["b"], 255 - sample["b"])
    assert made["a"] is sample["a"]
    with pytest.raises(DataError, match="picture: the field 'c' of the sample is not a picture"):
        OnPicture(util.invert, picture="c")(sample)


def test_what_is_no_function_of_a_picture():
    with pytest.raises(ConfigError, match="function: got 3; give a node with _target_ and _part"):
        OnPicture(3)
    with pytest.raises(DataError, match=r"sum gives an array of shape \(40,\), not a picture"):
        OnPicture(partial(np.sum, axis=(1, 2)))({"image": face()["image"]})


@pytest.mark.parametrize(
    ("size", "shape"), [(10, (10, 15)), ([10], (10, 15)), ((5, 7), (5, 7)), (1, (1, 1))]
)
def test_the_shorter_side_or_both(size, shape):
    assert Rescale(size)(face())["image"].shape[1:] == shape


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("skimage.transform.rotate", True),
        ("skimage.exposure.equalize_adapthist", True),
        ("penstock.transforms.arrays.Rescale", True),
        ("skimage.io.imsave", False),
        ("skimage.io.imread", False),
        ("skimage.data.astronaut", False),
        ("skimage.transform.warps.os.system", False),
        ("skimage.exposure.exposure", False),
        pytest.param("albumentations.HorizontalFlip", True, marks=needs_albumentations),
        pytest.param("albumentations.Compose", True, marks=needs_albumentations),
        pytest.param("albumentations.load", False, marks=needs_albumentations),
        pytest.param("albumentations.from_dict", False, marks=needs_albumentations),
    ],
)
def test_what_a_configuration_may_call_of_these_libraries(name, allowed):
    if allowed:
        assert callable(targets.resolve(name, "transform.train.x"))
        return
    with pytest.raises(ConfigError, match=r"transform\.train\.x"):
        targets.resolve(name, "transform.train.x")


@pytest.mark.skipif(not MISSING, reason="albumentations is installed")
def test_a_missing_library_is_named():
    with pytest.raises(ConfigError, match="pip install albumentations"):
        Albumentations([])
    with pytest.raises(ConfigError, match=r"No module named .albumentations."):
        targets.resolve("albumentations.HorizontalFlip", "transform.train.x")


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", stand_in)
    return stand_in


@pytest.mark.parametrize("form", ["XYXY", "XYWH"])
def test_a_library_of_these_names_gets_everything_and_gives_it_back(library, form):
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
    assert made["boxes"].tolist() == [[1, 0, 9, 8] if form == "XYXY" else [1, 0, 8, 8]]
    assert made["labels"].tolist() == [7]
    assert made["names"] == ["eye"]
    count = library.Compose.made
    step(sample)
    alone = step({"image": sample["image"], "name": "a"})
    assert (list(alone), alone["image"].shape) == (["image", "name"], (3, 20, 30))
    assert library.Compose.made == count, "one was made for each kind of sample"
    points = step({"image": sample["image"], "at": sample["landmarks"]})
    assert points["at"].tolist() == [[5, 4], [40, 26]]
    assert library.Compose.made == count + 1


def test_a_library_of_these_names_may_give_tensors(library):
    made = Albumentations([library.Crop(5, 4, 35, 24, tensors=True)])({"image": face()["image"]})
    assert torch.equal(made["image"], face()["image"][..., 4:24, 5:35])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"labels": torch.ones(3)}, "no field 'labels' with a row for each of its 2 boxes"),
        ({"labels": None}, "no field 'labels'"),
        ({"at": face()["landmarks"]}, r"2 fields of KeyPoints \(landmarks, at\); only one"),
        ({"boxes_2": face()["boxes"]}, r"2 fields of BoundingBoxes \(boxes, boxes_2\); only one"),
    ],
)
def test_fields_that_cannot_follow_the_picture(library, more, said):
    sample = {name: value for name, value in (face() | more).items() if value is not None}
    with pytest.raises(DataError, match=said):
        Albumentations([library.Crop(0, 0, 9, 9)], with_boxes=["labels"])(sample)


@needs_albumentations
def test_with_albumentations_everything_follows():
    import albumentations as library

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


@needs_albumentations
def test_a_box_that_leaves_the_picture_takes_its_rows_along_and_a_landmark_stays():
    import albumentations as library

    crop = Albumentations([library.Crop(0, 0, 30, 20)], with_boxes=["labels"])
    made = crop(face())
    assert made["boxes"].shape == (1, 4)
    assert made["labels"].tolist() == [7]
    assert made["landmarks"].tolist() == [[10.0, 8.0], [45.0, 30.0]]
    assert made["image"].shape == (3, 20, 30)
    with pytest.raises(DataError, match="no field 'names' with a row for each of its 2 boxes"):
        Albumentations([library.Crop(0, 0, 30, 20)], with_boxes=["names"])(face())


@needs_albumentations
@pytest.mark.parametrize("wrapped", [True, False])
def test_albumentations_draws_from_the_samples_key_alone(wrapped):
    import albumentations as library

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
