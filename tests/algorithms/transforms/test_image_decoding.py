"""Transforms that decode: the same crops by both decoders, every odd kind of file, batches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

import penstock
from penstock.build.data import DataParts
from penstock.datasets.reading.image import encoded_image, read_image
from penstock.errors import ConfigError, DataError
from penstock.loading.collate import Stack
from penstock.loading.encoded import StoredPictures
from penstock.loading.fetch import Compose, Fetch
from penstock.loading.loader import Loader, LoaderOptions
from penstock.order.keys import begin_sample, hash64
from penstock.transforms import image_decoding, native_images
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.crops import Crops, RandomAreaCrop
from penstock.transforms.image import Normalize
from penstock.transforms.image_decoding import (
    Decode,
    DecodeRandomResizedCrop,
    DecodeResize,
    DecodeResizeCenterCrop,
)
from penstock.transforms.jpeg_header import jpeg_header

BUILT = native_images.module("jpeg") is not None
DECODERS = ["pure", pytest.param("native", marks=pytest.mark.skipif(not BUILT, reason="not built"))]
both = pytest.mark.skipif(not BUILT, reason="the native decoder was not built")


def picture(width=200, height=150, seed=0, mode="RGB"):
    small = np.random.default_rng(seed).integers(
        0, 256, (height // 10 + 2, width // 10 + 2, 3), dtype=np.uint8
    )
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    return image.convert(mode)


def saved(path, mode="RGB", size=(200, 150), **options):
    picture(*size, mode=mode).save(path, **options)
    return path


class At(Decode):
    """Always the same crop."""

    def __init__(self, box, size=(64, 48), decoder="auto", reduce=True, flip=False, inside=True):
        def crop(keys, widths, heights):
            regions = np.array([box] * len(keys), np.float64)
            return Crops(regions, np.full(len(keys), flip), inside)

        crop.draws = False
        super().__init__(size, crop, decoder, reduce)


def decoded(step, path, key=7):
    begin_sample(key)
    try:
        return step({"image": encoded_image(str(path)), "label": 1})["image"]
    finally:
        begin_sample(None)


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


# File, mode, options; whether the quick way can take it.
ODD = {
    "plain.jpg": ("RGB", {}, True),
    "progressive.jpg": ("RGB", {"progressive": True}, True),
    "grey.jpg": ("L", {}, True),
    "restarts.jpg": ("RGB", {"restart_marker_blocks": 2}, True),
    "full_colour.jpg": ("RGB", {"subsampling": "4:4:4"}, True),
    "turned.jpg": ("RGB", {"exif": exif(6)}, True),
    "mirrored.jpg": ("RGB", {"exif": exif(5)}, True),
    "upside_down.jpg": ("RGB", {"exif": exif(3)}, True),
    "dot.jpg": ("RGB", {"size": (1, 1)}, True),
    "line.jpg": ("RGB", {"size": (1, 90)}, True),
    "bar.jpg": ("RGB", {"size": (90, 1)}, True),
    "cmyk.jpg": ("CMYK", {}, False),
    "a.png": ("RGB", {}, False),
    "palette.png": ("P", {}, False),
    "alpha.png": ("RGBA", {}, False),
    "a.webp": ("RGB", {"quality": 90}, False),
    "misnamed.jpg": ("RGB", {"format": "png"}, False),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", ODD)
def test_every_kind_of_file_gives_what_the_reader_gives(tmp_path, decoder, name):
    mode, options, quick = ODD[name]
    path = saved(tmp_path / name, mode, **options)
    assert (jpeg_header(path.read_bytes()) is not None) == quick
    whole = read_image(str(path))
    height, width = whole.shape[1:]
    step = RandomAreaCrop((0.1, 1.0), (3 / 4, 4 / 3), 0.5)
    for key in range(6):
        crops = step(np.array([key], np.uint64), np.array([width]), np.array([height]))
        left, top, right, bottom = crops.regions[0].astype(int).tolist()
        part = whole[None, :, top:bottom, left:right].as_subclass(torch.Tensor)
        expected = torch.nn.functional.interpolate(part, (40, 30), mode="bilinear", antialias=True)[
            0
        ]
        expected = expected.flip(2) if crops.flips[0] else expected
        found = decoded(
            DecodeRandomResizedCrop([40, 30], (0.1, 1.0), flip=0.5, decoder=decoder, reduce=False),
            path,
            key,
        )
        assert isinstance(found, tv_tensors.Image)
        assert found.dtype == torch.uint8
        assert (found.int() - expected.int()).abs().max() <= 2
        assert (found.int() - expected.int()).abs().float().mean() <= 0.6


@pytest.mark.one_in(3)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_turned_file_is_reduced_by_the_dct(tmp_path, decoder, orientation):
    path = saved(tmp_path / "a.jpg", size=(640, 480), exif=exif(orientation))
    height, width = read_image(str(path)).shape[1:]
    for inside in (True, False):
        box, more = (8, 16, width - 24, height - 4), {"flip": True, "inside": inside}
        fast = decoded(At(box, (100, 100), decoder, **more), path)
        exact = decoded(At(box, (100, 100), decoder, False, **more), path)
        difference = (fast.int() - exact.int()).abs().float()
        assert 0 < difference.mean() <= 3
        assert not torch.equal(fast, exact)


@both
def test_both_decoders_take_the_same_crops(tmp_path):
    """Pixels differ by rounding only, for every step, with and without the DCT's scaling."""
    paths = [
        saved(tmp_path / f"{w}.jpg", size=(w, h)) for w, h in ((500, 375), (90, 210), (900, 700))
    ]
    for path in paths:
        for reduce in (True, False):
            for make in (
                lambda d, r: DecodeRandomResizedCrop(64, decoder=d, reduce=r),
                lambda d, r: DecodeResizeCenterCrop(64, resize=80, decoder=d, reduce=r),
                lambda d, r: DecodeResizeCenterCrop([32, 64], decoder=d, reduce=r),
                lambda d, r: DecodeResize([50, 70], decoder=d, reduce=r),
            ):
                for key in range(4):
                    one, other = (decoded(make(d, reduce), path, key) for d in ("native", "pure"))
                    difference = (one.int() - other.int()).abs().float()
                    assert difference.mean() <= (1.5 if reduce else 0.6)


@pytest.mark.parametrize("decoder", DECODERS)
def test_validation_is_resizing_and_cutting_out_the_middle(tmp_path, decoder):
    from torchvision.transforms.v2 import functional as F

    path = saved(tmp_path / "a.jpg", size=(260, 200))
    expected = F.center_crop(F.resize(read_image(str(path)), [100], antialias=True), [80, 80])
    found = decoded(DecodeResizeCenterCrop(80, resize=100, decoder=decoder, reduce=False), path)
    assert (found.int() - expected.int()).abs().float().mean() <= 0.6


def cut(content):
    return content[: len(content) // 2]


def without_end(content):
    return content[:-2]


def beheaded(content):
    return content[:300]


def text(content):
    return b"<!DOCTYPE html><html></html>"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("damage", [cut, without_end, beheaded, text])
def test_a_damaged_file_is_refused_in_the_readers_words(tmp_path, decoder, damage):
    path = saved(tmp_path / "a.jpg")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as whole:
        read_image(str(path))
    with pytest.raises(DataError, match=r"a\.jpg' is .*Replace it") as part:
        decoded(DecodeRandomResizedCrop(32, decoder=decoder), path)
    assert str(part.value) == str(whole.value)


@pytest.mark.parametrize("decoder", DECODERS)
def test_damage_that_leaves_a_file_decodable(tmp_path, decoder):
    """JPEG has no checksums: what the reader makes of it is what comes out, on both ways."""
    path = saved(tmp_path / "a.jpg", size=(300, 300), quality=95)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(content)
    expected = torch.nn.functional.interpolate(
        read_image(str(path))[None].as_subclass(torch.Tensor),
        (50, 50),
        mode="bilinear",
        antialias=True,
    )[0]
    found = decoded(At((0, 0, 300, 300), (50, 50), decoder, reduce=False), path)
    assert (found.int() - expected.int()).abs().float().mean() <= 0.6


@pytest.mark.skipif("native" not in DECODERS, reason="C was not built")
def test_what_lies_below_the_crop_is_not_decoded(tmp_path):
    whole = saved(tmp_path / "whole.jpg", size=(640, 480), quality=95)
    content = whole.read_bytes()
    middle = len(content) // 2
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(content[:middle] + b"\xff\xd8" + content[middle:])  # a second beginning
    with pytest.raises(DataError):
        read_image(str(damaged))
    above, below = (
        At((16, top, 400, top + 160), decoder="native", size=(40, 96)) for top in (16, 300)
    )
    assert decoded(above, damaged).equal(decoded(above, whole))
    with pytest.raises(DataError, match=r"damaged\.jpg"):
        decoded(below, damaged)


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_all_rows_that_count_are_decoded(tmp_path, inside, reduce):
    """Large steps, so that what is resized reaches far; beside the crop it counts if not inside."""
    path = saved(tmp_path / "a.jpg", size=(640, 640), quality=95)
    with Image.open(path) as image:
        whole = image.convert("RGB")
    for bottom in (300, 304, 320, 335):
        box = (0, bottom - 256, 256, bottom)
        source = whole.crop(box) if inside else whole
        region = None if inside else box
        expected = source.resize((8, 8), Image.Resampling.BILINEAR, box=region)
        found = decoded(At(box, (8, 8), "pure", reduce, inside=inside), path)
        difference = found.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected)
        assert np.abs(difference).max() <= (6 if reduce else 1), bottom


def test_a_header_that_promises_too_much_is_refused(tmp_path):
    path = saved(tmp_path / "a.jpg")
    content = bytearray(path.read_bytes())
    frame = content.find(b"\xff\xc0")
    content[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jpg' .* \(4294836225 pixels\) exceeds"):
        decoded(DecodeRandomResizedCrop(32), path)


def test_without_the_native_decoder(monkeypatch):
    monkeypatch.setattr(native_images, "module", lambda name: None)
    monkeypatch.setattr(image_decoding, "notices", notices := {})  # of the process, later tests too
    assert DecodeRandomResizedCrop(8).decoder == "pure"
    assert "decoded in Python" in notices["decoder"]
    with pytest.raises(ConfigError, match=r"'native' was not built: .*libjpeg-dev.*decoder=pure"):
        DecodeRandomResizedCrop(8, decoder="native")


def test_pictures_that_are_decoded_already(tmp_path):
    path = saved(tmp_path / "a.jpg")
    step = DecodeRandomResizedCrop(40, decoder="pure", reduce=False)
    begin_sample(5)
    found = step({"image": read_image(str(path))})["image"]
    begin_sample(None)
    assert torch.equal(found, decoded(step, path, 5))


@both
def test_stored_pictures_are_cropped_as_each_is_alone():
    """Pictures of many sizes that lie in one piece of memory, in another order."""
    sizes = [(200, 150), (64, 90), (33, 300), (90, 64)]
    pictures = [np.asarray(picture(*size, seed)) for seed, size in enumerate(sizes)]
    order, keys = [2, 0, 3, 1], np.array([hash64(key) for key in range(4)], np.uint64)
    lengths = [pictures[row].size for row in order]
    starts = np.empty(4, np.int64)
    starts[order] = 7 + np.cumsum([0, *lengths[:-1]])
    shapes = np.array([one.shape for one in pictures])
    pixels = np.concatenate([np.zeros(7, np.uint8), *(pictures[row].ravel() for row in order)])
    native, pure = (
        DecodeRandomResizedCrop((40, 32), decoder=name, reduce=False) for name in ("native", "pure")
    )
    together = native.decode_batch(StoredPictures(pixels, starts, *shapes.T), keys)
    assert together.shape == (4, 3, 40, 32)
    for row, key in enumerate(keys.tolist()):
        image = tv_tensors.Image(torch.from_numpy(pictures[row].copy()).permute(2, 0, 1))
        begin_sample(key)
        alone, by_torch = native({"image": image})["image"], pure({"image": image})["image"]
        begin_sample(None)
        assert torch.equal(together[row], alone)
        assert (together[row].int() - by_torch.int()).abs().max() <= 1


def folder(root, count=12, broken=()):
    for number in range(count):
        path = root / ("cat" if number % 2 else "dog") / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(120 + number, 90, seed=number).save(path)
        if number in broken:
            path.write_bytes(cut(path.read_bytes()))
    return root


def compose(root, *overrides):
    fast = ["transform=images_fast", "transform.train.decode.size=32"]
    return penstock.compose(
        "dataset=image_folder",
        f"dataset.root={root}",
        "data.split.val=0.0",
        *([] if "transform=images" in overrides else fast),
        "batch.size=5",
        "loader=debug",
        "trainer.device=cpu",
        *overrides,
    )


def batches(config):
    with DataParts(config).train.loader() as loader:
        return [(batch["image"].clone(), batch.indices) for batch in loader.epoch(0)]


@pytest.mark.parametrize("decoder", DECODERS)
def test_normalising_while_decoding_changes_no_bit(tmp_path, decoder):
    root = folder(tmp_path)
    parts = DataParts(compose(root, f"transform.train.decode.decoder={decoder}"))
    early = parts.train.fetch()
    request = parts.train.plan.request(0, 0, 0, 1)
    assert early.batch_transform is None or not early.batch_transform.steps
    bytes_first = replace(
        parts.train.fetch(whole=True),
        transform=parts.train.transform,
        batch_transform=BatchCompose({"normalize": BatchNormalize("imagenet")}, 0),
    )
    one, other = early(request)["image"], bytes_first(request)["image"]
    assert torch.equal(one, other)


class SaysShared(Stack):
    """Says of a batch whether it lies in the file of its message before that is sent."""

    def __call__(self, samples):
        batch = super().__call__(samples)
        at = batch["image"].data_ptr()
        maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        files = [
            name
            for (bounds, *_), name in ((line, line[-1]) for line in maps)
            if int(bounds.split("-")[0], 16) <= at < int(bounds.split("-")[1], 16)
        ]
        return batch | {"shared": "/memfd:penstock" in files[0]}


@pytest.mark.parametrize(("size", "shares"), [(128, True), (32, False)])
def test_workers_write_into_shared_memory(tmp_path, size, shares):
    """But for batches that are small enough to be sent as they are."""
    parts = DataParts(compose(folder(tmp_path), f"transform.train.decode.size={size}"))
    fetch = Fetch(parts.train.dataset, parts.train.transform, SaysShared(), 0)
    for backend, shared in (("process", shares), ("main", False)):
        with Loader(parts.train.plan, fetch, LoaderOptions(backend, 1)) as loader:
            batch = next(iter(loader))
        assert batch["shared"] is shared
        assert batch["image"].shape == (5, 3, size, size)


def test_fast_has_threads_where_steps_are_safe_in_them(tmp_path):
    root = folder(tmp_path)
    with DataParts(compose(root, "loader=fast", "loader.num_workers=2")).train.loader() as loader:
        assert loader.options.backend == "thread"
        for _ in loader.epoch(0):
            np.random.beta(1, 1)  # as MixUp in a training loop does
    with DataParts(
        compose(root, "transform=images", "loader=fast", "loader.num_workers=2")
    ).train.loader() as loader:
        assert loader.options.backend == "process"


@both
def test_the_decoder_is_in_the_fingerprint(tmp_path):
    root = folder(tmp_path)
    prints = [
        DataParts(compose(root, f"transform.train.decode.decoder={name}")).train.fingerprint
        for name in ("native", "pure")
    ]
    assert [one["decoder"] for one in prints] == ["native", "pure"]
    assert "decoder" not in DataParts(compose(root, "transform=images")).train.fingerprint


@pytest.mark.parametrize(
    "pixels",
    [
        torch.zeros(4, 9, 9, dtype=torch.uint8),
        torch.zeros(3, 9, 9),
        torch.zeros(3, 1, 9, 9, dtype=torch.uint8),
    ],
)
@pytest.mark.parametrize("decoder", DECODERS)
def test_pictures_of_another_kind_are_refused(decoder, pixels):
    with pytest.raises(DataError, match=r"takes uint8 pictures \[3, H, W\], not torch"):
        DecodeResize(8, decoder=decoder)({"image": tv_tensors.Image(pixels)})


@pytest.mark.parametrize(
    ("steps", "batch"),
    [
        ({}, {"normalize": BatchNormalize()}),
        ({"decode": DecodeResize(8)}, {}),
        ({"decode": DecodeResize(8)}, {"normalize": BatchNormalize({"mean": [0], "std": [1]})}),
        ({"none": Normalize()}, {"normalize": BatchNormalize()}),
    ],
)
def test_steps_that_are_not_done_while_decoding(steps, batch):
    given = Compose(steps), BatchCompose(batch, 0)
    assert image_decoding.fused(*given) == given
