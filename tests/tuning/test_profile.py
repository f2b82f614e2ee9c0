"""What `task=profile` sees and says, on runs that are built to be bound by something."""

import json
import threading
import time
from itertools import pairwise

import pytest

from penstock.loading.stage_timer import StageTimer
from penstock.loading.workers.options import LoaderOptions
from tests import toy
from tests.program import run
from tests.support import built_cases


@pytest.fixture
def case(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def profile(name, *overrides):
        given = built_cases.overrides(name, "tests.support.built_cases")
        return run(capsys, "--trust", "tests", *given, "run_dir=here", *overrides)

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
    lines = [line for line in done.out.splitlines() if line.startswith("bound by")]
    manifest = json.loads((tmp_path / "here" / "manifest.json").read_text())
    # Where the tests themselves take the cores from training, that is what is said.
    assert manifest["bound"] in ([bound, "cores"] if bound == "training" else [bound]), done.out
    assert lines[0].split()[2] == f"{manifest['bound']}:", done.out
    if bound == "reading":
        assert "loader.num_workers=" in done.out
    if bound == "decoding":
        assert "loader.num_workers=2" in done.out or "data.packed=auto" in done.out


def test_what_it_leaves_behind(case, tmp_path):
    done = case(
        "latency",
        "task=profile",
        "steps=6",
        "loader=threads",
        "loader.num_workers=2",
    )
    assert done.code == 0, done.err
    left = {path.name for path in (tmp_path / "here").iterdir()}
    assert {"trace.json", "manifest.json", "config.yaml"} <= left
    assert not [name for name in left if "checkpoint" in name or name.startswith(".")]
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
