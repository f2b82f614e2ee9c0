"""Errors of samples: whose fault they are, how messages explain them, and how many are too many."""

import pytest
import torch
from torchvision.transforms import v2

from penstock.errors import ConfigError, DataError, Problem, UnreachableError
from penstock.loading import bad_samples
from penstock.loading.bad_samples import (
    Budget,
    LeftOut,
    SampleError,
    explained,
    in_one_line,
)
from penstock.loading.fetch import Compose

WHERE = "sample 8 (epoch 2, step 3, position 41)"


MISTAKE = ConfigError(Problem("k", "x"))
FAILED = f"{WHERE} p.png: transform failed with TypeError: bug\n"


@pytest.mark.parametrize(
    ("error", "stage", "on_error", "kind", "message"),
    [
        (
            DataError("odd"),
            "read",
            "raise",
            DataError,
            f"{WHERE} p.png: odd\nbad_samples.",
        ),
        (DataError("odd"), "read", "skip", DataError, f"{WHERE} p.png: odd$"),
        (DataError("p.png is odd"), "read", "skip", DataError, f"{WHERE}: p.png is odd$"),
        (UnreachableError("far"), "read", "raise", DataError, f"{WHERE} p.png: far$"),
        (MISTAKE, "transform", "raise", ConfigError, "k"),
        (MISTAKE, "read", "raise", SampleError, f"{WHERE} p.png: read failed with ConfigError"),
        (TypeError("bug"), "transform", "raise", SampleError, f"{FAILED}TypeError"),
        (TypeError("bug"), "transform", "skip", SampleError, f"{FAILED}bad_samples.on_error=skip "),
    ],
)
def test_an_error_names_its_sample_and_the_way_out(error, stage, on_error, kind, message):
    told = explained(error, stage, on_error, lambda cause: LeftOut(8, 41, 2, 3, "p.png", cause))
    assert type(told) is kind
    assert str(told) == message[:-1] if message.endswith("$") else str(told).startswith(message)


def test_an_error_in_one_line_has_300_characters_at_most():
    assert in_one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert in_one_line(DataError("x" * 300)) == "x" * 300
    assert in_one_line(DataError("x" * 301)) == "x" * 300


@pytest.mark.parametrize(("length", "allowed"), [(100, 3), (101, 4), (1, 1), (None, 10)])
def test_a_share_is_of_the_epoch_or_of_the_samples_so_far(length, allowed):
    budget = Budget(0.03, "val", lambda epoch: length)
    bad = [LeftOut(row, row, 0, 0, "", "bad") for row in range(allowed)]
    budget.add(8, bad)
    with pytest.raises(DataError, match=rf"allows {allowed}:") as caught:
        budget.add(8, bad[:1])
    assert f"({'16 so far' if length is None else length} samples)" in str(caught.value)
    assert str(caught.value).count(": bad\n") == min(allowed + 1, 5)


def test_an_error_names_its_transform():
    def broken(sample):
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd") as caught:
        Compose({"first": lambda sample: sample, "second": broken})({})
    assert caught.value.__notes__ == ["in the transform 'second'"]
    with pytest.raises(ConfigError, match="is for pictures, and a sample has none: x\\."):
        Compose({"flip": v2.Resize(3)})({"x": torch.zeros(5)})
    assert bad_samples.path_of(object(), 3) == ""
