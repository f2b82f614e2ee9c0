"""Real ranks (gloo): the same batches, losses and metrics for any number of them."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from penstock.runs import checkpoint
from tests.support.program import ROOT, run
from tests.support.ranks import ALL, CASES, LEG_STEPS, LEGS, LENGTHS, ORDER_OF_WORLDS, SIZES
from tests.support.torchrun import start

MANY = [size for size in ORDER_OF_WORLDS if size > 1]


def launch(size, *words):
    """Run ranks through torchrun."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={size}",
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By world size, what rank 0 has seen; each world goes on with what the one before left."""
    folder = tmp_path_factory.mktemp("ranks")
    for size in ORDER_OF_WORLDS:
        (launch if ALL else start)(size, "-m", "tests.support.ranks", str(folder))
    return {size: json.loads((folder / f"{size}.json").read_text()) for size in ORDER_OF_WORLDS}


def without_loss(steps):
    return [step[:-1] for step in steps]


def losses(steps):
    return [step[-1] for step in steps]


@pytest.mark.parametrize("size", MANY)
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_trains_on_the_same_batches(name, size, found):
    alone, many = found[1]["fits"][name], found[size]["fits"][name]
    assert without_loss(many["steps"]) == without_loss(alone["steps"])
    assert many["order"] == alone["order"]
    assert losses(many["steps"]) == pytest.approx(losses(alone["steps"]), rel=1e-4, abs=1e-5)
    assert many["weights"] == pytest.approx(alone["weights"], rel=1e-3, abs=1e-4)
    assert many["best"] == pytest.approx(alone["best"], rel=1e-4)


@pytest.mark.parametrize("size", MANY)
@pytest.mark.parametrize("length", LENGTHS)
def test_each_sample_is_validated_once(length, size, found):
    for batch in SIZES:
        name = f"{length} by {batch}"
        alone, many = found[1]["validations"][name], found[size]["validations"][name]
        assert alone.keys() == many.keys()
        for key, value in alone.items():
            # Ranks of equal predictions hang on their last bit, which is another in other batches.
            limit = 1e-3 if key == "rank" else 1e-6
            assert math.isclose(many[key], value, rel_tol=limit, abs_tol=limit), (name, key)


@pytest.mark.parametrize("size", [1, *MANY])
def test_one_loss_for_a_share_weighs_as_a_loss_for_each_sample(size, found):
    whole, each = (found[size]["fits"][name] for name in ("one loss for all", "gradients added up"))
    assert without_loss(whole["steps"]) == without_loss(each["steps"])
    assert losses(whole["steps"]) == pytest.approx(losses(each["steps"]), rel=1e-4, abs=1e-5)
    assert whole["weights"] == pytest.approx(each["weights"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("size", MANY)
def test_sharded_weights_learn_the_same(size, found):
    alone, many = found[1]["fsdp"], found[size]["fsdp"]
    assert without_loss(many["steps"]) == without_loss(alone["steps"])
    assert many["weights"] == pytest.approx(alone["weights"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_resumes_in_worlds_of_other_sizes(strategy, found, tmp_path):
    _, undisturbed, _, _ = LEGS.fit(tmp_path)
    whole = [[s.epoch, s.step, s.samples, f"{s.order:016x}", s.digest] for s in undisturbed.steps]
    legs = [found[size][f"{strategy} leg"] for size in ORDER_OF_WORLDS]
    steps = [step for leg in legs for step in leg]
    assert [len(leg) for leg in legs[:-1]] == [LEG_STEPS] * (len(legs) - 1)
    assert without_loss(steps) == whole
    assert losses(steps) == pytest.approx([s.loss for s in undisturbed.steps], rel=1e-4, abs=1e-5)


def test_a_sharded_fit_resumes_on_one_rank(tmp_path, capsys, monkeypatch):
    """Weights and momenta that two ranks had in parts, from the middle of an epoch."""
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    np.save(tmp_path / "inputs.npy", rows)
    np.save(tmp_path / "targets.npy", rows[:, :3].argmax(1))
    words = [
        "dataset=arrays",
        f"dataset.root={tmp_path}",
        "model={_target_: tests.parts.finetuning.nets.Plain}",
        "objective=classification",
        "objective.inputs=[input]",
        "objective.target=target",
        "batch.size=8",
        "loader.num_workers=0",
        "tracker=none",
        "trainer.device=cpu",
        "trainer.max_epochs=2",
        "trainer.pictures=false",
        "trainer.report=false",
        "trainer.checkpoint.every_steps=3",
        "trainer.checkpoint.keep_last=9",
    ]
    start(2, "run.py", *words, f"run_dir={tmp_path}/ranks", "distributed=fsdp")
    left = f"resume={tmp_path}/ranks/checkpoints/step-00000003.safetensors"
    for name, more in (("alone", []), ("rest", [left])):
        done = run(capsys, *words, f"run_dir={tmp_path}/{name}", *more)
        assert done.code == 0, done.err
    alone, rest = (checkpoint.find_newest(tmp_path / name).state for name in ("alone", "rest"))
    assert rest["updates"] == 8
    for name, value in alone["model"].items():
        torch.testing.assert_close(rest["model"][name], value, rtol=1e-4, atol=1e-6)
    for number, values in alone["optimizer"]["state"].items():
        momenta = rest["optimizer"]["state"][number]
        torch.testing.assert_close(momenta["exp_avg"], values["exp_avg"], rtol=1e-3, atol=1e-6)
