"""Batches from a store are those from a disk: each kind of data, whatever fetches it, and whatever
goes wrong, are one cell of a table. `pytest -m "thorough or not thorough" FILE` shows all of it.
"""

import io
import multiprocessing
import os
import resource
import shutil
import signal
import tarfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from penstock import command
from penstock.addons.packs.folder import Packed
from penstock.addons.storage import index as file_index
from penstock.addons.tables.table import MappedTable, StreamedTable
from penstock.addons.tars import index
from penstock.addons.tars.tars import IndexedTars, TarShards
from penstock.addons.tokens.token_files import TokenFiles
from penstock.datasets.files import Files
from penstock.datasets.image_folder import ImageFolder
from penstock.datasets.reading.base import Shares
from penstock.distributed.world import World
from penstock.errors import DataError
from penstock.loading.batch import hash_of_rows, row_hashes
from penstock.loading.collate import List
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, StreamOrder, StreamPlan, is_stream
from penstock.order.samplers import Random
from penstock.runs import checkpoint
from tests.support.program import run
from tests.support.store_server import ENVIRONMENT, InThread, Shelf
from tests.support.token_pairs import write_pair

pytest.importorskip("obstore")

ROWS, SIZE, MIDDLE = 36, 4, 3
EVERYTHING = {"shares": Shares(0.0)}
KINDS = {
    "files": lambda root, **more: ImageFolder(root, **EVERYTHING, **more),
    "tars": lambda root, **more: TarShards(root, **EVERYTHING, **more),
    "indexed": lambda root, cache_dir="", **more: IndexedTars(
        root, cache_dir=cache_dir, **EVERYTHING, **more
    ),
    "packs": lambda root, **more: Packed(root, **more),
    "tokens": lambda root, cache_dir="", **more: TokenFiles(
        root, dtype="uint16", **EVERYTHING, **more
    ),
    "parquet": lambda root, **more: MappedTable(root, **EVERYTHING, **more),
    "parquet_stream": lambda root, **more: StreamedTable(root, **EVERYTHING, **more),
}
INDEXED = ("indexed", "tokens", "parquet")  # what keeps something that is made of its files
LOADERS = {
    "alone": {},
    "threads": {"backend": "thread", "num_workers": 2},
    "workers": {"num_workers": 2},
    "ranks": {"num_workers": 1, "world": 2},
}
FETCHED = {
    "ahead": {},
    "late": {"ahead": 0},
    "one by one": {"concurrency": 1, "ahead": 20_000},
    "small cache": {"cache_size": 300_000},
}
FAULTS = ("busy", "many", "error", "reset", "short", "stall", "version")
PLAIN = [(loader, fetched, None) for loader in LOADERS for fetched in FETCHED]
FAULTY = [
    (loader, fetched, fault)
    for fault in FAULTS
    for loader, fetched in (("alone", "late"), ("workers", "ahead"))
]
ENDS = [("alone", "late", "expired"), ("workers", "ahead", "expired")]
FULL = [(loader, "ahead", "full disk") for loader in ("alone", "workers")]
STOPS = [("workers", "ahead", f"killed, cache {cache}") for cache in ("kept", "gone")]
ROWS_OF_TABLE = [*PLAIN, *FAULTY, *ENDS, *FULL, *STOPS]


def write_all(root):
    draws = np.random.default_rng(0)
    pictures = []
    for row in range(ROWS):
        file = io.BytesIO()
        Image.fromarray(draws.integers(0, 255, (100, 100, 3), dtype=np.uint8)).save(file, "PNG")
        pictures.append(file.getvalue())
        path = root / f"files/{'ab'[row % 2]}/{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures[-1])
    for folder in ("tars", "indexed"):
        (root / folder).mkdir()
        for shard in range(3):
            with tarfile.open(root / folder / f"{shard}.tar", "w") as archive:
                for row in range(shard, ROWS, 3):
                    for ending, content in (("png", pictures[row]), ("cls", b"%d" % (row % 2))):
                        member = tarfile.TarInfo(f"{row:02}.{ending}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
    index.write(str(root / "indexed"))
    pack(root)
    rows = [draws.integers(0, 50_000, 9_000) for _ in range(ROWS)]
    write_pair(root / "tokens", "a", rows, [*range(ROWS + 1)])
    (root / "parquet").mkdir()
    for number in range(2):
        columns = {
            "label": [row % 2 for row in range(ROWS // 2)],
            "image": pictures[number * (ROWS // 2) : (number + 1) * (ROWS // 2)],
        }
        pq.write_table(pa.table(columns), root / f"parquet/{number}.parquet", row_group_size=5)
    shutil.copytree(root / "parquet", root / "parquet_stream")
    for kind in KINDS:  # web servers list nothing
        file_index.write(root / kind)


def pack(root):
    """As `task=pack` makes it, of the single files."""
    given = ["task=pack", "dataset=image_folder", f"dataset.root={root}/files"]
    given += [f"pack.out={root}/packs", "pack.format=encoded"]
    assert command.main([*given, f"run_dir={root}/packing", f"cache_dir={root}/cache"]) == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_all(root)
    return root


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """The batches of each kind from the disk, read once."""
    made = {}

    def of(kind):
        if kind not in made:
            here = KINDS[kind](str(data / kind), **indexes(kind, tmp_path_factory.mktemp("here")))
            made[kind] = digests([here])
        return made[kind]

    return of


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def indexes(kind, folder):
    return {"cache_dir": str(folder / "indexes")} if kind in INDEXED else {}


def loaders_of(datasets, backend="process", num_workers=0):
    loaders = []
    for rank, dataset in enumerate(datasets):
        if is_stream(dataset):
            order = StreamOrder(3, 10, shuffle_shards=True)
            plan = StreamPlan(order, SIZE)
            fetch = StreamFetch(dataset, None, List(), 3, True, plan=plan)
        else:
            fetch = Fetch(dataset, None, List(), seed=3, hashed=True)
            plan = Plan(Random(len(dataset), 3), SIZE)
        options = LoaderOptions(backend, num_workers)
        loaders.append(Loader(plan, fetch, options, World(rank, len(datasets))))
    return loaders


def digests(datasets, starts=((0, 0), (1, MIDDLE)), each=lambda digest: None, **workers):
    """Of the batches of all ranks, from each of some addresses to the end of its epoch.

    Args:
        each: called with each digest.
    """
    made, loaders = [], loaders_of(datasets, **workers)
    try:
        for epoch, start in starts:
            epochs = [loader.epoch(epoch, start) for loader in loaders]
            for batches in zip(*epochs, strict=True):
                made.append(hash_of_rows(row for batch in batches for row in row_hashes(batch)))
                each(made[-1])
    finally:
        for loader in loaders:
            loader.close()
    return made


@pytest.mark.one_in(41)
@pytest.mark.parametrize("row", ROWS_OF_TABLE, ids=lambda row: ", ".join(filter(None, row)))
@pytest.mark.parametrize("way", ["http", "s3"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_disk(data, expected, tmp_path, monkeypatch, kind, way, row):
    loader, fetched, event = row
    paths = [path for path in (data / kind).rglob("*") if path.is_file()]
    shelf = Shelf({f"data/{path.relative_to(data)}": path.read_bytes() for path in paths})
    workers = {**LOADERS[loader]}
    world = workers.pop("world", 1)
    with InThread(shelf) as port:
        url = f"http://127.0.0.1:{port}"

        def opened(cache="cache"):
            files = Files(
                cache_dir=str(tmp_path / cache),
                options={"endpoint_url": url} if way == "s3" else {},
                retries=9,
                first_wait=0.01,
                timeout=1.5 if event == "stall" else 30,  # for what does not come
                **FETCHED[fetched],
            )
            root = f"s3://data/{kind}" if way == "s3" else f"{url}/data/{kind}"
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            if event == "full disk":  # the process that fetches may write no file as large
                resource.setrlimit(resource.RLIMIT_FSIZE, (2500, limits[1]))
                files.remote.find([f"{root}/nothing"])
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            return KINDS[kind](root, files=files, **indexes(kind, tmp_path))

        datasets = [opened() for _ in range(world)]
        asked = shelf.requests["GET"]
        if event == "expired":
            check_it_ends(datasets, workers, shelf, expected(kind))
            shelf.faults = {}
            assert digests([opened()], **workers) == expected(kind), "there is an end to it"
        elif event in FAULTS:
            shelf.faults = {event: 5}
            assert digests(datasets, **workers) == expected(kind)
            # One GET in five fails; a busy machine may let others wait for too long.
            most = 2 * (asked + ROWS * 4) if event == "stall" else asked + ROWS * 4
            assert shelf.requests["GET"] < most, "no storm"
        elif event and event.startswith("killed"):
            shelf.faults, shelf.latency = {"reset": 7}, 0.01
            made = killed(tmp_path / "steps", opened, workers)
            if event.endswith("gone"):
                shutil.rmtree(tmp_path / "cache")
            made += digests([opened()], [(0, MIDDLE + 1), (1, MIDDLE)], **workers)
            assert made == expected(kind)
        else:
            assert digests(datasets, **workers) == expected(kind)
        if way == "s3" and event != "version":  # after which the store is asked
            assert not shelf.requests["HEAD"]


def killed(path, opened, workers):
    """The digests of a process that was killed after some batches, with its workers."""

    def read():
        os.setsid()
        with path.open("w", buffering=1) as file:
            digests([opened()], [(0, 0)], each=lambda digest: file.write(f"{digest}\n"), **workers)

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    end = time.monotonic() + 100
    while not path.exists() or path.read_text().count("\n") <= MIDDLE:
        assert time.monotonic() < end, "it delivers batches"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return path.read_text().splitlines()[: MIDDLE + 1]


def check_it_ends(datasets, workers, shelf, expected):
    """After a batch credentials expire: one message, no storm; or everything had come by then."""
    asked = shelf.requests["GET"]

    def expire(digest):
        shelf.faults = {"expired": 1}

    said = ""
    try:
        assert digests(datasets, each=expire, **workers) == expected
    except DataError as error:
        said = str(error)
    assert not said or "The credentials found here do not allow it" in said
    assert shelf.requests["GET"] - asked < 4 * ROWS, "no storm"


FIT = ["dataset=image_folder", "transform=images", "batch.size=8", "model=small_conv_net"]
FIT += [
    "trainer.max_epochs=2",
    "trainer.checkpoint.every_steps=1",
    "trainer.checkpoint.keep_last=1",
]
FIT += ["trainer.report=false", "trainer.baseline=false", "trainer.progress=none", "tracker=none"]
FIT += ["scheduler=none", "loader.num_workers=1", "trainer.device=cpu"]


def test_a_fit_from_a_store_that_is_stopped_ends_as_one_from_the_disk(data, tmp_path, capsys):
    """Stopped in the middle of its first epoch, and gone on with after its cache was deleted."""
    paths = [path for path in (data / "files").rglob("*") if path.is_file()]
    shelf = Shelf({f"data/{path.relative_to(data)}": path.read_bytes() for path in paths})

    def fitted(*words):
        done = run(capsys, *words)
        assert done.code == 0, done.err

    def newest(name):
        return checkpoint.find_newest(tmp_path / name).state

    local = [f"dataset.root={data / 'files'}", f"cache_dir={tmp_path / 'local'}"]
    fitted(*FIT, *local, f"run_dir={tmp_path / 'disk'}")
    with InThread(shelf) as port:
        cache = tmp_path / "cache"
        there = [f"dataset.root=http://127.0.0.1:{port}/data/files", f"cache_dir={cache}"]
        fitted(*FIT, *there, f"run_dir={tmp_path / 'store'}", "trainer.max_steps=2")
        left = newest("store")
        assert (left["loader"]["epoch"], left["loader"]["step"]) == (0, 2)
        assert cache.exists()
        shutil.rmtree(cache)
        fitted(f"resume={tmp_path / 'store'}", "trainer.max_steps=null")
    expected, found = newest("disk"), newest("store")
    assert expected["loader"] == found["loader"]
    assert expected["updates"] == found["updates"] > 4
    assert found["model"].keys() == expected["model"].keys()
    for name, weights in expected["model"].items():
        assert torch.equal(found["model"][name], weights), name
