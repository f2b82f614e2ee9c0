"""Arguments of callables, and plain values against their annotations."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Optional

import pytest
import torch
from annotated_types import Ge, Gt, Le

from penstock.config import signatures
from penstock.config.signatures import Arguments, check, fits


class Base:
    def __init__(self, first, *, second=2):
        """Takes two."""


class Middle(Base):
    def __init__(self, third, **kwargs):
        """Passes the others on."""


class Silent(Middle):
    """Has no arguments of its own."""


class Open(Silent):
    def __init__(self, fourth=4, *args, **kwargs):
        """Passes the others on."""


class Endless:
    def __init__(self, first, **kwargs):
        """Takes anything."""


def plain(one, /, two, three=3, *, four, five=5):
    """Takes five."""


def many(*numbers, **named):
    """Takes anything."""


def test_the_arguments_of_a_function():
    known = Arguments(plain)
    assert known.names == ["two", "three", "four", "five"]
    assert known.defaults == {"three": 3, "five": 5}
    assert known.required == ["two", "four"]
    assert known.positional == ["one", "two", "three"]
    assert (known.many, known.open) == (False, False)
    assert (Arguments(many).many, Arguments(many).open) == (True, True)
    # Written in C, without a signature.
    assert (Arguments(min).many, Arguments(min).open) == (True, True)


def test_arguments_that_a_class_passes_on():
    assert (Arguments(Open).names, Arguments(Open).open) == (
        ["fourth", "third", "first", "second"],
        False,
    )
    assert Arguments(Middle).names == ["third", "first", "second"]
    assert (Arguments(Endless).names, Arguments(Endless).open) == (["first"], True)


def test_builders_of_torchvision_pass_on_what_their_class_takes():
    from torchvision.models import resnet18

    known = Arguments(resnet18)
    assert {"weights", "progress", "num_classes", "norm_layer"} <= set(known.names)
    assert not known.open

    def mine(**kwargs) -> Base:
        """Not theirs."""

    assert Arguments(mine).open


@pytest.mark.parametrize(
    ("function", "node", "supplied", "problems"),
    [
        (plain, {"two": 1, "four": 1}, (), []),
        (plain, {"four": 1}, ("two",), []),
        (plain, {"four": 1}, (), ["k.two: is missing; plain needs it"]),
        (plain, {"four": 1, "_partial_": True}, (), []),
        (plain, {"four": 1, "_args_": [1, 2]}, (), []),
        (plain, {"four": 1, "_args_": [1]}, (), ["k.two: is missing"]),
        (plain, {"four": 1, "_args_": [1, 2, 3]}, (), []),
        (
            plain,
            {"four": 1, "_args_": [1, 2, 3, 4]},
            (),
            ["k._args_: 4 positional arguments, but plain takes 3"],
        ),
        (
            plain,
            {"four": 1, "tow": 2},
            (),
            ["k.tow: unknown argument of plain 'tow' (did you mean 'two'?); allowed: two, three"],
        ),
        (many, {"a": 1, "_args_": [1, 2, 3]}, (), []),
        (many, {"_convert_": 1, "_recursive_": 1}, (), []),
    ],
)
def test_arguments_of_a_node(function, node, supplied, problems):
    found = [f"{one.key}: {one.message}" for one in check(function, node, "k", supplied)]
    assert len(found) == len(problems), found
    assert all(map(str.startswith, found, problems)), found


def test_values_that_contradict_annotations():
    def typed(size: int = None, share: Annotated[float, Ge(0), Le(1)] = 0.5):  # noqa: RUF013
        """Takes two."""

    def said(**node):
        return [f"{one.key}: {one.message}" for one in check(typed, node, "k")]

    assert said(size=None, share=1) == []
    assert said(size="a") == ["k.size: got 'a', expected a whole number"]
    assert said(share=1.5) == ["k.share: got 1.5, expected a number of at least 0 and of at most 1"]


NODE = {"_target_": "a.b"}


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, NODE], [1.5, "1", True, None]),
        (float, [0, 1.5, NODE], ["1", True, None]),
        (bool, [True, NODE], [1, "true", None]),
        (str, ["", NODE], [1, None]),
        (None.__class__, [None], [0, ""]),
        (Optional[int], [None, 3], ["a"]),  # noqa: UP045
        (int | None, [None, 3], ["a"]),
        (Literal["a", 3], ["a", 3], ["b", 4, NODE]),
        (list[int], [[], [1], (1, 2)], [1, ["a"], "ab", {"a": 1}]),
        (Sequence[str], [["a"]], [[1], 1]),
        (tuple[int, str], [[1], ("a",)], [1, "ab"]),
        (dict[str, int], [{}, {"a": "b"}], [[], "a"]),
        (Mapping[str, int], [{}], [[], "a"]),
        (Annotated[int, Ge(2), "words"], [2, 3], [1, "a"]),
        (Annotated[int, Gt(2)], [3], [2]),
        (Annotated[int, Le(2)], [1, 2], [3]),
        (torch.Tensor, [NODE], [1, [1]]),
        (Any, [1, "a", None], []),
        (torch.nn.Module, [1, "a", None], []),
    ],
)
def test_plain_values_that_fit(hint, good, bad):
    assert [value for value in good if not fits(value, hint)] == []
    assert [value for value in bad if fits(value, hint)] == []


def test_arguments_that_are_taken_out_of_kwargs_by_hand():
    from torchmetrics import MeanMetric

    known = signatures.arguments(MeanMetric)
    assert "sync_on_compute" in known.names
    assert not known.open
