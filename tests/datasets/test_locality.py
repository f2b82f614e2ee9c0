"""Datasets say which rows lie in one file or shard."""

import numpy as np
import pytest

from penstock.addons.packs.packed import Packed
from penstock.addons.packs.packing import pack
from penstock.addons.packs.recipe import Recipe
from penstock.addons.tables.parquet import Parquet
from penstock.loading.workers.options import LoaderOptions
from tests.pack_files import Everything
from tests.table_files import make, write
from tests.web_server import WebServer


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_tables_tell_row_groups_here_and_files_elsewhere(tmp_path, suffix):
    files = [tmp_path / f"part-{number}.{suffix}" for number in range(3)]
    for number, path in enumerate(files):
        write(path, make(20, first=20 * number), group=10)
    here = Parquet(str(tmp_path), val_fraction=0.25, fields={"number": None})
    rows = np.random.default_rng(0).permutation(len(here))
    numbers = np.array([int(here[row]["number"]) for row in rows])
    assert here.locality(rows).tolist() == (numbers // 10).tolist()
    with WebServer() as server:
        server.contents = {f"/{path.name}": path.read_bytes() for path in files}
        away = Parquet(
            f"{server.address}/part-{{0..2}}.{suffix}",
            val_fraction=0.25,
            fields={"number": None},
        )
        assert away.locality(rows).tolist() == (numbers // 20).tolist()


def test_packs_have_neighbours(tmp_path):
    folder = pack(Everything(), "train", Recipe(), tmp_path, options=LoaderOptions())
    dataset = Packed(str(folder))
    assert dataset.locality(np.array([0, 1023, 1024, 5000])).tolist() == [0, 0, 1, 4]
