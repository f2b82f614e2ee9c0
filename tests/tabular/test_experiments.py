"""Recipes of tables and series, small: they train, compare, resume, and give one digest."""

import json
import re

import pytest
import torch

from tests.program import run

SMALL = ["dataset.root=data", "dataset.count=200", "tracker=none", "cache_dir=cache"]
DEBUG = ["loader=debug", "batch.size=16"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_f1_is_that_of_its_definition():
    import penstock
    from penstock.build.training import TrainingParts

    parts = TrainingParts(penstock.compose("experiment=table", *SMALL, *DEBUG))
    model, objective, pairs = parts.model().eval(), parts.objective(), []
    for batch in parts.data.val.loader().epoch(0):
        _, outputs = objective.measure(model, batch)
        objective.update(outputs, batch)
        pairs += zip(batch["target"].tolist(), outputs.argmax(1).tolist(), strict=True)
    measured = objective.compute()
    assert len(pairs) == 40
    for label, name in enumerate(("no", "yes")):
        hits = sum(true == guess == label for true, guess in pairs)
        misses = sum((true == label) != (guess == label) for true, guess in pairs)
        assert measured[f"f1/{name}"] == pytest.approx(
            2 * hits / max(2 * hits + misses, 1), abs=1e-6
        )


@pytest.mark.thorough
def test_numbers_are_learnt_on_one_scale_and_measured_on_another(capsys, folder):
    done = run(
        capsys,
        *("experiment=table_regression", *SMALL, *DEBUG),
        *("model=table_linear", "optimizer.lr=0.05", "trainer.max_epochs=3", "run_dir=run"),
    )
    assert done.code == 0, done.err
    from penstock.addons.tabular.drawn_table import DrawnTable

    val = DrawnTable("data", "val", "spent", 200)
    truth = torch.stack([val[row]["target"] for row in range(40)])
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    error = float((truth - truth.mean()).abs().mean())  # of the measured rows, the mean target
    assert manifest["baseline"]["mae"] == pytest.approx(error, rel=1e-5)
    losses = [float(n) for n in re.findall(r"val/mae ([\d.]+)", done.out + done.err)]
    best = float(re.search(r"^mae +([\d.]+)", done.out, re.MULTILINE)[1])
    assert best < 0.8 * error, losses


def test_a_target_that_does_not_fit_the_objective_is_reported(capsys):
    number = run(capsys, "experiment=table", *SMALL, *DEBUG, "dataset.target=spent")
    assert number.code == 2
    assert "needs num_classes, which DrawnTable does not tell" in number.err
    label = run(capsys, "experiment=table_regression", *SMALL, *DEBUG, "dataset.target=left")
    assert label.code == 2
    assert "needs target_mean, which DrawnTable does not tell" in label.err
    series = run(capsys, "experiment=table", *SMALL, *DEBUG, "objective=forecasting")
    assert series.code == 2
    assert "objective: needs horizon, which DrawnTable does not tell" in series.err


EXPERIMENTS = {
    "table": SMALL,
    "forecasting": [
        *("dataset.root=data", "dataset.count=2", "dataset.days=160", "dataset.past=14"),
        *("dataset.horizon=7", "tracker=none", "cache_dir=cache"),
    ],
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize(
    "options",
    [
        ["loader=threads", "loader.num_workers=2"],
        pytest.param(["loader=default", "loader.num_workers=2"], marks=pytest.mark.stress),
        pytest.param(
            ["distributed=ddp", "distributed.nproc=2", "trainer.device=cpu"],
            marks=pytest.mark.stress,
        ),
    ],
)
def test_the_digest_is_that_of_all_loaders(capfd, options, name):
    words = ["task=digest", f"experiment={name}", *EXPERIMENTS[name], "batch.size=15"]
    plain = run(capfd, *words, "loader=debug")
    assert len(plain.hashes) == {"table": 11, "forecasting": 15}[name], plain.err
    assert run(capfd, *words, "loader=debug", *options).out == plain.out


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_resumed_run_is_the_same(capsys, folder, name):
    words = [f"experiment={name}", *EXPERIMENTS[name], *DEBUG, "trainer.pictures=false"]
    words += ["trainer.report=false", "trainer.baseline=false", "scheduler=none"]
    whole = run(capsys, *words, "run_dir=whole", "trainer.max_steps=9")
    stopped = run(capsys, *words, "run_dir=part", "trainer.max_steps=5")
    resumed = run(capsys, *words, "resume=part", "trainer.max_steps=9")
    assert (whole.code, stopped.code, resumed.code) == (0, 0, 0), resumed.err
    ledgers = [(folder / name / "ledger.jsonl").read_text() for name in ("whole", "part")]
    assert ledgers[0] == ledgers[1]  # rows and the exact loss of each step
    assert len(ledgers[0].splitlines()) == 9
