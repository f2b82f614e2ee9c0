"""Twenty requests to stop, and kills, at random moments of each kind: nothing is lost.

Backend, number of ranks and what is going on make a kind. Data stalls at a random place, so that
nothing computes; a signal comes to all ranks at a random moment after that. How long the processes
took to end is printed. A request ends a run with exit code 75.
"""

import os
import random
import signal

import pytest

from penstock.addons.sweeps.sweep import jobs_of
from tests.support.stopping import ROWS, Runs, stop

pytestmark = pytest.mark.stress
MOMENTS = int(os.environ.get("PENSTOCK_TEST_MOMENTS", "20"))
KINDS = [(backend, ranks) for backend in ("main", "process", "thread") for ranks in (1, 2)]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}

    def of(ranks):
        if ranks not in found:
            runs = Runs(tmp_path_factory.mktemp("whole") / "runs", "main", ranks)
            runs.whole()
            found[ranks] = runs.outcome()
        return found[ranks]

    return of


def begun(runs, place, draw):
    """A run that stalls somewhere in `place`."""
    baseline = "trainer.baseline=" + ("true" if place == "set-up" else "false")
    if place == "set-up":
        where = draw.choice(["set-up", "train", "val"])
        runs.stall(where, 0 if where == "set-up" else draw.randrange(ROWS))
    elif place == "validation":
        runs.stall("val", draw.randrange(ROWS))
    pids = runs.begin(baseline)
    if place == "training":
        steps = draw.randrange(80)
        runs.wait(lambda: runs.steps() >= steps)
        runs.stall("train")
    runs.wait_for_stall()
    return pids


@pytest.mark.parametrize("place", ["training", "validation", "set-up"])
@pytest.mark.parametrize(("backend", "ranks"), KINDS)
def test_stops(backend, ranks, place, tmp_path, undisturbed):
    draw, times = random.Random(f"{backend} {ranks} {place}"), []
    for moment in range(MOMENTS):
        runs = Runs(tmp_path / str(moment), backend, ranks)
        pids = begun(runs, place, draw)
        signal.sigtimedwait((), draw.uniform(0, 0.5))
        codes, seconds = stop(pids, draw.choice(SIGNALS))
        assert set(codes) == {75}, (moment, runs.log.read_text())
        assert "Traceback" not in runs.log.read_text()
        times.append(seconds)
        runs.flow()
        runs.whole()
        assert runs.outcome() == undisturbed(ranks), moment
    tell(f"{place}, {backend}, {ranks} rank(s)", times)


@pytest.mark.parametrize("backend", ["main", "process", "thread"])
def test_kills_of_all_ranks(backend, tmp_path, undisturbed):
    draw = random.Random(f"{backend} kills")
    for moment in range(MOMENTS):
        ranks = draw.choice((2, 3))
        runs = Runs(tmp_path / str(moment), backend, ranks)
        pids = begun(runs, draw.choice(("training", "validation")), draw)
        signal.sigtimedwait((), draw.uniform(0, 0.5))
        codes, _ = stop(pids, signal.SIGKILL)
        assert set(codes) == {-signal.SIGKILL}
        runs.flow()
        runs.whole()
        assert runs.outcome() == undisturbed(ranks), moment
    print(f"\n{backend}: {MOMENTS} groups of ranks killed, each equal after its resume")


@pytest.mark.parametrize(("backend", "ranks"), KINDS)
def test_stops_of_sweeps(backend, ranks, tmp_path):
    draw, times = random.Random(f"{backend} {ranks} sweep"), []

    def sweep(name):
        more = (
            "trainer.baseline=false",
            "trainer.max_epochs=2",
            "-m",
            "optimizer.lr=0.1,0.05",
            f"hydra.sweep.dir={tmp_path / name / 'sweep'}",
        )
        if ranks > 1:  # each job starts its ranks itself
            more += ("distributed=ddp", f"distributed.nproc={ranks}")
        return Runs(tmp_path / name, backend, more=more)

    def ledgers(name):
        return [
            (job.path / "ledger.jsonl").read_text() for job in jobs_of(tmp_path / name / "sweep")
        ]

    sweep("whole").whole()
    for moment in range(MOMENTS):
        runs = sweep(str(moment))
        pids = runs.begin()
        folder = tmp_path / str(moment) / "sweep"
        runs.wait(lambda folder=folder: any(job.status == "done" for job in jobs_of(folder)))
        signal.sigtimedwait((), draw.uniform(0, 0.2))
        number = draw.choice(SIGNALS)
        codes, seconds = stop(pids, number)
        if [job.status for job in jobs_of(folder)] == ["done", "done"]:
            continue  # all was over before the signal came
        # Between two jobs Ctrl-C interrupts the program, as in set-up: nothing was begun.
        allowed = (75, 130) if number == signal.SIGINT else (75,)
        assert codes[0] in allowed, (moment, runs.log.read_text())
        assert "Traceback" not in runs.log.read_text()
        times.append(seconds)
        runs.whole()
        assert ledgers(str(moment)) == ledgers("whole"), moment
        assert [job.status for job in jobs_of(folder)] == ["done", "done"]
    if times:
        tell(f"between two jobs, {backend}, {ranks} rank(s)", times)


def tell(what, times):
    ordered = sorted(times)
    middle, longest = ordered[len(ordered) // 2], ordered[-1]
    print(
        f"\n{what}: {len(times)} stops and exact resumes, {middle:.2f} s in the middle, "
        f"{longest:.2f} s at most; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
