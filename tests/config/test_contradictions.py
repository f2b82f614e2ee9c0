"""Options that cannot be meant together: each refused with its key and a way out."""

import re

import pytest
import torch

import penstock
from penstock.config import notices, rules
from penstock.errors import ConfigError

OWN = [
    "dataset._target_=tests.own_parts.Numbers",
    "~dataset.root",
    "~dataset.count",
    "~dataset.size",
    "~dataset.seed",
    "~dataset.val_fraction",
    "~dataset.reader",
    "task=digest",
]


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def refusals(*overrides, own=True):
    with pytest.raises(ConfigError) as caught:
        penstock.compose(*(OWN if own else []), *overrides)
    return {problem.key: problem.message for problem in caught.value.problems}


def only(key, *overrides, own=True):
    found = refusals(*overrides, own=own)
    assert list(found) == [key]
    return found[key]


def test_no_workers_alone_is_fine():
    assert penstock.compose(*OWN, "loader.num_workers=0").loader.num_workers == 0
    assert penstock.compose(*OWN, "loader.backend=main").loader.backend == "main"
    assert penstock.compose(*OWN, "loader=threads", "loader.timeout=5").loader.timeout == 5


def test_a_start_method_that_the_platform_lacks(monkeypatch):
    message = only("loader.multiprocessing_context", "loader.multiprocessing_context=spwan")
    assert re.search(r"no 'spwan' \(did you mean 'spawn'\?\); it has ", message)
    monkeypatch.setattr(rules.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    message = only("loader.multiprocessing_context", "loader.multiprocessing_context=fork")
    assert message == "this platform has no 'fork'; it has spawn"


def test_a_worker_function_passes_the_same_gate():
    key = "loader.worker_init_fn"
    assert "os.getpid may not be called" in only(key, "loader.worker_init_fn=os.getpid")
    assert "there is no 'start' in tests.own_parts" in only(key, f"{key}=tests.own_parts.start")
    good = penstock.compose(*OWN, f"{key}=tests.own_parts.start_worker")
    assert good.loader.worker_init_fn == "tests.own_parts.start_worker"


def test_batches_out_of_order_with_checkpoints():
    message = only("loader.in_order", "loader.in_order=false", own=False)
    assert "set loader.in_order=true or trainer.checkpoint=null" in message
    penstock.compose("loader.in_order=false", "trainer.checkpoint=null")
    penstock.compose("loader.in_order=false", "task=digest")


def test_several_processes_that_would_each_train_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    found = refusals("distributed=none")
    assert "each would train alone" in found["distributed.strategy"]
    assert list(found) == ["distributed.strategy"]
    penstock.compose(*OWN, "distributed=ddp")
    assert penstock.compose(*OWN).distributed.strategy == "ddp"  # in a loop of the caller's
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 'many', not a whole number"):
        penstock.compose(*OWN)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["sampler=weighted", "sampler.column=labl"], "sampler.column"),
        (["sampler=weighted", "sampler.weights=labl"], "sampler.weights"),
        (["sampler=bucket", "sampler.column=labl"], "sampler.column"),
        (["sampler=identity", "sampler.column=labl"], "sampler.column"),
    ],
)
def test_a_metadata_column_that_does_not_exist(overrides, key):
    message = only(key, *overrides)
    assert message == (
        "Numbers has no metadata column 'labl' (did you mean 'label'?); it has label, length"
    )


def test_a_weight_column_stands_instead_of_the_one_to_balance():
    penstock.compose(*OWN, "sampler=weighted", "sampler.weights=length", "sampler.column=nothing")


def test_a_stream():
    stream = "dataset._target_=tests.own_parts.Stream"
    message = only("sampler", stream)
    assert "Random chooses rows, but Stream is a stream" in message
    assert "set sampler=stream" in message
    for name in ("stream", "sequential"):
        penstock.compose(*OWN, stream, f"sampler={name}")
    message = only("loader.in_order", stream, "sampler=stream", "loader.in_order=false")
    assert "whose end is found in order" in message
    assert "Numbers has rows that can be chosen" in only("sampler", "sampler=stream")


def test_a_dataset_that_cannot_be_split():
    unsplit = [*OWN, "dataset._target_=tests.own_parts.Unsplit"]
    with pytest.raises(ConfigError, match=r"Unsplit takes no argument `split`.*the same samples"):
        penstock.compose(*unsplit, "task=fit")
    penstock.compose(*unsplit)
    node = "{_target_:tests.own_parts.Unsplit,size:4}"
    penstock.compose(*unsplit, f"data.val_dataset={node}", "task=fit")


@pytest.mark.parametrize(
    ("options", "key", "way_out"),
    [
        (["collate=stack"], "collate", "set collate=packed"),
        (["collate.pad_to=100"], "collate.pad_to", "set collate.pad_to=2048"),
        (["batch.size=null"], "batch.size", "set batch.size to the number of blocks"),
        (["batch.tail=pad"], "batch.tail", "set batch.tail=keep"),
        (
            ["+transform.train_batch.mix={_target_: penstock.transforms.mixing.MixUp}"],
            "transform.train_batch.mix",
            "transform samples instead",
        ),
    ],
)
def test_blocks_of_rows(options, key, way_out):
    found = refusals("sampler=packed", "collate=packed", *options)
    assert way_out in found[key]
    penstock.compose(*OWN, "sampler=packed", "collate=packed", "collate.pad_to=2048")


def test_devices_and_precisions(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no CUDA" in only("trainer.device", "trainer.device=cuda", own=False)
    fp16 = only("trainer.precision", "trainer.precision=fp16", own=False)
    assert "needs an accelerator" in fp16
    penstock.compose("trainer.precision=bf16")


def test_a_metric_that_nobody_measures():
    message = only("trainer.monitor", "trainer.monitor=nne", own=False)
    assert message == "the objective measures no 'nne' (did you mean 'nme'?); it has loss, nme"
    penstock.compose("trainer.monitor=loss")


def test_a_direction_that_would_keep_the_worst():
    images = ["dataset=image_folder", "dataset.root=x", "trainer.monitor=accuracy"]
    message = only("trainer.mode", *images, own=False)
    assert message == ("min would keep the worst: of accuracy, more is better: trainer.mode=max")
    penstock.compose(*images, "trainer.mode=max")
    penstock.compose("dataset=image_folder", "dataset.root=x")


def test_every_rule_is_skipped_where_what_it_needs_is_wrong_itself():
    found = refusals("loader.num_workers=1.5", "batch.tail=kep", "sampler.lenght=3")
    assert sorted(found) == ["batch.tail", "loader.num_workers", "sampler.lenght"]


def test_a_training_loop_of_the_models_own_is_reported_not_to_run():
    model = "model={_target_: tests.own_parts.WithItsOwnLoop, in_features: 1, out_features: 2}"
    (notice,) = notices.find(penstock.compose(*OWN[:-1], model))
    assert re.search(
        "model: WithItsOwnLoop is used by its forward alone; its training_step, "
        "configure_optimizers are not called. In their place are objective, optimizer "
        "and scheduler",
        notice,
    )
    assert list(notices.find(penstock.compose(*OWN, model))) == []  # a digest trains nothing
