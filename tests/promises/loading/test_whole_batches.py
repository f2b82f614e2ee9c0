"""Batches that are made at once are those that are made sample by sample, to the bit."""

import os
import random
import signal
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

import penstock
from penstock.addons.filters.rows import KeptRows
from penstock.addons.packs.folder import Packed
from penstock.addons.packs.packing import Recipe, pack
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.reading.base import Shares
from penstock.errors import DataError
from penstock.loading import worker_status
from penstock.loading.bad_samples import BadSamples
from penstock.loading.collate import Stack
from penstock.loading.fetch import Compose, Fetch
from penstock.loading.loader import Loader, LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential
from penstock.transforms import native_images
from penstock.transforms.batch_colors import BatchNormalize
from penstock.transforms.image_decoding import (
    DecodeRandomResizedCrop,
    DecodeResize,
    DecodeResizeCenterCrop,
)

pytestmark = pytest.mark.skipif(
    native_images.module("jpeg") is None, reason="the native decoder was not built"
)

STEPS = {
    "random": lambda: DecodeRandomResizedCrop([40, 32]),
    "floats": lambda: DecodeRandomResizedCrop([40, 32]).normalizing(BatchNormalize()),
    "centre": lambda: DecodeResizeCenterCrop(24, 30),
    "whole": lambda: DecodeResize([20, 50]),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """JPEG files of many sizes and turns, and a few that C leaves to others."""
    folder = tmp_path_factory.mktemp("pictures")
    draws = np.random.default_rng(0)
    for number in range(24):
        width, height = (int(side) for side in draws.integers(8, 200, 2))
        small = draws.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
        image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
        path = folder / "ab"[number % 2] / f"{number:02}"
        path.parent.mkdir(exist_ok=True)
        tags = Image.Exif()
        tags[0x0112] = number % 8 + 1
        if number in (5, 6):
            image.save(path.with_suffix(".png"))
        else:
            image.convert("CMYK" if number == 9 else "RGB").save(
                path.with_suffix(".jpg"), exif=tags, quality=90
            )
    return folder


def fetch(dataset, step, kind=Fetch, **more):
    return kind(dataset, Compose({"decode": step}), Stack(), seed=3, **more)


def requests(dataset, size=7):
    plan = Plan(Random(len(dataset), 5), size)
    return [plan.request(0, step, 0, 1) for step in range(len(dataset) // size)]


class OneByOne(Fetch):
    """Makes no batch at once."""

    at_once = False


def assert_same(dataset, step):
    work = fetch(dataset, step)
    at_once = [work(request) for request in requests(dataset)]
    assert all("transform" in batch.timing for batch in at_once)
    by_sample = fetch(dataset, step, OneByOne)
    one_by_one = [by_sample(request) for request in requests(dataset)]
    for batch, other in zip(at_once, one_by_one, strict=True):
        assert list(batch) == list(other)
        assert batch.kinds == other.kinds
        for name, value in batch.items():
            assert type(value) is type(other[name])
            assert value.dtype == other[name].dtype
            assert torch.equal(value, other[name]), name


def is_made_at_once(work, request):
    """Whether no sample was transformed by itself."""
    calls = []
    step = work.transform.steps["decode"]
    work.transform.steps["decode"] = spy = type(
        "Spy",
        (type(step),),
        {"__call__": lambda self, sample: calls.append(1) or type(step).__call__(self, sample)},
    )(step.size)
    spy.__dict__.update(step.__dict__)
    work(request)
    return not calls


@pytest.mark.parametrize("step", STEPS)
def test_files(root, step):
    dataset = ImageFolder(str(root), "train", shares=Shares(0.0), lazy=True)
    assert_same(dataset, STEPS[step]())
    assert is_made_at_once(fetch(dataset, DecodeResize(20)), requests(dataset)[0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [None, 48])
@pytest.mark.parametrize("step", STEPS)
def test_packed_pixels_stay_where_they_are(root, step, size, tmp_path):
    dataset = ImageFolder(str(root), "train", shares=Shares(0.0))
    packed = Packed(str(pack(dataset, "train", Recipe(size), str(tmp_path))))
    assert packed.fetches_pictures
    assert packed.fetches_batches == (size is not None)
    assert_same(packed, STEPS[step]())
    assert is_made_at_once(fetch(packed, DecodeResize(20)), requests(packed)[0])


def test_packed_files(root, tmp_path):
    dataset = ImageFolder(str(root), "train", shares=Shares(0.0), lazy=True)
    packed = Packed(str(pack(dataset, "train", Recipe(format="encoded"), str(tmp_path))), lazy=True)
    assert not packed.fetches_pictures
    assert_same(packed, STEPS["random"]())
    assert is_made_at_once(fetch(packed, DecodeResize(20)), requests(packed)[0])


def test_a_training_loop_may_draw_while_threads_decode(root):
    """As mixup of a person's own does: what draws is not the data, so nothing is refused."""

    def batches(loader):
        data = ["dataset=image_folder", f"dataset.root={root}", "batch.size=4"]
        steps = ["transform=images_fast", "transform.train.decode.size=32"]
        config = penstock.compose(*data, *steps, *loader)
        with penstock.build_train_loader(config) as loader:
            for batch in loader:
                np.random.beta(1, 1), random.random(), torch.rand(1)
                yield batch["image"]
            yield loader.options.backend

    *expected, backend = batches(["loader=debug"])
    assert backend == "main"
    *found, backend = batches(["loader=fast", "loader.num_workers=2"])
    assert backend == "thread"
    assert len(found) > 3
    assert all(map(torch.equal, found, expected))


def test_a_filter_leaves_the_fast_way_as_it_is(root, tmp_path):
    dataset = ImageFolder(str(root), "train", shares=Shares(0.0))
    packed = Packed(str(pack(dataset, "train", Recipe(None), str(tmp_path))))
    for one in (ImageFolder(str(root), "train", shares=Shares(0.0), lazy=True), packed):
        kept = KeptRows(one, np.arange(len(one)) % 5 > 0, {})
        assert_same(kept, STEPS["centre"]())
        assert is_made_at_once(fetch(kept, DecodeResize(20)), requests(kept)[0])


@pytest.mark.parametrize("lazy", [True, False], ids=["raises", "decoded"])
def test_a_way_that_fails_is_tried_and_reported_once(root, lazy, monkeypatch, caplog):
    step = DecodeResize(20)
    dataset = ImageFolder(str(root), "train", shares=Shares(0.0), lazy=lazy)
    plan = Plan(Sequential(len(dataset)), 8)
    with Loader(plan, fetch(dataset, STEPS["centre"]())) as loader:
        expected = list(loader)
    calls = []

    def fail(*_):
        calls.append(1)
        raise RuntimeError("no such thing")

    caplog.clear()
    monkeypatch.setattr(step, "decode_batch", fail)
    with caplog.at_level("WARNING"), Loader(plan, fetch(dataset, step)) as loader:
        found = list(loader)
    assert len(calls) == lazy
    assert len(caplog.records) == 1
    reason = "RuntimeError: no such thing" if lazy else "TypeError: samples are not image files"
    assert f"batch (0, 0) is made sample by sample, which takes longer: {reason}" in caplog.text
    assert [b.indices.tolist() for b in found] == [b.indices.tolist() for b in expected]


class Changed(ImageFolder):
    """Samples with something else in them."""

    more: dict = {}

    def __getitem__(self, index):
        return super().__getitem__(index) | {k: make(index) for k, make in self.more.items()}


@pytest.mark.parametrize(
    ("more", "at_once"),
    [
        ({"name": str, "score": float, "both": lambda i: {"a": i, "b": [i, 2.0]}}, True),
        ({"mask": lambda i: torch.ones(2, 2) * i}, True),
        ({"image": lambda i: tv_tensors.Image(torch.zeros(3, 9, 9, dtype=torch.uint8))}, False),
    ],
    ids=["values", "tensors", "decoded"],
)
def test_other_fields(root, more, at_once, monkeypatch):
    monkeypatch.setattr(Changed, "more", more)
    dataset = Changed(str(root), "train", shares=Shares(0.0), lazy=True)
    work = fetch(dataset, DecodeResize(20))
    batch = work(requests(dataset)[0])
    assert is_made_at_once(work, requests(dataset)[0]) == at_once
    other = fetch(dataset, DecodeResize(20), OneByOne)(requests(dataset)[0])
    assert str(dict(batch)) == str(dict(other))


def test_points_and_unequal_fields_are_refused_as_ever(root, monkeypatch):
    dataset = Changed(str(root), "train", shares=Shares(0.0), lazy=True)
    points = lambda i: tv_tensors.KeyPoints([[1.0, 2.0]], canvas_size=(9, 9))  # noqa: E731
    monkeypatch.setattr(Changed, "more", {"points": points})
    with pytest.raises(DataError, match="moves no KeyPoints along"):
        fetch(dataset, DecodeResize(20))(requests(dataset)[0])
    monkeypatch.setattr(Changed, "more", {"x": lambda i: torch.zeros(i % 3 + 1)})
    with pytest.raises(DataError, match=r"sample \d+ .*field 'x': shapes"):
        fetch(dataset, DecodeResize(20))(requests(dataset)[0])


@pytest.mark.parametrize("action", ["raise", "skip", "substitute"])
def test_a_bad_file_is_found_and_reported(root, action, tmp_path):
    for path in root.rglob("*.*"):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    bad = sorted(tmp_path.rglob("*.jpg"))[4]
    bad.write_bytes(bad.read_bytes()[:300])
    dataset = ImageFolder(str(tmp_path), "train", shares=Shares(0.0), lazy=True)
    bad_samples = BadSamples(action, sampler=Sequential(len(dataset)))
    work = fetch(dataset, DecodeResize(20), bad=bad_samples)
    (row,) = [row for row in range(len(dataset)) if dataset.path(row) == str(bad)]
    (request,) = [one for one in requests(dataset, 12) if row in one.indices]
    if action == "raise":
        with pytest.raises(DataError, match=bad.name):
            work(request)
        return
    batch = work(request)
    assert [one.index for one in batch.left_out] == [row]
    assert len(batch["image"]) == (11 if action == "skip" else 12)


def test_a_worker_that_dies_in_c_is_reported_with_its_file(tmp_path, caplog):
    small = np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    (tmp_path / "a").mkdir()
    for number in range(8):
        # One takes so long that a kill meets it: a progressive file is decoded whole.
        side = (3500, 3500) if number == 5 else (60, 60)
        image = Image.fromarray(small).resize(side, Image.Resampling.NEAREST)
        image.save(tmp_path / "a" / f"{number}.jpg", progressive=number == 5, quality=95)
    dataset = ImageFolder(str(tmp_path), "train", shares=Shares(0.0), lazy=True)
    work = fetch(dataset, DecodeResize(64, reduce=False))
    killed, plan = threading.Event(), Plan(Sequential(8), 8)
    loader = Loader(plan, work, LoaderOptions("process", 1))

    def kill():
        while not killed.wait(0.002):
            pool = loader.workers.executor
            if pool and pool.statuses()[0][2:4] == (5, worker_status.TRANSFORM):
                os.kill(pool.processes()[0].pid, signal.SIGKILL)
                killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        (batch,) = loader.epoch(0)
    finally:
        was_killed = killed.is_set()
        killed.set()
        killer.join()
    assert was_killed
    assert torch.equal(batch["image"], work(plan.request(0, 0))["image"])
    (said,) = [one.getMessage() for one in caplog.records if "SIGKILL" in one.getMessage()]
    assert "at stage 'transform' of epoch 0, step 0, sample 5 (" in said
    assert "5.jpg), 6 of 8" in said
