"""CSV and TSV files, in any order and as a stream."""

import csv
import gzip
import pickle
import random
import re
from itertools import chain
from pathlib import Path

import pytest

import penstock
from penstock.addons.tables.table import MappedTable, StreamedTable
from penstock.build.training import TrainingParts
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError

CLASSES = ["ham", "spam"]
SMS = Path(__file__).parents[3].parent / "shared" / "data" / "sms"


@pytest.fixture
def mapped(tmp_path):
    """Make a dataset of some content."""

    def make(content="", split="train", name="data.tsv", **arguments):
        if content:
            (tmp_path / name).write_bytes(content.encode())
        return MappedTable(
            str(tmp_path / name), split, **{"shares": Shares(0.0), "text": "text", **arguments}
        )

    return make


@pytest.fixture
def stream(tmp_path):
    """Make a stream of some files."""

    def make(split="train", root=None, **arguments):
        arguments = {"shares": Shares(0.0), "classes": CLASSES, "text": "text", **arguments}
        return StreamedTable(str(root or tmp_path), split, **arguments)

    return make


def rows_of(count, quoted=False):
    rng = random.Random(count)
    words = ["alpha", "beta", "d\u00e9j\u00e0"] + ([",", '"', "\n", "\t"] if quoted else [])
    return [
        (rng.choice(CLASSES), " ".join(rng.choices(words, k=rng.randint(1, 9))) + f" {n}")
        for n in range(count)
    ]


def tsv(rows, end="\n"):
    return "".join(f"{label}\t{text}{end}" for label, text in [("label", "text"), *rows])


def table(samples):
    return [(CLASSES[sample["label"]], sample["text"]) for sample in samples]


def all_of(data):
    if isinstance(data, StreamedTable):
        return [data.decode(record) for record in data]
    return data.__getitems__(range(len(data)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_samples(mapped, end):
    rows = rows_of(300)
    data = mapped(tsv(rows, end))
    assert table(all_of(data)) == rows
    assert table([data[5], data[0]]) == [rows[5], rows[0]]
    assert (data.classes, data.facts) == (CLASSES, {"num_classes": 2, "num_outputs": 2})


def test_quoted_fields(mapped, stream, tmp_path):
    rows = rows_of(500, quoted=True)
    with (tmp_path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    assert table(all_of(mapped(name="data.csv"))) == rows
    assert table(all_of(stream())) == rows


def test_a_table_of_numbers_is_a_csv_too(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,label\n1,0.5,cat\n2,1.5,dog\n")
    (tmp_path / "a.jsonl").write_text(
        '{"x":1,"y":0.5,"label":"cat"}\n{"x":2,"y":1.5,"label":"dog"}'
    )
    for name in ("a.csv", "a.jsonl"):
        data = MappedTable(str(tmp_path / name), shares=Shares(0.0))
        assert [(one["x"], float(one["y"]), one["label"]) for one in all_of(data)] == [
            (1, 0.5, 0),
            (2, 1.5, 1),
        ]


@pytest.mark.parametrize("cell", ["", "NA", "#N/A", "null", "NaN", "-nan"])
def test_a_cell_without_a_number_is_refused_with_its_row(cell, tmp_path):
    (tmp_path / "a.csv").write_text(f"x,y\n0.5,1\n{cell},2\n-1.5,3\n")
    data = MappedTable(str(tmp_path / "a.csv"), shares=Shares(0.0))
    assert [float(data[row]["x"]) for row in (0, 2)] == [0.5, -1.5]
    with pytest.raises(DataError, match=r"row 1, column 'x': .* Repair the value"):
        data[1]


def test_a_record_is_longer_than_the_blocks_of_short_ones(tmp_path):
    short, long = "1,short\n" * 1_200_000, "x" * (3 << 20)
    (tmp_path / "a.csv").write_text(f"n,text\n{short}2,{long}\n{short}")
    data = MappedTable(str(tmp_path / "a.csv"), shares=Shares(0.0))
    assert len(data) == 2_400_001
    assert data[1_200_000]["text"] == long


def test_a_file_that_validates_has_the_classes_of_training(mapped, tmp_path):
    (tmp_path / "train.tsv").write_text(tsv([("c", "x"), ("b", "y"), ("a", "z")]))
    (tmp_path / "val-fewer.tsv").write_text(tsv([("c", "x"), ("b", "y")]))
    (tmp_path / "val-more.tsv").write_text(tsv([("a", "x"), ("d", "y")]))
    fewer, more = ({"name": f"{{train,val-{name}}}.tsv"} for name in ("fewer", "more"))
    assert [one["label"] for one in all_of(mapped(**fewer, shares=Shares(0.2)))] == [2, 1, 0]
    val = mapped(split="val", **fewer)
    assert (val.classes, [one["label"] for one in all_of(val)]) == (["a", "b", "c"], [2, 1])
    more = mapped(split="val", **more)
    assert more[0]["label"] == 0
    with pytest.raises(DataError, match=r"more\.tsv', row 1, column 'label': 'd' is none of the 3"):
        more[1]


def test_metadata_is_what_the_samples_are(mapped):
    data = mapped(tsv(rows_of(2000), "\r\n"), shares=Shares(0.3))
    found, samples = data.metadata, all_of(data)
    assert {*found.columns} == {"length", "label", "class"}
    assert found["label"].tolist() == [sample["label"] for sample in samples]
    assert found["class"].tolist() == [label for label, _ in table(samples)]
    assert found["length"].tolist() == [len(sample["text"].encode()) for sample in samples]


def test_headers_and_texts_without_labels(mapped):
    body = "ham\tone\nspam\ttwo\n"
    assert len(mapped("label\ttext\n" + body)) == 2
    assert len(mapped(body, columns=["label", "text"])) == 2
    assert len(mapped("label\ttext\n" + body, columns=["label", "text"])) == 2
    both = mapped("label\ttext\n" + body, columns=["label", "text"], header=False)
    assert (len(both), both.classes) == (3, ["ham", "label", "spam"])
    given = mapped("label\ttext\n" + body, classes=["spam", "ham"])
    assert [one["label"] for one in all_of(given)] == [1, 0]
    data = mapped("one\ntwo\nfour\n", columns=["text"], label=None)
    assert all_of(data) == [{"text": text} for text in ("one", "two", "four")]
    assert (data.facts, list(data.metadata.columns)) == ({}, ["length"])


def test_other_encodings_and_delimiters(mapped, tmp_path):
    for encoding in ("cp1252", "utf-16"):
        content = "label|text\nham|f\u00fcnf \u20ac\n".encode(encoding)
        (tmp_path / f"{encoding}.txt").write_bytes(content)
        data = mapped(name=f"{encoding}.txt", delimiter="|", encoding=encoding)
        assert data[0] == {"text": "f\u00fcnf \u20ac", "label": 0}


def test_it_travels_to_workers_and_is_converted_once(mapped, tmp_path):
    data = mapped(tsv(rows_of(20)))
    assert len(state := pickle.dumps(data)) < 10_000
    assert pickle.loads(state)[3] == data[3]
    made = sorted(Path("data/cache/tables").iterdir())
    assert all_of(mapped()) == all_of(data)
    assert sorted(Path("data/cache/tables").iterdir()) == made
    assert all_of(mapped(tsv(rows_of(21)))) != all_of(data)


def test_the_fingerprint(mapped, tmp_path):
    before = mapped(tsv(rows_of(20))).fingerprint
    (tmp_path / "data.tsv").touch()
    assert mapped().fingerprint == before
    assert mapped(classes=CLASSES[::-1]).fingerprint != before
    assert mapped(tsv(rows_of(20)).replace("alpha", "alphb")).fingerprint != before


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("label\ttext\nham\tx\nham\n", {}, r"Row #3: Expected 2 columns, got 1: ham"),
        ("label\ttext\nham\tx\nham\ta\tb\n", {}, r"Row #3: Expected 2 columns, got 3: ham"),
        ('label\ttext\nham\tx\nham\t"x\nham\ty\n', {}, r"a quoted field is not closed"),
        ("\n\n", {}, "Empty CSV"),
        ("x\ty\n", {"text": None}, "has no rows"),
        ("label\ttext\n\n", {"label": None}, "has no rows"),
        ("text\ttext\tlabel\n", {}, "column 'text' appears twice"),
        ("a\tb\tc\n", {"columns": ["label", "text"]}, "Expected 2 columns, got 3"),
        ("label\ttext\n\tx\n", {"classes": CLASSES}, "row 0, column 'label': '' is none of the 2"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_files_and_records(stream, mapped, tmp_path, content, arguments, said, packed):
    name = "data.tsv.gz" if packed else "data.tsv"
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    with pytest.raises(DataError, match=f"data.tsv.*{said}"):
        mapped(name=name, **arguments)[0]
    if "no rows" not in said:
        with pytest.raises(DataError, match=f"data.tsv.*{said}"):
            all_of(stream(**arguments))


def test_bad_bytes(mapped, tmp_path):
    (tmp_path / "data.tsv").write_bytes(b"label\ttext\nham\tx\nham\t\xff\n")
    with pytest.raises(DataError, match=r"data\.tsv' cannot be read: .*Row #3: .*invalid UTF8"):
        mapped()
    # Neither is a picture, which columns of bytes are in other formats.
    (tmp_path / "a.csv").write_bytes("x,y\n1,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"Row #2: .*invalid UTF8 data; set dataset\.encoding"):
        mapped(name="a.csv", text=None)
    assert mapped(name="a.csv", text=None, encoding="latin-1")[0] == {"x": 1, "y": "caf\u00e9"}
    (tmp_path / "b.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    with pytest.raises(DataError, match=r"b\.csv' cannot be read"):
        mapped(name="b.csv", text=None)


@pytest.mark.parametrize(
    ("first", "later", "kind", "type"),
    [
        ("1", "0.5", "int64", "float"),
        ("1", "99999999999999999999", "int64", "float"),
        ("1.5", "?", "double", "text"),
        ("true", "7", "bool", "text"),
        ("", "late", None, "text"),
        ("2020-01-01", "soon", None, "text"),
    ],
)
def test_a_cell_unlike_those_of_the_first_8_mib(mapped, stream, tmp_path, first, later, kind, type):
    cells = [*[first] * 8600, later]
    content = "".join(f"{cell},{'p' * 1000}\n" for cell in ["x", *cells])
    given = {"text": None, "fields": {"x": None}}
    data = mapped(content, name="a.csv", types={"x": type}, **given)
    assert data[8600] == all_of(stream(types={"x": type}, classes=None, **given))[8600]
    assert data[8600]["x"] == (later if type == "text" else pytest.approx(float(later)))
    if kind:
        said = rf"a\.csv', Row #8602, column 'x': '{re.escape(later)}' is no {kind}, .*"
        for make in (mapped, stream):
            with pytest.raises(DataError, match=rf"{said}set dataset\.types={{x: {type}}}"):
                all_of(make(**given, **({"name": "a.csv"} if make is mapped else {})))


@pytest.mark.parametrize(
    ("change", "arguments", "error"),
    [
        (lambda text: text, {}, "Row #6002, column 'x': 'wrong' is no int64"),
        (lambda text: text.replace("\n", "\r\n"), {}, "Row #6002"),
        (lambda text: text.replace("\n", "\n\n", 3), {}, "'wrong' is no int64"),
        (lambda text: text.replace("0,", "\r\r0,", 1), {"types": {"x": "text"}}, None),
        (lambda text: text.split("\n", 1)[1], {"columns": ["x", "text"]}, "Row #6001"),
        (lambda text: text, {"columns": ["x", "text"], "header": True}, "Row #6002"),
        (lambda text: text, {"encoding": "utf-16"}, "wrong"),
        (lambda text: text, {"encoding": "cp949"}, "wrong"),
        (lambda text: text.replace('"', '" ', 1), {"encoding": "cp949"}, "wrong"),
    ],
    ids=["plain", "CRLF", "blank", "CR", "nameless", "names", "utf-16", "cp949", "cp949+1"],
)
@pytest.mark.parametrize("line_end", ["", "\n"])
def test_every_row_behind_the_first_block_comes_once(tmp_path, change, arguments, error, line_end):
    # 15 MB or more: types are told by the first 8 MiB, and their rows are converted then.
    words = "\uac00\ub098\ub2e4 " * 300 + line_end
    quote = '"' if line_end else ""
    text = "x,text\n" + "".join(f"{n},{quote}{words}{n}{quote}\n" for n in range(6_000))
    file, encoding = tmp_path / "a.csv", arguments.get("encoding", "utf-8")
    file.write_bytes(change(text).encode(encoding))
    how = {"shares": Shares(0.0), "cache_dir": str(tmp_path / "c"), **arguments}
    rows = [
        (int(one["x"]), int(one["text"].split()[-1]))
        for one in all_of(MappedTable(str(file), **how))
    ]
    assert rows == [(n, n) for n in range(6_000)]
    if error:
        file.write_bytes(change(f"{text}wrong,end\n").encode(encoding))
        with pytest.raises(DataError, match=error):
            MappedTable(str(file), **how)


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n", "1234,0.5", "1234,0.5\n"])
@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_file_as_long_as_the_first_block(tmp_path, encoding, shift, end):
    line, size = "12345,0.5\n", 8 << 20
    rows = (size - 4) // len(line)
    first = "a,b\n" + line * (rows - 1)
    text = first + "1,0.".ljust(size - shift - len(first) - 1, "5") + "\n" + end
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    how = {"cache_dir": str(tmp_path / "c"), "encoding": encoding, "shares": Shares(0.0)}
    data = MappedTable(str(tmp_path / "a.csv"), **how)
    assert len(data) == rows + ("1234" in end)
    assert [int(data[row]["a"]) for row in (0, rows - 2, rows - 1)] == [12345, 12345, 1]


def test_json_lines_of_another_type_name_their_row(tmp_path):
    lines = [f'{{"x":{n},"text":"{"word " * 400}"}}' for n in range(6_000)]
    for value, said in (
        (
            '"a"',
            r"Column\(/x\) changed from number to string in row (\d+) of the block that begins",
        ),
        ("1.5", r"parse:1\.5()"),
    ):
        lines[5_000] = f'{{"x":{value},"text":""}}'
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        with pytest.raises(DataError, match=f"a.jsonl' .*{said}.*dataset.types") as error:
            MappedTable(str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "c"))
        found = re.search(rf"{said}.*with row (\d+)", str(error.value))
        row, first = (int(of or 0) for of in found.groups())
        assert 4_000 < first <= 5_000
        assert row in (0, 5_000 - first)


def test_files_have_the_types_of_the_first(mapped, stream, tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z\n0.5,a,1\n")
    (tmp_path / "b.csv").write_text("z,x,y\n2,3,7\n4,5,6\n")
    (tmp_path / "c.csv").write_text("z,x,y\n2,,b\n")
    made = {"text": None, "fields": {"y": None, "z": None}}
    for data in (mapped(name=".", **made), stream(**made)):
        texts = [(sample["y"], sample["z"]) for sample in all_of(data)]
        assert texts == [("a", 1), ("7", 2), ("6", 4), ("b", 2)]
    files = {"text": None, "name": "{a,b}.csv"}
    assert [float(sample["x"]) for sample in all_of(mapped(**files))] == [0.5, 3, 5]
    (tmp_path / "a.csv").write_text("x,y,z\n0.5,a,0.5\n")
    (tmp_path / "b.csv").write_text("x,y,z\n1,a,0.5\n")
    files["name"] = "{b,a}.csv"
    with pytest.raises(DataError, match=r"'x' is double, but in .* int64.*set dataset\.types"):
        mapped(**files)
    assert [float(row["x"]) for row in all_of(mapped(types={"x": "float"}, **files))] == [1, 0.5]
    with pytest.raises(ConfigError, match=r"dataset\.types: there is no column 'w'"):
        mapped(types={"w": "text"}, **files)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"delimiter": "||"}, r"only single character .*; set dataset\.encoding or"),
        (
            {"encoding": "nope"},
            r"unknown encoding: nope; set dataset\.encoding or dataset\.delimiter",
        ),
        ({"header": False}, r"no column 'text' \(there are f0, f1\)"),
        ({"classes": ["a", "a"]}, r"dataset\.classes: .*different texts"),
        ({"split": "tests"}, r"data\.split"),
        ({"types": {"n": "int"}}, r"dataset\.types: there is no column 'n'"),
        ({"text": "words"}, r"dataset\.text: there is no column 'words'"),
    ],
)
def test_bad_arguments(mapped, arguments, said):
    mapped("label\ttext\nham\tx\n")
    with pytest.raises((ConfigError, DataError), match=said):
        mapped(**arguments)


# Streams.


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_shards_are_files_and_a_stream_gives_all_of_them(stream, tmp_path, packed):
    suffix = ".gz" if packed is gzip.compress else ""
    for number in range(3):
        (tmp_path / f"{number}.tsv{suffix}").write_bytes(packed(tsv(rows_of(40)).encode()))
    data = stream()
    assert (len(data.shards()), data.shard_lengths()) == (3, None)
    pieces = [[data.decode(record) for record in data.read_shard(n)] for n in data.shards()]
    assert list(chain(*pieces)) == all_of(data)
    assert table(all_of(data)) == rows_of(40) * 3
    assert stream(classes=None).classes == CLASSES


def test_a_stream_divides_records_for_good(stream, tmp_path):
    rows = rows_of(2000)
    (tmp_path / "a.tsv").write_text(tsv(rows))
    train, val = (table(all_of(stream(split, shares=Shares(0.2)))) for split in ("train", "val"))
    assert sorted(train + val) == sorted(rows)
    assert 340 < len(val) < 460
    (tmp_path / "a.tsv").write_text(tsv(rows + rows_of(500)))
    assert table(all_of(stream("val", shares=Shares(0.2))))[: len(val)] == val
    (tmp_path / "a.tsv").rename(tmp_path / "train-a.tsv")
    (tmp_path / "val-b.tsv").write_text(tsv(rows_of(7)))
    assert table(all_of(stream(shares=Shares(0.5)))) == rows + rows_of(500)
    assert table(all_of(stream("val", shares=Shares(0.5)))) == rows_of(7)


def test_a_compressed_file_that_was_cut_off(stream, tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(tsv(rows_of(9000)).encode())[:-20])
    with pytest.raises(DataError, match=r"a\.tsv\.gz' cannot be read"):
        all_of(stream())


def parts_of(root, *overrides, dataset="delimited_text"):
    return TrainingParts(
        penstock.compose(
            f"dataset={dataset}", f"dataset.root={root}", "batch.size=8", "loader=debug", *overrides
        )
    )


@pytest.mark.parametrize("sampler", ["random", "weighted", "bucket"])
def test_a_batch_and_its_loss(tmp_path, sampler):
    (tmp_path / "a.tsv").write_text(tsv(rows_of(100)))
    parts = parts_of(tmp_path / "a.tsv", f"sampler={sampler}")
    with parts.data.train.loader() as loader:
        batch = next(iter(loader))
    assert batch["tokens"].shape == (8, int(batch["tokens_lengths"].max()))
    losses, outputs = parts.objective().measure(parts.model(), batch)
    assert (losses.shape, outputs.shape) == ((8,), (8, 2))


@pytest.mark.parametrize("sharded", [[], ["sampler.buffer=50"]])
def test_a_stream_gives_each_record_once_to_any_readers(tmp_path, sharded):
    rows = rows_of(400)
    (tmp_path / "a.tsv").write_text(tsv(rows[:300]))
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(tsv(rows[300:]).encode()))
    found = []
    for workers in (0, 2):
        loader = [f"loader.num_workers={workers}", "loader.backend=thread"]
        arguments = ["dataset.classes=[ham,spam]", "data.split.val=0", *sharded, *loader]
        parts = parts_of(tmp_path, *arguments, dataset="delimited_stream")
        with parts.data.train.loader() as batches:
            found.append([(batch["text"], batch["label"].tolist()) for batch in batches])
    assert found[0] == found[1]
    pairs = [(CLASSES[i], t) for texts, labels in found[0] for t, i in zip(texts, labels)]  # noqa: B905
    assert sorted(pairs) == sorted(rows)


@pytest.mark.skipif(not SMS.is_dir(), reason="needs the SMS spam collection")
def test_the_collection_of_messages(tmp_path):
    words = ["experiment=sms_spam", f"dataset.root={SMS}", "loader=debug", f"cache_dir={tmp_path}"]
    parts = TrainingParts(penstock.compose(*words))
    train, val = parts.data.train.dataset, parts.data.val.dataset
    assert [len(data) for data in (train, val)] == [2787, 2787]
    assert sum(int(data.metadata["label"].sum()) for data in (train, val)) == 747
    assert '"' in "".join(train[index]["text"] for index in range(200))


def test_a_sampler_counts_tokens_and_not_characters(tmp_path):
    """Rows of many short words are longer than rows of a few long ones, also where quotes stand."""
    texts = ["a " * 9, "incomprehensibilities", '"a ""b"" c, d"', "one two"]
    rows = [f"{'xy'[row % 2]},{texts[row % 4]}" for row in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["label,text", *rows]) + "\n")
    common = ["dataset=delimited_text", f"dataset.root={tmp_path}/a.csv", "task=digest"]
    config = penstock.compose(*common, "sampler=bucket", "sampler.tokens=18")
    for _ in range(2):  # the second time from the cache
        parts = TrainingParts(config)
        dataset, sampler = parts.data.train.dataset, parts.data.train.plan.sampler
        step = parts.data.train.transform.steps["tokenize"]
        true = [len(step(dataset[row])["tokens"]) for row in range(len(dataset))]
        assert dataset.text_lengths(step.length, step.counting).tolist() == true
        for number in range(sampler.size(0)):
            rows = sampler.batch(0, number)[1]
            assert len(rows) * max(true[row] for row in rows) <= 18
