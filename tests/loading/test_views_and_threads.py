"""Steps by name and their views, the threads of a first batch, tensors inside of a batch."""

import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.errors import ConfigError
from penstock.loading.batch import Batch
from penstock.loading.compose import Compose, Views, further_views
from penstock.loading.intra_batch import extra_threads, split_rows, threads
from penstock.order.plan import Request
from penstock.order.randomness import begin_sample, hash64, key_at_hand


class Notes:
    """Adds what it is called with; tells the key that draws follow from."""

    def __init__(self):
        self.keys = []

    def __call__(self, sample):
        self.keys.append(key_at_hand())
        sample["x"] += 1
        return {**sample, "n": len(self.keys)}


def test_views_are_the_same_steps_over_copies_with_draws_of_their_own():
    notes = Notes()
    begin_sample(5)
    try:
        made = Views({"notes": notes, "none": None}, 3)({"x": torch.zeros(2), "y": np.ones(1)})
        assert key_at_hand() == 5
    finally:
        begin_sample(None)
    assert notes.keys == [5, hash64(5, "view", 2), hash64(5, "view", 3)]
    assert list(made) == ["x", "y", "n", "x_2", "y_2", "x_3", "y_3"]
    assert [made[name].tolist() for name in ("x", "x_2", "x_3")] == [[1, 1]] * 3
    assert made["n"] == 1
    alone = Views({"notes": Notes()}, 1)({"x": torch.zeros(2)})
    assert list(alone) == ["x", "n"]
    with pytest.raises(ConfigError, match="a sample has a field x_2 already; rename it"):
        Views({"notes": Notes()}, 2)({"x": torch.zeros(2), "x_2": 1})


def test_further_views_of_a_field_are_found_by_their_numbers():
    names = ["image", "image_10", "image_2", "image_x", "images_3", "mask_2"]
    assert further_views(names, "image") == ["image_2", "image_10"]


def keyed(sample):
    return sample


keyed.keyed = True


def test_steps_are_keyed_where_all_are():
    assert Compose({"a": keyed, "b": None}).keyed
    assert not Compose({"a": keyed, "b": Notes()}).keyed
    assert Compose({}).keyed


class Broken(v2.CenterCrop):
    def forward(self, *inputs):
        raise ValueError("no size")


Broken.__module__ = "torchvision.transforms.v2.somewhere"
HERE = type("Broken", (Broken,), {"__module__": __name__})


@pytest.mark.parametrize(
    ("step", "sample", "error", "message"),
    [
        (
            Broken(2),
            {"x": [1], "y": 3},
            ConfigError,
            r"transform: the step 'crop' \(Broken\) is for pictures, and a sample has none: x "
            r"\(list\), y \(int\)\. Choose another",
        ),
        (Broken(2), {"x": tv_tensors.Image(torch.zeros(3, 4, 4))}, ValueError, "no size"),
        (Broken(2), {"x": Image.new("L", (2, 2))}, ValueError, "no size"),
        (Broken(2), [torch.zeros(3)], ConfigError, "a sample has none: "),
        (HERE(2), {"x": [1]}, ValueError, "no size"),
    ],
)
def test_a_failing_step_for_pictures_says_whether_there_is_one(step, sample, error, message):
    with pytest.raises(error, match=message) as caught:
        Compose({"first": keyed, "crop": step})(sample)
    if error is ValueError:
        assert caught.value.__notes__ == ["in the transform 'crop'"]


@pytest.mark.parametrize(
    ("count", "rows", "ranges"),
    [
        (1, 9, [(0, 9)]),
        (4, 1, [(0, 1)]),
        (4, 3, [(0, 3)]),
        (4, 4, [(0, 2), (2, 4)]),
        (3, 6, [(0, 2), (2, 4), (4, 6)]),
        (2, 9, [(0, 4), (4, 9)]),
        (4, 9, [(0, 2), (2, 4), (4, 6), (6, 9)]),
    ],
)
def test_rows_of_a_batch_are_divided_among_threads(count, rows, ranges):
    called, lock = [], threading.Lock()
    meet = threading.Barrier(len(ranges))

    def work(start, stop):
        meet.wait(30)  # each range has a thread of its own
        with lock:
            called.append((start, stop, threading.current_thread() is threading.main_thread()))

    with extra_threads(count):
        assert threads(rows) == len(ranges)
        split_rows(work, rows)
    assert sorted(called) == [(*ends, ends[0] == 0) for ends in ranges]
    assert threads(rows) == 1


def test_rows_wait_for_the_first_batch(monkeypatch):
    waited = []
    after = threading.Event()
    monkeypatch.setattr(after, "wait", waited.append)
    with extra_threads(1, after):
        for rows in (2, 4):  # once, though rows may come one by one
            split_rows(lambda start, stop: waited.append((start, stop)), rows)
    split_rows(lambda start, stop: waited.append((start, stop)), 3)
    assert waited == [5.0, (0, 2), (0, 4), (0, 3)]


def test_tensors_inside_of_a_batch_are_changed():
    one = torch.ones(1)
    request = Request(0, 0, np.arange(1), np.arange(1), 1)
    fields = {"a": one, "b": {"c": one, "d": [one, 2]}, "e": (one,), "f": "text"}
    moved = Batch(fields, request).map(lambda tensor: tensor.item() + 1)
    assert dict(moved) == {"a": 2, "b": {"c": 2, "d": [2, 2]}, "e": [2], "f": "text"}
    assert moved.valid is None
    padded = Batch({}, Request(0, 0, np.arange(2), np.arange(2), 1))
    assert padded.valid.tolist() == [True, False]
