"""Transforms of whole batches: right, alike wherever they run, moving what lies in a picture."""

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

import penstock
from penstock.errors import ConfigError, DataError
from penstock.loading.bad_samples import SampleError
from penstock.loading.batch import Batch, batch_hash
from penstock.loading.collate import List, Pad, Stack
from penstock.loading.fetch import Fetch
from penstock.order.keys import KeyedRandom
from penstock.order.plan import Plan, Request
from penstock.order.samplers import Random, Sequential
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize, ColorJitter
from penstock.transforms.batch_geometry import (
    Affine,
    HorizontalFlip,
    RandomResizedCrop,
    crop_nearest,
    crop_resize,
)
from penstock.transforms.crops import Crops
from penstock.transforms.image import LandmarkFlip, Normalize
from penstock.transforms.mixing import CutMix, MixUp
from tests.support.photos import CLASSES, Photos, batch_of, photo

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


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


def made_of(rows, kinds=(), **fields):
    """A batch of `rows` from fields; `image` is a picture."""
    places, kinds = np.arange(rows), {"image": "image", **dict(kinds)}
    return Batch(fields, Request(0, 0, places, places, rows), places, kinds=kinds)


def keyed(rows=8, purpose="x"):
    return KeyedRandom.of(0, 0, np.arange(rows), purpose)


def difference(first, second):
    return (first.float() - second.float()).abs()


EVERYTHING = {
    "crop": RandomResizedCrop([48, 40], [0.2, 1.0]),
    "flip": HorizontalFlip(),
    "affine": Affine(20, [0.1, 0.1], [0.8, 1.2], 10, p=0.7, fill=100),
    "colors": ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
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


# Crops


def crops_of(*regions):
    """Crops of left, top, right and bottom."""
    return Crops(np.array(regions, np.float64), np.zeros(len(regions), bool), inside=True)


REGIONS = [(0, 0, 80, 64), (3, 5, 40, 60), (70, 1, 79, 9), (10, 20, 75, 21)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(24, 28), (64, 80), (150, 130)])
def test_a_crop_is_torchvisions_antialiased_one(size, device):
    """Bytes, and floats by the matrix products that a GPU does."""
    images = batch_of()["image"][:4]
    expected = torch.stack(
        [
            F.resized_crop(image, y, x, bottom - y, right - x, list(size), antialias=True)
            for image, (x, y, right, bottom) in zip(images.float(), REGIONS, strict=True)
        ]
    )
    found = crop_resize(images.to(device), crops_of(*REGIONS), size)
    assert found.dtype == torch.uint8
    assert difference(found.cpu(), expected).max() <= 1.5
    assert difference(found.cpu(), expected).mean() < 0.4
    floats = crop_resize(images.to(device).float(), crops_of(*REGIONS), size)
    torch.testing.assert_close(floats.cpu(), expected, atol=0.01, rtol=0)


def moved_by(step, rows=1, height=16, width=16, **fields):
    """Fields (value, kind) of a batch of black pictures after a step."""
    kinds = {name: kind for name, (_, kind) in fields.items()}
    values = {name: value for name, (value, _) in fields.items()}
    image = torch.zeros(rows, 3, height, width, dtype=torch.uint8)
    return step(made_of(rows, kinds, image=image, **values), keyed(rows))


def test_numbers_of_masks_survive_an_affine_map():
    masks = torch.full((1, 16, 16), 300)
    masks[:, 8:] = -100
    found = moved_by(Affine([45, 45], ignored=-100), mask=(masks, "mask"))["mask"]
    assert found.unique().tolist() == [-100, 300]
    assert not moved_by(Affine([45, 45], ignored=255), mask=(masks < 0, "mask"))["mask"][0, 0, 0]


def test_masks_are_cropped_without_new_values():
    masks = torch.randint(0, 4, (4, 1, 64, 80), dtype=torch.uint8)
    found = crop_nearest(masks, crops_of(*REGIONS), (32, 32))
    for row, (left, top, right, bottom) in enumerate(REGIONS):
        part = masks[row : row + 1, :, top:bottom, left:right]
        expected = torch.nn.functional.interpolate(part, (32, 32), mode="nearest")
        assert (found[row] == expected[0]).float().mean() > 0.99  # ties of rounding


# Affine maps


PARAMETERS = [(0, 1, 0), (30, 1, 0), (-15, 1.3, 8), (90, 0.7, 0)]


@pytest.mark.parametrize(("angle", "scale", "shear"), PARAMETERS)
def test_an_affine_map_is_torchvisions(angle, scale, shear):
    step = {"degrees": [angle] * 2, "scale": [scale] * 2, "shear": [shear] * 2}
    given_ = {"angle": angle, "translate": [0, 0], "scale": scale, "shear": [shear, 0]}
    smooth = {**given_, "interpolation": F.InterpolationMode.BILINEAR}
    images = batch_of()["image"]
    found = Affine(**step)(batch_of(), keyed())["image"]
    assert difference(found, F.affine(images, **smooth)).max() <= 1
    # With a colour to fill in, torchvision takes what is half outside twice as dark.
    inside = F.affine(torch.ones(1, 64, 80), **smooth)
    expected = F.affine(images.float(), **smooth) + 7 * (1 - inside)
    filled = Affine(**step, fill=7)(batch_of(), keyed())["image"]
    assert difference(filled, expected).max() <= 1
    batch = batch_of(Marked(), rows=8)
    points = tv_tensors.KeyPoints(batch["landmarks"][0], canvas_size=(64, 80))
    torch.testing.assert_close(
        Affine(**step)(batch, keyed())["landmarks"][0],
        F.affine(points, **given_).as_subclass(torch.Tensor),
    )


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


@pytest.mark.parametrize("more", [0, 1])
def test_each_objects_landmarks_are_swapped_among_its_own(more):
    points = torch.rand(2, 3, 2 + more, 2) * 15
    found = moved_by(HorizontalFlip(1.0, [[0, 1]]), 2, keys=(points, "keypoints"))["keys"]
    alone = moved_by(HorizontalFlip(1.0, [[0, 1]]), 2, keys=(points[:, 1], "keypoints"))["keys"]
    assert torch.equal(found[:, 1], alone)
    assert torch.equal(found[:, :, 0, 1], points[:, :, 1, 1])


def lists_of(*counts):
    return [torch.rand(count, 2) for count in counts]


@pytest.mark.parametrize(
    "landmarks",
    [torch.rand(2, 5, 2), lists_of(6, 5), torch.rand(2, 3, 5, 2), [torch.rand(1, 5, 2)] * 2],
    ids=["stacked", "listed", "of objects", "of listed objects"],
)
def test_fewer_landmarks_than_pairs_name(landmarks):
    fields = {"keys": (landmarks, "keypoints")}
    said = r"pairs: there are 5 landmarks, and the pairs name landmark 5; say which"
    with pytest.raises(ConfigError, match=said):
        moved_by(HorizontalFlip(1.0, [[0, 5]]), 2, **fields)
    assert len(moved_by(HorizontalFlip(1.0, [[0, 4]]), 2, **fields)["keys"]) == 2


def test_fewer_landmarks_than_pairs_name_before_the_padding():
    lengths = torch.tensor([7, 5])
    fields = {"image": torch.zeros(2, 3, 16, 16), "keys": torch.rand(2, 7, 2)}
    batch = made_of(2, {"keys": "keypoints"}, **fields, keys_lengths=lengths)
    with pytest.raises(ConfigError, match="there are 5 landmarks"):
        HorizontalFlip(1.0, [[0, 5]])(batch, keyed(2))


@pytest.mark.parametrize("masks", [torch.zeros(1, 9, 9), [torch.zeros(2, 16, 16)]])
def test_masks_of_another_shape_than_the_picture(masks):
    with pytest.raises(DataError, match=r"moves masks of the size of the picture, .* 'mask' is"):
        moved_by(HorizontalFlip(1.0), mask=(masks, "mask"))


@pytest.mark.parametrize("form", ["XYXY", "XYWH", "CXCYWH"])
def test_boxes_of_every_format_are_moved_and_cut_at_the_border(form):
    corners = tv_tensors.BoundingBoxes(
        [[10.0, 10, 30, 40], [60, 5, 79, 60]], format="XYXY", canvas_size=(64, 80)
    )
    given_ = F.convert_bounding_box_format(corners, new_format=form)

    ends = [[(x, y) for x in box[0::2] for y in box[1::2]] for box in corners.tolist()]

    class Boxes(Marked):
        def __getitem__(self, index):
            points = tv_tensors.KeyPoints(torch.tensor(ends), canvas_size=(64, 80))
            return {"image": tv_tensors.Image(photo(index)), "boxes": given_, "ends": points}

    batch = batch_of(Boxes())
    assert batch.kinds["boxes"] == f"boxes/{form.lower()}"
    moved = BatchCompose({"affine": Affine(30, [0.3, 0.3], [0.7, 1.5])}, 0)(batch)
    assert moved["boxes"].shape == (8, 2, 4)
    low, high = moved["ends"].amin(2), moved["ends"].amax(2)
    limit = torch.tensor([80.0, 64, 80, 64])
    cut = torch.cat([low, high], -1).clamp(min=0).minimum(limit)
    expected = F.convert_bounding_box_format(
        cut, tv_tensors.BoundingBoxFormat.XYXY, tv_tensors.BoundingBoxFormat[form]
    )
    torch.testing.assert_close(moved["boxes"], expected, atol=1e-3, rtol=1e-4)


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
    with pytest.raises(DataError, match="a picture has 2 channels, not 1 or 3"):
        ColorJitter(0.5)(batch, keyed())


def test_a_batch_is_normalised_like_its_samples():
    statistics = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}
    batch = batch_of()
    expected = Normalize(statistics)({"image": tv_tensors.Image(batch["image"])})["image"]
    step = BatchNormalize(statistics)
    found = step(batch, keyed())["image"]
    torch.testing.assert_close(found, expected.as_subclass(torch.Tensor), atol=1e-5, rtol=1e-5)
    assert found.is_contiguous()
    assert torch.equal(step.inverse(found), batch_of()["image"])
    with pytest.raises(DataError, match="float32 already; normalise samples or batches"):
        step(batch, keyed())


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


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(
        DataError,
        match=r"MixUp mixes pictures of classes, and cannot mix boxes/xyxy, keypoints, mask",
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
    with pytest.raises(DataError, match=r"needs stacks of pictures .*: resize them"):
        HorizontalFlip()(listed, keyed(4))


@pytest.mark.parametrize(
    ("step", "key", "message"),
    [
        ("batch_geometry.HorizontalFlip, p: 1.5", "p", "less than or equal to 1"),
        ("batch_geometry.HorizontalFlip, pairs: dlib", "pairs", "'ibug68'"),
        ("batch_geometry.Affine, translate: [2, 0]", "translate", "less than or equal to 1"),
        ("batch_geometry.Affine, degrees: -3", "degrees", "greater than or equal to 0"),
        ("batch_colors.ColorJitter, hue: [0.7, 0.1]", "hue", r"expected [least, largest]"),
        ("mixing.MixUp, alpha: 0", "alpha", "greater than 0"),
        ("pixels.RandomResizedCrop, size: [8, 8], scale: [0, 2]", "scale", "or equal to 1"),
        ("image_decoding.DecodeRandomResizedCrop, size: 8, scale: [0.5, 0.4]", "scale", "[least, "),
        ("image_decoding.DecodeRandomResizedCrop, size: [3, 4, 5]", "size", "at most 2 items"),
        ("image_decoding.DecodeResize, size: 8, decoder: fast", "decoder", "'native'"),
        ("text.Tokenize, kind: letters", "kind", "'bytes'"),
        ("text.Tokenize, size: 2", "size", "greater than or equal to 3"),
        ("image.Normalize, statistics: imagnet", "statistics", "'imagenet'"),
    ],
)
def test_wrong_arguments_of_a_configuration_are_named(step, key, message):
    with pytest.raises(ConfigError) as caught:
        penstock.compose(
            "task=digest", f"+transform.train.x={{_target_: penstock.transforms.{step}}}"
        )
    problems = caught.value.problems
    assert all(problem.key.startswith(f"transform.train.x.{key}") for problem in problems)
    assert any(message in problem.message for problem in problems), problems


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
    with pytest.raises(ConfigError, match="'own' returns a dict; it has to return a Batch"):
        BatchCompose({"own": lambda batch, random: dict(batch)}, 0)(batch_of())
