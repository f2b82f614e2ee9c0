"""Records of a stream by position: the same from anywhere, and no more of it read than needed."""

import random

import pytest
import torch

from penstock.errors import DataError
from penstock.loading.bad_samples import BadSamples
from penstock.loading.collate import Stack
from penstock.loading.stream import StreamFetch, StreamReader
from penstock.order.plan import End, StreamOrder, StreamPlan, StreamRequest
from penstock.order.seeding import Seeding, scope

LENGTHS = [3, 0, 5, 2, 1]
STRETCHES = ((0, 2), (2, 6), (8, 9), (4, 5), (9, 99), (11, 12), (20, 30), (5, 5), (0, 11))


class Forwards:
    """Eleven records, numbered; `opened`: where reading began."""

    def __init__(self):
        self.opened, self.epochs = [], []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        self.opened.append(0)
        yield from range(11)


class Shards(Forwards):
    """Five shards of eleven records; a record is its row."""

    firsts = (0, 3, 3, 8, 10)

    def shards(self):
        return [0, 1, 2, 3, 4]

    def read_shard(self, shard):
        self.opened.append(shard)
        yield from range(self.firsts[shard], self.firsts[shard] + LENGTHS[shard])


class Measured(Shards):
    def shard_lengths(self):
        return LENGTHS


def values(records):
    return [*records.values()]


@pytest.mark.parametrize("kind", [Forwards, Shards, Measured])
@pytest.mark.parametrize(("buffer", "shuffled"), [(0, False), (4, False), (0, True), (4, True)])
def test_any_stretch_of_any_epoch_has_the_records_of_its_positions(kind, buffer, shuffled):
    order = StreamOrder(7, buffer, shuffle_shards=shuffled)
    reader = StreamReader(kind(), order)
    for epoch in (0, 3, 0):
        whole = StreamReader(kind(), order).read(epoch, 0, 99)
        assert sorted(values(whole)) == list(range(11))
        assert (buffer > 0) == ([*whole] != list(range(11)))
        for start, stop in STRETCHES:
            records = reader.read(epoch, start, stop)
            assert [*records.items()] == [*whole.items()][start:stop]


def test_shards_are_read_in_the_epochs_order():
    order = StreamOrder(7, shuffle_shards=True)
    shards = order.shards(3, 5).tolist()
    assert shards != sorted(shards)
    rows = [
        row
        for shard in shards
        for row in range(Shards.firsts[shard], Shards.firsts[shard] + LENGTHS[shard])
    ]
    assert values(StreamReader(Shards(), order).read(3, 0, 11)) == rows


@pytest.mark.parametrize(
    ("kind", "opened"),
    [
        (Forwards, [0, 0, 0]),
        (Shards, [0, 1, 2, 0, 1, 2, 3, 4, 0]),
        (Measured, [0, 2, 0, 1, 2, 3, 4, 0]),
    ],
)
def test_no_more_is_read_than_needed(kind, opened):
    dataset = kind()
    reader = StreamReader(dataset, StreamOrder(7))
    for start, stop in ((0, 2), (5, 6), (6, 7), (2, 12), (11, 13), (12, 14)):
        assert values(reader.read(1, start, stop)) == list(range(start, min(stop, 11)))
    assert values(reader.read(2, 0, 1)) == [0]
    assert dataset.epochs == [1, 2]
    assert dataset.opened == opened


def test_a_block_is_read_once():
    dataset, order = Forwards(), StreamOrder(7, buffer=4)
    reader = StreamReader(dataset, order)
    for position in range(11):
        reader.read(0, position, position + 1)
    assert dataset.opened == [0]


class Endless(Forwards):
    """An iterator of its own, as generators are."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        return self.number


def test_an_iterator_is_copied_before_it_is_read():
    dataset = Endless()
    for _ in range(2):
        assert values(StreamReader(dataset, StreamOrder(7)).read(0, 0, 2)) == [1, 2]
    assert dataset.number == 0


class Drawn(Shards):
    def read_shard(self, shard):
        for _ in range(2):
            yield shard, random.random()


def test_draws_while_reading_depend_on_the_shard_alone():
    def read(*stretches):
        reader, seeding = StreamReader(Drawn(), StreamOrder(7)), Seeding()
        records = []
        for start, stop in stretches:
            random.seed(start)
            records += values(reader.read(4, start, stop, seeding))
        return records

    whole = read((0, 10))
    assert len(set(whole)) == 10
    assert read((0, 1), (1, 4), (4, 5), (5, 10)) == whole
    assert read((3, 6)) == whole[3:6]


class Dicts(Forwards):
    """The same records as dicts, which draw nothing."""

    draws = False

    def __iter__(self):
        return ({"x": number} for number in range(11))


@pytest.mark.parametrize(
    ("tail", "request_", "records", "valid"),
    [
        ("keep", StreamRequest(0, 0), [0, 1, 2, 3], 4),
        ("keep", StreamRequest(0, 2), [8, 9, 10], 3),
        ("keep", StreamRequest(0, 3), None, 0),
        ("drop", StreamRequest(0, 1), [4, 5, 6, 7], 4),
        ("drop", StreamRequest(0, 2), None, 0),
        ("pad", StreamRequest(0, 2), [8, 9, 10, 8], 3),
        ("keep", StreamRequest(0, 1, 1, 2), [6, 7], 2),
        ("pad", StreamRequest(0, 2, 1, 2), [10, 8], 1),
    ],
)
def test_a_share_of_a_streams_batch_has_its_records(tail, request_, records, valid):
    fetch = StreamFetch(Dicts(), None, Stack(), 0, plan=StreamPlan(StreamOrder(7), 4, tail))
    batch = fetch(request_)
    if records is None:
        assert batch == End(request_)
        return
    assert batch["x"].tolist() == batch.positions.tolist() == batch.indices.tolist() == records
    assert batch.request.valid == valid
    assert batch.request.total == (4 if tail != "keep" or request_.step < 2 else 3)


class Failing(Dicts):
    """Records of which some cannot be decoded."""

    def __init__(self, *bad):
        super().__init__()
        self.bad = bad

    def decode(self, record):
        if record["x"] in self.bad:
            raise DataError("cut off")
        return record


def test_substitutes_are_others_of_the_batch_and_then_the_first_records():
    def rows(*bad):
        policy = BadSamples("substitute")
        order = StreamOrder(7)
        fetch = StreamFetch(Failing(*bad), None, Stack(), 0, bad=policy, plan=StreamPlan(order, 4))
        return fetch(StreamRequest(0, 1))["x"].tolist()

    first, instead, *rest = rows(5)
    assert (first, rest) == (4, [6, 7])
    assert instead in (4, 6, 7)
    assert rows(4, 5, 6, 7) == [0, 0, 0, 0]
    assert rows(0, 4, 5, 6, 7) == [1, 1, 1, 1]


def brighten(sample):
    """Writes into the record, and draws, which shows only afterwards."""
    sample["x"] += 1
    return {**sample, "drawn": torch.rand(1)}


class Tensors(Forwards):
    def __iter__(self):
        return ({"x": torch.tensor([float(number)])} for number in range(11))


def test_a_batch_that_is_made_again_has_the_records_as_they_were_read():
    fetch = StreamFetch(Tensors(), brighten, Stack(), 0, plan=StreamPlan(StreamOrder(7), 4))
    with scope():
        batches = [fetch(StreamRequest(0, step)) for step in range(3)]
    assert [batch["x"].flatten().tolist() for batch in batches] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11],
    ]
    assert not any("unrepeatable" in batch.warnings for batch in batches)


def test_what_threads_read_after_the_first_batch_leaves_the_loops_generators_alone():
    fetch = StreamFetch(Tensors(), None, Stack(), 0, plan=StreamPlan(StreamOrder(7), 4))
    fetch.first_of_threads(StreamRequest(0, 0))
    with scope():
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        assert len(fetch(StreamRequest(0, 1))) == 1
        assert torch.equal(torch.rand(1), expected)
