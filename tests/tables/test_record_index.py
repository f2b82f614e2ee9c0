"""The index of records against plain Python reading of the same files."""

import csv
import io
import multiprocessing
import os
import pickle
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.addons.record_files.positioned_file import PositionedFile, blocks_of_each, spread
from penstock.addons.storage.rows import RowSplit
from penstock.addons.tables.text import record_index
from penstock.addons.tables.text.record_index import RecordIndex, line_of
from penstock.errors import ConfigError, DataError

LINE_ENDS = ["\n", "\r\n"]


@pytest.fixture
def small_chunks(monkeypatch):
    """So that files of a few kilobytes have many borders."""
    monkeypatch.setattr(record_index, "_PIECE", 4096)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def all_of(index):
    return [index[number] for number in range(len(index))]


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("lengths", [(0, 40), (0, 3), (3000, 9000), (0, 9000)])
def test_lines(tmp_path, small_chunks, lengths, end):
    rng = random.Random(f"{lengths}{end}")
    lines = ["x" * rng.randint(*lengths) + str(n) for n in range(40000 // (5 + sum(lengths) // 2))]
    path = written(tmp_path / "a.tsv", end.join(lines) + end)
    index = RecordIndex(path, "none", "\t", None)
    assert [record.decode() for record in all_of(index)] == lines
    assert index.line(len(lines) - 1) == len(lines)


def test_line_ends_at_the_borders_of_cells_and_chunks(tmp_path, small_chunks):
    for place in (4094, 4095, 4096, 4097, 8191, 8192, 12287, 12288, 12289):
        text = bytearray(b"x" * 20000)
        text[place] = 10
        index = RecordIndex(written(tmp_path / "a", bytes(text)), "none", "\t", None)
        assert [len(record) for record in all_of(index)] == [place, 19999 - place]


FIELD = st.text(st.sampled_from('ab,"\n\r\u00e9 '), max_size=12).filter(lambda t: "\r" not in t)


@pytest.mark.stress
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=12),
    end=st.sampled_from(LINE_ENDS),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    shift=st.integers(0, 50),
)
def test_quoted_records_are_those_of_the_csv_module(
    tmp_path, small_chunks, rows, end, quoting, shift
):
    # So often that every border between chunks falls somewhere else in a record.
    rows = [["z" * shift, "start"], *rows * (12000 // (8 * len(rows)) + 1), ["end", "end"]]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(rows)
    path = written(tmp_path / "a.csv", text.getvalue())
    index = RecordIndex(path, "standard", ",", None)
    found = [next(csv.reader([record.decode()])) if record else [] for record in all_of(index)]
    assert found == list(csv.reader(io.StringIO(text.getvalue(), newline="")))


def test_a_long_quoted_field_goes_over_many_chunks(tmp_path, small_chunks):
    long = '"' + 'line\n""quoted"", more\n' * 2000 + '"'
    path = written(tmp_path / "a.csv", f"text,label\n{long},a\nshort,b\n")
    index = RecordIndex(path, "standard", ",", None)
    assert [len(record) for record in all_of(index)] == [10, len(long) + 2, 7]
    assert index.line(2) == 3 + long.count("\n")


def test_unusual_files(tmp_path):
    def records(content, quoting="standard"):
        return all_of(RecordIndex(written(tmp_path / "a", content), quoting, ",", None))

    assert records(b"") == []
    assert records(b"\n\r\n\n") == []
    assert records(b"a") == [b"a"]
    assert records(b"a\n\nb\r\n\r\n\n") == [b"a", b"", b"b"]
    assert records(b"\xef\xbb\xbfa,b\n1,2\n") == [b"a,b", b"1,2"]
    assert records(b'\xef\xbb\xbf"a\n",b\n1,2') == [b'"a\n",b', b"1,2"]
    assert records(b'a,"b\nc,d\n', "none") == [b'a,"b', b"c,d"]
    assert records(b'"\n"') == [b'"\n"']


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('a,b\n1,2\n3,it"s\n', r"line 3: a quote neither opens nor closes .*quoting=none"),
        ('a,b\n"1"2,3\n', "line 2: a quote neither opens nor closes"),
        ('a,b\n"1\n2,3\n', "a quoted field is not closed at the end of the file"),
        ('a,"b\nc,"d"\n', "line 2: a quote neither"),
    ],
)
def test_quotes_that_do_not_follow_the_rules(tmp_path, content, said):
    path = written(tmp_path / "a.csv", content)
    with pytest.raises(DataError, match=said):
        RecordIndex(path, "standard", ",", None)
    RecordIndex(path, "none", ",", None)


def test_a_stray_quote_is_found_across_the_border_of_chunks(tmp_path, small_chunks):
    fine = written(tmp_path / "a", b"x" * 4095 + b'\n"q"\n')
    assert len(RecordIndex(fine, "standard", ",", None)) == 2
    for text in (b"x" * 4096 + b'"q"\n', b"x" * 4092 + b'\n"q"x\n'):
        with pytest.raises(DataError, match="neither opens nor closes"):
            RecordIndex(written(tmp_path / "a", text), "standard", ",", None)


def test_blocks_cut_the_file_into_whole_records(tmp_path):
    lines = [b"%05d" % n + b"x" * (n % 300) for n in range(1000)]
    path = written(tmp_path / "a", b"\n".join(lines))
    index = RecordIndex(path, "none", "\t", None)
    pieces = index.blocks(20000)
    assert len(pieces) == -(-path.stat().st_size // 20000)
    assert b"".join(index.file.read(start, stop) for _, start, stop in pieces) == path.read_bytes()
    for first, start, _ in pieces:
        assert index.file.read(start, start + 5) == b"%05d" % first


# The cache.


def test_the_index_is_kept_and_found_again(tmp_path, monkeypatch):
    path = written(tmp_path / "a.tsv", "a\nb\nc\n")
    first = RecordIndex(path, "none", "\t", str(tmp_path / "cache"))
    monkeypatch.setattr(RecordIndex, "_scan", None)  # not made again
    again = RecordIndex(path, "none", "\t", str(tmp_path / "cache"))
    assert all_of(again) == all_of(first) == [b"a", b"b", b"c"]


def test_a_changed_file_is_indexed_anew(tmp_path):
    path, cache = tmp_path / "a.tsv", str(tmp_path / "cache")
    assert len(RecordIndex(written(path, "a\nb\n"), "none", "\t", cache)) == 2
    status = path.stat()
    written(path, "a-b\n")  # as long as before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # and of the same time
    assert len(RecordIndex(path, "none", "\t", cache)) == 1
    assert len(RecordIndex(path, "standard", "\t", cache)) == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_torn_index_is_made_again(tmp_path, damage):
    path, cache = written(tmp_path / "a.tsv", "a\nb\n"), tmp_path / "cache"
    RecordIndex(path, "none", "\t", str(cache))
    torn = next(cache.rglob("starts.npy"))
    written(torn, damage) if damage is not None else torn.unlink()
    assert all_of(RecordIndex(path, "none", "\t", str(cache))) == [b"a", b"b"]
    assert len(list(cache.rglob("starts.npy"))) == 1


def test_a_cache_that_cannot_be_written(tmp_path):
    path = written(tmp_path / "a.tsv", "a\n")
    with pytest.raises(DataError, match=r"cannot write .* Set dataset\.cache_dir"):
        RecordIndex(path, "none", "\t", str(path))


def _index_in_process(path, cache, queue):
    index = RecordIndex(path, "none", "\t", str(cache))
    queue.put((len(index), index[len(index) - 1]))


def test_several_processes_make_it_at_once(tmp_path):
    path = written(tmp_path / "a.tsv", "".join(f"{n}\n" for n in range(50000)))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    arguments = (path, tmp_path / "cache", queue)
    workers = [context.Process(target=_index_in_process, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert {queue.get(timeout=30) for _ in workers} == {(50000, b"49999")}
    for worker in workers:
        worker.join()
    assert len(list((tmp_path / "cache").rglob("starts.npy"))) == 1
    assert not list((tmp_path / "cache").rglob(".starts-*"))


def test_it_travels_to_workers_and_continues_after_a_fork(tmp_path):
    path = written(tmp_path / "a.tsv", "a\nb\nc\n")
    for cache in (None, str(tmp_path / "cache")):
        index = RecordIndex(path, "none", "\t", cache)
        state = pickle.dumps(index)
        assert len(state) < 2000
        assert all_of(pickle.loads(state)) == [b"a", b"b", b"c"]
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, index[2])
        os._exit(0)
    assert os.read(reader, 10) == b"c"
    os.wait()
    os.close(reader), os.close(writer)


def test_a_file_that_changed_in_the_meantime(tmp_path):
    path = written(tmp_path / "a.tsv", "a\nb\nc\n")
    index = RecordIndex(path, "none", "\t", None)
    state = pickle.dumps(index)
    written(path, "a\n")
    with pytest.raises(DataError, match="has changed while it was in use"):
        index[2]
    with pytest.raises(DataError, match="has changed while it was in use"):
        pickle.loads(state)[0]


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        PositionedFile(tmp_path / "none")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        PositionedFile(tmp_path)


def test_the_line_of_a_place(tmp_path):
    file = PositionedFile(written(tmp_path / "a", b"a\nbc\n\nd"))
    assert [line_of(file, place) for place in range(7)] == [1, 1, 2, 2, 2, 3, 4]


@pytest.mark.parametrize("fraction", [0, 0.01, 0.2, 0.34, 0.5, 0.7, 0.99, 1])
def test_every_row_is_in_one_split(fraction):
    for total in [*range(40), 997, 10000]:
        train, val = (RowSplit(total, split, fraction, 3) for split in ("train", "val"))
        rows = [one.rows(np.arange(len(one))) for one in (train, val)]
        assert all((np.diff(one) > 0).all() for one in rows)
        assert sorted(np.concatenate(rows)) == list(range(total))
        assert abs(len(val) - total * fraction) <= (0.5 if total > 1000 else 1)
        if total >= 2 and 0 < fraction < 1:
            assert len(train) > 0 < len(val)


def test_a_split_is_spread_over_the_file_and_moves_with_its_seed():
    val = RowSplit(10**9, "val", 0.1, 0)
    rows = val.rows(np.arange(0, len(val), 10**6))
    assert np.allclose(rows, np.arange(0, 10**9, 10**7), atol=10)
    assert 3 < np.mean(val.rows(np.arange(1000)) % 10) < 6
    other = RowSplit(10**9, "val", 0.1, 1).rows(np.arange(1000))
    assert np.mean(val.rows(np.arange(1000)) == other) < 0.2


@pytest.mark.parametrize("total", [1, 7, 1000])
@pytest.mark.parametrize("test_fraction", [0.0, 0.1, 0.5])
def test_rows_of_a_test_are_taken_from_those_that_would_train(total, test_fraction):
    def rows(split, *share):
        split_of = RowSplit(total, split, 0.2, 5, *share)
        return split_of.rows(np.arange(len(split_of))).tolist()

    train, val, test = (rows(split, test_fraction) for split in ("train", "val", "test"))
    assert val == rows("val")
    assert sorted(train + test) == rows("train")
    assert train == sorted(train)
    assert bool(test) == (test_fraction * total >= 0.5)


def test_a_split_that_cannot_be():
    with pytest.raises(ConfigError, match="is not train, val or test"):
        RowSplit(10, "tests", 0.1, 0)
    with pytest.raises(ConfigError, match="is out of range"):
        RowSplit(10, "val", 1.1, 0)
    with pytest.raises(IndexError):
        RowSplit(10, "val", 0.2, 0).rows([2])


@pytest.mark.parametrize(
    ("files", "most", "each"), [(0, 64, 64), (1, 64, 64), (1, 16, 16), (20, 16, 3), (999, 64, 2)]
)
def test_a_fingerprint_takes_few_blocks_of_many_files(files, most, each):
    """Each is a request where files lie in a store."""
    assert blocks_of_each(files, most) == each
    first, *_, last = spread(1_000_000, each)
    assert (first, last) == ((0, 4096), (1_000_000 - 4096, 1_000_000))
