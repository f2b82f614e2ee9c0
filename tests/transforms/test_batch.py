"""Transforms of whole batches: right, alike wherever they run, moving what lies in a picture."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.errors import ConfigError, DataError
from penstock.loading.batch import Batch
from penstock.loading.collate import List, Pad, Stack
from penstock.loading.fetch import Fetch, SampleError, batch_hash
from penstock.order.keys import KeyedRandom
from penstock.order.plan import Plan, Request
from penstock.order.samplers import Random, Sequential
from penstock.transforms import warping
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize, ColorJitter, RandomErasing
from penstock.transforms.batch_geometry import (
    Affine,
    HorizontalFlip,
    RandomResizedCrop,
    affine_move,
    forward,
)
from penstock.transforms.image import LandmarkFlip, Normalize
from penstock.transforms.mixing import CutMix, MixUp
from penstock.transforms.warping import affine, crop_nearest, crop_resize, crop_resize_dense, layout
from tests.program import SHARED

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
CLASSES = 5


def photo(number, height=64, width=80):
    """Something with smooth parts, edges and noise, uint8[3, H, W]."""
    drawn = torch.Generator().manual_seed(number)
    coarse = torch.rand(1, 3, 7, 9, generator=drawn) * 255
    image = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0]
    image[:, height // 3 : height // 2, width // 4 : width // 2] = (
        torch.rand(3, 1, 1, generator=drawn) * 255
    )
    image[:, :, -10:] += torch.randn(3, height, 10, generator=drawn) * 30
    return image.clamp(0, 255).round().to(torch.uint8)


class Photos:
    """Pictures of classes."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"image": tv_tensors.Image(photo(index)), "label": index % CLASSES}


class Marked:
    """Pictures with three landmarks and a box; each landmark is the middle of a white square."""

    PLACES = torch.tensor([[20.0, 16.0], [60.0, 20.0], [40.0, 48.0]])

    def __len__(self):
        return 40

    def __getitem__(self, index):
        image = torch.zeros(3, 64, 80, dtype=torch.uint8)
        for channel, (x, y) in enumerate(self.PLACES.long().tolist()):
            image[channel, y - 3 : y + 4, x - 3 : x + 4] = 255
        size = (64, 80)
        box = torch.tensor([[17.0, 13.0, 24.0, 20.0]])
        return {
            "image": tv_tensors.Image(image),
            "mask": tv_tensors.Mask(image[0] // 255),
            "landmarks": tv_tensors.KeyPoints(self.PLACES.clone(), canvas_size=size),
            "boxes": tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=size),
        }


def batch_of(dataset=None, rows=8, start=0, **more):
    """A collated batch without any transform."""
    plan = Plan(Sequential(len(dataset or Photos())), rows)
    return Fetch(dataset or Photos(), None, Stack(), 0, **more)(plan.request(0, start))


def made_of(rows, **fields):
    """A batch of `rows` from fields; `image` is a picture."""
    places = np.arange(rows)
    return Batch(fields, Request(0, 0, places, places, rows), places, kinds={"image": "image"})


def keyed(rows=8, purpose="x"):
    return KeyedRandom.of(0, 0, np.arange(rows), purpose)


def difference(first, second):
    return (first.float() - second.float()).abs()


EVERYTHING = {
    "crop": RandomResizedCrop([48, 40], [0.2, 1.0]),
    "flip": HorizontalFlip(),
    "affine": Affine(20, [0.1, 0.1], [0.8, 1.2], 10, p=0.7, fill=100),
    "colors": ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    "erase": RandomErasing(0.5, value="random"),
    "mixup": MixUp(CLASSES, 0.4, 0.5),
    "cutmix": CutMix(CLASSES, 1.0, 0.5),
    "normalize": BatchNormalize(),
}


# Sharing


def shares(plan, step, world, compose, dataset=None):
    fetch = Fetch(dataset or Photos(), None, Stack(), 0, True, compose)
    return [fetch(plan.request(0, step, rank, world)) for rank in range(world)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("tail", ["keep", "pad"])
def test_a_batch_is_transformed_alike_however_it_was_shared_out(tail):
    compose = BatchCompose(EVERYTHING, 0)
    hashes = {}
    for world in (1, 2, 3, 4):
        plan = Plan(Random(37, 0), 14, tail, compose.together)
        for step in range(len(plan)):
            hashes.setdefault(step, set()).add(batch_hash(shares(plan, step, world, compose)))
    assert [len(found) for found in hashes.values()] == [1, 1, 1]
    assert len(set.union(*hashes.values())) == 3


@given(st.integers(1, 23), st.integers(1, 5))
@settings(max_examples=12, deadline=None)
def test_any_size_and_any_world_give_the_same_rows(size, world):
    compose = BatchCompose({k: EVERYTHING[k] for k in ("flip", "mixup", "cutmix")}, 3)
    plan = Plan(Random(23, 0), size, together=compose.together)
    (whole,) = shares(plan, 0, 1, compose)
    parts = shares(plan, 0, world, compose)
    for field in ("image", "label", "label_soft"):
        rows = [p[field] if p.valid is None else p[field][p.valid] for p in parts]
        assert torch.equal(whole[field], torch.cat(rows))


def test_nor_does_the_order_of_the_rows_matter():
    batch, other = batch_of(), batch_of()
    order = np.array([3, 1, 7, 0, 6, 2, 5, 4])
    rows = {k: v[order] for k, v in other.items()}
    moved = Batch(rows, other.request, order, kinds=other.kinds)
    compose = BatchCompose(EVERYTHING, 0)
    first, second = compose(batch), compose(moved)
    for field in ("image", "label", "label_soft"):
        assert torch.equal(first[field][order], second[field])


def test_nor_the_number_of_threads():
    compose = BatchCompose(EVERYTHING, 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = compose(batch_of())["image"]
        torch.set_num_threads(3)
        assert torch.equal(one, compose(batch_of())["image"])
    finally:
        torch.set_num_threads(before)


def test_hashes_cover_what_batch_transforms_did():
    plain = batch_of(hashed=True)
    changed = BatchCompose({"flip": HorizontalFlip(1.0)}, 0)(batch_of(hashed=True))
    other = BatchCompose({"flip": HorizontalFlip(0.5)}, 0)(batch_of(hashed=True))
    assert len({batch_hash([one]) for one in (plain, changed, other)}) == 3
    again = BatchCompose({"flip": HorizontalFlip(1.0)}, 0)(batch_of(hashed=True))
    assert changed.hashes == again.hashes


def test_a_step_draws_the_same_whatever_stands_before_it():
    alone = BatchCompose({"flip": HorizontalFlip()}, 0)(batch_of())
    after = BatchCompose({"none": None, "gone": Affine(), "flip": HorizontalFlip()}, 0)(batch_of())
    assert torch.equal(alone["image"], after["image"])
    named = BatchCompose({"mirror": HorizontalFlip()}, 0)(batch_of())
    assert not torch.equal(alone["image"], named["image"])


def test_what_came_in_is_left_as_it_was():
    batch = batch_of(Marked())
    before = {name: (value, value.clone()) for name, value in batch.items()}
    BatchCompose({k: v for k, v in EVERYTHING.items() if "mix" not in k}, 0)(batch)
    assert all(torch.equal(value, copy) for value, copy in before.values())


def test_batch_transforms_can_be_sent_to_workers():
    compose = pickle.loads(pickle.dumps(BatchCompose(EVERYTHING, 0)))
    expected = BatchCompose(EVERYTHING, 0)(batch_of())["image"]
    assert torch.equal(compose(batch_of())["image"], expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", [name for name in EVERYTHING if name != "normalize"])
def test_a_key_gives_the_same_picture_on_every_device_and_layout(name, device, last):
    compose = BatchCompose({name: EVERYTHING[name]}, 0)
    expected = compose(batch_of())
    batch = batch_of().to(device)
    if last:
        batch["image"] = batch["image"].contiguous(memory_format=torch.channels_last)
    found = compose(batch)
    assert found["image"].device.type == device
    assert found["image"].dtype == torch.uint8
    assert difference(found["image"].cpu(), expected["image"]).max() <= (device != "cpu")
    if "mix" in name:
        torch.testing.assert_close(found["label_soft"].cpu(), expected["label_soft"])
    assert (layout(found["image"]) == torch.channels_last) == last


@pytest.mark.one_in(3)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", EVERYTHING)
def test_all_rows_at_once_as_on_a_device_are_the_same_pictures(name, last, monkeypatch):
    compose = BatchCompose({name: EVERYTHING[name]}, 0)
    expected, batch = compose(batch_of(rows=16)), batch_of(rows=16)
    if last:
        batch["image"] = batch["image"].contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(warping, "row_by_row", lambda images: False)
    found = compose(batch)
    assert difference(found["image"], expected["image"]).max() <= (name == "crop")
    if name != "normalize":
        assert (layout(found["image"]) == torch.channels_last) == last


# Crops


def boxes_of(rows=8, height=64, width=80):
    return RandomResizedCrop(1, [0.05, 1.0]).boxes(keyed(rows), height, width)


@pytest.mark.parametrize("resize", [crop_resize, crop_resize_dense])
@pytest.mark.parametrize("size", [(24, 28), (64, 80), (150, 130)])
def test_a_crop_is_torchvisions_antialiased_one(resize, size):
    images, boxes = batch_of()["image"], boxes_of()
    expected = torch.stack(
        [
            F.resized_crop(image, *box, list(size), antialias=True)
            for image, box in zip(images, boxes.tolist(), strict=True)
        ]
    )
    found = resize(images, boxes, size)
    assert difference(found, expected).max() <= 1
    exact = crop_resize(images.float(), boxes, size)
    assert difference(found, exact).mean() < 0.3
    torch.testing.assert_close(resize(images.float(), boxes, size), exact, atol=0.01, rtol=0)


def test_a_crop_is_as_pillow_makes_it():
    from PIL import Image

    paths = sorted((SHARED / "hymenoptera" / "val").glob("*/*.jpg"))[:4]
    if paths:
        pictures = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    else:
        pictures = [photo(n, 300, 400).movedim(0, -1).numpy() for n in range(4)]
    for number, array in enumerate(pictures):
        height, width = array.shape[:2]
        (box,) = RandomResizedCrop(1).boxes(KeyedRandom.of(0, 0, [number], "x"), height, width)
        top, left, high, wide = box.tolist()
        part = Image.fromarray(array).crop((left, top, left + wide, top + high))
        expected = torch.from_numpy(np.array(part.resize((96, 96), Image.Resampling.BILINEAR)))
        image = torch.from_numpy(array.copy()).movedim(-1, 0)[None]
        for resize in (crop_resize, crop_resize_dense):
            found = resize(image, box[None], (96, 96))[0].movedim(0, -1)
            assert difference(found, expected).mean() < 0.5


def test_boxes_are_drawn_as_torchvision_draws_them():
    from torchvision.transforms import RandomResizedCrop as Reference

    rows, height, width = 4000, 120, 160
    boxes = RandomResizedCrop(1).boxes(keyed(rows), height, width).double()
    torch.manual_seed(0)
    picture = torch.zeros(3, height, width)
    reference = torch.tensor(
        [Reference.get_params(picture, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(rows)]
    ).double()
    for column in range(4):
        mine, theirs = boxes[:, column].sort().values, reference[:, column].sort().values
        assert (mine - theirs).abs().mean() < 0.03 * (width if column % 2 else height)
    areas = boxes[:, 2] * boxes[:, 3] / (height * width)
    assert 0.07 < areas.min() < areas.max() <= 1
    assert ((boxes[:, :2] >= 0) & (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([120, 160]))).all()


def test_where_no_box_fits_the_largest_is_taken():
    crop = RandomResizedCrop(8, [1.0, 1.0])
    assert crop.boxes(keyed(2), 10, 100).tolist() == [[0, 43, 10, 13]] * 2
    assert crop.boxes(keyed(2), 100, 10).tolist() == [[43, 0, 13, 10]] * 2


def test_numbers_of_masks_survive_an_affine_map():
    turned = forward(*torch.tensor([[45.0], [1.0], [0.0]]), torch.zeros(1, 2))
    masks = torch.full((1, 1, 16, 16), 300)
    masks[:, :, 8:] = -100
    found = affine_move(turned, 16, 16, 0.0, -100).mask(masks)
    assert found.unique().tolist() == [-100, 300]
    assert not affine_move(turned, 16, 16, 0.0, 255).mask(masks < 0)[0, 0, 0, 0]


def test_masks_are_cropped_without_new_values():
    masks = torch.randint(0, 4, (8, 1, 64, 80), dtype=torch.uint8)
    found, boxes = crop_nearest(masks, boxes_of(), (32, 32)), boxes_of()
    for row in range(8):
        top, left, height, width = boxes[row].tolist()
        part = masks[row : row + 1, :, top : top + height, left : left + width]
        expected = torch.nn.functional.interpolate(part, (32, 32), mode="nearest")
        assert (found[row] == expected[0]).float().mean() > 0.99  # ties of rounding


# Affine maps


PARAMETERS = [(0, 1, 0, (0, 0)), (30, 1, 0, (0, 0)), (-15, 1.3, 8, (5, -3)), (90, 0.7, 0, (0, 9))]


@pytest.mark.parametrize(("angle", "scale", "shear", "shift"), PARAMETERS)
def test_an_affine_map_is_torchvisions(angle, scale, shear, shift):
    batch = batch_of(Marked(), rows=2)
    images = batch_of()["image"][:2]
    matrices = forward(
        *(torch.tensor([float(v)] * 2) for v in (angle, scale, shear)), torch.tensor([shift] * 2)
    )
    move = affine_move(matrices, 64, 80, fill=0)
    given_ = {"angle": angle, "translate": list(shift), "scale": scale, "shear": [shear, 0]}
    smooth = {**given_, "interpolation": F.InterpolationMode.BILINEAR}
    assert difference(move.image(images), F.affine(images, **smooth)).max() <= 1
    # With a colour to fill in, torchvision takes what is half outside twice as dark.
    inside = F.affine(torch.ones(1, 64, 80), **smooth)
    expected = F.affine(images.float(), **smooth) + 7 * (1 - inside)
    assert difference(affine_move(matrices, 64, 80, fill=7).image(images), expected).max() <= 1
    points = tv_tensors.KeyPoints(batch["landmarks"][0], canvas_size=(64, 80))
    torch.testing.assert_close(
        move.points(batch["landmarks"])[0], F.affine(points, **given_).as_subclass(torch.Tensor)
    )


def test_a_map_that_does_nothing_changes_no_bit():
    images = batch_of()["image"]
    assert torch.equal(affine(images, torch.eye(3).double()[:2].expand(8, 2, 3)), images)
    still = BatchCompose({"affine": Affine(30, p=0.0)}, 0)(batch_of())
    assert torch.equal(still["image"], images)


# Landmarks and boxes


@pytest.mark.parametrize(
    "step",
    [
        HorizontalFlip(1.0),
        RandomResizedCrop([64, 96], [0.6, 1.0]),
        Affine(40, [0.1, 0.1], [0.9, 1.3], 10),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_marked_pixel_ends_where_its_landmark_says(step):
    batch = BatchCompose({"step": step}, 1)(batch_of(Marked(), rows=32))
    height, width = batch["image"].shape[-2:]
    checked = 0
    for image, mask, points, box in zip(
        batch["image"], batch["mask"], batch["landmarks"], batch["boxes"], strict=True
    ):
        for channel, (x, y) in enumerate(points.tolist()):
            if not (8 < x < width - 8 and 8 < y < height - 8):
                continue  # partly cut off
            weight = image[channel].float()
            rows, columns = torch.arange(height).float(), torch.arange(width).float()
            middle = (weight.sum(0) @ columns, weight.sum(1) @ rows)
            assert abs(middle[0] / weight.sum() - x) < 1
            assert abs(middle[1] / weight.sum() - y) < 1
            checked += 1
        if mask.sum() > 20:
            inside = torch.nonzero(mask).flip(1).float()
            assert (inside.amin(0) - box[0, :2]).abs().max() <= 2
            assert (inside.amax(0) + 1 - box[0, 2:]).abs().max() <= 2
    assert checked > 20


def test_landmarks_and_boxes_move_as_torchvision_moves_them():
    batch = batch_of(Marked())
    moved = BatchCompose({"crop": RandomResizedCrop([30, 50], [0.3, 0.8])}, 0)(batch)
    random = KeyedRandom.of(0, 0, batch.positions, "batch/crop")
    boxes = RandomResizedCrop([30, 50], [0.3, 0.8]).boxes(random, 64, 80)
    sample = Marked()[0]
    for row, box in enumerate(boxes.tolist()):
        for name in ("landmarks", "boxes", "mask"):
            expected = F.resized_crop(sample[name], *box, [30, 50]).as_subclass(torch.Tensor)
            if name == "mask":
                assert (moved[name][row] == expected).float().mean() > 0.98
            else:
                torch.testing.assert_close(moved[name][row], expected, atol=1e-4, rtol=1e-5)


def test_a_flipped_left_eye_is_the_right_eye():
    points = torch.rand(4, 68, 2) * 60
    batch = batch_of(rows=4)
    batch = batch.replace(
        {**batch, "landmarks": points}, kinds={**batch.kinds, "landmarks": "keypoints"}
    )
    HorizontalFlip(1.0, "ibug68")(batch, keyed(4))
    for row in range(4):
        sample = {"landmarks": tv_tensors.KeyPoints(points[row], canvas_size=(64, 80))}
        expected = LandmarkFlip(1.0)(sample)["landmarks"].as_subclass(torch.Tensor)
        torch.testing.assert_close(batch["landmarks"][row], expected)


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
def test_boxes_of_every_format_are_moved_and_cut_at_the_border(form):
    corners = tv_tensors.BoundingBoxes(
        [[10.0, 10, 30, 40], [60, 5, 79, 60]], format="XYXY", canvas_size=(64, 80)
    )
    given_ = F.convert_bounding_box_format(corners, new_format=form)

    class Boxes(Marked):
        def __getitem__(self, index):
            return {"image": tv_tensors.Image(photo(index)), "boxes": given_}

    batch = batch_of(Boxes())
    assert batch.kinds["boxes"] == f"boxes/{form.lower()}"
    compose = BatchCompose({"affine": Affine(30, [0.3, 0.3], [0.7, 1.5])}, 0)
    moved = compose(batch)["boxes"]
    assert moved.shape == (8, 2, 4)
    random = KeyedRandom.of(0, 0, np.arange(8), "batch/affine")
    matrices = Affine(30, [0.3, 0.3], [0.7, 1.5]).matrices(random, 64, 80)
    for row in range(8):
        (a, b, c), (d, e, f) = matrices[row].tolist()
        for box, found in zip(corners.tolist(), moved[row], strict=True):
            ends = [(x - 40, y - 32) for x in box[0::2] for y in box[1::2]]
            xs = [a * x + b * y + c + 40 for x, y in ends]
            ys = [d * x + e * y + f + 32 for x, y in ends]
            cut = [min(xs), min(ys), max(xs), max(ys)]
            cut = [min(max(v, 0), 64 if i % 2 else 80) for i, v in enumerate(cut)]
            expected = F.convert_bounding_box_format(
                torch.tensor([cut]),
                tv_tensors.BoundingBoxFormat.XYXY,
                tv_tensors.BoundingBoxFormat[form],
            )
            torch.testing.assert_close(found[None], expected, atol=1e-3, rtol=1e-4)


class Uneven(Marked):
    """1 + index % 3 boxes."""

    def __getitem__(self, index):
        boxes = torch.tensor([[4.0, 4, 30, 40], [30, 8, 70, 60], [1, 2, 3, 4]])[: 1 + index % 3]
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(64, 80))
        return {"image": tv_tensors.Image(photo(index)), "boxes": boxes}


def test_as_many_boxes_as_there_are_padded_or_listed():
    compose = BatchCompose({"flip": HorizontalFlip(1.0)}, 0)
    request = Plan(Sequential(40), 6).request(0, 0)
    padded = Fetch(Uneven(), None, Pad(["boxes"], value=-1), 0, True, compose)(request)
    assert (padded["boxes"][0, 1:] == -1).all()

    def stacked_but_boxes(samples):
        return {**List()(samples), "image": torch.stack([s["image"] for s in samples])}

    listed = Fetch(Uneven(), None, stacked_but_boxes, 0, True, compose)(request)
    for row in range(6):
        assert torch.equal(listed["boxes"][row], padded["boxes"][row, : 1 + row % 3])
        assert listed["boxes"][row][0].tolist() == [50, 4, 76, 40]
    assert padded.hashes == listed.hashes
    halves = [
        Fetch(Uneven(), None, Pad(["boxes"]), 0, True, compose)(
            Plan(Sequential(40), 6).request(0, 0, rank, 4)
        )
        for rank in range(4)
    ]
    assert batch_hash(halves) == batch_hash([padded]), "padding is not part of the hash"


# Colours


def torchvision_jitter(image, factors, order):
    steps = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for number in order:
        image = steps[number](image, factors[number])
    return image


def test_colors_are_torchvisions_within_the_rounding():
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.2)
    images = batch_of()["image"]
    random = keyed()
    factors = torch.stack([random.uniform(*bounds) for bounds in jitter.ranges], 1).tolist()
    orders = random.permutation(4).tolist()
    found = jitter(batch_of(), keyed())["image"]
    assert len({tuple(order) for order in orders}) > 4
    for row, image in enumerate(images):
        reference = torchvision_jitter(image / 255, factors[row], orders[row]) * 255
        # torchvision's own in floats; in bytes it cuts off after each step.
        assert difference(found[row], reference).mean() < 0.4
        assert difference(found[row], reference).max() < 1.5
        assert (
            difference(found[row], torchvision_jitter(image, factors[row], orders[row])).mean() < 3
        )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("brightness", F.adjust_brightness),
        ("contrast", F.adjust_contrast),
        ("saturation", F.adjust_saturation),
        ("hue", F.adjust_hue),
    ],
)
def test_each_change_of_colors_alone(name, change):
    jitter = ColorJitter(**{name: [0.3, 0.3]})
    images = batch_of()["image"]
    found = jitter(batch_of(), keyed())["image"]
    assert difference(found, change(images / 255, 0.3) * 255).max() < 1
    pixels = images / 255
    batch = batch_of()
    batch["image"] = pixels
    torch.testing.assert_close(
        jitter(batch, keyed())["image"], change(pixels, 0.3), atol=3e-3, rtol=0
    )


def test_colors_of_grey_pictures():
    batch = batch_of()
    batch["image"] = batch["image"][:, :1]
    found = ColorJitter(saturation=0.5, hue=0.2)(batch, keyed())["image"]
    assert torch.equal(found, batch_of()["image"][:, :1])
    batch["image"] = batch_of()["image"][:, :2]
    with pytest.raises(DataError, match="'image' has 2 channels, not 1 or 3"):
        ColorJitter(0.5)(batch, keyed())


@pytest.mark.parametrize("last", [False, True])
def test_a_batch_is_normalised_like_its_samples(last):
    statistics = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}
    batch = batch_of()
    expected = Normalize(statistics)({"image": tv_tensors.Image(batch["image"])})["image"]
    step = BatchNormalize(statistics, channels_last=last)
    found = step(batch, keyed())["image"]
    torch.testing.assert_close(found, expected.as_subclass(torch.Tensor), atol=1e-5, rtol=1e-5)
    assert layout(found) == (torch.channels_last if last else torch.contiguous_format)
    assert torch.equal(step.inverse(found), batch_of()["image"])
    with pytest.raises(DataError, match="float32 already; normalise samples or batches"):
        step(batch, keyed())


def test_rectangles_are_erased_as_often_and_as_large_as_asked():
    rows = 600
    batch = made_of(rows, image=torch.full((rows, 3, 40, 50), 9, dtype=torch.uint8))
    erased = RandomErasing(0.3, [0.1, 0.2], value=[1, 2, 3])(batch, keyed(rows))["image"] != 9
    share = erased[:, 0].float().mean((1, 2))
    assert 0.25 < (share > 0).float().mean() < 0.35
    assert 0.09 < share[share > 0].min() < share.max() < 0.21
    for mask in erased[:, 0][share > 0][:50]:
        rows_, columns = mask.any(1), mask.any(0)
        assert mask.sum() == rows_.sum() * columns.sum(), "a rectangle"
    colored = RandomErasing(1.0, value="random")(batch_of(), keyed())["image"]
    assert colored.dtype == torch.uint8
    with pytest.raises(ConfigError, match=r"value: has 2 numbers, but pictures have 3 channels"):
        RandomErasing(1.0, value=[1, 2])(batch_of(), keyed())


# Mixing


def test_mixed_labels_have_the_shares_of_the_pictures():
    batch = batch_of()
    batch["image"] = torch.eye(8)[:, :, None, None].expand(8, 8, 20, 20) * 1.0
    batch["label"] = torch.arange(8) // 2 * 2 + torch.arange(8) % 2
    for step in (MixUp(8, 0.5), CutMix(8, 1.0)):
        mixed = step(batch.replace(), keyed())
        torch.testing.assert_close(mixed["image"].mean((2, 3)), mixed["label_soft"])
        torch.testing.assert_close(mixed["label_soft"].sum(1), torch.ones(8))
        assert torch.equal(mixed["label"], batch["label"])
        off = mixed["label_soft"].clone()
        rows = torch.arange(8)
        off[rows, rows], off[rows, rows ^ 1] = 0, 0
        assert not off.any(), "only neighbours are mixed"
        assert (mixed["label_soft"].diagonal() < 1).sum() >= 6
    both = CutMix(8)(MixUp(8)(batch, keyed()), keyed(purpose="y"))
    torch.testing.assert_close(both["image"].mean((2, 3)), both["label_soft"])


def test_a_row_without_a_partner_stays_as_it_is():
    plan = Plan(Sequential(13), 8, "pad", together=2)
    fetch = Fetch(Photos(13), None, Stack(), 0)
    batch, original = fetch(plan.request(0, 1)), fetch(plan.request(0, 1))
    mixed = MixUp(CLASSES)(batch, keyed())
    assert original.valid.sum() == 5
    assert torch.equal(mixed["image"][4], original["image"][4])
    assert mixed["label_soft"][4].tolist() == [0, 0, 1, 0, 0]
    assert not torch.equal(mixed["image"][3], original["image"][3])


def test_half_of_the_rows_are_mixed_when_asked():
    rows = 400
    batch = made_of(rows, image=torch.rand(rows, 1, 2, 2), label=torch.arange(rows) % 2)
    soft = MixUp(2, 1.0, p=0.5)(batch, keyed(rows))["label_soft"]
    assert 0.4 < (soft.max(1).values < 1).float().mean() < 0.6


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(
        DataError, match=r"MixUp mixes pictures of classes, and cannot mix mask \(field 'mask'"
    ):
        MixUp(CLASSES)(batch_of(Marked()), keyed())
    with pytest.raises(DataError, match="the field 'name' of the batch is not int64"):
        MixUp(CLASSES, target="name")(batch_of(), keyed())


# What is refused


def test_a_batch_without_pictures_is_refused():
    batch = batch_of().replace(kinds={})
    with pytest.raises(
        DataError,
        match=r"HorizontalFlip works on pictures, and no field of the "
        r"batch \(image, label\) is one",
    ):
        HorizontalFlip()(batch, keyed())
    listed = Fetch(Photos(), None, List(), 0)(Plan(Sequential(40), 4).request(0, 0))
    with pytest.raises(DataError, match=r"'image' as a stack of pictures.* not list: resize them"):
        HorizontalFlip()(listed, keyed(4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop([1, 2, 3]), r"size: got \[1, 2, 3\], expected a side or"),
        (
            lambda: RandomResizedCrop(8, [0.5, 0.2]),
            r"scale: got \[0.5, 0.2\], expected \[least, la",
        ),
        (
            lambda: RandomResizedCrop(8, ratio=[0, 1]),
            r"ratio: got \[0, 1\], expected numbers above 0",
        ),
        (lambda: HorizontalFlip(1.5), r"p: got 1.5, expected a probability from 0 to 1"),
        (lambda: HorizontalFlip(pairs="dlib"), r"'dlib' is not 'ibug68'"),
        (lambda: Affine(translate=[2, 0]), r"translate: got \[2, 0\], expected two shares"),
        (lambda: Affine(degrees=-3), r"degrees: got -3, expected a distance of at least 0"),
        (lambda: ColorJitter(hue=[0, 0.7]), r"hue: got \[0, 0.7\].* from -0.5 to 0.5"),
        (lambda: RandomErasing(value="white"), r"value: got 'white', expected numbers or 'random'"),
        (lambda: MixUp(3, alpha=0), r"alpha: got 0, expected a number above 0"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_persons_own_step_is_named_when_it_fails():
    def broken(batch, random):
        raise KeyError("depth")

    with pytest.raises(
        SampleError,
        match=r"batch \(epoch 0, step 0\): the batch transform 'own' f"
        r"ailed with KeyError: 'depth'",
    ):
        BatchCompose({"own": broken}, 0)(batch_of())

    def global_draw(batch, random):
        torch.rand(3)
        return batch

    with pytest.raises(SampleError, match=r"'own' draws from torch, .*: draw from the KeyedRandom"):
        BatchCompose({"own": global_draw}, 0)(batch_of())
    with pytest.raises(ConfigError, match="'own' gives a dict; it has to give the Batch"):
        BatchCompose({"own": lambda batch, random: dict(batch)}, 0)(batch_of())
