"""Which run is resumed, with which overrides, and what may differ in it."""

import json
from types import SimpleNamespace

import pytest

from penstock.errors import ConfigError
from penstock.order.address import Address
from penstock.runs.resume import (
    SCHEDULES,
    SKIP,
    differences,
    is_harmless,
    run_of,
    with_schedules,
)
from penstock.tasks.opening import Source, source


@pytest.fixture
def run(tmp_path):
    """Makes a run's folder with a checkpoint, and overrides."""

    def make(*overrides, name="run"):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "step-1.safetensors").touch()
        (folder / "manifest.json").write_text(json.dumps({"overrides": list(overrides)}))
        return folder

    return make


def test_what_resume_names(run, tmp_path):
    def named(resume, run_dir="outputs/x"):
        return source(SimpleNamespace(resume=resume, run_dir=str(run_dir)))

    folder = run()
    file = folder / "checkpoints" / "step-1.safetensors"
    assert named(None) is None
    assert named("auto", folder) == Source(folder, required=False)
    assert named("auto", tmp_path / "new") == Source(tmp_path / "new", required=False)
    timed = run(name="2026-01-02/03-04-05")
    assert named("auto", timed) == Source(timed, required=False)
    for late in ("2026-01-02/03-04-06", "2026-01-02/03-04-06/7"):
        with pytest.raises(ConfigError, match="is named by the time of the start and new each"):
            named("auto", tmp_path / late)
    assert named(str(folder)) == Source(folder)
    assert named(str(file)) == Source(None, file)
    lonely = tmp_path / "lonely.safetensors"
    lonely.touch()
    assert named(str(lonely)) == Source(None, lonely)
    for other in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="is neither a run's folder"):
            named(str(other))
    assert [run_of(path) for path in (folder, file)] == [folder] * 2
    assert run_of(folder / "checkpoints") is None


SAVED = {"a.b": "1", "a.c": "1", "ab": "1", "dataset": "x"}
OWN = {"a.b": "2", "a.c": "2", "ab": "2", "dataset": "y"}


@pytest.mark.parametrize(
    ("despite", "left"),
    [
        ([], ["a.b", "a.c", "ab", "dataset"]),
        (["a"], ["ab", "dataset"]),
        (["a.b", "dataset"], ["a.c", "ab"]),
        (["a."], ["a.b", "a.c", "ab", "dataset"]),
    ],
)
def test_what_may_differ_regardless(despite, left):
    problems = differences(SAVED, OWN, AT, despite)
    assert sorted(problem.key for problem in problems) == left
    texts = {problem.key: str(problem) for problem in problems}
    if "ab" in texts:
        assert "is 2 here and was 1 in the run that is resumed" in texts["ab"]
        assert "'resume_despite=[ab]'" in texts["ab"]


COSINE = {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR"}
CONSTANT = {"_target_": "torch.optim.lr_scheduler.ConstantLR"}
STEP = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 3}


@pytest.mark.parametrize(
    ("before", "moves", "done", "node", "schedules", "begins"),
    [
        ([500], [500], 100, COSINE, [500], None),
        ([500], [800], 500, COSINE, [500, 300], 300),
        ([500], [800], 400, COSINE, [400, 400], 400),
        ([500, 300], [900], 600, COSINE, [500, 100, 300], 300),
        ([500, 300], [900], 500, COSINE, [500, 400], 400),
        ([500], [400], 400, COSINE, [500], None),
        ([500], [401], 400, COSINE, [400, 1], 1),
        (None, [800], 500, COSINE, [500, 300], 300),
        ([300, 200], [500], 400, COSINE, [300, 200], None),
        ([300, 200], [900], 100, COSINE, [100, 800], 800),
        ([500], [800], 500, STEP, [500], None),
        ([500], [800], 500, CONSTANT, [500, 300], 300),
        ([500], [800], 500, {**CONSTANT, "factor": 1}, [500], None),
        ([500], [800], 500, {**CONSTANT, "factor": 0.5}, [500, 300], 300),
        ([500], [800], 500, {**CONSTANT, "total_iters": 9}, [500], None),
        ([500], [800], 500, {**COSINE, "T_max": 9, "factor": 1}, [500], None),
        ([500], [800], 500, {**COSINE, "factor": 1}, [500, 300], 300),
        ([500], [800], 700, COSINE, [700, 100], 100),  # after one that went on by itself
        ([500], [800], 500, None, [800], None),
    ],
)
def test_a_longer_run_gets_a_new_schedule(before, moves, done, node, schedules, begins):
    saved, own = {"scheduler.x": "1"}, {SCHEDULES: moves, "scheduler.x": "1"}
    saved |= {} if before is None else {SCHEDULES: before}
    result, new = with_schedules(saved, own, done, node)
    assert (result[SCHEDULES], new) == (schedules, begins)
    assert with_schedules(saved, {"seed": "1"}, done, node) == ({"seed": "1"}, None)


def test_another_schedule_begins_where_the_run_resumes():
    saved = {SCHEDULES: [500], "scheduler.gamma": "0.1", "optimizer.lr": "1"}
    own = {SCHEDULES: [500], "scheduler.gamma": "0.2", "optimizer.lr": "2"}
    assert with_schedules(saved, own, 100, STEP) == ({**own, SCHEDULES: [100, 400]}, 400)
    same = {**own, "scheduler.gamma": "0.1"}
    assert with_schedules(saved, same, 100, STEP) == (same, None)


EARLY, LATE, BOTH = "[[[0,1],[0,3]]]", "[[[1,5],[1,6]]]", "[[[0,1],[0,3]],[[1,5],[1,6]]]"
AT = Address(1, 0)


@pytest.mark.parametrize(
    ("then", "now", "keep"),
    [
        (None, None, ""),
        (None, LATE, ""),
        (LATE, None, ""),
        (EARLY, BOTH, ""),
        (BOTH, EARLY, ""),
        (EARLY, None, EARLY),
        (EARLY, LATE, BOTH),
        (None, EARLY, EARLY),
    ],
)
def test_what_is_left_out_may_differ_later(then, now, keep):
    saved, own = ({} if text is None else {SKIP: text} for text in (then, now))
    said = [str(one) for one in differences(saved, own, AT, [])]
    assert len(said) == bool(keep)
    assert all(f"keep those that it left out, {SKIP}={keep}, " in one for one in said)
    assert differences(saved, own, AT, [SKIP]) == []


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("loader.num_workers=3", True),
        ("loader=debug", True),
        ("loader=nothing", False),
        ("+loader.num_workers=3", True),
        ("optimizer.lr=3", False),
        ("optimizer=sgd", False),
        ("seed=3", False),
    ],
)
def test_overrides_that_change_no_result(line, harmless):
    assert is_harmless(line) == harmless
