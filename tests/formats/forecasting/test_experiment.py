"""`experiment=forecasting`, small: it trains and compares; tabular has its digest."""

import json

import pytest
import torch

from tests.support.program import run

SMALL = ["dataset.root=data", "dataset.count=2", "dataset.days=160", "dataset.past=14"]
SMALL += ["dataset.horizon=7", "tracker=none", "cache_dir=cache", "batch.size=16", "loader=debug"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_it_trains_beside_the_naive_forecast_and_is_drawn(capsys, folder, reports):
    words = ["experiment=forecasting", *SMALL, "optimizer.lr=0.02", "trainer.max_epochs=3"]
    done = run(capsys, *words, "run_dir=run")
    assert done.code == 0, done.err
    assert "lack a part" not in done.err
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    from penstock.addons.forecasting.drawn_series import DrawnSeries

    val = DrawnSeries("data", "val", 2, 160, past=14, horizon=7)
    ratios = []
    for sample in (val[row] for row in range(len(val))):
        naive = sample["past"][-7:, :1] * sample["spread"] + sample["location"]
        ratios.append(((naive - sample["target"]).abs() / sample["naive_error"]).mean())
    naive = float(torch.stack(ratios).double().mean())
    assert manifest["baseline"]["mase"] == pytest.approx(naive, abs=1e-6)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    measured = [json.loads(line).get("val/mase", 9.0) for line in lines]
    assert min(measured) < 0.95 * naive
    assert (folder / "run" / "predictions.jpg").exists()
    assert "Truth that is drawn is green" in (folder / "run" / "report.html").read_text()


def test_a_missing_truth_has_no_loss():
    import penstock
    from penstock.build.training import TrainingParts

    parts = TrainingParts(penstock.compose("experiment=forecasting", *SMALL))
    model, objective = parts.model(), parts.objective()
    batch = next(iter(parts.data.train.loader().epoch(0)))
    whole, outputs = objective.measure(model, batch)
    target = batch["target"].clone()
    target[0, 3:] = torch.nan
    target[1] = torch.nan
    losses, outputs = objective.measure(model, batch.replace({**batch, "target": target}))
    losses.sum().backward()
    losses, outputs = losses.detach(), outputs.detach()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
    assert losses[2:].tolist() == whole[2:].tolist()
    assert float(losses[1]) == 0
    scaled = (target[0] - batch["location"][0]) / batch["spread"][0]
    expected = (outputs[0, :3] - scaled[:3]).square().mean()
    assert float(losses[0]) == pytest.approx(float(expected), rel=1e-5)
