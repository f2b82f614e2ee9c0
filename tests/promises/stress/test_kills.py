"""A storm of kills: every batch comes, unchanged, whoever dies and whenever.

    pytest -m stress -n 0 -s tests/promises/stress/test_kills.py       prints what it has met

Each run of a loader is hit a few times, at moments drawn from a seed. A recovery lasts from a kill
until every batch that was under way at that moment has been delivered.
"""

import os
import random
import signal
import statistics
import threading
import time

import pytest

from tests import port
from tests.port import Options
from tests.support import deaths, toy

pytestmark = pytest.mark.stress

WORKERS = 3
AHEAD = WORKERS * 2  # batches under way
KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", "55"))
STEPS = 30
SIZE = 4


class Storm:
    """Kills workers of a loader and clocks the recoveries.

    Attributes:
        kills: signals sent to a worker that was there.
        seconds: of each recovery that was to be seen.
    """

    def __init__(self, seed, number=signal.SIGKILL):
        self.random = random.Random(seed)
        self.number = number
        self.kills, self.seconds, self.pids = 0, [], set()
        self._open = []

    def strike(self, loader, count=1, step=-1):
        """Kill `count` workers; `step` was delivered last."""
        there = port.worker_pids(loader)
        for pid in self.random.sample(there, min(count, len(there))):
            try:
                os.kill(pid, self.number)
            except ProcessLookupError:
                continue
            self.kills += 1
            self.pids.add(pid)
            self._open.append((time.monotonic(), step + AHEAD))

    def delivered(self, step):
        """Close the recoveries that are over with this step."""
        now = time.monotonic()
        last = step == STEPS - 1
        self.seconds += [now - since for since, until in self._open if step >= until or last]
        self._open = [one for one in self._open if step < one[1] and not last]

    def soon(self, loader, count=1, step=-1, most=0.02):
        """Strike a little later, from another thread."""
        wait = self.random.uniform(0, most)
        thread = threading.Thread(
            target=lambda: (time.sleep(wait), self.strike(loader, count, step))
        )
        thread.start()
        return thread

    def at_start(self, loader):
        """Strike as soon as there is a worker."""

        def wait():
            if deaths.until(lambda: port.worker_pids(loader), 30):
                time.sleep(self.random.uniform(0, 0.05))
                self.strike(loader)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def report(self, name):
        said = f"{self.kills} signals, {len(self.seconds)} recoveries, "
        said += f"median {statistics.median(self.seconds):.2f} s, most {max(self.seconds):.2f} s"
        print(f"\n{name}: {said}")


def run(storm, options, moments, transform=None, epochs=1):
    """Hashes of some epochs that are hit at `moments`: count of workers by step."""
    found = []
    with toy.loader(
        options, transform or deaths.Slow(0.001), deaths.Files(STEPS * SIZE), size=SIZE
    ) as loader:
        for epoch in range(epochs):
            threads = [storm.at_start(loader)] if "start" in moments else []
            got = []
            for batch in loader.epoch(epoch):
                step = batch.request.step
                got.append((step, port.batch_hash([batch])))
                storm.delivered(step)
                if step in moments:
                    threads.append(storm.soon(loader, moments[step], step))
                if step == STEPS - 1 and "end" in moments:
                    threads.append(storm.soon(loader, 1, step))
            for thread in threads:
                thread.join()
            found.append(dict(got))
    return found


@pytest.fixture(scope="module")
def undisturbed():
    loader = toy.loader(dataset=deaths.Files(STEPS * SIZE), size=SIZE)
    return [dict(enumerate(toy.hashes(loader, epoch))) for epoch in range(8)]


def moments(storm):
    """Three to five hits in an epoch, the first and the last batches among them at times."""
    chosen = {storm.random.randrange(STEPS): storm.random.choice([1, 1, 2]) for _ in range(2)}
    kind = storm.random.choice(["first", "last", "start", "end"])
    chosen[{"first": 0, "last": STEPS - 2}.get(kind, kind)] = 1
    return chosen


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("in_order", [True, False])
def test_kills_of_forked_workers(persistent, in_order, undisturbed):
    storm = Storm(seed=2 * persistent + in_order)
    options = Options(
        "process", WORKERS, persistent_workers=persistent, in_order=in_order, max_deaths=6
    )
    while storm.kills < KILLS:
        assert run(storm, options, moments(storm), epochs=2) == undisturbed[:2]
    storm.report(f"fork, persistent={persistent}, in_order={in_order}")
    check(storm)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_kills_of_workers_that_start_slowly(context, undisturbed):
    storm = Storm(seed=7)
    options = Options(
        "process", WORKERS, persistent_workers=True, max_deaths=6, multiprocessing_context=context
    )
    assert run(storm, options, {3: 1, 15: 2}, epochs=4) == undisturbed[:4]
    storm.report(context)
    assert storm.kills >= 10
    check(storm)


def test_stops(undisturbed):
    storm = Storm(seed=5, number=signal.SIGSTOP)
    options = Options("process", WORKERS, timeout=1, persistent_workers=True, max_deaths=6)
    while storm.kills < min(20, KILLS):
        hit = {storm.random.randrange(STEPS - 8): storm.random.choice([1, 2])}
        assert run(storm, options, hit, epochs=4) == undisturbed[:4]
    storm.report("SIGSTOP, limit 1 s")
    check(storm)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("where", ["main", "thread"])
def test_no_worker_outlives_a_killed_main_process(context, where, tmp_path):
    deaths.check_orphans(context, where, tmp_path)


def check(storm):
    assert all(deaths.is_gone(pid) for pid in storm.pids)
    assert not any(deaths.files_of(pid) for pid in storm.pids)
    assert not deaths.children()
