"""The nodes of a configuration: where they are, what they call, and what is wrong with them."""

import pytest

from penstock.config import nodes
from penstock.config.nodes import Part
from tests.config.unchecked import NUMBERS, RANDOM, STREAM, UNSPLIT, changed
from tests.own_parts import Numbers

pytestmark = pytest.mark.usefixtures("alone")

SPLIT = {"_target_": "tests.config.test_nodes.ByPart"}
KEPT = nodes.KEPT[0]


class ByPart:
    """A dataset with arguments of the names of our keys."""

    def __init__(self, train=True, val=None, packed=None, fields=None):
        """Takes them."""


class Up:
    higher_is_better = True


class Down:
    higher_is_better = False


def function(sample, factor=1):
    return sample


@pytest.mark.parametrize(
    ("node", "name", "is_so"),
    [
        ({**NUMBERS, "val": None}, "val", True),
        ({**NUMBERS, "train": None}, "train", False),
        (NUMBERS, "val", False),
        ({"val": None}, "val", False),
        ({**NUMBERS, "val": {KEPT: "x"}}, "val", True),
        ({**NUMBERS, "val": {"other": "x"}}, "val", True),
        ({**NUMBERS, "val": NUMBERS}, "val", False),
        ({**NUMBERS, "val": 3}, "val", False),
        ({**SPLIT, "val": None}, "val", False),
        ({**SPLIT, "val": {KEPT: "x"}}, "val", True),
        ({**SPLIT, "val": {"other": "x"}}, "val", False),
        ({**SPLIT, "train": {"other": "x"}}, "train", True),  # the build supplies a text
    ],
)
def test_keys_beside_a_dataset_that_are_about_a_split(node, name, is_so):
    assert nodes.is_of_a_split(node, name) == is_so


@pytest.mark.parametrize(
    ("node", "is_so"),
    [
        (NUMBERS, True),
        ({**NUMBERS, "val": None}, False),
        ({**NUMBERS, "val": {}}, True),
        ({**SPLIT, "val": None}, True),
        ({"train": NUMBERS, "val": None}, False),
        ({"train": NUMBERS}, True),
    ],
)
def test_datasets_that_have_a_validation(node, is_so):
    assert nodes.validates(node) == is_so


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (None, []),
        (3, [("dataset", 3)]),
        (NUMBERS, [("dataset", NUMBERS)]),
        ({**NUMBERS, "packed": "auto", "fields": ["x"], KEPT: 1}, [("dataset", NUMBERS)]),
        ({**NUMBERS, "val": None}, [("dataset", NUMBERS)]),
        ({**NUMBERS, "train": NUMBERS}, [("dataset", {**NUMBERS, "train": NUMBERS})]),
        (
            {"train": {**NUMBERS, KEPT: 1}, "val": STREAM, "packed": None},
            [("dataset.train", NUMBERS), ("dataset.val", STREAM)],
        ),
        ({"train": NUMBERS, "val": None}, [("dataset.train", NUMBERS)]),
        ({"test": NUMBERS}, [("dataset.test", NUMBERS)]),
        ({"other": NUMBERS}, [("dataset", {"other": NUMBERS})]),
        (
            {**NUMBERS, "inner": [{**STREAM, KEPT: 1}, {KEPT: 2}]},
            [("dataset", {**NUMBERS, "inner": [STREAM, {KEPT: 2}]})],
        ),
        ({**SPLIT, "packed": 1, "fields": 2}, [("dataset", {**SPLIT, "fields": 2})]),
    ],
)
def test_nodes_of_datasets(node, found):
    assert nodes.datasets(node) == found


def test_callables_of_datasets():
    config = changed({"dataset": {"train": NUMBERS, "val": STREAM}})
    assert nodes.datasets_found(config, {"dataset.train": Numbers, "dataset": 3}) == [
        ("dataset.train", Numbers)
    ]


@pytest.mark.parametrize(
    ("node", "name", "value"),
    [
        ({**NUMBERS, "fields": ["x"]}, "fields", ["x"]),
        ({**NUMBERS, "facts": {"a": 1}}, "facts", {"a": 1}),
        ({**NUMBERS, "packed": 1}, "packed", None),
        ({**NUMBERS, "size": 1}, "size", None),
        (NUMBERS, "fields", None),
        ({**SPLIT, "fields": ["x"]}, "fields", None),
    ],
)
def test_keys_of_the_build(node, name, value):
    assert nodes.of_the_build(node, name) == value


def test_metrics_that_are_left_out():
    assert nodes.metrics({"metrics": {"a": NUMBERS, "b": None}}) == {"a": NUMBERS}
    assert nodes.metrics({"metrics": {**NUMBERS, "b": None}}) == {**NUMBERS, "b": None}
    assert nodes.metrics({"metrics": [1]}) == [1]
    assert nodes.metrics({}) is None


def test_choices_of_rows_of_every_node_inside():
    inner = {**STREAM, KEPT: 2}
    node = {**NUMBERS, KEPT: 1, "inner": [inner], "val": {KEPT: 3}, "train": {}}
    assert list(nodes.choices_of_rows(node)) == [
        ("dataset", {KEPT: 1}),
        ("dataset.inner[0]", {KEPT: 2}),
        ("dataset.val", {KEPT: 3}),
    ]
    assert list(nodes.choices_of_rows({**NUMBERS, "val": None})) == []
    assert list(nodes.choices_of_rows(None)) == []


def test_filters_one_or_several():
    assert nodes.filters({}, "dataset") == []
    assert nodes.filters({"filter": 0}, "dataset") == [("dataset.filter", 0)]
    assert nodes.filters({"filter": ["a", "b"]}, "x") == [
        ("x.filter[0]", "a"),
        ("x.filter[1]", "b"),
    ]


def test_sections_with_one_node_or_several():
    assert nodes.by_name(NUMBERS, "tracker") == {"tracker": NUMBERS}
    assert nodes.by_name({"csv": 1}, "tracker") == {"tracker.csv": 1}
    assert nodes.by_name(None, "tracker") == {"tracker": None}
    assert nodes.by_name([1], "tracker") == {"tracker": [1]}


@pytest.mark.parametrize(
    ("node", "more"),
    [
        ({"_target_": "tests.config.test_nodes.function"}, {"_partial_": True}),
        ({"_target_": "tests.config.test_nodes.function", "factor": 2}, {"_partial_": True}),
        ({"_target_": "tests.config.test_nodes.function", "sample": 2}, {}),
        ({"_target_": "tests.config.test_nodes.function", "_args_": [1]}, {}),
        ({"_target_": "tests.config.test_nodes.function", "_partial_": False}, {}),
        (UNSPLIT, {}),
        ({"_target_": "no.such.thing"}, {}),
        ({"factor": 1}, {}),
    ],
)
def test_functions_that_collate(node, more):
    assert nodes.collate_of(node) == {**node, **more}
    named = nodes.collate_of({**node, "fields": ["x"]})
    assert named == ({**node, **more} if "_target_" in node else {"factor": 1, "fields": ["x"]})
    assert nodes.collate_of("stack") == "stack"


def test_directions_of_metrics():
    by_name = {name: {"_target_": f"tests.config.test_nodes.{name}"} for name in ("Up", "Down")}
    config = changed({"objective": {"metrics": by_name}})
    names = ("loss", "Up", "Down", "none")
    assert [nodes.direction(config, name) for name in names] == ["min", "max", "min", None]


def test_every_node_of_a_tree():
    tree = {"a": [NUMBERS, {"b": STREAM}], "c": (STREAM,), "d": 3}
    found = dict(nodes.walk({**UNSPLIT, "x": tree}, "k"))
    assert list(found) == ["k", "k.x.a[0]", "k.x.a[1].b", "k.x.c[0]"]
    assert found["k.x.a[0]"] is NUMBERS


def said(key, node, **more):
    target, problems = nodes.check(Part(key, node, **more))
    return target, [f"{problem.key}: {problem.message}" for problem in problems]


@pytest.mark.parametrize(
    ("key", "node", "more", "problems"),
    [
        ("dataset", NUMBERS, {}, []),
        ("dataset", 3, {}, ["dataset: got 3, expected a mapping with _target_"]),
        ("dataset", {"a": 1, "b": 2}, {}, ["dataset: has no _target_, only a, b; it names what"]),
        ("dataset", {}, {}, ["dataset: has no _target_, only nothing; it names what is called"]),
        ("dataset.train", NUMBERS, {}, []),
        (
            "dataset.trian",
            NUMBERS,
            {},
            ["dataset.trian: unknown key 'trian' (did you mean 'train'?)"],
        ),
        ("dataset.x.filter[1]", NUMBERS, {}, []),
        ("transform.train", {"a": NUMBERS, "b": None}, {"is_map": True}, []),
        (
            "transform.train",
            {"a": 3},
            {"is_map": True},
            ["transform.train.a: got 3, expected a map"],
        ),
        (
            "dataset",
            {**NUMBERS, "_convert_": "all", "_recursive_": False},
            {},
            ["dataset._convert_: is not for conf", "dataset._recursive_: is not for conf"],
        ),
        (
            "dataset",
            {**NUMBERS, "_partial_": 1},
            {},
            ["dataset._partial_: got 1, expected true | f"],
        ),
        ("dataset", {**NUMBERS, "_partial_": True}, {}, []),
        ("dataset", {**NUMBERS, "_args_": 1}, {}, ["dataset._args_: got 1, expected a list"]),
        (
            "dataset",
            {**NUMBERS, "sise": 1},
            {},
            ["dataset.sise: unknown argument of Numbers 'sise'"],
        ),
        ("dataset", {"_target_": "os.getcwd"}, {}, ["dataset._target_: "]),
        (
            "objective",
            {"_target_": "torchmetrics.no.Such"},
            {},
            ["objective._target_: "],
        ),
        ("objective", {"_target_": "torchmetrics.no.Such"}, {"measured": False}, []),
        (
            "model",
            {"_target_": "torch.nn.Linear", "in_features": 1},
            {},
            ["model.out_features: is missing; Linear needs it"],
        ),
        (
            "model",
            {"_target_": "torch.nn.Linear", "in_features": 1},
            {"supplied": ("out_features",)},
            [],
        ),
        (
            "model",
            {**UNSPLIT, "inner": {"_target_": "torch.nn.Linear", "in_features": 1}},
            {"supplied": ("out_features",)},
            [
                "model.inner: unknown argument of Unsplit",
                "model.inner.out_features: is missing; Linear needs it",
            ],
        ),
        (
            "model",
            {**UNSPLIT, "inner": {"_target_": "torch.nn.Linear", "in_features": 1}},
            {"supplied": ("out_features",), "nested": True},
            ["model.inner: unknown argument of Unsplit"],
        ),
    ],
)
def test_problems_of_a_part(key, node, more, problems):
    target, found = said(key, node, **more)
    assert len(found) == len(problems), found
    for message, start in zip(found, problems, strict=True):
        assert message.startswith(start), message
    if node is NUMBERS and not more:
        assert target is Numbers


def test_parts_of_wrong_sections_are_left_out():
    config = changed({"sampler": RANDOM, "optimizer": None, "tracker": {"csv": NUMBERS}})
    del vars(config)["transform"]
    keys = [part.key for part in nodes.parts(config)]
    assert "optimizer" not in keys
    assert "tracker.csv" in keys
    assert not any(key.startswith("transform") for key in keys)
    scheduled = changed(
        {"scheduler": {**NUMBERS, "warmup": 1, "interval": "step"}, "task": "digest"}
    )
    parts = {part.key: part for part in nodes.parts(scheduled)}
    assert parts["scheduler"].node == NUMBERS
    assert not parts["objective"].measured
    assert {part.key: part for part in nodes.parts(changed({}))}["objective"].measured
