"""Datasets that people have, through the program as they are: each has one digest for 0 and 2
workers, trains two steps and resumes, or is refused in words.
"""

import io
import json
import re
import shutil
import struct
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import MNIST

import penstock
from penstock.tasks.digest import lines
from tests.support import peoples_data
from tests.support.program import run

ROWS = 16
QUICK = (
    "trainer.device=cpu trainer.progress=none trainer.pictures=false tracker=none "
    "trainer.baseline=false scheduler=none batch.size=8 trainer.val_every=100 "
    "trainer.checkpoint.every_steps=1"
).split()
LINEAR = (
    "transform=none collate=stack model=linear objective=classification objective.inputs=[input]"
).split()
FACTS = "data.facts={num_features: 4, num_classes: 3, num_outputs: 3}"
STREAM = ["sampler=stream", "sampler.buffer=4"]
PICTURES = (
    "transform=images transform.train.crop.size=[16,16] collate=stack model=small_conv_net "
    "objective=classification"
).split()


def own(name, *more):
    return ["~dataset", f"+dataset={{_target_: people.{name}}}", *LINEAR, FACTS, *more]


def picture(row, size=20):
    pixels = np.full((size, size, 3), row * 9 % 256, dtype=np.uint8)
    return Image.fromarray(pixels)


def png(row):
    stream = io.BytesIO()
    picture(row).save(stream, "PNG")
    return stream.getvalue()


# Config only: the files are what other programs write.


def fake_data(folder):
    node = "{_target_: torchvision.datasets.FakeData, size: 16, image_size: [3, 20, 20]%s}"
    val = node % ", random_offset: 100"
    return ["~dataset", f"+dataset={node % ''}", f"data.val_dataset={val}", *PICTURES]


def mnist(folder):
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train", "t10k"):
        pixels = np.arange(ROWS * 784, dtype=np.int64).astype(np.uint8)
        head = struct.pack(">4B3I", 0, 0, 8, 3, ROWS, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        labels = struct.pack(">4BI", 0, 0, 8, 1, ROWS) + bytes(row % 10 for row in range(ROWS))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    channels = "transform.train.normalize.statistics={mean: [0.5], std: [0.5]}"
    return [
        "dataset=torchvision",
        "dataset._target_=torchvision.datasets.MNIST",
        f"dataset.root={folder}",
        "+model.channels=1",
        channels,
    ]


def classes(folder):
    for row in range(ROWS):
        path = folder / f"class{row % 2}" / f"{row}.png"
        path.parent.mkdir(exist_ok=True)
        picture(row).save(path)


def image_folder(folder):
    classes(folder)
    return ["dataset=image_folder", f"dataset.root={folder}", *PICTURES[:2]]


def torchvisions_image_folder(folder):
    classes(folder)
    node = f"{{_target_: torchvision.datasets.ImageFolder, root: {folder}}}"
    both = [f"+dataset={node}", f"data.val_dataset={node}"]
    return ["~dataset", *both, *PICTURES, "sampler=weighted"]


def table(folder):
    import pyarrow as pa

    images = [{"bytes": png(row), "path": None} for row in range(ROWS)]
    return pa.table({"image": images, "label": [row % 3 for row in range(ROWS)]})


def hugging_face(folder):
    """What `Dataset.save_to_disk` of Hugging Face's library writes."""
    import pyarrow as pa

    found = table(folder)
    classes = {"names": ["a", "b", "c"], "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": classes}
    kept = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    name = "data-00000-of-00001.arrow"
    with (
        pa.OSFile(str(folder / name), "wb") as file,
        pa.ipc.new_stream(file, found.schema.with_metadata(kept)) as writer,
    ):
        writer.write_table(found.replace_schema_metadata(kept), max_chunksize=5)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return ["dataset=parquet", f"dataset.root={folder}", *PICTURES[:2]]


def parquet(folder):
    import pyarrow.parquet as pq

    pq.write_table(table(folder), folder / "a.parquet", row_group_size=5)
    fields = "dataset.fields={image: {column: image, kind: image}, label: label}"
    return [
        "dataset=parquet",
        f"dataset.root={folder}",
        fields,
        "dataset.classes=[a,b,c]",
        *PICTURES[:2],
    ]


def web_dataset(folder):
    with tarfile.open(folder / "shard-000000.tar", "w") as tar:
        for row in range(ROWS):
            for ending, content in (("png", png(row)), ("cls", b"%d" % (row % 3))):
                member = tarfile.TarInfo(f"{row:06d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return [
        "dataset=tar_shards",
        f"dataset.root={folder}",
        "dataset.classes=['0','1','2']",
        "dataset.fields={image: png, label: cls}",
        *PICTURES[:2],
    ]


def csv(folder):
    words = ["one", "two", "three", "four", "five"]
    rows = [f"{'ab'[row % 2]},{' '.join(words[: 1 + row % 5])}" for row in range(ROWS)]
    (folder / "texts.csv").write_text("\n".join(["label,text", *rows]) + "\n")
    return [
        "dataset=delimited_text",
        f"dataset.root={folder}/texts.csv",
        "sampler=bucket",
        f"dataset.cache_dir={folder}/cache",
    ]


def audio(folder):
    import soundfile

    (folder / "recordings").mkdir()
    for row in range(2 * ROWS):
        values = np.random.default_rng(row).uniform(-0.5, 0.5, 1600 + 100 * row)
        name = f"{row % 2}_anna_{row // 2}.wav"
        soundfile.write(folder / "recordings" / name, values, 8000)
    return ["dataset=spoken_digits", f"dataset.root={folder}"]


def npy(folder):
    np.save(folder / "inputs.npy", np.random.default_rng(0).random((20, 4), dtype=np.float32))
    np.save(folder / "targets.npy", np.arange(20) % 3)
    return ["dataset=arrays", f"dataset.root={folder}"]


def sequences(folder):
    lengths = 1 + np.arange(20) % 7
    np.save(folder / "values.npy", np.ones((int(lengths.sum()), 2), dtype=np.float32))
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
    np.save(folder / "labels.npy", np.arange(20) % 3)
    return ["dataset=sequence_files", f"dataset.root={folder}", "sampler=bucket"]


MADE = {
    "FakeData": fake_data,
    "MNIST": mnist,
    "image folder": image_folder,
    "torchvision's image folder": torchvisions_image_folder,
    "Hugging Face": hugging_face,
    "Parquet": parquet,
    "WebDataset": web_dataset,
    "CSV": csv,
    "audio": audio,
    "npy": npy,
    "sequences": sequences,
}
OWN = {
    "tuples": own("Rows"),
    "lists of arrays": own("Lists"),
    "named tuples": own("Named"),
    "tensors": own(
        "Bare",
        "objective=regression",
        "data.fields=[input]",
        "objective.target=input",
        "data.facts.num_outputs=4",
        "trainer.monitor=loss",
    ),
    "TensorDataset": own("tensors", "sampler=weighted"),
    "rows at once": own("AtOnce"),
    "draws in a dataset": own("Drawing"),
    "a numpy generator of its own": own("OwnGenerator"),
    "an iterable": own("Divided", *STREAM),
    "an iterable that returns itself": own("Itself", *STREAM),
    "a generator": own("generated", *STREAM),
    "a collate function": own("Rows", "collate={_target_: people.as_tuple}"),
    "batches of one": own("Rows", "batch.size=null", "collate={_target_: people.one}"),
}


@pytest.fixture
def people(tmp_path, monkeypatch):
    (tmp_path / "package" / "people").mkdir(parents=True)
    shutil.copy(peoples_data.__file__, tmp_path / "package" / "people" / "__init__.py")
    (tmp_path / "data").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    monkeypatch.setenv("PENSTOCK_TRUST", "people")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("people", None)


def digest(overrides, workers):
    options = ["loader=debug"] if not workers else [f"loader.num_workers={workers}"]
    config = penstock.compose(*QUICK[:1], "batch.size=8", *overrides, *options)
    return list(lines(config.model_copy(update={"task": "digest", "steps": 2})))


KINDS = {**MADE, **{name: lambda folder, words=words: words for name, words in OWN.items()}}


DAMAGE = {
    "an unknown type": b"\0\0\x99\1",  # torchvision looks it up: KeyError
    "other dimensions": struct.pack(">4B3I", 0, 0, 8, 1, ROWS, 28, 28),  # `assert`
    "an end in the head": b"\0\0\x08",
    "nothing": b"",
    "more rows than bytes": struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 28, 28),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_of_mnist_are_bad_data(content, tmp_path, capsys):
    overrides = mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(content)
    refused = run(capsys, *overrides, *QUICK, "loader=debug")
    assert refused.code in (2, 3)
    assert re.search("dataset: torchvision.datasets.MNIST raises", refused.err)
    assert "Traceback" not in refused.err


def test_an_unknown_split_of_a_torchvision_dataset_is_a_bad_config(tmp_path, capsys):
    node = "+dataset={_target_: torchvision.datasets.STL10, root: ., split: trian}"
    refused = run(capsys, "~dataset", node, *PICTURES, *QUICK, "loader=debug")
    assert refused.code == 2
    assert "split" in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.one_in(2)
@pytest.mark.parametrize("error", [ImportError("No module named 'scipy'"), MemoryError()])
def test_what_is_not_of_the_files_is_not_reported_of_them(error, monkeypatch, capsys, tmp_path):
    def fails(*_):
        raise error

    overrides = mnist(tmp_path)
    monkeypatch.setattr(MNIST, "_load_data", fails)
    run_of_it = run(capsys, *overrides, *QUICK, "loader=debug")
    assert run_of_it.code not in (0, 3)
