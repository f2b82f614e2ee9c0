"""Recipes of tables and series, small: they train, compare, resume, and give one digest."""

import json
import re

import pytest
import torch

from tests.support.program import run

SMALL = ["dataset.root=data", "dataset.count=200", "tracker=none", "cache_dir=cache"]
DEBUG = ["loader=debug", "batch.size=16"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_numbers_are_learnt_on_one_scale_and_measured_on_another(capsys, folder):
    done = run(
        capsys,
        *("experiment=table_regression", *SMALL, *DEBUG),
        *("model=table_linear", "optimizer.lr=0.05", "trainer.max_epochs=3", "run_dir=run"),
    )
    assert done.code == 0, done.err
    from penstock.addons.tabular.table import DrawnTable

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
