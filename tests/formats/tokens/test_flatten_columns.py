"""Token lists of a table are concatenated from its columns, as from its samples."""

import numpy as np
import pytest
import torch

from penstock.addons.tables.table import MappedTable
from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.datasets.reading.base import Shares
from penstock.loading.bad_samples import BadSamples
from penstock.loading.fetch import Fetch
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from tests.support.gathering import assert_same, by_sample, gathers, made
from tests.support.table_files import pa, write

ROWS, BLOCK = 60, 32


@pytest.fixture
def data(tmp_path):
    draws = np.random.default_rng(0)
    lengths = draws.integers(0, 50, ROWS)
    rows = [draws.integers(0, 9000, length).tolist() for length in lengths]
    table = {
        "tokens": pa.array(rows, pa.list_(pa.int32())),
        "mask": pa.array([[token % 2 for token in row] for row in rows], pa.list_(pa.int8())),
        "label": pa.array(range(ROWS)),
        "note": pa.array([f"row {row}" for row in range(ROWS)]),
    }
    write(tmp_path / "x.parquet", pa.table(table), group=7)
    return MappedTable(str(tmp_path), shares=Shares(0.0)), lengths


def requests_of(sampler, size):
    plan = Plan(sampler, size)
    return [plan.request(0, step) for step in range(len(plan))]


def packed(lengths, **options):
    return requests_of(SequencePacking(ROWS, 0, None, 4, BLOCK, column=lengths, **options), 4)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("pad_to", [None, 50])
@pytest.mark.parametrize("way", ["random", "never", "tail"])
def test_batches_are_those_of_the_samples(data, way, pad_to, labels, monkeypatch):
    data, lengths = data
    work = Fetch(data, None, Flatten(fields=["mask"], labels=labels, pad_to=pad_to, value=7), 0)
    requests = requests_of(Random(ROWS, 3), 8) if way == "random" else packed(lengths, split=way)
    assert gathers(work, monkeypatch)
    batches = made(work, requests)
    assert_same(batches, by_sample(work, requests))
    assert not [batch for batch in batches if isinstance(batch, str)]
    assert batches[0]["tokens"].dtype == torch.int32
    if way != "random":
        assert {row for batch in batches for row in batch["label"].tolist()} == {*range(ROWS)}


@pytest.mark.parametrize("bad", [BadSamples(), BadSamples("skip")])
def test_lengths_that_are_not_those_of_the_rows(data, bad):
    data, lengths = data
    work = Fetch(data, None, Flatten(), 0, bad=bad)
    requests = packed(lengths + (np.arange(ROWS) == 9))
    errors = made(work, requests)
    assert_same(errors, by_sample(work, requests))
    assert sum("the column of lengths says" in str(error) for error in errors) >= 1


def test_rows_of_one_length_are_a_block_each():
    batch = Flatten(pad_to=4, value=-1).together({"tokens": torch.arange(6).reshape(2, 3)})
    assert batch["tokens"].tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    assert batch["document_ids"].tolist() == [[0, 0, 0, -1], [1, 1, 1, -1]]


class Own(Flatten):
    def __call__(self, samples, parts=None):
        return {"count": len(samples)}


def test_a_class_of_ones_own_gets_samples(data):
    data, _ = data
    batch, *_ = made(Fetch(data, None, Own(), 0), requests_of(Random(ROWS, 3), 8))
    assert dict(batch) == {"count": 8}
