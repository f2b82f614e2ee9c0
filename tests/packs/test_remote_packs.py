"""Packs at addresses give the samples of packs on a disk, and fetch no more than they need."""

import json
import pickle

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.addons.packs import folder as packs
from penstock.addons.packs import packing
from penstock.addons.packs.fields import Encode
from penstock.addons.packs.folder import PackWriter
from penstock.addons.packs.packed import Packed
from penstock.addons.packs.packing import Recipe
from penstock.datasets.files import Files
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from tests.pack_files import NO_ANSWERS
from tests.s3_server import ENVIRONMENT
from tests.support.store_server import InThread, Shelf

pytest.importorskip("obstore")

ROWS = 64
ALONE = World()


def sample(row):
    draws = torch.Generator().manual_seed(row)
    side = 30 + row % 5
    return {
        "image": tv_tensors.Image(
            torch.randint(0, 255, (3, side, 32), dtype=torch.uint8, generator=draws)
        ),
        "even": torch.rand(700, generator=draws),
        "little": torch.rand(3, generator=draws),
        "text": "é" * (row % 7),
        "label": row % 2,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("packs") / "train"
    made.mkdir()
    encoded = Encode()([sample(row) for row in range(ROWS)])
    writer = PackWriter(made, encoded["fields"])
    writer.append(encoded["columns"], encoded["fields"])
    writer.finish({"fingerprint": "x", "split": "train", **NO_ANSWERS})
    return made.parent


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Files of some kilobytes are fetched in parts, of one row of `image` and two of `even`."""
    monkeypatch.setattr(packs, "_WHOLE", 4096)


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
        pairs = zip(far.pack.each("image", rows), local.pack.each("image", rows), strict=True)
        assert all(np.array_equal(mine, theirs) for mine, theirs in pairs)
        assert far.want(rows) > 0
        assert (far.pack.rows("even", rows) == local.pack.rows("even", rows)).all()
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
        with pytest.raises(DataError, match="is longer than it was"):
            opened(port, tmp_path / "c")
        del shelf.files["data/train/pack.json"]
        with pytest.raises(DataError, match=r"has no packed data"):
            opened(port, tmp_path / "d")


class Rows(torch.utils.data.Dataset):
    fingerprint = "x"

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return sample(row)


def test_a_pack_that_is_sent_is_the_pack_of_the_disk(tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    shelf = Shelf({})
    with InThread(shelf) as port:
        options = {"endpoint_url": f"http://127.0.0.1:{port}"}
        files = Files(cache_dir=str(tmp_path / "files"), first_wait=0.01, options=options)

        def sent(recipe, out="s3://data/packs"):
            return packing.pack(Rows(), "train", recipe, str(tmp_path), out, files=files)

        assert sent(Recipe()) == "s3://data/packs/train"
        before = dict(shelf.files)
        assert sent(Recipe()) == "s3://data/packs/train", "it is there"
        assert shelf.files == before
        with pytest.raises(ConfigError, match=r"pack\.out.*holds other samples"):
            sent(Recipe(size=20))
        assert not list((tmp_path / "sending").glob("[!.]*")), "what was sent stays here"
        local = packing.pack(Rows(), "train", Recipe(), str(tmp_path), str(tmp_path / "local"))
        assert shelf.files.keys() == {f"data/packs/train/{path.name}" for path in local.iterdir()}
        for path in local.glob("*.npy"):
            assert shelf.files[f"data/packs/train/{path.name}"] == path.read_bytes()
        far = Packed("s3://data/packs", files=files)
        rows = range(0, ROWS, 7)
        for mine, theirs in zip(
            far.__getitems__(rows), Packed(str(local)).__getitems__(rows), strict=True
        ):
            assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
