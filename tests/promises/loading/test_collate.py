"""Samples to a batch: stacked, padded or kept, those that do not fit."""

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from penstock.errors import DataError
from penstock.loading.collate import Mismatch, Pad, PadTime, Ragged, Stack, joined, kinds_of, stack


def same(left, right):
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for name in left:
            same(left[name], right[name])
    else:
        assert left == right


ROWS = [torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6]])]  # of two lengths


def t(*values):
    return torch.tensor(values)


SHORT = "shapes [] and [] differ in more than their length"
DIFFER = "differ in more than their length"


@pytest.mark.parametrize(
    ("collate", "samples", "batch"),
    [
        (Stack(), [{"x": 1, "s": "a"}, {"x": 2, "s": "b"}], {"x": t(1, 2), "s": ["a", "b"]}),
        (Stack(), [{"x": {"y": [1.5]}}], {"x": {"y": [t(1.5).double()]}}),
        (
            Pad(),
            [{"x": ROWS[0], "y": 1}, {"x": ROWS[1], "y": 2}],
            {"x": t([[1, 2], [3, 4]], [[5, 6], [0, 0]]), "x_lengths": t(2, 1), "y": t(1, 2)},
        ),
        (
            Pad(["x"], value=9),
            [{"x": t(1), "z": t(3)}, {"x": t(1, 2), "z": t(4)}],
            {"x": t([1, 9], [1, 2]), "x_lengths": t(1, 2), "z": t([3], [4])},
        ),
        (
            PadTime(value=7),
            [{"x": t([1, 2], [3, 4]), "z": t(1)}, {"x": t([5], [6]), "z": t(2)}],
            {"x": t([[1, 2], [3, 4]], [[5, 7], [6, 7]]), "x_lengths": t(2, 1), "z": t([1], [2])},
        ),
        (
            PadTime(["x"]),
            [{"x": t(1)}, {"x": t(2, 3)}],
            {"x": t([1, 0], [2, 3]), "x_lengths": t(1, 2)},
        ),
    ],
)
def test_samples_become_a_batch(collate, samples, batch):
    same(collate(samples), batch)


@pytest.mark.parametrize(
    ("collate", "values", "rows", "reason"),
    [
        (Stack(), [1, 2, 3.0], (0, 2), "types int, float"),
        (Stack(), [t(0, 0), t(0, 0), t(0, 0, 0)], (0, 2), "shapes [2] and [3] differ"),
        (
            Stack(),
            [object(), object()],
            (0, 0),
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
            "found <class 'object'>",
        ),
        (Stack(), [[1], [1, 2]], (0, 0), "each element in list of batch should be of equal size"),
        (Pad(), [t([0, 0]), t([0, 0, 0])], (0, 1), f"shapes [1, 2] and [1, 3] {DIFFER}"),
        (Pad(["x"]), [torch.tensor(1), torch.tensor(2)], (0, 0), SHORT),
        (Pad(["y"]), [t(0)], (0, 0), "to be padded, but the samples have only x"),
        (PadTime(), [t([0], [0]), t([0], [0], [0])], (0, 1), f"shapes [2, 1] and [3, 1] {DIFFER}"),
        (PadTime(["x"]), [torch.tensor(1)], (0, 0), SHORT),
    ],
)
def test_samples_that_do_not_fit_are_named(collate, values, rows, reason):
    with pytest.raises(Mismatch) as caught:
        collate([{"x": value} for value in values])
    assert caught.value.rows == rows
    assert caught.value.reason == reason


def test_samples_with_other_fields_are_named():
    with pytest.raises(Mismatch) as caught:
        Stack()([{"x": 1, "y": 1}, {"x": 1, "y": 1}, {"x": 1, "a": 1}])
    assert (caught.value.field, caught.value.rows) == ("a", (0, 2))
    assert caught.value.reason == "samples have the fields ['x', 'y'] and ['a', 'x']"


def ragged(values, lengths):
    return Ragged(torch.tensor(values), torch.tensor(lengths))


@pytest.mark.parametrize(
    ("collate", "gathered", "batch"),
    [
        (
            Stack(),
            {"x": ragged([1, 2, 3, 4], [2, 2]), "y": ["a", "b"]},
            {"x": t([1, 2], [3, 4]), "y": ["a", "b"]},
        ),
        (
            Pad(value=9),
            {"x": ragged([[1], [2], [3]], [1, 2]), "y": ["a", "b"], "z": t([1, 2], [3, 4])},
            {
                **{"x": t([[1], [9]], [[2], [3]]), "x_lengths": t(1, 2)},
                **{"y": ["a", "b"], "z": t([1, 2], [3, 4]), "z_lengths": t(2, 2)},
            },
        ),
        (
            Pad(["x"]),
            {"x": t([1, 2]), "z": t([1, 2]), "w": ragged([5], [1])},
            {"x": t([1, 2]), "x_lengths": t(2), "z": t([1, 2]), "w": t([5])},
        ),
    ],
)
def test_fields_that_were_gathered_become_a_batch(collate, gathered, batch):
    same(collate.together(gathered), batch)


@pytest.mark.parametrize(
    ("collate", "gathered", "field", "reason"),
    [
        (Stack(), {"x": ragged([1, 2, 3], [2, 1])}, "x", "its rows have different lengths"),
        (Pad(["x"]), {"x": t(1)}, "x", SHORT),
        (Pad(["x"]), {"y": ["a"]}, "x", "to be padded, but the samples have only y"),
    ],
)
def test_fields_that_were_gathered_and_do_not_fit_are_named(collate, gathered, field, reason):
    with pytest.raises(Mismatch) as caught:
        collate.together(gathered)
    assert (caught.value.field, caught.value.rows, caught.value.reason) == (field, (0, 0), reason)


def test_parts_are_joined_in_any_order():
    order = np.array([2, 0, 1])
    assert joined([["a"], ["b", "c"]], order) == ["c", "a", "b"]
    same(
        joined([torch.tensor([[1], [2]]), torch.tensor([[3]])], order),
        torch.tensor([[3], [1], [2]]),
    )


@pytest.mark.parametrize(
    "parts",
    [
        [["a"], torch.tensor([1])],
        [torch.tensor([1]), torch.tensor([1.0])],
        [torch.tensor([1]), ragged([1], [1])],
        [torch.zeros(1, 2), torch.zeros(1, 3)],
        [ragged([1, 2, 3], [2, 1]), ragged([4, 5, 6], [3])],
    ],
)
def test_parts_of_different_kinds_are_not_joined(parts):
    with pytest.raises(DataError, match="or different types or shapes"):
        joined(parts, np.array([0, 1]))


def test_the_kinds_of_fields_are_those_of_torchvision():
    box = tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYWH", canvas_size=(2, 2))
    sample = {
        "image": tv_tensors.Image(torch.zeros(3, 2, 2)),
        "mask": tv_tensors.Mask(torch.zeros(2, 2)),
        "boxes": box,
        "x": torch.zeros(1),
        "y": 3,
    }
    assert kinds_of(sample) == {"image": "image", "mask": "mask", "boxes": "boxes/xywh"}
    assert kinds_of(3) == {}
    stacked = stack("image", [sample["image"]] * 2)
    assert type(stacked) is torch.Tensor
    assert stacked.shape == (2, 3, 2, 2)
