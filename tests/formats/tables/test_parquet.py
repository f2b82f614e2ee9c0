"""Tables: every kind of column from every format, rows divided once, clear words for bad files."""

import os

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.addons.filters.expressions import Expression
from penstock.addons.storage.rows import RowSplit, TableRows, rows_before
from penstock.addons.tables.table import MappedTable, StreamedTable
from penstock.datasets.files import Files
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError
from penstock.loading.collate import List
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, StreamOrder, StreamPlan
from penstock.order.samplers import Random
from tests.support import toy
from tests.support.store_server import InThread, Shelf, bucket
from tests.support.table_files import FORMATS, make, pa, picture, pq, tensors, write


def everything(root, **arguments):
    return MappedTable(str(root), shares=Shares(0.0), **arguments)


def numbers(data):
    return [data[index]["number"] for index in range(len(data))]


@pytest.fixture
def table(tmp_path):
    """43 rows in two files, row groups of 10."""
    write(tmp_path / "a.parquet", make(25))
    write(tmp_path / "b.parquet", make(18, first=25))
    return tmp_path


@pytest.mark.parametrize("name", FORMATS)
def test_a_sample_from_every_format(name, tmp_path):
    write(tmp_path / f"x.{name}", make(25))
    data = everything(tmp_path)
    assert len(data) == 25
    for row in (24, 3, 12):
        sample = data[row]
        assert (sample["number"], sample["flag"]) == (row, int(row % 2 == 0))
        assert sample["text"] == f"row {row} é"
        assert data.classes[sample["label"]] == ("cat", "dog", "emu")[row % 3]
        assert torch.equal(sample["real"], torch.tensor(row / 4))
        assert torch.equal(sample["sequence"], torch.full((row % 5,), float(row)))
        assert torch.equal(sample["vector"], torch.tensor([row, row + 1, row + 2]).int())
        assert isinstance(sample["image"], tv_tensors.Image)
        assert torch.equal(sample["image"], torch.full((3, 8, 8), row, dtype=torch.uint8))


def test_what_is_known_beforehand(table):
    data = everything(table)
    assert data.classes == ["cat", "dog", "emu"]
    assert data.facts == {"num_classes": 3, "num_outputs": 3, "num_features": 3}


NESTED = {
    "rectangles": (pa.array([[[1, 2, 3], [4, 5, 6]], [], [[7, 8, 9]]]), [(2, 3), (0, 0), (1, 3)]),
    "steps": (
        pa.array([[[1.0, 2.0]], [[1.0, 2.0]] * 3, []], pa.list_(pa.list_(pa.float32(), 2))),
        [(1, 2), (3, 2), (0, 2)],
    ),
    "matrices": (tensors(np.arange(18).reshape(3, 2, 3)), [(2, 3)] * 3),
    "large": (pa.array([[1], [2, 3], []], pa.large_list(pa.int8())), [(1,), (2,), (0,)]),
    "flags": (pa.array([[True], [False, True], []]), [(1,), (2,), (0,)]),
    "halves": (pa.array([np.ones(2, np.float16)] * 3, pa.list_(pa.float16())), [(2,)] * 3),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_lists_become_tensors(name, suffix, tmp_path):
    column, shapes = NESTED[name]
    if suffix == "parquet" and name == "halves":
        column = column.cast(pa.list_(pa.float32()))
    write(tmp_path / f"x.{suffix}", pa.table({"x": column}), group=2)
    values = [everything(tmp_path)[row]["x"] for row in range(3)]
    assert [tuple(value.shape) for value in values] == shapes
    plain = getattr(column, "storage", column).to_pylist()
    assert [value.flatten().tolist() for value in values] == [flat(value) for value in plain]


def flat(value):
    return [inner for one in value for inner in flat(one)] if isinstance(value, list) else [value]


def test_a_tensor_type_whose_order_is_not_clear(tmp_path):
    """As pyarrow 26 writes it, what Arrow's format says would be another tensor."""
    values = np.arange(48).reshape(2, 2, 3, 4).transpose(0, 3, 1, 2)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    write(tmp_path / "x.arrow", pa.table({"x": column}))
    with pytest.raises(ConfigError, match=r"permutation=\[.*can be no field"):
        everything(tmp_path, fields={"x": None})


def test_the_schema_of_hugging_face(tmp_path):
    """Its features name the classes, and images lie in structs."""
    rows = [{"bytes": picture(row), "path": f"{row}.png"} for row in range(4)]
    kinds = {
        "img": {"_type": "Image"},
        "breed": {"_type": "ClassLabel", "names": ["poodle", "pug"]},
    }
    table = pa.table({"img": rows, "breed": pa.array([0, 1, 1, 0])})
    write(tmp_path / "x.parquet", table, metadata={"info": {"features": kinds}})
    data = everything(tmp_path)
    assert data.classes == ["poodle", "pug"]
    assert data[2]["breed"] == 1
    assert data[2]["img"].shape == (3, 8, 8)


def test_fields_that_are_chosen(table):
    data = everything(
        table,
        fields={
            "picture": {"column": "image"},
            "raw": {"column": "image", "kind": "bytes"},
            "label": {"column": "number", "kind": "label"},
            "text": None,
            "flag": "label",
        },
    )
    sample = data[30]
    assert list(sample) == ["picture", "raw", "label", "text", "flag"]
    assert sample["raw"] == picture(30)
    assert (sample["label"], sample["flag"]) == (30, 1)
    assert data.classes == [str(number) for number in range(43)]


def test_classes_that_are_named(table):
    data = everything(table, classes=["emu", "dog", "cat"])
    assert [data[row]["label"] for row in range(3)] == [2, 1, 0]
    with pytest.raises(DataError, match=r"row 2, column 'label': 'emu' is none of the 2 classes"):
        everything(table, classes=["cat", "dog"])[2]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"imgae": None}, r"fields\.imgae: there is no column 'imgae'; did you mean 'image'\?"),
        ({"x": {"column": "nothing"}}, r"there is no column 'nothing' \(there are number, real"),
        ({"image": "number"}, r"'image' is binary, which can be image, bytes, audio, rate, not nu"),
        ({"real": "label"}, r"column 'real' is double, which can be number, not label"),
        ({"image": "jpeg"}, r"column 'image' is binary, which can be image, .*, not jpeg; kinds: "),
        ({"image": {"kin": "image"}}, "'kin': 'image'}; allowed: column and kind"),
    ],
)
def test_fields_that_cannot_be(table, fields, match):
    with pytest.raises(ConfigError, match=match):
        everything(table, fields=fields)


def test_columns_of_other_types_are_named_and_left_out(tmp_path, caplog):
    stamps = pa.array([0] * 5, pa.timestamp("s"))
    write(tmp_path / "x.parquet", make(5, when=stamps))
    assert "when" not in everything(tmp_path)[0]
    assert "no fields are made of when (timestamp" in caplog.text
    with pytest.raises(ConfigError, match=r"'when' is timestamp.*can be no field"):
        everything(tmp_path, fields={"when": None})


def test_rows_are_divided_once(table):
    for make_one in (MappedTable, StreamedTable):
        train, val = make_one(str(table)), make_one(str(table), "val")
        assert (len(train), len(val)) == (34, 9)
        found = [sample["number"] for data in (train, val) for sample in all_of(data)]
        assert sorted(found) == list(range(43))
    assert sorted(sample["number"] for sample in all_of(train)) == numbers(MappedTable(str(table)))
    others = [
        len(set(numbers(MappedTable(str(table), shares=Shares(seed=seed))))) for seed in range(3)
    ]
    assert others == [34] * 3


def all_of(data):
    return (
        [data.decode(record) for record in data]
        if isinstance(data, StreamedTable)
        else [data[index] for index in range(len(data))]
    )


def test_files_that_are_divided_by_name(tmp_path):
    write(tmp_path / "train-0.parquet", make(12))
    write(tmp_path / "train-1.parquet", make(3, first=12))
    write(tmp_path / "validation-0.parquet", make(2, first=100))
    write(tmp_path / "test-0.parquet", make(4, first=200))
    assert numbers(MappedTable(str(tmp_path))) == list(range(15))
    val = MappedTable(str(tmp_path), "val")
    assert numbers(val) == [100, 101]
    assert val.classes == ["cat", "dog", "emu"]  # of training; 100 and 101 are dogs and emus
    (tmp_path / "validation-0.parquet").unlink()
    assert (
        len(MappedTable(str(tmp_path), "val")) == 3
    )  # a share of the training files, without test
    assert numbers(everything(tmp_path / "train-{0..1}.parquet")) == list(range(15))


def test_only_files_of_validation(tmp_path):
    write(tmp_path / "val.parquet", make(3))
    with pytest.raises(
        DataError, match=r"files for validation .*val\.parquet'.*and none whose name"
    ):
        MappedTable(str(tmp_path))


def test_metadata_reads_no_image(tmp_path):
    broken = pa.array([b"no image"] * 25)
    write(tmp_path / "x.parquet", make(25, image=broken))
    data = MappedTable(str(tmp_path))
    found = data.metadata
    assert set(found) == {
        *("number", "real", "flag", "length", "label", "class", "sequence_length")
    }
    assert len(found) == len(data)
    assert found["number"].tolist() == [int(row) for row in data.rows.rows(range(20))]
    row = found.iloc[7]
    assert row["class"] == data.classes[row["label"]] == ("cat", "dog", "emu")[row["number"] % 3]
    assert row["sequence_length"] == row["number"] % 5
    assert row["length"] == len(f"row {row['number']} é".encode())


def test_metadata_of_columns_that_are_no_fields(table):
    found = everything(table, fields={"label": None}).metadata
    assert {"label", "class", "number", "real", "text"} <= set(found)
    assert found["number"].tolist() == list(range(43))


def test_the_fingerprint(table, tmp_path):
    some = everything(table, fields={"text": None})
    prints = {
        everything(table).fingerprint,
        MappedTable(str(table)).fingerprint,
        MappedTable(str(table), "val").fingerprint,
        some.fingerprint,
    }
    assert len(prints) == 4
    moved = table.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert everything(moved).fingerprint in prints
    write(moved / "b.parquet", make(18, first=26))
    assert everything(moved).fingerprint not in prints


# Streams


def test_the_shards_of_a_stream(table):
    stream = StreamedTable(str(table), shares=Shares(0.0))
    assert list(stream.shard_lengths()) == [10, 10, 5, 10, 8]
    assert len(stream) == 43
    records = list(stream)
    assert [len(list(stream.read_shard(shard))) for shard in stream.shards()] == [10, 10, 5, 10, 8]
    assert [stream.decode(record)["number"] for record in records] == list(range(43))


def loaders(root, options):
    data, stream = MappedTable(str(root)), StreamedTable(str(root))
    order = StreamOrder(0, buffer=12, shuffle_shards=True)
    yield Loader(Plan(Random(len(data), seed=0), 5), Fetch(data, None, List(), 0, True), options)
    fetch = StreamFetch(stream, None, List(), 0, True, plan=StreamPlan(order, 5))
    yield Loader(fetch.plan, fetch, options)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [LoaderOptions("process", 2), LoaderOptions("thread", 3)],
    ids=["fork", "threads"],
)
def test_workers_read_the_same(table, options):
    for alone, shared in zip(loaders(table, None), loaders(table, options), strict=True):
        next(iter(alone))  # the parent has files open and row groups held
        with shared:
            assert toy.hashes(shared, 1) == toy.hashes(alone, 1)


def test_rows_before_bounds():
    bounds = np.array([0, 0, 3, 10, 10, 25])
    for rows in (
        RowSplit(25),
        TableRows(np.array([1, 4, 5, 24])),
        TableRows(np.array([], int)),
        RowSplit(25, "train", Shares(0.2)),
        RowSplit(25, "val", Shares(0.2)),
    ):
        listed = rows.rows(np.arange(len(rows)))
        assert rows_before(rows, bounds).tolist() == np.searchsorted(listed, bounds).tolist()


# Bad data


def refused(root, match, **arguments):
    for make_one in (MappedTable, StreamedTable):
        with pytest.raises(DataError, match=match):
            make_one(str(root), **arguments)


def test_another_schema(table):
    write(table / "c.parquet", make(5, number=pa.array(["1"] * 5)))
    refused(table, r"c\.parquet': column 'number' is string, but in '.*a\.parquet' it is int32")
    assert len(everything(table, fields={"text": None})) == 48  # what is not read may differ
    write(table / "c.parquet", make(5, real=None))
    refused(table, r"c\.parquet': column 'real' is missing, but in '.*a\.parquet' it is double")


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_file_that_was_cut_off(name, share, tmp_path):
    path = write(tmp_path / f"x.{name}", make(25))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(tmp_path, rf"x\.{name}' (was cut off or damaged|cannot be read).*again|replace it")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"it is not a table: it is empty"),
        (b"a,b\n1,2\n", r"it is not a table: it is text that starts with 'a,b"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            r"it is not a table: it is a Git LFS pointer",
        ),
        (os.urandom(2000), r"was it cut off"),
    ],
)
def test_a_file_that_is_something_else(content, match, tmp_path):
    (tmp_path / "x.parquet").write_bytes(content)
    refused(tmp_path, r"x\.parquet' cannot be read: " + match)


CELLS = {
    "a null": ("text", ["a", None, "b"], "None has no bytes"),
    "not a number": ("real", [0.0, float("nan"), 1.0], "nan is no finite number"),
    "infinite": ("vector", [[0.0], [float("inf")], [1.0]], "[inf] is no tensor"),
    "a null in a list": ("vector", [[1], [2, None], [3]], "[2, None] is no tensor"),
    "a null list": ("vector", [[[1]], [[1], None], [[2]]], "[[1], None] is no tensor"),
    "ragged": ("vector", [[[1]], [[1], [2, 3]], []], "[[1], [2, 3]] is no tensor"),
    "no picture": ("image", [picture(1), b"x" * 90, picture(1)], "it is text that starts"),
    "half a picture": ("image", [picture(1), picture(1)[:50], picture(1)], "truncated or"),
    "a path only": (
        "image",
        [
            {"bytes": picture(1), "path": None},
            {"bytes": None, "path": "a.png"},
            {"bytes": picture(1), "path": None},
        ],
        "{'bytes': None, 'path': 'a.png'} has no bytes",
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_bad_cell_costs_its_own_row_only(name, tmp_path):
    column, values, reason = CELLS[name]
    write(tmp_path / "a.parquet", make(3, **{column: pa.array(values)}), group=2)
    write(tmp_path / "b.parquet", make(3, **{column: pa.array(values)}), group=2)
    data = everything(tmp_path, fields={column: None})
    stream = StreamedTable(str(tmp_path), shares=Shares(0.0), fields={column: None})
    for row in (0, 2, 3, 5):
        data[row]
    record = list(stream)[4]
    for read in (lambda: data[4], lambda: stream.decode(record)):
        with pytest.raises(DataError) as caught:
            read()
        message = str(caught.value)
        assert f"b.parquet, row 1, column {column}" in message.replace("'", "")
        assert reason in message
        assert message.endswith(".")
        assert ".." not in message.replace("...", "")


def test_roots_without_tables(tmp_path):
    refused(tmp_path, r"has no file that ends in \.parquet, \.arrow, \.feather")
    refused(tmp_path / "none", r"dataset\.root: .*none.* is missing")
    refused(tmp_path / "none.parquet", r"none\.parquet' cannot be read: No such file")
    write(tmp_path / "x.parquet", make(0))
    refused(tmp_path, r"has no rows|there are no labels")


def test_labels_of_which_there_are_none(tmp_path):
    write(tmp_path / "x.parquet", make(3, label=pa.array([None] * 3, pa.string())))
    with pytest.raises(DataError, match="row 0, column 'label': None is none of the 0 classes"):
        everything(tmp_path)[0]


def test_a_compressed_stream(tmp_path):
    path = write(tmp_path / "compressed.stream.arrow", make(25))
    plain = write(tmp_path / "plain.parquet", make(25))
    assert [one["number"] for one in map(MappedTable(str(path)).__getitem__, range(3))] == [
        one["number"] for one in map(MappedTable(str(plain)).__getitem__, range(3))
    ]


@pytest.mark.parametrize("kind", [MappedTable, StreamedTable])
def test_files_at_an_address(table, tmp_path_factory, kind):
    shelf = Shelf({f"data/{path.name}": path.read_bytes() for path in table.iterdir()})
    local = kind(str(table), shares=Shares(0.0))
    with InThread(shelf) as port:
        files = Files(str(tmp_path_factory.mktemp("cache")))
        root = f"http://127.0.0.1:{port}/data/{{a,b}}.parquet"
        data = kind(root, shares=Shares(0.0), files=files)
        found = [sample["number"] for sample in all_of(data)]
        assert found == [sample["number"] for sample in all_of(local)]
        assert data.fingerprint == local.fingerprint


def test_a_stream_fetches_the_columns_of_its_fields(tmp_path):
    rows, draws = 120_000, np.random.default_rng(0)
    wide = pa.table({f"x.{number}": draws.random(rows) for number in range(1, 31)})
    (tmp_path / "wide").mkdir()
    pq.write_table(wide, tmp_path / "wide/a.parquet", row_group_size=rows // 3)
    with bucket(tmp_path / "wide", tmp_path) as (shelf, files):
        chosen = {"x": {"column": "x.3"}}
        data = StreamedTable("s3://data", fields=chosen, files=files, shares=Shares(0.0))
        assert all(data.want_shard(shard) > 0 for shard in data.shards())
        values = [float(data.decode(record)["x"]) for record in data]
    assert values == wide["x.3"].cast(pa.float32()).to_pylist()
    assert shelf.sent < wide.nbytes / 8


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
@pytest.mark.parametrize("kind", [MappedTable, StreamedTable])
@pytest.mark.parametrize("names", [("a", "b"), ("train", "val")])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"z": [1.5] * 8}, "column 'z' is double, but in .* it is missing"),
        ({"x": [0.5] * 8}, "column 'x' is double, but in .* it is int64"),
        ({"x": None}, "column 'x' is missing, but in .* it is int64"),
    ],
)
def test_files_of_other_columns_are_refused_by_both_names(
    tmp_path, ending, kind, names, other, said
):
    columns = {"x": list(range(8)), "label": ["u", "v"] * 4}
    both = columns, {name: of for name, of in (columns | other).items() if of is not None}
    for name, of in zip(names, both, strict=True):
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            pq.write_table(pa.table(of), path)
        else:
            with pa.ipc.new_file(path, pa.table(of).schema) as file:
                file.write_table(pa.table(of))
    split = "val" if names[1] == "val" else "train"
    with pytest.raises(DataError, match=rf"{names[1]}\.{ending}.*{said}") as refused:
        kind(str(tmp_path), split)
    assert f"{names[0]}.{ending}" in str(refused.value)
    assert len(kind(str(tmp_path), split, fields={"label": None}))


def test_the_table_of_metadata_keeps_whole_numbers_with_gaps(tmp_path):
    numbers = [2**53, None, 2**53 + 1, 2**53 + 3]
    table = pa.table({"id": pa.array(numbers * 5, pa.int64()), "label": ["u", "v"] * 10})
    pq.write_table(table, tmp_path / "a.parquet")
    data = MappedTable(str(tmp_path), fields={"label": None}, shares=Shares(0.0))
    assert data.metadata["id"].dropna().unique().tolist() == numbers[:1] + numbers[2:]
    assert Expression(f"id == {2**53 + 1}").mask(data.metadata).sum() == 5
