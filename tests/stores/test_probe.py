"""What `task=profile` says of a store."""

import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from penstock.addons.stores import probe
from penstock.addons.stores.parts import part_address
from penstock.addons.stores.probe import Demand, Speed, demand_of, judged, lines
from penstock.datasets.files import FileInfo, Files
from penstock.datasets.image_folder import ImageFolder
from tests.program import run
from tests.support.store_server import InThread, Shelf

SINGLE = Demand(1.0, 80_000.0, in_parts=False)
PARTS = Demand(0.01, 80_000.0, in_parts=True)
FAR, SLOW = Speed(0.1, 40e6), Speed(0.001, 2e6)
WINDOW = 256_000_000


@pytest.mark.parametrize(
    ("speed", "demand", "wanted", "ahead", "most", "words", "overrides"),
    [
        (FAR, SINGLE, 100, WINDOW, 128, "nothing of the store", ()),
        (FAR, SINGLE, 1000, 0, 128, "before a worker needs it", ("dataset.files.ahead=256MB",)),
        (FAR, SINGLE, 1000, WINDOW, 32, "more requests at once; or fewer and larger", (128,)),
        (FAR, SINGLE, 1000, 2_000_000, 128, "more bytes on the way", ("dataset.files.ahead=21MB",)),
        (FAR, SINGLE, 50_000, WINDOW, 128, "fewer and larger requests: task=pack", ()),
        (FAR, PARTS, 1e6, WINDOW, 128, "fewer bytes a sample", ()),
        (SLOW, SINGLE, 1e5, WINDOW, 128, "fewer bytes a sample: task=pack with a smaller", ()),
        (FAR, Demand(1.0, 8e4, True), 50_000, WINDOW, 128, "larger requests: sampler=blocks", ()),
    ],
)
def test_what_would_help(speed, demand, wanted, ahead, most, words, overrides):
    possible, advice = judged(speed, demand, wanted, ahead, most)
    assert words in advice.words
    if overrides == (128,):
        needed = math.ceil(1000 * (0.1 + 80_000 / 40e6) / 0.8)
        overrides = (f"dataset.files.concurrency={needed}",)
    assert advice.overrides == overrides
    for override in overrides:  # with it, the store gives what is wanted
        key, _, value = override.rpartition(".")[2].partition("=")
        now = {"ahead": ahead, "concurrency": most}
        now[key] = int(value.removesuffix("MB")) * (10**6 if value.endswith("MB") else 1)
        if ahead or speed is not FAR:
            better, _ = judged(speed, demand, wanted, now["ahead"], now["concurrency"])
            assert better >= wanted > possible


class Known:
    """Access to files whose bytes are all known."""

    def __init__(self, ahead):
        self.ahead = ahead

    def entry(self, address):
        part = address.partition("\0")[2]
        start, _, end = part.partition("-")
        return address, int(end) - int(start) if part else 1000


def test_requests_are_counted_as_they_are_made_ahead():
    files = [[f"s3://data/{row}"] for row in range(40)]
    assert demand_of(Known(10**6), iter(files)) == Demand(1.0, 1000.0, False)
    side_by_side = [[part_address("s3://data/x", 100 * n, 100 * n + 100)] for n in range(40)]
    assert demand_of(Known(10**6), iter(side_by_side)) == Demand(1 / 40, 100.0, True)
    assert demand_of(Known(400), iter(side_by_side)).requests == pytest.approx(1 / 4, rel=0.3)
    assert demand_of(Known(10**6), iter(side_by_side * 2)) == Demand(1 / 80, 50.0, True)


@pytest.fixture(scope="module")
def served():
    contents = {}
    for number in range(24):
        file = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
        contents[f"data/{'train' if number < 16 else 'val'}/{'ab'[number % 2]}/{number}.png"] = (
            file.getvalue()
        )
    pytest.importorskip("aiohttp")
    shelf = Shelf(contents)
    with InThread(shelf) as port:
        yield shelf, f"http://127.0.0.1:{port}/data"


def test_latency_and_rate_are_measured(served, tmp_path, monkeypatch):
    shelf, root = served
    data = ImageFolder(root, files=Files(cache_dir=str(tmp_path)))
    monkeypatch.setattr(shelf, "latency", 0.05)
    monkeypatch.setattr(shelf, "rate", 100_000.0)
    rows = [files[0] for files in data.files_of(range(16))]
    speed = probe.speed_of(data.remote_files, rows)
    assert speed.latency >= 0.05  # a busy machine adds to it
    assert speed.rate > 0
    monkeypatch.setattr(shelf, "ranges", False)
    monkeypatch.setattr(shelf, "latency", 0.0)
    monkeypatch.setattr(shelf, "rate", float("inf"))
    assert probe.speed_of(data.remote_files, rows).rate == math.inf


class Timed:
    """A store whose GETs take 100 ms, and a second for each 2 MB."""

    catalog = SimpleNamespace(look=lambda address: FileInfo(address, 400_000, ""))

    def seconds(self, address, size):
        return 0.1 + size / 2e6


def test_latency_and_rate_are_told_apart():
    speed = probe.speed_of(Timed(), [f"s3://data/{number}" for number in range(9)])
    assert speed == pytest.approx((0.1, 2e6), rel=1e-3)


def test_the_files_of_a_store_are_looked_for_in_its_first_rows_alone():
    one_part, asked = part_address("s3://data/x", 0, 100), []

    def rows():
        while True:
            asked.append(1)
            yield [one_part]

    with pytest.raises(AttributeError, match="catalog"):  # the measuring, once they are known
        probe.report(SimpleNamespace(), rows, None)
    assert len(asked) == probe._ROWS


def test_a_store_of_shards_and_one_that_is_gone(tmp_path):
    assert lines(Speed(0.03, math.inf), None, 0.0, 1, 1) == [
        ("store", "the first byte after 30 ms")
    ]
    with InThread(Shelf({"data/x.tar": b""})) as port:
        files = Files(cache_dir=str(tmp_path), retries=0, first_wait=0.0)
        address = f"http://127.0.0.1:{port}/data/x.tar"
        files.remote.catalog._found[address] = FileInfo("x.tar", 1000, "")
    ((label, text),) = files.remote.report(lambda: iter([[address]]), None)
    assert (label, text[:19]) == ("store", "cannot be measured:")
    assert files.remote.report(lambda: iter(()), None) == []


def test_profile_says_it(served, tmp_path, capsys, monkeypatch):
    shelf, root = served
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shelf, "latency", 0.02)
    done = run(
        capsys,
        *["task=profile", "steps=3", "dataset=image_folder", f"dataset.root={root}"],
        *["batch.size=4", "loader.num_workers=0", "trainer.checkpoint=null", "run_dir=here"],
    )
    assert done.code == 0, done.err
    pairs = (line.partition(" ") for line in done.out.splitlines())
    said = {label: text.strip() for label, _, text in pairs}
    assert said["store"].startswith("the first byte after ")
    assert said["requests"].startswith("1 a sample, of ")
    assert "128 at once and 256 MB ahead" in said["requests"]
