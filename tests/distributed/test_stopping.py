"""A request to stop is heard at every moment: exit 75 at once where nothing computes, and no loss.

The data stalls for an hour; limits are generous here, as machines are busy. `make stress` has
twenty random moments of each kind, and prints the times.
"""

import os
import re
import signal
import sys
import threading

import pytest
import torch

from penstock import compose
from penstock.addons.sweeps.sweep import jobs_of
from penstock.distributed import preemption
from penstock.distributed.group import Group
from penstock.distributed.preemption import Preemption, Stop, held, in_turns, waiting
from penstock.runs import checkpoint
from penstock.training.train_step import TrainOptions, TrainStep
from tests.resuming import Case
from tests.stopping import EPOCHS, ROWS, Runs, ended, stop

SOON = 20.0  # seconds; without a way to break off the wait it is an hour
NO_BASELINE = ("trainer.baseline=false",)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}

    def of(ranks):
        if ranks not in found:
            runs = Runs(tmp_path_factory.mktemp("whole") / "runs", "main", ranks, NO_BASELINE)
            runs.whole()
            found[ranks] = runs.outcome()
        return found[ranks]

    return of


def check(runs, pids, undisturbed, place, number=signal.SIGTERM, to=None):
    runs.wait_for_stall()
    codes, seconds = stop(pids, number, to)
    said = runs.log.read_text()
    assert set(codes) == {75}, said
    assert seconds < SOON
    assert "Traceback" not in said
    assert said.count("stopped before") == 1, said
    assert f"stopped before {place}" in said
    assert runs.manifest()["status"] == "preempted"
    runs.flow()
    runs.whole()
    assert runs.outcome() == undisturbed(runs.ranks)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("backend", "steps", "number"),
    [("main", 37, signal.SIGTERM), ("process", 20, signal.SIGINT), ("thread", 0, signal.SIGUSR1)],
)
def test_a_wait_for_data_is_broken_off(backend, steps, number, tmp_path, undisturbed):
    runs = Runs(tmp_path / "runs", backend, more=NO_BASELINE)
    if not steps:  # the first batch of all
        runs.stall("train")
    pids = runs.begin()
    if steps:
        runs.wait(lambda: runs.steps() >= steps)
        runs.stall("train")
    check(runs, pids, undisturbed, "epoch ", number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_is_one_request(number, tmp_path, undisturbed):
    """As from `timeout`, which signals the process and its group, or from Slurm and a launcher."""
    runs = Runs(tmp_path / "runs", more=NO_BASELINE)
    pids = runs.begin()
    runs.wait(lambda: runs.steps() >= 10)
    runs.stall("train")
    runs.wait_for_stall()
    os.kill(pids[0], number)
    runs.wait(lambda: number.name in runs.log.read_text())
    check(runs, pids, undisturbed, "epoch ", number)


def test_a_killed_run_resumes_in_mid_epoch_from_what_the_clock_saved(tmp_path, undisturbed):
    """Due before each batch here; every five minutes by default. No number depends on it."""
    assert compose().trainer.checkpoint["every_minutes"] == 5
    often = (*NO_BASELINE, "trainer.checkpoint.every_minutes=1e-9")
    runs = Runs(tmp_path / "runs", more=often)
    pids = runs.begin()
    runs.wait(lambda: runs.steps() >= 5)
    runs.stall("train")
    runs.wait_for_stall()
    assert stop(pids, signal.SIGKILL)[0] == [-signal.SIGKILL]
    runs.flow()
    runs.whole()
    place = re.search(r"resuming \S+ at epoch (\d+), step (\d+)", runs.log.read_text())
    assert place is not None, runs.log.read_text()
    assert int(place[2]) > 0
    assert runs.outcome() == undisturbed(1)


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "backend", ["main", "process", pytest.param("thread", marks=pytest.mark.stress)]
)
def test_so_is_one_in_validation(backend, tmp_path, undisturbed):
    runs = Runs(tmp_path / "runs", backend, more=NO_BASELINE)
    runs.stall("val", 13)
    check(runs, runs.begin(), undisturbed, "epoch 0, step 16")


@pytest.mark.stress
@pytest.mark.parametrize(
    ("backend", "to"),
    [
        pytest.param("process", None, marks=pytest.mark.stress),
        ("thread", [1]),
    ],
)
def test_ranks_that_wait_agree_although_one_alone_was_asked(backend, to, tmp_path, undisturbed):
    runs = Runs(tmp_path / "runs", backend, 2, NO_BASELINE)
    pids = runs.begin()
    runs.wait(lambda: runs.steps() >= 10)
    runs.stall("train")
    check(runs, pids, undisturbed, "epoch ", to=to)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("backend", "after", "place"),
    [
        ("process", 0, "before the first step"),
        ("main", EPOCHS, "after the last step"),  # the last row is read once a validation
    ],
)
def test_the_best_constant_is_not_waited_for(backend, after, place, tmp_path):
    runs = Runs(tmp_path / "runs", backend)
    runs.stall("val", ROWS - 1 if after else 0, after)
    pids = runs.begin()
    runs.wait_for_stall()
    codes, seconds = stop(pids)
    assert codes == [75], runs.log.read_text()
    assert seconds < SOON
    said = runs.log.read_text()
    assert f"SIGTERM: stopped {place}; nothing was lost. To resume:" in said
    hint = said.rpartition("To resume:\n")[2]
    assert hint.split()[:2] == ["python", "run.py"]
    assert hint.split()[-1] == f"resume={runs.run}", "after what the run was allowed"
    runs.flow()
    codes, _ = ended(runs.begin(f"resume={runs.run}"))  # as it said, though nothing was saved
    assert codes == [0], runs.log.read_text()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", preemption.SIGNALS)
def test_set_up_ends_before_anything_is_begun(number, tmp_path):
    runs = Runs(tmp_path / "runs")
    runs.stall("set-up")
    pids = runs.begin()
    runs.wait_for_stall()
    codes, seconds = stop(pids, number)
    assert codes == [130 if number == signal.SIGINT else 75], runs.log.read_text()
    assert seconds < SOON
    text = f"{number.name}: nothing was begun; the same command starts it again\n"
    text = "interrupted\n" if number == signal.SIGINT else text
    assert runs.log.read_text().endswith(text)
    assert not runs.run.exists()


@pytest.mark.thorough
def test_a_sweep_stops_between_two_jobs_and_continues(tmp_path):
    lrs = (*NO_BASELINE, "-m", "optimizer.lr=0.1,0.05,0.01", "trainer.max_epochs=2")
    whole, runs = (
        Runs(tmp_path / name, more=(*lrs, f"hydra.sweep.dir={tmp_path / name / 'sweep'}"))
        for name in ("whole", "runs")
    )
    whole.whole()
    pids = runs.begin()
    runs.wait(lambda: any(job.status == "done" for job in jobs_of(tmp_path / "runs" / "sweep")))
    codes, seconds = stop(pids)
    said = runs.log.read_text()
    assert codes == [75], said
    assert seconds < SOON
    assert "Traceback" not in said
    runs.whole()
    kept = [list(jobs_of(tmp_path / name / "sweep")) for name in ("whole", "runs")]
    assert [job.status for job in kept[1]] == ["done"] * 3
    for jobs in zip(*kept, strict=True):
        ledgers = [(job.path / "ledger.jsonl").read_text() for job in jobs]
        assert ledgers[0] == ledgers[1]


def test_data_code_that_catches_every_exception_does_not_keep_a_run():
    def stubborn():
        while True:
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception:
                continue

    with Preemption() as preemption:
        with pytest.raises(Stop), waiting():
            stubborn()
        assert preemption.asked == "SIGUSR1"
        with pytest.raises(Stop), waiting():  # also where it was asked before
            pytest.fail("this is not waited for")


def test_a_held_stop_comes_at_the_end():
    done = []

    def work():
        with held():
            with held():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")

    with pytest.raises(Stop), Preemption(at_once=True):
        work()
    assert done == ["inner", "outer"]


def test_what_is_stopped_at_once_is_reported_once():
    said = []
    for _ in range(50):  # the thread that listens may come late
        with pytest.raises(Stop), Preemption(say=said.append, at_once=True):
            signal.raise_signal(signal.SIGTERM)
    assert said == []


def test_outside_of_a_wait_nothing_is_raised():
    noted = threading.Event()
    with Preemption(say=lambda text: noted.set()) as preemption:
        signal.raise_signal(signal.SIGUSR1)
        assert noted.wait(SOON)
        assert preemption.asked == "SIGUSR1"


def test_each_batch_and_their_end_are_announced():
    turns = []
    assert list(in_turns(iter("ab"), turns.append)) == ["a", "b"]
    assert turns == [False] * 3

    def broken():
        yield "a"
        raise Stop("SIGTERM")

    with pytest.raises(Stop):
        list(in_turns(broken(), turns.append))
    assert turns == [False] * 4 + [True]


def test_batches_since_the_last_step_can_be_dropped():
    case = Case(options={"accumulate": 3})
    with case.loader() as loader:
        batches = list(loader.epoch(0))

    def train_step():
        model = case.model()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        return TrainStep(
            model, case.objective(), optimizer, None, TrainOptions(accumulate=3), Group(), 0
        )

    straight, turned = train_step(), train_step()
    for one in (straight, turned):
        for batch in batches[:3]:
            one.learn(batch)
        one.update()
    for batch in batches[3:5]:
        turned.learn(batch)  # batch norms move, dropout draws
    turned.drop_pending()
    assert not turned.pending
    for one in (straight, turned):
        for batch in batches[3:6]:
            one.learn(batch)
        one.update()
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, turned.model.state_dict()[name]), name
    assert straight.batches == turned.batches


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_check_that_is_interrupted_does_not_say_that_it_is_done(number, code, tmp_path):
    runs = Runs(tmp_path / "runs", more=("task=check", "trainer.progress=plain", "resume=null"))
    runs.stall("train", row=10)
    pids = runs.begin()
    runs.wait_for_stall()
    codes, seconds = stop(pids, number)
    said = runs.log.read_text()
    assert codes == [code], said
    assert seconds < SOON
    assert "nothing wrong" not in said
    assert "Traceback" not in said


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child")
def test_ranks_whose_launcher_was_killed_save_and_stop(tmp_path):
    many = ("distributed=ddp", "distributed.nproc=2", "loader.num_workers=0")
    runs = Runs(tmp_path / "runs", "main", more=(*NO_BASELINE, *many))
    launcher = runs.begin()
    runs.wait(lambda: runs.steps() >= 20, seconds=300)  # two programs that import torch
    runs.stall("train")
    runs.wait_for_stall()
    codes, _ = stop(launcher, signal.SIGKILL)
    assert codes == [-signal.SIGKILL]
    runs.wait(lambda: "To resume" in runs.log.read_text(), seconds=300)
    steps = runs.steps()
    assert f"stopped before epoch {steps // 16}, step {steps % 16}. " in runs.log.read_text()
    assert runs.manifest()["status"] == "preempted"
    assert checkpoint.find_newest(runs.run) is not None
