"""The report of a fit, and what its summary says of workers and of data."""

import math
from types import SimpleNamespace

import pytest
from torch import nn

from penstock.loading.workers.options import LoaderOptions
from penstock.tasks import outcome
from penstock.tasks.progress import describe
from penstock.tasks.validate import monitored, print_table
from penstock.training.runner import Result


def record(epoch, step, loss, seconds, speed, **more):
    return {
        "epoch": epoch,
        "step": step,
        "train/loss": loss,
        "seconds": seconds,
        "samples_per_second": speed,
        "wait_share": 0.1 * (epoch + 1),
        **more,
    }


FIRST = record(0, 5, 0.5, 1.0, 100.0, **{"val/loss": 0.25, "val/nme": 0.5})
LAST = record(1, 10, 0.4, 3.0, 200.0, **{"val/loss": 0.75, "val/nme": 0.75})


def printed(capsys, *arguments):
    outcome.print_report(*arguments)
    out = capsys.readouterr().out
    return [" ".join(line.split()) for line in out.splitlines()]


def test_the_report_of_a_run_whose_best_epoch_is_not_the_last(capsys):
    result = Result([FIRST, LAST], FIRST, "max_epochs")
    lines = printed(capsys, result, {"the mean": {"loss": 1.0, "nme": 2.0}, "none": {}}, "nme")
    assert lines == [
        "best, epoch 0 last, epoch 1 the mean none",
        "loss 0.2500 0.7500 1.0000",
        "nme 0.5000 0.7500 2.0000",
        "training loss 0.5000 0.4000",
        "nme 0.5000 | the mean 2.0000 | ratio 0.25",
        "epochs 2, steps 10, 4.0 s of training: 175 samples/s, 18% of the time waiting for data; "
        "ended by max_epochs",
    ]


def test_the_report_of_a_run_whose_last_epoch_is_its_best(capsys):
    lines = printed(capsys, Result([FIRST, LAST], LAST, "patience"), {}, "nme")
    assert lines[0] == "best and last, epoch 1"
    assert lines[2] == "nme 0.7500"
    assert lines[-1].endswith("ended by patience")


def test_the_report_of_a_run_without_validation(capsys):
    only = record(0, 5, 0.5, 1.0, 100.0)
    lines = printed(capsys, Result([only], None), {"the mean": {"loss": 1.0}}, None)
    assert lines[0] == "last, epoch 0 the mean"
    assert lines[1] == "training loss 0.5000"
    assert lines[2] == "no validation, as dataset.val is null; the last checkpoint is the result"
    assert not any("ratio" in line for line in lines)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "sample", "1 sample"),
        (2, "sample", "2 samples"),
        (0, "batch", "0 batches"),
        (1, "batch", "1 batch"),
        (1234, "worker process", "1,234 worker processes"),
    ],
)
def test_counts(number, noun, text):
    assert outcome._count(number, noun) == text


@pytest.mark.parametrize(
    ("backend", "workers", "auto", "alone", "text"),
    [
        ("main", 3, None, True, "in this process, between the steps (loader.num_workers=0)"),
        ("process", 0, None, True, "in this process, between the steps (loader.num_workers=0)"),
        ("process", 1, None, True, "1 worker process"),
        ("process", 2, None, False, "2 worker processes a rank"),
        ("process", 2, object(), True, "2 worker processes, to begin with"),
    ],
)
def test_workers(backend, workers, auto, alone, text):
    options = LoaderOptions(backend, workers, auto=auto)
    train = SimpleNamespace(options=options, executor="worker process")
    assert outcome._loader(train, SimpleNamespace(alone=alone)) == text


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_models(alone, compiles):
    model = nn.Linear(9, 100)
    trainer = SimpleNamespace(compile=compiles, precision="bf16")
    config = SimpleNamespace(trainer=trainer, distributed=SimpleNamespace(strategy="ddp"))
    group = SimpleNamespace(alone=alone, world=SimpleNamespace(size=4))
    end = f"bf16{', compiled' if compiles else ''}, on cpu{'' if alone else ', ddp over 4 ranks'}"
    assert outcome._model(config, model, "cpu", group) == f"Linear: 1,000 parameters, {end}"
    model.bias.requires_grad = False
    found = outcome._model(config, model, "cpu", group)
    assert found == f"Linear: 1,000 parameters, 900 of them trained, {end}"


def test_rows_that_are_left_out():
    splits = [
        SimpleNamespace(name="train", left_out={"a filter": 1200, "a list": 1}),
        SimpleNamespace(name="val", left_out={}),
        SimpleNamespace(name="test", left_out={"a list": 2}),
    ]
    data = SimpleNamespace(splits=splits)
    assert outcome._left_out(data) == "train: 1,200 by a filter, 1 by a list; test: 2 by a list"
    assert outcome.left_out(SimpleNamespace(splits=splits[1:2])) == {}


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({}, "10 samples/s  7% waiting"),
        ({"tokens_per_second": 1500.0}, "1,500 tokens/s  7% waiting"),
        ({"rank_wait_share": 0.25}, "7% waiting  25% waiting for other ranks"),
        (
            {
                "rank_wait_share": 0.25,
                "rank_wait_share_by_cost": 0.1,
                "rank_wait_share_contiguous": 0.5,
            },
            "25% waiting for other ranks (by cost 10%, contiguous 50%)",
        ),
        ({"shared_batches": 3.0}, "7% waiting  3 batches of other runs"),
    ],
)
def test_a_record_in_a_line(more, end):
    values = {"samples_per_second": 10.0, "wait_share": 0.07, "lr": 1.0, "val/a/b": 2.0}
    found = describe({"train/loss": 0.5, **values, **more})
    assert found.startswith("train/loss 0.5  ")
    assert "a/b" not in found
    assert found.endswith(end)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "0.0010"),
        (-0.001, "-0.0010"),
        (0.00012345, "0.000123"),
        (12.0, "12.0000"),
        (math.nan, "nan"),
    ],
)
def test_small_numbers_of_a_table(value, text, capsys):
    print_table({"a": {"x": value}, "b": {}}, None)
    assert capsys.readouterr().out.splitlines()[1].split() == ["x", text]


def test_the_metric_of_a_run():
    trainer = SimpleNamespace(monitor="val/nme", mode="max")
    config = SimpleNamespace(trainer=trainer)
    assert monitored(config, None) == ("nme", "max")
    trainer.monitor = None
    for higher, mode in ((True, "max"), (False, "min"), (None, "max")):
        objective = SimpleNamespace(metrics={"a": SimpleNamespace(higher_is_better=higher)})
        assert monitored(config, objective) == ("a", mode)
    assert monitored(config, SimpleNamespace(metrics={})) == ("loss", "max")


@pytest.mark.parametrize(
    ("train", "val", "steps", "text"),
    [
        (2000, 1, 3, "2,000 samples to train on, 1 to validate; 3 batches of 8 an epoch"),
        (1, 3000, 1, "1 sample to train on, 3,000 to validate; 1 batch of 8 an epoch"),
        (None, None, None, "a stream of samples to train on, a stream to validate; batches of 8"),
        (9, "none", 2, "9 samples to train on, none to validate; 2 batches of 8 an epoch"),
    ],
)
def test_data_in_a_line(train, val, steps, text, monkeypatch):
    monkeypatch.setattr(outcome, "length_of", lambda dataset: dataset.length)
    data = SimpleNamespace(
        train=SimpleNamespace(dataset=SimpleNamespace(length=train)),
        val=SimpleNamespace(dataset=SimpleNamespace(length=val)),
        validates=val != "none",
    )
    plan = SimpleNamespace(steps=[steps].__getitem__, batch_size=8)
    assert outcome._data(data, SimpleNamespace(plan=plan)) == f"SimpleNamespace: {text}"
