"""What a key draws for a row of a batch is pinned: an update of Penstock does not change it."""

import threading

import numpy as np
import pytest
import torch

from penstock.errors import DataError
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.order.plan import Request
from penstock.transforms.batch import BatchCompose, images_of
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.batch_geometry import Affine, HorizontalFlip
from penstock.transforms.mixing import CutMix, MixUp


def keyed(rows):
    return KeyedRandom.of(0, 0, np.arange(rows), "x")


def batch_of(image, **more):
    """A batch with pictures [B, C, H, W], and other fields as (value, kind)."""
    places = np.arange(len(image))
    fields = {"image": image} | {name: value for name, (value, _) in more.items()}
    kinds = {"image": "image"} | {name: kind for name, (_, kind) in more.items() if kind}
    return Batch(fields, Request(0, 0, places, places, len(image)), places, kinds=kinds)


def changed(before, after):
    """Top, left, bottom and right of what is not the same, for each picture."""
    boxes = []
    for mask in (before != after).any(1):
        rows, columns = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
        ends = rows[[0, -1]].tolist() + columns[[0, -1]].tolist() if len(rows) else None
        boxes.append(ends and (ends[0], ends[2], ends[1] + 1, ends[3] + 1))
    return boxes


def test_affine_maps():
    step = Affine(30, [0.1, 0.2], [0.8, 1.2], 10, p=0.7)
    expected = [
        [[1.0606, -0.4537, 2.0], [0.5576, 1.1152, -11.0]],
        [[1.1160, 0.1773, -3.0], [-0.1577, 1.1132, -9.0]],
        [[0.9109, 0.2432, 4.0], [-0.2319, 0.9081, 3.0]],
        [[0.8215, -0.2583, -5.0], [0.3435, 0.8571, -4.0]],
    ]
    points = torch.rand(4, 9, 2, dtype=torch.float64) * 60
    batch = batch_of(torch.zeros(4, 3, 64, 80), at=(points, "keypoints"))
    about_centre = torch.cat([points - points.new_tensor([40, 32]), torch.ones(4, 9, 1)], -1)
    moved = about_centre @ torch.tensor(expected).double().mT + points.new_tensor([40, 32])
    torch.testing.assert_close(step(batch, keyed(4))["at"], moved, atol=0.01, rtol=0)


def test_shares_and_rectangles_of_mixed_pictures():
    image = torch.arange(6.0)[:, None, None, None].expand(6, 1, 10, 14).clone()
    labels = {"label": (torch.arange(6), None)}
    kept = torch.tensor([0.0632, 0.7980, 0.7702, 0.0520, 1.0, 0.6021])
    mixed = MixUp(6, 1.0, 0.5)(batch_of(image.clone(), **labels), keyed(6))
    torch.testing.assert_close(mixed["label_soft"].diagonal(), kept, atol=1e-4, rtol=0)
    own, other = torch.arange(6), torch.arange(6) ^ 1
    pixels = own * kept + other * (1 - kept)
    torch.testing.assert_close(mixed["image"][:, 0, 0, 0], pixels, atol=1e-4, rtol=0)
    cut = CutMix(6, 1.0, 0.5)(batch_of(image.clone(), **labels), keyed(6))
    boxes = [(5, 0, 10, 13), (4, 9, 8, 14), (6, 8, 10, 14), (1, 0, 10, 8), None, (6, 0, 10, 4)]
    assert changed(image, cut["image"]) == boxes
    areas = [(box[2] - box[0]) * (box[3] - box[1]) if box else 0 for box in boxes]
    assert cut["label_soft"].diagonal().tolist() == pytest.approx([1 - a / 140 for a in areas])


# Fields and steps


def test_pictures_of_two_sizes_are_refused():
    small = (torch.zeros(2, 3, 4, 5), "image")
    same, other = (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 6))
    assert list(images_of(batch_of(same, depth=small), Affine())) == ["image", "depth"]
    with pytest.raises(DataError, match=r"pictures \[B, C, H, W\] of one size, not .*depth"):
        images_of(batch_of(other, depth=small), Affine())
    with pytest.raises(DataError, match=r"stacks of pictures \[B, C, H, W\] .*\[3, 4, 5\]}"):
        images_of(batch_of(torch.zeros(3, 4, 5)), Affine())


def test_masks_with_channels_keep_them():
    image = torch.zeros(2, 3, 4, 6)
    masks = torch.arange(2 * 2 * 4 * 6).reshape(2, 2, 4, 6)
    moved = HorizontalFlip(1.0)(batch_of(image, mask=(masks, "mask")), keyed(2))
    assert torch.equal(moved["mask"], masks.flip(-1))


def test_whole_numbers_of_landmarks_move_and_stay_whole():
    points = torch.tensor([[[0, 1], [5, 2]]])
    moved = HorizontalFlip(1.0)(
        batch_of(torch.zeros(1, 3, 4, 6), at=(points, "keypoints")), keyed(1)
    )
    assert moved["at"].dtype == torch.int64
    assert moved["at"].tolist() == [[[5, 1], [0, 2]]]


def test_means_of_as_many_channels_as_pictures_have():
    image = torch.full((2, 3, 4, 5), 51, dtype=torch.uint8)
    grey = BatchNormalize({"mean": [0.1], "std": [0.5]})(batch_of(image), keyed(2))["image"]
    torch.testing.assert_close(grey, torch.full((2, 3, 4, 5), 0.2))
    with pytest.raises(DataError, match="Normalize has 2 means, and a picture has 3 channels"):
        BatchNormalize({"mean": [0, 0], "std": [1, 1]})(batch_of(image), keyed(2))


def test_a_step_in_a_thread_is_not_blamed_for_draws_of_others():
    def drawing(batch, random):
        torch.rand(3)
        return batch

    batches = []
    compose = BatchCompose({"own": drawing}, 0)
    thread = threading.Thread(
        target=lambda: batches.append(compose(batch_of(torch.zeros(2, 3, 4, 4))))
    )
    thread.start()
    thread.join()
    assert len(batches) == 1
