"""Marks of data, rows that take long, requests of workers, samples that are made again."""

import hashlib
import os
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.errors import DataError
from penstock.loading import sampled_rows, slow_rows
from penstock.loading.batch import Batch
from penstock.loading.known_by import PLACE, agree, named, relation
from penstock.loading.named_fields import Fields
from penstock.loading.repeatable import Again
from penstock.loading.sampled_rows import SampleRequest, _spread, seen_of
from penstock.loading.slow_rows import SlowRows, slow_among
from penstock.loading.transfer import Buffers
from penstock.loading.workers.request_queue import RequestQueue, anonymous_file
from penstock.loading.workers.window import Task
from penstock.order.plan import Request
from tests.loading.rows import Draws, Many, Rows


def request(rows, valid=None, parts=None):
    rows = np.array(rows)
    count = len(rows)
    return Request(
        2, 3, np.arange(count) + 10, rows, count if valid is None else valid, parts=parts
    )


@pytest.mark.parametrize(
    ("length", "count", "rows"),
    [
        (0, 16, [0]),
        (1, 16, [0]),
        (3, 16, [0, 1, 2]),
        (16, 16, [*range(16)]),
        (9, 3, [0, 4, 8]),
        (100, 2, [0, 99]),
    ],
)
def test_rows_are_spread_from_the_first_to_the_last(length, count, rows):
    assert _spread(length, count).tolist() == rows
    assert SampleRequest.of(3).address == (0, -1)
    assert SampleRequest.of(None).indices.tolist() == [*range(16)]


def digest(*parts):
    data = b"".join(b"%d;" % len(part) + part for part in parts)
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Column:
    """A column of a table, as pandas has them."""

    def __init__(self, values):
        self.iloc = np.array(values)

    def __len__(self):
        return len(self.iloc)

    def __array__(self, dtype=None, copy=None):
        return self.iloc


def test_a_table_is_hashed_by_values_and_a_long_one_by_some(monkeypatch, tmp_path):
    monkeypatch.setattr(sampled_rows, "_MOST_VALUES", 4)
    columns = {
        "all": [1, 2, 3, 4],
        "some": [0, 1, 2, 3, 4, 5, 6],
        "text": ["a", None, object(), b"c"],
    }
    table = type(
        "Table",
        (),
        {
            "columns": [*columns],
            "__getitem__": lambda _, name: Column(
                columns[name] if name != "text" else np.array(columns[name], dtype=object)
            ),
        },
    )()
    (tmp_path / "7").write_text("abc")
    dataset = SimpleNamespace(metadata=table, path=lambda row: tmp_path / str(row))
    seen = seen_of(dataset, Fields(), [lambda: b"\1" * 20, lambda: b"\2" * 20], [7, 8])
    assert seen["rows"] == f"7:{'01' * 8} 8:{'02' * 8}"
    assert seen["table"] == digest(
        b"all 4 int64",
        np.array([1, 2, 3, 4]).tobytes(),
        b"some 7 int64",
        np.array([0, 2, 4, 6]).tobytes(),
        b"text 4 object",
        b"a\0None\0object\0b'c'",
    )
    assert seen["files"] == digest(b"7\0" + b"3", b"8\0")
    plain = seen_of(object(), Fields(), [], [])
    assert plain == {}


def test_rows_that_take_long_are_far_above_the_median_of_four():
    rows = np.array([7, 8, 9, 5])
    assert slow_among(rows[:3], 0.0, [0.001, 0.002, 1.0]) == ()
    assert slow_among(rows, 0.0, [0.001, 0.002, 0.003, 1.0]) == (5,)
    assert slow_among(rows, 100.0, [100.001, 100.002, 100.003, 100.01]) == ()
    sixteenth = 1 / 16  # eight times it is no more than eight times
    assert slow_among(rows, 0.0, [sixteenth, 2 * sixteenth, 3 * sixteenth, 11 * sixteenth]) == ()


def test_so_many_slow_rows_are_remembered(monkeypatch):
    monkeypatch.setattr(slow_rows, "_MOST", 3)
    slow = SlowRows()
    slow.note(Batch({}, request([1, 2]), np.arange(2), slow=(1, 2)))
    slow.note(Batch({}, request([3, 4, 5]), np.arange(3), slow=(3, 4, 5)))
    assert slow._rows == {1, 2, 3}
    slow.note(Batch({}, request([6]), np.arange(1), slow=(6,)))
    assert slow._rows == {1, 2, 3}
    assert SlowRows([1.0] * 9 + [9.0, 50.0, 20.0, 30.0])._rows == {10, 11, 12}


@pytest.fixture
def queue():
    made = RequestQueue(get_context("fork"), 2)
    yield made
    made.close()


def test_requests_lie_in_blocks_of_their_size(queue):
    head = len(ForkingPickler.dumps(b"x" * 3000)) - 3000
    for size, end in ((100, 4096), (4096, 8192), (4097, 16384), (8192, 24576), (8193, 40960)):
        queue.put(Task(b"x" * (size - head) if size > 100 else b""))
        assert queue._end == end
    assert [len(queue.reader.take(0)) for _ in range(3)] == [0, 4096 - head, 4097 - head]


def test_some_requests_are_taken_back_and_late_claims_are_known(queue):
    asked = [Task(number) for number in range(5)]
    for task in asked:
        queue.put(task)
    assert queue.take_back(0) == []
    assert queue.take_back(2) == asked[:2]
    assert queue.reader.take(1) == 2  # it is noted after the owner has looked
    assert queue.take_back() == asked[3:]
    assert queue.lost() == asked[2:3]
    assert queue.claimed(1) == asked[2:3]
    assert queue.claimed(1) == queue.claimed(0) == []
    queue.put(asked[0])
    queue.put_first([asked[4]])
    assert [queue.reader.take(0) for _ in range(3)] == [4, 0, None]


def test_a_file_without_a_name_holds_what_is_written(monkeypatch):
    if hasattr(os, "memfd_create"):
        number = anonymous_file()
        assert "memfd:penstock" in str(Path(f"/proc/self/fd/{number}").readlink())
        os.close(number)
        monkeypatch.delattr(os, "memfd_create")
    number = anonymous_file()
    os.pwrite(number, b"abc", 2)
    assert os.pread(number, 9, 0) == b"\0\0abc"
    assert os.fstat(number).st_nlink == 0
    os.close(number)


def again(dataset, steps=None, many=False):
    keys = [1, 2, 3]
    return Again(request([4, 5, 6]), dataset, many, lambda one: one, steps or {}, keys, Draws())


def as_bytes(value):
    if isinstance(value, str):
        raise DataError("no hash")
    return str(value).encode()


class Counter:
    """A step whose result depends on how often it was called."""

    calls = 0

    def __call__(self, sample):
        self.calls += 1
        return {**sample, "count": self.calls}


def in_place(sample):
    sample["x"] += 1
    return sample


class Kept(Rows):
    """Hands out the very tensors that it keeps."""

    def __init__(self):
        self.kept = {row: {"x": torch.zeros(1)} for row in range(9)}

    def __getitem__(self, row):
        return self.kept[row]


class Shared:
    """A step that keeps what it gives, so that a later one writes into it."""

    held = torch.zeros(1)

    def __call__(self, sample):
        return {"x": self.held}


@pytest.mark.parametrize("many", [False, True])
def test_samples_that_are_the_same_again_are_no_difference(many):
    dataset = Many()
    samples = [dataset[row] for row in (4, 5, 6)]
    check = again(dataset, many=many)
    assert check.difference(samples, (), as_bytes) == ""
    wrong = [samples[0], {"x": 1}, {"x": 2}]
    said = check.difference(wrong, (), as_bytes)
    assert said.startswith(
        "sample 5 (epoch 2, position 11) has another 'x' when it is made again, though none of its"
        " steps shows it alone. Something"
    )
    assert check.difference(wrong, (1,), as_bytes) == ""  # a bad one
    assert check.difference([samples[0], samples[1], {"x": 2}], (), as_bytes) == ""  # the third
    assert check.difference([{"x": "text"}], (), as_bytes) == ""  # of no known type


def test_the_step_that_gives_another_sample_is_named():
    dataset, counter = Rows(), Counter()
    check = again(dataset, {"same": lambda one: one, "counts": counter, "last": lambda one: one})
    said = check.difference([{**dataset[4], "count": 0}], (), as_bytes)
    assert "has another 'count' when it is made again: the transform 'counts' does not give" in said
    check = again(Rows(), {"shares": Shared(), "writes": in_place})
    said = check.difference([{"x": torch.ones(1)}, {"x": torch.ones(1)}], (), as_bytes)
    assert "does not give the same twice" in said


def test_a_step_that_writes_into_what_is_kept_is_named():
    class Once:
        """Writes a constant into the tensor that another step handed on."""

        def __call__(self, sample):
            sample["x"].fill_(3.0)
            return {"y": sample["x"].clone()}

    class Fresh:
        def __call__(self, sample):
            return {"x": torch.zeros(1)}

    check = again(Rows(), {"fresh": Fresh(), "writes": Once()})
    said = check.difference([{"y": torch.zeros(1)}], (), as_bytes)
    assert ": the transform 'writes' changes its sample in place, and the dataset hands out" in said


def test_four_dimensions_with_gaps_are_held_without_them():
    wide = torch.arange(96.0).reshape(2, 3, 4, 4)[:, :, ::2, ::2]
    held = Buffers(pinned=False).hold(wide)
    assert torch.equal(held, wide)
    assert held.is_contiguous()
    last = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert Buffers(pinned=False).hold(last).stride() == last.stride()


def test_an_argument_that_stands_for_a_file_is_no_difference():
    code, fold = "dataset.identity.code.mine", "dataset.identity.arguments.fold"
    assert agree(fold, {code: "x", fold: PLACE}, {code: "x", fold: "a"})
    assert agree(fold, {code: "x", fold: "a"}, {code: "x", fold: PLACE})
    assert not agree(fold, {code: "x", fold: "b"}, {code: "x", fold: "a"})


def run(train, fingerprint="sizes", **facts):
    return {"fingerprint": fingerprint, "train": train, "identity": {"train": facts}}


@pytest.mark.parametrize(
    ("first", "second", "split", "same", "why"),
    [
        (run("a"), run("b"), "val", True, ""),
        (run("a"), {**run("b"), "val": "c"}, "val", None, "the data of a run is not known"),
        ({"val": "c"}, {"val": "c"}, "train", None, "the data of a run is not known"),
        (
            run("a"),
            run("a", "names"),
            "train",
            None,
            "the data was fingerprinted in different ways: sizes, names",
        ),
        (run("abc"), run("100"), "train", False, "other data: fingerprint"),
        (run("100"), run("abc"), "train", False, "other data: length"),
        (
            run("9", rows="1:a 2:b 3:c"),
            run("9", rows="2:b 3:c 4:d 5:e"),
            "train",
            None,
            "the data is not known to be the same (2 of its rows were compared)",
        ),
        (
            run("9", rows="1:a"),
            run("9", rows="2:b"),
            "train",
            None,
            "the data is not known to be the same (none of its rows was compared)",
        ),
    ],
)
def test_the_data_of_two_runs(first, second, split, same, why):
    compared = relation(first, second, split)
    assert compared.same is same
    assert compared.why.partition("; give it")[0] == why


def test_facts_that_differ_are_said_in_words():
    five, six = (
        {"rows": " ".join(f"{n}:{d}" for n in range(count))} for count, d in ((5, "a"), (6, "a"))
    )
    others = [{"rows": facts["rows"].replace("a", "b")} for facts in (five, six)]
    assert named(["rows"], five, others[0]) == "rows 0, 1, 2, 3, 4"
    assert named(["rows"], six, others[1]) == "rows 0, 1, 2, 3, 4, ..."
    longs = {"arguments.root": "a" * 70}, {"arguments.root": "b" * 70}
    assert named(["arguments.root"], *longs) == f"root {'a' * 60} and {'b' * 60}"
    assert named(["arguments.fold", "code.mine", "table"], {"arguments.fold": 1}, {}) == (
        "fold 1 and none; code of mine; table"
    )
