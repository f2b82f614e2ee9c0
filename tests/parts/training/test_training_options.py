"""EMA, short epochs, one step to try everything, and the range test of learning rates."""

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.addons.profiling import smoothed, suggestion
from penstock.build.training import TrainingParts
from penstock.errors import ConfigError
from penstock.order.plan import StreamOrder, StreamPlan
from penstock.runs import checkpoint
from tests.support.own_parts import NUMBERS
from tests.support.program import run

COMMON = ["--config-dir", "conf", "--trust", "tests", "dataset=numbers", "batch.size=8"]
COMMON += ["loader=debug", "trainer.baseline=false", "tracker=none", "trainer.pictures=false"]
COMMON += ["trainer.progress=none", "cache_dir=cache"]


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Runs a fit on 32 numbers in a new folder; gives its outcome."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "numbers.yaml").write_text(NUMBERS)
    return lambda *words: run(capsys, *COMMON, *words)


@pytest.mark.thorough
def test_a_task_that_loads_the_checkpoint_measures_the_mean(fit):
    done = fit("trainer.ema=0.9", "trainer.max_epochs=3", "run_dir=run", "optimizer.lr=0.1")
    assert done.code == 0, done.err
    last = json.loads(Path("run/manifest.json").read_text())["last"]
    newest = checkpoint.find_newest(Path("run")).path
    measured = fit("task=validate", f"checkpoint={newest}")
    assert f"{last['val/loss']:.4f}" in measured.out
    plain = fit("trainer.max_epochs=3", "run_dir=plain", "optimizer.lr=0.1")
    assert plain.code == 0
    other = json.loads(Path("plain/manifest.json").read_text())["last"]
    assert other["train/loss"] == last["train/loss"], "training is the same"
    assert other["val/loss"] != last["val/loss"]
    refused = fit(
        "trainer.ema=0.8", "run_dir=run", "resume=auto", "trainer.max_epochs=4", "optimizer.lr=0.1"
    )
    assert (refused.code, "trainer.ema: is 0.8 here and was 0.9" in refused.err) == (2, True)


def test_parts_of_weights_have_no_mean():
    parts = TrainingParts(penstock.compose("trainer.ema=0.9", "distributed=fsdp"))
    with pytest.raises(ConfigError, match=r"trainer\.ema: distributed=fsdp has parts of weights"):
        parts.trained()


def test_a_stream_is_shortened_too():
    assert StreamPlan(StreamOrder(0), 4, length=22).steps(0) == 6
    short = StreamPlan(StreamOrder(0), 4, length=22, most=2)
    assert (short.steps(0), short.limit(0)) == (2, 2)
    assert StreamPlan(StreamOrder(0, steps=1), 4, most=2).limit(0) == 1


def test_limits_of_both_splits(fit):
    words = ("trainer.limit_batches.train=3", "trainer.limit_batches.val=1", "trainer.ledger=true")
    done = fit(*words, "trainer.max_epochs=2", "run_dir=run")
    assert done.code == 0, done.err
    ledger = [json.loads(line) for line in Path("run/ledger.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in ledger] == [
        (epoch, step) for epoch in range(2) for step in range(3)
    ]
    whole = fit("trainer.max_epochs=2", "run_dir=whole", "trainer.ledger=true")
    assert whole.code == 0
    lines = map(json.loads, Path("whole/ledger.jsonl").read_text().splitlines())
    samples = {(line["epoch"], line["step"]): line["samples"] for line in lines}
    assert all(samples[line["epoch"], line["step"]] == line["samples"] for line in ledger)


def test_overfitting_sees_the_same_samples_in_every_epoch(fit):
    words = ("trainer.overfit_batches=2", "trainer.digest=true", "trainer.max_epochs=3")
    done = fit(*words, "run_dir=run")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in Path("run/digests.jsonl").read_text().splitlines()]
    digests = [
        {key: value for key, value in line.items() if key not in ("epoch", "step")}
        for line in lines
    ]
    assert digests[:2] == digests[2:4] == digests[4:6]
    assert digests[0] != digests[1]


def test_the_loss_falls_fastest_where_it_is_steepest():
    rates = [10 ** (place / 10) for place in range(-60, 1)]
    losses = [1 / (1 + math.exp(4 * (math.log10(rate) + 3))) for rate in rates]
    assert suggestion(rates, losses) == pytest.approx(1e-3, rel=0.3)
    assert smoothed([2.0] * 5) == pytest.approx([2.0] * 5)


def test_noise_of_the_smallest_rates_suggests_nothing():
    rates = np.geomspace(1e-7, 1, 100)
    falling = 0.7 / (1 + (rates / 3e-3) ** 1.5)
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.05, 100)
        assert suggestion(rates, 0.7 + noise) is None
        assert 1e-3 < suggestion(rates, falling + noise) < 1e-2


@pytest.mark.thorough
def test_a_range_of_learning_rates_is_tried(fit):
    words = ("task=lr_find", "steps=30", "lr_find.lowest=1e-5", "lr_find.highest=10")
    found = fit(*words, "run_dir=one")
    assert found.code == 0, found.err
    assert found.out.startswith("30 learning rates, 1e-05 to 10, to the end\n")
    with Path("one/lr.csv").open() as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["lr"]) for row in rows]
    assert rates[0] == pytest.approx(1e-5)
    steps = [after / before for before, after in pairwise(rates)]
    assert steps == pytest.approx([1e6 ** (1 / 29)] * len(steps))
    assert fit(*words, "run_dir=two").code == 0
    assert Path("two/lr.csv").read_text() == Path("one/lr.csv").read_text()
    assert not Path("one/checkpoints").exists()


def test_a_range_the_wrong_way_round_is_refused(fit):
    refused = fit("task=lr_find", "lr_find.lowest=1", "lr_find.highest=0.1")
    assert refused.code == 2
    assert "lr_find.highest: 0.1 is not above lr_find.lowest, 1" in refused.err
