"""What is known of a dataset, and what differs between two runs' data and code."""

import types

import pytest

from penstock.errors import ConfigError
from penstock.loading.facts import SomeRows
from penstock.loading.fingerprint import PLACE
from penstock.runs import identity

HERE = __name__


class Rows:
    """A dataset of a person's own."""

    def __init__(
        self, root="nowhere", count=3, scale=0.5, inner=None, many=frozenset(), split="train"
    ):
        self.inner = inner

    def __len__(self):
        return 3


class Known(Rows):
    fingerprint = "f00d"


class Mixed:
    """As Penstock's mixtures: known by the datasets that it is made of."""

    def __init__(self, **sources):
        self.sources = sources


Mixed.__module__ = "penstock.own"


class Wrapped(SomeRows):
    def __init__(self, inner):
        self.dataset = inner

    def fingerprint_with(self, fingerprint):
        return f"some of {fingerprint}"


@pytest.mark.parametrize(
    ("made", "tells"),
    [
        (Known(), True),
        (Rows(), False),
        (Mixed(a=Known(), b=Known()), True),
        (Mixed(a=Known(), b=Rows()), False),
        (Wrapped(Known()), True),
        (Wrapped(Rows()), False),
    ],
)
def test_who_tells_all_of_its_content(made, tells):
    assert identity.tells_all(made) == tells
    theirs = Rows()
    theirs.sources = {"a": Known()}  # what this name means, nobody knows
    assert not identity.tells_all(theirs)


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


OWN = f"{HERE}.Rows"
OURS = "penstock.datasets.sequences.Sequences"


def facts(node, has_fingerprint=True, made=None):
    found = identity.code_and_arguments(node, made or Rows(), has_fingerprint)
    code = {key for key in found if key.startswith("code.")}
    return code, {key: value for key, value in found.items() if key not in code}


def test_code_and_arguments_of_a_dataset_of_ones_own(tmp_path):
    node = {"_target_": OWN, "root": str(tmp_path), "count": 4, "inner": {"a": [1, 2], "b": {}}}
    code, given = facts(node)
    assert code == {f"code.{HERE}"}
    expected = {
        "arguments._target_": OWN,
        "arguments.root": PLACE,  # data may move
        "arguments.count": "4",
        "arguments.scale": "0.5",
        "arguments.inner.a": "[1, 2]",
        "arguments.inner.b": "{}",
    }
    assert given == expected
    assert facts({**node, "root": "s3://bucket/data"})[1]["arguments.root"] == PLACE
    for root in ("nowhere", "", "\0"):
        assert facts({**node, "root": root})[1]["arguments.root"] == root
    assert facts(node, has_fingerprint=False)[1]["arguments.root"] == str(tmp_path)


def test_what_is_penstocks_own_is_in_its_fingerprint():
    ours, own = {"_target_": OURS, "count": 3}, {"_target_": OWN, "count": 4}
    assert facts(ours) == (set(), {})
    assert facts({**ours, "inner": own})[1] == facts({"_target_": OURS, "inner": own})[1]
    _, given = facts({**ours, "inner": own})
    assert given["arguments.inner.count"] == "4"
    assert "arguments.count" not in given
    _, given = facts({"_target_": OWN, "inner": {**ours, "count": 5}})
    assert "arguments.inner.count" not in given
    _, given = facts({"_target_": OWN, "inner": {**ours, "count": 5}}, has_fingerprint=False)
    assert given["arguments.inner.count"] == "5"
    _, given = facts({**ours, "inner": own}, has_fingerprint=False)
    assert "arguments.count" not in given
    _, given = facts({"_target_": OWN, "inner": [{"_target_": OWN, "count": 6}, 7]})
    assert given["arguments.inner[0].count"] == "6"
    assert given["arguments.inner[1]"] == "7"
    assert "arguments.inner" not in given


@pytest.mark.parametrize("length", [199, 200, 201])
def test_a_long_argument_is_a_beginning_and_a_hash(length):
    text = identity._text("x" * length)
    if length <= 200:
        assert text == "x" * length
    else:
        assert text == "x" * 100 + "... 4b947e1e32c12ad3"
        assert identity._text("x" * 202) != text


def test_modes_of_a_fingerprint(tmp_path):
    made = Known()
    assert identity.fingerprint_of(made, "sizes", tmp_path) == "f00d"
    assert identity.fingerprint_of(Rows(), "sizes", tmp_path) == "3"
    assert identity.fingerprint_of(Wrapped(made), "sizes", tmp_path) == "some of f00d"
    made.names_fingerprint = lambda: "of names"
    assert identity.fingerprint_of(made, "names", tmp_path) == "of names"
    assert identity.fingerprint_of(made, "sizes", tmp_path) == "f00d"
    for files in ([], [("a", str(tmp_path / "none"))]):
        made.data_files = lambda files=files: files
        if not files:
            with pytest.raises(ConfigError, match="content needs the files of the dataset"):
                identity.fingerprint_of(made, "content", tmp_path)
        else:
            of_names = identity.fingerprint_of(made, "content", tmp_path)
            made.names_fingerprint = None
            assert identity.fingerprint_of(made, "content", tmp_path) != of_names


def test_each_module_that_changed_is_named_once():
    now = {"dataset": {"m": "2", "n": "1", "o": "1"}, "transform": {"m": "2", "n": "3"}}
    before = {"dataset": {"m": "1", "n": "1"}, "transform": {"m": "1", "n": "1"}}
    assert list(identity.changes(before, now)) == [
        ("dataset", "m", "1", "2"),
        ("transform", "n", "1", "3"),
    ]


def test_which_modules_a_class_comes_from(monkeypatch, tmp_path):
    whole, alone = (dict(identity._hashes(Known, whole)) for whole in (True, False))
    assert list(alone) == [HERE]
    assert HERE in whole
    assert any(name.startswith("tests.") and name != HERE for name in whole)
    assert list(dict(identity._hashes(SomeRows))) == [identity.OURS]
    assert dict(identity._hashes(SomeRows, whole=False)) == {}
    assert dict(identity._hashes(types.SimpleNamespace)) == {}  # Python's version says it
    assert list(dict(identity._hashes(pytest.raises))) == [pytest.raises.__module__]
    typed = type("Typed", (), {"__module__": "__main__"})
    monkeypatch.setitem(identity.sys.modules, "__main__", types.ModuleType("__main__"))
    assert dict(identity._hashes(typed)) == {"__main__": identity.UNKNOWN}
