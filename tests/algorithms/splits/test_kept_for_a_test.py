"""`data.split.test` of every dataset of files: three splits without a common row, and all."""

import io
import json
import tarfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from penstock import compose
from penstock.build.data import DataParts
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError
from penstock.order.plan import is_stream
from tests.support import program

rows = pytest.importorskip("penstock.addons.storage.rows")

COUNT = 40
SHARES = ["data.split.val=0.25", "data.split.test=0.25"]


@given(
    total=st.integers(3, 400), val=st.floats(0, 0.5), test=st.floats(0, 0.5), seed=st.integers(0, 3)
)
def test_rows_that_are_computed(total, val, test, seed):
    def of(split, test=test):
        made = rows.RowSplit(total, split, Shares(val, test, seed))
        return made.rows(np.arange(len(made))).tolist()

    parts = [of("train"), of("val"), of("test")]
    assert sorted([row for part in parts for row in part]) == list(range(total))
    assert all(part == sorted(part) for part in parts)
    assert of("val") == of("val", 0.0)
    assert of("train", 0.0) == sorted([*parts[0], *parts[2]])
    if test > 0 and val > 0 and total > 4:
        assert abs(len(parts[2]) - total * test) <= 1


def picture(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, number, 0)).save(file, "PNG")
    return file.getvalue()


def parquet(folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"x": list(range(COUNT))}), folder / "a.parquet")
    return ["dataset=parquet", f"dataset.root={folder / 'a.parquet'}"], "x"


def delimited_text(folder):
    lines = "".join(f"word{n},{'ab'[n % 2]}\n" for n in range(COUNT))
    (folder / "a.csv").write_text("text,label\n" + lines)
    return ["dataset=delimited_text", f"dataset.root={folder / 'a.csv'}"], "text"


def delimited_stream(folder):
    delimited_text(folder)
    words = ["dataset=delimited_stream", f"dataset.root={folder / 'a.csv'}"]
    return [*words, "dataset.classes=[a,b]"], "text"


def plain_text(folder):
    (folder / "a.txt").write_text("\n".join(f"a line with {n}" for n in range(COUNT)))
    return ["dataset=plain_text", f"dataset.root={folder}", "dataset.lines=true"], "text"


def coco(folder):
    (folder / "images").mkdir()
    images = []
    for number in range(COUNT):
        (folder / "images" / f"{number}.png").write_bytes(picture(number))
        images.append({"id": number, "file_name": f"{number}.png", "width": 8, "height": 8})
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    (folder / "annotations.json").write_text(json.dumps(content))
    return ["dataset=coco", f"dataset.root={folder}"], "image"


def image_masks(folder):
    for name in ("images", "masks"):
        (folder / name).mkdir()
        for number in range(COUNT):
            if name == "images":
                (folder / name / f"{number}.png").write_bytes(picture(number))
            else:
                Image.new("L", (8, 8)).save(folder / name / f"{number}.png")
    return ["dataset=image_masks", f"dataset.root={folder}", "dataset.classes=[a,b]"], "image"


def tar_shards(folder):
    with tarfile.open(folder / "a.tar", "w") as file:
        for number in range(COUNT):
            for ending, content in (("png", picture(number)), ("cls", str(number % 2).encode())):
                info = tarfile.TarInfo(f"{number:03}.{ending}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return ["dataset=tar_shards", f"dataset.root={folder}", "dataset.classes=[a,b]"], "image"


def key_of(sample, field):
    value = sample[field]
    if hasattr(value, "content"):
        return value.content
    return str(value) if field != "image" else value[0, 0, 0].item()


MAKERS = [parquet, delimited_text, delimited_stream, plain_text, coco, image_masks, tar_shards]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_splits_have_no_row_in_common(make, tmp_path):
    words, field = make(tmp_path)
    more = ["transform=none", f"cache_dir={tmp_path / 'cache'}"]
    if make in (delimited_stream, tar_shards):
        more.append("trainer.max_steps=1")
    if make in (coco, image_masks):
        more = more[1:]
    parts = []
    for extra in (SHARES, SHARES[:1]):
        data = DataParts(compose(*words, *extra, *more))
        splits = ["train", "val", "test"] if extra is SHARES else ["train", "val"]
        parts.append([[key_of(sample, field) for sample in samples(getattr(data, name).dataset)]
                      for name in splits])  # fmt: skip
    with suppress(ConfigError):  # that there is none
        assert [*samples(data.test.dataset)] == []
    train, val, test = parts[0]
    assert len({*train, *val, *test}) == len(train) + len(val) + len(test) == COUNT
    assert parts[1] == [parts[1][0], val], "validation stays what it was"
    assert {*parts[1][0]} == {*train, *test}
    assert 4 <= len(test) <= 16, "the share, by chance for a stream"


def samples(dataset):
    if not is_stream(dataset):
        return (dataset[row] for row in range(len(dataset)))
    return (dataset.decode(record) for record in dataset)


def test_files_that_are_named_for_a_test_are_it(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from penstock.addons.tables.table import MappedTable

    for name, first in (("train-0", 0), ("train-1", 10), ("val-0", 20), ("test-0", 30)):
        table = pa.table({"x": list(range(first, first + 10))})
        parquet.write_table(table, tmp_path / f"{name}.parquet")

    def of(split, **shares):
        dataset = MappedTable(str(tmp_path), split, **shares)
        return [int(dataset[row]["x"]) for row in range(len(dataset))]

    assert [of("train"), of("val"), of("test")] == [
        list(range(20)), list(range(20, 30)), list(range(30, 40))
    ]  # fmt: skip
    (tmp_path / "test-0.parquet").unlink()
    train, test = of("train", shares=Shares(test=0.2)), of("test", shares=Shares(test=0.2))
    assert sorted(train + test) == list(range(20))
    assert len(test) == 4


def test_a_stream_is_not_divided_by_rows(tmp_path, capsys):
    words, _ = delimited_stream(tmp_path)
    more = ["data.split.group=label", "trainer.max_steps=1", "task=digest", "steps=1"]
    refused = program.run(capsys, *words, *more)
    assert refused.code == 2
    assert "data.split: StreamedTable is a stream" in refused.err
