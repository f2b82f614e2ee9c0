"""What `task=profile` sees and says, on runs that are built to be bound by something."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import built_cases
from penstock.addons.tuning.measuring import steps_of
from penstock.addons.tuning.timeline import Timeline
from penstock.addons.tuning.verdict import SLOWED, Measured, judge
from penstock.loading.stage_timer import StageTimer
from penstock.loading.workers.options import LoaderOptions
from tests import toy
from tests.program import run

GOOD = Measured(
    samples=8,
    ceiling=0.01,
    pace=0.0101,
    waited=0.01,
    waited_at_starts=0,
    first=0.1,
    run_steps=1000,
    computing={"read": 0.004, "transform": 0.003, "collate": 0.001},
    blocked=0.0,
    transfer=0.0,
    busy=0.5,
    unevenness=1.2,
    backend="process",
    workers=2,
    prefetch=2,
    cores=8,
    threads=True,
)


def verdict(**changes):
    return judge(replace(GOOD, **changes))


@pytest.fixture
def case(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def profile(name, *overrides):
        given = built_cases.overrides(name, "benchmarks.built_cases")
        return run(capsys, "--trust", "benchmarks", *given, "run_dir=here", *overrides)

    return profile


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "overrides", "bound"),
    [
        ("training", ["loader=threads", "model.milliseconds=40"], "training"),
        ("decoding", ["dataset.burn=4", "loader.num_workers=1"], "decoding"),
        ("latency", ["loader.num_workers=1"], "reading"),
    ],
)
def test_the_verdict_on_a_built_case_is_right(case, name, overrides, bound, tmp_path):
    done = case(name, "task=profile", "steps=8", "trainer.checkpoint=null", *overrides)
    assert done.code == 0, done.err
    assert "save every" not in done.out, "it saves nothing"
    lines = [line for line in done.out.splitlines() if line.startswith("bound by")]
    manifest = json.loads((tmp_path / "here" / "manifest.json").read_text())
    # Where the tests themselves take the cores from training, that is what is said.
    assert manifest["bound"] in ([bound, "cores"] if bound == "training" else [bound]), done.out
    assert lines[0].split()[2] == f"{manifest['bound']}:", done.out
    if bound == "reading":
        assert "loader=threads loader.num_workers=" in done.out
    if bound == "decoding":
        assert "loader.num_workers=2" in done.out or "dataset.packed=auto" in done.out


def test_what_it_leaves_behind(case, tmp_path):
    done = case(
        "latency",
        "task=profile",
        "steps=6",
        "loader=threads",
        "loader.num_workers=2",
        "profile.nodes=630",
    )
    assert done.code == 0, done.err
    left = {path.name for path in (tmp_path / "here").iterdir()}
    assert {"trace.json", "manifest.json", "config.yaml"} <= left
    assert not [name for name in left if "checkpoint" in name or name.startswith(".")]
    minutes = json.loads((tmp_path / "here" / "manifest.json").read_text())["checkpoint_minutes"]
    assert minutes > 0
    assert f"trainer.checkpoint.every_minutes={minutes:g}, " in done.out
    assert "at a failure in 10 hours (profile.nodes=630); " in done.out
    for word in ("read", "collate", "training", "time waited", "samples/s", "cached batch"):
        assert word in done.out
    events = json.loads((tmp_path / "here" / "trace.json").read_text())["traceEvents"]
    spans = [one for one in events if one["ph"] == "X"]
    assert {one["name"] for one in spans} > {"waiting", "training", "read", "batch 0:0"}
    names = {one["args"]["name"] for one in events if one["ph"] == "M"}
    assert {"num_workers=0", "2 threads", "training loop"} <= names
    assert all(one["dur"] >= 0 and one["ts"] >= 0 for one in spans)
    for number in (1, 2):
        loop = [o for o in spans if (o["pid"], o["tid"]) == (number, 0)]
        assert sum(one["name"] == "training" for one in loop) == 6
        ends = sorted((one["ts"], one["ts"] + one["dur"]) for one in loop)
        assert all(a[1] <= b[0] + 1 for a, b in pairwise(ends)), "one at a time"


@pytest.mark.stress
def test_paste_that_and_it_is_better(case, tmp_path):
    """The override of the verdict, given to another profile, is faster."""
    first = case("latency", "task=profile", "steps=10", "loader.num_workers=1")
    pasted = next(line for line in first.out.splitlines() if line.startswith("to paste"))
    second = case("latency", "task=profile", "steps=24", *pasted.split()[2:])

    def speed(out):
        line = next(
            line for line in out.splitlines() if "samples/s" in line and "bound" not in line
        )
        return float(line.split()[2].replace(",", ""))

    # By how much, benchmarks/tuning.py measures in turns.
    assert speed(second.out) > speed(first.out), first.out + second.out


# -- traces ----------------------------------------------------------------------------------------


def test_traces_of_processes_compare_with_the_clock_of_this_one():
    for options in (LoaderOptions(), LoaderOptions("thread", 2), LoaderOptions("process", 2)):
        with toy.loader(options) as loader:
            loader.fetch.traced = True
            began = time.perf_counter()
            traces = [batch.trace for batch in loader.epoch(0)]
            ended = time.perf_counter()
        assert all(began < one.begin < one.end < ended for one in traces)
        for one in traces:
            assert [lap[0] for lap in one.laps][-1] == "collate"
            ends = [lap[1:] for lap in one.laps]
            assert all(a[1] == b[0] for a, b in pairwise(ends))
        workers = {(one.process, one.thread) for one in traces}
        assert 1 <= len(workers) <= max(options.num_workers, 1)  # whoever is free


def test_without_tracing_nothing_is_kept():
    with toy.loader() as loader:
        batch = next(loader.epoch(0))
    assert batch.trace is None
    assert set(batch.timing) == {"read", "transform", "collate"}


def test_a_trace_tells_computing_from_waiting_for_something_and_for_a_core():
    clock = StageTimer(traced=True)
    time.sleep(0.05)
    clock.lap("read")
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    clock.lap("transform")
    trace = clock.trace()
    assert trace.computing["read"] < 0.02
    assert 0.05 <= trace.computing["transform"] < 0.07
    assert 0.03 < trace.blocked < 0.09, "cores that others take count as delay"
    assert trace.thread == threading.get_native_id()


# -- verdicts --------------------------------------------------------------------------------------


def test_a_run_that_hardly_waits_is_bound_by_training():
    found = verdict()
    assert (found.bound, found.overrides) == ("training", ())
    easy = verdict(computing={"read": 0.0001})
    assert easy.overrides == ("loader.num_workers=0",)


def test_cores_that_are_free_are_put_to_work():
    slow = {"read": 0.03, "transform": 0.01, "collate": 0.001}
    found = verdict(waited=0.5, pace=0.02, computing=slow, busy=1.0)
    assert (found.bound, found.overrides) == ("decoding", ("loader.num_workers=5",))
    assert "read" in found.reason
    full = verdict(waited=0.5, pace=0.02, computing=slow, busy=1.0, workers=8)
    assert full.overrides == ("dataset.packed=auto",)


def test_a_store_that_is_slow_to_answer_is_asked_for_more_at_a_time():
    slow = {"waited": 0.8, "pace": 0.05, "blocked": 0.08, "computing": {"read": 0.001}, "busy": 1.0}
    assert verdict(**slow).overrides == ("loader=threads", "loader.num_workers=10")
    assert verdict(**slow, threads=False).overrides == ("loader.num_workers=10",)
    assert verdict(**slow, backend="thread").overrides == ("loader.num_workers=10",)


@pytest.mark.parametrize(
    ("changes", "bound", "override"),
    [
        ({"transfer": 0.009, "waited": 0.5, "pace": 0.02}, "transfer", "loader.pin_memory=true"),
        (
            {
                "computing": {"collate": 0.03, "read": 0.01},
                "waited": 0.5,
                "pace": 0.02,
                "busy": 0.9,
            },
            "collate",
            "loader=threads",
        ),
        ({"first": 30.0, "run_steps": 100}, "start-up", "loader=threads"),
        ({"waited": 0.2, "waited_at_starts": 0.15}, "start-up", "loader=threads"),
        ({"waited": 0.4, "pace": 0.02, "busy": 0.3}, "hand-over", "loader=threads"),
        (
            {"waited": 0.4, "pace": 0.02, "busy": 0.3, "unevenness": 5.0},
            "hand-over",
            "loader.prefetch_factor=8",
        ),
        (
            {"waited": 0.15, "computing": {"read": 0.002}, "busy": 0.1},
            "training",
            "loader.prefetch_factor=4",
        ),
        (
            {"waited": 0.12, "pace": 0.0114, "computing": {"read": 0.001}, "workers": 0},
            "training",
            "loader.num_workers=1",
        ),
        (
            {"waited": 0.8, "pace": 0.05, "computing": {"read": 0.04}, "workers": 0},
            "decoding",
            "loader.num_workers=5",
        ),
    ],
)
def test_other_bounds(changes, bound, override):
    found = verdict(**changes)
    assert found.bound == bound
    assert override in found.overrides


# -- cores that are taken --------------------------------------------------------------------------


def test_training_that_is_starved_of_cores_is_distinguished_from_training():
    """Steps take twice as long as alone, and nobody waits for data."""
    starved = {"pace": 0.02, "waited": 0.02, "starved": 0.008}
    many = verdict(**starved, workers=12, busy=0.9)
    assert (many.bound, many.overrides) == ("cores", ("loader.num_workers=1",))
    assert "had no core" in many.reason
    full = verdict(**starved, workers=2, cores=2, busy=0.9, computing={"read": 0.02})
    assert (full.bound, full.overrides) == ("cores", ("dataset.packed=auto",))
    others = verdict(**starved, workers=0, backend="main", computing={"read": 0.0001})
    assert (others.bound, others.overrides) == ("cores", ())
    assert "other programs take the cores" in others.advice
    uncounted = verdict(**starved | {"starved": 0.0}, workers=1, busy=0.1)
    assert uncounted.bound == "cores"
    assert "had no core" not in uncounted.reason


times = st.floats(1e-4, 1.0)
shares = st.floats(0.0, 1.0)


@given(
    ceiling=times,
    slower=st.floats(1.0, 5.0),
    waited=shares,
    at_starts=shares,
    first=times,
    read=times,
    blocked=times,
    busy=shares,
    starved=times,
    unevenness=st.floats(1, 10),
    workers=st.integers(0, 16),
    cores=st.integers(1, 16),
    threads=st.booleans(),
)
def test_no_verdict_leaves_a_loader_as_it_is_below_the_ceiling(
    ceiling,
    slower,
    waited,
    at_starts,
    first,
    read,
    blocked,
    busy,
    starved,
    unevenness,
    workers,
    cores,
    threads,
):
    found = verdict(
        ceiling=ceiling,
        pace=slower * ceiling,
        waited=waited,
        waited_at_starts=waited * at_starts,
        first=first,
        computing={"read": read},
        blocked=blocked,
        busy=busy,
        starved=starved,
        unevenness=unevenness,
        workers=workers,
        cores=cores,
        threads=threads,
        backend="process" if workers else "main",
    )
    if "leave the loader as it is" in found.advice or "can be done without" in found.advice:
        assert slower <= SLOWED
    if found.bound == "cores":
        assert slower > SLOWED
        fewer = [one for one in found.overrides if one.startswith("loader.num_workers=")]
        assert all(1 <= int(one.partition("=")[2]) < workers for one in fewer)


@pytest.mark.thorough
@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(),
    reason="nobody counts the waiting for a core here",
)
def test_training_beside_programs_that_take_its_core_is_seen_to_starve():
    class Burning:
        """Training steps that compute for 50 ms each."""

        def train(self, batch):
            end = time.thread_time() + 0.05
            while time.thread_time() < end:
                pass

    mine = os.sched_getaffinity(0)
    core = min(mine)
    spin = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    spinners = [
        subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for spinner in spinners:
            spinner.stdout.readline()
        os.sched_setaffinity(0, {core})
        with toy.loader(LoaderOptions()) as loader:
            steps = steps_of(Burning(), loader.epoch(0), 4)
    finally:
        os.sched_setaffinity(0, mine)
        for spinner in spinners:
            spinner.kill()
            spinner.communicate()
    found = Timeline("", 0, steps)
    # Three programs that compute share the core: each step waits for it about twice as long.
    assert found.starved > 0.03
    assert found.training > 0.05 + 0.8 * sum(step.starved for step in steps) / len(steps)
