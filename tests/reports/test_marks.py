"""Boxes and masks on pictures."""

import torch

from penstock.addons.reports.marks import marked
from penstock.training.rendered import Rendered

GREY = torch.full((3, 64, 96), 128, dtype=torch.uint8)


def shown(**members):
    (image,) = marked([GREY], torch.zeros(1, 3, 32, 48), [Rendered(**members)])
    return image


def test_pictures_without_marks_stay_as_they_are():
    images = [GREY]
    assert marked(images, torch.zeros(1, 3, 32, 48), [Rendered("cat")]) is images


def test_boxes_are_drawn_where_they_are_in_the_picture_that_was_seen():
    boxes = torch.tensor([[12.0, 8, 36, 24], [-50, -50, -40, -40], [9, 9, 9, 9]])
    image = shown(boxes=boxes, labels=["cat", "owl", "dog"])
    assert image.shape == (3, 171, 256)
    changed = (image != 128).any(0).nonzero()
    factor = 256 / 48
    low, high = changed.amin(0).tolist(), changed.amax(0).tolist()
    for measured, exact in zip((*low, *high), (8, 12, 24, 36), strict=True):
        assert abs(measured - exact * factor) < 4
    both = shown(boxes=boxes, predicted_boxes=boxes[:0], labels=["cat", "owl", "dog"])
    assert (both != 128).any()


def test_the_true_mask_stands_left_of_the_predicted_one():
    mask = torch.zeros(32, 48, dtype=torch.int64)
    mask[:, :24], mask[0, 47] = 2, -1
    image = shown(mask=mask, predicted_mask=torch.zeros_like(mask))
    assert image.shape == (3, 171, 512)
    changed = (image != 128).any(0)
    assert changed[:, :128].all()
    assert not changed[:, 129:].any()
