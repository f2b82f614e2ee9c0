"""What is seen of a dataset's content, whoever makes the batches, and what that leaves alone."""

import os
import random

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import IterableDataset

from penstock.errors import DataError
from penstock.loading.bad_samples import BadSamples
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch, batch_hash
from penstock.loading.known_by import CONTENT, FINGERPRINT, KNOWN_BY, agree, other_rows, parsed
from penstock.loading.known_by import relation as related
from penstock.loading.loader import Loader
from penstock.loading.sampled_rows import ROWS, SampleRequest
from penstock.loading.stream_fetch import StreamFetch
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential
from penstock.order.streams import StreamOrder, StreamPlan

LENGTH = 100
BACKENDS = (
    LoaderOptions(),
    LoaderOptions("process", 2, multiprocessing_context="fork"),
    LoaderOptions("process", 1, persistent_workers=True, multiprocessing_context="fork"),
    LoaderOptions("thread", 2),
)


class Rows:
    """`read` holds the rows in the order in which this process has read them."""

    def __init__(self, bad=(), dies=(), draws=""):
        self.bad, self.dies, self.draws, self.read = bad, dies, draws, []
        self.own = np.random.default_rng() if draws == "own" else None

    def __len__(self):
        return LENGTH

    def __getitem__(self, row):
        self.read.append(row)
        if row in self.bad:
            raise DataError("a bad row")
        if row in self.dies and torch.utils.data.get_worker_info():
            os._exit(3)
        noise = {
            "": lambda: 0.0,
            "torch": lambda: float(torch.rand(())),
            "python": random.random,
            "numpy": np.random.rand,
            "own": lambda: self.own.random(),
            "system": lambda: float(os.urandom(1)[0]),
        }[self.draws]()
        return {"x": torch.tensor([float(row), noise])}


def loader(dataset, options=None, order=None, sampled=True, bad=None):
    order = order or Random(len(dataset), 3)
    fetch = Fetch(dataset, None, Stack(), 3, hashed=True, bad=bad or BadSamples())
    sample = SampleRequest.of(len(dataset)) if sampled else None
    return Loader(Plan(order, 10), fetch, options, sample=sample)


def epoch(made):
    with made:
        return [batch_hash([batch]) for batch in made.epoch(0)], made.seen


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", BACKENDS, ids=lambda one: f"{one.backend}{one.num_workers}")
@pytest.mark.parametrize("draws", ["", "torch"])
def test_everybody_sees_the_same_and_batches_stay_as_they_are(options, draws):
    hashes, seen = epoch(loader(Rows(draws=draws), options))
    plain, nothing = epoch(loader(Rows(draws=draws), sampled=False))
    assert hashes == plain
    assert nothing is None
    assert seen == epoch(loader(Rows(draws=draws)))[1]
    assert list(parsed(seen["rows"])) == [str(row) for row in SampleRequest.of(LENGTH).indices]
    with loader(Rows(draws=draws), options) as made:
        assert made.look() == seen
        assert [batch_hash([batch]) for batch in made.epoch(0)] == plain


@pytest.mark.parametrize("draws", ["python", "numpy", "own"])
def test_what_a_row_draws_is_keyed_and_the_generators_of_the_process_stay(draws):
    hashes, seen = epoch(loader(Rows(draws=draws)))
    assert hashes == epoch(loader(Rows(draws=draws), sampled=False))[0]
    with loader(Rows(draws=draws)) as made:
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        assert made.look() == seen
        assert random.getstate() == before[0]
        assert np.random.get_state()[1].tolist() == before[1]
        assert torch.equal(torch.get_rng_state(), before[2])
    assert len(parsed(seen["rows"])) == ROWS


def test_rows_that_are_others_when_they_are_read_again_say_nothing():
    with loader(Rows(draws="system")) as made:
        assert made.look() == {}


def test_the_first_batch_comes_before_any_row_is_looked_at():
    dataset = Rows()
    with loader(dataset, order=Sequential(LENGTH)) as made:
        batches = made.epoch(0)
        next(batches)
        assert max(dataset.read) == 9
        assert made.seen is None
        next(batches)
        assert made.seen is not None
        count = len(dataset.read)
        assert len(list(batches)) == 8
        assert len(dataset.read) == count + 80  # once, and nothing for each batch


def test_a_row_that_cannot_be_read_is_left_out_and_ends_nothing():
    rows = SampleRequest.of(LENGTH).indices.tolist()
    bad = BadSamples("raise", None, {rows[5]: "known"})
    dataset = Rows(bad=[rows[1], rows[3]])
    with loader(dataset, bad=bad) as made:
        seen = parsed(made.look()["rows"])
    assert rows[5] not in dataset.read
    assert list(seen) == [str(row) for n, row in enumerate(rows) if n not in (1, 3, 5)]


def test_a_worker_that_dies_of_it_costs_a_warning(caplog):
    dataset = Rows(dies=[LENGTH - 1])
    options = LoaderOptions("process", 1, multiprocessing_context="fork", max_deaths=1)
    order = Sequential(LENGTH - 10)
    hashes, seen = epoch(loader(dataset, options, order))
    assert seen == {}
    assert hashes == epoch(loader(Rows(), order=order))[0]
    assert "the content of the dataset is not known" in caplog.text


class Lines(IterableDataset):
    """Reads one file, which is opened when this is made, as people write it."""

    def __init__(self, path):
        self.file = open(path)  # noqa: SIM115

    def __iter__(self):
        self.file.seek(0)
        return ({"x": torch.tensor(float(line))} for line in self.file)


@pytest.mark.parametrize("options", BACKENDS[:1] + BACKENDS[2:3], ids=["main", "process"])
def test_a_stream_is_known_by_its_first_records_and_read_on_where_it_was(options, tmp_path):
    def streamed(values, sampled=True):
        path = tmp_path / "lines"
        path.write_text("".join(f"{value}\n" for value in values))
        order, lines = StreamOrder(3), Lines(path)
        fetch = StreamFetch(lines, None, Stack(), 3, hashed=True, order=order, batch_size=10)
        sample = SampleRequest.of(None) if sampled else None
        with lines.file:
            return epoch(Loader(StreamPlan(order, 10, "keep"), fetch, options, sample=sample))

    plain, _ = streamed(range(55), sampled=False)
    hashes, seen = streamed(range(55))
    assert hashes == plain
    assert list(parsed(seen["rows"])) == [str(row) for row in range(ROWS)]
    _, other = streamed([-1, *range(1, 55)])
    assert other_rows(seen["rows"], other["rows"]) == ["0"]


def test_a_table_and_the_files_are_seen_too(tmp_path):
    class Told(Rows):
        label = 0

        @property
        def metadata(self):
            return pd.DataFrame({"label": [self.label] * LENGTH, "name": ["a"] * LENGTH})

        def data_files(self):
            return [("a", str(tmp_path / "a"))]

    (tmp_path / "a").write_text("a")
    dataset = Told()
    first = loader(dataset).look()
    dataset.label = 1
    other_table = loader(dataset).look()
    (tmp_path / "a").write_text("ab")
    other_file = loader(dataset).look()
    assert first["table"] != other_table["table"] == other_file["table"]
    assert first["files"] == other_table["files"] != other_file["files"]


def test_a_table_of_a_million_rows_takes_little_time():
    class Long(Rows):
        metadata = pd.DataFrame({"label": np.arange(10**6), "name": ["x"] * 10**6})

        def __len__(self):
            return 10**6

    assert "table" in loader(Long()).look()


def test_what_one_run_lacks_is_no_difference():
    rows = "dataset.identity.rows"
    code = "dataset.identity.code.mine"
    fold = "dataset.identity.arguments.fold"
    assert agree(rows, {rows: "1:aa 2:bb"}, {rows: "2:bb 3:cc"})
    assert not agree(rows, {rows: "1:aa 2:bb"}, {rows: "2:bc 3:cc"})
    assert agree(rows, {rows: "1:aa", code: "x"}, {code: "x"})
    assert agree(code, {"dataset": "12"}, {code: "x"})  # of a version before this
    assert not agree(fold, {code: "x"}, {code: "x", fold: "1"})
    assert not agree("dataset", {"dataset": "12"}, {})


def test_data_is_the_same_by_a_fingerprint_alone():
    def data(train, by=FINGERPRINT, **facts):
        return {
            "fingerprint": "sizes",
            "train": train,
            "identity": {"train": {KNOWN_BY: by, **facts}},
        }

    old = {"fingerprint": "sizes", "train": "100"}
    assert related(data("abc"), data("abc")).same is True
    assert related({**old, "train": "abc"}, {**old, "train": "abc"}).same is True
    assert related(data("abc", **{"code.mine": "1"}), data("abc", **{"code.mine": "2"})).keys == (
        "code.mine",
    )
    assert related(data("100", CONTENT), data("101", CONTENT)).keys == ("length",)
    seen = related(data("100", CONTENT, rows="1:a 2:b"), data("100", CONTENT, rows="1:a 2:b"))
    assert (seen.same, seen.alike) == (None, True)
    assert "not known to be the same (2 of its rows were compared)" in seen.why
    assert related(old, data("100", CONTENT)).alike
    assert related(data("x", CONTENT), data("x", CONTENT)).same is None  # of a mixture
    assert related(data("abc", **{"code.mine": "unknown"}), data("abc")).same is not True
    assert related(None, data("abc")).same is None
    damaged = related({"train": [1], "identity": 3}, {"train": [1], "identity": {"train": 4}})
    assert damaged.same is None
