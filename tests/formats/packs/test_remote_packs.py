"""Packs at addresses: the samples of packs on a disk; sent whole, or not at all."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from penstock.addons.packs import packing
from penstock.addons.packs.folder import Packed
from penstock.addons.packs.packing import Recipe
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError
from tests.support import warm
from tests.support.pack_rows import ROWS, Rows
from tests.support.program import ROOT
from tests.support.store_server import ENVIRONMENT, InThread, Shelf

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("packs")
    packing.pack(Rows(), "train", Recipe(), str(made / "cache"), str(made / "out"))
    return made / "out"


def shelf_of(folder, **options):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return Shelf(
        {f"data/{path.relative_to(folder)}": path.read_bytes() for path in paths}, **options
    )


def opened(port, cache, **options):
    given = {"retries": 8, "first_wait": 0.01, "timeout": 1, **options}
    files = Files(cache_dir=str(cache), **given)
    return Packed(f"http://127.0.0.1:{port}/data", files=files)


def test_each_row_and_each_batch_is_that_of_the_disk(folder, tmp_path):
    local = Packed(str(folder))
    rows = np.random.default_rng(0).permutation(ROWS)[:20]
    with InThread(shelf_of(folder)) as port:
        far = pickle.loads(pickle.dumps(opened(port, tmp_path)))
        assert far.want(rows) > 0
        for mine, theirs in zip(far.__getitems__(rows), local.__getitems__(rows), strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                assert type(mine[name]) is type(value)
                assert np.array_equal(mine[name], value)
        assert far.fingerprint == local.fingerprint


def test_a_pack_that_changes_or_lies_is_one_message(folder, tmp_path):
    shelf = shelf_of(folder)
    with InThread(shelf) as port:
        record = json.loads(shelf.files["data/train/pack.json"])
        record["files"]["even.npy"] -= 1
        shelf.files["data/train/pack.json"] = json.dumps(record).encode()
        with pytest.raises(DataError, match="bytes, and was written with"):
            opened(port, tmp_path / "c")
        del shelf.files["data/train/pack.json"]
        with pytest.raises(DataError, match=r"has no packed data"):
            opened(port, tmp_path / "d")


@pytest.fixture
def store(monkeypatch):
    """A store without files, its address for S3's clients, and access to it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    shelf = Shelf({})
    with InThread(shelf) as port:
        yield shelf, {"endpoint_url": f"http://127.0.0.1:{port}"}


def test_a_pack_that_is_sent_is_the_pack_of_the_disk(tmp_path, store):
    shelf, options = store
    files = Files(cache_dir=str(tmp_path / "files"), first_wait=0.01, options=options)

    def sent(recipe):
        out = "s3://data/packs"
        return packing.pack(Rows(), "train", recipe, str(tmp_path), out, files=files)

    assert sent(Recipe()) == "s3://data/packs/train"
    before = dict(shelf.files)
    assert sent(Recipe()) == "s3://data/packs/train", "it is there"
    assert shelf.files == before
    with pytest.raises(ConfigError, match=r"pack\.out.*holds other samples"):
        sent(Recipe(size=20))
    local = packing.pack(Rows(), "train", Recipe(), str(tmp_path), str(tmp_path / "local"))
    assert shelf.files == {
        f"data/packs/train/{path.name}": path.read_bytes() for path in local.iterdir()
    }
    far, rows = Packed("s3://data/packs", files=files), range(0, ROWS, 7)
    here = Packed(str(local)).__getitems__(rows)
    for mine, theirs in zip(far.__getitems__(rows), here, strict=True):
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


PACK = """
import sys
from penstock.addons.packs.packing import Recipe, pack
from penstock.datasets.files import Files
from tests.support.pack_rows import Rows
files = Files(cache_dir=sys.argv[1] + "/files", options={"endpoint_url": sys.argv[2]})
print("packing", flush=True)
print(pack(Rows(), "train", Recipe(), sys.argv[1], "s3://data/packs", files=files))
"""


def test_a_pack_whose_sending_is_killed_is_absent_and_then_complete(tmp_path, store):
    """SIGKILL of the process and of its fetcher, when so many files have arrived."""
    shelf, options = store
    shelf.latency = 0.3
    command = [sys.executable, "-c", PACK, str(tmp_path), options["endpoint_url"]]
    for arrived in (0, 4):
        process = warm.start(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout.readline() == b"packing\n"
        while len(shelf.files) < arrived:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert "data/packs/train/pack.json" not in shelf.files
        files = Files(cache_dir=str(tmp_path / "reading"), options=options)
        with pytest.raises(DataError, match=r"has no packed data|holds no files"):
            Packed("s3://data/packs", files=files)
    warm.run(command, cwd=ROOT, check=True)
    far = Packed("s3://data/packs", files=Files(cache_dir=str(tmp_path / "f"), options=options))
    for row in range(0, ROWS, 9):
        mine, theirs = far[row], Rows()[row]
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
