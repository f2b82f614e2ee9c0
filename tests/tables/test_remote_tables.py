"""Tables at addresses: of Parquet files the blocks of the row groups and columns that are read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.addons.tables.parquet import Parquet
from penstock.errors import DataError
from tests.support.store_server import bucket

pytest.importorskip("obstore")

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


def test_a_footer_that_is_cut_off_is_one_message(folder, tmp_path):
    with bucket(folder, tmp_path) as (shelf, files):
        shelf.files["data/train-1.parquet"] = shelf.files["data/train-1.parquet"][:-9]
        with pytest.raises(DataError, match="was cut off or damaged"):
            Parquet("s3://data", files=files)
