"""Small files of a folder in bundles: the same bytes, fetched once, whatever happens between."""

import io
import multiprocessing
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.store_server import InThread, Shelf
from penstock.addons.stores import listing, mirror
from penstock.addons.stores.arrivals import brought
from penstock.addons.stores.file_cache import FileCache
from penstock.addons.stores.listing import FRONT, Listing
from penstock.addons.stores.mirror import Bundle
from penstock.addons.stores.parts import Part
from penstock.datasets.files import FileInfo, Files
from penstock.datasets.image_folder import ImageFolder
from penstock.errors import DataError
from penstock.files.limits import Limits
from tests.s3_server import wait_until

pytestmark = pytest.mark.skipif(not mirror._SET, reason="only Linux has locks of an open file")


# Which files are together, and where


def listed(sizes):
    return Listing.of(FileInfo(name, size, f"v{size}") for name, size in sizes.items())


def bundles(files):
    """By their hashes: the name, start and end of each file."""
    together = {}
    for row in range(len(files)):
        if (slot := files.slot(row)) is not None:
            digest, size = files.bundle(slot[0])
            together.setdefault((digest, size), []).append((files.names[row].decode(), *slot[1:]))
    return together


NAMES = st.text("abcdefgh/.", min_size=1, max_size=12)
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([0, None, listing.SMALL, listing.SMALL + 1]))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, SIZES, min_size=1, max_size=40), NAMES, st.integers(1, 9))
def test_small_files_lie_side_by_side_and_a_new_one_changes_one_bundle(sizes, name, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_BUNDLED", 4)
        before, after = bundles(listed(sizes)), bundles(listed(sizes | {name: size}))
    places = [place for files in before.values() for place in files]
    assert {file for file, _, _ in places} == {
        file for file, count in sizes.items() if count and count <= listing.SMALL
    }
    for (_, end), files in before.items():
        ends = [0, *(end for _, _, end in files)]
        assert [start for _, start, _ in files] == ends[:-1]
        assert ends[-1] == end
        assert all(end - start == FRONT + sizes[file] for file, start, end in files)
    if name not in sizes:
        changed = [files for key, files in before.items() if key not in after]
        assert len(changed) <= 1
        files = {file for files in changed for file, _, _ in files} | {name}
        assert files == {file for key in after.keys() - before for file, _, _ in after[key]}


def test_there_are_only_so_many_bundles_of_a_folder(monkeypatch):
    monkeypatch.setattr(listing, "_BUNDLED", 2)
    monkeypatch.setattr(listing, "_BUNDLES", 8)
    files = listed({f"{number:04}": 5 for number in range(2000)})
    assert 2 < len(bundles(files)) < 24


# A bundle

SIZES_OF = [3000 + number for number in range(12)]
CONTENTS = [os.urandom(size) for size in SIZES_OF]
ENDS = np.cumsum([FRONT + size for size in SIZES_OF]).tolist()
SLOTS = [
    Part("s3://data", end - FRONT - size, end) for end, size in zip(ENDS, SIZES_OF, strict=True)
]


def cache_at(folder):
    cache = FileCache(folder, 1_000_000)
    cache.get("00-small", 10, lambda part: part.write(b"0123456789"))
    return cache


@pytest.fixture
def cache(tmp_path):
    return cache_at(tmp_path / "cache")


def opened(cache):
    """The bundle as another process has it."""
    return Bundle(cache, "0123abcd-files", ENDS[-1])


def fill(claim, commits=True):
    for slot in claim.parts:
        claim.write(slot, memoryview(CONTENTS[SLOTS.index(slot)]))
    claim.flush()
    if commits:
        claim.commit()


def read(bundle, number):
    return bundle.read(SLOTS[number], 0, SIZES_OF[number])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["commit", "leave", "read"]),
            st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True),
        ),
        max_size=12,
    )
)
def test_files_read_are_those_committed(tmp_path_factory, steps):
    cache = cache_at(tmp_path_factory.mktemp("cache"))
    ours, others, there = opened(cache), opened(cache), set()
    for action, numbers in steps:
        if action == "read":
            for number in numbers:
                assert read(others, number) == (CONTENTS[number] if number in there else None)
            continue
        with ours.claimed([SLOTS[number] for number in numbers]) as claim:
            assert claim.parts == [SLOTS[number] for number in numbers if number not in there]
            fill(claim, commits=action == "commit")
        there |= set(numbers) if action == "commit" else set()
    taken = int((cache.folder / "taken").read_text().split()[0]) - 10
    assert taken == sum(FRONT + SIZES_OF[number] for number in there)


def _claim_and_wait(cache, writes, ready):
    with opened(cache).claimed(SLOTS[:2]) as claim:
        if writes:
            fill(claim, commits=False)
        ready.set()
        time.sleep(600)


@pytest.mark.parametrize("writes", [False, True])
def test_what_the_dead_have_not_recorded_is_not_read(cache, writes):
    ready = multiprocessing.Event()
    process = multiprocessing.Process(target=_claim_and_wait, args=(cache, writes, ready))
    process.start()
    assert ready.wait(60)
    with opened(cache).claimed(SLOTS[:3]) as claim:
        assert claim.parts == SLOTS[2:3]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert read(opened(cache), 0) is None
    with opened(cache).claimed(SLOTS[:2]) as claim:
        assert claim.parts == SLOTS[:2]
        fill(claim)
    assert [read(opened(cache), number) for number in (0, 1)] == CONTENTS[:2]


@pytest.mark.parametrize("cut", [0, 10, 4096 + 5000, 4096 + ENDS[-1]])
def test_what_was_cut_off_is_not_read_as_zeros(cache, cut):
    ours = opened(cache)
    with ours.claimed(SLOTS[:3]) as claim:
        fill(claim)
    with ours.claimed(SLOTS[-1:]) as claim:
        os.truncate(ours.path, cut)
        with pytest.raises(DataError, match="was cut off"):
            fill(claim)
    with opened(cache).claimed(SLOTS) as claim:
        assert claim.parts == SLOTS, "in a new file"
        fill(claim)
    assert [read(opened(cache), number) for number in range(12)] == CONTENTS


# A folder of small files in a store


def picture(number):
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (24, 32, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PICTURES = {f"data/{'ab'[number // 6]}/{number:02}.png": picture(number) for number in range(12)}


@contextmanager
def served(tmp_path):
    pytest.importorskip("s3fs")
    with pytest.MonkeyPatch.context() as patch, InThread(shelf := Shelf(dict(PICTURES))) as port:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")

        def data(**options):
            files = Files(
                cache_dir=str(tmp_path / "cache"),
                options={"endpoint_url": f"http://127.0.0.1:{port}"},
                first_wait=0.01,
                **options,
            )
            return ImageFolder("s3://data", val_fraction=0.0, files=files)

        yield shelf, data


@contextmanager
def fetching(images, steps=12):
    """What fetches ahead for a reader of one picture after the other."""
    remote = images.remote_files
    prefetcher = remote.prefetcher(lambda _, step: images.files_of([step]), lambda _: steps)
    with closing(prefetcher.bell):
        prefetcher.go_to(0, 0, steps, True)
        yield prefetcher


def test_the_first_file_of_a_cache(tmp_path):
    cache = FileCache(tmp_path / "cache", 1_000_000)
    with opened(cache).claimed(SLOTS[:1]) as claim:
        fill(claim)
    assert read(opened(cache), 0) == CONTENTS[0]


def gets(shelf):
    return shelf.requests["GET"]


def is_there(images):
    return all(
        np.array_equal(images[row]["image"].permute(1, 2, 0), Image.open(io.BytesIO(content)))
        for row, content in enumerate(PICTURES.values())
    )


def kept(tmp_path):
    """How many files and bundles there are in the cache."""
    paths = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    return Counter(path.parts[len(tmp_path.parts) + 1] for path in paths)


def test_files_are_fetched_once_into_a_bundle_and_found_by_the_next_run(tmp_path):
    with served(tmp_path) as (shelf, data):
        assert is_there(data())
        images = data()
        assert is_there(images)
        assert gets(shelf) == len(PICTURES)
        assert kept(tmp_path)["mirrors"] == 1
        assert not kept(tmp_path)["files"]
        # Whoever needs a path gets a file.
        assert [images.remote_files.local(images.path(row)).read_bytes() for row in (0, 5)] == [
            list(PICTURES.values())[row] for row in (0, 5)
        ]
        assert all(images.check(row) is None for row in range(12))
        assert gets(shelf) == len(PICTURES)
        assert kept(tmp_path)["files"] == 2


def test_files_of_an_earlier_cache_are_used(tmp_path):
    with served(tmp_path) as (shelf, data):
        images = data()
        for row in range(12):
            images.remote_files.local(images.path(row))
        rows = {address: row for row, (address,) in enumerate(images.files_of(range(12)))}
        for address, row in rows.items():
            assert brought(images.remote_files, False, {address: row}, 0).size == 0
        with fetching(images) as prefetcher:
            wait_until(lambda: prefetcher.work() and not prefetcher._open, 60)
            assert prefetcher._step == 12
            assert not prefetcher._has_parts, "what lies side by side is not looked for"
        assert is_there(images)
        assert gets(shelf) == len(PICTURES)
        assert not kept(tmp_path)["mirrors"]


def test_what_is_fetched_ahead_and_who_reads_fetch_a_file_once(tmp_path):
    with served(tmp_path) as (shelf, data):
        images = data()
        shelf.latency = 0.2
        with fetching(images) as prefetcher, ThreadPoolExecutor(1) as pool:
            prefetcher.work()
            assert prefetcher._open
            reading = pool.submit(is_there, images)
            wait_until(lambda: prefetcher.work() is not None and reading.done(), 60)
            assert reading.result()
        assert gets(shelf) == len(PICTURES)


class FirstWrong(dict):
    """Files whose content is another one when it is asked for first."""

    def __init__(self, files):
        super().__init__(files)
        self.asked = set()

    def __getitem__(self, name):
        content = super().__getitem__(name)
        if name in self.asked:
            return content
        self.asked.add(name)
        return bytes(len(content))


def test_other_bytes_than_those_of_its_checksum_are_fetched_again(tmp_path):
    with served(tmp_path) as (shelf, data):
        images = data()
        assert images.remote_files.look(images.path(0)).version.startswith("md5:")
        shelf.files = FirstWrong(shelf.files)
        with fetching(images) as prefetcher:
            wait_until(lambda: prefetcher.work() and not prefetcher._open, 60)
        assert kept(tmp_path)["mirrors"] == 1
        assert is_there(images)
        assert gets(shelf) == 2 * len(PICTURES)


def test_the_small_shards_of_a_stream_are_files(tmp_path):
    with served(tmp_path) as (_, data):
        images = data()
        ((address,),) = images.files_of([0])
        assert brought(images.remote_files, True, {address: 0}, 0).size == len(picture(0))
        assert kept(tmp_path)["files"] == 1
        assert not kept(tmp_path)["mirrors"]


def test_a_file_that_changed_is_fetched_again_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "_BUNDLED", 2)
    with served(tmp_path) as (shelf, data):
        assert is_there(data())
        before = kept(tmp_path)["mirrors"]
        assert before > 2
        shelf.files["data/a/04.png"] = picture(99)
        shelf.etags.clear()
        images = data()
        assert not is_there(images)
        monkeypatch.setitem(PICTURES, "data/a/04.png", picture(99))
        assert is_there(images)
        assert len(PICTURES) < gets(shelf) < 2 * len(PICTURES)
        assert kept(tmp_path)["mirrors"] == before + 1


def test_where_a_bundle_might_be_evicted_files_are_kept_by_themselves(tmp_path):
    size = sum(map(len, PICTURES.values()))
    with served(tmp_path) as (_, data):
        assert is_there(data(cache_size=2 * size - 1))
        assert kept(tmp_path)["mirrors"] == 0
        assert kept(tmp_path)["files"] == len(PICTURES)


def test_limits_hold_for_what_comes_from_a_bundle(tmp_path):
    with served(tmp_path) as (_, data):
        images = data()
        assert is_there(images)
        images.limits = Limits(record_bytes=1000)
        with pytest.raises(DataError, match=r"image 's3://data/a/00.png': it has \d+ bytes"):
            images[0]


@pytest.mark.parametrize("fault", ["busy", "short", "version", "reset"])
def test_faults_cost_requests_alone(tmp_path, fault):
    with served(tmp_path) as (shelf, data):
        images = data(timeout=1, retries=6)
        shelf.faults = {fault: 5}
        assert is_there(images)
        assert kept(tmp_path)["mirrors"] == 1
