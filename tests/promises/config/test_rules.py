"""Options that cannot be meant together: each refused with its key and a way out, by the rules or
by the part that is made of them, and never later than a run's folder is claimed."""

import pytest
import torch

import penstock
from penstock.errors import ConfigError
from tests.support.shipped import OWN, made

FIT = [*OWN[:-1], "transform=none", "model=linear", "objective=classification", "tracker=none"]
FIT += ["objective.inputs=[x]", "objective.target=label"]
STREAM = "dataset._target_=tests.support.own_parts.Stream"
MIXED = "+transform.train_batch.mix={_target_: penstock.transforms.mixing.MixUp}"
PACKED = ["sampler=packed", "collate=packed"]
SAME = "{_target_: penstock.transforms.image.Normalize, statistics: imagenet}"


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


REFUSED = [
    # of torch's DataLoader
    (OWN, ["loader.num_workers=0", "loader.timeout=5"], "loader.timeout", "needs workers"),
    (OWN, ["loader.backend=main", "loader.persistent_workers=true"], "persistent_workers", "needs"),
    (OWN, ["loader=threads", "loader.multiprocessing_context=fork"], "_context", "processes"),
    (OWN, ["loader.multiprocessing_context=spwan"], "_context", "'fork', 'spawn' or"),
    (OWN, ["loader.worker_init_fn=os.getpid"], "loader.worker_init_fn", "may not be called"),
    (OWN, ["batch.size=null", "batch.tail=pad"], "batch.tail", "set batch.tail=keep, or"),
    (FIT, ["loader.in_order=false"], "loader.in_order", "trainer.checkpoint=null"),
    (OWN, ["loader.in_order=false", "distributed=ddp"], "loader.in_order", "different batches"),
    (OWN, ["batch.size=null", "distributed=ddp"], "batch.size", "set batch.size"),
    # samplers
    (OWN, ["sampler=weighted", "sampler.column=labl"], "sampler.column", "it has columns label"),
    (OWN, ["sampler=bucket", "sampler.column=labl"], "sampler.column", "it has columns label"),
    (
        OWN,
        ["sampler=identity", "sampler.identities=2", "batch.tail=drop"],
        "batch.tail",
        "set batch.tail=keep",
    ),
    (OWN, [*PACKED, "batch.tail=pad"], "batch.tail", "set batch.tail=keep"),
    (OWN, ["sampler=repeated", "batch.size=5"], "sampler.times", "take a multiple of it"),
    (OWN, ["sampler=repeated", "sampler.order=3"], "sampler.order", "expected"),
    (
        OWN,
        ["sampler=repeated", "sampler.order={_target_: penstock.order.plan.StreamOrder}"],
        "sampler.order",
        "rows one by one",
    ),
    (
        OWN,
        ["sampler={_target_: torch.utils.data.DistributedSampler}"],
        "sampler._target_",
        "a second time",
    ),
    (OWN, ["sampler=packed", "collate=stack"], "collate", "set collate=packed"),
    (OWN, [*PACKED, MIXED], "transform.train_batch", "transform samples instead"),
    (OWN, [STREAM], "sampler", "set sampler=stream"),
    (OWN, ["sampler=stream"], "sampler", "Numbers has rows that can be chosen"),
    (OWN, [STREAM, "sampler=stream", "loader.in_order=false"], "loader.in_order", "stream"),
    # batches
    (OWN, [MIXED, "batch.size=null"], "transform.train_batch", "set batch.size"),
    (OWN, [MIXED, "collate=list"], "transform.train_batch", "set collate=stack"),
    (OWN, [MIXED.replace("train_b", "val_b")], "transform.val_batch.mix", "transform.train_batch"),
    (OWN, [MIXED, "transform.views=2"], "transform.train_batch.mix", "same to all views"),
    (
        OWN,
        [f"+transform.train_batch.again={SAME}"],
        "transform.train_batch.again",
        "leave one of them out",
    ),
    (OWN, ["data.fields=[a,a]"], "data.fields", "a name of its own"),
    (OWN, ["trainer.skip=[3]"], "trainer.skip", ""),
    (OWN, ["split=both"], "split", "set split=train or split=val"),
    (OWN[:-1], ["task=predict", "run=x", "out=y"], "dataset.root", "what to predict"),
    # training
    (FIT, ["dataset._target_=tests.support.own_parts.Unsplit"], "dataset", "the same samples"),
    (FIT, ["data.validate=false", "trainer.patience=3"], "trainer.patience", "=null"),
    (FIT, ["data.validate=false", "trainer.monitor=loss"], "trainer.monitor", "=null"),
    (OWN, ["data.validate=false", "split=val"], "split", "set split=train"),
    (FIT, ["trainer.monitor=acuracy"], "trainer.monitor", "did you mean 'accuracy'"),
    (FIT, ["trainer.monitor=accuracy", "trainer.mode=min"], "trainer.mode", "trainer.mode=max"),
    (FIT, ["trainer.device=cuda"], "trainer.device", "torch finds no CUDA"),
    (FIT, ["scheduler=cosine", "schedule.warmup=1.5"], "schedule.warmup", "share below 1"),
    (FIT, ["scheduler=onecycle", "schedule.warmup=0.1"], "schedule.warmup", "set it to 0"),
]


@pytest.mark.parametrize(("base", "words", "key", "message"), REFUSED)
def test_what_excludes_each_other_is_refused(base, words, key, message):
    with pytest.raises(ConfigError) as caught:
        made(*base, *words)
    (problem,) = caught.value.problems
    assert problem.key.endswith(key), problem
    assert message in problem.message


@pytest.mark.parametrize(
    "words",
    [
        [*OWN, "loader=threads", "loader.prefetch_factor=5"],
        [*OWN, "loader.in_order=false", "loader.num_workers=1"],
        [*FIT, "loader.in_order=false", "trainer.checkpoint=null"],
        [*OWN, "sampler=weighted", "sampler.weights=length", "sampler.column=nothing"],
        [*OWN, *PACKED, "collate.pad_to=2048"],
        [*OWN, STREAM, "sampler=sequential"],
        [*OWN, "dataset._target_=tests.support.own_parts.Unsplit"],
        [*OWN, "trainer.precision=fp16"],
        [*FIT, "trainer.monitor=accuracy", "trainer.mode=max"],
        [*FIT, "scheduler=onecycle", "schedule.warmup=0"],
    ],
)
def test_what_is_allowed(words):
    made(*words)


@pytest.mark.parametrize(
    "task", ["fit", "validate", "test", "predict", "lr_find", "profile", "export"]
)
def test_half_precision_on_a_cpu(task):
    words = {"test": ["run=x"], "predict": ["run=x", "out=y"], "export": ["run=x", "out=y"]}
    words = words.get(task, [])
    with pytest.raises(ConfigError, match=r"trainer\.precision: fp16 needs .*=bf16 or fp32"):
        penstock.compose(*FIT, "trainer.precision=fp16", f"task={task}", *words)


def test_several_processes_that_would_each_train_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"distributed\.strategy: .* each would train alone"):
        penstock.compose(*OWN)
    assert penstock.compose(*OWN, "distributed=ddp").distributed.strategy == "ddp"
