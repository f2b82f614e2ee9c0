"""The section `hydra:`, entry by entry: what it may name, and the refusals."""

import pytest
from hydra.conf import HydraConf
from omegaconf import OmegaConf

from penstock.config import hydra_section
from penstock.config.hydra_section import HANDLERS, search_path_problems, sweep_problems


@pytest.fixture(autouse=True)
def trusts(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")


def problems(section, overrides=(), importing=False):
    node = OmegaConf.structured(HydraConf)
    plain = {"run": {"dir": "."}, "callbacks": {}, **section}
    for name in ("launcher", "sweeper"):
        plain.setdefault(name, hydra_section._BASIC[name])
    merged = OmegaConf.merge(node, {"hydra_logging": {}, "job_logging": {}, **plain})
    return hydra_section.problems(merged, list(overrides), importing)


MINE = "tests.config.test_hydra_section.Mine"


class Mine:
    """No callback and no handler."""


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ({}, []),
        ({"run": {"dir": hydra_section._HYDRAS_OWN}}, []),
        ({"run": {"dir": "elsewhere"}}, ["hydra.run.dir"]),
        ({"output_subdir": None}, []),
        ({"output_subdir": ".hydra"}, []),
        ({"output_subdir": "x"}, ["hydra.output_subdir"]),
        ({"output_subdir": "${seed}"}, ["hydra.output_subdir"]),
        ({"job": {"chdir": "${a}"}}, ["hydra.job.chdir"]),
        ({"job": {"name": "${a}"}}, []),
        ({"job": {"env_copy": ["${a}"]}}, ["hydra.job.env_copy[0]"]),
        ({"job": {"env_set": {"OMP_NUM_THREADS": "1"}}}, []),
        ({"job": {"env_set": {"PATH": "x"}}}, ["hydra.job.env_set.PATH"]),
        ({"callbacks": {"a": {"x": "${hydra.job.name}"}}}, ["hydra.callbacks.a"]),
        (
            {"callbacks": {"a": {"x": "${hydra.job.config}"}}},
            ["hydra.callbacks.a.x", "hydra.callbacks.a"],
        ),
        (
            {"callbacks": {"a": {"_x": "${hydra.job.name}"}}},
            ["hydra.callbacks.a._x", "hydra.callbacks.a"],
        ),
        ({"callbacks": {"a": {"_target_": "os.system"}}}, ["hydra.callbacks.a._target_"]),
        ({"callbacks": {"a": {"_target_": MINE}}}, []),
        ({"callbacks": {"a": {"_target_": MINE, "b": {"_target_": MINE}}}}, []),
        (
            {"callbacks": {"a": {"_target_": MINE, "b": {"_target_": "os.x"}}}},
            ["hydra.callbacks.a.b._target_"],
        ),
        (
            {"callbacks": {"a": {"_target_": MINE, "_partial_": True}}},
            ["hydra.callbacks.a._partial_"],
        ),
        ({"callbacks": {"a": {"_target_": hydra_section.CALLBACKS[0]}}}, []),
        (
            {"callbacks": {"a": {"_target_": hydra_section.CALLBACKS[0], "b": {"_target_": MINE}}}},
            ["hydra.callbacks.a.b"],
        ),
        ({"job_logging": {"a": "${hydra.job.name}"}}, ["hydra.job_logging.a"]),
        ({"searchpath": ["file://x", "y"]}, []),
        ({"searchpath": ["pkg://os", "x"]}, ["hydra.searchpath"]),
        ({"overrides": {"task": ["x=1"]}}, ["hydra.overrides"]),
        ({"launcher": {"_target_": "x.Y"}}, ["hydra.launcher"]),
    ],
)
def test_sections(section, keys):
    found = [one.key for one in problems(section)]
    assert len(found) == len(keys), found
    assert all(map(str.startswith, found, keys)), found


def test_overrides_are_hydras_record_of_those_that_were_typed():
    both = {"overrides": {"hydra": ["hydra.a=1"], "task": ["b=2"]}}
    assert problems(both, ["b=2", "hydra.a=1"]) == []
    assert [one.key for one in problems(both, ["b=2"])] == ["hydra.overrides"]


def test_a_section_that_is_none():
    (problem,) = hydra_section.problems(OmegaConf.create({"callbacks": {}}), [])
    assert "is changed key by key" in problem.message
    assert hydra_section.raw(OmegaConf.create([1])) == {"callbacks": [1]}
    assert hydra_section.mapping(None) == hydra_section.mapping("a") == {}
    assert [one.key for one in hydra_section._literals({"job": "${a}"})] == ["hydra.job"]
    assert [one.key for one in hydra_section._literals({"mode": "???"})] == ["hydra.mode"]
    assert list(hydra_section._callbacks(None, importing=False)) == []
    for callbacks in ("a", {"a": "b"}, {"a": {}}):
        assert len(list(hydra_section._callbacks(callbacks, importing=False))) == 1


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        (None, []),
        ("a", ["k"]),
        ({"handlers": {"a": {"class": HANDLERS[0], "stream": "ext://sys.stdout"}}}, []),
        ({"handlers": {"a": {"class": HANDLERS[0], "stream": "ext://a"}}}, ["k.handlers.a.stream"]),
        ({"handlers": {"a": {"class": HANDLERS[0], "x": "cfg://a"}}}, ["k.handlers.a.x"]),
        ({"handlers": {"a": {"class": "logging.FileHandler"}}}, ["k.handlers.a.class"]),
        ({"handlers": {"a": {"class": "logging.handlers.FileHandler"}}}, ["k.handlers.a.class"]),
        ({"handlers": {"a": {"class": "os.x"}}}, ["k.handlers.a.class"]),
        ({"handlers": {"a": {"class": 3}}}, ["k.handlers.a.class"]),
        ({"handlers": {"a": {"class": "tests.FileHandler"}}}, []),
        ({"handlers": {"a": {"()": MINE}}}, []),
        ({"formatters": {"a": {"()": HANDLERS[0]}}}, ["k.formatters.a.()"]),
        ({"formatters": {"a": {"()": "colorlog.ColoredFormatter"}}}, []),
        ({"formatters": {"a": {".": {"x": 1}}}}, ["k.formatters.a.."]),
        ({"formatters": {"a": {"b": {"class": MINE}}}}, ["k.formatters.a.b.class"]),
        ({"formatters": {"class": MINE}}, ["k.formatters.class"]),
        ({"filters": {"a": {"()": MINE}}}, ["k.filters.a.()"]),
        ({"class": MINE}, ["k.class"]),
    ],
)
def test_logging(section, keys):
    assert [one.key for one in hydra_section._logging(section, "k", importing=False)] == keys


def test_refusals_of_handlers_say_why():
    def said(name, importing=False):
        section = {"handlers": {"a": {"class": name}}}
        return [one.message for one in hydra_section._logging(section, "k", importing)]

    assert "writes to a file of the configuration's choice" in said("logging.FileHandler")[0]
    assert said("other.x")[0].endswith("If it is yours: --trust other")
    assert said("os.x")[0].endswith("objects of a package that you trust")
    assert said(MINE, importing=True) == [f"{MINE} is not a subclass of logging.Handler"]
    assert "reaches for an internal name" in said("tests.__x__.y")[0]
    assert "test_hydra_section" in said(f"{MINE}s", importing=True)[0]


def test_callbacks_are_of_hydras_kind():
    nodes = {"a": {"_target_": MINE, "b": {"_target_": MINE}}}
    (problem,) = hydra_section._callbacks(nodes, importing=True)
    assert problem.key == "hydra.callbacks.a._target_"
    assert problem.message.endswith("is not a subclass of hydra.experimental.callback.Callback")


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (None, None),
        ([], None),
        (["a", "file://a"], None),
        (("a",), None),
        ("a", "got 'a', expected a list of folders"),
        ([3], "3 is not the name of a folder"),
        (["${a}"], "'${a}' is not the name of a folder; an interpolation"),
        (["pkg://tests/config/"], None),
        (["pkg://tests.config"], None),
        (["pkg://a/b"], "pkg://a/b imports a.b, which is not trusted. If it is yours: --trust a"),
        (["http://a/b"], "http://a/b would import a.b; give a folder"),
    ],
)
def test_search_paths(entries, reason):
    found = [one.message for one in search_path_problems(entries)]
    assert len(found) == (reason is not None)
    assert not found or found[0].startswith(reason)


@pytest.mark.parametrize(
    ("sweep", "keys"),
    [
        ({"dir": None, "subdir": ".."}, []),
        ({"dir": "a", "subdir": "b"}, []),
        ({"dir": "a", "subdir": ".."}, ["hydra.sweep.subdir"]),
        ({"dir": "a", "subdir": "${b}/.."}, []),
        ({"dir": "a"}, []),
        ({"dir": "/a/b", "subdir": "b"}, ["hydra.sweep.dir"]),
        ({"dir": "${c}/x"}, []),
    ],
)
def test_places_of_sweeps(sweep, keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_ALLOW_WRITE", raising=False)
    monkeypatch.delenv("PENSTOCK_NAMED", raising=False)
    assert [one.key for one in sweep_problems(OmegaConf.create({"sweep": sweep}))] == keys


def test_texts_at_any_depth():
    node = {"a": ["x", {"b": "y", "c": 3}]}
    assert list(hydra_section.texts(node, "k")) == [("k.a[0]", "x"), ("k.a[1].b", "y")]
    assert list(hydra_section.texts("x", "k")) == [("k", "x")]
    assert list(hydra_section.called(node, "k", "b")) == [("k.a[1].b", "y")]
