"""Variables of the environment that a configuration reads, and those that would leave."""

import pytest
from omegaconf import OmegaConf

from penstock.config import environment
from penstock.config.disclosure import Origin, Plain
from penstock.config.environment import check, check_allowed, note, reading, traced, unresolved


@pytest.fixture(autouse=True)
def nothing_read(monkeypatch):
    monkeypatch.setattr(environment, "_read", {})
    monkeypatch.delenv(environment.VARIABLE, raising=False)


def test_names_that_may_be_allowed():
    assert check_allowed(["A", "_b1"]) == []
    assert [problem.message for problem in check_allowed(["1a", "A", "a-b", ""])] == [
        f"{name!r} is not the name of a variable such as DATA_ROOT" for name in ("1a", "a-b", "")
    ]


def test_variables_are_noted_with_what_was_written(monkeypatch):
    monkeypatch.setenv("WHERE", "/data")
    config = OmegaConf.create({"a": "${oc.env:WHERE}/x"})
    with traced() as origins:
        with reading() as outer, reading() as names:
            assert config.a == "/data/x"
        note("a", "${oc.env:WHERE}/x", [*names, *names], "/data/x")
        note("b", 3, ["WHERE", "OTHER"], 3)
        note("c", "text", [], "text")
    assert names == outer == ["WHERE"]
    assert origins == {
        "a": Origin("${oc.env:WHERE}/x", ("WHERE",), "/data/x"),
        "b": Origin("${oc.env:WHERE}", ("WHERE", "OTHER"), 3),
    }
    note("d", "text", ["WHERE"], "text")
    assert "d" not in origins, "nothing traces it any more"


def test_long_values_are_replaced_before_those_inside_of_them(monkeypatch):
    monkeypatch.setattr(environment, "_read", {"data": "A", "/data/x": "B"})
    assert unresolved("no data in /data/x") == "no ${oc.env:A} in ${oc.env:B}"


PART = {"_target_": "a.B", "root": "s3://b/c"}


@pytest.mark.parametrize(
    ("key", "config", "text", "value", "how"),
    [
        ("a", {}, "${oc.env:X}", "x", ""),
        ("a", {}, "s3://b/${oc.env:X}", "x", "inside of an address"),
        ("a", {}, "${oc.env:X}", "s3://b", "inside of an address"),
        ("a", {}, "${oc.env:X}", ["b", {"c": "s3://b"}], "inside of an address"),
        ("a", {}, "${oc.env:X}", {"s3://b": 3}, "inside of an address"),
        ("a", {}, "${oc.env:X}", "file://b", ""),
        ("a.options.x", {}, "${oc.env:X}", "x", "in the options of a store"),
        ("a.headers[0]", {}, "${oc.env:X}", "x", "in the options of a store"),
        ("a.optionsx", {}, "${oc.env:X}", "x", ""),
        ("a.x", {"a": PART}, "${oc.env:X}", "x", "as a name below the address"),
        ("a.x[0]", {"a": PART}, "${oc.env:X}", "x", "as a name below the address"),
        ("a.x.y", {"a": {**PART, "x": {"y": 1}}}, "${oc.env:X}", "x", "as a name below"),
        ("a.x.y", {"a": {**PART, "x": {"_target_": "b"}}}, "${oc.env:X}", "x", ""),
        ("a.cache_dir", {"a": PART}, "${oc.env:X}", "x", ""),
        ("a.x", {"a": {**PART, "root": "see s3://b"}}, "${oc.env:X}", "x", ""),
        ("a.x", {"a": {"root": "s3://b"}}, "${oc.env:X}", "x", ""),
        ("a[1].x", {"a": [{}, PART]}, "${oc.env:X}", "x", "as a name below the address"),
        ("a[0].x", {"a": [{}, PART]}, "${oc.env:X}", "x", ""),
        ("a[2].x", {"a": [{}, PART]}, "${oc.env:X}", "x", ""),
        ("a.b.x", {"a": [PART]}, "${oc.env:X}", "x", ""),
    ],
)
def test_values_that_would_leave_this_machine(key, config, text, value, how, monkeypatch):
    plain = Plain(config)
    plain.origins = {key: Origin(text, ("X", "Y"), value)}
    problems = check(plain)
    assert [problem.key for problem in problems] == ([key] if how else [])
    if how:
        assert f"would send X, Y of the environment away from this machine, {how}" in str(
            problems[0].message
        )
        assert problems[0].message.endswith("If it may: --allow-env X,Y")
    monkeypatch.setenv(environment.VARIABLE, "Z,X")
    assert len(check(plain)) == bool(how)
    assert not how or "would send Y of" in check(plain)[0].message
    monkeypatch.setenv(environment.VARIABLE, "Y,X")
    assert check(plain) == []
