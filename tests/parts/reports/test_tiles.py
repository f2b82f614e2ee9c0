"""Tiles and sheets: what is drawn lies where it belongs, in its colour."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from penstock.addons.reports import tiles
from penstock.addons.reports.tiles import PREDICTED, TRUE
from penstock.training.adapter import Rendered

GREY = torch.full((3, 80, 80), 0.5)


def pixels(encoded):
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(int)


def places(encoded, color, tolerance=90):
    """Rows and columns of the pixels of about that colour."""
    far = np.abs(pixels(encoded) - ImageColor.getrgb(color)).sum(-1)
    return np.argwhere(far < tolerance)


def test_points_lie_where_they_belong():
    view = Rendered(
        points=torch.tensor([[20.0, 60.0]]), predicted_points=torch.tensor([[60.0, 10.0]])
    )
    drawn = tiles.tile(GREY, view)
    assert places(drawn, TRUE).mean(0) == pytest.approx([96, 32], abs=2)
    assert places(drawn, PREDICTED).mean(0) == pytest.approx([16, 96], abs=2)
    halved = tiles.tile(GREY, view, scale=(0.5, 0.5))  # of a picture that was seen twice as large
    assert places(halved, TRUE).mean(0) == pytest.approx([48, 16], abs=2)


def test_boxes_are_drawn_with_their_labels():
    box = torch.tensor([[10.0, 20.0, 50.0, 60.0]])
    view = Rendered(boxes=box, predicted_boxes=box + 10, predicted_labels=["cat"])
    drawn = tiles.tile(GREY, view)
    green, orange = places(drawn, TRUE), places(drawn, PREDICTED)
    assert green.min(0) == pytest.approx([80, 40], abs=3)
    assert orange.max(0) == pytest.approx([280, 240], abs=3)
    plain = tiles.tile(GREY, Rendered(boxes=box, predicted_boxes=box + 10))
    assert len(orange) > len(places(plain, PREDICTED)) + 20, "its label is filled"


def test_the_true_mask_stands_left_of_the_predicted_one():
    true, guess = torch.zeros(80, 80, dtype=torch.int64), torch.zeros(80, 80, dtype=torch.int64)
    true[:40], guess[40:] = 1, 2
    drawn = pixels(tiles.tile(GREY, Rendered(mask=true, predicted_mask=guess)))
    height, width, _ = drawn.shape
    assert width == 2 * height
    left, right = drawn[height // 4, width // 4], drawn[3 * height // 4, 3 * width // 4]
    assert left[0] > left[1] + 50, "red"
    assert right[1] > right[0] + 50, "green"
    assert np.ptp(drawn[3 * height // 4, width // 4]) < 10, "the background is grey"


def test_a_tiny_picture_is_kept_bit_by_bit():
    image = torch.randint(0, 256, (3, 28, 28), dtype=torch.uint8)
    assert (pixels(tiles.tile(image, Rendered())) == image.permute(1, 2, 0).numpy()).all()


def test_signals_and_forecasts_of_every_shape_can_be_drawn():
    for shape in ((1, 1), (50, 3), (200, 40), (1, 40)):
        values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        assert Image.open(io.BytesIO(tiles.signal(values))).size == (tiles.SIDE, 80)
    past, later = torch.arange(20.0), torch.arange(20.0, 25.0)
    later[2] = torch.nan
    Image.open(io.BytesIO(tiles.forecast(Rendered(past=past, future=later)))).load()
    drawn = tiles.forecast(Rendered(past=past, future=later, forecast=later - 5))
    assert len(places(drawn, PREDICTED))
    assert places(drawn, TRUE)[:, 1].min() > 88, "the future is on the right"


def test_a_sheet_has_all_tiles_and_lines(tmp_path):
    some = [(tiles.tile(GREY, Rendered()), ["an ant with a very long name", "not a bee"], True)] * 9
    path = tiles.sheet(some, tmp_path / "sheet.png")
    with Image.open(path) as image:
        colors = np.asarray(image).reshape(-1, 3)
        assert image.width > image.height > 200
    assert (np.abs(colors - (179, 38, 30)).sum(-1) == 0).any(), "wrong ones are red"
