"""Epochs without a batch, and datasets whose length is none or changes: refused with the cause."""

import re

import pytest
import torch

from penstock.errors import DataError
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan, length_of
from penstock.order.samplers import Sequential
from penstock.training.loop import validate
from tests.support.few_rows import Records, Rows, words
from tests.support.program import run


class NoSampler(torch.utils.data.Sampler):
    """One of torch's kind that gives nothing."""

    def __init__(self, data_source):
        self.length = 0

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


@pytest.fixture(autouse=True)
def trusted(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.chdir(tmp_path)


EMPTY = [
    ({"rows": 0}, [], "dataset: Rows has no rows for the train split"),
    (
        {"rows": 3},
        ["batch.tail=drop"],
        "batch.size: 4 is more than Random can fill with the 3 samples",
    ),
    (
        {"rows": 3},
        ["batch.tail=drop", "sampler=bucket"],
        "batch.size: 4 is more than Bucket can fill with the 3 samples",
    ),
    ({"rows": 1}, ["sampler=repeated"], "sampler.times: 2 repetitions do not fit"),
    ({}, ["sampler=subset", "sampler.fraction=0.01"], "sampler.fraction: "),
    (
        {},
        ["sampler=subset", "sampler.fraction=null", "sampler.indices=[]"],
        "sampler.indices: indices=[] and fraction=None choose none of 8 rows",
    ),
    (
        {},
        ["~sampler", f"+sampler={{_target_: {__name__}.NoSampler}}"],
        "sampler: NoSampler gives none of the dataset's 8 rows",
    ),
    ({"kind": Records, "rows": 0}, [], "dataset: epoch 0 of Records has no sample"),
    (
        {"kind": Records, "rows": 3},
        ["batch.tail=drop"],
        "batch.tail: epoch 0 of Records has no full batch of 4; set batch.tail=keep",
    ),
    (
        {"kind": Records, "rows": 3},
        ["batch.tail=drop", "loader.num_workers=1", "loader.backend=process"],
        "batch.tail: epoch 0 of Records has no full batch of 4; set batch.tail=keep",
    ),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("given", "more", "message"), EMPTY)
def test_an_epoch_without_a_batch_is_refused_with_the_cause(given, more, message, capsys, tmp_path):
    for task in ("fit", "digest"):
        done = run(capsys, f"task={task}", *words(**given), *more)
        assert done.code == 2, (task, done.out, done.err)
        assert done.err.count(message) == 1, (task, done.err)
        assert done.err.count("error in the configuration") == 1, done.err
        assert done.out == ""
        assert not (tmp_path / "run").exists()


@pytest.mark.one_in(30)
@pytest.mark.parametrize("task", ["lr_find", "profile", "check", "replay", "where sample=0"])
@pytest.mark.parametrize(("given", "more", "message"), EMPTY)
def test_so_it_is_by_every_other_task(given, more, message, task, capsys, tmp_path):
    kind = given.get("kind", Rows)
    if kind is Records and (task != "lr_find" and (task != "check" or given["rows"])):
        pytest.skip("it reads no epoch of a stream, or one without a tail")
    done = run(capsys, *f"task={task}".split(), *words(**given), *more)
    assert done.code == 2, (done.out, done.err)
    assert not (tmp_path / "run").exists()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("more", [[], ["trainer.baseline=false"]])
@pytest.mark.parametrize("kind", [Rows, Records])
def test_a_split_of_validation_without_rows_is_refused(kind, more, capsys, tmp_path):
    done = run(capsys, *words(kind, val_rows=0), *more)
    assert done.code == 2, done.err
    assert re.search(
        rf"dataset: .*\b{kind.__name__} has no (sample|rows .*validate=false)", done.err
    )
    assert not (tmp_path / "run").exists()


def test_a_validation_that_measures_nothing_is_an_error():
    class Nothing:
        validates_loss, named = True, {}

        def measure(self, model, batch):
            return torch.zeros(0), None

        def to(self, device):
            return self

        reset = update = compute = lambda *_: {}

    fetch = Fetch(Rows(), None, Stack(), 0)
    loader = Loader(Plan(Sequential(8), 4), fetch, LoaderOptions("process", 0))
    with loader, pytest.raises(DataError, match="validation has nothing to measure"):
        validate(torch.nn.Identity(), Nothing(), loader)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("length", [2**63, -1])
@pytest.mark.parametrize("kind", [Rows, Records])
def test_what_is_no_number_of_rows_is_named(length, kind, monkeypatch, capsys):
    monkeypatch.setattr(kind, "__len__", lambda self: length, raising=False)
    done = run(capsys, "task=digest", *words(kind))
    assert done.code == 3, done.err
    assert f"{kind.__name__}.__len__: " in done.err
    assert "Traceback" not in done.err


def test_a_length_that_a_class_refuses_to_tell_is_unknown():
    class Silent(Records):
        def __len__(self):
            raise TypeError("streams have no length")

    assert length_of(Silent()) is None
    assert length_of(Records()) is None
    assert length_of([1, 2]) == 2
