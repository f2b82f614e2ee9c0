"""Samples of a request one by one: what they count for, what takes a bad one's place, and which
batches are made at once instead."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from penstock.addons.filters.kept import kept_rows
from penstock.addons.filters.selection import Selection
from penstock.errors import DataError
from penstock.files import batch_bytes
from penstock.files.batch_bytes import BatchBytes, BatchTooLargeError
from penstock.loading import sample_reader
from penstock.loading.bad_samples import BadSampleError, BadSamples
from penstock.loading.collate import List, Pad, Stack
from penstock.loading.compose import Compose
from penstock.loading.encoded import EncodedImage
from penstock.loading.named_fields import Fields
from penstock.loading.sample_reader import Recipe, SampleReader
from penstock.loading.stage_timer import StageTimer
from penstock.loading.whole_batches import WholeBatches, _problem_of, reads_whole
from penstock.order.plan import Request
from tests.loading.rows import Draws, Many, Rows


def recipe(dataset, bad=None, transform=None, collate=None, hashed=False, most_bytes=1000):
    bad = bad or BadSamples()
    return Recipe(dataset, transform, collate or Stack(), hashed, bad, Fields(), most_bytes)


def request(rows, valid=None, parts=None):
    rows = np.array(rows)
    count = len(rows)
    return Request(
        2, 3, np.arange(count) + 10, rows, count if valid is None else valid, parts=parts
    )


def reader(dataset, rows=(4, 5, 6), transform=None, substitutes=(), valid=None, parts=None, **more):
    spare = SimpleNamespace(rows=lambda request, slot: iter(substitutes))
    return SampleReader(
        recipe(dataset, **more),
        request(rows, valid, parts),
        dataset,
        transform,
        Draws(),
        StageTimer(),
        lambda rows: spare,
    )


@pytest.mark.parametrize("kind", [Rows, Many])
def test_a_sample_is_read_and_then_transformed(kind):
    dataset = kind()
    made = reader(dataset, transform=lambda sample: {"x": sample["x"] * 2})
    assert [made.sample(slot)["x"].item() for slot in range(3)] == [8.0, 10.0, 12.0]
    assert made.sample(1, as_read=True)["x"].item() == 5.0
    assert made.sample(1, row=9)["x"].item() == 18.0  # of another row, whatever was read at once
    assert ("read" in made._timer.seconds) == (kind is Rows)
    assert made.is_counted is False
    plain = reader(kind())
    assert plain.sample(2)["x"].item() == 6.0
    assert plain.is_counted == (kind is Many)


def test_rows_are_read_at_once_only_by_datasets_that_do():
    assert recipe(Many()).reads_many
    assert not recipe(Rows()).reads_many
    assert not recipe(Subset(Many(), [1, 2])).reads_many
    assert recipe(Rows(), most_bytes=1000).quick == pytest.approx(5e-8)
    assert recipe(Rows(), most_bytes=10**12).quick == 1e-3


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_one_bad_row_among_many_that_are_read_at_once(on_error):
    dataset = Many(bad=[5])
    if on_error == "raise":
        with pytest.raises(DataError, match="row 5 is bad"):
            reader(dataset, bad=BadSamples("raise"))
        return
    made = reader(dataset, bad=BadSamples("skip"))
    assert made.sample(0)["x"].item() == 4.0
    with pytest.raises(BadSampleError, match="row 5 is bad"):
        made.sample(1)
    assert made.sample(2)["x"].item() == 6.0


def test_what_fails_at_once_alone_ends_the_run():
    class AtOnce(Many):
        def __getitems__(self, rows):
            if len(rows) > 1:
                raise DataError("too many")
            return super().__getitems__(rows)

    with pytest.raises(DataError, match=r"sample 4 .*too many"):
        reader(AtOnce(), bad=BadSamples("skip"))


def test_rows_of_a_quarantine_are_not_read():
    for kind in (Rows, Many):
        dataset = kind()
        made = reader(dataset, bad=BadSamples("skip", None, {5: "known"}))
        with pytest.raises(BadSampleError) as caught:
            made.sample(1)
        assert (caught.value.cause, caught.value.known) == ("known", True)
        assert made.sample(0)["x"].item() == 4.0
        assert 5 not in dataset.read


def test_samples_at_once_are_counted_where_they_took_time(monkeypatch):
    now = iter([0.0, 1.0, 0.0, 5e-8, 0.0, 1.0])
    monkeypatch.setattr(sample_reader, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    for taken in (True, False):  # 12 bytes and 3 dicts; or in no time
        with batch_bytes.bounded(1000) as account:
            account = account or batch_bytes.at_hand()
            reader(Many())
            assert (account.taken > 0) == taken

    class Reserves(Many):
        def __getitems__(self, rows):
            batch_bytes.reserve(7)
            return super().__getitems__(rows)

    with batch_bytes.bounded(1000):
        made = reader(Reserves())
        assert (batch_bytes.at_hand().taken, made._taken) == (7, 7)


def test_a_batch_that_is_too_large_at_once_is_not_tried_one_by_one():
    class Large(Many):
        def __getitems__(self, rows):
            batch_bytes.reserve(5000)

    dataset = Large()
    with batch_bytes.bounded(1000), pytest.raises(BatchTooLargeError, match=r"epoch 2, step 3"):
        reader(dataset, bad=BadSamples("skip"))
    assert dataset.read == []


def test_samples_count_for_what_was_reserved_or_can_have_been_filled(monkeypatch):
    monkeypatch.setattr(sample_reader, "FASTEST", 100.0)
    monkeypatch.setattr(sample_reader, "nbytes", lambda sample: 40)
    monkeypatch.setattr(sample_reader, "held", lambda sample, reserved: reserved + 1)
    made, account = reader(Rows()), BatchBytes(1000)
    account.taken = 30  # reserved for the first
    made.count(["a", "b"], 10.0, [10.5, 10.75], account)
    assert account.taken == 31 + 25  # a quarter of a second at 100 bytes a second
    made.count(["a", "b", "c"], 10.0, [10.5, 10.75, 12.0], account)
    assert account.taken == 56 + 40  # all that it has
    made.count(["a", "b", "c"], 10.0, [10.5, 10.75, 12.0], account)
    assert account.taken == 96
    account.taken = 99  # what was reserved since is nobody's yet
    made.count(["a", "b", "c"], 10.0, [10.5, 10.75, 12.0], account)
    assert account.taken == 99
    first, account = reader(Rows()), BatchBytes(1000)
    first.count(["a"], 10.0, [10.25], account)
    assert account.taken == 25


@pytest.mark.parametrize(("taken", "refused"), [(999, False), (1000, False), (1001, True)])
def test_samples_up_to_one_may_be_too_many(taken, refused):
    made, account = reader(Rows()), BatchBytes(1000)
    account.taken = taken
    if not refused:
        made.check_room(account, 1)
        assert account.taken == taken
        return
    with pytest.raises(DataError, match="the batch up to this sample would take 1001 bytes, more"):
        made.check_room(account, 1)
    assert (account.taken, made._taken) == (0, taken)


def bad_of(*slots):
    return {slot: BadSampleError(f"bad {slot}") for slot in slots}


@pytest.mark.parametrize(
    ("on_error", "bad", "valid", "indices", "now_valid", "left_out"),
    [
        ("skip", (1,), 3, [4, 6], 2, [5]),
        ("skip", (0,), 2, [5, 6], 1, [4]),
        ("skip", (2,), 2, [4, 5], 2, []),  # bad padding
        ("substitute", (1, 2), 3, [4, 20, 20], 3, [5, 6]),
        ("substitute", (2,), 2, [4, 5, 20], 2, []),
        ("skip", (0, 1, 2), 3, [20], 0, [4, 5, 6]),
    ],
)
def test_bad_samples_leave_their_places_or_are_replaced(
    on_error, bad, valid, indices, now_valid, left_out
):
    parts = np.arange(9).reshape(3, 3)
    made = reader(
        Rows(), bad=BadSamples(on_error), substitutes=[20, 21], valid=valid, parts=parts.copy()
    )
    samples = made.without(bad_of(*bad), [{"x": row} for row in (4, 5, 6)], [7, 8, 9])
    assert made.request.indices.tolist() == indices
    assert made.request.valid == now_valid
    assert [one.index for one in made.left_out] == left_out
    assert [one.position for one in made.left_out] == [row + 6 for row in left_out]
    assert made.places.dtype == np.int64
    assert made.request.positions.tolist() == [10 + place for place in made.places]
    replaced = [row == 20 for row in indices]
    assert [float(sample["x"]) for sample in samples] == indices
    expected = parts[made.places]
    expected[replaced, 2] = -1
    assert made.request.parts.tolist() == expected.tolist()
    assert made._draws.keys == [
        7 + slot for slot, other in zip(made.places, replaced, strict=True) if other
    ]


def test_a_substitute_that_is_bad_itself_is_followed_by_the_next():
    dataset = Rows(bad=[20])
    made = reader(dataset, bad=BadSamples("substitute"), substitutes=[20, 21])
    with batch_bytes.bounded(10_000):
        account = batch_bytes.at_hand()
        account.taken = 50
        samples = made.without(bad_of(1), [{"x": 4}, None, {"x": 6}], [7, 8, 9])
        alone = account.taken - 50
    assert samples[1]["x"].item() == 21.0
    assert alone > 0  # it counts, and the one that could not be read does not
    assert made.request.parts is None
    assert made._draws.keys == [8, 8]
    none = reader(Rows(), bad=BadSamples("substitute"))
    with pytest.raises(DataError, match=r"bad 0\. Nothing could be read in its place either \("):
        none.without(bad_of(0), [None, {}, {}], [7, 8, 9])


# Batches made at once


class Whole(Rows):
    """A dataset that gathers rows by itself."""

    fetches_batches = True
    kinds = {"x": "tensor"}

    def fetch_batch(self, indices, in_place=False):
        return {"x": torch.as_tensor(indices)}


class Pictures(Whole):
    fetches_batches, fetches_pictures = False, True


def some_rows(dataset):
    return kept_rows(dataset, Selection([np.arange(len(dataset)) < 3]), {})


class Derived(Whole):
    def __getitem__(self, row):
        return {"x": 1}


class Wrapper:
    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name):
        return getattr(self.dataset, name)


class Both(Derived):
    def fetch_batch(self, indices, in_place=False):
        return {}


@pytest.mark.parametrize(
    ("dataset", "whole"),
    [
        (Whole(), True),
        (Rows(), False),
        (some_rows(Whole()), True),
        (some_rows(Rows()), False),
        (Derived(), False),
        (Both(), True),
        (Wrapper(Whole()), False),
        (object(), False),
    ],
)
def test_a_dataset_reads_whole_batches_by_the_class_that_makes_its_samples(dataset, whole):
    assert reads_whole(dataset) is whole


class Decode:
    """A step that takes whole batches."""

    takes_batches = True

    def decode_batch(self, values, keys):
        return None if self.fails else torch.zeros(len(values), 3)

    fails = False


class OneByOne:
    def __call__(self, sample):
        return sample


class Reads:
    """A collate function that reads rows."""

    def __init__(self, reads=True):
        self.answer = reads

    def reads(self, dataset):
        return self.answer

    def read(self, rows, indices, parts):
        raise DataError("a row")


class Plain(Rows):
    draws = False


@pytest.mark.parametrize(
    ("dataset", "steps", "collate", "more", "usable", "gathers", "reads"),
    [
        (Whole(), None, Stack(), {}, True, True, True),
        (Whole(), {}, Stack(), {}, True, True, True),
        (Whole(), {"own": OneByOne()}, Stack(), {}, False, False, False),
        (Whole(), {"a": Decode(), "b": Decode()}, Stack(), {}, False, False, False),
        (Whole(), None, List(), {}, False, False, True),
        (Whole(), None, Pad(), {}, True, True, True),
        (Whole(), None, Pad(sort=True), {}, False, False, True),
        (Whole(), None, Stack(), {"hashed": True}, False, False, True),
        (Whole(), None, Stack(), {"bad": BadSamples("skip", None, {1: "x"})}, False, False, True),
        (Derived(), None, Stack(), {}, False, False, False),
        (Pictures(), {"d": Decode()}, Stack(), {}, True, False, False),
        (Pictures(), {"d": Decode()}, Pad(), {}, False, False, False),
        (Pictures(), None, Stack(), {}, False, False, False),
        (Plain(), {"d": Decode()}, Stack(), {}, True, False, False),
        (
            Plain(),
            {"d": Decode()},
            Stack(),
            {"bad": BadSamples("skip", None, {1: "x"})},
            True,
            False,
            False,
        ),
        (Plain(), None, Stack(), {}, False, False, False),
        (Rows(), {"d": Decode()}, Stack(), {}, False, False, False),
        (Rows(), None, Reads(), {}, True, False, True),
        (Rows(), None, Reads(False), {}, False, False, False),
        (Rows(), {"own": OneByOne()}, Reads(), {}, False, False, False),
        (Rows(), None, Reads(), {"hashed": True}, False, False, True),
    ],
)
def test_which_batches_can_be_made_at_once(dataset, steps, collate, more, usable, gathers, reads):
    transform = None if steps is None else Compose(steps)
    made = WholeBatches(recipe(dataset, transform=transform, collate=collate, **more))
    assert (made.usable, made.gathers, made.reads) == (usable, gathers, reads)
    other = WholeBatches(recipe(dataset, transform=OneByOne(), collate=collate, **more))
    assert not other.usable


def picture(content=b""):
    return EncodedImage(content, "a.jpg", lambda content, name: None, 10)


class Odd(torch.Tensor):
    pass


ODD = torch.zeros(1).as_subclass(Odd)


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([{"i": picture(), "x": 1}, {"i": picture(), "x": 2}], ""),
        ([{"i": picture()}, {"i": picture(), "x": 2}], "samples differ in their fields"),
        ([{"x": 1}, {"x": 2}], "no field is an image file that is not decoded yet"),
        ([{"i": picture()}, {"i": 3}], "the field 'i' of a sample is a int"),
        (
            [{"i": picture(), "x": 1}, {"i": picture(), "x": picture()}],
            "the field 'x' of a sample is a EncodedImage",
        ),
        ([{"i": picture(), "x": ODD}], "the field 'x' of a sample is a Odd"),
        ([{"i": picture(), "x": torch.zeros(1)}] * 2, ""),
    ],
)
def test_samples_are_alike_to_be_decoded_together(samples, problem):
    assert _problem_of(samples) == problem
