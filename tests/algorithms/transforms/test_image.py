"""Transforms: landmarks keep their meaning and stay on the picture."""

import pytest
import torch
from torchvision import tv_tensors

from penstock.errors import ConfigError, DataError
from penstock.transforms.image import FaceCrop, LandmarkFlip, Normalize


def face(height=40, width=60):
    """A picture whose pixel at each landmark is the landmark's number + 1."""
    numbers = torch.arange(68)
    points = torch.stack([10 + numbers % 17 * 2, 5 + numbers // 17 * 6], dim=1)
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, points[:, 1], points[:, 0]] = (numbers + 1).to(torch.uint8)
    keypoints = tv_tensors.KeyPoints(points.float(), canvas_size=(height, width))
    return {"image": tv_tensors.Image(image), "landmarks": keypoints, "label": 1}


def pixels_at(sample):
    points = sample["landmarks"].as_subclass(torch.Tensor).round().long()
    return sample["image"].as_subclass(torch.Tensor)[0, points[:, 1], points[:, 0]].tolist()


def test_a_flipped_left_eye_is_the_right_eye():
    flipped = LandmarkFlip(p=1.0)(face())
    seen = [number - 1 for number in pixels_at(flipped)]
    assert [seen[i] for i in (36, 45, 39, 42)] == [45, 36, 42, 39]  # corners of the eyes
    assert [seen[i] for i in (0, 16, 8, 17, 26)] == [16, 0, 8, 26, 17]  # jaw, chin, brows
    assert [seen[i] for i in (48, 54, 60, 64, 33, 51)] == [54, 48, 64, 60, 33, 51]
    assert sorted(seen) == list(range(68))
    twice = LandmarkFlip(p=1.0)(flipped)
    assert torch.equal(twice["landmarks"], face()["landmarks"])
    assert torch.equal(twice["image"], face()["image"])


def test_flips_happen_with_the_probability_asked_for():
    torch.manual_seed(0)
    flip = LandmarkFlip(p=0.3)
    count = sum(flip(face())["landmarks"][0, 0] != 10 for _ in range(500))
    assert 110 < count < 190


def test_pairs_of_points_that_there_are_not():
    points = tv_tensors.KeyPoints(torch.ones(5, 2), canvas_size=(8, 8))
    with pytest.raises(ConfigError, match="pairs: there are 5 landmarks, and the pairs name"):
        LandmarkFlip(p=1.0)({"landmarks": points})
    with pytest.raises(ConfigError, match="the pairs name landmark 5; say which"):
        LandmarkFlip(p=1.0, pairs=[[0, 5]])({"landmarks": points})
    assert LandmarkFlip(p=1.0, pairs=[[0, 4]])({"landmarks": points})["landmarks"].shape == (5, 2)


def test_all_that_lies_in_a_picture_is_mirrored():
    image = tv_tensors.Image(torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4))
    box = tv_tensors.BoundingBoxes([[0, 0, 1, 2]], format="XYXY", canvas_size=(3, 4))
    sample = {"image": image, "mask": tv_tensors.Mask(image[0]), "box": box}
    flipped = LandmarkFlip(p=1.0)(sample)
    assert torch.equal(flipped["image"], image.flip(-1))
    assert torch.equal(flipped["mask"], image[0].flip(-1))
    assert flipped["box"].tolist() == [[3, 0, 4, 2]]


def test_a_face_crop_holds_every_landmark_at_its_pixel():
    cropped = FaceCrop(scale=1.2)(face())
    points = cropped["landmarks"]
    height, width = cropped["image"].shape[-2:]
    assert height == width == points.canvas_size[0]
    assert points.min() >= 0
    assert points.max() < width
    assert pixels_at(cropped) == list(range(1, 69))


def test_a_jittered_face_crop_varies_and_may_reach_beyond_the_picture():
    torch.manual_seed(0)
    crops = [FaceCrop(scale=2.0, jitter=0.2)(face()) for _ in range(8)]
    assert len({tuple(crop["image"].shape) for crop in crops}) > 3
    assert all(crop["image"].shape[-1] == crop["landmarks"].canvas_size[1] for crop in crops)
    with pytest.raises(DataError, match="needs landmarks"):
        FaceCrop()({"image": face()["image"]})
    none = tv_tensors.KeyPoints(torch.empty(0, 2), canvas_size=(40, 60))
    with pytest.raises(DataError, match="needs landmarks"):
        FaceCrop()(face() | {"landmarks": none})
    faces = tv_tensors.KeyPoints([[[10.0, 5]], [[42, 23]]], canvas_size=(40, 60))  # of two
    assert FaceCrop(scale=1.5)(face() | {"landmarks": faces})["image"].shape == (3, 48, 48)


def test_the_square_of_a_face_crop():
    points = tv_tensors.KeyPoints([[10.0, 5], [42, 23]], canvas_size=(40, 60))
    sample = {"image": face()["image"], "landmarks": points}
    cropped = FaceCrop(scale=1.5)(sample)  # 48 wide around (26, 14)
    assert cropped["image"].shape == (3, 48, 48)
    assert cropped["landmarks"].tolist() == [[8, 15], [40, 33]]
    dot = tv_tensors.KeyPoints([[10.0, 5], [10, 5]], canvas_size=(40, 60))
    assert FaceCrop()({**sample, "landmarks": dot})["image"].shape == (3, 1, 1)
    torch.manual_seed(0)
    draws = (2 * torch.rand(3) - 1) * 0.25
    torch.manual_seed(0)
    cropped = FaceCrop(scale=1.5, jitter=0.25)(sample)
    side = 48 * (1 + draws[2].item())
    assert cropped["image"].shape == (3, round(side), round(side))
    corner = (torch.tensor([26.0, 14]) + draws[:2] * 48 - side / 2).round()
    assert torch.equal(cropped["landmarks"].as_subclass(torch.Tensor), points - corner)


def test_pixels_beyond_the_range_end_at_its_ends():
    pixels = Normalize().inverse(
        torch.tensor([-100.0, 100.0])[:, None, None, None].expand(2, 3, 1, 1)
    )
    assert pixels.flatten().tolist() == [0, 0, 0, 255, 255, 255]


def test_as_many_means_as_channels():
    step = Normalize({"mean": [0.5], "std": [0.5]})
    assert torch.equal(
        step({"image": tv_tensors.Image(torch.zeros(2, 1, 1, dtype=torch.uint8))})["image"],
        torch.full((2, 1, 1), -1.0),
    )
    with pytest.raises(DataError, match="has 3 means, and a picture has 2 channels"):
        Normalize()({"image": tv_tensors.Image(torch.zeros(2, 1, 1, dtype=torch.uint8))})


def test_normalize_and_back():
    image = tv_tensors.Image(torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8))
    for statistics in ("imagenet", {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}):
        normalize = Normalize(statistics)
        out = normalize({"image": image, "label": 3})
        assert out["label"] == 3
        assert isinstance(out["image"], tv_tensors.Image)
        mean, std = torch.tensor(normalize.mean), torch.tensor(normalize.std)
        expected = (image.as_subclass(torch.Tensor) / 255 - mean[:, None, None]) / std[
            :, None, None
        ]
        torch.testing.assert_close(out["image"].as_subclass(torch.Tensor), expected)
        back = normalize.inverse(out["image"].as_subclass(torch.Tensor))
        assert torch.equal(back, image.as_subclass(torch.Tensor))
