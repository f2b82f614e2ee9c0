"""Crops as functions of a key and a picture's size: pinned, and the same one by one as together."""

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.order.keys import hash64
from penstock.transforms.crops import CenterCrop, RandomAreaCrop, side_lengths

PINNED = [(186, 28, 454, 277, True), (137, 74, 385, 272, True), (83, 4, 396, 345, False)]


def crops_of(step, keys, width, height):
    """Left, top, right, bottom and flip of each crop of pictures of one size."""
    keys = np.array([hash64(key) for key in keys], np.uint64)
    crops = step(keys, np.full(len(keys), width), np.full(len(keys), height))
    rows = zip(crops.regions.tolist(), crops.flips.tolist(), strict=True)
    return [(*region, flip) for region, flip in rows]


def test_crops_follow_from_key_and_size():
    step = RandomAreaCrop((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    crops = crops_of(step, range(4000), 500, 375)
    assert crops == crops_of(step, range(4000), 500, 375)
    sides = np.array([crop[:4] for crop in crops])
    across, down = sides[:, 2] - sides[:, 0], sides[:, 3] - sides[:, 1]
    assert sides.min() >= 0
    assert sides[:, 2].max() == 500
    assert sides[:, 3].max() == 375
    share, ratio = across * down / (500 * 375), across / down
    assert 0.075 < share.min() < 0.1
    assert share.max() > 0.95
    assert 0.73 < ratio.min() < 0.78
    assert 1.28 < ratio.max() < 1.37
    assert 0.45 < np.mean([crop[4] for crop in crops]) < 0.55
    # Where the crop lies is even over where it could lie.
    room = across < 500
    assert abs(np.mean(sides[room, 0] / (500 - across[room])) - 0.5) < 0.02


def test_crops_are_pinned():
    """An update of Penstock does not change which part of a picture a key means."""
    step = RandomAreaCrop((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    assert crops_of(step, range(3), 500, 375) == PINNED
    # Of a wide picture few shapes fit: after ten tries it is the middle.
    wide = crops_of(RandomAreaCrop((0.22, 1.0), (3 / 4, 4 / 3), 0.5), range(3000), 300, 60)
    assert [crop[:4] for crop in wide].count((110, 0, 190, 60)) == 2689


@pytest.mark.parametrize(
    ("scale", "ratio", "size", "crops"),
    [
        ((0.08, 1.0), (3 / 4, 4 / 3), (3, 7), [(0, 1, 3, 4), (0, 2, 3, 4), (0, 0, 3, 4)]),
        ((0.08, 1.0), (3 / 4, 4 / 3), (1, 1), [(0, 0, 1, 1)] * 3),
        (
            (0.5, 0.9),
            (1.0, 1.0),
            (500, 375),
            [(128, 7, 469, 348), (92, 19, 422, 349), (60, 1, 426, 367)],
        ),
        # No try fits: the middle, as near to the allowed shapes as the picture is.
        ((1.0, 1.0), (3 / 4, 4 / 3), (1000, 3), [(498, 0, 502, 3)]),
        ((1.0, 1.0), (3 / 4, 4 / 3), (3, 1000), [(0, 498, 3, 502)]),
        ((1.0, 1.0), (3 / 4, 4 / 3), (60, 300), [(0, 110, 60, 190)]),
        ((1.0, 1.0), (2, 3), (100, 100), [(0, 25, 100, 75)]),
        ((1.0, 1.0), (2, 3), (1, 1000), [(0, 499, 1, 500)]),
        ((1.0, 1.0), (1 / 3, 1 / 2), (1000, 1), [(499, 0, 500, 1)]),
        ((1.0, 1.0), (1 / 3, 1 / 2), (100, 100), [(25, 0, 75, 100)]),
    ],
)
def test_crops_of_small_and_narrow_pictures_are_pinned(scale, ratio, size, crops):
    step = RandomAreaCrop(scale, ratio, 0.0)
    assert [crop[:4] for crop in crops_of(step, range(len(crops)), *size)] == crops


@pytest.mark.parametrize(
    "step",
    [
        RandomAreaCrop((0.08, 1.0), (3 / 4, 4 / 3), 0.3),
        RandomAreaCrop((0.3, 0.4), (0.1, 10.0), 1.0),
        RandomAreaCrop((0.9, 1.0), (1.0, 1.0), 0.0),
        CenterCrop(),
        CenterCrop((10, 20)),
        CenterCrop((20, 30), 40),
    ],
)
def test_crops_lie_in_their_pictures_and_depend_on_no_other(step):
    draw = np.random.default_rng(0)
    keys = draw.integers(0, 2**63, 300).astype(np.uint64)
    # Half of them so small that a side may come out as 0.
    widths, heights = np.where(
        np.arange(300) % 2, draw.integers(1, 5, (2, 300)), draw.integers(1, 400, (2, 300))
    )
    together = step(keys, widths, heights)
    for row in range(300):
        alone = step(*(values[row : row + 1] for values in (keys, widths, heights)))
        assert alone.regions[0].tolist() == together.regions[row].tolist()
        assert alone.flips[0] == together.flips[row]
    left, top, right, bottom = together.regions.T
    assert ((left >= 0) & (left < right) & (right <= widths)).all()
    assert ((top >= 0) & (top < bottom) & (bottom <= heights)).all()


@pytest.mark.parametrize(
    ("size", "resize", "picture", "region"),
    [
        ((10, 10), None, (40, 20), (10, 0, 30, 20)),
        ((10, 20), None, (40, 100), (0, 40, 40, 60)),
        ((10, 20), None, (5, 5), (0, 1.25, 5, 3.75)),
        ((8, 8), 16, (40, 100), (10, 40, 30, 60)),
        ((8, 8), 16, (64, 32), (24, 8, 40, 24)),
        ((10, 20), 20, (64, 32), (16, 8, 48, 24)),  # as large as it may be
    ],
)
def test_the_middle_of_a_picture(size, resize, picture, region):
    assert crops_of(CenterCrop(size, resize), [0], *picture) == [(*region, False)]
    assert crops_of(CenterCrop(), [0], *picture) == [(0, 0, *picture, False)]


def test_the_longer_side_has_to_fit_into_the_resized_picture():
    with pytest.raises(ConfigError, match="resize: got 19, but 20 pixels are to be cut out of it"):
        CenterCrop((10, 20), 19)
    assert side_lengths(1) == (1, 1)
    assert side_lengths([2, 3]) == (2, 3)
