"""Tables at addresses: of Parquet files the blocks of the row groups and columns that are read."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.addons.record_files import remote_bytes
from penstock.addons.tables.arrow import files as arrow_files
from penstock.addons.tables.delimited_stream import DelimitedStream
from penstock.addons.tables.parquet import Parquet
from penstock.addons.tables.parquet_stream import ParquetStream
from penstock.datasets.files import Files
from penstock.errors import DataError
from tests import epochs
from tests.support.store_server import InThread, Shelf

pytest.importorskip("aiohttp")

ROWS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tables")
    draws = np.random.default_rng(0)
    for name in ("train-0", "train-1", "val-0"):
        columns = {
            "x": draws.normal(size=ROWS),
            "n": draws.integers(0, 9, ROWS),
            "text": [f"{name} {row} " + "é" * (row % 9) for row in range(ROWS)],
            "unread": [draws.bytes(4000) for _ in range(ROWS)],
        }
        pq.write_table(pa.table(columns), made / f"{name}.parquet", row_group_size=50)
    return made


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(arrow_files, "_LARGE", 1000)
    monkeypatch.setattr(remote_bytes, "_BLOCK", 20_000)


def served(folder, **options):
    return Shelf({f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}, **options)


def files_in(cache, **options):
    given = {"timeout": 1, **options}
    return Files(cache_dir=str(cache), retries=8, first_wait=0.01, **given)


FIELDS = {"x": None, "text": None}


def digests(data, **workers):
    return epochs.digests(data, 16, 25, **workers)


@pytest.mark.parametrize("kind", [Parquet, ParquetStream])
def test_batches_are_those_of_the_disk_and_less_is_fetched(folder, tmp_path, kind):
    local = kind(str(folder), fields=FIELDS)
    expected = digests(local)
    shelf = served(folder, latency=0.002)
    with InThread(shelf) as port:
        root = f"http://127.0.0.1:{port}/data"
        data = kind(root, fields=FIELDS, files=files_in(tmp_path / "a", timeout=30))
        opening = shelf.sent
        assert opening < 250_000  # of 3.6 MB; Arrow reads 64 KiB of each for its footer
        assert data.fingerprint == local.fingerprint
        assert digests(data) == expected
        assert shelf.sent < 1_500_000  # without the columns that are not read
        shelf.faults = {"reset": 5, "short": 7}
        data = kind(root, fields=FIELDS, files=files_in(tmp_path / "b", ahead=0))
        assert digests(data, num_workers=2) == expected
        shelf.faults = {}
        shelf.ranges = False
        data = kind(root, fields=FIELDS, files=files_in(tmp_path / "c"))
        assert digests(data) == expected


def test_a_footer_that_is_cut_off_is_one_message(folder, tmp_path):
    shelf = served(folder)
    shelf.files["data/train-1.parquet"] = shelf.files["data/train-1.parquet"][:-9]
    with InThread(shelf) as port, pytest.raises(DataError, match="was cut off or damaged"):
        Parquet(f"http://127.0.0.1:{port}/data", files=files_in(tmp_path))


def test_a_file_of_a_stream_comes_before_it_is_opened_and_not_when_it_is_found(tmp_path):
    texts = {
        f"data/train-{number}.csv.gz": gzip.compress(
            "".join(["text\n", *(f"{number} {row}\n" for row in range(50))]).encode()
        )
        for number in range(6)
    }
    shelf = Shelf(texts)
    with InThread(shelf) as port:
        data = DelimitedStream(
            f"http://127.0.0.1:{port}/data", label=None, files=files_in(tmp_path)
        )
        assert len(data.shards()) == 6
        assert shelf.requests["GET"] == 1  # for the names of the columns
        assert [data.files_of_shard(shard) for shard in data.shards()] == [
            [f"http://127.0.0.1:{port}/{name}"] for name in sorted(texts)
        ]
        for name, content in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        assert digests(data) == digests(DelimitedStream(str(tmp_path / "data"), label=None))
        assert shelf.requests["GET"] == 6
