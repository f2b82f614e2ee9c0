"""What tells data from other data: by names, sizes or content; and code from other code."""

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

import penstock
from penstock.addons.audio.pairs import AudioPairs
from penstock.addons.audio.spoken_digits import SpokenDigits
from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.packs.packed import Packed
from penstock.addons.shards.tar_shards import TarShards
from penstock.addons.tables.stream import DelimitedStream, ParquetStream
from penstock.addons.tables.table import DelimitedText, Parquet
from penstock.build.data import DataParts
from penstock.datasets.arrays import Arrays
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.sequences import Sequences
from penstock.errors import ConfigError
from penstock.runs import identity
from penstock.runs.identity import UNKNOWN, UNREADABLE, changes, code_of, digests, fingerprint_of
from tests.program import run
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


def pairs(root):
    root.mkdir(parents=True)
    for number in range(8):
        for ending in ("wav", "npy"):
            (root / f"{number}.{ending}").write_bytes(random.Random(number).randbytes(60))


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
    "arrays": (arrays, lambda root: Arrays(str(root)), (200, 15000)),
    "sequences": (sequences, lambda root: Sequences(str(root)), (200, 300)),
    "spoken_digits": (recordings, lambda root: SpokenDigits(str(root)), (0, 60)),
    "audio_pairs": (pairs, lambda root: AudioPairs(str(root)), (0, 60)),
    "delimited_text": (
        text,
        lambda root: DelimitedText(str(root), file="a.tsv", cache_dir=f"{root}-cache"),
        (12, 16),
    ),
    "delimited_stream": (text, lambda root: DelimitedStream(str(root), **TEXT_OPTIONS), (12, 16)),
    "tar_shards": (archive, lambda root: TarShards(str(root)), (512, 516)),
    "parquet": (table, lambda root: Parquet(str(root)), (40, 60)),
    "parquet_stream": (table, lambda root: ParquetStream(str(root)), (40, 60)),
    "mixture": (
        images,
        lambda root: Mixture({"one": ImageFolder(str(root)), "two": ImageFolder(str(root))}),
        (60, 200),
    ),
}
SOFT = ("spoken_digits", "audio_pairs")  # need soundfile


def prints(dataset, cache):
    return {mode: fingerprint_of(dataset, mode, cache) for mode in ("names", "sizes", "content")}


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
    before = prints(read(tmp_path / "here"), tmp_path / "cache")
    assert len(set(before.values())) == 3
    there = tmp_path / "deep" / "er" / "there"
    shutil.copytree(tmp_path / "here", there)
    for path in there.rglob("*.*"):
        os.utime(path, (1e9, 1e9))
    assert prints(read(there), tmp_path / "cache") == before
    files = sorted({Path(file[1]) for file in read(there).data_files()})
    draw = random.Random(kind)
    for _ in range(5):
        path, place = draw.choice(files), draw.randrange(first, last)
        flip(path, place)
        after = prints(read(there), tmp_path / "cache")
        assert after["names"] == before["names"]
        assert after["content"] != before["content"], (path, place)
        flip(path, place)
    assert prints(read(there), tmp_path / "other") == before
    assert prints(read(tmp_path / "here"), tmp_path / "cache") == before


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


@pytest.fixture
def some(tmp_path):
    paths = [tmp_path / "some" / f"{number}" for number in range(5)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode() * 9000)
    return [str(path) for path in paths]


def test_a_file_is_hashed_once(some, tmp_path, monkeypatch):
    before = digests(some, tmp_path, settled=0)
    assert len(set(before)) == 5
    hashed = []
    read = identity._Hashing.of
    monkeypatch.setattr(
        identity._Hashing, "of", lambda self, path: hashed.append(path) or read(self, path)
    )
    assert digests(some, tmp_path, settled=0) == before
    assert hashed == []
    flip(Path(some[2]), 100)
    after = digests(some[1:], tmp_path, settled=0)
    assert hashed == [some[2]]
    assert [one == other for one, other in zip(after, before[1:], strict=True)] == [
        True,
        False,
        True,
        True,
    ]


def test_files_that_changed_a_moment_ago_are_hashed_again(some, tmp_path, monkeypatch):
    before = digests(some, tmp_path, settled=3600)
    hashed = []
    read = identity._Hashing.of
    monkeypatch.setattr(
        identity._Hashing, "of", lambda self, path: hashed.append(path) or read(self, path)
    )
    assert digests(some, tmp_path, settled=3600) == before
    assert len(hashed) == 5


def test_what_is_kept_may_be_damaged_or_nowhere_to_keep(some, tmp_path, caplog):
    before = digests(some, tmp_path, settled=0)
    [kept] = (tmp_path / "fingerprints").glob("files-*.sqlite")
    for content in (b"no database" * 900, kept.read_bytes()[:5000]):
        kept.write_bytes(content)
        assert digests(some, tmp_path, settled=0) == before
    (tmp_path / "file").write_text("")
    assert digests(some, tmp_path / "file", settled=0) == before
    assert "each start hashes all files" in caplog.text


def test_what_is_no_readable_file_keeps_nothing_waiting(some, tmp_path):
    odd = [tmp_path / "some" / name for name in ("link", "loop", "folder")]
    odd[0].symlink_to("nowhere")
    odd[1].symlink_to("loop")
    odd[2].mkdir()
    found = digests([*some, *map(str, odd)], tmp_path, settled=0)
    assert found[5:] == [UNREADABLE] * 3
    assert UNREADABLE not in found[:5]


def test_a_dangling_image_is_part_of_the_content(tmp_path):
    images(tmp_path / "data")
    before = fingerprint_of(ImageFolder(str(tmp_path / "data")), "content", tmp_path)
    data = ImageFolder(str(tmp_path / "data"))
    path = Path(data.path(3))
    content = path.read_bytes()
    path.unlink()
    path.symlink_to("gone.png")
    after = fingerprint_of(ImageFolder(str(tmp_path / "data")), "content", tmp_path)
    assert after != before
    path.unlink()
    path.write_bytes(content)
    assert fingerprint_of(ImageFolder(str(tmp_path / "data")), "content", tmp_path) == before


def test_a_store_vouches_for_content(tmp_path):
    images(tmp_path / "data")
    with bucket(tmp_path / "data", tmp_path / "files") as (shelf, files):

        def far():
            data = ImageFolder("s3://data", files=replace(files))
            return fingerprint_of(data, "content", tmp_path)

        before = far()
        assert far() == before
        shelf.files["data/a/00.png"] += b"more"
        shelf.etags.clear()
        assert far() != before
        assert not shelf.requests["GET"], "nothing is fetched"


class Own:
    def __init__(self, root="own", split="train"):
        self.paths = sorted(map(str, Path(root).glob("*.bin")))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return {"x": len(Path(self.paths[index]).read_bytes())}


class OwnWithPaths(Own):
    def path(self, index):
        return self.paths[index]


def test_a_dataset_of_ones_own_is_recognised_by_its_paths(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for number in range(4):
            (tmp_path / folder / f"{number}.bin").write_bytes(bytes([number] * 10))
    one, two = (OwnWithPaths(tmp_path / name) for name in ("one", "two"))
    told = fingerprint_of(one, "content", tmp_path)
    assert told == fingerprint_of(two, "content", tmp_path)
    assert fingerprint_of(one, "sizes", tmp_path) == "4"
    flip(tmp_path / "two" / "3.bin", 9)
    assert told != fingerprint_of(two, "content", tmp_path)
    lacking = [
        (Own(tmp_path / "one"), "content", "data_files"),
        (one, "names", "names_fingerprint"),
        (Mixture({"a": one}), "content", "names_fingerprint"),
    ]
    for dataset, mode, lacks in lacking:
        with pytest.raises(ConfigError, match=rf"data\.fingerprint: .*{lacks}"):
            fingerprint_of(dataset, mode, tmp_path)
    one.path = lambda index: f"row {index} of a database"
    with pytest.raises(ConfigError, match="does not list"):
        fingerprint_of(one, "content", tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["dataset=arrays", "dataset.root=x", "data.fingerprint=contents"],
            "got 'contents'",
        ),
        (
            ["dataset=arrays", "dataset.root=x", "data.fingerprint=null"],
            "got null",
        ),
        (["dataset=arrays", "dataset.root=x", "data.fingerprint=[content]"], "content"),
    ],
)
def test_preflight(words, message, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    with pytest.raises(ConfigError, match=rf"(?s)data\.fingerprint: .*{message}"):
        penstock.compose(*words)


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


@pytest.mark.thorough
def test_a_replaced_image_is_recognised_by_content_and_not_by_sizes(data, capsys):
    train = ImageFolder("data").names.tolist()
    image = data / train[0].decode()
    for mode in ("sizes", "content"):
        done = fit(capsys, f"data.fingerprint={mode}", f"run_dir={mode}")
        assert done.code == 0, done.err
        manifest = json.loads(Path(mode, "manifest.json").read_text())
        assert manifest["data"]["fingerprint"] == mode
        assert manifest["data"]["train"] == manifest["fingerprint"]["dataset"]
    replaced(image)
    assert run(capsys, "resume=sizes", "trainer.max_steps=3").code == 0
    refused = run(capsys, "resume=content", "trainer.max_steps=3")
    assert refused.code == 2
    assert f"dataset: {train[0].decode()!r} has other content; its fingerprint is" in refused.err
    assert "resume_despite=[dataset]" in refused.err
    done = run(capsys, "resume=content", "trainer.max_steps=3", "resume_despite=[dataset]")
    assert done.code == 0, done.err


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("then", "now"), [("sizes", "content"), ("content", "sizes"), ("names", "content")]
)
def test_a_run_may_tell_its_data_in_another_way_from_now_on(then, now, data, capsys):
    assert fit(capsys, f"data.fingerprint={then}", "run_dir=run").code == 0
    done = resume(capsys, f"data.fingerprint={now}")
    assert done.code == 0, done.err
    assert f"the data is that of the run by {then}" in done.err
    image = data / ImageFolder("data").names[0].decode()
    image.rename(image.with_name("new.png"))
    refused = run(capsys, "resume=run", "trainer.max_steps=4", f"data.fingerprint={then}")
    assert refused.code == 2
    assert "dataset: " in refused.err


@pytest.mark.thorough
def test_a_pack_is_made_again_of_a_replaced_image(data, capsys):
    def packed():
        words = [
            "dataset=image_folder",
            "dataset.root=data",
            "data.fingerprint=content",
            "data.packed=auto",
            "cache_dir=cache",
            "transform.train.normalize=null",
            "transform.val.normalize=null",
            "trainer.progress=none",
            "loader=threads",
        ]
        parts = DataParts(penstock.compose(*words))
        assert isinstance(parts.train.dataset, Packed)
        return parts.train.dataset.pack.folder, parts.train.fingerprint

    folder, told = packed()
    assert packed() == (folder, told)
    assert told["data.fingerprint"] == "content"
    replaced(data / ImageFolder("data").names[0].decode())
    assert packed()[0] != folder
    assert packed()[1] != told


@pytest.mark.thorough
def test_verify_says_how_data_was_identified_and_which_code_differs(data, capsys):
    for mode in ("sizes", "content"):
        assert fit(capsys, f"data.fingerprint={mode}", f"run_dir={mode}").code == 0
    shutil.copytree("content", "third")
    manifest = json.loads(Path("third/manifest.json").read_text())
    manifest["fingerprint"]["dataset"] = manifest["data"]["train"] = "0" * 32
    manifest["code"]["dataset"]["penstock"] = "0" * 16
    Path("third/manifest.json").write_text(json.dumps(manifest))

    def rows(first, second):
        out = run(capsys, "task=diff", f"runs=[{first},{second}]").out
        return {line.split()[0]: line for line in out.splitlines() if line}

    found = rows("sizes", "content")
    assert found["data.fingerprint"].split()[1:] == ["sizes", "content"]
    assert "data.train" in found
    found = rows("content", "third")
    assert "data.fingerprint" not in found
    assert {"data.train", "code.dataset.penstock"} <= found.keys()


OWN_STEP = """
from {package}.parts import double

class Step:
    def __call__(self, sample):
        return double(sample)
"""


@pytest.mark.thorough
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
        assert {f"{package.name}.steps", f"{package.name}.parts"} <= code["transform.train"].keys()
        done = resume(capsys)
        assert done.code == 0, done.err
        assert "has changed" not in done.err
        (package / "parts.py").write_text("def double(sample):\n    return dict(sample)\n")
        done = run(capsys, "resume=run", "trainer.max_steps=4")
        assert done.code == 0, done.err
        before = code["transform.train"][f"{package.name}.parts"]
        [line] = [line for line in done.err.splitlines() if "has changed" in line]
        assert line.startswith(f"transform.train: the code of {package.name}.parts has changed")
        assert before in line
        done = run(capsys, "resume=run", "trainer.max_steps=5")  # said once
        assert "has changed" not in done.err
    finally:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]


def test_code_without_a_file_is_unknown_and_torch_is_left_out(monkeypatch):
    notebook = types.ModuleType("notebook_of_a_person")
    notebook.Typed = type("Typed", (OwnWithPaths,), {"__module__": notebook.__name__})
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    monkeypatch.setenv("PENSTOCK_TRUST", notebook.__name__)
    config = penstock.compose("dataset=arrays", "dataset.root=x")
    node = {"_target_": f"{notebook.__name__}.Typed"}
    code = code_of(config.model_copy(update={"dataset": node}))
    assert code["dataset"][notebook.__name__] == UNKNOWN
    assert code["dataset"]["tests.runs.test_fingerprints"] != UNKNOWN
    assert not [name for part in code.values() for name in part if name.startswith("torch")]


@pytest.mark.parametrize("before", [None, [], "x", {"dataset": None}, {"dataset": {"a": 3}}])
def test_a_manifest_may_say_anything_of_its_code(before):
    assert list(changes(before, {"dataset": {"a": "1" * 16}})) == []
