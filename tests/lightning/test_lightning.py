"""A LightningModule as it is: what Lightning's Trainer makes of the same batches."""

import importlib
import json
import math

import numpy as np
import pytest
import torch

from penstock import build_train_loader, build_val_loader, compose
from penstock.runs import checkpoint
from tests.program import run

pl = pytest.importorskip("pytorch_lightning")

MODULES = "tests.lightning.lit_modules"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    rows = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    np.save(folder / "inputs.npy", rows)
    np.save(folder / "targets.npy", rows[:, :3].argmax(1))
    return folder


def words(data, kind="Classifier", *more):
    return [
        "dataset=arrays",
        f"dataset.root={data}",
        f"model={{_target_: {MODULES}.{kind}}}",
        "objective=lightning",
        "optimizer=lightning",
        "scheduler=lightning",
        "batch.size=8",
        "trainer.max_epochs=2",
        "trainer.monitor=val_loss",
        "loader.num_workers=0",
        "tracker=none",
        *more,
    ]


def fitted(capsys, data, folder, kind="Classifier", *more):
    """The records of a run, and its last weights."""
    outcome = run(capsys, "--trust", MODULES, *words(data, kind, f"run_dir={folder}", *more))
    assert outcome.code == 0, outcome.err
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = checkpoint.find_newest(folder).state["model"]
    return [record for record in records if "val/val_loss" in record], weights


def by_lightning(kind, data, monkeypatch):
    """What Lightning's own Trainer makes of the same batches, and its last metrics."""
    monkeypatch.setenv("PENSTOCK_TRUST", MODULES)
    config = compose(*words(data, kind))
    module = importlib.import_module(MODULES)
    from penstock.build.training import TrainingParts

    model = TrainingParts(config).model()
    assert type(model) is getattr(module, kind)

    class Epochs:
        """Our batches, epoch by epoch."""

        def __init__(self, loader):
            self.loader, self.number = loader, 0

        def __len__(self):
            return self.loader.plan.steps(0)

        def __iter__(self):
            self.number += 1  # at once: it counts batches, and may not ask for the end
            for batch in self.loader.epoch(self.number - 1):
                yield batch["input"], batch["target"]

    class Once(Epochs):
        def __iter__(self):
            self.number = 0
            return super().__iter__()

    with build_train_loader(config) as train, build_val_loader(config) as val:
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(model, Epochs(train), Once(val))
    return model.state_dict(), {name: float(v) for name, v in trainer.callback_metrics.items()}


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("kind", ["Classifier", "Adversaries"])
def test_it_trains_to_the_weights_of_lightnings_own_trainer(
    capsys, data, tmp_path, monkeypatch, kind
):
    every = ["scheduler.interval=step"] if kind == "Classifier" else []
    records, weights = fitted(capsys, data, tmp_path / "run", kind, *every)
    theirs, metrics = by_lightning(kind, data, monkeypatch)
    assert weights.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)
    assert math.isclose(records[-1]["val/val_loss"], metrics["val_loss"], rel_tol=1e-6)
    if kind == "Classifier":
        assert math.isclose(records[-1]["val/val_accuracy"], metrics["val_accuracy"], rel_tol=1e-6)
        assert records[-1]["train/loss/epoch"] == 1.0
        assert records[-1]["train/loss/step"] == 8.5  # the mean of 6 to 11
        assert math.isclose(
            records[-1]["train/loss/train_loss"], records[-1]["train/loss"], rel_tol=1e-6
        )


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["Classifier", "Adversaries"])
def test_a_run_that_was_stopped_resumes_to_the_bit(capsys, data, tmp_path, kind):
    every = ["scheduler.interval=step"] if kind == "Classifier" else []
    often = ["trainer.checkpoint.every_steps=4", "trainer.checkpoint.keep_last=9", *every]
    records, whole = fitted(capsys, data, tmp_path / "whole", kind, *often)
    in_mid_epoch = tmp_path / "whole" / "checkpoints" / "step-00000004.safetensors"
    rest = [f"resume={in_mid_epoch}", *often]
    resumed, weights = fitted(capsys, data, tmp_path / "rest", kind, *rest)
    assert resumed[-1].get("train/loss/step") == records[-1].get("train/loss/step")
    for name, value in whole.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("Hooked", [], "objective: does not call on_train_epoch_end of Hooked; name those"),
        ("Curious", [], "model: asks for trainer.callbacks, which Penstock does not have"),
        ("Wordless", [], "model: training_step of Wordless gives NoneType; it has to give a loss"),
        ("Unevenly", [], "model: Unevenly has 2 optimizers; set self.automatic_optimization"),
        ("Classifier", [], "scheduler.interval: is epoch, but configure_optimizers says step"),
        ("Classifier", ["scheduler=cosine"], "set scheduler=lightning"),
        ("Classifier", ["objective=classification"], "is for objective=lightning"),
    ],
)
def test_what_does_not_go_is_one_message(capsys, data, tmp_path, kind, more, message):
    every = [] if "epoch, but" in message or more else ["scheduler.interval=step"]
    arguments = words(data, kind, f"run_dir={tmp_path / 'run'}", *every, *more)
    outcome = run(capsys, "--trust", MODULES, *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.thorough
def test_hooks_that_need_not_be_called_may_be_named(capsys, data, tmp_path):
    more = ["scheduler.interval=step", "objective.without=[on_train_epoch_end]"]
    records, _ = fitted(capsys, data, tmp_path / "run", "Hooked", *more)
    assert len(records) == 2


@pytest.mark.stress
def test_ranks_train_as_one_process(capsys, data, tmp_path):
    alone, _ = fitted(capsys, data, tmp_path / "alone", "Adversaries")
    ranks = ["distributed=ddp", "distributed.nproc=2"]
    together, _ = fitted(capsys, data, tmp_path / "ranks", "Adversaries", *ranks)
    for name in ("train/loss/telling", "train/loss/fooling", "val/val_loss"):
        assert math.isclose(alone[-1][name], together[-1][name], rel_tol=1e-5)
    assert alone[-1]["train/loss/rank"] == 0
    assert math.isclose(together[-1]["train/loss/rank"], 0.5)  # of equal shares
