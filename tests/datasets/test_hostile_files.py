"""Files that a stranger made (tests/hostile_files.py): one message, little memory, no hang."""

import json
import logging
import os
import pickle
import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.addons.packs.packed import Packed
from penstock.addons.packs.recipe import CenterCrops
from penstock.addons.shards.mds import read_index
from penstock.addons.tokens.token_files import TokenFiles
from penstock.datasets.arrays import Arrays
from penstock.datasets.audio_pairs import AudioPairs
from penstock.datasets.face_landmarks import FaceLandmarks, read_landmark_table
from penstock.datasets.files import Files, walk
from penstock.datasets.reading.audio import lengths_and_rates, read_audio
from penstock.datasets.reading.folder import LocalFolder, leads_out
from penstock.datasets.reading.image import encoded_image, read_image
from penstock.datasets.reading.mapped_array import MappedArray
from penstock.datasets.sequences import Sequences
from penstock.errors import ConfigError, DataError
from penstock.files.limits import Limits
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.order.randomness import KeyedRandom
from penstock.transforms import native_images
from penstock.transforms.device_decoding import DecodeBatchResizeCenterCrop
from penstock.transforms.image_decoding import DecodeResize
from tests import broken_images, hostile_batches, hostile_files
from tests.hostile_files import ALL, ARRAYS, AUDIO, IMAGES, SPECIAL, put, put_special
from tests.pack_files import NO_ANSWERS
from tests.program import ROOT, run

LITTLE = 200  # MB that refusing may take over what was there

soundfile = pytest.importorskip("soundfile")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(match, function, *arguments):
    with pytest.raises(DataError, match=match) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reader", ALL)
@pytest.mark.parametrize("name", IMAGES)
def test_images(tmp_path, name, reader):
    attack = IMAGES[name]
    path = tmp_path / "a.jpg"
    path.write_bytes(attack.content)
    if name == "gif of frames" and reader == "pillow":
        assert read_image(str(path), reader, limits=Limits(pixels=8000 * 8000)).shape[1] == 8000
        return
    refused(rf"image '.*a\.jpg'.*{attack.pattern(reader)}", read_image, str(path), reader)


@pytest.mark.parametrize("reader", ALL)
def test_texts_in_a_png_are_not_decompressed(tmp_path, reader):
    path = tmp_path / "a.png"
    path.write_bytes(hostile_files.TEXT_BOMB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reader == "torchvision":
        assert read_image(str(path), reader).shape == (3, 1, 1)
    else:
        refused("truncated or damaged", read_image, str(path), reader)  # Pillow's own limit
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LITTLE * 1024


@pytest.mark.parametrize("reader", ALL)
def test_the_limit_of_pixels_is_inclusive_and_can_be_raised(tmp_path, reader):
    path = tmp_path / "a.png"
    path.write_bytes(hostile_files._saved("PNG"))
    assert read_image(str(path), reader, limits=Limits(pixels=256)).shape == (3, 16, 16)
    refused(
        r"16 x 16 .*256 pixels, more than limits\.pixels=255",
        partial(read_image, limits=Limits(pixels=255)),
        str(path),
        reader,
    )


DECODERS = {
    "pure": lambda: DecodeResize(8, decoder="pure"),
    "native": lambda: DecodeResize(8, decoder="native"),
}


@pytest.mark.parametrize("limits", [Limits(), Limits(pixels=255)], ids=["default", "less"])
@pytest.mark.parametrize("way", ["pure", "native", "batch", "squares", "device"])
@pytest.mark.parametrize("attack", ["jpeg", "jpeg of scans", "png"])
def test_decoders_of_files_that_are_not_decoded_yet(tmp_path, attack, way, limits):
    if way not in ("pure", "device") and native_images.jpeg() is None:
        pytest.skip("the native decoder was not built")
    path = tmp_path / "a.jpg"
    small = limits.pixels < 256
    path.write_bytes(hostile_files._saved("JPEG") if small else IMAGES[attack].content)
    image = encoded_image(str(path), limits=limits)
    match = r"limits\.pixels=255" if small else IMAGES[attack].match
    if way in DECODERS:
        refused(match, DECODERS[way](), {"image": image})
    elif way == "batch":
        refused(match, DECODERS["native"]().decode_batch, [image], np.zeros(1, np.uint64))
    elif way == "squares":
        refused(match, CenterCrops(8), [{"image": image}])
    else:
        step = DecodeBatchResizeCenterCrop(8)
        refused(match, step, {"image": [image]}, KeyedRandom(torch.zeros(1, dtype=torch.int64)))


@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_no_file(tmp_path, name):
    make, match = SPECIAL[name]
    path = tmp_path / "a"
    make(path)
    refused(match, read_image, str(path))
    if name != "terabyte":
        refused(match, read_audio, str(path))
        refused(match, MappedArray, path, "dataset.inputs")
        refused(match, read_landmark_table, path)
        refused(match, Files().open, str(path))


@pytest.mark.parametrize("name", AUDIO)
def test_audio(tmp_path, name):
    attack = AUDIO[name]
    path = tmp_path / "a.wav"
    path.write_bytes(attack.content)
    refused(rf"audio '.*a\.wav'.*({attack.match})", read_audio, str(path))


def test_a_terabyte_of_silence_and_a_table_of_such_files(tmp_path):
    paths = put(tmp_path, AUDIO, ".wav")
    paths[-1].write_bytes(hostile_files.wav(b"", claimed=0xFFFFFFFF))
    hostile_files._sparse(paths[-1])
    refused(r"limits\.audio_seconds", read_audio, str(paths[-1]))
    lengths, rates = lengths_and_rates(LocalFolder(tmp_path), [path.name for path in paths])
    assert not lengths.any()
    assert not rates.any()


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(tmp_path, name):
    path = tmp_path / "a.npy"
    path.write_bytes(ARRAYS[name].content)
    refused(rf"a\.npy'.*({ARRAYS[name].match})", MappedArray, path, "dataset.inputs")


def save_sparse(path, shape, dtype, values=()):
    """A `.npy` file of zeros that takes no room on the disk."""
    header = hostile_files.claiming(shape, repr(dtype))
    path.write_bytes(hostile_files.npy(header, body=np.array(values, dtype).tobytes()))
    os.truncate(path, path.stat().st_size + int(np.prod(shape)) * np.dtype(dtype).itemsize)


def test_arrays_of_a_terabyte(tmp_path):
    rows = 1 << 40
    save_sparse(tmp_path / "inputs.npy", (rows,), "|u1")
    save_sparse(tmp_path / "targets.npy", (rows,), "|u1")
    refused(r"limits\.files=100000000", Arrays, ".")
    assert len(MappedArray(tmp_path / "inputs.npy", "k").fingerprint_parts(True)) == 1024 + 3
    save_sparse(tmp_path / "inputs.npy", (4, rows // 4), "|u1")
    refused(r"rows of 274877906944 bytes, more than limits\.record_bytes", Arrays, ".")
    Path("pairs").mkdir()
    save_sparse(tmp_path / "pairs/a.npy", (1, 1 << 30), "<f4")
    soundfile.write("pairs/a.wav", np.zeros(8), 8000)
    refused(r"limits\.record_bytes", AudioPairs("pairs", val_fraction=0.0).__getitem__, 0)


def test_labels_that_make_too_many_classes(tmp_path):
    np.save("inputs.npy", np.zeros((3, 2), np.float32))
    for label in (10**11, 1_000_000, 2**63 - 1):
        np.save("targets.npy", np.array([0, label, 1]))
        refused(rf"row 1: label {label} makes {label + 1} classes, .*limits\.classes", Arrays, ".")
    np.save("targets.npy", np.array([0, 2**64 - 1, 1], np.uint64))
    refused(r"limits\.classes", Arrays, ".")
    np.save("targets.npy", np.array([0, 2, 1]))
    Path("classes.txt").write_text("x\n" * 9)
    assert Arrays(".", limits=Limits(classes=9)).facts["num_classes"] == 9
    refused(r"makes 9 classes.*limits\.classes=8", partial(Arrays, limits=Limits(classes=8)), ".")
    Path("classes.txt").unlink()
    os.mkfifo("classes.txt")
    refused("it is a FIFO", Arrays, ".")


@pytest.mark.parametrize(
    "offsets",
    [
        np.array([0, 2**63 - 1, 4]),
        np.array([0, -5, 4]),
        np.array([0, 2**64 - 2, 4], np.uint64),
        np.array([0, 4, 2, 4]),
        np.array([0, 9, 4]),
        np.array([-(2**63), 2**63 - 1, 4]),
    ],
    ids=str,
)
def test_offsets_that_lead_astray(offsets):
    np.save("values.npy", np.zeros((4, 2), np.float32))
    np.save("offsets.npy", offsets)
    np.save("labels.npy", np.zeros(len(offsets) - 1, np.int64))
    refused(r"offsets\.npy'", Sequences, ".")


def test_a_sequence_that_is_too_long():
    np.save("values.npy", np.zeros((400, 2), np.float32))
    np.save("offsets.npy", np.array([0, 400]))
    np.save("labels.npy", np.zeros(1, np.int64))
    data = Sequences(".", val_fraction=0.0, limits=Limits(record_bytes=3199))
    refused(
        r"sequence 0 has 400 steps: 3200 bytes, more than limits\.record_bytes", lambda: data[0]
    )


OUT = ["../a.jpg", "/etc/passwd", "b/../../a.jpg", "..", r"..\a.jpg", r"\\host\a.jpg", "a\0.jpg"]


@pytest.mark.parametrize("name", OUT)
def test_names_that_lead_out(tmp_path, name):
    assert leads_out(name)
    (tmp_path / "faces").mkdir()
    broken_images.write_images(tmp_path, 1)[0].rename(tmp_path / "a.jpg")
    Path("faces/face_landmarks.csv").write_text(f"image_name,part_0_x,part_0_y\n{name},1,2\n")
    refused(
        "line 2, column 'image_name': .* leads out|line contains NUL|leads out",
        FaceLandmarks,
        "faces",
    )
    shard = {
        "format": "mds",
        "samples": 1,
        "column_names": [],
        "column_encodings": [],
        "raw_data": {"basename": name, "bytes": 8},
    }
    Path("index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    refused(r"names the shard .*, which leads out", read_index, "./index.json", Files(), Limits())


@pytest.mark.parametrize("name", ["a.jpg", "b/a.jpg", "a..b.jpg", "...", "x:1.jpg", "ä.jpg"])
def test_names_that_stay(name):
    assert not leads_out(name)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ("image_name,part_99999999999_x,part_99999999999_y", "'part_0_x' is missing"),
        (f"image_name,part_{'9' * 5000}_x,part_0_x", "'part_0_y' is missing"),
        (",".join(["image_name", *map(str, range(100_000))]), r"limits\.columns"),
        (",".join(["image_name", *map(str, range(60_000)), "7"]), "'7' appears twice"),
        ("x" * (1 << 23), "longer than"),
    ],
)
def test_tables_of_landmarks(tmp_path, header, match):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\na.jpg,1,2\n")
    refused(match, read_landmark_table, path)


DEEP = "[" * 100_000 + "]" * 100_000
JSON = {
    "deep": (DEEP, "not an index"),
    "deep value": (f'{{"version": 2, "shards": [{DEEP}]}}', "nested more than 100 levels"),
    "many": ("[" + "[]," * 3_000_000 + "0]", "not an index"),
    "many values": ('{"shards": [' + "[]," * 3_000_000 + "0]}", "more than 256 MiB of memory"),
    "no list": ('{"version": 2, "shards": 7}', "not an index"),
    "list of numbers": ('{"version": 2, "shards": [7]}', "not an index"),
    "null": ("null", "not an index"),
    "digits": ("1" * 5000, "not an index"),
}


@pytest.mark.parametrize("name", JSON)
def test_descriptions_in_json(tmp_path, name):
    text, match = JSON[name]
    Path("index.json").write_text(text)
    refused(match, read_index, "./index.json", Files(), Limits())
    Path("pack.json").write_text(text)
    refused("pack.json", Packed, ".")


@pytest.mark.parametrize("samples", [-1, 10**30, True, "9", None, 1.5])
def test_counts_in_an_index(samples):
    shard = {
        "format": "mds",
        "samples": samples,
        "column_names": [],
        "column_encodings": [],
        "raw_data": {"basename": "a", "bytes": 8},
    }
    Path("index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    refused("not an index", read_index, "./index.json", Files(), Limits())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"fields": [7]}, "is damaged"),
        ({"fields": [{"name": "a"}]}, "is damaged"),
        ({"files": ["a"]}, "is damaged"),
        ({"files": {"../a.npy": 1}}, "leads out"),
        ({"count": "x"}, "is damaged"),
        ({"count": -1}, "is damaged"),
        ({"count": 10**30}, "is damaged"),
        ({"path": "a"}, "is damaged"),
        ({"columns": 7}, "is damaged"),
        ({"columns": [7]}, "is damaged"),
        ({"text": 7}, "is damaged"),
        ({"text": "a"}, "is damaged"),
        ({"version": 1}, "version 1"),
    ],
)
def test_descriptions_of_packs(change, match):
    record = {
        "kind": "penstock pack",
        "version": 2,
        "count": 1,
        "fields": [],
        "files": {},
        "fingerprint": "x",
        **NO_ANSWERS,
    }
    Path("pack.json").write_text(json.dumps(record | change))
    refused(match, Packed, ".")


@pytest.mark.parametrize("file", ["../outside", "inside"])
def test_files_of_packs(tmp_path, file):
    field = {
        "name": "a",
        "file": file,
        "even": True,
        "kind": "int",
        "dtype": "<i8",
        "ndim": 0,
        "type": "",
        "attributes": {},
    }
    (tmp_path / "pack").mkdir()
    for name in ("outside.npy", "pack/outside.npy", "pack/inside.npy"):
        np.save(name, np.zeros(2, np.int64))  # the record claims other samples than there are
    sizes = {f"{name}.npy": Path("outside.npy").stat().st_size for name in (file, "inside")}
    record = {
        "kind": "penstock pack",
        "version": 2,
        "count": 10**9,
        "fields": [field],
        "files": sizes,
        "fingerprint": "x",
        **NO_ANSWERS,
    }
    Path("pack/pack.json").write_text(json.dumps(record))
    refused("leads out of the pack|must have 1000000000 rows", lambda: Packed("pack")[5])


def test_loops_of_links_end_and_each_folder_is_met_once(tmp_path, caplog):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for name in ("root/a/b", "outside", "root/empty.jpg"):
        Path(name).mkdir(parents=True)
    for name in ("root/1", "root/a/2", "root/a/b/3", "outside/4"):
        Path(name).touch()
    (root / "a/b/up").symlink_to("../..")
    (root / "also").symlink_to("a")
    (root / "self").symlink_to("self")
    (root / "out").symlink_to(outside)
    (outside / "back").symlink_to(root)
    with caplog.at_level(logging.WARNING):
        found = walk(root)
        assert walk(root) == found
    assert found == ["1", "a/2", "a/b/3", "out/4", "self"]
    assert len(caplog.records) == 1
    assert "skipped 4 folder(s)" in caplog.text
    assert "empty.jpg (a folder without files)" in caplog.text
    refused(r"limits\.files=4", partial(walk, limits=Limits(files=4)), root)


def test_links_that_double_at_every_step_end(tmp_path):
    for depth in range(40):
        folder = tmp_path / f"{depth}"
        folder.mkdir()
        for name in "ab":
            (folder / name).symlink_to(f"../{depth + 1}")
    (tmp_path / "40").mkdir()
    (tmp_path / "40/x").touch()
    assert len(walk(tmp_path / "0")) == 1


@pytest.mark.stress
def test_memory_and_time_of_refusing(tmp_path):
    put(tmp_path / "images", {n: a for n, a in IMAGES.items() if n != "gif of frames"}, ".jpg")
    (tmp_path / "images" / "text.jpg").write_bytes(hostile_files.TEXT_BOMB)
    put(tmp_path / "audio", AUDIO, ".wav")
    put(tmp_path / "arrays", ARRAYS, ".npy")
    put_special(tmp_path / "images", ".jpg")
    child = subprocess.run(
        [sys.executable, "-c", REFUSER, tmp_path],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=120,
        check=True,
    )
    taken, slowest = map(float, child.stdout.split())
    assert taken < LITTLE * 1024, f"{taken} KiB"
    assert slowest < 5


REFUSER = """
import resource, sys, time
from pathlib import Path
from penstock.datasets.reading.audio import read_audio
from penstock.datasets.reading.image import decode_image, read_image
from penstock.datasets.reading.mapped_array import MappedArray
from penstock.errors import DataError
from tests.hostile_files import good_jpeg

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

readers = "torchvision", "pillow", "skimage"
root = Path(sys.argv[1])
for reader in readers:
    decode_image(good_jpeg(), "a", reader)
works = [(read_image, str(path), one) for path in root.glob("images/*") for one in readers]
works += [(read_audio, str(path)) for path in root.glob("audio/*")]
works += [(MappedArray, path, "key") for path in root.glob("arrays/*")]
before, slowest = peak(), 0.0
for work, *arguments in works:
    start = time.process_time()
    try:
        work(*arguments)
    except DataError:
        pass
    slowest = max(slowest, time.process_time() - start)
print(peak() - before, slowest)
"""


def images_folder(root):
    """45 sound images and every attack on images, and what is bad of them."""
    broken_images.write_images(root, 45, 32)
    bad = put(root / "ant", IMAGES, ".jpg") + put_special(root / "bee", ".jpg")
    (root / "cat/loop").symlink_to("..")
    (root / "cat/folder.jpg").mkdir()
    return bad


def faces_folder(root):
    """The same with a row of a table for each."""
    bad = images_folder(root)
    names = [os.path.relpath(path, root) for path in [*root.glob("*/[0-9]*.jpg"), *bad]]
    header = [f"part_{part}_{axis}" for part in range(68) for axis in "xy"]
    rows = [",".join([name, *("9" * 136)]) for name in names]
    table = "\n".join([",".join(["image_name", *header]), *rows])
    (root / "face_landmarks.csv").write_text(table)
    return bad


def digits_folder(root):
    """Recordings, and every attack on audio."""
    attacks = {str(number): attack for number, attack in enumerate(AUDIO.values())}
    found = put(root / "recordings", attacks, ".wav") + put_special(root / "recordings", ".wav")
    bad = [path.rename(path.with_name(f"3_{path.stem}_{n}.wav")) for n, path in enumerate(found)]
    (root / "recordings/loop").symlink_to("..")
    for take in range(40):
        soundfile.write(root / f"recordings/7_me_{take}.wav", np.ones(100) / 2, 8000)
    return bad


# Text that a configuration gives to datasets, and what would read more in it.


@pytest.mark.parametrize(
    "address",
    [
        "simplecache::file:///etc/passwd",
        "filecache::https://stranger.example/x",
        "ftp://x/y",
        "zip://x::s3://stranger/y",
        "reference://x",
        "local:///etc/passwd",
        "github://a:b@/x",
        "dask://x",
        "jupyter://x",
        "s3a::x://y",
        "penstock.x:Y://z",
    ],
)
def test_an_address_names_no_other_file_system(address, tmp_path, monkeypatch):
    """fsspec would take a chain of file systems, and import a class for each."""
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["fsspec.registry"], "get_filesystem_class", None)
    with pytest.raises((ConfigError, DataError)):
        Files().open(address)
    assert list(tmp_path.iterdir()) == []


def test_a_pattern_of_names_takes_no_time(tmp_path):
    (tmp_path / f"{'a' * 200}.bin").write_bytes(b"12")
    pattern = "a*" * 60 + "b.bin"
    with pytest.raises(DataError, match=r"there is no \.bin or \.npy file"):
        TokenFiles(str(tmp_path), tokens=pattern, dtype="uint16", eod=0)


@pytest.mark.parametrize(
    "dtype",
    [
        "O",
        "(9999999999,)i4",
        "(1,i4",
        "i4,i4",
        "(2,)O",
        "U9999999999",
        "f4",
        "{",
        f"({'9' * 5000},)i4",
        "os.system",
    ],
)
def test_a_type_of_tokens_is_a_whole_number(dtype, tmp_path):
    (tmp_path / "x.bin").write_bytes(b"12")
    with pytest.raises(ConfigError, match="no type of tokens"):
        TokenFiles(str(tmp_path), dtype=dtype, eod=0)


def test_no_picture_is_a_program(capsys, monkeypatch):
    """Pillow has Ghostscript run a picture in PostScript, whatever its file is called."""
    from PIL import EpsImagePlugin

    canary, program = Path("canary").absolute(), Path("bin/gs")
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent.absolute()}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    Path("data/cat").mkdir(parents=True)
    for name in "abcdefgh":
        text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
        Path(f"data/cat/{name}.jpg").write_text(text)
    target = "{_target_: torchvision.datasets.ImageFolder, root: data}"
    Path("conf/dataset").mkdir(parents=True)
    Path("conf/dataset/theirs.yaml").write_text(
        f"train: {target}\nval: {target}\nfields: [image, label]\n"
    )
    done = run(capsys, "--config-dir=conf", "dataset=theirs", "task=digest", "loader=debug")
    assert done.code == 3, done.err
    assert "Ghostscript" in done.err
    assert not canary.exists()
    EpsImagePlugin.gs_binary = None
    pickle.loads(pickle.dumps(Fetch([1, 2], None, Stack(), 0)))  # as in a worker that is spawned
    assert EpsImagePlugin.gs_binary is False


STRANGERS = {
    "image_folder": (images_folder, "dataset.val_fraction=0"),
    "face_landmarks": (faces_folder, "dataset.val_fraction=0"),
    "spoken_digits": (digits_folder, "dataset.val_takes=0"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dataset", STRANGERS)
def test_a_strangers_folder(capsys, dataset):
    make, whole = STRANGERS[dataset]
    bad = make(Path("data"))
    common = [
        f"dataset={dataset}",
        "dataset.root=data",
        whole,
        "batch.size=6",
        "loader=debug",
        "split=train",
    ]
    stopped = run(capsys, "task=digest", *common)
    assert stopped.code == 3
    assert "Traceback" not in stopped.err
    assert stopped.err.count("sample ") == 1
    before = set(Path.cwd().rglob("*"))
    checked = run(capsys, "task=check", *common, "run_dir=run")
    assert checked.code == 3
    listed = {line.split()[2] for line in checked.out.splitlines()[1:]}
    assert listed == {str(path) for path in bad}
    assert "Traceback" not in checked.err
    made = set(Path.cwd().rglob("*")) - before
    assert {path.relative_to(Path.cwd()).parts[0] for path in made} == {"run"}
    skipped = run(
        capsys, "task=digest", *common, "bad_samples.on_error=skip", "bad_samples.budget=0.99"
    )
    assert skipped.code == 0, skipped.err


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", hostile_batches.FILES)
def test_rows_that_fit_and_a_batch_that_does_not(tmp_path, name):
    attack = hostile_batches.FILES[name]
    said, taken = hostile_batches.outcome(attack, tmp_path)
    assert re.search(attack.match, said), said
    assert taken < LITTLE
