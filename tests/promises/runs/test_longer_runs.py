"""A run that was done is trained on: a new schedule for what is added, and nothing is lost."""

import json
from pathlib import Path

import pytest
import torch

from penstock.runs import checkpoint
from penstock.training.step import TrainStep
from tests.support.own_parts import NUMBERS, Numbers
from tests.support.program import run

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


@pytest.mark.one_in(8)
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_finished_run_is_trained_longer(scheduler, interval, fit, rates, tmp_path):
    chosen = [f"scheduler={scheduler}"]
    if scheduler != "none":
        chosen.append(f"schedule.interval={interval}")
    assert fit("trainer.max_epochs=4", "run_dir=run", *chosen).code == 0
    first, rates[:] = list(rates), []
    # Of 4 epochs the stock warm-up has none, of 12 it would have one.
    longer = fit("resume=run", "trainer.max_epochs=12")
    assert longer.code == 0, longer.err
    assert len(rates) == 8 * STEPS
    assert (manifest()["status"], manifest()["last"]["epoch"]) == ("done", 11)
    new = "schedule: a new" in longer.err
    assert new == (scheduler in ("onecycle", "cosine"))
    if new:
        left, made = (8, 4) if interval == "epoch" else (32, 16)
        assert f"for the remaining {left} changes of the learning rate; the" in longer.err
        assert f"the run's was made for {made}" in longer.err
        anew = fit("trainer.max_epochs=8", "run_dir=anew", *chosen)
        assert anew.code == 0
        assert rates[8 * STEPS :] == rates[: 8 * STEPS], "as a run of 8 epochs would have it"
    else:
        assert set(rates) == {first[-1]}, "it goes on as it was"


@pytest.mark.parametrize(
    "words",
    [["schedule.warmup=9999", "resume_despite=[scheduler]"], ["seed=7"]],
)
def test_a_refused_resume_changes_nothing(words, fit):
    assert fit("trainer.max_epochs=2", "run_dir=run", "scheduler=onecycle").code == 0
    before, measured = manifest(), Path("run/metrics.jsonl").read_text()
    failed = fit("resume=run", "trainer.max_epochs=6", *words)
    assert failed.code == 2, failed.err
    assert manifest() == before
    assert Path("run/metrics.jsonl").read_text() == measured


def test_a_finished_run_that_fails_resumes_from_its_end(fit, monkeypatch):
    assert fit("trainer.max_epochs=2", "run_dir=run", "scheduler=onecycle").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "__getitem__", broken)
        failed = fit("resume=run", "trainer.max_epochs=3")
    assert failed.code == 1, failed.err
    assert [one["status"] for one in manifest()["sessions"]] == ["done", "failed"]
    assert (manifest()["status"], manifest()["last"]["epoch"]) == ("failed", 1)
    assert fit("resume=run").code == 0
    assert (manifest()["status"], manifest()["last"]["epoch"]) == ("done", 2)


def broken(self, index):
    raise ZeroDivisionError("a bug")
