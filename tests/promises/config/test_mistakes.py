"""Typical mistakes: one message each, with the right key, a way out and the right exit code.

Most are what people bring along from torch, Lightning, Hugging Face and argparse.
"""

from typing import get_args

import pytest

from penstock.config.familiar import WAYS
from penstock.config.schema import Config
from tests.support.program import run

ARRAYS = ["dataset=arrays", "tracker=none", "trainer.pictures=false"]

# What was typed, the key that the message begins with, and what it says.
MISTAKES = [
    # of torch's DataLoader, in its section and elsewhere
    ("batch_size=8", "batch_size", "here that is batch.size=8"),
    ("+batch_size=8", "batch_size", "here that is batch.size=8"),
    ("loader.batch_size=8", "loader.batch_size", "here that is batch.size=8"),
    ("batch.batch_size=8", "batch.batch_size", "here that is batch.size=8"),
    ("loader.shuffle=false", "loader.shuffle", "here that is sampler=sequential"),
    ("+loader.shuffle=True", "loader.shuffle", "here that is sampler=random"),
    ("loader.drop_last=true", "loader.drop_last", "here that is batch.tail=drop"),
    ("loader.sampler=weighted", "loader.sampler", "here that is sampler=weighted"),
    ("loader.collate_fn=pad", "loader.collate_fn", "here that is collate=stack (or pad"),
    ("loader.num_worker=2", "loader.num_worker", "did you mean 'loader.num_workers'"),
    ("num_workers=2", "num_workers", "loader.num_workers"),
    ("trainer.num_workers=2", "trainer.num_workers", "loader.num_workers"),
    # of Lightning
    ("seed_everything=1", "seed_everything", "here that is seed=1"),
    ("max_epochs=3", "max_epochs", "trainer.max_epochs"),
    ("trainer.devices=2", "trainer.devices", "here that is distributed=ddp distributed.nproc=2"),
    ("trainer.accelerator=gpu", "trainer.accelerator", "here that is trainer.device=cuda"),
    ("trainer.strategy=fsdp", "trainer.strategy", "here that is distributed=fsdp"),
    ("trainer.precision=16-mixed", "trainer.precision", "here that is fp16"),
    ("trainer.precision=32", "trainer.precision", "here that is fp32"),
    ("trainer.gradient_clip_val=1", "trainer.gradient_clip_val", "that is trainer.clip_norm=1"),
    (
        "trainer.accumulate_grad_batches=4",
        "trainer.accumulate_grad_batches",
        "here that is trainer.accumulate=4",
    ),
    ("ckpt_path=x", "ckpt_path", "here that is resume=x, or checkpoint=x with task=validate"),
    # of Hugging Face
    ("per_device_train_batch_size=8", "per_device_train_batch_size", "batch.size=8, over all"),
    ("num_train_epochs=3", "num_train_epochs", "here that is trainer.max_epochs=3"),
    ("learning_rate=0.1", "learning_rate", "here that is optimizer.lr=0.1"),
    ("output_dir=x", "output_dir", "here that is run_dir=x"),
    ("warmup_ratio=0.1", "warmup_ratio", "here that is schedule.warmup=0.1"),
    ("fp16=true", "fp16", "here that is trainer.precision=fp16"),
    # of scripts in general
    ("epochs=3", "epochs", "here that is trainer.max_epochs=3"),
    ("lr=0.1", "lr", "here that is optimizer.lr=0.1"),
    ("trainer.lr=0.1", "trainer.lr", "here that is optimizer.lr=0.1"),
    ("data_dir=faces", "data_dir", "here that is dataset.root=faces"),
    ("~epochs", "epochs", "here that is trainer.max_epochs=..."),
    ("--batch-size=8", "--batch-size", "here that is batch.size=8"),
    ("--epochs 3", "--epochs", "here that is trainer.max_epochs=3"),
    ("--bogus", "--bogus", "keys stand without dashes, as in batch.size=32"),
    # options of groups
    ("model=resnet18", "model", "here that is model=torchvision model.name=resnet18"),
    ("optimizer=AdamW", "optimizer", "did you mean 'adamw'"),
    ("sampler=WeightedRandomSampler", "sampler", "here that is sampler=weighted"),
    ("scheduler=CosineAnnealingLR", "scheduler", "here that is scheduler=cosine"),
    ("task=train", "task", "here that is task=fit"),
    ("dataset=csv", "dataset", "here that is dataset=delimited_text"),
    ("distributed=true", "distributed", "here that is distributed=ddp"),
    # values and grammar
    ("batch.size=32.0", "batch.size", "got 32.0"),
    ("batch.tail=true", "batch.tail", "here that is drop"),
    ("loader.num_workers=-1", "loader.num_workers", " 0"),
    ("train.py", "train.py", "is no key=value, like batch.size=32"),
    ("seed=1,2", "seed", "add -m to sweep over them"),
    (
        "objective.metrics.f1={_target_:torchmetrics.F1Score}",
        "objective.metrics.f1",
        "to add one: '+objective.metrics.f1={_target_:torchmetrics.F1Score}'",
    ),
    ("transform.train.blur={_target_:x}", "transform.train.blur", "to add one: '+transform.train"),
    ("dataset=image_folder", "dataset.root", "has no value yet; give it with dataset.root=..."),
    # options that do not go together
    ("batch.size=null batch.tail=drop", "batch.tail", "set batch.tail=keep, or batch.size"),
    ("loader.num_workers=0 loader.prefetch_factor=2", "loader.prefetch_factor", "needs workers"),
    ("trainer.precision=fp16 trainer.device=cpu", "trainer.precision", "trainer.precision=bf16 or"),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("words", "key", "message"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_a_mistake_is_one_message_with_the_right_key(
    words, key, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = run(capsys, *words.split())
    assert done.code == 2
    assert done.out == ""
    said = done.err.splitlines()
    if said[0].startswith("fit: "):  # what would have been done: only the parts show a mistake
        del said[0]
    assert said[0].startswith(f"error in the configuration: {key}: "), done.err
    assert message in done.err
    assert len(said) == 1
    assert list(tmp_path.iterdir()) == []


def test_spaces_around_the_equals_sign(capsys):
    done = run(capsys, "seed", "=", "3")
    assert done.code == 2
    assert done.err.count("one word, without spaces") == 3


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """20 samples of 3 numbers, and a folder to run in."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "inputs.npy", np.arange(60, dtype=np.float32).reshape(20, 3))
    np.save(tmp_path / "targets.npy", np.arange(20) % 4)
    return [*ARRAYS, "dataset.root=.", "loader=debug", "trainer.device=cpu"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "more", [[], ["scheduler=none"], ["scheduler=cosine"], ["task=digest"], ["task=profile"]]
)
def test_a_batch_larger_than_the_data_is_to_blame_itself(arrays, more, capsys):
    done = run(capsys, *arrays, "batch.size=1000", "batch.tail=drop", *more)
    assert done.code == 2
    assert (
        "batch.size: 1000 is more than Random can fill with the 16 samples of an epoch" in done.err
    )
    assert "set batch.size=16 or less, or batch.tail=keep" in done.err
    assert done.err.count("\n") == 2, "what will be done, and why not"


@pytest.mark.parametrize(
    "words",
    [
        ["task=validate", "checkpoint=run"],
        ["resume=run/checkpoints"],
        ["resume=run"],
        ["resume=nowhere"],
    ],
)
def test_a_missing_checkpoint_is_a_wrong_configuration(arrays, words, capsys, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_text("{}")
    done = run(capsys, *arrays, *words)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert words[-1].partition("=")[2].split("/")[0] in done.err


@pytest.mark.parametrize("words", [["dataset=image_folder"], ["dataset=arrays"]])
def test_data_that_is_not_there_is_no_wrong_configuration(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(capsys, *words, "dataset.root=missing", "task=digest")
    assert done.code == 3
    assert "missing" in done.err
    assert "Traceback" not in done.err


def test_a_batch_size_that_is_not_used_is_reported(arrays, capsys):
    words = ["sampler=identity", "sampler.identities=2", "task=digest"]
    said = run(capsys, *arrays, *words, "sampler.column=label").err
    assert "batch.size: 32 is for validation only; Identity forms its batches itself" in said


VALUES = {typed.partition("=")[0] for names in WAYS for typed in names.split() if "." in typed}


@pytest.mark.parametrize("key", sorted(VALUES))
def test_suggested_values_are_taken(key):
    section, name = key.split(".")
    annotation = Config.model_fields[section].annotation.model_fields[name].annotation
    words = {word for part in (annotation, *get_args(annotation)) for word in get_args(part)}
    assert {way for names, way in WAYS.items() if f"{key}=" in names} <= words
