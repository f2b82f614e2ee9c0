"""The native JPEG decoder: its pixels against Pillow's, and what it refuses."""

import array
import io
import math
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

jpeg = pytest.importorskip("penstock.native.jpeg", reason="the native decoder was not built")

INSECTS = Path(__file__).parents[3].parent / "shared" / "data" / "hymenoptera"
LEFT, DAMAGED = -1, -2  # outcomes
AS_IT_IS = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
KINDS = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "4:1:1": {"subsampling": "4:1:1"},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "progressive with restarts": {"progressive": True, "restart_marker_rows": 1},
    "coarse": {"quality": 10},
}


def picture(width, height, seed=0):
    """Smooth and coloured."""
    small = np.random.default_rng(seed).integers(
        0, 256, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8
    )
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 90} | options)
    return file.getvalue()


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


def asked(
    size, region, out, inside=True, orientation=1, flip=False, reduce=False, kind="uint8",
    normal=AS_IT_IS,
):  # fmt: skip
    return [*size, orientation, flip], region, inside, out, kind, reduce, normal


def shaped(kind, values, shape):
    """Numbers, or that many bytes of zeros, as a table."""
    numbers = array.array(kind, bytes(values) if isinstance(values, int) else values)
    return memoryview(numbers).cast("B").cast(kind, shape)


def decode_all(contents, asked):
    """Results of files that are asked for alike but for facts and region, and their outcomes."""
    rows = len(contents)
    _, _, inside, (height, width), kind, reduce, normal = asked[0]
    letter = "f" if kind == "float32" else "B"
    last = kind == "channels last"
    shape = [rows, height, width, 3] if last else [rows, 3, height, width]
    size = 3 * rows * height * width * (4 if letter == "f" else 1)
    target = shaped(letter, size, shape)
    facts = shaped("q", [int(fact) for one in asked for fact in one[0]], [rows, 4])
    regions = shaped("d", [float(side) for one in asked for side in one[1]], [rows, 4])
    place, outcomes = shaped("q", 8, [1]), shaped("q", 8 * rows, [rows])
    jpeg.decode(contents, target, facts, regions, inside, last, reduce, normal, place, outcomes)
    assert place[0] == rows - 1
    return target, outcomes.tolist()


def outcome(content, *given, **more):
    """What the decoder says of a file: warnings, or why there is no picture."""
    return decode_all([content], [asked(*given, **more)])[1][0]


def decode(content, *given, **more):
    """[height, width, 3] of the decoder."""
    target, (warnings,) = decode_all([content], [asked(*given, **more)])
    assert warnings == 0
    found = np.asarray(target)[0]
    return found if more.get("kind") == "channels last" else found.transpose(1, 2, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "size", [(97, 61), (256, 200), (33, 300), (8, 8), (1, 1), (1, 50), (50, 1)]
)
def test_a_region_is_what_the_whole_file_has_there(kind, size):
    """At every border of the blocks, also where colours are smoothed across them."""
    width, height = size
    content = saved(picture(width, height), **KINDS[kind])
    whole = pixels(content)
    draw = random.Random(0)
    for _ in range(25):
        left, top = draw.randrange(width), draw.randrange(height)
        right, bottom = draw.randint(left + 1, width), draw.randint(top + 1, height)
        part = decode(content, size, (left, top, right, bottom), (bottom - top, right - left))
        assert np.array_equal(part, whole[top:bottom, left:right])


def test_grey_becomes_rgb():
    content = saved(picture(60, 40).convert("L"))
    part = decode(content, (60, 40), (10, 5, 50, 30), (25, 40))
    assert np.array_equal(part, pixels(content)[5:30, 10:50])


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_and_flips(orientation, flip):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(picture(90, 70), exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)).convert("RGB"))
    part = decode(content, upright.size, (5, 20, 48, 61), (41, 43), True, orientation, flip)
    expected = np.asarray(upright)[20:61, 5:48]
    assert np.array_equal(part, expected[:, ::-1] if flip else expected)
    if not flip:  # turned rows and columns are resized by the filters of the other axis
        part = decode(content, upright.size, (5, 20, 48, 61), (23, 31), True, orientation)
        box = Image.fromarray(expected).resize((31, 23), Image.Resampling.BILINEAR)
        assert np.abs(part.astype(int) - np.asarray(box)).max() <= 1


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("region", "out"),
    [
        ((0, 0, 300, 200), (64, 64)),
        ((13, 7, 251, 188), (40, 100)),
        ((100, 90, 130, 110), (80, 90)),
        ((20.25, 10.5, 280.75, 190.5), (50, 50)),
        ((0, 0, 300, 200), (200, 300)),
        ((5, 5, 6, 6), (9, 9)),
        ((0, 0, 300, 200), (3, 4)),
    ],
)
def test_resizing_is_pillows_to_a_grey_level(inside, region, out):
    content = saved(picture(300, 200))
    part = decode(content, (300, 200), region, out, inside)
    image, box = Image.fromarray(pixels(content).astype(np.uint8)), region
    if inside:
        left, top = math.floor(region[0]), math.floor(region[1])
        image = image.crop((left, top, math.ceil(region[2]), math.ceil(region[3])))
        box = (region[0] - left, region[1] - top, region[2] - left, region[3] - top)
    expected = image.resize(out[::-1], Image.Resampling.BILINEAR, box=box)
    assert np.abs(part.astype(int) - np.asarray(expected)).max() <= 1


def real_or_drawn(count=12):
    """Content and size of photographs."""
    paths = sorted(INSECTS.rglob("*.jpg"))[:count]
    contents = [path.read_bytes() for path in paths] or [
        saved(picture(500, 375, s)) for s in (1, 2)
    ]
    return [(content, Image.open(io.BytesIO(content)).size) for content in contents]


def test_quality_without_and_with_reduction():
    """Mean difference to Pillow's antialiased result: 1 grey level, 3 with the DCT's scaling."""
    for content, (width, height) in real_or_drawn():
        for out, reduce, most in ((224, False, 1.0), (128, True, 3.0), (60, True, 3.0)):
            region = (3, 5, width - 8, height - 1)
            image = Image.open(io.BytesIO(content)).convert("RGB").crop(region)
            expected = np.asarray(image.resize((out, out), Image.Resampling.BILINEAR)).astype(int)
            part = decode(content, (width, height), region, (out, out), reduce=reduce)
            assert np.abs(part - expected).mean() <= most


def test_floats_are_bytes_normalised():
    content = saved(picture(120, 90))
    normal = ((0.017, 0.018, 0.019), (-2.1, -2.0, -1.8))
    for flip in (False, True):
        given = ((120, 90), (10, 10, 100, 80), (31, 43), True, 1, flip)
        as_bytes = decode(content, *given)
        as_floats = decode(content, *given, kind="float32", normal=normal)
        scale, bias = (np.array(one, np.float32) for one in normal)
        assert np.array_equal(as_floats, as_bytes.astype(np.float32) * scale + bias)


def test_white_stays_white():
    content = saved(Image.new("RGB", (300, 300), "white"))
    for side in (7, 50, 299, 400):
        assert (decode(content, (300, 300), (1, 1, 299, 299), (side, side)) == 255).all()


def test_damage_is_counted_or_refused():
    content = saved(picture(200, 200))
    given = ((200, 200), (0, 0, 200, 200), (50, 50))
    assert outcome(content, *given) == 0
    assert outcome(content[: len(content) // 2], *given) > 0
    for data in (b"", b"x", content[:100], b"\x89PNG\r\n\x1a\n" + content):
        assert outcome(data, *given) == DAMAGED


def test_what_is_left_to_others():
    content = saved(picture(40, 30))
    assert outcome(content, (40, 31), (0, 0, 40, 30), (10, 10)) == LEFT
    cmyk = saved(picture(40, 30).convert("CMYK"))
    assert outcome(cmyk, (40, 30), (0, 0, 40, 30), (10, 10)) == LEFT
    for region in ((-1, 0, 40, 30), (0, 0, 41, 30), (5, 5, 5, 30), (0, 0, math.nan, 30)):
        assert outcome(content, (40, 30), region, (10, 10)) == LEFT
    for orientation in (0, 9):
        given = (40, 30), (0, 0, 40, 30), (10, 10), True, orientation
        assert outcome(content, *given) == LEFT
    # So many source pixels for one that weights of 16 bits are not enough.
    wide = saved(picture(6000, 8))
    assert outcome(wide, (6000, 8), (0, 0, 6000, 8), (1, 1)) == LEFT


def test_each_row_of_a_batch_is_what_it_is_alone():
    pictures = [(picture(90, 70, seed), 1 + seed) for seed in range(8)]
    contents = [saved(one) for one, _ in pictures]
    contents[3] = contents[3][:200]  # no picture, and not the fault of its neighbours
    given = [
        asked((90, 70) if turn < 5 else (70, 90), (seed, 3, 60, 65), (40, 50), True, turn, seed % 2)
        for seed, (_, turn) in enumerate(pictures)
    ]
    for kind in ("uint8", "float32", "channels last"):
        rows = [(*one[:4], kind, *one[5:]) for one in given]
        together, outcomes = decode_all(contents, rows)
        assert outcomes == [0, 0, 0, DAMAGED, 0, 0, 0, 0]
        for row, content in enumerate(contents):
            alone, _ = decode_all([content], [rows[row]])
            assert row == 3 or np.array_equal(np.asarray(together)[row], np.asarray(alone)[0])


def test_channels_may_come_last():
    content = saved(picture(120, 90))
    for orientation in range(1, 9):
        size = (120, 90) if orientation < 5 else (90, 120)
        for flip in (False, True):
            given = (size, (5, 6, 70, 80), (31, 45), False, orientation, flip)
            last = decode(content, *given, kind="channels last")
            assert np.array_equal(last, decode(content, *given))


def table(kind, *shape):
    return np.zeros(shape, kind)


@pytest.mark.parametrize(
    "change",
    [
        {"target": table(np.uint8, 1, 10, 10, 3)},
        {"target": table(np.int8, 1, 3, 10, 10)},
        {"target": table(np.float64, 1, 3, 10, 10)},
        {"target": table(np.uint8, 3, 10, 10)},
        {"target": table(np.uint8, 1, 3, 0, 10)},
        {"target": table(np.uint8, 2, 3, 10, 10)},
        {"target": table(np.uint8, 1, 3, 10, 20)[..., ::2]},
        {"target": bytes(300)},
        {"channels_last": True},
        {"facts": table(np.int32, 1, 4)},
        {"facts": table(np.int64, 1, 3)},
        {"facts": table(np.int64, 2, 4)},
        {"regions": table(np.float32, 1, 4)},
        {"regions": table(np.float64, 4)},
        {"place": table(np.int64, 2)},
        {"outcomes": table(np.int64, 2)},
        {"outcomes": table(np.float64, 1)},
        {"contents": []},
        {"contents": ["text"]},
        {"contents": 7},
    ],
    ids=str,
)
def test_arguments_of_another_type_or_shape(change):
    given = {
        "contents": [saved(picture(40, 30))],
        "target": table(np.uint8, 1, 3, 10, 10),
        "facts": np.array([[40, 30, 1, 0]]),
        "regions": np.array([[0.0, 0, 40, 30]]),
        "inside": True,
        "channels_last": False,
        "reduce": True,
        "normal": AS_IT_IS,
        "place": table(np.int64, 1),
        "outcomes": table(np.int64, 1),
    }
    jpeg.decode(*given.values())
    assert given["target"].any()
    with pytest.raises((ValueError, TypeError, BufferError)):
        jpeg.decode(*(given | change).values())


def test_threads_get_the_same_pixels_and_the_lock_is_free():
    content, size = saved(picture(1200, 900), quality=95), (1200, 900)
    alone = decode(content, size, (0, 0, 1200, 900), (64, 64))
    found, beats = [], 0

    def work():
        for _ in range(8):
            found.append(decode(content, size, (0, 0, 1200, 900), (64, 64)))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(10)  # nobody has to give the lock away in this time
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            beats += 1
            time.sleep(0.001)
    finally:
        sys.setswitchinterval(switch)
    assert beats > 5
    assert len(found) == 24
    assert all(np.array_equal(one, alone) for one in found)


def test_damaged_files_come_back():
    draw = random.Random(1)
    files = [saved(picture(61, 47), **options) for options in KINDS.values()]
    outcomes = Counter()
    for _ in range(600):
        content = bytearray(draw.choice(files))
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        if draw.random() < 0.3:
            del content[draw.randrange(len(content)) :]
        outcomes[outcome(bytes(content), (61, 47), (3.0, 2.0, 60.0, 40.0), (24, 31))] += 1
    assert outcomes[0] > 50
    assert outcomes[DAMAGED] > 50


def test_any_buffer_will_do():
    content = saved(picture(40, 30))
    given = asked((40, 30), (0, 0, 40, 30), (10, 10))
    expected, _ = decode_all([content], [given])
    for kind in (memoryview, bytearray, lambda one: np.frombuffer(one, np.uint8)):
        assert decode_all([kind(content)], [given])[0] == expected
