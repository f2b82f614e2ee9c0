"""Overrides as they are read, keys that only a command line sets, and options of our own."""

import os

import pytest
from omegaconf import OmegaConf

from penstock.config import command_line_keys, composition, own_options
from penstock.config.command_line_keys import (
    entries,
    given,
    named,
    of_folder,
    swept,
    typed_values,
    without,
)
from penstock.config.composition import Composer, plain, quoted, with_run_dir
from penstock.config.familiar_names import choice, key
from penstock.errors import ConfigError

RAY = "loader.ray.runtime_env"


@pytest.mark.parametrize(
    ("word", "as_read"),
    [
        ("sample=length > 500", "sample='length > 500'"),
        ("+dataset.filter=a > b", "+dataset.filter='a > b'"),
        ("++dataset.a.filter=a's \\", "++dataset.a.filter='a\\'s \\\\'"),
        (r"sample=a\ b\'", r"sample='a\ b\\\''"),
        ("sample='a b'", "sample='a b'"),
        ("sample=a/b", "sample=a/b"),
        ("sample=[a, b]", "sample=[a, b]"),
        ("samples=a > b", "samples=a > b"),
        ("sample", "sample"),
        ("address=3,12", "address=[3,12]"),
        ("address=(3, 12)", "address=[3,12]"),
        ("address=3,1,2", "address=3,1,2"),
    ],
)
def test_words_that_hydra_cannot_read(word, as_read):
    assert quoted(word) == as_read


def test_hydras_name_of_a_runs_folder():
    assert with_run_dir(["hydra.run.dir=a", "run_dirs=b", "c"]) == ["run_dir=a", "run_dirs=b", "c"]
    assert with_run_dir(["++hydra.run.dir=a"]) == ["run_dir=a"]
    assert with_run_dir(["run_dir=a", "run_dir=b"]) == ["run_dir=a", "run_dir=b"]
    assert with_run_dir(["hydra.run.dir"]) == ["hydra.run.dir"]
    for words in (["hydra.run.dir=a", "run_dir=b"], ["hydra.run.dir=a", "hydra.run.dir=b"]):
        with pytest.raises(ConfigError, match=r"hydra.run.dir: [ab] is another name for run_dir"):
            with_run_dir(words)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("a=3", None),
        ("~a", None),
        ("a", "it has no '='; write key and value as one word, without spaces"),
        ("=3", "it has no key; write key and value as one word, without spaces"),
        ("=", "it has no key; write key and value as one word, without spaces"),
        ("--x=3", "there is no such option, and keys have no dashes before them"),
        ("a=[", "no viable alternative at input '['"),
        ("~a=[", "no viable alternative at input '['"),
    ],
)
def test_words_that_cannot_be_read(word, reason):
    overrides, problems = Composer().parse(["seed=1", word])
    assert len(overrides) == 1 + (reason is None)
    said = [f"cannot be parsed as key=value: {reason}"] if reason else []
    assert [problem.message for problem in problems] == said


def test_the_words_of_an_error_and_of_its_cause():
    error = ValueError("first.\n\n  second:")
    error.__cause__ = KeyError("third\nfourth")
    assert composition._reason(error) == "first; second; 'third\\nfourth'"
    error.__cause__ = ValueError("third\nfourth")
    assert composition._reason(error) == "first; second; third"
    assert composition._reason(ValueError()) == "ValueError"


def test_plain_values_and_those_that_are_missing(monkeypatch):
    monkeypatch.setenv("WHERE", "/data")
    config = OmegaConf.create(
        {"a": {"b": "${oc.env:WHERE}"}, "c": ["${a.b}/x", 3], "hydra": {"d": "${a.b}"}}
    )
    values = plain(config)
    assert values == {"a": {"b": "/data"}, "c": ["/data/x", 3], "hydra": {"d": "/data"}}
    assert {name: origin.text for name, origin in values.origins.items()} == {
        "a.b": "${oc.env:WHERE}",
        "c[0]": "${a.b}/x",
        "hydra.d": "${a.b}",
    }
    wrong = {"a": "???", "b": ["${c}", "${oc.env:NO_SUCH}"], "d": {"e": "???"}}
    with pytest.raises(ConfigError) as caught:
        plain(OmegaConf.create(wrong))
    assert [f"{problem.key}: {problem.message}"[:45] for problem in caught.value.problems] == [
        "a: has no value yet; give it with a=...",
        "b[0]: ${c} leads nowhere; give it a value of ",
        "b[1]: KeyError raised while resolving interpo",
        "d.e: has no value yet; give it with d.e=...",
    ]
    steps = {"train": {"a": {"x": 1, "_after_": "b"}, "b": {"x": 2}}}
    settled = plain(OmegaConf.create({"transform": steps}))["transform"]["train"]
    assert list(settled.items()) == [("b", {"x": 2}), ("a", {"x": 1})]


@pytest.mark.parametrize(
    ("word", "gives"),
    [
        (f"+{RAY}.working_dir=x", True),
        (f"{RAY}={{}}", False),
        (f"{RAY}=null", False),
        (f"~{RAY}", False),
        (f"{RAY}={{a: 1}}", True),
        ("loader.ray={runtime_env: {a: 1}}", True),
        ("loader.ray={runtime_env: {}}", False),
        ("loader.ray={address: x}", False),
        ("+loader={ray: {runtime_env: {a: 1}}}", True),
        ("loader@x=ray", False),
        ("loader.ray.runtime_envs.a=x", False),
        (f"{RAY}.a=1,2", True),
        (f"{RAY}=[", True),
        ("seed={a: 1}", False),
    ],
)
def test_overrides_that_give_what_only_a_command_line_gives(word, gives):
    assert given(word) == (RAY if gives else None)


def test_keys_that_overrides_are_about():
    assert named(f"++{RAY}.a=1") == named(f"~{RAY}") == named(f"{RAY}@x=1") == RAY
    assert named(f"{RAY}s.a=1") is named("loader.ray={}") is None
    assert swept(RAY, "{a: 1}") == RAY
    assert swept("seed", 3) is None
    assert list(typed_values(["a=1,2", "b=[", "~c", "d={e: [f, {g: 3}]}"])) == [
        ("a", 1),
        ("a", 2),
        ("c", None),
        ("d", {"e": ["f", {"g": 3}]}),
        ("d.e", ["f", {"g": 3}]),
        ("d.e[0]", "f"),
        ("d.e[1]", {"g": 3}),
        ("d.e[1].g", 3),
    ]
    assert list(entries("text", "a")) == []


def test_a_folder_gives_none_of_them(tmp_path):
    words = ["seed=1", f"+{RAY}.working_dir=x"]
    with pytest.raises(ConfigError, match=f"{RAY}: .* holds it, and it is taken from the command"):
        of_folder(words, ["seed=2"], tmp_path)
    assert of_folder(words, [f"{RAY}={{}}"], tmp_path) == ["seed=1"]
    config = {"loader": {"ray": {"runtime_env": {"a": 1}, "b": 2}}, "seed": 1}
    assert without(config) == {"loader": {"ray": {"b": 2}}, "seed": 1}
    assert config["loader"]["ray"]["runtime_env"] == {"a": 1}
    assert without({"loader": None}) == {"loader": None}


@pytest.mark.parametrize(
    ("content", "lines", "reasons"),
    [
        ({}, [], []),
        (None, [], []),
        ({"working_dir": "x"}, [], ["comes from a file, and decides what runs"]),
        ({"excludes": ["a"]}, [f"+{RAY}.excludes=[a]"], []),
        ({"excludes": ["a"]}, [f"+{RAY}={{excludes: [a]}}"], []),
        ({"excludes": ["a"]}, [f"+{RAY}.excludes=[b]"], ["comes from a file"]),
        ({"excludes": ["a"]}, [f"+{RAY}.excludes='${{a}}'"], ["holds an interpolation"]),
        ({"excludes": ["a"]}, ["loader.ray={runtime_env: {excludes: [a]}}"], []),
        ({"excluded": ["a"]}, [f"+{RAY}.excluded=[a]"], ["is not handed on, "]),
        ({"env_vars": {"OMP_NUM_THREADS": 1}}, [f"+{RAY}.env_vars.OMP_NUM_THREADS=1"], []),
        ({"env_vars": {"OMP_NUM_THREADS": 1}}, [], ["comes from a file"]),
    ],
)
def test_values_of_such_a_key(content, lines, reasons):
    config = {"loader": {"ray": {"runtime_env": content}}}
    problems = command_line_keys.check(config, lines)
    assert len(problems) == len(reasons), problems
    for problem, reason in zip(problems, reasons, strict=True):
        assert problem.message.startswith(reason)
        assert problem.key == f"{RAY}.{next(iter(content))}"
    assert command_line_keys.check({"loader": None}, lines) == []


@pytest.mark.parametrize(
    ("word", "words", "message"),
    [
        ("--batch.size=3", ["--batch.size=3"], "keys stand without dashes"),
        ("--batch-size", ["a=1", "--batch-size", "32"], "here that is batch.size=32"),
        ("--batch-size", ["32", "--batch-size"], "here that is batch.size=..."),
        ("--batch-size", ["--batch-size", "-x"], "here that is batch.size=..."),
        ("--batch-size", ["--batch-size", "a=3"], "here that is batch.size=..."),
        ("--batch_size=64", ["--batch_size=64", "32"], "here that is batch.size=64"),
    ],
)
def test_options_that_are_keys(word, words, message):
    problem = own_options._no_option(word, words)
    assert problem.key == word.partition("=")[0]
    assert message in problem.message


def test_names_that_other_programs_have():
    assert key("trainer.batch-size", "32") == "batch.size=32"
    assert key("batch_size", "x" * 40) == f"batch.size={'x' * 40}"
    assert key("batch_size", "x" * 41) == "batch.size=..."
    assert key("no_such_name") is None
    assert choice("model", "Res-Net18") == "model=torchvision model.name=Res-Net18"
    assert choice("models", "resnet18") is None
    assert choice("model", "no_such_name") is None


def test_variables_for_a_time(monkeypatch):
    monkeypatch.setenv("A_KEPT", "before")
    monkeypatch.setenv("A_SAME", "before")
    monkeypatch.delenv("A_NEW", raising=False)
    with own_options.environment_with({"A_KEPT": "now", "A_NEW": "now", "A_SAME": None}):
        assert (os.environ["A_KEPT"], os.environ["A_NEW"]) == ("now", "now")
        assert os.environ["A_SAME"] == "before"
        os.environ["A_SAME"] = "changed"
    assert (os.environ["A_KEPT"], os.environ["A_SAME"]) == ("before", "before")
    assert "A_NEW" not in os.environ
