"""The climb decides alone; in a running loader it changes who works, and no bit of a batch."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.loading import autotune
from penstock.loading.autotune import GAIN, Auto, Autotune, Climb, Window
from penstock.loading.memory import available, tree_pss
from penstock.loading.workers.options import LoaderOptions
from tests import toy


def window(workers, work, step, memory=0, batches=10):
    """What `workers` come to where a batch is `work` seconds of waiting and a step takes `step`."""
    pace = max(step, work / workers)
    return Window(batches, batches * (pace - step), batches * pace, memory)


def windows_until_settled(climb, observe, most=30):
    for count in range(1, most):
        climb.observe(observe(climb.workers))
        if climb.settled:
            return count
    raise AssertionError(f"not settled after {most} windows, at {climb.workers} workers")


@given(
    work=st.floats(0.001, 1.0),
    step=st.floats(0.001, 1.0),
    start=st.integers(1, 4),
    most=st.integers(1, 64),
)
def test_it_settles_where_more_workers_would_hardly_help(work, step, start, most):
    climb = Climb(start, Auto(most))
    assert windows_until_settled(climb, lambda n: window(n, work, step)) <= 10
    reached = max(step, work / climb.workers)
    best = max(step, work / most)
    assert reached <= best / (1 - GAIN) + 1e-9
    assert 1 <= climb.workers <= most


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1), st.integers(0, 100)), max_size=200))
def test_whatever_it_sees_it_stays_within_its_bounds(seen):
    climb = Climb(2, Auto(16, memory=50), base=10, patience=2)
    for waited, elapsed, memory in seen:
        before = climb.workers
        after = climb.observe(Window(5, min(waited, elapsed), elapsed, memory))
        assert 1 <= after <= 16
        assert after <= 2 * before
        if memory > 50:
            assert after < before or after == 1


def test_the_same_windows_give_the_same_decisions():
    seen = [window(1 + n % 7, 0.05, 0.003 + n % 3 / 1000) for n in range(60)]
    ways = [[climb.observe(one) for one in seen] for climb in [Climb(1, Auto(32)) for _ in "ab"]]
    assert ways[0] == ways[1]


def test_nobody_waits_and_it_stays():
    climb = Climb(3, Auto(16))
    assert [climb.observe(window(3, 0.01, 1.0)) for _ in range(100)] == [3] * 100


def test_it_steps_back_where_more_workers_do_not_help():
    """As where the cores are busy: from 2 on, batches come no faster, however long is waited."""
    climb = Climb(1, Auto(16))
    tried = []
    while not climb.settled:
        tried.append(climb.observe(Window(10, 0.1, 1.0 / min(climb.workers, 2))))
    assert tried == [2, 4, 4, 2], "two windows of 4 that are no faster"


def test_one_slow_window_does_not_end_the_climb():
    climb = Climb(1, Auto(8))
    climb.observe(window(1, 0.04, 0.005))
    assert climb.observe(Window(10, 1.0, 2.0)) == 2, "slow for a reason of its own"
    assert climb.observe(window(2, 0.04, 0.005)) == 4


def test_memory_bounds_the_climb():
    def observe(workers):
        return window(workers, 10.0, 0.001, memory=100 + 30 * workers)

    climb = Climb(1, Auto(64, memory=400), base=100)
    windows_until_settled(climb, observe)
    assert climb.workers == 10, "100 + 30 * 10 is what the budget has room for"
    climb.observe(window(10, 10.0, 0.001, memory=401))
    assert climb.workers < 10, "workers that grow later are fewer afterwards"


def test_it_looks_again_after_a_while():
    climb = Climb(1, Auto(16), patience=2.0)  # five windows
    windows_until_settled(climb, lambda n: window(n, 0.001, 1.0))
    assert climb.workers == 1
    tried = [climb.observe(window(climb.workers, 0.04, 0.005)) for _ in range(20)]
    assert tried[3] == 1
    assert tried[-1] == 8, "the data became slower"


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(5, 40))
def test_epochs_of_any_length_are_cut_into_windows(first, length):
    tuner = Autotune(first, Auto(8), lambda: 0)
    for _ in range(60):
        tuner.begin_epoch()
        waited = elapsed = 0.0
        for batches in range(1, length + 1):
            one = window(tuner.workers, 0.04, 0.005, batches=1)
            waited, elapsed = waited + one.waited, elapsed + one.elapsed
            before = tuner.workers
            assert tuner.delivered(batches, waited, elapsed) == (tuner.workers != before)
    assert tuner.workers == 8


class Slow(toy.Pictures):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_not_one_bit_changes_while_workers_come_and_go(backend):
    data = Slow(160)
    transform = toy.TorchOnly()
    with toy.loader(dataset=data, transform=transform) as plain:
        expected = toy.hashes(plain) + toy.hashes(plain, 1)
    options = LoaderOptions(backend, 1, persistent_workers=backend == "process", auto=Auto(4))
    with toy.loader(options, transform, data) as tuned:
        seen = []
        found = []
        for epoch in range(2):
            for batch in tuned.epoch(epoch):
                seen.append(tuned.options.num_workers)
                found.append(toy.batch_hash([batch]))
    assert found == expected
    assert max(seen) > 1, "the number of workers has changed"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_it_climbs_while_it_waits():
    # How fast that is, benchmarks/tuning.py measures in turns with a fixed number.
    data = Slow(8 * 300)
    with toy.loader(LoaderOptions("thread", 1, auto=Auto(16)), dataset=data) as loader:
        # A batch takes 16 ms to read, a step nothing.
        assert any(loader.options.num_workers >= 4 for _ in loader.epoch(0))


def test_memory_of_a_tree_has_its_children_in_it():
    alone = tree_pss()
    assert 10 * 2**20 < alone < available() + alone
    with toy.loader(LoaderOptions("process", 2), dataset=Slow(400)) as loader:
        batches = loader.epoch(0)
        next(batches)
        assert tree_pss() > alone
        batches.close()


def test_a_container_has_left_what_it_has_not_taken_and_its_cached_files(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemAvailable:      5 kB\n")
    monkeypatch.setattr("penstock.loading.memory._PROC", tmp_path)
    monkeypatch.setattr("penstock.loading.memory._CGROUP", tmp_path)
    assert available() == 5 << 10  # no container
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 700\n")
    for most, left in (("max", 5 << 10), ("4000", 1700), ("2000", 0), ("9999", 5 << 10)):
        (tmp_path / "memory.max").write_text(f"{most}\n")
        assert available() == left


@pytest.mark.parametrize(
    ("start", "bounds", "seen", "workers", "settled"),
    [
        (0, Auto(8), [], [1], False),
        (3, Auto(8), [(0.5, 10, 0)], [3, 6], False),
        (3, Auto(5), [(0.5, 10, 0)], [3, 5], False),
        (3, Auto(3), [(0.5, 10, 0)], [3, 3], True),
        # Waiting for two hundredths of the time is none.
        (2, Auto(8), [(0.2, 10, 0)], [2, 2], True),
        (2, Auto(8), [(0.21, 10, 0)], [2, 4], False),
        # A climb has to help by a twentieth, in one of two windows.
        (2, Auto(8), [(5, 10, 0), (5, 9.5, 0)], [2, 4, 8], False),
        (2, Auto(8), [(5, 10, 0), (5, 9.51, 0)], [2, 4, 4], False),
        (2, Auto(8), [(5, 10, 0), (5, 10, 0), (5, 9, 0)], [2, 4, 4, 8], False),
        (2, Auto(8), [(5, 10, 0), (5, 10, 0), (5, 10, 0)], [2, 4, 4, 2], True),
        # Workers were seen to take 10 bytes each: (40 - 20) / 2.
        (2, Auto(8, 49), [(5, 10, 40)], [2, 2], True),
        (2, Auto(8, 50), [(5, 10, 40)], [2, 3], False),
        (2, Auto(8, 40), [(5, 10, 40)], [2, 2], True),
        # Too much memory: back to where the climb began, or to a half.
        (2, Auto(8, 60), [(5, 10, 40), (5, 5, 61)], [2, 4, 2], True),
        (8, Auto(8, 60), [(5, 10, 61)], [8, 4], True),
        (9, Auto(9, 60), [(5, 10, 61)], [9, 4], True),
        (1, Auto(8, 60), [(5, 10, 61)], [1, 1], True),
        (2, Auto(8, 60), [(5, 10, 61)], [2, 1], True),
        # Afterwards it stays below the number that was too many.
        (
            4,
            Auto(8, 60),
            [(5, 10, 61), (5, 60, 30), (5, 60, 30), (5, 60, 30)],
            [4, 2, 3, 3, 2],
            True,
        ),
        # It rests for 60 seconds.
        (2, Auto(8), [(0, 10, 0), (5, 59, 0), (5, 0.5, 0), (5, 0.5, 0)], [2, 2, 2, 2, 4], False),
    ],
)
def test_each_window_has_its_decision(start, bounds, seen, workers, settled):
    climb = Climb(start, bounds, base=20)
    decided = [climb.workers]
    for waited, elapsed, memory in seen:
        decided.append(climb.observe(Window(10, waited, elapsed, memory)))
        assert climb.workers == decided[-1]
    assert (decided, climb.settled) == (workers, settled)


def test_statistics_are_cut_into_windows_and_the_memory_is_looked_at(monkeypatch):
    now, looks = [1000.0], []
    monkeypatch.setattr(autotune.time, "monotonic", lambda: now[0])
    tuning = Autotune(4, Auto(64), lambda: looks.append(now[0]) or 0)
    windows, observe = [], Climb.observe

    def observed(climb, window):
        windows.append(window)
        return observe(climb, window)

    monkeypatch.setattr(Climb, "observe", observed)
    # Each batch takes a second, of which nobody waits: it settles in its first window.
    changes = [tuning.delivered(n, 0.0, float(n)) for n in range(1, 30)]
    assert not any(changes)
    # Four batches are skipped, then a window has 8, and one batch lies between two of them.
    assert windows == [Window(8, 0.0, 8.0)] * 2
    assert looks == [1000, 1000]  # at first, and while it was not settled
    now[0] += 29.9
    tuning.begin_epoch()
    assert not tuning.delivered(100, 0.0, 1.0)  # skipped
    for n in range(101, 109):
        tuning.delivered(n, 0.0, n - 99.0)
    assert looks == [1000, 1000]
    now[0] += 0.1
    for n in range(109, 119):
        tuning.delivered(n, 0.0, n - 99.0)
    assert looks == [1000, 1000, 1030]


def test_a_change_skips_the_first_batches_of_the_new_workers(monkeypatch):
    tuning = Autotune(1, Auto(64), lambda: 0)
    changes = [n for n in range(1, 40) if tuning.delivered(n, n / 2, n / tuning.workers)]
    assert changes[0] == 7  # one is skipped, then six
    assert changes[1] == 7 + 2 + 6
    assert tuning.workers > 2
