"""Batches from other runs: the same as one's own, whoever made them and however that one ended."""

import errno
import gc
import logging
import operator
import os
import signal
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.addons.decode_pool import folder, pool
from penstock.addons.decode_pool.folder import Attached, JobsToCome, PoolFolder, Position, positions
from penstock.addons.decode_pool.pool import DecodePool, Eviction
from penstock.errors import ConfigError, DataError
from penstock.loading import worker_status
from penstock.loading.bad_samples import BadSamples, SampleError
from penstock.loading.collate import List, Stack
from penstock.loading.fetch import Fetch, batch_hash
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from tests import resuming, toy
from tests.resuming import Case

GROUP = "0" * 32
BACKENDS = {
    "main": LoaderOptions(),
    "thread": LoaderOptions("thread", 2),
    "process": LoaderOptions("process", 2, persistent_workers=True),
}


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch, caplog):
    """Shared batches lie in a folder of the test's own, which is empty again when it ends."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(folder, "_room", lambda: tmp_path)
    yield tmp_path
    left = [
        path for path in tmp_path.glob("penstock-*/*") if path.name not in ("somebody", "ours.lock")
    ]
    assert left == []


def new(budget=1 << 30, name="ours", **named):
    return DecodePool(PoolFolder(name, budget), GROUP, **named)


def files():
    """All shared batches."""
    made = PoolFolder("ours").path
    return sorted(made.glob(f"{GROUP}/*"))


def pictures(options=None, given=None, transform=None, **named):
    dataset = named.pop("dataset", None) or toy.Pictures()
    fetch = Fetch(dataset, transform, Stack(), 0, hashed=True, **named)
    plan = Plan(Sequential(len(dataset)), 8)
    return Loader(plan, fetch, options or LoaderOptions(), exchange=given)


def same(one, other):
    """Whether two batches hold the same, lie alike and are of the same request."""
    fields = one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].stride() == other[name].stride()
        for name in one
    )
    return (
        fields
        and one.request.address == other.request.address
        and one.hashes == other.hashes
        and one.indices.tolist() == other.indices.tolist()
    )


KINDS = [*resuming.SAMPLERS, *(f"stream: {name}" for name in resuming.STREAMS)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_in(25)
def test_every_kind_of_batch_is_that_of_an_unshared_run(kind, backend):
    name = kind.removeprefix("stream: ")
    case = Case("random", name) if name != kind else Case(name)
    if backend == "thread" and name == "drawing":
        pytest.skip("it draws where threads cannot follow")
    with case.loader() as alone:
        wanted = [list(alone.epoch(epoch)) for epoch in range(2)]

    def loader(given):
        made = case.loader()
        return Loader(made.plan, made.fetch, BACKENDS[backend], exchange=given)

    with loader(new()) as first, loader(new()) as second:
        for epoch in range(2):
            for one in (first, second):
                found = list(one.epoch(epoch))
                assert len(found) == len(wanted[epoch])
                assert all(map(same, found, wanted[epoch]))
            # Batches with warnings are made by each run, which are the first of executors.
            assert second.stats.shared >= len(found) - 2
        assert first.stats.shared == 0
        assert second.stats.shared == len(found)
        assert set(second.stats.stages) == {"shared"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_consumer_writes_into_its_batch_nobody_else_sees(backend):
    options = BACKENDS[backend]
    with pictures() as alone:
        wanted = list(alone.epoch(0))
    with pictures(options, new()) as first, pictures(options, new()) as second:
        for loader in (first, second, first, second):
            found = list(loader.epoch(0))
            assert all(map(same, found, wanted))
            for batch in found:
                batch["image"].zero_()
        with pictures(given=new()) as third:
            assert all(map(same, third.epoch(0), wanted))
            assert third.stats.shared == len(wanted)


def test_the_files_may_go_and_no_descriptor_stays():
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    with pictures(BACKENDS["process"], new()) as loader, pictures(given=new()) as other:
        list(other.epoch(0))
        list(loader.epoch(0))
        before = descriptors()
        kept = list(loader.epoch(0))
        assert loader.stats.shared == len(kept)
        for path in files():
            path.unlink()
        with pictures() as alone:
            assert all(map(same, kept, alone.epoch(0)))
        del kept
        assert descriptors() == before


class Broken(toy.Pictures):
    def __getitem__(self, index):
        if index == 11:
            raise DataError("it is cut off")
        return super().__getitem__(index)


def test_errors_and_left_out_samples_are_each_runs_own():
    bad = BadSamples("skip")
    with pictures(dataset=Broken(), bad=bad) as alone:
        wanted = list(alone.epoch(0))
    with (
        pictures(given=new(), dataset=Broken(), bad=bad) as first,
        pictures(given=new(), dataset=Broken(), bad=bad) as second,
    ):
        for loader in (first, second):
            found = list(loader.epoch(0))
            assert all(map(same, found, wanted))
            assert [batch.left_out for batch in found] == [batch.left_out for batch in wanted]
        assert second.stats.shared == len(wanted) - 1, "it may have been the disk"
    for _ in range(2):
        with (
            pictures(given=new(), dataset=Broken()) as loader,
            pytest.raises(DataError, match="11"),
        ):
            list(loader.epoch(0))
    known = BadSamples("skip", known={11: "it is cut off"})
    with (
        pictures(given=new(), dataset=Broken(), bad=known) as first,
        pictures(given=new(), dataset=Broken(), bad=known) as second,
    ):
        list(first.epoch(0))
        found = list(second.epoch(0))
        assert second.stats.shared == len(wanted), "a quarantine knows it, and so do all runs"
        assert [batch.left_out[0].known for batch in found if batch.left_out] == [True]


def damage(path, how):
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(content[:-64])
    elif how == "longer":
        path.write_bytes(content + bytes(64))
    elif how == "of another batch":
        path.write_bytes(files()[3].read_bytes())
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        place = int(how.removeprefix("byte "))
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])


DAMAGES = [
    "empty",
    "cut off",
    "longer",
    "of another batch",
    "a folder",
    "a pipe",
    *(f"byte {place}" for place in (0, 9, 15, 17, 20, 25, 30, 60, 300)),
]


def test_a_file_that_is_larger_than_all_batches_may_be_is_not_mapped(caplog):
    with pictures() as alone:
        wanted = list(alone.epoch(0))
    with pictures(given=new()) as first:
        list(first.epoch(0))
        size = min(path.stat().st_size for path in files())  # the times in their heads vary
        with pictures(given=new(budget=size - 1)) as second:
            assert all(map(same, second.epoch(0), wanted))
            assert second.stats.shared == 0
    assert "all batches together may have" in caplog.records[0].getMessage()


def test_no_more_of_a_runs_file_is_read_than_a_position_has(tmp_path):
    attached = Attached(tmp_path, Position(GROUP))
    (path,) = tmp_path.glob("*.run")
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    try:
        assert list(positions(tmp_path)) == [Position(GROUP)]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        attached.end()


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_not_believed(how, caplog):
    with pictures() as alone:
        wanted = list(alone.epoch(0))
    with pictures(given=new()) as first, pictures(given=new()) as second:
        list(first.epoch(0))
        damage(files()[1], how)
        assert all(map(same, second.epoch(0), wanted))
        assert second.stats.shared == len(wanted) - 1
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "share" in said[0]
        assert "/0-1-" in said[0] or "damaged" in said[0]
        if how not in ("a folder", "a pipe"):  # which are left to a person
            list(second.epoch(0))
            assert second.stats.shared == len(wanted), "it was made and published again"


def test_what_is_not_plain_is_not_shared_and_that_is_reported_once(caplog):
    class Odd(toy.Pictures):
        def __getitem__(self, index):
            return {"object": complex(index, 1)}

    fetch = Fetch(Odd(), None, List(), 0)
    with Loader(Plan(Sequential(40), 8), fetch, exchange=new()) as loader:
        assert len(list(loader.epoch(0))) == 5
    (said,) = [record.getMessage() for record in caplog.records]
    assert "cannot be shared (loader.share): field 'object', [0] is a builtins.complex" in said


@pytest.mark.parametrize("how", ["full", "small"])
def test_a_lack_of_room_costs_a_warning_and_no_batch(how, monkeypatch, caplog):
    if how == "full":

        def refuse(*given):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(pool, "write_batch", refuse)
    with pictures() as alone, pictures(given=new(1 << 30 if how == "full" else 10_000)) as loader:
        assert all(map(same, loader.epoch(0), list(alone.epoch(0))))
        assert files() == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert ("No space left" if how == "full" else "raise loader.share_size") in said


class Maker:
    """A process that begins to make the batch of step 0, and gets no further.

    Args:
        number: a signal that it gets then.
    """

    def __init__(self, number=None):
        path = PoolFolder("ours").path / GROUP
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        request = pictures().plan.request(0, 0)
        tried = path / f"{pool._name(request)}.0.part"
        ready, done = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            hold = pool._lock(tried)
            os.pwrite(hold.descriptor, str(os.getpid()).encode(), 0)
            os.write(done, b"1")
            time.sleep(60)
            os._exit(0)
        os.read(ready, 1)
        os.close(ready)
        os.close(done)
        if number is not None:
            os.kill(self.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, None])
def test_a_batch_whose_maker_dies_stops_or_is_slow_is_made_here(number, monkeypatch):
    if number is None:
        monkeypatch.setattr(pool, "_FIRST", 0.2)
    with pictures() as alone:
        wanted = next(alone.epoch(0))
    with pictures(given=new()) as other:
        list(other.epoch(1))  # attached
        with Maker(number), pictures(given=new()) as loader:
            began = time.monotonic()
            assert same(next(loader.epoch(0)), wanted)
            took = time.monotonic() - began
            if number != signal.SIGKILL:
                assert took > pool._LOOK, "it waited"
            # Of the patience where nothing is known, which is 20 s, none was needed.
            assert took < pool._FIRST or number is None
            assert len([path for path in files() if path.suffix == ".batch"]) == 6
        with pictures(given=new()) as third:
            next(third.epoch(0))
            assert third.stats.shared == 1, "it was published nevertheless"


def test_who_waits_shows_that_it_lives(monkeypatch):
    """So that nobody takes it to hang, however short loader.timeout is."""
    monkeypatch.setattr(pool, "_FIRST", 1.0)
    cell = memoryview(bytearray(8 * worker_status.FIELDS)).cast("q")
    kept, seen, sleep = worker_status.current.cell, [], time.sleep

    def look(seconds):
        seen.append(worker_status.read(cell))
        sleep(seconds)

    monkeypatch.setattr(pool.time, "sleep", look)
    worker_status.use(cell)
    try:
        with pictures(given=new()) as other:
            list(other.epoch(1))
            with Maker(), pictures(given=new()) as loader:
                next(loader.epoch(0))
    finally:
        worker_status.use(kept)
    assert {one.stage for one in seen} == {worker_status.SHARED}
    assert len(set(seen)) == 2
    assert sum(map(operator.ne, seen, seen[1:])) >= 3


def test_the_last_run_takes_all_away_and_the_first_what_dead_ones_left():
    first, second = pictures(given=new()), pictures(given=new())
    list(first.epoch(0))
    next(second.epoch(0))
    first.close()
    assert len(files()) == 5
    second.close()
    assert files() == []
    list(first.epoch(0))  # attached again
    first.exchange._attached._hold.release()  # as the kernel does when its process is killed
    first.exchange._attached = None
    assert len(files()) == 5
    with pictures(given=new(name="others")) as other:
        next(other.epoch(0))
        assert files() == [], "also of another name"
    with pictures(given=new()) as third:
        next(third.epoch(0))
        assert third.stats.shared == 0, "what lay there without anybody is not believed"
    list(first.epoch(0))
    del first.exchange, first.fetch.exchange, first  # without being closed, as in a notebook
    gc.collect()
    assert files() == []
    jobs = JobsToCome("ours")
    with pictures(given=new()) as job:
        list(job.epoch(0))
    with pictures(given=new()) as job:
        list(job.epoch(0))
        assert job.stats.shared == 5
    jobs.end()
    jobs.end()


def test_a_folder_of_somebody_else_is_refused(room, monkeypatch):
    place = room / f"penstock-{os.geteuid()}"
    place.mkdir(mode=0o700)
    (place / "somebody").mkdir()
    (place / "ours").symlink_to(place / "somebody")
    with pictures(given=new()) as loader, pytest.raises(ConfigError, match=r"loader.share: .*link"):
        next(loader.epoch(0))
    (place / "ours").unlink()
    place.chmod(0o777)
    with pictures(given=new()) as loader, pytest.raises(ConfigError, match="everybody can write"):
        next(loader.epoch(0))
    place.chmod(0o700)


def test_draws_that_are_not_keyed_cannot_be_shared():
    with pytest.raises(ConfigError, match="keyed"):
        pictures(replace(LoaderOptions(), keyed=False), new())


# Which batches go.


def test_a_position_comes_through_a_file_and_a_torn_one_does_not(tmp_path):
    position = Position(GROUP, 3, 4, 10, 5, 1, 2, 0.5, 7.25, 60.0)
    packed = position.packed()
    assert Position.unpacked(packed) == position
    for place in range(0, len(packed), 7):
        torn = packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :]
        assert Position.unpacked(torn) is None
    assert Position.unpacked(packed[:-1]) is None
    assert Position.unpacked(replace(position, pace=float("nan")).packed()) is None
    attached = Attached(tmp_path, position)
    (tmp_path / "half.run").write_bytes(b"")
    assert list(positions(tmp_path)) == [position]
    assert not (tmp_path / "half.run").exists(), "nobody holds it"
    attached.end()
    assert list(positions(tmp_path)) == []


def test_when_a_batch_is_needed():
    run = Position(GROUP, epoch=2, step=5, steps=10, last=4, pace=0.5)
    until = lambda epoch, step, more=False: run.seconds_until(epoch, step, 100.0, more)  # noqa: E731
    assert (until(2, 5), until(2, 9), until(3, 0)) == (0.0, 2.0, 2.5)
    assert until(2, 4) == until(1, 9) == until(4, 0) == float("inf")
    # A job to come begins when this one ends, 15 batches from now.
    assert until(0, 0, more=True) == 7.5
    assert until(2, 4, more=True) == 7.5 + 24 * 0.5
    val = Position(GROUP, epoch=0, step=5, steps=10, again=1, pace=0.5, began=90.0, period=60.0)
    assert val.seconds_until(0, 7, 100.0, False) == 1.0
    assert val.seconds_until(0, 4, 100.0, False) == 52.0, "the next validation is 50 s away"


def put(group, *names, size=1000):
    place = PoolFolder("ours").path / group
    place.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        (place / f"{name}-{GROUP}.batch").write_bytes(bytes(size))


def left():
    """Addresses of the batches that are kept."""
    return [path.name.rsplit("-", 1)[0] for path in files()]


def test_first_goes_what_nobody_needs_then_what_is_needed_latest(room):
    shared = PoolFolder("ours", 8000)
    fast = shared.attach(Position(GROUP, step=6, steps=20, last=1, pace=0.1))
    slow = shared.attach(Position(GROUP, step=3, steps=20, last=1, pace=0.3))
    put("f" * 32, "0-0", "0-1")
    put(GROUP, *(f"0-{step}" for step in range(9)))
    evict = Eviction(shared)
    evict.published(1000)  # leaves 6 of 8
    assert not list(shared.path.glob("f*/*")), "of a kind that no run makes"
    # 0 to 2 are behind both; the slow one needs 5 in 0.6 s, the fast one 8 in 0.2 s.
    assert left() == [f"0-{step}" for step in (3, 4, 5, 6, 7, 8)]
    put(GROUP, "0-9", "0-10")
    pool._evict(shared.path, list(positions(shared.runs)), 6000)
    # In 0.4 s the fast one needs 10, and in 0.6 s the slow one 5.
    assert left() == [f"0-{step}" for step in (10, 3, 4, 6, 7, 8)] or left() == sorted(
        f"0-{step}" for step in (3, 4, 6, 7, 8, 9)
    )
    slow.end()
    pool._evict(shared.path, list(positions(shared.runs)), 4000)
    assert not {"0-3", "0-4"} & set(left()), "only the slow one needed them"
    shared.leave(fast)


def test_with_jobs_to_come_their_first_batches_are_kept():
    """What a job passed last, the next job needs last."""
    shared = PoolFolder("ours", 8000)
    jobs = JobsToCome("ours")
    job = shared.attach(Position(GROUP, step=9, steps=10, last=1, pace=0.1))
    put(GROUP, *(f"0-{step}" for step in range(10)))
    pool._evict(shared.path, list(positions(shared.runs)), 4000)
    assert left() == ["0-0", "0-1", "0-2", "0-9"]
    job.end()
    jobs.end()


def test_a_small_budget_holds_and_every_batch_comes(room):
    size = 8 * 3 * 12 * 16 + 1000
    budget = 8 * size
    with pictures() as alone:
        wanted = [list(alone.epoch(epoch)) for epoch in range(6)]
    most = 0
    with (
        pictures(given=new(budget, last=6)) as first,
        pictures(given=new(budget, last=6)) as second,
    ):
        for epoch in range(6):
            for batches in (first.epoch(epoch), second.epoch(epoch)):
                for batch, own in zip(batches, wanted[epoch], strict=True):
                    assert same(batch, own)
                    most = max(most, sum(path.stat().st_size for path in files()))
            assert second.stats.shared == 5, "which were needed soonest"
    assert most <= budget


def test_a_batch_that_fails_here_is_tried_by_the_next(room):
    calls = []

    class Once(toy.Pictures):
        def __getitem__(self, index):
            calls.append(index)
            if len(calls) == 1:
                raise ZeroDivisionError
            return super().__getitem__(index)

    with pictures(given=new(), dataset=Once()) as first:
        with pytest.raises(SampleError):
            next(first.epoch(0))
        assert files() == [], "nothing is left, and nobody is kept from it"
        with pictures(given=new()) as second:
            assert len(list(second.epoch(0))) == 5


def test_hashed_batches_hash_alike():
    with pictures(given=new()) as first, pictures(given=new()) as second, pictures() as alone:
        for batches in zip(first.epoch(0), second.epoch(0), alone.epoch(0), strict=True):
            assert len({batch_hash([batch]) for batch in batches}) == 1
            assert len({np.asarray(batch["image"]).tobytes() for batch in batches}) == 1
