"""MosaicML's shards through MosaicML's library; most of it runs only where that is installed."""

import json
import pickle
import sys
import warnings

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.addons.shards import mds, mds_parts
from penstock.addons.shards.mds import MDS
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError
from tests import epochs
from tests.support.store_server import InThread, Shelf

COLUMNS = {
    "image": "png",
    "plain": "pil",
    "label": "int",
    "vector": "ndarray:float32:3",
    "any": "ndarray",
    "real": "float32",
    "text": "str",
    "raw": "bytes",
    "note": "json",
}


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "streaming", None)
    monkeypatch.setitem(sys.modules, "streaming.base", None)
    with pytest.raises(ConfigError, match=r"pip install mosaicml-streaming"):
        MDS(str(tmp_path))


@pytest.fixture(scope="module")
def writer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's imports are its own affair
        return pytest.importorskip("streaming", reason="mosaicml-streaming is not here").MDSWriter


def write(writer, folder, rows, columns=COLUMNS, **options):
    """Rows in shards of about 8."""
    from PIL import Image

    with writer(
        out=str(folder), columns=columns, size_limit=options.pop("size_limit", 6000), **options
    ) as out:
        for row in rows:
            picture = Image.new("RGB", (8, 8), (row % 256,) * 3)
            values = {
                "image": picture,
                "plain": picture,
                "label": row % 3,
                "vector": np.full(3, row, np.float32),
                "any": np.arange(row + 1, dtype=np.uint16),
                "real": np.float32(row / 4),
                "text": f"row {row}",
                "raw": b"%d" % row,
                "note": {"row": row},
                "object": {row},
            }
            out.write({name: values[name] for name in columns})
    return folder


def everything(root, **arguments):
    return MDS(str(root), val_fraction=0.0, **arguments)


@pytest.fixture
def root(writer, tmp_path):
    return write(writer, tmp_path / "mds", range(30))


def test_a_sample(root):
    assert len(list(root.glob("*.mds"))) > 2
    data = everything(root, classes=["a", "b", "c"])
    assert len(data) == 30
    for row in (29, 3, 17):
        sample = data[row]
        assert set(sample) == set(COLUMNS)
        for name in ("image", "plain"):
            assert isinstance(sample[name], tv_tensors.Image)
            assert torch.equal(sample[name], torch.full((3, 8, 8), row, dtype=torch.uint8))
        assert torch.equal(sample["vector"], torch.full((3,), float(row)))
        assert torch.equal(sample["any"], torch.arange(row + 1).int())
        assert torch.equal(sample["real"], torch.tensor(row / 4))
        assert (sample["label"], sample["text"], sample["raw"]) == (
            row % 3,
            f"row {row}",
            b"%d" % row,
        )
        assert sample["note"] == {"row": row}
    assert data.facts == {"num_classes": 3, "num_outputs": 3}
    assert pickle.loads(pickle.dumps(data))[5]["text"] == "row 5"


def test_fields_and_metadata(root):
    data = everything(root, fields={"picture": "image", "label": None, "text": None})
    assert list(data[0]) == ["picture", "label", "text"]
    table = data.metadata
    assert list(table) == ["label", "text"]
    assert table["text"].tolist() == [f"row {row}" for row in range(30)]
    with pytest.raises(
        ConfigError, match=r"fields\.x: there is no column 'imge'; did you mean 'im"
    ):
        everything(root, fields={"x": "imge"})


def test_rows_are_divided_once(root):
    train, val = MDS(str(root)), MDS(str(root), "val")
    assert (len(train), len(val)) == (24, 6)
    found = [data[index]["text"] for data in (train, val) for index in range(len(data))]
    assert sorted(found) == sorted(f"row {row}" for row in range(30))
    assert len({data.fingerprint for data in (train, val, everything(root))}) == 3
    shards = train.locality(np.arange(len(train)))
    assert shards.tolist() == [shard for shard, _ in train._places(range(len(train)))]
    assert len(set(shards.tolist())) > 1


def test_folders_that_are_divided_already(writer, tmp_path):
    write(writer, tmp_path / "train", range(9))
    write(writer, tmp_path / "val", range(9, 12))
    train, val = MDS(str(tmp_path)), MDS(str(tmp_path), "val")
    assert (len(train), len(val)) == (9, 3)
    assert val[2]["text"] == "row 11"


def test_a_shard_that_was_cut_or_is_missing(root):
    data = everything(root)
    first = int(data._bounds[1])
    shard = sorted(root.glob("*.mds"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"shard\.00001\.mds' has \d+ bytes, but its index says"):
        data[first]
    shard.unlink()
    with pytest.raises(DataError, match=r"shard\.00001\.mds' is missing: the index names it"):
        data[first]
    assert data[0]["text"] == "row 0"


def test_damage_inside_of_a_shard(root):
    shard = min(root.glob("*.mds"))
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    with pytest.raises(DataError, match=r"shard\.00000\.mds', sample 2 cannot be read"):
        everything(root)[2]


def test_compressed_shards(writer, tmp_path):
    write(writer, tmp_path, range(3), compression="gz")
    with pytest.raises(DataError, match=r"only 'shard\.00000\.mds\.gz' would be there, compressed"):
        everything(tmp_path)[0]


def test_pickles_are_never_opened(writer, tmp_path):
    write(writer, tmp_path, range(3), columns={"object": "pkl"})
    with pytest.raises(DataError, match=r"column 'object' holds pickles, which may run any code"):
        everything(tmp_path)


def test_indexes_that_are_none(root):
    index = root / "index.json"
    good = json.loads(index.read_text())
    bad = {
        "": r"is not an index of MDS shards \(it is empty\)",
        "<html>": "it is a web page",
        "{}": r"KeyError\('version'\)",
        json.dumps({**good, "version": 1}): "has version 1; version 2 is read",
        json.dumps({"version": 2, "shards": []}): "names no shards with samples",
    }
    for content, match in bad.items():
        index.write_text(content)
        with pytest.raises(DataError, match=match):
            everything(root)
    good["shards"][1]["column_encodings"][0] = "bytes"
    index.write_text(json.dumps(good))
    with pytest.raises(DataError, match=r"shard\.00001.*: column '\w+' is \w+, but in .*00000"):
        everything(root)
    index.unlink()
    with pytest.raises(DataError, match=r"has no file that ends in index\.json"):
        everything(root)


def test_damaged_pictures_and_wrong_labels(root, monkeypatch):
    data = everything(root, classes=["a", "b"])
    with pytest.raises(DataError, match=r"sample 2: label 2 is none of the 2 classes"):
        data[2]
    with pytest.raises(DataError, match=r"sample 1, 'image'.* is not an image: it is text"):
        data._value(b"not a picture at all", "png", "'x', sample 1, 'image'")
    with pytest.raises(DataError, match="value 1 is nan, which is not finite"):
        data._value(np.array([0.0, np.nan]), "ndarray", "x")


def test_samples_at_an_address_are_those_of_the_disk(root, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(mds, "LARGE", 2000)
    monkeypatch.setattr(mds_parts, "_PART", 1000)
    local = everything(root)
    expected = epochs.digests(local, 4, 3)
    shelf = Shelf({f"data/{path.name}": path.read_bytes() for path in root.iterdir()})

    def opened(cache, **options):
        given = {"timeout": 1, "retries": 8, "first_wait": 0.01, **options}
        return everything(address, files=Files(cache_dir=str(tmp_path / cache), **given))

    with InThread(shelf) as port:
        address = f"http://127.0.0.1:{port}/data"
        data = opened("a", timeout=30)
        assert data.fingerprint == local.fingerprint
        before = shelf.sent
        far = pickle.loads(pickle.dumps(data))
        assert far[2]["text"] == "row 2"
        assert shelf.sent - before < 2500, "the places of a shard's samples, and one part"
        assert epochs.digests(data, 4, 3, num_workers=2) == expected
        shelf.faults = {"reset": 5, "short": 7}
        assert epochs.digests(opened("b", ahead=0), 4, 3) == expected
        data = opened("c", ahead="30kB", cache_size="40kB")
        assert epochs.digests(data, 4, 3, backend="thread", num_workers=2) == expected
        shelf.faults, shelf.ranges = {}, False
        assert epochs.digests(opened("d"), 4, 3) == expected
        assert opened("e").metadata["text"].tolist() == [f"row {row}" for row in range(30)]


def test_the_places_of_shards_that_were_read_last_are_kept(root, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(mds, "LARGE", 2000)
    shelf = Shelf({f"data/{path.name}": path.read_bytes() for path in root.iterdir()})
    with InThread(shelf) as port:
        files = Files(cache_dir=str(tmp_path / "cache"), timeout=30)
        data = everything(f"http://127.0.0.1:{port}/data", files=files)
        first, second, third = data._bounds[:3].tolist()
        data[first], data[second]
        monkeypatch.setattr(mds_parts, "_KEPT", data._parts._bytes)
        data[first], data[third]
    assert list(data._parts._kept) == [0, 2]


@pytest.mark.parametrize("wrong", ["count", "order", "end", "size"])
def test_places_that_are_wrong_at_an_address(root, tmp_path, monkeypatch, wrong):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(mds, "LARGE", 2000)
    contents = {f"data/{path.name}": path.read_bytes() for path in root.iterdir()}
    name = "data/shard.00001.mds"
    numbers = np.frombuffer(contents[name], "<u4", 6).copy()
    if wrong == "count":
        numbers[0] += 1
    elif wrong == "order":
        numbers[2] = numbers[4]
    else:
        numbers[1] = 1
    contents[name] = numbers.tobytes() + contents[name][24 : -1 if wrong == "size" else None]
    with InThread(Shelf(contents)) as port:
        files = Files(cache_dir=str(tmp_path / "cache"), timeout=30)
        data = everything(f"http://127.0.0.1:{port}/data", files=files)
        assert data[0]["text"] == "row 0"
        row = int(data._bounds[1])
        reason = "but its index says" if wrong == "size" else "the places of its samples are dam"
        with pytest.raises(DataError, match=rf"shard\.00001\.mds' .*{reason}"):
            data[row]
        assert len(data.files_of([0, row])) == 2, "whoever fetches ahead leaves it to the reader"
