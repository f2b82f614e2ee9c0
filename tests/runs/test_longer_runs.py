"""A run that was done is trained on: a new schedule for what is added, and nothing is lost."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from penstock.runs import checkpoint
from penstock.runs.resumption import SCHEDULES, with_schedules
from penstock.training import runner
from penstock.training.train_step import TrainStep
from tests.own_parts import NUMBERS, Numbers
from tests.program import run

STEPS = 4  # in an epoch
SCHEDULERS = ("onecycle", "cosine", "constant", "none")


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Runs a fit of four steps an epoch; gives its outcome."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(NUMBERS)
    common = ["--config-dir", "conf", "--trust", "tests", "loader=debug"]
    first = [
        "dataset=numbers",
        "batch.size=8",
        "trainer.baseline=false",
        "tracker=none",
        "trainer.pictures=false",
        "trainer.progress=none",
        "trainer.log_every=1",
        "cache_dir=cache",
    ]

    def go(*words):
        new = () if any(word.startswith("resume=") for word in words) else first
        return run(capsys, *common, *new, *words)

    return go


@pytest.fixture
def rates(monkeypatch):
    """The learning rates of all steps, in order."""
    seen = []
    update = TrainStep.update

    def noting(self):
        seen.append(self.lr)
        update(self)

    monkeypatch.setattr(TrainStep, "update", noting)
    return seen


def manifest(folder="run"):
    return json.loads(Path(folder, "manifest.json").read_text())


def weights(folder):
    state = checkpoint.find_newest(Path(folder)).state["model"]
    return torch.cat([value.flatten() for value in state.values()])


@pytest.mark.thorough
@pytest.mark.one_in(8)
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_finished_run_is_trained_longer(scheduler, interval, fit, rates, tmp_path):
    chosen = [f"scheduler={scheduler}"]
    if scheduler != "none":
        chosen.append(f"schedule.interval={interval}")
    assert fit("trainer.max_epochs=4", "run_dir=run", *chosen).code == 0
    first, rates[:] = list(rates), []
    longer = fit("resume=run", "trainer.max_epochs=10")
    assert longer.code == 0, longer.err
    assert len(rates) == 6 * STEPS
    assert (manifest()["status"], manifest()["last"]["epoch"]) == ("done", 9)
    new = "schedule: a new" in longer.err
    assert new == (scheduler in ("onecycle", "cosine"))
    if new:
        left, made = (6, 4) if interval == "epoch" else (24, 16)
        assert f"for the {left} moves of the learning rate that are left; the" in longer.err
        assert f"the run's was made for {made}" in longer.err
        anew = fit("trainer.max_epochs=6", "run_dir=anew", *chosen)
        assert anew.code == 0
        assert rates[6 * STEPS :] == rates[: 6 * STEPS], "as a run of 6 epochs would have it"
    else:
        assert set(rates) == {first[-1]}, "it goes on as it was"


@pytest.mark.stress
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_the_longer_run_continues_to_the_bit(interval, fit, tmp_path):
    chosen = ["scheduler=cosine", f"schedule.interval={interval}"]
    for name in ("whole", "left"):
        assert fit("trainer.max_epochs=2", f"run_dir={name}", *chosen).code == 0
    assert fit("resume=whole", "trainer.max_epochs=6").code == 0
    # In the middle of the added epochs: the length is what the run was last given.
    from tests.port import StopAfter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.tasks.fit.fit", partial(runner.fit, asked=StopAfter(6)))
        stopped = fit("resume=left", "trainer.max_epochs=6")
    assert stopped.code == 75, stopped.err
    assert manifest("left")["status"] == "preempted"
    again = fit("resume=left")
    assert again.code == 0, again.err
    assert "schedule" not in again.err
    assert manifest("left")["last"]["epoch"] == 5
    assert torch.equal(weights("left"), weights("whole"))


@pytest.mark.stress
def test_shorter_is_done_and_longer_again(fit):
    assert fit("trainer.max_epochs=3", "run_dir=run", "scheduler=onecycle").code == 0
    assert fit("resume=run", "trainer.max_epochs=2").code == 0
    assert manifest()["last"]["epoch"] == 2
    for epochs in (4, 5):
        outcome = fit("resume=run", f"trainer.max_epochs={epochs}")
        assert outcome.code == 0, outcome.err
        assert "a new one for the 4 moves of the learning rate" in outcome.err
    assert checkpoint.find_newest(Path("run")).state["fingerprint"][SCHEDULES] == "12+4+4"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["trainer.max_epochs=6", "schedule.warmup=9999", "resume_despite=[scheduler]"], 2),
        (["trainer.max_epochs=6", "seed=7"], 2),
        (["trainer.max_epochs=6"], 1),
    ],
)
def test_a_finished_run_stays_done(words, code, fit, monkeypatch):
    assert fit("trainer.max_epochs=2", "run_dir=run", "scheduler=onecycle").code == 0
    before, measured = manifest(), Path("run/metrics.jsonl").read_text()
    with monkeypatch.context() as patch:
        if code == 1:
            patch.setattr(Numbers, "__getitem__", broken)
        failed = fit("resume=run", *words)
    assert failed.code == code, failed.err
    after = manifest()
    sessions = after.pop("sessions")
    assert after == {key: value for key, value in before.items() if key != "sessions"}
    assert Path("run/metrics.jsonl").read_text() == measured
    assert [one["status"] for one in sessions] == ["done", *(["failed"] if code == 1 else [])]
    assert fit("resume=run").code == 0
    assert manifest()["last"]["epoch"] == 1, "as long as it was"


def broken(self, index):
    raise ZeroDivisionError("a bug")


def facts(steps, **more):
    return {"scheduler._target_": "torch.optim.lr_scheduler.OneCycleLR", SCHEDULES: steps, **more}


NODE = {"_target_": "torch.optim.lr_scheduler.OneCycleLR"}


@pytest.mark.parametrize(
    ("saved", "now", "done", "expected", "begins"),
    [
        ("500", 500, 200, "500", None),
        ("500", 1000, 500, "500+500", 500),
        ("500", 1000, 300, "300+700", 700),
        ("500", 1000, 0, "1000", 1000),
        ("500", 400, 300, "300+100", 100),
        ("500", 300, 500, "500", None),
        ("300+200", 500, 400, "300+200", None),
        ("300+200", 900, 500, "300+200+400", 400),
        ("300+200", 900, 100, "100+800", 800),
    ],
)
def test_schedules_add_up(saved, now, done, expected, begins):
    found, steps = with_schedules(facts(saved), facts(str(now)), done, NODE)
    assert (found[SCHEDULES], steps) == (expected, begins)


def test_a_schedule_without_a_number_of_steps_continues():
    node = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 30}
    assert with_schedules(facts("500"), facts("1000"), 500, node) == (facts("1000"), None)
