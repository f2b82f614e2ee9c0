"""CSV and TSV files, indexed and as a stream."""

import csv
import gzip
import io
import json
import pickle
import random
import tracemalloc
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

import penstock
from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.tables import delimited_text
from penstock.addons.tables.delimited_stream import DelimitedStream
from penstock.addons.tables.delimited_text import DelimitedText
from penstock.addons.tables.text.delimited_format import DelimitedFormat
from penstock.addons.tables.text.record_reader import read_records, unpacked
from penstock.build.training import TrainingParts
from penstock.errors import ConfigError, DataError
from penstock.files.limits import Limits
from tests.support.store_server import bucket

CLASSES = ["ham", "spam"]
SMS = Path(__file__).parents[2].parent / "shared" / "data" / "sms"


@pytest.fixture
def indexed(tmp_path):
    """Make an indexed dataset of some content."""

    def make(content="", split="train", name="data.tsv", **arguments):
        if content:
            (tmp_path / name).write_bytes(content.encode())
        arguments = {"val_fraction": 0.0, "cache_dir": str(tmp_path / "cache"), **arguments}
        return DelimitedText(str(tmp_path / name), split, **arguments)

    return make


@pytest.fixture
def stream(tmp_path):
    """Make a stream of some files."""

    def make(split="train", root=None, **arguments):
        arguments = {"val_fraction": 0.0, "classes": CLASSES, **arguments}
        return DelimitedStream(str(root or tmp_path), split, **arguments)

    return make


def zstd(content):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


def rows_of(count, quoted=False):
    rng = random.Random(count)
    words = ["alpha", "beta", "gamma", "d\u00e9j\u00e0"] + (
        [",", '"', "\n", "\t"] if quoted else []
    )
    return [
        (rng.choice(CLASSES), " ".join(rng.choices(words, k=rng.randint(1, 9))) + f" {n}")
        for n in range(count)
    ]


def tsv(rows, end="\n"):
    return "".join(f"{label}\t{text}{end}" for label, text in [("label", "text"), *rows])


def table(samples):
    return [(CLASSES[sample["label"]], sample["text"]) for sample in samples]


def read(data):
    return [data.decode(record) for record in data]


# Indexed.


def test_samples(indexed):
    rows = rows_of(300)
    for end in ("\n", "\r\n"):
        data = indexed(tsv(rows, end))
        assert table(data[index] for index in range(len(data))) == rows
        assert table(data.__getitems__([5, 0, 5])) == [rows[5], rows[0], rows[5]]
    assert data.classes == CLASSES
    assert data.facts == {"num_classes": 2, "num_outputs": 2}


def test_quoted_fields(indexed, tmp_path):
    rows = rows_of(500, quoted=True)
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("label", "text"), *rows])
    data = indexed(name="data.csv")
    assert table(data[index] for index in range(len(data))) == rows
    labels = [CLASSES.index(label) for label, _ in rows]
    assert data.metadata["label"].tolist() == labels


def test_splits_share_the_rows(indexed):
    rows = rows_of(100)
    train, val = (indexed(tsv(rows), split, val_fraction=0.2) for split in ("train", "val"))
    assert (len(train), len(val)) == (80, 20)
    both = table([*map(train.__getitem__, range(80)), *map(val.__getitem__, range(20))])
    assert sorted(both) == sorted(rows)
    assert train.fingerprint != val.fingerprint


def test_another_file_that_validates(indexed, tmp_path):
    (tmp_path / "train.tsv").write_text(tsv(rows_of(10)))
    (tmp_path / "test.tsv").write_text(tsv(rows_of(7)))
    files = {"name": ".", "file": "train.tsv", "val_file": "test.tsv", "val_fraction": 0.2}
    assert len(indexed(**files)) == 10
    assert table(indexed(split="val", **files).__getitems__(range(7))) == rows_of(7)


def test_metadata_is_what_the_samples_are(indexed, monkeypatch):
    monkeypatch.setattr(delimited_text, "_PIECE", 5000)  # many borders
    rows = rows_of(2000)
    data = indexed(tsv(rows, "\r\n"), val_fraction=0.3)
    found = data.metadata
    assert tuple(found.columns) == DelimitedText.columns
    samples = [data[index] for index in range(len(data))]
    assert found["label"].tolist() == [sample["label"] for sample in samples]
    assert found["class"].tolist() == [label for label, _ in table(samples)]
    lengths = [len(f"{label}\t{text}".encode()) for label, text in table(samples)]
    assert found["length"].tolist() == lengths


def test_quotes_that_are_open_at_a_border(indexed, monkeypatch):
    rows = [("x" * n + "\n,\n" * (n % 5), f"{n % 3}") for n in range(60)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("text", "label"), *rows])
    monkeypatch.setattr(delimited_text, "_PIECE", 3)  # blocks of six bytes
    data = indexed(text.getvalue(), name="a.csv")
    assert [data[n]["text"] for n in range(60)] == [text for text, _ in rows]
    assert [data.classes[code] for code in data.metadata["label"]] == [name for _, name in rows]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_label_may_be_any_column(indexed, place):
    rows = [[f"a{n}", f"b{n}", f"c{n}"] for n in range(50)]
    for number, row in enumerate(rows):
        row[place] = "a class with a long name" * (number % 3) + "z"
    names = ["p", "q", "r"]
    content = "".join(",".join(row) + "\r\n" for row in [names, *rows])
    data = indexed(content, name=f"{place}.csv", text=names[place - 1], label=names[place])
    assert len(data.classes) == 3
    assert [data.classes[code] for code in data.metadata["label"]] == [row[place] for row in rows]
    assert data[7]["text"] == rows[7][place - 1]


def test_labels_in_quotes(indexed):
    content = 'text,label\nx,"a ""b"""\ny,c\n"z\n",c\nw,"c"\n'
    data = indexed(content, name="a.csv")
    assert data.classes == ['a "b"', "c"]
    assert data.metadata["label"].tolist() == [0, 1, 1, 1]
    assert [data[index]["label"] for index in range(4)] == [0, 1, 1, 1]


def test_what_was_found_is_kept(indexed, monkeypatch, tmp_path):
    before = indexed(tsv(rows_of(30))).metadata
    monkeypatch.setattr(delimited_text.ColumnScan, "_scanned", None)  # not made again
    assert indexed().metadata.equals(before)
    monkeypatch.undo()
    for name in ("lengths.npy", "classes.npy"):
        next((tmp_path / "cache").rglob(name)).write_bytes(b"")
        assert indexed().metadata.equals(before)


def test_headers(indexed):
    body = "ham\tone\nspam\ttwo\n"
    assert len(indexed("label\ttext\n" + body)) == 2
    assert len(indexed(body, columns=["label", "text"])) == 2
    assert len(indexed("label\ttext\n" + body, columns=["label", "text"])) == 2
    both = indexed("label\ttext\n" + body, columns=["label", "text"], header=False)
    assert (len(both), both.classes) == (3, ["ham", "label", "spam"])


def test_given_classes_keep_their_order_and_save_the_pass(indexed, monkeypatch):
    monkeypatch.setattr(delimited_text.ColumnScan, "__init__", None)
    data = indexed("label\ttext\nham\ta\nspam\tb\n", classes=["spam", "ham"])
    assert [data[index]["label"] for index in range(2)] == [1, 0]
    assert data.facts["num_classes"] == 2


def test_texts_without_labels(indexed):
    data = indexed("one\ntwo\n\nfour\n", columns=["text"], label=None)
    assert [data[index] for index in range(4)] == [{"text": t} for t in ("one", "two", "", "four")]
    assert data.facts == {}
    assert list(data.metadata.columns) == ["length"]


def test_other_encodings_and_delimiters(indexed, tmp_path):
    (tmp_path / "a.txt").write_bytes("label|text\nham|f\u00fcnf \u20ac\n".encode("cp1252"))
    data = indexed(name="a.txt", delimiter="|", encoding="cp1252")
    assert data[0] == {"text": "f\u00fcnf \u20ac", "label": 0}


def test_it_travels_to_workers(indexed):
    data = indexed(tsv(rows_of(20)))
    state = pickle.dumps(data)
    assert len(state) < 5000
    assert pickle.loads(state)[3] == data[3]


def test_the_fingerprint(indexed, tmp_path):
    before = indexed(tsv(rows_of(20))).fingerprint
    assert indexed().fingerprint == before
    (tmp_path / "data.tsv").touch()
    assert indexed().fingerprint == before
    assert indexed(classes=CLASSES).fingerprint != before
    assert indexed(tsv(rows_of(20)).replace("alpha", "alphb")).fingerprint != before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("label\ttext\nham\tx\nham\n", r"line 3 .*it has 1 field, but there are 2 columns"),
        ("label\ttext\nham\tx\nham\ta\tb\n", r"line 3 .*it has 3 fields, but"),
        ("label\ttext\nham\tx\n\nham\tx\n", r"line 3 .*it is blank, but there are 2 columns"),
        ("label\ttext\nham\tx\neggs\tx\n", r"line 3 .*column 'label' has 'eggs', which is not one"),
    ],
)
def test_bad_records(indexed, content, said):
    data = indexed(content, classes=CLASSES)
    with pytest.raises(DataError, match=said):
        data[1]
    with pytest.raises(DataError, match=said.replace(" .*", ".*")):
        data.metadata  # noqa: B018
    assert data[0] == {"text": "x", "label": 0}


def test_bad_bytes(indexed, tmp_path):
    (tmp_path / "data.tsv").write_bytes(b"label\ttext\nham\tx\nham\t\xff\n")
    with pytest.raises(DataError, match=r"line 3 \(record 2\): byte 5 of the record \(0xff\) is"):
        indexed()[1]
    (tmp_path / "data.tsv").write_bytes(b"label\ttext\nham\tx\nh\xffm\ty\n")
    with pytest.raises(DataError, match="line 3: byte 2 of the record"):
        indexed().metadata  # noqa: B018


def test_a_bad_record_behind_quoted_line_ends_has_its_line(indexed):
    content = 'label,text\nham,"a\nb\n"\nham,x\nham\nham,x\n'
    with pytest.raises(DataError, match=r"data.csv', line 6 \(record 3\): it has 1 field"):
        indexed(content, name="data.csv", classes=CLASSES)[2]


def test_labels_that_are_no_classes(indexed):
    with pytest.raises(DataError, match="line 3: column 'label' is empty: it needs a class"):
        indexed("label\ttext\nham\tx\n\tx\n")[0]
    with pytest.raises(DataError, match="line 2: a label of 300 bytes in column 'label'"):
        indexed(f"label\ttext\n{'x' * 300}\tx\n")[0]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("\n\n", {}, "data.tsv' is empty"),
        ("label\ttext\n\n", {}, "has a header and no rows"),
        ("a\tb\n", {}, r"line 1: column 'text' \(dataset.text\) is missing; there are 'a', 'b'"),
        ("text\tb\n", {}, r"column 'label' \(dataset.label\) is missing"),
        ("text\ttext\tlabel\n", {}, "line 1: column 'text' appears twice"),
        ("a\tb\tc\n", {"columns": ["label", "text"]}, "the columns are 'a', 'b', 'c', but"),
        ("a\tb\n", {"columns": ["label", "text"], "header": True}, "the columns are 'a', 'b', but"),
        ('label\ttext\nham\tit"s\n', {}, "line 2: a quote neither opens nor closes"),
    ],
)
def test_bad_files(indexed, content, arguments, said):
    with pytest.raises(DataError, match=said):
        indexed(content, **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"delimiter": "||"}, r"dataset\.delimiter: '\|\|'; allowed: one ASCII"),
        ({"quoting": "all"}, r"dataset\.quoting: 'all'; allowed: standard, none"),
        ({"encoding": "utf-16"}, r"dataset\.encoding: 'utf-16'; allowed: utf-8"),
        ({"encoding": "nope"}, r"dataset\.encoding: 'nope'; allowed: utf-8"),
        ({"header": False}, r"dataset\.columns: the file has no header"),
        ({"classes": ["a", "a"]}, r"dataset\.classes: .*different texts"),
        ({"classes": [0, 1]}, r"dataset\.classes: .*quote numbers"),
        ({"split": "tests"}, r"data\.split"),
        ({"val_fraction": 2}, r"dataset\.val_fraction"),
    ],
)
def test_bad_arguments(indexed, arguments, said):
    with pytest.raises(ConfigError, match=said):
        indexed("label\ttext\nham\tx\n", **arguments)


def test_files_that_are_missing_or_compressed(indexed, tmp_path):
    with pytest.raises(DataError, match=r"none\.tsv.*cannot be read: No such file"):
        indexed(name="none.tsv")
    with pytest.raises(ConfigError, match=r"dataset\.file: .*is a folder; name the file in it"):
        indexed(name=".")
    (tmp_path / "a.tsv").write_bytes(gzip.compress(b"x"))
    with pytest.raises(ConfigError, match=r"compressed \(gzip\).* dataset=delimited_stream"):
        indexed(name="a.tsv")


# Streams.


@pytest.mark.one_in(6)
@pytest.mark.parametrize("quoting", ["standard", "none"])
@pytest.mark.parametrize("packed", [None, gzip.compress, zstd])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_stream_gives_the_same_as_the_index(stream, indexed, tmp_path, quoting, packed, end):
    rows = rows_of(3000)
    content = tsv(rows, end) + "\n\n"
    (tmp_path / "data.tsv").write_bytes((packed or bytes)(content.encode()))
    data = stream(root=tmp_path / "data.tsv", quoting=quoting)
    assert table(read(data)) == rows
    assert table(indexed(content, quoting=quoting).__getitems__(range(3000))) == rows


@pytest.mark.parametrize("quoting", ["standard", "none"])
def test_shards_are_the_stream_in_pieces(stream, tmp_path, quoting):
    for number in range(3):
        quoted = quoting == "standard" and number < 2
        rows = rows_of(900 + number, quoted=quoted)
        with (tmp_path / f"{number}.tsv").open("w", newline="") as file:
            if quoted:
                csv.writer(file, delimiter="\t").writerows([("label", "text"), *rows])
            else:
                file.write(tsv(rows))
    (tmp_path / "3.tsv.gz").write_bytes(gzip.compress(tsv(rows_of(40)).encode()))
    data = stream(quoting=quoting)
    shards = data.shards()
    assert len(shards) == 4
    pieces = [list(data.read_shard(pickle.loads(pickle.dumps(shard)))) for shard in shards]
    assert list(chain(*pieces)) == list(data) == list(stream(quoting=quoting))
    texts = [text for _, text in table(read(data))]
    assert len(texts) == 900 + 901 + 902 + 40
    assert len([text for text in texts if text.endswith(" 39")]) == 4


def test_a_stream_divides_records_for_good(stream, tmp_path):
    rows = rows_of(2000)
    (tmp_path / "a.tsv").write_text(tsv(rows))
    train, val = (table(read(stream(split, val_fraction=0.2))) for split in ("train", "val"))
    assert sorted(train + val) == sorted(rows)
    assert 340 < len(val) < 460
    (tmp_path / "a.tsv").write_text(tsv(rows + rows_of(500)))
    assert table(read(stream("val", val_fraction=0.2)))[: len(val)] == val


def test_file_names_divide_a_stream(stream, tmp_path):
    (tmp_path / "train-0.tsv").write_text(tsv(rows_of(10)))
    (tmp_path / "val-0.tsv").write_text(tsv(rows_of(7)))
    assert table(read(stream(val_fraction=0.5))) == rows_of(10)
    assert table(read(stream("val", val_fraction=0.5))) == rows_of(7)


def test_a_quoted_record_over_many_pieces(stream, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.addons.tables.text.record_reader._PIECE", 100)
    rows = rows_of(50, quoted=True)
    rows[20] = ("ham", 'a "quoted"\n' * 200)
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    assert table(read(stream())) == rows


def test_facts_and_fingerprint_of_a_stream(stream, tmp_path):
    (tmp_path / "a.tsv").write_text(tsv(rows_of(10)))
    data = stream()
    assert (data.classes, data.facts) == (CLASSES, {"num_classes": 2, "num_outputs": 2})
    before = data.fingerprint
    assert stream().fingerprint == before != stream("val", val_fraction=0.1).fingerprint
    (tmp_path / "a.tsv").write_text(tsv(rows_of(10)).replace("alpha", "alphb"))
    assert stream().fingerprint != before


@pytest.mark.parametrize("packed", [None, gzip.compress, zstd])
def test_bad_records_of_a_stream(stream, tmp_path, packed):
    content = b"label\ttext\n" + b"ham\tx\n" * 300000 + b"eggs\tx\nham\t\xff\nham\n"
    path = tmp_path / "a.tsv"
    path.write_bytes((packed or bytes)(content))
    data = stream()
    bad = list(data)[-3:]
    for record, said in zip(
        bad,
        ["line 300002: column 'label' has 'eggs'", "300003: byte 5", "line 300004: it has 1 field"],
        strict=True,
    ):
        with pytest.raises(DataError, match=f"a.tsv.*{said}"):
            data.decode(record)


@pytest.mark.parametrize("packed", [gzip.compress, zstd])
@pytest.mark.parametrize("end", [-1, -9, 200])
def test_a_compressed_file_that_was_cut_off(stream, tmp_path, packed, end):
    content = packed(tsv(rows_of(9000)).encode())
    (tmp_path / "a.tsv.zst").write_bytes(content[:end])
    with pytest.raises(DataError, match=r"a\.tsv\.zst' is damaged or cut off"):
        list(stream())


def test_frames_one_after_the_other(stream, tmp_path):
    rows = rows_of(900)
    content = tsv(rows).encode()
    for packed in (gzip.compress, zstd):
        (tmp_path / "a.tsv").write_bytes(packed(content[:5000]) + packed(content[5000:]))
        assert table(read(stream())) == rows
    broken = bytearray(zstd(content))
    broken[300:320] = bytes(20)
    (tmp_path / "a.tsv").write_bytes(broken)
    with pytest.raises(DataError, match=r"is damaged or cut off \(zstd"):
        list(stream())


def test_zstd_without_its_package(tmp_path, monkeypatch):
    import sys

    (tmp_path / "a").write_bytes(zstd(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(DataError, match=r"pip install zstandard"):
        next(unpacked(tmp_path / "a", Limits()))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("text\tlabel\nx\tham\n", r"b.tsv', line 1: the columns are \['text', 'label'\], but in"),
        ("", r"b.tsv' is empty"),
        ("\n\n", r"b.tsv' is empty"),
        ('label\ttext\nham\tx\nham\t"x\n', "b.tsv', line 3: a quote in this record is not closed"),
    ],
)
def test_bad_files_of_a_stream(stream, tmp_path, second, said):
    (tmp_path / "a.tsv").write_text(tsv(rows_of(5)))
    (tmp_path / "b.tsv").write_text(second)
    with pytest.raises(DataError, match=said):
        list(stream())


def test_a_record_without_end(stream, tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"label\ttext\nham\t" + bytes(4 << 20))
    with pytest.raises(DataError, match=r"line 2: a record has \d+ bytes or more.*record_bytes"):
        list(stream(limits=Limits(record_bytes=1 << 20)))


def test_a_field_that_is_too_long_is_found_without_reading_others_again(indexed, monkeypatch):
    records = "label\ttext\n" + 'ham\t"x"\n' * 20_000
    data = indexed(records + "ham\t" + "x" * (4 << 20), limits=Limits(record_bytes=1 << 20))
    size, done, real = data.index.file.size, [], PositionedFile.read

    def read(file, start, stop):
        done.append(stop - start)
        return real(file, start, stop)

    monkeypatch.setattr(PositionedFile, "read", read)
    with pytest.raises(DataError, match=r"line 20002 .*limits\.record_bytes=1048576"):
        _ = data.metadata
    assert sum(done) < size


def peak_of(function):
    """The most memory that a call holds, in bytes."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
@pytest.mark.one_in(8)
@pytest.mark.parametrize("field", ['"' + "a\n" * (1 << 20) + '"', "\t" * (2 << 20)])
def test_memory_is_in_proportion_to_a_record_whatever_is_in_it(indexed, tmp_path, field):
    content = f"label\ttext\nham\t{field}\nham\tx\n"
    data = indexed(content)
    record = b"ham\t" + field.encode()
    assert peak_of(lambda: data.index[1]) < 4 * len(record)
    assert (data.index[1], data.index[2]) == (record, b"ham\tx")
    (tmp_path / "stream.tsv").write_text(content)
    batches = read_records(tmp_path / "stream.tsv", "standard", Limits())
    assert peak_of(lambda: list(batches)) < 20 * len(record)

    def scan():
        with suppress(DataError):
            _ = data.metadata

    assert peak_of(scan) < 8 * len(record)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"classes": None}, r"dataset\.classes: is not set, .*list them"),
        ({"val_fraction": -1}, r"dataset\.val_fraction"),
    ],
)
def test_bad_arguments_of_a_stream(stream, tmp_path, arguments, said):
    (tmp_path / "a.tsv").write_text(tsv(rows_of(5)))
    with pytest.raises(ConfigError, match=said):
        stream(**arguments)


def test_files_at_addresses(indexed, stream, tmp_path):
    rows = rows_of(50)
    (tmp_path / "data").mkdir()
    for name, content in [("a.tsv", rows[:30]), ("b.tsv", rows[30:])]:
        (tmp_path / "data" / name).write_text(tsv(content))
    with bucket(tmp_path / "data", tmp_path / "files") as (_, files):
        assert table(read(stream(root="s3://data", files=files))) == rows
        cache = str(tmp_path / "cache")
        data = DelimitedText(
            "s3://data", file="b.tsv", val_fraction=0.0, files=files, cache_dir=cache
        )
        assert table(data.__getitems__(range(20))) == rows[30:]


def test_a_stream_of_nothing(stream, tmp_path):
    with pytest.raises(DataError, match=r"has no file that ends in \.tsv"):
        stream()


def test_quotes_are_parsed_as_the_csv_module_does():
    rng = random.Random(0)
    format = DelimitedFormat(",")
    for _ in range(300):
        fields = ["".join(rng.choices('ab,"\n', k=rng.randint(0, 6))) for _ in range(3)]
        out = json.dumps(fields)  # what failed, if it does
        text = ",".join('"' + one.replace('"', '""') + '"' for one in fields)
        assert format.fields(text.encode()) == fields == next(csv.reader([text])), out


# In a run.


def parts_of(root, *overrides, dataset="delimited_text"):
    return TrainingParts(
        penstock.compose(
            f"dataset={dataset}", f"dataset.root={root}", "batch.size=8", "loader=debug", *overrides
        )
    )


@pytest.mark.one_in(6)
@pytest.mark.parametrize("sampler", ["random", "weighted", "bucket"])
@pytest.mark.parametrize("kind", [[], ["transform.train.tokenize={kind: bytes, size: 258}"]])
def test_a_batch_and_its_loss(tmp_path, monkeypatch, sampler, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text(tsv(rows_of(100)))
    parts = parts_of("a.tsv", f"sampler={sampler}", *kind)
    with parts.data.train.loader() as loader:
        batch = next(iter(loader))
    assert batch["tokens"].shape == (8, int(batch["tokens_lengths"].max()))
    losses, outputs = parts.objective()(parts.model(), batch)
    assert losses.shape == (8,)
    assert outputs.shape == (8, 2)


@pytest.mark.parametrize("sharded", [[], ["sampler.buffer=50"]])
def test_a_stream_gives_each_record_once_to_any_readers(tmp_path, sharded):
    rows = rows_of(400)
    (tmp_path / "a.tsv").write_text(tsv(rows[:300]))
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(tsv(rows[300:]).encode()))
    found = []
    for workers in (0, 2):
        loader = [f"loader.num_workers={workers}", "loader.backend=thread"]
        arguments = ["dataset.classes=[ham,spam]", "dataset.val_fraction=0", *sharded, *loader]
        with parts_of(
            tmp_path, *arguments, dataset="delimited_stream"
        ).data.train.loader() as loader:
            found.append([(batch["text"], batch["label"].tolist()) for batch in loader])
    assert found[0] == found[1]
    pairs = [
        table([{"text": t, "label": i} for t, i in zip(*one, strict=True)]) for one in found[0]
    ]
    assert sorted(chain(*pairs)) == sorted(rows)


@pytest.mark.skipif(not SMS.is_dir(), reason="needs the SMS spam collection")
def test_the_collection_of_messages(tmp_path):
    config = penstock.compose(
        "experiment=sms_spam", f"dataset.root={SMS}", "loader=debug", f"cache_dir={tmp_path}"
    )
    parts = TrainingParts(config)
    train, val = parts.data.train.dataset, parts.data.val.dataset
    assert len(train) + len(val) == 5574
    spam = [int(data.metadata["label"].sum()) for data in (train, val)]
    assert sum(spam) == 747
    assert [len(data) for data in (train, val)] == [2787, 2787]
    assert '"' in "".join(train[index]["text"] for index in range(200))
    lines = (SMS / "SMSSpamCollection").read_text(encoding="utf-8").split("\n")
    assert train.index[5574].decode() == lines[5574]


def test_a_sampler_counts_tokens_and_not_characters(tmp_path):
    """Rows of many short words are longer than rows of a few long ones, also where quotes stand."""
    texts = ["a " * 9, "incomprehensibilities", '"a ""b"" c, d"', "one two"]
    rows = [f"{'xy'[row % 2]},{texts[row % 4]}" for row in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["label,text", *rows]) + "\n")
    common = [
        "dataset=delimited_text",
        f"dataset.root={tmp_path}/a.csv",
        "task=digest",
        f"dataset.cache_dir={tmp_path}/cache",
        "sampler=bucket",
        "sampler.tokens=18",
    ]
    config = penstock.compose(*common)
    for _ in range(2):  # the second time from the cache
        parts = TrainingParts(config)
        dataset, sampler = parts.data.train.dataset, parts.data.train.plan.sampler
        step = parts.data.train.transform.steps["tokenize"]
        true = [len(step(dataset[row])["tokens"]) for row in range(len(dataset))]
        assert dataset.text_lengths(step.length, step.counting).tolist() == true
        for number in range(sampler.size(0)):
            rows = sampler.batch(0, number)[1]
            assert len(rows) * max(true[row] for row in rows) <= 18
    told = parts.data.train.fingerprint["lengths"]
    other = TrainingParts(penstock.compose(*common, "transform.train.tokenize.max_length=4"))
    assert other.data.train.fingerprint["lengths"] != told
