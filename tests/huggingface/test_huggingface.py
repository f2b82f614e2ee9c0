"""Folders of Hugging Face's `datasets`: the values that it gives, splits, nulls and bad folders."""

import importlib.metadata
import io
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

from penstock import build_train_loader, build_val_loader, compose
from penstock.addons.huggingface.huggingface import HuggingFace, HuggingFaceStream
from penstock.errors import ConfigError, DataError
from penstock.loading.collate import Pad
from tests import epochs, warm
from tests.huggingface import written
from tests.program import ROOT, run

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
NULLS = {"number or null": -7, "text or null": "none", "holes": [[0, 0], [0, 0]]}
UNREAD = {"nothing", "texts", "structs.name"}  # which have no field by default


def table(count=30, first=0, **columns):
    rows = range(first, first + count)
    return pa.table(
        {
            "text": [f"text {number}" for number in rows],
            "label": pa.array([number % 3 for number in rows], pa.int64()),
            "x": pa.array([[number, number / 2] for number in rows], pa.list_(pa.float64(), 2)),
        }
        | columns
    )


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Folders by `datasets`, and its values."""
    try:
        importlib.metadata.version("datasets")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("datasets is not installed")
    root = tmp_path_factory.mktemp("written")
    script = Path(written.__file__).resolve()
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(root / "home"),
        "USE_TORCH": "0",
    }
    # The folder `datasets` of this repository must not be the one that is imported.
    done = subprocess.run(
        [sys.executable, "-P", script, root],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads((root / "expected.json").read_text())


def same(value, expected):
    """Whether a field has a value of `datasets`."""
    if isinstance(value, torch.Tensor):
        expected = torch.tensor(expected, dtype=torch.float64)
        expected = expected.float() if value.is_floating_point() else expected
        return value.shape == expected.shape and torch.equal(value.double(), expected.double())
    return value == expected


@pytest.mark.parametrize("name", ["one", "divided", "parquet"])
def test_every_feature_has_the_value_that_datasets_gives(everything, name):
    from PIL import Image

    soundfile = pytest.importorskip("soundfile")
    root, expected = everything
    options = {"val_fraction": 0.0, "nulls": NULLS}
    data = HuggingFace(str(root / name), **options)
    stream = HuggingFaceStream(str(root / name), **options)
    assert data.classes == ["a", "b", "c"]
    assert len(data) == written.ROWS
    checked = set()
    records = list(stream)
    for number, row in enumerate(expected):
        sample = data[number]
        flat = row | {f"nested.{key}": value for key, value in row["nested"].items()}
        flat |= {f"nested.inner.{key}": value for key, value in row["nested"]["inner"].items()}
        flat |= {"structs.id": [part["id"] for part in row["structs"]]}
        flat |= {name: value for name, value in NULLS.items() if row[name] is None}
        for field, value in sample.items():
            if field == "image":
                content = io.BytesIO(bytes.fromhex(row[field]["bytes"]))
                pixels = torch.from_numpy(np.array(Image.open(content))).permute(2, 0, 1)
                assert torch.equal(value.as_subclass(torch.Tensor), pixels)
            elif field == "audio":
                content = io.BytesIO(bytes.fromhex(row[field]["bytes"]))
                sound, rate = soundfile.read(content, dtype="float32")
                assert torch.equal(value, torch.from_numpy(sound.T.copy()))
                assert sample["rate"] == rate == 8000 + number
            elif field == "open" and value.numel() == 0:
                assert row[field] == []
            elif field != "rate":
                value = value.hex() if isinstance(value, bytes) else value
                assert same(value, flat[field]), (field, number)
            checked.add(field)
        for field, value in stream.decode(records[number]).items():
            assert (
                torch.equal(value, sample[field])
                if isinstance(value, torch.Tensor)
                else value == sample[field]
            )
    expected_fields = (set(flat) | {"rate"}) - UNREAD - {"nested", "nested.inner", "structs"}
    assert checked == expected_fields


def test_batches_of_columns_are_those_of_samples(everything):
    root, _ = everything
    whole = HuggingFace(str(root / "one"), val_fraction=0.0, nulls=NULLS)
    fields = {
        field.name: None
        for field in whole.fields
        if field.kind not in ("image", "audio", "rate") and field.name != "lists"
    }
    data = HuggingFace(str(root / "one"), val_fraction=0.0, nulls=NULLS, fields=fields)
    assert data.fetches_batches
    rows = np.array([24, 3, 9, 3, 12])
    gathered = Pad().together(data.fetch_batch(rows))
    samples = [whole[number] for number in rows]
    collated = Pad()([{name: sample[name] for name in fields} for sample in samples])
    assert gathered.keys() == collated.keys()
    for name, value in collated.items():
        if isinstance(value, torch.Tensor):
            assert gathered[name].dtype == value.dtype
            assert torch.equal(gathered[name], value), name
        else:
            assert gathered[name] == value


def test_texts_in_lists_by_name(everything):
    root, expected = everything
    data = HuggingFace(str(root / "one"), val_fraction=0.0, fields={"texts": None})
    assert [data[number]["texts"] for number in range(5)] == [row["texts"] for row in expected[:5]]


@pytest.mark.parametrize(
    ("parts", "options", "sizes"),
    [
        (("train", "validation", "test"), {}, (30, 20, 10)),
        (("train", "dev", "eval"), {}, (30, 20, 10)),
        (("train", "test"), {"val_fraction": 0.1}, (27, 3, 20)),
        (("train",), {"val_fraction": 0.1, "test_fraction": 0.2}, (21, 3, 6)),
        (("unsupervised", "held_out"), {"splits": {"train": "unsupervised", "val": "held_out"}},
         (30, 20, 0)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("saved", [True, False])
def test_splits_by_their_names(tmp_path, parts, options, sizes, saved):
    tables = {name: table(30 - 10 * at, 100 * at) for at, name in enumerate(parts)}
    if saved:
        written.divided(tmp_path, **tables)
    else:
        import pyarrow.parquet as pq

        for name, rows in tables.items():
            pq.write_table(rows, tmp_path / f"{name}-00000-of-00001.parquet")
    lengths = []
    for split in ("train", "val", "test"):
        data = HuggingFace(str(tmp_path), split=split, **options)
        lengths.append(len(data))
        assert data.classes == ["0", "1", "2"]
    assert tuple(lengths) == sizes


def test_the_cache_of_load_dataset(tmp_path):
    for split, count in (("train", 12), ("test", 5)):
        made = written.folder(tmp_path / split, table(count), files=1)
        (made / "data-00000-of-00001.arrow").rename(tmp_path / f"my-set-{split}.arrow")
        for left in made.iterdir():
            left.unlink()
        made.rmdir()
    (tmp_path / "cache-0123456789abcdef.arrow").write_bytes(b"kept by map")
    info = {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info | {"splits": {"train": {}}}))
    data = HuggingFace(str(tmp_path), val_fraction=0.0)
    assert (len(data), data.classes) == (12, ["a", "b", "c"])
    assert len(HuggingFace(str(tmp_path), split="test")) == 5


def test_columns_of_the_format_that_was_saved(tmp_path):
    written.folder(tmp_path, table(), _format_type="torch", _format_columns=["x", "label"])
    assert set(HuggingFace(str(tmp_path))[0]) == {"x", "label"}
    assert set(HuggingFace(str(tmp_path), fields={"text": None})[0]) == {"text"}


def test_nulls_are_refused_or_filled(tmp_path):
    column = pa.array(["a", None] * 15)
    written.folder(tmp_path, table(text=column))
    data = HuggingFace(str(tmp_path), val_fraction=0.0)
    assert data[0]["text"] == "a"
    with pytest.raises(DataError, match=r"row 1, column 'text': there is no value \(null\)"):
        data[1]
    filled = HuggingFace(str(tmp_path), val_fraction=0.0, nulls={"text": ""})
    assert filled[1]["text"] == ""
    assert filled.fetch_batch(np.arange(3))["text"] == ["a", "", "a"]
    assert filled.fingerprint != data.fingerprint


def test_files_that_rows_name_are_read_from_one_folder_only(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    (images / "0.png").write_bytes(written.picture(0))
    (tmp_path / "secret.png").write_bytes(written.picture(1))
    (images / "link.png").symlink_to(tmp_path / "secret.png")
    names = [str(images / "0.png"), "0.png", "../secret.png", "link.png", "gone.png"]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": None, "path": name} for name in names], kind)
    root = written.folder(
        tmp_path / "data", pa.table({"image": column}), {"image": {"_type": "Image"}}
    )
    with pytest.raises(DataError, match=r"no bytes, only the path"):
        HuggingFace(str(root), val_fraction=0.0)[0]
    data = HuggingFace(str(root), val_fraction=0.0, external=str(images))
    assert torch.equal(data[0]["image"], data[1]["image"])
    for row, reason in ((2, "is outside of"), (3, "is outside of"), (4, "cannot be read: No such")):
        with pytest.raises(DataError, match=f"row {row % 3}, column 'image': its file .* {reason}"):
            data[row]


def features_of(**features):
    return lambda root: written.folder(root, table(), features)


def without(name):
    return lambda root: (written.folder(root, table()) / name).unlink()


def with_text(name, text):
    return lambda root: (written.folder(root, table()) / name).write_text(text)


def configurations(root):
    import pyarrow.parquet as pq

    for name in ("en", "fr"):
        (root / name).mkdir(parents=True)
        pq.write_table(table(), root / name / "train-00000-of-00001.parquet")


BAD = {
    "missing": (lambda root: None, {}, DataError, r"is missing.*save_to_disk"),
    "empty": (lambda root: root.mkdir(), {}, DataError, r"has none of dataset_dict.json"),
    "file gone": (without("data-00001-of-00002.arrow"), {}, DataError, "which state.json names"),
    "no json": (with_text("state.json", "{"), {}, DataError, "state.json' is damaged"),
    "no files": (with_text("state.json", "{}"), {}, DataError, "does not name its files"),
    "state is a list": (with_text("state.json", "[]"), {}, DataError, "is damaged: 'list'"),
    "features": (
        with_text("dataset_info.json", '{"features": 3}'), {}, DataError, "`features` is no map",
    ),
    "cut": (
        with_text("data-00000-of-00002.arrow", "ARR"), {}, DataError, r"00000-of-00002.arrow'",
    ),
    "not an array": (
        features_of(label={"_type": "Array2D", "shape": [2, 2]}),
        {},
        DataError,
        "column 'label' is int64, and described as Array2D",
    ),
    "no shape": (
        features_of(x={"_type": "Array2D", "shape": [2, -1]}), {}, DataError, r"\[2, -1\]",
    ),
    "another size": (
        features_of(x={"_type": "Array2D", "shape": [3, 2]}), {}, DataError, "described as Array2D",
    ),
    "one without splits": (
        features_of(), {"splits": {"val": "dev"}}, ConfigError, "one dataset without splits",
    ),
    "no such part": (
        features_of(), {"splits": {"vall": "dev"}}, ConfigError, "allowed: train, val, test",
    ),
    "no such split": (
        lambda root: written.divided(root, train=table(), test=table()),
        {"splits": {"val": "dev"}},
        ConfigError,
        r"dataset.splits.val: .* has no split 'dev', only test, train",
    ),
    "nothing trains": (
        lambda root: written.divided(root, all=table()), {}, ConfigError, "which one trains",
    ),
    "folder above": (
        lambda root: written.divided(root / "x", train=table()), {}, ConfigError, "x/train; name",
    ),
    "configurations": (configurations, {}, ConfigError, "several configurations: en, fr"),
    "null of nothing": (
        features_of(), {"nulls": {"texxt": ""}}, ConfigError, "did you mean 'text'",
    ),
    "null of another type": (
        features_of(), {"nulls": {"label": "x"}}, ConfigError, "'x' cannot stand in .* int64",
    ),
    "external": (features_of(), {"external": "nowhere"}, DataError, "nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_message(tmp_path, name):
    make, options, kind, match = BAD[name]
    make(tmp_path / "data")
    with pytest.raises(kind, match=match):
        HuggingFace(str(tmp_path / "data"), **options)


def test_an_array_of_another_shape_names_its_row_group(tmp_path):
    column = pa.array([[[1, 2]]] * 15 + [[[1, 2, 3]]] + [[[1, 2]]] * 14)
    feature = {"_type": "Array2D", "shape": [1, 2], "dtype": "int64"}
    written.folder(tmp_path, table(x=column), {"x": feature})
    data = HuggingFace(str(tmp_path), val_fraction=0.0)
    assert torch.equal(data[3]["x"], torch.tensor([[1, 2]]))
    with pytest.raises(DataError, match=r"00001-of-00002.arrow', row group 0 .*list 0 has 3 val"):
        data[15]


@pytest.fixture
def pictures(tmp_path):
    column = pa.array(
        [{"bytes": written.picture(number, 32, "JPEG"), "path": None} for number in range(40)]
    )
    labels = pa.array([number % 2 for number in range(40)])
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["even", "odd"]},
    }
    return written.folder(tmp_path / "data", pa.table({"image": column, "label": labels}), features)


def test_workers_and_threads_have_the_same_batches(pictures):
    for kind in (HuggingFace, HuggingFaceStream):
        data = kind(str(pictures))
        expected = epochs.digests(data, 8, 2)
        assert len(set(expected)) == len(expected) > 4
        for options in ({"num_workers": 2}, {"backend": "thread", "num_workers": 2}):
            assert epochs.digests(kind(str(pictures)), 8, 2, **options) == expected


def test_pictures_are_decoded_by_the_batch(pictures):
    from penstock import build_train_loader, compose

    words = ["dataset=huggingface", f"dataset.root={pictures}", "transform=images_fast"]
    words += ["batch.size=8", "loader.num_workers=0", "transform.train.decode.size=16"]
    whole = build_train_loader(compose(*words))
    batch = next(iter(whole))
    assert batch["image"].shape == (8, 3, 16, 16)
    assert batch.warnings == {}


RUN = [
    "dataset=huggingface",
    "batch.size=8",
    "trainer.max_steps=12",
    "trainer.report=false",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "trainer.checkpoint.every_steps=3",
    "model.width=4",
]


@pytest.mark.thorough
def test_two_ranks_and_a_killed_run_have_the_same_batches(pictures, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*RUN, f"dataset.root={pictures}"]
    digest = ["task=digest", *words]
    alone = run(capfd, *digest)
    ranks = ["distributed=ddp", "distributed.nproc=2", "trainer.device=cpu"]
    assert (alone.code, run(capfd, *digest, *ranks).out) == (0, alone.out), alone.err
    assert run(capfd, *words, "run_dir=whole").code == 0
    command = [sys.executable, "run.py", *words, f"run_dir={tmp_path}/part"]
    process = warm.start(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    ledger = tmp_path / "part" / "ledger.jsonl"
    while process.poll() is None and (not ledger.exists() or ledger.read_text().count("\n") < 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert run(capfd, *words, "resume=part").code == 0
    assert ledger.read_text() == (tmp_path / "whole" / "ledger.jsonl").read_text()


def described(path, names, rows):
    """A file whose `label` numbers the classes in its own order; `x` says which each row is."""
    feature = {"label": {"_type": "ClassLabel", "names": names}}
    schema = pa.schema(
        [("x", pa.float32()), ("label", pa.int64())],
        {"huggingface": json.dumps({"info": {"features": feature}})},
    )
    numbers = [names.index(row) for row in rows]
    made = pa.table({"x": ["abcd".index(row) for row in rows], "label": numbers}, schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, path)


@pytest.mark.parametrize("reader", ["huggingface", "huggingface_stream", "parquet"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_each_file_may_number_the_classes_in_its_own_way(reader, split, tmp_path):
    data, count = tmp_path / "data", 1 + (split == "train")
    described(data / f"train-00000-of-0000{count}.parquet", list("abc"), "abc")
    other = data / ("train-00001-of-00002.parquet" if split == "train" else "val.parquet")
    if split == "train":
        described(data / "val.parquet", list("abc"), "abc")
    words = [f"dataset={reader}", f"dataset.root={data}", "dataset.fields={x: null, label: null}"]
    words += ["transform=none", "loader=debug", "batch.size=8"]
    build = build_train_loader if split == "train" else build_val_loader
    for names in ("cba", "bc"):
        described(other, list(names), names)
        with build(compose(*words)) as loader:
            (batch,) = loader
        assert batch["x"].tolist() == batch["label"].tolist()
    described(other, list("bcd"), "bc")
    with pytest.raises(DataError, match=r"column 'label': it has the class 'd', and training has"):
        build(compose(*words))
