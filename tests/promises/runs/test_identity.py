"""What tells data from other data, by names, sizes or content; and code from other code."""

import io
import json
import os
import random
import shutil
import sys
import tarfile
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from penstock.addons.audio.recordings import SpokenDigits
from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.tables.table import MappedTable, StreamedTable
from penstock.addons.tars.tars import TarShards
from penstock.addons.vision.annotated_images import ImageMasks
from penstock.datasets.arrays import Arrays
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.reading.base import Shares
from penstock.datasets.sequences import Sequences
from penstock.errors import ConfigError
from penstock.loading.facts import NAMELESS, SomeRows
from penstock.order.address import PLACE
from penstock.runs import identity
from penstock.runs.identity import fingerprint_of
from tests.support.program import run
from tests.support.store_server import bucket

FIT = (
    "dataset=image_folder",
    "transform.train.crop.size=[8,8]",
    "batch.size=4",
    "trainer=quick",
    "trainer.max_steps=2",
    "trainer.progress=none",
    "trainer.pictures=false",
    "tracker=none",
    "trainer.baseline=false",
    "scheduler=none",
    "trainer.ledger=true",
    "loader.num_workers=0",
    "loader.prefetch_factor=null",
    "loader.persistent_workers=null",
    "cache_dir=cache",
)


def images(root):
    for number in range(12):
        path = root / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(path, compress_level=0)


def masks(root):
    for number in range(12):
        for folder in ("images", "masks"):
            path = root / folder / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 2, (9, 9), np.uint8)
            Image.fromarray(pixels).save(path, compress_level=0)


def arrays(root):
    root.mkdir(parents=True)
    np.save(root / "inputs.npy", np.random.default_rng(0).random((2000, 500)))  # 8 MB: a spread
    np.save(root / "targets.npy", np.arange(2000.0))


def sequences(root):
    root.mkdir(parents=True)
    np.save(root / "values.npy", np.random.default_rng(0).random((30, 3)))
    np.save(root / "offsets.npy", np.arange(0, 31, 3))
    np.save(root / "labels.npy", np.arange(10) % 2)


def recordings(root):
    (root / "recordings").mkdir(parents=True)
    for number in range(40):
        path = root / "recordings" / f"{number % 10}_ann_{number // 10 + 4}.wav"
        path.write_bytes(random.Random(number).randbytes(60))


def text(root):
    root.mkdir(parents=True)
    lines = (f"a text of number {number}\t{'xy'[number % 2]}\n" for number in range(40))
    (root / "a.tsv").write_text("text\tlabel\n" + "".join(lines))


def archive(root):
    root.mkdir(parents=True)
    with tarfile.open(root / "s.tar", "w") as file:
        for number in range(10):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 4
            file.addfile(info, io.BytesIO(b"abcd"))


def table(root):
    root.mkdir(parents=True)
    columns = {"text": [f"text {number}" for number in range(40)], "label": [0, 1] * 20}
    pq.write_table(pa.table(columns), root / "a.parquet", compression="none")


TEXT_OPTIONS = {"classes": ["x", "y"]}
# Kind -> (what writes the data, what reads it, places of bytes that only a sample looks at)
KINDS = {
    "image_folder": (images, lambda root: ImageFolder(str(root)), (60, 200)),
    "image_masks": (
        masks,
        lambda root: ImageMasks(str(root), ["a", "b"], shares=Shares(0.0)),
        (60, 64),
    ),
    "arrays": (arrays, lambda root: Arrays(str(root)), (200, 15000)),
    "sequences": (sequences, lambda root: Sequences(str(root)), (200, 300)),
    "spoken_digits": (recordings, lambda root: SpokenDigits(str(root)), (0, 60)),
    "delimited_text": (
        text,
        lambda root: MappedTable(str(root), file="a.tsv", text="text", cache_dir=f"{root}-cache"),
        (12, 16),
    ),
    "delimited_stream": (
        text,
        lambda root: StreamedTable(str(root), text="text", **TEXT_OPTIONS),
        (12, 16),
    ),
    "tar_shards": (archive, lambda root: TarShards(str(root)), (512, 516)),
    "parquet": (table, lambda root: MappedTable(str(root)), (40, 60)),
    "parquet_stream": (table, lambda root: StreamedTable(str(root)), (40, 60)),
    "mixture": (
        images,
        lambda root: Mixture({"one": ImageFolder(str(root)), "two": ImageFolder(str(root))}),
        (60, 200),
    ),
}
SOFT = ("spoken_digits",)  # need soundfile


def prints(dataset):
    return {mode: fingerprint_of(dataset, mode) for mode in ("names", "sizes", "content")}


def flip(path, place):
    """Change a byte of a file, and neither its size nor its age."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path):
    """Write an image of the same size in bytes and the same age over another."""
    before = path.stat()
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path, compress_level=0)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_content_is_equal_wherever_it_lies_and_any_changed_byte_is_noticed(kind, tmp_path):
    if kind in SOFT:
        pytest.importorskip("soundfile")
    write, read, (first, last) = KINDS[kind]
    write(tmp_path / "here")
    before = prints(read(tmp_path / "here"))
    assert len(set(before.values())) == 3
    there = tmp_path / "deep" / "er" / "there"
    shutil.copytree(tmp_path / "here", there)
    for path in there.rglob("*.*"):
        os.utime(path, (1e9, 1e9))
    assert prints(read(there)) == before
    files = sorted({Path(file[1]) for file in read(there).data_files()})
    if kind == "image_masks":  # all rows train
        assert files == sorted(there.rglob("*.png"))
    draw = random.Random(kind)
    for _ in range(5):
        path, place = draw.choice(files), draw.randrange(first, last)
        flip(path, place)
        after = prints(read(there))
        assert after["names"] == before["names"]
        assert after["content"] != before["content"], (path, place)
        flip(path, place)
    assert prints(read(there)) == before
    assert prints(read(tmp_path / "here")) == before


def test_sizes_stay_what_they_were():
    """The defaults of the first release: packs and quarantines are named by them."""
    data = ImageFolder.__new__(ImageFolder)
    data.reader, data.classes = "torchvision", ["a", "b"]
    data.names, data.labels = np.array([b"a/1.jpg", b"b/2.jpg"]), np.array([0, 1])
    data.folder = types.SimpleNamespace(sizes=lambda names: np.array([10, 20]))
    assert data.fingerprint == "87857cde902912e884899e60b4c36879"


def test_names_look_at_no_file(tmp_path):
    images(tmp_path / "data")
    before, after = (ImageFolder(str(tmp_path / "data")) for _ in range(2))
    names, sizes = before.names_fingerprint(), before.fingerprint
    shutil.rmtree(tmp_path / "data")
    assert after.names_fingerprint() == names
    assert after.fingerprint != sizes


def test_a_dangling_image_is_part_of_the_content(tmp_path):
    images(tmp_path / "data")
    before = fingerprint_of(ImageFolder(str(tmp_path / "data")), "content")
    data = ImageFolder(str(tmp_path / "data"))
    path = Path(data.path(3))
    content = path.read_bytes()
    path.unlink()
    path.symlink_to("gone.png")
    after = fingerprint_of(ImageFolder(str(tmp_path / "data")), "content")
    assert after != before
    path.unlink()
    path.write_bytes(content)
    assert fingerprint_of(ImageFolder(str(tmp_path / "data")), "content") == before


def test_a_store_vouches_for_content(tmp_path):
    images(tmp_path / "data")
    with bucket(tmp_path / "data", tmp_path / "files") as (shelf, files):

        def far():
            data = ImageFolder("s3://data", files=replace(files))
            return fingerprint_of(data, "content")

        before = far()
        assert far() == before
        shelf.files["data/a/00.png"] += b"more"
        shelf.etags.clear()
        assert far() != before
        assert not shelf.requests["GET"], "nothing is fetched"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of images in the working folder."""
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "data")
    return tmp_path / "data"


def fit(capsys, *words):
    return run(capsys, *FIT, "dataset.root=data", *words)


def resume(capsys, *words):
    return run(capsys, "resume=run", "trainer.max_steps=3", *words)


OWN_STEP = """
from {package}.parts import double

class Step:
    def __call__(self, sample):
        return double(sample)
"""


def test_code_that_changed_is_reported_on_resume(data, capsys, monkeypatch):
    package = Path("own_steps_of_a_person")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("def double(sample):\n    return sample\n")
    (package / "steps.py").write_text(OWN_STEP.format(package=package.name))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setenv("PENSTOCK_TRUST", package.name)
    step = f"+transform.train.own._target_={package.name}.steps.Step"
    try:
        assert fit(capsys, step, "run_dir=run").code == 0
        code = json.loads(Path("run/manifest.json").read_text())["code"]
        assert {f"{package.name}.steps", f"{package.name}.parts"} <= code.keys()
        done = resume(capsys)
        assert done.code == 0, done.err
        assert "has changed" not in done.err
        (package / "parts.py").write_text("def double(sample):\n    return dict(sample)\n")
        done = run(capsys, "resume=run", "trainer.max_steps=4")
        assert done.code == 0, done.err
        before = code[f"{package.name}.parts"]
        [line] = [line for line in done.err.splitlines() if "has changed" in line]
        assert line.startswith(f"the code of {package.name}.parts has changed")
        assert before in line
        done = run(capsys, "resume=run", "trainer.max_steps=5")  # said once
        assert "has changed" not in done.err
    finally:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]


HERE = __name__


class Rows:
    """A dataset of a person's own."""

    def __init__(
        self, root="nowhere", count=3, scale=0.5, inner=None, many=frozenset(), split="train"
    ):
        self.inner = inner

    def __len__(self):
        return 3


class Known(Rows):
    fingerprint = "f00d"


class Mixed:
    """As Penstock's mixtures: known by the datasets that it is made of."""

    def __init__(self, **sources):
        self.sources = sources


Mixed.__module__ = "penstock.own"


class Wrapped(SomeRows):
    def __init__(self, inner):
        self.dataset = inner

    def fingerprint_with(self, fingerprint):
        return f"some of {fingerprint}"


@pytest.mark.parametrize(
    ("made", "tells"),
    [
        (Known(), True),
        (Rows(), False),
        (Mixed(a=Known(), b=Known()), True),
        (Mixed(a=Known(), b=Rows()), False),
        (Wrapped(Known()), True),
        (Wrapped(Rows()), False),
    ],
)
def test_who_tells_all_of_its_content(made, tells):
    assert identity.tells_all(made) == tells
    theirs = Rows()
    theirs.sources = {"a": Known()}  # what this name means, nobody knows
    assert not identity.tells_all(theirs)


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


OWN = f"{HERE}.Rows"


def test_modes_of_a_fingerprint(tmp_path):
    made = Known()
    assert identity.fingerprint_of(made, "sizes") == "f00d"
    assert identity.fingerprint_of(Rows(), "sizes") == "3"
    assert identity.fingerprint_of(Wrapped(made), "sizes") == "some of f00d"
    made.names_fingerprint = lambda: "of names"
    assert identity.fingerprint_of(made, "names") == "of names"
    assert identity.fingerprint_of(made, "sizes") == "f00d"
    with pytest.raises(ConfigError, match=r"content needs the files .* add `data_files\(\)`"):
        identity.fingerprint_of(made, "content")
    with pytest.raises(ConfigError, match=r"names needs the files .* add `names_fingerprint\(\)`"):
        identity.fingerprint_of(Rows(), "names")
    made.data_files = lambda: [("a", str(tmp_path / "none"))]
    of_names = identity.fingerprint_of(made, "content")
    made.names_fingerprint = None
    assert identity.fingerprint_of(made, "content") != of_names


def test_code_and_arguments_of_a_dataset_of_ones_own(tmp_path):
    def facts(node, has_fingerprint=True):
        found = identity.marks_of(node, Rows(), has_fingerprint, NAMELESS)
        code = {key for key in found if key.startswith("code.")}
        return code, {key: value for key, value in found.items() if key not in code}

    node = {"_target_": OWN, "root": str(tmp_path), "count": 4, "inner": {"a": [1, 2], "b": {}}}
    code, given = facts(node)
    assert code == {f"code.{HERE}"}
    expected = {
        "arguments._target_": OWN,
        "arguments.root": PLACE,  # data may move
        "arguments.count": "4",
        "arguments.inner.a": "[1, 2]",
        "arguments.inner.b": "{}",
    }
    assert given == expected
    assert facts({**node, "root": "s3://bucket/data"})[1]["arguments.root"] == PLACE
    for root in ("nowhere", "", "\0"):
        assert facts({**node, "root": root})[1]["arguments.root"] == root
    assert facts(node, has_fingerprint=False)[1]["arguments.root"] == str(tmp_path)
    ours = {"_target_": "penstock.datasets.sequences.Sequences", "count": 3}
    assert facts(ours) == (set(), {}), "what is Penstock's own is in its fingerprint"
    assert facts({**ours, "inner": node})[1]["arguments.inner.count"] == "4"
    labels, rows = set(), Rows()
    for last in (0, 1, 1):
        rows.targets = [0, 1, last]
        labels.add(identity.marks_of(node, rows, False, NAMELESS)["labels"])
    assert len(labels) == 2


def test_which_modules_a_class_comes_from(monkeypatch):
    assert list(identity.modules_of(Known)) == [HERE]
    assert identity.modules_of(SomeRows) == {}
    assert identity.modules_of(types.SimpleNamespace) == {}  # Python's version says it
    assert list(identity.modules_of(pytest.raises)) == [pytest.raises.__module__]
    code = identity.code_of()
    assert {HERE, "tests.support.program"} <= code.keys()
    assert not {"pytest", "json", "torch", "penstock"} & {name.partition(".")[0] for name in code}
    typed = type("Typed", (), {"__module__": "a_notebook"})
    assert identity.modules_of(typed) == {"a_notebook": identity.UNKNOWN}
