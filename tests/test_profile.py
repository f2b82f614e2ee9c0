"""What `task=profile` sees, draws and says, on runs that are built to be bound by something."""

import json
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from PIL import Image

from benchmarks import built_cases
from pipeline.clock import Clock
from pipeline.tuning.verdict import Measured, judge
from pipeline.workers.backends import LoaderOptions
from tests import toy
from tests.program import run

GOOD = Measured(
    samples=8, ceiling=0.01, pace=0.0101, waited=0.01, waited_at_starts=0, first=0.1,
    run_steps=1000, computing={"read": 0.004, "transform": 0.003, "collate": 0.001}, blocked=0.0,
    transfer=0.0, busy=0.5, unevenness=1.2, backend="process", workers=2, prefetch=2, cores=8,
    threads=True,
)  # fmt: skip


def verdict(**changes):
    return judge(replace(GOOD, **changes))


@pytest.fixture
def case(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def profile(name, *overrides):
        given = built_cases.overrides(name, "benchmarks.built_cases")
        return run(capsys, "--trust", "benchmarks", *given, "run_dir=here", *overrides)

    return profile


@pytest.mark.parametrize(
    ("name", "overrides", "bound"),
    [
        ("training", ["loader=threads", "model.milliseconds=40"], "training"),
        ("decoding", ["dataset.burn=4", "loader.num_workers=1"], "decoding"),
        ("latency", ["loader.num_workers=1"], "reading"),
    ],
)
def test_the_verdict_on_a_built_case_is_right(case, name, overrides, bound, tmp_path):
    done = case(name, "task=profile", "steps=8", *overrides)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("bound by")]
    assert lines[0].split()[2] == f"{bound}:", done.out
    manifest = json.loads((tmp_path / "here" / "manifest.json").read_text())
    assert manifest["bound"] == bound
    if bound == "reading":
        assert "loader=threads loader.num_workers=" in done.out
    if bound == "decoding":
        assert "loader.num_workers=2" in done.out or "dataset.packed=auto" in done.out


def test_what_it_leaves_behind(case, tmp_path):
    done = case("latency", "task=profile", "steps=6", "loader=threads", "loader.num_workers=2")
    assert done.code == 0, done.err
    assert {"timeline.png", "trace.json", "manifest.json", "config.yaml"} <= {
        path.name for path in (tmp_path / "here").iterdir()
    }
    with Image.open(tmp_path / "here" / "timeline.png") as picture:
        colors = {tuple(color[:3]) for _, color in picture.getcolors(1 << 24)}
        assert picture.width > 2 * picture.height
    for part in ("#2a9d5c", "#f4a259", "#1d4e89"):
        assert tuple(bytes.fromhex(part[1:])) in colors, "training, waiting and reading are there"
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
        if options.num_workers:
            assert len({(one.process, one.thread) for one in traces}) == 2


def test_without_tracing_nothing_is_kept():
    with toy.loader() as loader:
        batch = next(loader.epoch(0))
    assert batch.trace is None
    assert set(batch.timing) == {"read", "transform", "collate"}


def test_a_trace_tells_computing_from_waiting_for_something_and_for_a_core():
    clock = Clock(traced=True)
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
        ({"computing": {"collate": 0.03, "read": 0.01}, "waited": 0.5, "pace": 0.02, "busy": 0.9},
         "collate", "loader=threads"),
        ({"first": 30.0, "run_steps": 100}, "start-up", "loader=threads"),
        ({"waited": 0.2, "waited_at_starts": 0.15}, "start-up", "loader=threads"),
        ({"waited": 0.4, "pace": 0.02, "busy": 0.3}, "hand-over", "loader=threads"),
        ({"waited": 0.4, "pace": 0.02, "busy": 0.3, "unevenness": 5.0}, "hand-over",
         "loader.prefetch_factor=8"),
        ({"waited": 0.15, "computing": {"read": 0.002}, "busy": 0.1}, "training",
         "loader.prefetch_factor=4"),
    ],
)  # fmt: skip
def test_other_bounds(changes, bound, override):
    found = verdict(**changes)
    assert found.bound == bound
    assert override in found.overrides
