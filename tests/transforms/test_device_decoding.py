"""Decoding whole batches: here on the CPU, by the same code that nvJPEG is reached through."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

import penstock
from penstock.build.data import DataParts
from penstock.datasets.image_folder import ImageFolder
from penstock.errors import DataError
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.order.randomness import KeyedRandom, begin_sample
from penstock.transforms.device_decoding import (
    DecodeBatchRandomResizedCrop,
    DecodeBatchResizeCenterCrop,
)
from penstock.transforms.image_decoding import DecodeRandomResizedCrop, DecodeResizeCenterCrop
from tests.broken_images import cut
from tests.program import run

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def picture(width, height, seed, mode="RGB"):
    """Smooth colours, so that crops at wrong places show and rounding does not."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (9 + seed + 3 * c) + c) + np.cos(y / (11 + seed + 2 * c)) for c in range(3)]
    pixels = (127 + 60 * np.stack(waves, -1)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


@pytest.fixture
def folder(tmp_path):
    """Pictures of every kind that a folder may hold, all of them readable."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / "a" / f"turned{orientation}.jpg"
        picture(120 + orientation, 90, orientation).save(path, quality=95, exif=exif)
    picture(80, 100, 1, "L").save(tmp_path / "b" / "grey.jpg", quality=95)
    picture(80, 100, 2, "CMYK").save(tmp_path / "b" / "cmyk.jpg", quality=95)
    picture(140, 100, 3).save(tmp_path / "b" / "picture.png")
    picture(141, 101, 4).save(tmp_path / "b" / "progressive.jpg", quality=95, progressive=True)
    return tmp_path


def batch_of(root, device):
    dataset = ImageFolder(str(root), "train", val_fraction=0.0, lazy=True)
    rows = np.arange(len(dataset))
    request = Request(0, 0, rows, rows, len(rows))
    files = [dataset[row]["image"] for row in rows.tolist()]
    label = torch.zeros(len(rows), dtype=torch.int64, device=device)
    return Batch({"image": files, "label": label}, request, rows), files


def alone(step, file, key):
    begin_sample(key)
    try:
        return step({"image": file})["image"]
    finally:
        begin_sample(None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("whole", "single"),
    [
        (
            DecodeBatchRandomResizedCrop(32),
            DecodeRandomResizedCrop(32, decoder="pure", reduce=False),
        ),
        (
            DecodeBatchResizeCenterCrop((24, 40)),
            DecodeResizeCenterCrop((24, 40), decoder="pure", reduce=False),
        ),
        (
            DecodeBatchResizeCenterCrop(32, resize=48),
            DecodeResizeCenterCrop(32, resize=48, decoder="pure", reduce=False),
        ),
    ],
    ids=["random", "centre", "resized centre"],
)
def test_pictures_are_those_of_the_decoders_on_samples(folder, device, whole, single):
    batch, files = batch_of(folder, device)
    random = KeyedRandom.of(0, 0, batch.positions, "decode")
    found = whole(batch, random)["image"]
    assert found.dtype == torch.uint8
    assert found.device.type == device
    for row, (file, key) in enumerate(zip(files, random.keys.tolist(), strict=True)):
        expected = alone(single, file, key)
        difference = (found[row].cpu().int() - expected.int()).abs().float()
        assert difference.mean() <= 1, file.name
        assert difference.max() <= 24, file.name


def test_a_row_does_not_depend_on_the_others(folder):
    batch, files = batch_of(folder, "cpu")
    step = DecodeBatchRandomResizedCrop(16)
    random = KeyedRandom.of(3, 1, batch.positions, "decode")
    together = step(batch, random)["image"]
    for row in (0, 5, 9):
        rows = np.array([row])
        one = Batch({"image": [files[row]]}, Request(0, 0, rows, rows, 1), np.array([0]))
        assert torch.equal(step(one, KeyedRandom(random.keys[rows]))["image"][0], together[row])


def test_a_batch_without_files_is_refused():
    rows = np.arange(2)
    batch = Batch({"image": torch.zeros(2, 3, 8, 8)}, Request(0, 0, rows, rows, 2), rows)
    with pytest.raises(DataError, match="holds any: take a dataset of images"):
        DecodeBatchRandomResizedCrop(8)(batch, KeyedRandom.of(0, 0, rows, "decode"))


def overrides(root, *more):
    return [
        "dataset=image_folder",
        f"dataset.root={root}",
        "dataset.val_fraction=0.0",
        "transform=images_nvjpeg",
        "transform.train_batch.decode.size=16",
        "batch.size=5",
        "trainer.device=cpu",
        *more,
    ]


@pytest.mark.thorough
def test_the_digest_does_not_depend_on_who_works(folder, capsys):
    expected = run(capsys, "task=digest", *overrides(folder, "loader=debug"))
    assert expected.code == 0, expected.err
    for loader in (
        ["loader=threads", "loader.num_workers=2"],
        ["loader=default", "loader.num_workers=2"],
        ["transform.batch_on=device", "loader=debug"],
    ):
        assert run(capsys, "task=digest", *overrides(folder, *loader)).out == expected.out


def test_the_loader_takes_threads_and_the_fingerprint_names_the_decoder(folder):
    config = penstock.compose(*overrides(folder, "loader=fast", "loader.num_workers=2"))
    parts = DataParts(config)
    with parts.train.loader() as loader:
        assert loader.options.backend == "thread"
    assert parts.train.fingerprint["decoder"] == "torchvision on cpu"


def test_a_damaged_file_is_named(folder, capsys):
    cut(folder / "a" / "turned1.jpg")
    found = run(capsys, "task=digest", *overrides(folder, "loader=threads"))
    assert found.code == 3
    assert "turned1.jpg' is truncated or damaged" in found.err
    assert "Traceback" not in found.err


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "more",
    [
        ["loader=debug"],
        ["loader=threads", "loader.num_workers=2"],
        ["loader=default", "loader.num_workers=1", "transform.batch_on=device"],
    ],
)
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_damaged_file_is_left_out_as_by_other_transforms(on_error, more, folder, capsys):
    words = overrides(folder, f"bad_samples.on_error={on_error}", "bad_samples.budget=2", *more)
    whole = run(capsys, "task=digest", *words)
    counts = [int(line.split()[2]) for line in whole.hashes]
    cut(folder / "a" / "turned1.jpg")
    found = run(capsys, "task=digest", *words)
    assert found.code == 0, found.err
    left = [int(line.split()[2]) for line in found.hashes]
    assert sum(counts) - sum(left) == (on_error == "skip")
    same = [one == other for one, other in zip(found.hashes, whole.hashes, strict=True)]
    assert same.count(False) == 1
    checked = run(capsys, "task=check", *words, "split=train", f"run_dir={folder}/run")
    assert "turned1.jpg" in checked.out


def test_a_file_that_only_its_own_reader_takes_changes_no_other_row(folder):
    step = DecodeBatchResizeCenterCrop(24)
    batch, files = batch_of(folder, "cpu")
    random = KeyedRandom.of(0, 0, batch.positions, "decode")
    whole = step(batch, random)["image"]
    torn = files[1].content[:900] + b"\xff\xd9"
    files[1] = replace(files[1], content=torn, decoder=lambda *_: tv_tensors.Image(BLACK))
    batch, _ = batch_of(folder, "cpu")
    batch["image"] = files
    found = step(batch, random)["image"]
    rows = [row for row in range(len(files)) if row != 1]
    assert torch.equal(found[rows], whole[rows])
    assert not torch.equal(found[1], whole[1])


BLACK = torch.zeros(3, 40, 40, dtype=torch.uint8)
