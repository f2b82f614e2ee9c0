"""Crops as functions of a key and a picture's size: pinned, and the same one by one as together."""

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.order.keys import hash64, uniform, uniform_at
from penstock.transforms.crops import CenterCrop, Crop, Crops, RandomAreaCrop, Whole, side_lengths

PINNED = [(186, 28, 454, 277, True), (137, 74, 385, 272, True), (83, 4, 396, 345, False)]


def test_crops_follow_from_key_and_size():
    step = RandomAreaCrop((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    crops = [step(hash64(key), 500, 375) for key in range(4000)]
    assert crops == [step(hash64(key), 500, 375) for key in range(4000)]
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
    assert 0.45 < np.mean([crop.flip for crop in crops]) < 0.55
    # Where the crop lies is even over where it could lie.
    room = across < 500
    assert abs(np.mean(sides[room, 0] / (500 - across[room])) - 0.5) < 0.02


def test_crops_are_pinned():
    """An update of Penstock does not change which part of a picture a key means."""
    step = RandomAreaCrop((0.08, 1.0), (3 / 4, 4 / 3), 0.5)
    assert [tuple(step(hash64(key), 500, 375)[:5]) for key in range(3)] == PINNED
    # Of a wide picture few shapes fit: after ten tries it is the middle.
    wide, keys = RandomAreaCrop((0.22, 1.0), (3 / 4, 4 / 3), 0.5), map(hash64, range(3000))
    assert [wide(key, 300, 60)[:4] for key in keys].count((110, 0, 190, 60)) == 2689


def test_one_number_is_one_of_many():
    key = hash64(3)
    assert [uniform_at(key, n) for n in range(50)] == uniform(key, np.arange(50)).tolist()


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
    assert [step(hash64(key), *size)[:4] for key in range(len(crops))] == crops


@pytest.mark.parametrize(
    "step",
    [
        RandomAreaCrop((0.08, 1.0), (3 / 4, 4 / 3), 0.3),
        RandomAreaCrop((0.3, 0.4), (0.1, 10.0), 1.0),
        RandomAreaCrop((0.9, 1.0), (1.0, 1.0), 0.0),
        Whole(),
        CenterCrop((10, 20), None),
    ],
)
def test_crops_of_many_pictures_are_those_of_each(step):
    draw = np.random.default_rng(0)
    keys = draw.integers(0, 2**63, 300).astype(np.uint64)
    # Half of them so small that a side may come out as 0.
    widths, heights = np.where(
        np.arange(300) % 2, draw.integers(1, 5, (2, 300)), draw.integers(1, 400, (2, 300))
    )
    together = step.many(keys, widths, heights)
    sizes = zip(keys.tolist(), widths.tolist(), heights.tolist(), strict=True)
    alone = [step(*arguments) for arguments in sizes]
    assert together.regions.tolist() == [list(crop[:4]) for crop in alone]
    assert together.flips.tolist() == [crop.flip for crop in alone]
    assert {together.inside} == {crop.inside for crop in alone}
    left, top, right, bottom = together.regions.T
    assert ((left >= 0) & (left < right) & (right <= widths)).all()
    assert ((top >= 0) & (top < bottom) & (bottom <= heights)).all()


def test_the_regions_of_no_pictures_have_four_columns():
    assert Crops.of([], inside=True).regions.shape == (0, 4)
    crops = Crops.of([Crop(1, 2, 3, 4, True)], inside=False)
    assert (crops.regions.tolist(), crops.flips.tolist()) == ([[1, 2, 3, 4]], [True])


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
    assert CenterCrop(size, resize)(0, *picture) == Crop(*region, inside=False)
    assert Whole()(0, *picture) == Crop(0, 0, *picture, inside=False)


@pytest.mark.parametrize(
    ("scale", "ratio", "flip", "message"),
    [
        ((0, 1), (1, 1), 0, r"scale: got \[0, 1\], expected \[least, largest\] above 0"),
        ((0.5, 0.4), (1, 1), 0, r"scale: got \[0.5, 0.4\], expected"),
        ((0.5,), (1, 1), 0, r"scale: got \[0.5\], expected"),
        ((0.5, 1.01), (1, 1), 0, "scale: got .*, expected shares of at most 1"),
        ((0.5, 1), (0, 2), 0, r"ratio: got \[0, 2\], expected"),
        ((0.5, 1), (1, 1), 1.01, "flip: got 1.01, expected a probability from 0 to 1"),
        ((0.5, 1), (1, 1), -0.01, "flip: got -0.01"),
    ],
)
def test_shares_shapes_and_probabilities_that_there_are_not(scale, ratio, flip, message):
    with pytest.raises(ConfigError, match=message):
        RandomAreaCrop(scale, ratio, flip)


def test_the_longer_side_has_to_fit_into_the_resized_picture():
    with pytest.raises(ConfigError, match="resize: got 19, but 20 pixels are to be cut out of it"):
        CenterCrop((10, 20), 19)


@pytest.mark.parametrize(
    ("size", "sides"), [(1, (1, 1)), ([2, 3], (2, 3)), (0, None), ([0, 3], None), ([3], None)]
)
def test_the_sides_of_a_result(size, sides):
    if sides is not None:
        assert side_lengths(size) == sides
        return
    with pytest.raises(ConfigError, match=r"size: got .*, expected a side or \[height, width\]"):
        side_lengths(size)
