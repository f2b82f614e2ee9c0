"""Packs at addresses give the samples of packs on a disk, and fetch no more than they need."""

import json
import pickle
import select

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.addons.packs import packing, remote
from penstock.addons.packs.fields import Encode
from penstock.addons.packs.folder import PackWriter
from penstock.addons.packs.packed import Packed
from penstock.addons.packs.recipe import Recipe
from penstock.addons.stores import arrivals, prefetcher, sending
from penstock.addons.stores.blocks import Blocks
from penstock.addons.stores.parts import GAP, Waiting, part_address
from penstock.datasets.files import Files
from penstock.distributed.world import World
from penstock.errors import ConfigError, DataError
from penstock.loading.batch import hash_of_rows, row_hashes
from penstock.loading.collate import List
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from tests.pack_files import NO_ANSWERS
from tests.s3_server import ENVIRONMENT
from tests.support.store_server import FAULTS, InThread, Shelf

pytest.importorskip("aiohttp")
pytest.importorskip("s3fs")

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
    monkeypatch.setattr(remote, "_WHOLE", 4096)
    monkeypatch.setattr(remote, "_PART", 5700)


def shelf_of(folder, **options):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return Shelf(
        {f"data/{path.relative_to(folder)}": path.read_bytes() for path in paths}, **options
    )


def opened(port, cache, **options):
    given = {"retries": 8, "first_wait": 0.01, "timeout": 1, **options}
    files = Files(cache_dir=str(cache), **given)
    return Packed(f"http://127.0.0.1:{port}/data", files=files)


def hashes(dataset, sampler=None, worlds=(ALONE,), **options):
    """Of all rows of all ranks, in two epochs, from a step in the middle of the first one on."""
    order = sampler or Random(ROWS, 3)
    fetch = Fetch(dataset, None, List(), seed=3, hashed=True)
    loaders = [Loader(Plan(order, 8), fetch, LoaderOptions(**options), world) for world in worlds]
    rows = []
    for epoch, start in ((0, 0), (1, 5)):
        for batches in zip(*(loader.epoch(epoch, start) for loader in loaders), strict=True):
            rows.append(hash_of_rows(row for batch in batches for row in row_hashes(batch)))
    for loader in loaders:
        loader.close()
    return rows


def hashes_on_disk(folder, sampler=None):
    return hashes(Packed(str(folder)), sampler)


@pytest.fixture(scope="module")
def whole(folder):
    return hashes_on_disk(folder)


def test_each_row_and_each_batch_is_that_of_the_disk(folder, tmp_path):
    local = Packed(str(folder))
    rows = np.random.default_rng(0).permutation(ROWS)[:20]
    with InThread(shelf_of(folder)) as port:
        far = pickle.loads(pickle.dumps(opened(port, tmp_path)))
        pixels, starts, shapes = far.pack.places("image", rows)
        assert (shapes == local.pack.places("image", rows)[2]).all()
        for row, start, shape in zip(rows.tolist(), starts.tolist(), shapes, strict=True):
            stored = local.pack.row("image", row)
            assert (pixels[start : start + stored.size] == stored.reshape(-1)).all()
            assert (stored.shape == shape).all()
        assert (far.pack.rows("even", rows) == local.pack.rows("even", rows)).all()
        for mine, theirs in zip(far.__getitems__(rows), local.__getitems__(rows), strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                assert type(mine[name]) is type(value)
                assert np.array_equal(mine[name], value)
        assert far.fingerprint == local.fingerprint


def test_digests_are_those_of_the_disk_whatever_fetches(folder, tmp_path, whole):
    shelf = shelf_of(folder)
    with InThread(shelf) as port:
        for number, (options, workers) in enumerate(
            [
                ({}, {}),
                ({"ahead": 0}, {}),
                ({"concurrency": 1, "ahead": 20_000}, {"backend": "thread", "num_workers": 2}),
                ({"cache_size": 300_000}, {"num_workers": 2}),
            ]
        ):
            data = opened(port, tmp_path / str(number), **options)
            assert hashes(data, **workers) == whole, options
        ranks = [World(rank, 2) for rank in range(2)]
        assert hashes(opened(port, tmp_path / "ranks"), worlds=ranks) == whole


@pytest.mark.parametrize("fault", sorted({*FAULTS} - {"expired"}))
def test_digests_are_those_of_the_disk_under_faults(folder, tmp_path, whole, fault):
    shelf = shelf_of(folder, wait=0.05)
    with InThread(shelf) as port:
        data = opened(port, tmp_path)
        shelf.faults = {fault: 7}
        assert hashes(data) == whole


def test_only_what_is_read_is_fetched_and_neighbours_by_one_request(folder, tmp_path):
    shelf = shelf_of(folder)
    with InThread(shelf) as port:
        data = opened(port, tmp_path / "a", ahead=0)
        before = shelf.sent
        assert before < 20_000  # of 380 kB
        list(map(data.__getitem__, range(4)))
        asked = [path.rpartition("/")[2] for method, path in shelf.asked if method == "GET"]
        assert asked.count("image.npy") == 1 + 4  # the header, and a row each
        assert asked.count("even.npy") == 1 + 2
        assert shelf.sent - before < 40_000
        before = shelf.sent
        list(map(data.__getitem__, range(4)))
        assert shelf.sent == before
        order = Blocks(ROWS, 3, block=16, window=2)
        shelf.latency, before = 0.02, shelf.requests["GET"]
        assert hashes(opened(port, tmp_path / "b"), order) == hashes_on_disk(folder, order)
        assert shelf.requests["GET"] - before < ROWS / 2  # of 64 and 32 parts


def test_a_pack_that_changes_or_lies_is_one_message(folder, tmp_path):
    shelf = shelf_of(folder)
    with InThread(shelf) as port:
        data = opened(port, tmp_path / "a")
        name = "data/train/image.npy"
        shelf.files[name] = shelf.files[name][:-1] + b"\0\0"
        shelf.etags.clear()
        with pytest.raises(DataError, match="has changed since this run began"):
            data[5]
        offsets = bytearray(shelf.files["data/train/image.offsets.npy"])
        offsets[-8 * 40 :] = np.full(40, 1 << 50, np.int64).tobytes()
        shelf = shelf_of(folder)
        shelf.files["data/train/image.offsets.npy"] = bytes(offsets)
    with InThread(shelf) as port:
        data = opened(port, tmp_path / "b")
        for row in (ROWS - 20, ROWS - 40):
            with pytest.raises(DataError, match="damaged"):
                data[row]
            with pytest.raises(DataError, match="damaged"):
                data.pack.places("image", np.array([row]))
        data.files_of(range(ROWS))  # only names what is read later
        record = json.loads(shelf.files["data/train/pack.json"])
        record["files"]["even.npy"] -= 1
        shelf.files["data/train/pack.json"] = json.dumps(record).encode()
        with pytest.raises(DataError, match="is longer than it was"):
            opened(port, tmp_path / "c")
        del shelf.files["data/train/pack.json"]
        with pytest.raises(DataError, match=r"pack.json' is missing in its store"):
            opened(port, tmp_path / "d")


def test_a_server_without_ranges_is_one_message(folder, tmp_path):
    with (
        InThread(shelf_of(folder, ranges=False)) as port,
        pytest.raises(DataError, match="only whole files"),
    ):
        opened(port, tmp_path)


def test_the_rows_of_the_first_batch_come_alone_and_first(folder, tmp_path, monkeypatch):
    """Whatever its neighbours would be good for later: the others of its rows would wait for it."""
    monkeypatch.setattr(prefetcher, "MOST_FIRST", 1)  # nothing beside what is needed
    with InThread(shelf_of(folder)) as port:
        dataset = opened(port, tmp_path, concurrency=1)
        plan = Plan(Random(ROWS, 3), 8)
        first, later = (
            [file for files in dataset.files_of(plan.request(0, step).indices) for file in files]
            for step in (0, 1)
        )
        fetched = []
        begin = arrivals.Arrivals.begin
        monkeypatch.setattr(
            arrivals.Arrivals,
            "begin",
            lambda self, rows, at: (fetched.append([*rows]), begin(self, rows, at))[1],
        )
        ahead = dataset.remote_files.prefetcher(
            lambda epoch, step: dataset.files_of(plan.request(epoch, step).indices), plan.steps
        )
        ahead.go_to(0, 0, 4, True)
        for _ in range(1000):
            if {*first, *later} <= {file for files in fetched for file in files}:
                break
            ahead.work()
            select.select([ahead.bell], [], [], 0.1)
        ahead._pool.shutdown()
        ahead.bell.close()  # else open until the process ends
    count = len({*first})
    assert {file for files in fetched[:count] for file in files} == {*first}
    assert max(map(len, fetched[:count])) == 1
    assert max(map(len, fetched[count:])) > 3


def test_what_waits_is_taken_with_its_neighbours():
    waiting = Waiting()
    for row, start in enumerate([5000, 0, 1000, 4000, 2000]):
        waiting.push(row, part_address("a", start, start + 900), 900)
    waiting.push(9, "a", 7)
    waiting.push(9, part_address("a", 5900 + GAP + 1, 5900 + GAP + 9), 8)
    (row, first, size) = waiting.first()
    assert (row, size) == (0, 900)
    every = [part_address("a", start, start + 900) for start in (0, 1000, 2000, 4000, 5000)]
    assert waiting.beside(first, 1 << 20, 99) == every
    assert waiting.beside(first, 2000, 99) == every[-2:]
    assert waiting.beside(every[1], 1 << 20, 2) == every[1:3]
    assert waiting.beside("a", 1 << 20, 99) == ["a"]
    assert [waiting.take(address) for address in every] == [1, 2, 4, 3, 0]
    assert waiting.size == 15
    assert waiting.first() == (9, "a", 7)


class Rows(torch.utils.data.Dataset):
    fingerprint = "x"

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return sample(row)


def test_a_pack_that_is_sent_is_the_pack_of_the_disk(tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sending, "PART", 50_000)
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
