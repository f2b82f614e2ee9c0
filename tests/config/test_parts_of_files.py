"""Parts of files: nodes that overrule others, missing keys, comments, sizes, and growth."""

import io
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock.config import announcement, hydra_internals, hydra_output, unknown_keys, yaml_sizes
from penstock.config.hydra_internals import Growth, bounded
from penstock.config.instantiate import _call, _inside, _is_of_files, make
from penstock.config.step_order import settle
from penstock.config.whole_nodes import _is_splits, _touches, overruled
from penstock.config.yaml_comments import YamlKey, annotated, package_of
from penstock.config.yaml_comments import entries as keys_of_text
from penstock.errors import ConfigError, DataError, Problem


@pytest.mark.parametrize(
    ("files", "config", "keys"),
    [
        ([("loader/a", False, {"seed": 1}), ("model/b", False, {"seed": 2})], {"seed": 2}, "seed"),
        ([("loader/a", False, {"seed": 1}), ("model/b", False, {"seed": 1})], {"seed": 1}, ""),
        ([("loader/a", False, {"seed": 1})], {"seed": 2}, ""),
        ([("loader/a", False, {"seed": 1}), ("loader/b", False, {"seed": 2})], {"seed": 2}, ""),
        ([("loader/a", False, {"loader": {"x": 1}}), ("b/c", False, {"loader": {"x": 2}})], {}, ""),
        (
            [("loader/a", True, {"loader": {"x": 1}}), ("b/c", False, {"loader": {"x": 2}})],
            {"loader": {"x": 2}},
            "loader.x",
        ),
        ([("a/a", False, {"seed": 1}), ("experiment/b", False, {"seed": 2})], {"seed": 2}, ""),
        ([("experiment/a", False, {"seed": 1}), ("b/b", False, {"seed": 2})], {"seed": 2}, ""),
        ([("a/a", False, {"x": {}}), ("b/b", False, {"x": {"y": 2}})], {"x": {"y": 2}}, ""),
        ([("a/a", False, {"x": {"y": 1}}), ("b/b", False, {"x": 2})], {"x": 2}, "x.y"),
        ([("a/a", False, {"x": 1}), ("b/b", False, {"x": {"y": 1}})], {"x": {"y": 1}}, "x"),
        ([("a/a", False, {"x": 1}), ("b/b", False, {"xy": 1})], {}, ""),
        ([("config", False, {"seed": 1}), ("b/b", False, {"seed": 2})], {"seed": 2}, ""),
        ([("hydra/x/a", False, {"seed": 1}), ("b/b", False, {"seed": 2})], {"seed": 2}, ""),
        ([("a/a", False, {"seed": 1}), ("hydra/b", False, {"seed": 2})], {"seed": 2}, ""),
    ],
)
def test_keys_that_a_later_option_sets_too(files, config, keys):
    problems = list(overruled(OmegaConf.create(config), files))
    assert ",".join(problem.key for problem in problems) == keys
    if keys:
        (path, *_), (later, *_) = files
        assert f"{path}.yaml sets it to 1, and {later}.yaml, which comes" in problems[0].message


def test_keys_that_touch():
    assert _touches("a.b", "a")
    assert _touches("a", "a.b")
    assert _touches("a", "a")
    assert not _touches("a.b", "a.c")
    assert not _touches("ab", "a")


def test_nodes_for_each_split():
    node = {"_target_": "a.B"}
    for value, splits in (
        ({"train": node, "val": node}, True),
        ({"val": node}, True),
        ({}, False),
        ({"train": node, "other": node}, False),
        ({"train": node, "val": {}}, False),
        ({"train": node, "val": "${a}"}, False),
        ({"train": 3}, False),
    ):
        assert bool(_is_splits(OmegaConf.create(value))) == splits, value


def test_how_much_interpolations_may_give(monkeypatch):
    for name, most in (("_MOST_STEPS", 3), ("_MOST_GIVEN", 5), ("_MOST_VALUES", 2)):
        monkeypatch.setattr(hydra_internals, name, most)
    growth = Growth()
    growth.values = 2
    for result in ("abc", 7, "de"):
        growth.add(result)
    assert (growth.steps, growth.given) == (3, 5)
    with pytest.raises(ConfigError, match="more than 3 results or 0 MiB of text"):
        growth.add(7)
    growth = Growth()
    with pytest.raises(ConfigError, match="write them out"):
        growth.add("abcdef")
    growth = Growth()
    growth.values = 3
    assert growth.is_too_much
    config = OmegaConf.create({"a": 1, **dict.fromkeys("bcde", "${a}")})
    with bounded() as growth, pytest.raises(OmegaConfBaseException, match="write them out"):
        assert [config[name] for name in "bcde"] == []
    assert growth.steps == 4
    with bounded(each=True) as growth:
        assert [config[name] for name in "bcde"] == [1] * 4
    assert growth.steps == 1


def checked(text):
    file = io.StringIO(text)
    file.name = "x.yaml"
    yaml_sizes.check(file)


def test_sizes_of_files(monkeypatch):
    monkeypatch.setattr(yaml_sizes, "_DEEPEST", 3)
    checked("a: [[b]]")
    with pytest.raises(ValueError, match=r"x\.yaml has values inside of more than 3 others"):
        checked("a: [[[b]]]")
    checked("a: [[b]]\nc: [[d]]")
    with pytest.raises(ValueError, match=r"x\.yaml: \*a refers to what it is in"):
        checked("a: &a [*a]")
    monkeypatch.setattr(yaml_sizes, "MOST_TEXT", 1000)
    checked("x" * 2000)
    word = "x" * 100
    for value, most in ((word, 3), (f"[{word}]", 2), (f"{{b: {word}}}", 1)):
        text = f"a: &a {value}\nc: [" + "*a, " * most
        checked(f"{text}]")
        with pytest.raises(ValueError, match="its aliases stand for more than 0 MiB"):
            checked(f"{text}*a]")


def test_comments_of_keys():
    text = (
        "# @package a.b\nx: 1  # one\ny:  # two\n  z: [1,\n    2]  # three\n  w: 'a # b'\nv: {}\n"
    )
    assert keys_of_text(text, "p") == [
        YamlKey("p.x", "1", "one", 1),
        YamlKey("p.y", "", "two", 2),
        YamlKey("p.y.z", "...", "", 3),
        YamlKey("p.y.w", "'a # b'", "", 5),
        YamlKey("p.v", "{}", "", 6),
    ]
    assert keys_of_text("3") == []
    assert package_of(text, "g") == "a.b"
    assert package_of("x: 1", "g/h") == "g.h"
    assert package_of("# @package _global_\n", "g") == ""
    said = {"a.x": "one", "a.y": "two", "a.z": "three"}
    short, wide = "y: " + "b" * 96, "z: " + "b" * 97
    assert annotated(f"x: 1\n{short}\n{wide}\nw: 2", said, "a").splitlines() == [
        "x: 1  # one",
        f"{short}  # two",
        wide,
        "w: 2",
    ]
    assert annotated("x:\n  - 1\n", {"x": "no"}) == "x:\n  - 1\n"


def test_lines_of_a_help_text():
    lines = [
        "loader: fast, debug",
        "    a command that is longer than the terminal is wide",
        "x  y z",
    ]
    text = "\n".join([*lines, "key=value  " + "word " * 8])
    assert hydra_output._fitted(text, 40).splitlines() == [
        "  loader: fast, debug",
        lines[1],
        "x  y z",
        "key=value  word word word word word word",
        "           word word",
    ]
    assert hydra_output._fitted("loader: " + ", ".join(["fast"] * 8), 40).splitlines() == [
        "  loader: fast, fast, fast, fast, fast,",
        "    fast, fast, fast",
    ]
    exactly = "a" * 19 + " " + "b" * 20
    assert hydra_output._fitted(exactly, 40) == exactly
    assert hydra_output._fitted(exactly + "c", 40) == "a" * 19 + "\n" + "b" * 20 + "c"
    assert hydra_output._fitted("a" * 20 + " " + "b" * 15, 30) == "a" * 20 + " " + "b" * 15


def test_steps_in_order():
    def settled(steps, name="train"):
        problems = []
        result = settle({name: steps}, problems)
        return list(result[name]), [f"{one.key}: {one.message}" for one in problems]

    a, b = {"_target_": "a"}, {"_target_": "b"}
    assert settle("text", []) == "text"
    assert settle({"train": None, "other": {"x": {"_after_": "y"}}}, []) == {
        "train": None,
        "other": {"x": {"_after_": "y"}},
    }
    assert settled({"a": {**a, "_after_": "b"}, "b": b}) == (["b", "a"], [])
    assert settled({"a": a, "b": {**b, "_before_": "a"}}) == (["b", "a"], [])
    assert settled({"a": {**a, "_after_": None}, "b": None}) == (["a", "b"], [])
    assert settled({"a": {**a, "_after_": "b", "_before_": "b"}, "b": b})[1] == [
        "transform.train.a: has both _after_ and _before_; one of them says where it goes"
    ]
    assert settled({"a": {"_after_": "c"}, "cc": b})[1] == [
        "transform.train.a: _after_: c names no step (did you mean 'cc'?); there is cc"
    ]
    assert settled({"a": {"_after_": 3}})[1] == [
        "transform.train.a: _after_: 3 names no step; there is no other step"
    ]
    order, said = settled({"a": {"_after_": "b"}, "b": {"_before_": "a"}, "c": b})
    assert order == ["c", "a", "b"]
    assert [text.partition(",")[0] for text in said] == [
        "transform.train.a: _after_: b leads back to a itself",
        "transform.train.b: _before_: a leads back to b itself",
    ]


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (None, "?"),
        ({}, "?"),
        ({"_target_": "a.B"}, "B"),
        ({"train": {"_target_": "a.B"}}, "B"),
        ({"_target_": "a.C", "train": {"_target_": "a.B"}}, "C"),
        ({"train": 3}, "?"),
        ({"_target_": "a.torchvision_model", "name": "resnet18"}, "resnet18"),
        ({"_target_": "a.torchvision_model"}, "torchvision_model"),
        ({"_target_": "a.torch", "name": "resnet18"}, "torch"),
    ],
)
def test_names_of_nodes(node, name):
    assert announcement.name_of(node) == name


@pytest.mark.parametrize(
    ("own", "key", "inside"),
    [
        ("", "a.b", "a.b"),
        ("a.b", "a.b", "a.b"),
        ("a.b.c", "a.b", "a.b.c"),
        ("a.bc", "a.b", "a.b.bc"),
        ("a", "a.b", "a.b.a"),
        ("c.d", "a.b", "a.b.c.d"),
        ("c", "a", "a.c"),
    ],
)
def test_a_parts_problem_has_its_key_in_the_configuration(own, key, inside):
    assert _inside(Problem(own, "wrong"), key) == Problem(inside, "wrong")


def failing(error):
    def fail():
        raise error

    fail.__module__ = "torchvision.datasets.mnist"
    return fail


def test_errors_of_the_files_of_torchvisions_datasets():
    with pytest.raises(DataError, match="k: fail: its files cannot be read: KeyError"):
        _call(failing(KeyError()), [], {}, "k")
    with pytest.raises(DataError, match="k: fail: its files cannot be read: wrong"):
        _call(failing(ValueError("wrong")), [], {}, "k")
    for error in (ImportError("x"), MemoryError("x")):
        with pytest.raises(type(error)):
            _call(failing(error), [], {}, "k")
    with pytest.raises(ConfigError, match="k: fail refuses its arguments"):
        _call(failing(KeyError()), [3], {}, "k")

    def verify_str_arg():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x") as caught:
        verify_str_arg()
    assert not _is_of_files(caught.value)


def test_positional_arguments_are_built_too():
    node = {"_target_": "torch.nn.Linear", "_args_": [2, 3]}
    layer = make(node, "k", {"in_features": 5, "bias": False})
    assert (layer.in_features, layer.out_features, layer.bias) == (2, 3, None)
    assert make({**node, "_partial_": True}, "k")().bias is not None
    assert make(("a", "torch.uint8"), "k")[0] == "a"
    with pytest.raises(ConfigError, match=r"k._args_\[1\]._target_"):
        make({"_target_": "torch.nn.Linear", "_args_": [2, {"_target_": "os.x"}]}, "k")


def test_options_that_a_group_lacks():
    problem = unknown_keys.option("loader", "FASTS", ["fast", "debug"])
    assert problem == Problem(
        "loader", "has no 'FASTS' (did you mean 'fast'?); choose one of fast, debug"
    )
    assert unknown_keys.option("hydra/sweeper", "ax", ["basic"]).message == (
        "has no 'ax'; choose one of basic; plugins bring more: pip install hydra-ax-sweeper"
    )
    config = OmegaConf.create(
        {"a": {"size": 1}, "b": {"size": 2}, "size": {}, "c": {"size": 3}, "hydra": {"size": 3}}
    )
    said = unknown_keys._elsewhere("size", config)
    assert said == " (did you mean a.size or b.size or size?)"
    assert unknown_keys._elsewhere("none", config) == ""
    assert unknown_keys._child(config, "none") is unknown_keys._child(3, "a") is None


TREE = {
    "dataset": {"_target_": "penstock.datasets.face_landmarks.FaceLandmarks", "root": "x"},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 1},
    "batch": {"size": 3, "zoom": 1},
    "limits": {},
    "hydra": {},
    "task": "fit",
}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dataset.limits", "is a section of its own: set limits.pixels"),
        ("dataset.limit", "unknown key 'limit'"),
        ("optimizer.limits", "unknown key 'limits'"),
        ("optimizer.momentum", "is not in the YAML, but SGD takes it: add it with +optimizer.mom"),
        ("optimizer.lrs", "unknown key 'lrs' (did you mean 'lr'?); optimizer has lr, "),
        ("batch.sizes", "unknown key 'sizes' (did you mean 'size'?); batch has size, zoom"),
        ("batch.a.b", "unknown key 'a'; batch has size, zoom"),
        ("limits.zoom", "unknown key 'zoom' (did you mean batch.zoom?); limits has no keys"),
        ("limits.zzz", "unknown key 'zzz'; limits has no keys"),
        ("zoom", "unknown key (did you mean batch.zoom?); there are batch, dataset, "),
        ("batc", "unknown key (did you mean 'batch'?); there are batch, dataset, "),
        ("group_a", "unknown key (did you mean 'group'?); there are batch, dataset, group, "),
        ("split", "is a key of task=digest, and not of task=fit"),
    ],
)
def test_keys_that_a_configuration_lacks(key, message):
    files = {"task/digest": SimpleNamespace(config={"split": "val"}), "task/fit": None}
    files["task/check"] = SimpleNamespace(config={})
    loader = SimpleNamespace(
        repository=SimpleNamespace(load_config=files.get),
        get_group_options=lambda group: ["check", "digest", "fit"],
        list_groups=lambda path: ["group", "hydra"],
    )
    problem = unknown_keys.key(key, "3", OmegaConf.create(TREE), loader)
    assert problem.key == key
    assert problem.message.startswith(message), problem.message
    assert "hydra" not in problem.message
    assert "_target_" not in problem.message
