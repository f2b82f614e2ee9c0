"""Records of a stream by position: the same from anywhere, and no more of it read than needed."""

import logging
import random

import numpy as np
import pytest

from penstock.files.batch_bytes import BatchTooLargeError
from penstock.loading.stream_fetch import RecordNumbers, StreamReader
from penstock.order.randomness import GLOBAL
from penstock.order.streams import StreamOrder

MUCH = 1 << 30
LENGTHS = [3, 0, 5, 2, 1]


class Forwards:
    """Eleven records, numbered; `opened`: where reading began."""

    def __init__(self, claimed=11):
        self.opened, self.epochs, self.claimed = [], [], claimed

    def __len__(self):
        return self.claimed

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        self.opened.append(0)
        yield from range(11)


class Seekable(Forwards):
    def seek(self, record):
        self.opened.append(record)
        yield from range(record, 11)


class Shards(Forwards):
    """Five shards of eleven records; a record is its row."""

    firsts = (0, 3, 3, 8, 10)

    def shards(self):
        return [0, 1, 2, 3, 4]

    def read_shard(self, shard, start):
        self.opened.append((shard, start))
        yield from range(self.firsts[shard] + start, self.firsts[shard] + LENGTHS[shard])


class Measured(Shards):
    def shard_lengths(self):
        return LENGTHS


def values(records):
    return [value for _, value in records]


@pytest.mark.parametrize("kind", [Forwards, Seekable, Shards, Measured])
@pytest.mark.parametrize(("buffer", "shuffled"), [(0, False), (4, False), (0, True), (4, True)])
def test_any_stretch_of_any_epoch_has_the_records_of_its_positions(kind, buffer, shuffled):
    order = StreamOrder(7, buffer, shuffle_shards=shuffled)
    numbers, reader = RecordNumbers(order, LENGTHS), StreamReader(kind(), order, MUCH)
    shards = issubclass(kind, Shards)
    for epoch in (0, 3, 0):
        whole = numbers.at(epoch, 0, 99)
        assert sorted(whole.tolist()) == list(range(11))
        assert sorted(numbers.rows(epoch, np.arange(11)).tolist()) == list(range(11))
        for start, stop in (
            (0, 2),
            (2, 6),
            (8, 9),
            (4, 5),
            (9, 99),
            (11, 12),
            (20, 30),
            (5, 5),
            (0, 11),
        ):
            expected = whole[start:stop]
            assert numbers.at(epoch, start, stop).tolist() == expected.tolist()
            if shards:
                expected = numbers.rows(epoch, expected)
            read = reader.read(epoch, start, stop, GLOBAL)
            assert values(read) == expected.tolist()
            if not shards and not buffer:
                assert read == [(n, n) for n in expected.tolist()]


def test_numbers_are_those_of_shards_in_the_epochs_order():
    order = StreamOrder(7, shuffle_shards=True)
    shards = order.shards(3, 5).tolist()
    assert shards != sorted(shards)
    rows = [
        row
        for shard in shards
        for row in range(Shards.firsts[shard], Shards.firsts[shard] + LENGTHS[shard])
    ]
    assert RecordNumbers(order, LENGTHS).rows(3, np.arange(11)).tolist() == rows


@pytest.mark.parametrize(
    ("kind", "opened"),
    [
        (Forwards, [0, 0, 0]),
        (Seekable, [0, 5, 2, 0]),
        (Shards, [(0, 0), (1, 0), (2, 0), (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 0)]),
        (Measured, [(0, 0), (2, 2), (0, 2), (1, 0), (2, 0), (3, 0), (4, 0), (0, 0)]),
    ],
)
def test_no_more_is_read_than_needed(kind, opened):
    dataset = kind()
    reader = StreamReader(dataset, StreamOrder(7), MUCH)
    for start, stop in ((0, 2), (5, 6), (6, 7), (2, 12), (11, 13), (12, 14)):
        assert values(reader.read(1, start, stop, GLOBAL)) == list(range(start, min(stop, 11)))
    assert values(reader.read(2, 0, 1, GLOBAL)) == [0]
    assert dataset.epochs == [1, 2]
    assert dataset.opened == opened


def test_a_block_is_read_once():
    dataset, order = Forwards(), StreamOrder(7, buffer=4)
    reader = StreamReader(dataset, order, MUCH)
    for position in range(11):
        reader.read(0, position, position + 1, GLOBAL)
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
        assert values(StreamReader(dataset, StreamOrder(7), MUCH).read(0, 0, 2, GLOBAL)) == [1, 2]
    assert dataset.number == 0


@pytest.mark.parametrize("claimed", [11, 12])
def test_a_stream_that_ends_elsewhere_than_it_says_is_told(claimed, caplog):
    reader = StreamReader(Forwards(claimed), StreamOrder(7), MUCH)
    with caplog.at_level(logging.WARNING):
        reader.read(0, 0, 11, GLOBAL)
        assert not caplog.messages
        reader.read(0, 10, 12, GLOBAL)
    expected = [] if claimed == 11 else ["Forwards says it has 12 records, but gave 11"]
    assert caplog.messages == expected


class Drawn(Shards):
    def read_shard(self, shard, start):
        for _ in range(2):
            yield shard, random.random()


def test_draws_while_reading_depend_on_the_shard_alone_and_move_nobody_elses():
    def read(*stretches):
        reader = StreamReader(Drawn(), StreamOrder(7), MUCH)
        records = []
        for start, stop in stretches:
            random.seed(start)
            before = random.getstate()
            records += values(reader.read(4, start, stop, GLOBAL))
            assert random.getstate() == before
        return records

    whole = read((0, 10))
    assert len(set(whole)) == 10
    assert read((0, 1), (1, 4), (4, 5), (5, 10)) == whole
    assert read((3, 6)) == whole[3:6]


class Large(Forwards):
    def __iter__(self):
        yield from (bytes(100) for _ in range(20))


def test_records_that_take_too_much_are_refused_with_what_to_reduce():
    assert len(StreamReader(Large(), StreamOrder(7), 1000).read(0, 0, 10, GLOBAL)) == 10
    reader = StreamReader(Large(), StreamOrder(7), 1000)
    assert len(reader.read(0, 9, 19, GLOBAL)) == 10  # those before are not kept
    for start, count in ((0, 11), (3, 14)):
        reader = StreamReader(Large(), StreamOrder(7), 999)
        with pytest.raises(BatchTooLargeError) as caught:
            reader.read(0, start, start + count, GLOBAL)
        assert str(caught.value).startswith(f"{count} raw records would take {100 * count} bytes, ")
        assert "reduce batch.size or sampler.buffer" in str(caught.value)
