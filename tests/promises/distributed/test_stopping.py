"""A request to stop is heard at every moment: exit 75 at once where nothing computes, and no loss.

The data stalls for an hour; limits are generous here, as machines are busy. `make stress` has
twenty random moments of each kind, and prints the times.
"""

import os
import re
import signal

import pytest
import torch

from penstock import compose
from penstock.distributed.group import Group
from penstock.distributed.stop import SIGNALS
from penstock.training.adapter import Objective
from penstock.training.step import TrainOptions, TrainStep
from tests.support.resuming import Case
from tests.support.stopping import Runs, stop

SOON = 120.0  # seconds, as machines are busy; without a way to break off the wait it is an hour
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", SIGNALS)
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


def test_batches_since_the_last_step_can_be_dropped():
    case = Case(options={"accumulate": 3})
    with case.loader() as loader:
        batches = list(loader.epoch(0))

    def train_step():
        model = case.model()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        return TrainStep(
            model,
            Objective(case.objective()),
            optimizer,
            None,
            TrainOptions(accumulate=3),
            Group(),
            0,
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
