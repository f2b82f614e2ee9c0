"""Tables, texts and archives from a stranger: refused in one message, within bounded memory."""

import gzip
import io
import json
import os
import re
import struct
import tarfile

import numpy as np
import pytest

from penstock.addons.shards.tar_shards import TarShards
from penstock.addons.tables.delimited_stream import DelimitedStream
from penstock.addons.tables.delimited_text import DelimitedText
from penstock.addons.tables.parquet import Parquet
from penstock.errors import DataError
from penstock.files.limits import Limits
from penstock.transforms.text import Tokenize, word_id
from tests import hostile_batches

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MIB = 1 << 20


def ipc(path, table, compression=None, stream=False):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with path.open("wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


def replaced(path, old, new):
    """Change the one place of a file that holds `old`."""
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def rows_of(path, **arguments):
    return Parquet(str(path), val_fraction=0.0, **arguments)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("column", ["text", "bytes", "list"])
def test_offsets_out_of_bounds(tmp_path, column, stream):
    values = {
        "text": pa.array(["aaa", "bbbbb", "c"]),
        "bytes": pa.array([b"aaa", b"bbbbb", b"c"]),
        "list": pa.array([[1.0] * 3, [2.0] * 5, [3.0]], pa.list_(pa.float32())),
    }[column]
    path = ipc(tmp_path / "x.arrow", pa.table({"x": values}), stream=stream)
    replaced(path, struct.pack("<4i", 0, 3, 8, 9), struct.pack("<4i", 0, 3, 400_000, 9))
    kind = {"text": "text", "bytes": "bytes", "list": "tensor"}[column]
    table = rows_of(path, fields={"x": kind})
    with pytest.raises(DataError, match=r"row group 0 cannot be read"):
        table[1]


def test_dictionary_indices_out_of_bounds(tmp_path):
    labels = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1], pa.int32()), ["cat", "dog"])
    path = ipc(tmp_path / "x.arrow", pa.table({"label": labels}))
    replaced(path, struct.pack("<4i", 0, 1, 0, 1), struct.pack("<4i", 0, 9_000_000, 0, -7))
    with pytest.raises(DataError, match="row group 0 cannot be read"):
        rows_of(path)


def test_compressed_buffers_that_claim_more(tmp_path):
    table = pa.table({"x": pa.array(np.zeros(90 * MIB // 8))})
    path = ipc(tmp_path / "x.arrow", table, "zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"row group 0: .*limits\.expansion=200\.0"):
        rows_of(path)[0]
    assert rows_of(path, limits=Limits(expansion=1e6))[0]["x"] == 0


def test_a_stream_is_refused_before_it_is_decompressed(tmp_path):
    path = ipc(tmp_path / "x.arrow", pa.table({"x": [1, 2]}), "zstd", stream=True)
    with pytest.raises(DataError, match="a compressed stream"):
        rows_of(path)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_metadata_that_a_message_of_a_stream_claims(tmp_path, number, old):
    """Arrow makes room for it before it looks at what is there."""
    options = pa.ipc.IpcWriteOptions(use_legacy_format=old)
    table, sink = pa.table({"x": [1, 2]}), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content = bytearray(sink.getvalue())
    stream = pa.BufferReader(bytes(content))
    for _ in range(number):
        pa.ipc.read_message(stream)
    claimed = struct.pack("<i", 2**30) if old else struct.pack("<ii", -1, 2**30)
    content[stream.tell() : stream.tell() + len(claimed)] = claimed
    path = tmp_path / "x.arrow"
    path.write_bytes(content)
    os.truncate(path, 2**31)
    with pytest.raises(DataError, match=r"1073741824 bytes of metadata, .*limits\.record_bytes"):
        rows_of(path)


def test_a_file_without_its_footer_is_not_read_as_a_stream(tmp_path):
    """Its magic bytes would be a message of 1.3 GB."""
    path = tmp_path / "x.arrow"
    path.write_bytes(ipc(tmp_path / "y.arrow", pa.table({"x": [1, 2]})).read_bytes()[:-10])
    with pytest.raises(DataError, match="Not an Arrow file"):
        rows_of(path)


def test_a_file_that_becomes_shorter_is_no_fatal_signal(tmp_path):
    path = ipc(tmp_path / "x.arrow", pa.table({"x": np.arange(1e5)}))
    table = rows_of(path)
    assert table[0]["x"] == 0
    os.truncate(path, 4096)
    with pytest.raises(DataError, match="has become shorter while it was in use"):
        table[99_999]


def test_a_file_that_becomes_shorter_between_two_batches_is_no_fatal_signal(tmp_path):
    """The second one finds all of its row groups in memory, as maps of the file."""
    parts = [pa.table({"x": [f"{part} {n}" for n in range(9000)]}) for part in range(3)]
    path = ipc(tmp_path / "x.arrow", pa.concat_tables(parts))
    table = rows_of(path)
    assert table.fetch_batch(np.array([0, 9000, 18_000]))["x"] == ["0 0", "1 0", "2 0"]
    os.truncate(path, 4096)
    with pytest.raises(DataError, match="has become shorter while it was in use"):
        table.fetch_batch(np.array([26_999, 17_999, 8999]))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("label", [10**11, 2**63 - 1])
def test_labels_that_would_make_too_many_classes(tmp_path, label, suffix):
    table = pa.table({"label": pa.array([0, label])})
    path = tmp_path / f"x.{suffix}"
    pq.write_table(table, path) if suffix == "parquet" else ipc(path, table)
    with pytest.raises(DataError, match=rf"label {label}, more than limits\.classes=1000000"):
        rows_of(path)


def test_labels_that_do_not_fit(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"label": pa.array([0, 2**64 - 1], pa.uint64())}), path)
    with pytest.raises(DataError, match="row group 0 cannot be read"):
        rows_of(path)


def test_columns_without_end(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({f"c{place}": [1] for place in range(30)}), path)
    with pytest.raises(DataError, match=r"it has 30 columns, more than limits\.columns=20"):
        rows_of(path, limits=Limits(columns=20))


@pytest.mark.stress
def test_a_text_that_a_parquet_dictionary_repeats(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a" * MIB] * 200}), path)
    assert path.stat().st_size < 200_000
    with pytest.raises(DataError, match=r"row group 0: .*limits\.expansion"):
        rows_of(path)[0]
    assert len(rows_of(path, limits=Limits(expansion=1e5))[199]["text"]) == MIB


def test_parquet_numbers_that_are_repeated(tmp_path):
    path = tmp_path / "x.parquet"
    count = 12_000_000
    pq.write_table(pa.table({"x": np.zeros(count)}), path, row_group_size=count)
    assert path.stat().st_size < 50_000
    with pytest.raises(DataError, match=r"row group 0: .*limits\.expansion"):
        rows_of(path)[0]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_cells_that_are_too_large_cost_their_row_only(tmp_path, suffix):
    table = pa.table({"text": ["ok", "x" * 5000], "list": [[1.0], [2.0] * 900]})
    path = tmp_path / f"x.{suffix}"
    pq.write_table(table, path) if suffix == "parquet" else ipc(path, table)
    for field in ("text", "list"):
        rows = rows_of(path, fields={field: None}, limits=Limits(record_bytes=4000))
        assert rows[0]
        with pytest.raises(DataError, match=rf"row 1, column '{field}'.*limits\.record_bytes"):
            rows[1]


def test_schemas_that_say_nonsense(tmp_path):
    for said in ("[" * 100_000, json.dumps({"info": {"features": {"label": {"names": 5}}}})):
        table = pa.table({"label": ["cat", "dog"]}).replace_schema_metadata({"huggingface": said})
        assert rows_of(ipc(tmp_path / "x.arrow", table)).classes == ["cat", "dog"]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.csv", "x.csv.gz", "x.tar", "x.tar.gz"])
def test_a_pipe_is_no_file(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="it is a FIFO, not a file"):
        opened(tmp_path / name)


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.tar", "x.tar.gz"])
def test_links_to_nothing_and_folders(tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "nothing")
    with pytest.raises(DataError, match=name):
        opened(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=name):
        opened(tmp_path / name)


def opened(path):
    if "tar" in path.name:
        return TarShards(str(path), val_fraction=0.0)
    if "csv" in path.name:
        return list(stream(path))
    return rows_of(path)


def stream(path, **arguments):
    return DelimitedStream(str(path), classes=["a", "b"], val_fraction=0.0, **arguments)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("piece", [b"\0", b'"', b"\n"], ids=["zeros", "quotes", "blank"])
def test_texts_that_expand(tmp_path, kind, piece):
    text = b"text,label\n" + piece * (24 * MIB)
    path = tmp_path / f"x.csv.{kind}"
    if kind == "gz":
        path.write_bytes(gzip.compress(text, 6))
    else:
        path.write_bytes(pytest.importorskip("zstandard").compress(text))
    with pytest.raises(DataError, match=r"x\.csv.*(limits\.expansion|blank lines|record_bytes)"):
        for _ in stream(path, limits=Limits(record_bytes=16 * MIB, expansion=50.0)):
            pass


def test_what_zstd_gives_at_once_is_bounded(tmp_path):
    from penstock.addons.tables.text.record_reader import unpacked

    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "x").write_bytes(zstandard.compress(bytes(60 * MIB)))
    assert len(next(unpacked(tmp_path / "x", Limits()))) == MIB


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["x.csv.gz", "x.tar.gz"])
@pytest.mark.parametrize("zeros", [0, 30 * MIB, 1 << 40])
def test_zeros_behind_a_member_of_gzip(tmp_path, name, zeros):
    """They are skipped, and beyond a bound refused; byte by byte, these would take days."""
    path = tmp_path / name
    text = b"text,label\n" + b"x,a\n" * 50
    if "tar" in name:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for number in range(50):
                tar.addfile(tarfile.TarInfo(f"{number}.txt"))
        text = packed.getvalue()
    half = len(text) // 2
    path.write_bytes(gzip.compress(text[:half]) + bytes(512) + gzip.compress(text[half:]))
    os.truncate(path, path.stat().st_size + zeros)
    if zeros > 1 << 30:
        with pytest.raises(DataError, match=r"bytes of padding follow its content"):
            list(opened(path))
    else:
        assert len(list(opened(path))) == 50


def test_long_records_and_their_neighbours(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'text,label\nshort,a\n"' + b"x\n" * 40_000 + b'",b\nlast,a\n')
    limits = Limits(record_bytes=50_000)
    rows = DelimitedText(
        str(path), classes=["a", "b"], val_fraction=0.0, limits=limits, cache_dir=str(tmp_path)
    )
    assert [rows[0]["text"], rows[2]["text"]] == ["short", "last"]
    with pytest.raises(DataError, match=r"x\.csv', line 3 \(record 2\): .*limits\.record_bytes"):
        rows[1]
    with pytest.raises(DataError, match=r"x\.csv', line 3.*limits\.record_bytes"):
        _ = rows.metadata
    with pytest.raises(DataError, match=r"x\.csv', line 3: a record has .*limits\.record_bytes"):
        list(stream(path, limits=limits))


@pytest.mark.thorough
def test_records_that_span_pieces_are_put_together_once(tmp_path):
    """Quotes and line ends on both sides of the borders of pieces, against the whole text."""
    path = tmp_path / "x.csv"
    long = ('x""y\n' * 700_000).encode()
    path.write_bytes(b'text,label\n"' + long + b'",a\nb,a\n"' + long + b'",b\n')
    samples = [one["text"] for one in map(stream(path).decode, stream(path))]
    plain = long.decode().replace('""', '"')
    assert samples == [plain, "b", plain]


def test_many_columns_take_no_longer_each(tmp_path):
    path = tmp_path / "x.csv"
    names = ["text", "label", *(f"c{place}" for place in range(90_000))]
    path.write_text(",".join(names) + "\n" + ",".join(["a"] * len(names)) + "\n")
    assert stream(path).decode(next(iter(stream(path)))) == {"text": "a", "label": 0}
    with pytest.raises(DataError, match=r"more than limits\.columns=1000"):
        list(stream(path, limits=Limits(columns=1000)))


def test_classes_of_a_text(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("text\tlabel\n" + "".join(f"a\t{10**11 + row}\n" for row in range(50)))
    given = {"val_fraction": 0.0, "cache_dir": str(tmp_path / "cache")}
    assert len(DelimitedText(str(path), **given).classes) == 50
    rows = DelimitedText(str(path), limits=Limits(classes=20), **given | {"val_fraction": 0.1})
    with pytest.raises(DataError, match=r"x\.tsv': it has 50 classes.*limits\.classes=20"):
        _ = rows.classes  # found before, under other limits
    given["cache_dir"] = str(tmp_path / "other")
    with pytest.raises(DataError, match=r"x\.tsv', line \d+: .*limits\.classes=20"):
        _ = DelimitedText(str(path), limits=Limits(classes=20), **given).classes


def tar(path, members, packed=False):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, *headers in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), dict(headers)
            archive.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(sink.getvalue()) if packed else sink.getvalue())
    return path


def shards(path, **arguments):
    return TarShards(str(path), val_fraction=0.0, **arguments)


def npy(shape, dtype="<f4"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(16)


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("json", b"[" * 100_000 + b"]" * 100_000),
        ("json", b'{"a":' * 50_000),
        ("json", b"9" * 5000),
        ("json", b'{"a": [18446744073709551616]}'),
        ("json", b"[1e400]"),
        ("json", b'{"a": NaN}'),
        ("json", b"-Infinity"),
        ("json", b"\xff\xfe\xff"),
        ("cls", b"9" * 5000),
        ("cls", b"9" * 400),
        ("cls", b"100000000000"),
        ("npy", npy("(999999999999, 3)")),
        ("npy", npy("(-4,)")),
        ("npy", npy("(0, 99999999999999999999999)")),
        ("npy", npy("-" * 9000 + "1")),
        ("npy", npy("(" * 300)),
        ("npy", npy("(2,)", "|O")),
        ("npy", npy("(2,)", "<q9")),
    ],
)
def test_parts_that_cannot_be(tmp_path, ending, content):
    path = tar(tmp_path / "x.tar", [(f"0.{ending}", content), (f"1.{ending}", b"3")])
    data = shards(path)
    records = list(data)
    with pytest.raises(DataError, match=rf"x\.tar', sample 0 \('0'\), part '{ending}'"):
        data.decode(records[0])
    if ending != "npy":
        assert 3 in data.decode(records[1]).values()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", ["-1024", "9" * 5000, "nan", "1_0", "99999999999999999999"])
def test_sizes_that_cannot_be(tmp_path, size, packed):
    name = "x.tar.gz" if packed else "x.tar"
    path = tar(tmp_path / name, [("0.cls", b"1"), ("1.cls", b"2", ("comment", size))], packed)
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    found = f"{len(size) + 11 + len(str(len(size) + 13))} comment={size}\n".encode()
    assert found in content or b" comment=" in content
    start = content.index(b" comment=")
    start = content.rindex(b"\0", 0, start) + 1
    stop = content.index(b"\n", start) + 1
    record = b"%04d size=%s\n" % (len(size) + 11, size.encode())
    changed = content[:start] + record.ljust(stop - start, b"\n")[: stop - start] + content[stop:]
    if len(record) < stop - start:  # a second record fills what is left
        rest = stop - start - len(record)
        filler = b"%03d a=%s\n" % (rest, b"x" * (rest - 7)) if rest >= 7 else b""
        record = b"%04d size=%s\n" % (len(size) + 11, size.encode()) if filler else record
        changed = content[:start] + record + filler.ljust(rest, b"\0") + content[stop:]
    path.write_bytes(gzip.compress(changed) if packed else changed)
    with pytest.raises(DataError, match=r"x\.tar.*member 1"):
        list(shards(path, index=False))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("packed", [False, True])
def test_headers_without_end(tmp_path, packed):
    path = tar(tmp_path / "a.tar", [("g" * 200 + ".cls", b"1"), ("1.cls", b"2")])
    content = path.read_bytes()
    path.unlink()
    content = content[:1024] * 300_000 if packed else content[:1024] * 100
    path = tmp_path / ("x.tar.gz" if packed else "x.tar")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    with pytest.raises(DataError, match=r"member 0: more than 64 headers come before it"):
        shards(path, index=False)


@pytest.mark.thorough
def test_archives_that_expand(tmp_path):
    path = tar(tmp_path / "x.tar.gz", [("0.cls", b"1"), ("1.bin", bytes(100 * MIB))], packed=True)
    with pytest.raises(DataError, match=r"x\.tar\.gz'.*limits\.expansion"):
        list(shards(path, fields={"label": "cls"}, limits=Limits(expansion=10.0)))
    with pytest.raises(DataError, match=r"x\.tar\.gz'.*limits\.record_bytes"):
        list(shards(path, fields={"label": "cls"}, limits=Limits(record_bytes=MIB)))


def test_a_sparse_archive_of_a_terabyte(tmp_path):
    path = tar(tmp_path / "x.tar", [("0.cls", b"1"), ("1.cls", b"2")])
    content = bytearray(path.read_bytes())
    at = content.index(b"1.cls")
    content[at + 124 : at + 136] = b"\x80" + (1 << 40).to_bytes(11, "big")
    content[at + 148 : at + 156] = b" " * 8
    content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
    path.write_bytes(content[: at + 512])
    os.truncate(path, at + 512 + (1 << 40) + 1024)
    data = shards(path)
    first, second = list(data)
    assert data.decode(first) == {"label": 1}
    with pytest.raises(DataError, match=r"x\.tar', sample 1: .*limits\.record_bytes"):
        data.decode(second)


def test_long_words_are_not_kept():
    word_id.cache_clear()
    tokens = Tokenize(max_length=2)({"text": "a " + "b" * 100_000 + " c"})["tokens"]
    assert len(tokens) == 2
    assert word_id.cache_info().currsize == 1
    assert tokens.tolist()[1] == word_id.__wrapped__("b" * 100_000, 8192)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("name", hostile_batches.TABLES)
def test_rows_that_fit_and_a_batch_that_does_not(tmp_path, name):
    attack = hostile_batches.TABLES[name]
    said, taken = hostile_batches.outcome(attack, tmp_path)
    assert re.search(attack.match, said), said
    assert taken < 200  # MiB
