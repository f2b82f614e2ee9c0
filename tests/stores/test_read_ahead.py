"""Files that are fetched before they are needed, evicted by when they are, and asked for slowly."""

import hashlib
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.addons.stores import forecast
from penstock.addons.stores.forecast import (
    Forecast,
    ForecastFile,
    Kept,
    read_forecasts,
    rows_until_use,
    victims,
)
from penstock.addons.stores.request_gate import Pace, RequestGate
from penstock.addons.stores.retry import asks_to_wait
from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.datasets.files import Files
from penstock.distributed.world import World
from penstock.errors import DataError
from penstock.loading.batch import hash_of_rows, row_hashes
from penstock.loading.collate import List
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential
from tests.face_folder import write_faces
from tests.program import run
from tests.s3_server import wait_until
from tests.web_server import WebServer

pytest.importorskip("aiohttp")

FACES = 24


def reader(trace, delivered=0, handed=None, reads=True):
    """The forecast of a reader whose row n needs file trace[n]."""
    uses = [key << 32 | row for row, key in enumerate(trace)]
    uses = np.sort(np.array(uses, np.uint64))
    return Forecast(delivered, delivered if handed is None else handed, reads, uses)


def files_kept(*keys, used=0.0, is_read=True):
    count = len(keys)
    return Kept(
        np.array(keys, np.uint64),
        np.broadcast_to(np.float64(used), count).copy(),
        np.broadcast_to(np.bool_(is_read), count).copy(),
    )


# The order of eviction


def fewest_misses(trace, room):
    """By trying everything."""
    states = {frozenset(): 0}
    for key in trace:
        found = {}
        for held, misses in states.items():
            if key in held:
                choices = [held]
            elif len(held) < room:
                choices = [held | {key}]
            else:
                choices = [held - {victim} | {key} for victim in held]
            for one in choices:
                cost = misses + (key not in held)
                found[one] = min(found.get(one, cost), cost)
        states = found
    return min(states.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=16), st.integers(1, 4))
def test_no_order_of_eviction_has_fewer_misses(trace, room):
    held, misses = [], 0
    for row, key in enumerate(trace):
        if key in held:
            continue
        misses += 1
        if len(held) >= room:
            order = victims(files_kept(*held), [reader(trace, row)], now=100.0)
            assert sorted(order.tolist()) == list(range(len(held)))
            del held[int(order[0])]
        held.append(key)
    assert misses == fewest_misses(trace, room)


def test_what_nobody_will_use_goes_first_and_the_least_recently_used_of_it():
    kept = files_kept(7, 8, 1, 2, 9, used=[5, 4, 1, 1, 99.5])
    order = victims(kept, [reader([1, 2])], now=100.0)
    assert kept.keys[order].tolist() == [8, 7, 2, 1, 9]  # 9 is somebody's who tells no future
    assert kept.keys[victims(kept, [], now=100.0)].tolist() == [1, 2, 8, 7, 9]


def test_the_next_of_several_readers_counts_and_idle_ones_less():
    kept = files_kept(1, 2, 3)
    first, second = reader([1, 2, 3]), reader([3, 9, 9, 9, 1])
    assert rows_until_use(kept, [first, second]).tolist() == [0, 1, 0]
    idle = reader([3, 2, 1], reads=False)
    order = victims(kept, [reader([9, 1]), idle], now=100.0)
    assert kept.keys[order].tolist() == [2, 3, 1]


def test_what_was_read_is_not_needed_by_rows_in_hand():
    trace = [1, 2, 3, 1]
    for is_read, rows in ((True, [3, forecast._NEVER]), (False, [0, 1])):
        kept = files_kept(1, 2, is_read=is_read)
        assert rows_until_use(kept, [reader(trace, 0, 2)]).tolist() == rows
    # Two readers have them in hand, and perhaps one of them has not read them yet.
    assert rows_until_use(files_kept(1, 2), [reader(trace, 0, 2)] * 2).tolist() == [0, 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 12))
def test_what_is_fetched_ahead_evicts_nothing_that_is_needed_earlier(trace, beyond):
    kept = files_kept(*range(6))
    order = victims(kept, [reader(trace)], 100.0, beyond)
    nexts = [trace.index(key) if key in trace else 99 for key in range(6)]
    assert sorted(order.tolist()) == [key for key in range(6) if nexts[key] > beyond]


def test_forecasts_are_read_by_others_while_their_reader_lives(tmp_path):
    mine, other = ForecastFile(tmp_path), ForecastFile(tmp_path)
    mine.publish(reader([3, 4], 0, 1))
    other.publish(reader([5]))
    found = sorted(read_forecasts(tmp_path), key=lambda one: len(one.uses))
    assert [one.uses.tolist() for one in found] == [[5 << 32], [3 << 32, 4 << 32 | 1]]
    mine.move(1, 2, False)
    mine_now = max(read_forecasts(tmp_path), key=lambda one: len(one.uses))
    assert mine_now[:3] == (1, 2, False)
    mine.publish(reader([6, 7, 8]))
    assert sorted(len(one.uses) for one in read_forecasts(tmp_path)) == [1, 3]
    mine.close()
    assert len(read_forecasts(tmp_path)) == 1
    for path in (tmp_path / "forecasts").iterdir():
        os.utime(path, (1, 1))
    assert len(read_forecasts(tmp_path)) == 1
    assert len(list((tmp_path / "forecasts").iterdir())) == 1
    other.close()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=80))
def test_a_damaged_forecast_is_none(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("cache")
    mine = ForecastFile(folder)
    mine.publish(reader([1]))
    os.pwrite(mine._descriptor, content, 0)
    os.ftruncate(mine._descriptor, len(content))
    found = read_forecasts(folder)
    assert found == [] or content.startswith(b"penfore1")
    mine.close()


# The pace of requests


def test_a_burst_of_refusals_halves_the_pace_once_and_answers_bring_it_back():
    pace = Pace(16.0)
    for _ in range(10):  # of requests that were all under way
        pace = pace.after_refusal(began=99.0, now=100.0, wait=3.0, opened=16)
    assert (pace.limit, pace.waits) == (8.0, 103.0)
    pace = pace.after_refusal(began=101.0, now=102.0, wait=1e9, opened=16)
    assert (pace.limit, pace.waits) == (4.0, 222.0)  # two minutes at most
    answers = 0
    while pace.limit < 16:
        pace, answers = pace.after_success(16), answers + 1
    assert 100 < answers < 200
    for _ in range(9):
        pace = pace.after_refusal(began=1e3, now=500.0, wait=0.0, opened=9)._replace(slowed=0.0)
    assert pace.limit == 1.0
    # Half of what was open: where more may be than is, half of that would be no less.
    assert Pace(128.0).after_refusal(began=1.0, now=2.0, wait=0.0, opened=20).limit == 10.0


@pytest.mark.parametrize(
    "record", [b"", b"x", b"0 0 0", b"1 2", b"nan 0 0", b"1 9e99 0", b"4 0 inf"]
)
def test_a_damaged_pace_says_nothing(tmp_path, record):
    gate = RequestGate(tmp_path, 4, 5.0)
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests/pace").write_bytes(record)
    with gate.request(asks_to_wait):
        assert (tmp_path / "requests/0").exists() or len(
            list((tmp_path / "requests").iterdir())
        ) == 2


def hold(gate, held):
    with gate.request(asks_to_wait):
        held.release()
        time.sleep(60)


def test_requests_at_once_are_counted_over_processes_and_a_killed_one_frees_its_own(tmp_path):
    gate = RequestGate(tmp_path, 2, 30.0)
    context = multiprocessing.get_context("fork")
    held, entered = context.Semaphore(0), threading.Event()
    others = [context.Process(target=hold, args=(gate, held), daemon=True) for _ in range(2)]
    for one in others:
        one.start()
    for _ in others:
        assert held.acquire(timeout=20)

    def enter():
        with gate.request(asks_to_wait):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.1)
    others[0].kill()
    assert entered.wait(20)
    others[1].kill()
    for one in (*others, thread):
        one.join()


def test_a_process_that_is_stopped_does_not_hold_up_others_for_ever(tmp_path):
    gate = RequestGate(tmp_path, 1, patience=0.05)
    with gate.request(asks_to_wait), gate.request(asks_to_wait):
        pass


def test_a_wait_that_is_longer_than_patience_is_no_leave_to_ask_all_at_once(tmp_path):
    gate, wait, open_now, most = RequestGate(tmp_path, 8, patience=1.5), 1.7, set(), []
    with gate.request(asks_to_wait):
        pass
    ends = time.time() + wait
    (tmp_path / "requests/pace").write_text(f"2.0 {time.time():.4f} {ends:.4f}".ljust(64))

    def enter():
        with gate.request(asks_to_wait):
            assert time.time() >= ends - 0.01
            open_now.add(threading.get_ident())
            most.append(len(open_now))
            time.sleep(0.01)
            open_now.discard(threading.get_ident())

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 8
    assert max(most) <= 4, "two, and a little more with each good answer"


@pytest.mark.parametrize("value", ["much", -1])
def test_what_is_no_pace_is_refused(value, tmp_path, capsys):
    images = "dataset=image_folder", f"dataset.root={tmp_path}"
    done = run(capsys, "task=digest", *images, f"files.ahead={value}")
    assert done.code == 2
    assert "files.ahead: " in done.err


# A loader that reads ahead


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    root = write_faces(tmp_path_factory.mktemp("faces"), FACES, landmarks=3)
    return {f"/{path.name}": path.read_bytes() for path in root.iterdir()}


@pytest.fixture
def web(faces):
    with WebServer() as server:
        server.contents = dict(faces)
        yield server


def dataset_at(web, cache, **options):
    given = {"retries": 6, "first_wait": 0.02, **options}
    files = Files(cache_dir=str(cache), **given)
    return FaceLandmarks(web.address, val_fraction=0.0, files=files, orientation="apply")


def loader_of(dataset, world=None, order=Random, **options):
    sampler = Random(len(dataset), 3) if order is Random else Sequential(len(dataset))
    fetch = Fetch(dataset, None, List(), seed=3, hashed=True)
    return Loader(Plan(sampler, 4), fetch, LoaderOptions(**options), world)


def digest(loaders, epochs=2):
    """One over all batches of all ranks."""
    found = hashlib.blake2b()
    for epoch in range(epochs):
        for batches in zip(*(loader.epoch(epoch) for loader in loaders), strict=True):
            rows = itertools.chain.from_iterable(map(row_hashes, batches))
            found.update(hash_of_rows(rows).encode())
    return found.hexdigest()


def images(web):
    """Those that were downloaded, in order."""
    return [one for one in web.requests if one.startswith("GET") and one.endswith(".jpg")]


@pytest.fixture(scope="module")
def expected(faces, tmp_path_factory):
    root = tmp_path_factory.mktemp("here")
    for name, content in faces.items():
        (root / name[1:]).write_bytes(content)
    with loader_of(FaceLandmarks(str(root), val_fraction=0.0)) as loader:
        return digest([loader])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "thread", "num_workers": 2},
        {"backend": "process", "num_workers": 2},
        pytest.param(
            {"backend": "process", "num_workers": 1, "multiprocessing_context": "spawn"},
            marks=pytest.mark.stress,
        ),
    ],
    ids=str,
)
def test_batches_are_the_same_and_nothing_is_fetched_twice(web, tmp_path, expected, options):
    with loader_of(dataset_at(web, tmp_path), **options) as loader:
        assert loader._ahead is not None
        assert digest([loader]) == expected
    assert sorted(images(web)) == sorted(set(images(web)))
    assert len(images(web)) == FACES


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", ["main", "process"])
def test_ranks_share_the_cache_and_each_reads_ahead_for_itself(web, tmp_path, expected, backend):
    loaders = [
        loader_of(dataset_at(web, tmp_path), World(rank, 2), backend=backend, num_workers=1)
        for rank in range(2)
    ]
    try:
        assert digest(loaders) == expected
    finally:
        for loader in loaders:
            loader.close()
    assert len(images(web)) == len(set(images(web))) == FACES


def test_the_next_files_come_while_a_batch_is_trained_on(web, tmp_path):
    with loader_of(dataset_at(web, tmp_path)) as loader, closing(loader.epoch(0)) as batches:
        next(batches)
        wait_until(lambda: len(images(web)) == FACES, 20)  # nobody asks for a batch
    with loader_of(dataset_at(web, tmp_path / "0", ahead=0)) as loader:
        assert loader._ahead is None


def test_a_killed_one_costs_no_batch_and_is_started_again(web, tmp_path, expected, caplog):
    found = hashlib.blake2b()
    with loader_of(dataset_at(web, tmp_path)) as loader, caplog.at_level(logging.WARNING):
        for epoch in range(2):
            for batch in loader.epoch(epoch):
                found.update(hash_of_rows(row_hashes(batch)).encode())
                if batch.request.address == (0, 1):
                    process = loader._ahead._process
                    os.kill(process.pid, signal.SIGKILL)
                    process.join()
        assert loader._ahead._process.is_alive()
    assert found.hexdigest() == expected
    said = [one.message for one in caplog.records if one.name.endswith("read_ahead")]
    assert said == [
        "the process that fetches files ahead (loader) ended with code -9; it is started again, "
        "and no batch depends on it"
    ]


@pytest.mark.parametrize("ahead", [0, "1MB"])
def test_what_cannot_be_fetched_is_an_error_in_its_turn_only(web, tmp_path, ahead):
    dataset = dataset_at(web, tmp_path, ahead=ahead)
    del web.contents["/17.jpg"]
    with loader_of(dataset, order=Sequential) as loader:
        batches = loader.epoch(0)
        for _ in range(4):
            next(batches)
        if ahead:
            wait_until(lambda: web.downloads("/17.jpg"), 20)
        with pytest.raises(DataError, match=r"sample 17 .*17\.jpg' is missing in its store"):
            next(batches)


@pytest.mark.thorough
def test_a_store_that_bears_little_is_asked_for_less(web, tmp_path, expected):
    dataset = dataset_at(web, tmp_path, concurrency=8)
    web.bears, web.wait, web.delay = 2, 0.05, 0.005
    with loader_of(dataset, backend="process", num_workers=2) as loader:
        assert digest([loader]) == expected
    refused = [one for one in web.requests if one.startswith("429")]
    assert refused
    assert web.most <= 8
    assert len(images(web)) == len(set(images(web))) == FACES


def test_no_more_requests_are_open_than_allowed(web, tmp_path):
    dataset = dataset_at(web, tmp_path, concurrency=3)
    web.delay = 0.01
    with loader_of(dataset, backend="thread", num_workers=4) as loader:
        digest([loader], epochs=1)
    assert 1 < web.most <= 3


@pytest.mark.parametrize("share", [0.5, pytest.param(0.75, marks=pytest.mark.stress)])
def test_a_small_cache_is_used_nearly_as_well_as_can_be(web, tmp_path, share):
    for name in list(web.contents):
        if name.endswith(".jpg"):
            web.contents[name] = web.contents[name].ljust(1 << 14, b"\0")
    room = int(FACES * share)
    dataset = dataset_at(web, tmp_path, cache_size=room << 14)
    next(tmp_path.rglob("*.csv")).unlink()
    loader, order = loader_of(dataset), []
    with loader:
        for epoch in range(3):
            for batch in loader.epoch(epoch):
                order += batch.indices.tolist()
                time.sleep(0.01)
    best, least_recent = belady(order, room), lru(order, room)
    # The rows of a batch, and two files ahead, have to be there at once: a quarter of this cache.
    assert best <= len(images(web)) < (best + least_recent) / 2 + 4


def belady(order, room):
    held, misses = [], 0
    for place, key in enumerate(order):
        if key not in held:
            misses += 1
            if len(held) >= room:
                rest = order[place:]
                held.remove(max(held, key=lambda k: rest.index(k) if k in rest else len(order)))
            held.append(key)
    return misses


def lru(order, room):
    held, misses = [], 0
    for key in order:
        misses += key not in held
        held = [*(one for one in held if one != key), key][-room:]
    return misses


def read_and_wait(web, cache, pids):
    loader = loader_of(dataset_at(web, cache), backend="process", num_workers=1)
    next(loader.epoch(0))
    pids.send(loader._ahead._process.pid)
    time.sleep(60)


def test_it_knows_from_the_start_how_many_batches_workers_take(web, tmp_path):
    """Else it would know of the first one only while a thread backend tries two of its rows."""
    loader = loader_of(dataset_at(web, tmp_path), backend="thread", num_workers=2)
    try:
        requests = loader._ahead.requests(0, 1, iter([loader.plan.request(0, 1)]))
        next(requests)
        assert loader._ahead._news == (0, 1, 1 + 2 * 2)
        loader._ahead.delivered(1)
        assert loader._ahead._news == (0, 2, 1 + 2 * 2)
    finally:
        loader.close()


def test_it_ends_with_the_process_that_it_works_for(web, tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    running = context.Process(target=read_and_wait, args=(web, tmp_path, theirs))
    running.start()
    pid = ours.recv()
    running.kill()
    running.join()
    wait_until(lambda: has_ended(pid), 20)


def has_ended(pid):
    """Also where nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
