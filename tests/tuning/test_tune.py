"""The search on made-up loaders, and `task=tune` with `loader=tuned` as a person would use them."""

import zlib

import pytest

from benchmarks import built_cases
from penstock.addons.tuning.search import Search, Setting, Slice, Space
from tests.program import run


class World:
    """Loaders that take as long as a formula says, on a clock of their own."""

    def __init__(self, rate, start=0.1, memory=lambda setting: 0, noise=0.0, seed=0):
        self.rate, self.start, self.memory = rate, start, memory
        self.noise, self.seed = noise, seed
        self.now, self.measured = 0.0, []

    def clock(self):
        return self.now

    def measure(self, setting, seconds):
        self.now += seconds + self.start
        self.measured.append(setting)
        number = zlib.crc32(f"{setting} {len(self.measured)} {self.seed}".encode())
        wiggle = 1 + self.noise * (number % 201 / 100 - 1)
        rate = self.rate(setting) * wiggle
        memory = self.memory(setting)
        return Slice(round(rate * seconds * 1000), seconds * 1000, 0.5, memory)

    def search(self, seconds=60.0, **space):
        given = {"backends": ("thread", "process"), "workers": 16, **space}
        found = Search(Space(**given), self.measure, seconds, seconds / 60, self.clock)
        return found, found.run()


def latency(setting):
    """Threads and processes wait alike; no faster than 200 a second."""
    return min(200.0, 24.0 * max(setting.workers, 1))


def cores(setting):
    """Four cores; threads share a lock; more workers than cores get into each other's way."""
    useful = min(max(setting.workers, 1), 4) * (1 - 0.02 * max(setting.workers - 4, 0))
    return 50.0 * useful * (0.5 if setting.backend == "thread" else 1.0)


def training(setting):
    return 100.0


@pytest.mark.parametrize("rate", [latency, cores, training])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_choice_is_near_the_best_of_a_grid_and_in_time(rate, noise):
    world = World(rate, noise=noise)
    _, best = world.search()
    grid = [Setting(n, p, b) for n in range(1, 17) for p in (2, 4) for b in ("thread", "process")]
    assert rate(best.setting) >= 0.95 * max(map(rate, grid))
    assert world.now <= 60.0


def test_of_equals_it_takes_what_needs_least():
    assert World(training).search()[1].setting == Setting(0, 0, "main")
    assert World(latency).search()[1].setting.workers in (8, 9, 12)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 10.0, 300.0])
def test_any_budget_is_kept(seconds):
    world = World(cores, start=0.2)
    _, best = world.search(seconds)
    assert world.now <= max(seconds, 0.21 + seconds / 60), "one measurement there has to be"
    assert best.rate > 0


def test_memory_is_a_bound_that_is_not_tried_out():
    world = World(latency, memory=lambda setting: 100 + 50 * setting.workers)
    _, best = world.search(memory=420, base=100)
    assert best.setting.workers == 6
    assert max(setting.workers for setting in world.measured) <= 6


def test_what_is_refused_is_not_chosen():
    world = World(latency)
    plain = world.measure

    def measure(setting, seconds):
        if setting.backend == "process":
            return Slice(0, 0.0, refused="cannot be sent")
        return plain(setting, seconds)

    world.measure = measure
    found, best = world.search()
    assert best.setting.backend == "thread"
    assert [one.refused for one in found.trials.values()].count("cannot be sent") == 1


def test_slow_settings_are_measured_once_and_fast_ones_again():
    times = []
    for seed in range(20):
        search, best = World(latency, noise=0.02, seed=seed).search()
        counts = {trial.setting.workers: len(trial.slices) for trial in search.trials.values()}
        assert counts[1] == 1
        times.append(len(best.slices))
    assert min(times) >= 2
    assert sorted(times)[10] >= 3


# -- the task --------------------------------------------------------------------------------------


@pytest.fixture
def latency_case(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    given = built_cases.overrides("latency", "benchmarks.built_cases")

    def program(*overrides):
        return run(capsys, "--trust", "benchmarks", *given, "cache_dir=cache", *overrides)

    return program


def test_threads_are_refused_where_data_draws_from_shared_generators(latency_case):
    draws = "+transform.train.everywhere={_target_: tests.toy.Everywhere}"
    short = ("tune.seconds=1.5", "tune.workers=1")
    done = latency_case("--trust", "tests", "task=tune", *short, draws)
    assert done.code == 0, done.err
    assert (
        "no threads: the dataset or a transform draws from the global state of random" in done.err
    )
    assert "thread " not in done.out


def test_a_budget_is_a_number_above_zero(latency_case):
    done = latency_case("task=tune", "tune.seconds=0")
    assert done.code == 2
    assert "tune.seconds" in done.err
