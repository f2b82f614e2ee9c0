"""Packing: once, whole or not at all, by one writer, in bounded memory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset
from torchvision import tv_tensors

import penstock
from penstock.addons.packs.folder import Pack, Packed
from penstock.addons.packs.packing import Recipe, pack, pack_of
from penstock.build.data import DataParts
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.workers.executors import LoaderOptions
from penstock.transforms import native_images
from penstock.transforms.image_decoding import DecodeResizeCenterCrop
from tests.support import warm
from tests.support.face_folder import write_faces
from tests.support.pack_files import Changing, Drawing, Everything, Large, write_images
from tests.support.program import ROOT, run

MAIN = LoaderOptions("process", 0)


def started(*arguments):
    """`python -m tests.support.pack_files ...`, when it has begun to pack.

    Unbuffered, since a buffer that read on would keep the next line from `communicate`.
    """
    command = [sys.executable, "-m", "tests.support.pack_files", *map(str, arguments)]
    process = warm.start(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"packing\n"
    return process


def hidden(cache):
    return [path for path in (cache / "packed").glob(".*") if path.is_dir()]


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_files_are_plain_npy(tmp_path):
    folder = pack(Everything(even=True), "train", Recipe(), tmp_path, options=MAIN)
    image = np.load(folder / "image.npy", mmap_mode="r")
    assert image.shape == (20, 12, 16, 3)
    assert np.load(folder / "label.npy").tolist() == [0, 1] * 10
    record = json.loads((folder / "pack.json").read_text())
    assert record["count"] == 20
    assert record["files"]["image.npy"] == (folder / "image.npy").stat().st_size
    assert hidden(tmp_path) == []


def test_what_is_there_is_not_made_again(tmp_path):
    folder = pack(Everything(), "train", Recipe(), tmp_path, options=MAIN)
    before = (folder / "pack.json").stat().st_mtime_ns
    assert pack(Everything(), "train", Recipe(), tmp_path, options=MAIN) == folder
    assert (folder / "pack.json").stat().st_mtime_ns == before
    assert pack(Everything(salt=1), "train", Recipe(), tmp_path, options=MAIN) != folder


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [LoaderOptions("process", 2), LoaderOptions("thread", 2), MAIN])
def test_every_backend_packs_the_same_bytes(tmp_path, options):
    reference = pack(Everything(), "train", Recipe(), tmp_path / "a", options=MAIN)
    other = pack(Everything(), "train", Recipe(), tmp_path / "b", options=options)
    for path in reference.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name


@pytest.mark.stress
def test_of_two_writers_the_second_uses_what_the_first_made(tmp_path):
    writers = [started("slow", 150, tmp_path) for _ in range(2)]
    results = [writer.communicate(timeout=600) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], results
    places = {out.decode().splitlines()[0] for out, _ in results}
    assert len(places) == 1
    written = [path for path in (tmp_path / "packed").iterdir() if path.name[0] != "."]
    assert [str(path) for path in written] == list(places)
    assert len(Packed(places.pop())) == 150


def test_after_sigkill_packing_begins_anew_and_clears_up(tmp_path):
    writer = started("large", 4000, tmp_path)
    wait_for(lambda: (tmp_path / "packed").is_dir() and hidden(tmp_path))
    wait_for(lambda: any(path.stat().st_size > 10 << 20 for path in hidden(tmp_path)[0].iterdir()))
    os.killpg(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert hidden(tmp_path)
    assert not [path for path in (tmp_path / "packed").iterdir() if path.name[0] != "."]
    folder = pack(Large(4), "train", Recipe(), tmp_path, options=MAIN)  # of the same name
    assert hidden(tmp_path) == []
    assert len(Packed(str(folder))) == 4


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_dataset(tmp_path):
    """600 MiB of pictures; this process keeps the batches that two workers are ahead."""
    process = started("large", 600, tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    place, grown = out.decode().splitlines()
    assert (Path(place) / "image.npy").stat().st_size > 600 << 20
    assert int(grown) < 150 << 10  # KiB


def test_a_full_disk_is_reported_and_nothing_remains(tmp_path):
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "from tests.support.pack_files import Large\n"
        "from penstock.addons.packs.packing import pack\n"
        "from penstock.addons.packs.packing import Recipe\n"
        "from penstock.errors import DataError\n"
        "from penstock.loading.workers.executors import LoaderOptions\n"
        "options = LoaderOptions('thread', 2)\n"
        "try:\n    pack(Large(8), 'train', Recipe(), sys.argv[1], options=options)\n"
        "except DataError as error:\n    print(error)\n"
    )
    done = warm.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in done.stdout
    assert "pack.out" in done.stdout
    assert hidden(tmp_path) == []


class Given(Everything):
    """Every sample is the one that is given, or an error."""

    def __init__(self, sample, **more):
        super().__init__(**more)
        self.sample = sample

    def __getitem__(self, index):
        if isinstance(self.sample, Exception):
            raise self.sample
        return self.sample


class Letters(IterableDataset):
    def __iter__(self):
        return iter("abc")


def nameless():
    dataset = Everything()
    del dataset.fingerprint
    return dataset


REFUSED = {
    "draws": (Drawing, {}, r"draws from torch.*Draw in a transform"),
    "a stream": (Letters, {}, "a stream is only read forwards"),
    "no fingerprint": (nameless, {}, "has no `fingerprint`"),
    "gone": (lambda: Given(FileNotFoundError("x.bin")), {}, r"sample 0 .*FileNotFoundError.*x\.b"),
    "other fields": (Changing, {}, r"sample 5 .*cannot be packed.*'x' is tensor of int32"),
    "no array": (lambda: Given({"x": {"nested": 1}}), {}, "field 'x' is a dict"),
    "no picture": (lambda: Given({"label": 1}), {"size": 32}, "hold no torchvision Image"),
    "no file": (lambda: Given({"label": 1}), {"format": "encoded"}, "no undecoded pictures"),
    "no sample": (lambda: Everything(0), {}, r"data\.packed: Everything has no samples in the sp"),
    "no field": (lambda: Given({}), {}, "samples have no fields, so there is nothing to pack"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_packed_is_named_and_nothing_remains(tmp_path, kind):
    dataset, recipe, message = REFUSED[kind]
    with pytest.raises((ConfigError, DataError), match=message):
        pack(dataset(), "train", Recipe(**recipe), tmp_path, options=MAIN)
    assert hidden(tmp_path) == []


@pytest.mark.thorough
def test_pictures_are_made_smaller_with_their_points(tmp_path):
    folder = pack(Everything(), "train", Recipe(size=6), tmp_path, options=MAIN)
    packed = Packed(str(folder))
    assert {tuple(packed[row]["image"].shape) for row in range(20)} == {(3, 6, 6)}
    assert packed[3]["points"].canvas_size == (6, 6)


@pytest.fixture
def images(tmp_path):
    root = write_images(tmp_path / "images")
    return root, [
        "dataset=image_folder",
        f"dataset.root={root}",
        "loader=debug",
        f"cache_dir={tmp_path / 'cache'}",
        "batch.size=4",
    ]


@pytest.mark.thorough
def test_a_new_file_is_packed_too(capsys, tmp_path, images):
    root, overrides = images
    first = run(capsys, "task=pack", *overrides)
    again = run(capsys, "task=pack", *overrides)
    assert first.code == 0, first.err
    assert again.out == first.out
    assert "writing" in first.err
    assert "writing" not in again.err
    count = sum(int(line.split()[1]) for line in first.out.splitlines())
    assert count == 12
    write_images(root, 14)
    more = run(capsys, "task=digest", "data.packed=auto", *overrides)
    assert more.code == 0, more.err
    assert more.out == run(capsys, "task=digest", *overrides).out
    third = run(capsys, "task=pack", *overrides)
    assert sum(int(line.split()[1]) for line in third.out.splitlines()) == 14


def test_a_folder_of_ones_own_is_not_written_over(capsys, tmp_path, images):
    _, overrides = images
    out = tmp_path / "out"
    assert run(capsys, "task=pack", f"pack.out={out}", *overrides).code == 0
    other = run(capsys, "task=pack", f"pack.out={out}", "pack.size=32", *overrides)
    assert other.code == 2
    assert "holds other samples than these" in other.err
    (tmp_path / "mine" / "train").mkdir(parents=True)
    (tmp_path / "mine" / "train" / "letter.txt").write_text("keep me")
    foreign = run(capsys, "task=pack", f"pack.out={tmp_path / 'mine'}", *overrides)
    assert foreign.code == 2
    assert "is not a pack" in foreign.err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.packed=3"], "data.packed: Input should be a valid string, got 3"),
        (["data.packed=auto", "pack.format=encoded", "pack.size=8"], "pack.size: 8 would"),
        (["pack.size=0"], "pack.size: Input should be greater than or equal to 1, got 0"),
        (["pack.format=jpeg"], "pack.format: Input should be 'pixels' or 'encoded', got 'jpeg'"),
    ],
)
def test_what_cannot_be_meant_is_refused_beforehand(capsys, tmp_path, overrides, message):
    done = run(capsys, "dataset=image_folder", f"dataset.root={tmp_path}", *overrides)
    assert done.code == 2
    assert message in done.err


def test_a_pack_of_another_version_is_refused(tmp_path):
    folder = pack(Everything(), "train", Recipe(), tmp_path, options=MAIN)
    record = json.loads((folder / "pack.json").read_text())
    (folder / "pack.json").write_text(json.dumps({**record, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        Pack(folder)


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures of several sizes, turned and not, two of them no JPEG files."""
    random = np.random.default_rng(0)
    for number in range(14):
        width, height = (int(side) for side in random.integers(60, 200, 2))
        small = random.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), np.uint8)
        image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        tags = Image.Exif()
        tags[0x0112] = number % 8 + 1
        if number in (4, 9):
            image.save(path.with_suffix(".png"))
        else:
            image.save(path.with_suffix(".jpg"), exif=tags, quality=95)
    words = ["dataset=image_folder", f"dataset.root={tmp_path / 'photos'}", "batch.size=4"]
    words += ["data.split.val=0.0", f"cache_dir={tmp_path / 'cache'}", "pack.size=48"]
    return [*words, "loader.num_workers=2"]


built = pytest.mark.skipif(native_images.module("jpeg") is None, reason="C was not built")


@pytest.mark.thorough
@built
def test_squares_are_those_of_the_decoder_of_a_part(photos):
    packed = Packed(str(pack_of(DataParts(penstock.compose(*photos), World()).train)))
    files = DataParts(penstock.compose(*photos, "transform=images_fast"), World()).train.dataset
    assert (packed.record["recipe"], len(packed)) == (["pixels", 48, True, "native"], 14)
    assert packed.fingerprint != files.fingerprint
    step = DecodeResizeCenterCrop(48, 48)
    for row in range(len(packed)):
        assert torch.equal(packed[row]["image"], step(files[row])["image"])
        assert type(packed[row]["image"]) is tv_tensors.Image


def test_points_move_along(capsys, tmp_path):
    root = write_faces(tmp_path / "faces")
    given = f"dataset.root={root}", "pack.size=32", f"cache_dir={tmp_path}", "split=train"
    assert run(capsys, "task=pack", "dataset=face_landmarks", "loader=debug", *given).code == 0
    (folder,) = (tmp_path / "packed").glob("[!.]*")
    sample = Packed(str(folder))[0]
    assert sample["image"].shape == (3, 32, 32)
    assert sample["landmarks"].canvas_size == (32, 32)


@built
def test_a_damaged_file_among_squares_is_named(capsys, tmp_path, photos):
    bad = sorted((tmp_path / "photos").rglob("*.jpg"))[5]
    bad.write_bytes(bad.read_bytes()[:400])
    done = run(capsys, "task=pack", "split=train", *photos)
    assert done.code == 3
    assert str(bad) in done.err
    assert [path.name for path in (tmp_path / "cache" / "packed").glob("[!.]*")] == []


@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_a_bad_sample_ends_packing_whatever_training_does(tmp_path, capsys, on_error):
    root = write_images(tmp_path / "images")
    path = next(root.rglob("*.jpg"))
    path.write_bytes(path.read_bytes()[:200])
    done = run(
        capsys,
        "dataset=image_folder",
        f"dataset.root={root}",
        "data.packed=auto",
        "task=digest",
        f"cache_dir={tmp_path}/cache",
        "loader=debug",
        f"bad_samples.on_error={on_error}",
        "bad_samples.budget=1.0" if on_error != "raise" else "bad_samples.budget=0.01",
    )
    assert done.code == 3, done.err
    assert str(path) in done.err
    assert "a pack has every row, and leaves none out" in done.err
