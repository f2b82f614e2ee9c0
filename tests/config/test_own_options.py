"""Options of ours on a command line, what a project adds, and commands that are suggested."""

import os
from types import SimpleNamespace

import pytest

from penstock.config import announcement, own_command, own_options, preflight, project
from penstock.config.composition import Composed
from penstock.config.disclosure import Plain
from penstock.config.own_options import taken
from penstock.config.project import Project
from penstock.errors import ConfigError, Problem

TABLE = "[tool.penstock]\ntrust = ['mine']\nconfig_dir = 'conf'\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a project that only this user can write."""
    for variable in own_options.allowances.OPTIONS.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv(project.VARIABLE, raising=False)
    monkeypatch.setattr(own_options.launch, "is_of_ours", lambda: False)
    monkeypatch.setattr(project, "why_others_write", lambda path, state: None)
    (tmp_path / "conf").mkdir()
    (tmp_path / "pyproject.toml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*words):
    """Options, overrides, trusted packages, whether there is a project, and the announcements."""
    said = []
    with taken(words, said.append) as (options, overrides):
        trusted, ours = os.environ["PENSTOCK_TRUST"], os.environ[project.VARIABLE]
    return options, overrides, trusted, bool(ours), said


def test_a_project_counts_where_nothing_was_typed(folder):
    conf = str(folder / "conf")
    both = "trusting mine and reading conf/, as pyproject.toml says"
    assert read("a=1") == (["--config-dir", conf], ["a=1"], "mine", True, [both])
    reading = "reading conf/, as pyproject.toml says"
    options = ["--config-dir", conf]
    assert read("--trust", "yours") == (options, [], "yours", True, [reading])
    trusting = "trusting mine, as pyproject.toml says"
    assert read("--config-dir", "x") == (["--config-dir", "x"], [], "mine", True, [trusting])
    typed = ["--config-dir", "x"]
    assert read("--trust", "yours", *typed) == (typed, [], "yours", True, [])
    (folder / "pyproject.toml").write_text("[tool.penstock]\ntrust = ['mine']\n")
    assert read() == ([], [], "mine", True, [trusting])


def test_who_presses_tab_trusts_nobody(folder):
    options, _, trusted, ours, said = read("-sc", "query=bash")
    assert options == ["-sc", "--config-dir", str(folder / "conf")]
    assert (trusted, ours, said) == ("", False, [])


def test_a_file_that_others_can_write_is_refused_where_it_counts(folder, monkeypatch):
    monkeypatch.setattr(project, "why_others_write", lambda path, state: "others write")
    for words in ((), ("--trust", "yours"), ("--config-dir", "x")):
        with pytest.raises(ConfigError, match="is not followed, as others write"):
            read(*words)
    assert read("--trust", "yours", "--config-dir", "x")[2:] == ("yours", False, [])


def test_a_process_that_was_started_takes_the_project_of_its_starter(folder, monkeypatch):
    monkeypatch.setattr(own_options.launch, "is_of_ours", lambda: True)
    assert read() == ([], [], "", False, [])
    monkeypatch.setenv(project.VARIABLE, project.as_variable(Project("/a")))
    assert read() == ([], [], "", True, [])


def test_a_trusted_package_of_the_folder(folder):
    (folder / "pyproject.toml").unlink()
    (folder / "mine_alone.py").write_text("")
    assert read("--trust", "mine_alone")[2:] == ("mine_alone", True, [])
    assert read("--trust", "no_such_package")[2:] == ("no_such_package", False, [])
    assert read("-sc", "--trust", "mine_alone")[2:] == ("mine_alone", False, [])


def test_options_stand_anywhere(folder, monkeypatch):
    (folder / "pyproject.toml").unlink()
    monkeypatch.setenv("PENSTOCK_TRUST", "z, y")
    words = ("a=1", "-m", "b=2", "--trust", "x,z", "a=1")
    assert read(*words) == (["-m"], ["a=1", "b=2", "a=1"], "z,y,x", False, [])
    assert os.environ["PENSTOCK_TRUST"] == "z, y"
    assert read("--help", "keys")[:2] == (["--help"], ["hydra/help=keys"])
    assert read("keys")[:2] == ([], ["keys"])
    with pytest.raises(ConfigError, match="--nope: there is no such option"):
        read("--nope")
    with pytest.raises(ConfigError, match="'a-b' is not the name of a package"):
        read("--trust", "a-b")


def test_versions(folder, capsys):
    with pytest.raises(SystemExit) as left:
        read("--version")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("Penstock ")


def test_packages_of_the_folder_take_the_place_of_none(folder, monkeypatch):
    for name in ("json", "this", "mine_too"):
        (folder / f"{name}.py").write_text("")
    assert project.of_trusted(folder, ["json", "this.x"]) is None
    (folder / "mine_alone").mkdir()
    (folder / "mine_alone" / "__init__.py").write_text("")
    asked = []
    monkeypatch.setattr(project, "why_others_write", lambda path, state: asked.append(path))
    names = ["mine_alone.x", "mine_too"]
    assert project.of_trusted(folder, names) == Project(str(folder.resolve()), last=True)
    inside = folder / "mine_alone"
    assert asked == [inside, inside / "__init__.py", folder / "mine_too.py"]
    (folder / "pyproject.toml").write_text("]]")
    assert project.find(folder) is None, "it names us nowhere"


@pytest.mark.parametrize(
    ("said", "folder_of_ours", "trust", "words"),
    [
        (None, None, None, []),
        (None, None, "mine", ["--trust", "mine"]),
        (None, "/c", None, ["--config-dir", "/c"]),
        (Project("/a", ("mine",), "/c"), "/c", "mine", []),
        (Project("/a", ("mine",), "/d"), "/c", "mine", ["--config-dir", "/c"]),
        (Project("/a", ("mine", "b"), "/c"), "/c", "mine", ["--trust", "mine"]),
        (Project("/a", (), "/c"), None, "mine", ["--trust", "mine"]),
    ],
)
def test_options_of_a_command_that_is_suggested(said, folder_of_ours, trust, words, monkeypatch):
    for variable in own_options.allowances.OPTIONS.values():
        monkeypatch.delenv(variable, raising=False)
    if trust:
        monkeypatch.setenv("PENSTOCK_TRUST", trust)
    monkeypatch.setattr(own_command.project, "current", lambda: said)
    monkeypatch.setattr(own_command, "config_dir", lambda: folder_of_ours)
    assert own_command._typed_options() == words
    monkeypatch.setenv("PENSTOCK_ALLOW_ENV", "mine")
    assert "--allow-env" in own_command._typed_options()


def test_words_that_a_command_leaves_out(monkeypatch):
    words = ["seed=1", "run_dir=/x", "resume=/y", "+task.a=1", "cache_dir=/z"]
    monkeypatch.setattr(own_command, "overrides", lambda: words)
    monkeypatch.setattr(own_command, "suggested", lambda *words: words)
    monkeypatch.setattr(own_command.outputs, "may_stand", lambda values: True)
    assert own_command.command_line("b=2") == ("seed=1", "cache_dir=/z", "b=2")
    assert not own_command.must_be_typed("cache_dir=/z")
    monkeypatch.setattr(
        own_command.outputs, "may_stand", lambda values: "cache_dir" not in dict(values)
    )
    assert own_command.command_line("b=2") == ("resume=/y", "seed=1", "b=2")
    assert own_command.must_be_typed("cache_dir=/z")
    assert not own_command.must_be_typed("seed=1")
    assert own_command.must_be_typed("+loader.ray.runtime_env.working_dir=x")
    again = [*words, "+loader.ray.runtime_env.a=1", "loader.ray={runtime_env: {a: 1}}"]
    monkeypatch.setattr(own_command, "overrides", lambda: again)
    assert own_command._typed_again() == again[-2:]


@pytest.mark.parametrize(
    ("size", "words", "lines"),
    [
        (1, ("seed=1",), ["seed=1"]),
        (2, ("seed=1",), ["seed=1", "distributed=ddp"]),
        (2, ("seed=1", "distributed=none"), ["seed=1", "distributed=none"]),
        (2, ("+distributed.x=1",), ["+distributed.x=1"]),
        (1, (), []),
    ],
)
def test_processes_that_a_launcher_started_share_gradients(size, words, lines, monkeypatch):
    monkeypatch.setattr(preflight, "launched_size", lambda: size)
    monkeypatch.setattr(preflight, "run", lambda composer, lines: lines)
    monkeypatch.setattr(preflight, "Composer", lambda config_dir: None)
    assert preflight.compose(*words) == lines
    monkeypatch.setattr(preflight, "run", lambda composer, lines: None)
    with pytest.raises(ConfigError, match=r"hydra.mode: a sweep is several"):
        preflight.compose(*words)


@pytest.mark.parametrize("task", ["fit", "report"])
@pytest.mark.parametrize("wrong", [True, False])
def test_a_run_begins_unless_something_is_wrong(task, wrong):
    import penstock

    plain, begun = penstock.compose().plain() | {"task": task}, []
    config, problems = preflight.examine(plain, begun.append, wrong)
    assert problems == []
    assert begun == ([] if wrong else [config])
    assert preflight.examine(plain)[1] == []
    unknown = plain | {"model": {**plain["model"], "no_such": 1}}
    begun.clear()
    assert len(preflight.examine(unknown, begun.append)[1]) == (task == "fit")
    begun.clear()
    assert preflight.examine(plain | {"seed": "x"}, begun.append)[1] != []
    assert begun == []


@pytest.mark.parametrize(
    ("lines", "target", "keys"),
    [
        (["tracker=[a,b]"], True, ["tracker"]),
        (["tracker=[a,b]"], False, []),
        (["tracker=[a]"], True, []),
        (["tracker=a"], True, []),
        (["tracker=[a,b]", "tracker=c"], True, []),
        (["tracker=c", "tracker=[a,b]"], True, ["tracker"]),
        ([], True, []),
    ],
)
def test_several_trackers_replace_each_other(lines, target, keys, monkeypatch):
    monkeypatch.setattr(preflight, "examine", lambda config, begin, wrong, lines: (None, []))
    tracker = {"_target_": "x"} if target else {"a": {}}
    composed = Composed(Plain({"tracker": tracker}), lines=lines, complete=True)
    _, problems = preflight.check_job(composed)
    assert [problem.key for problem in problems] == keys
    assert not problems or "the file of one of [a,b] does not begin" in problems[0].message
    assert preflight.check_job(Composed(Plain({"tracker": tracker}), lines=lines))[1] == []


def test_a_problem_is_reported_once(monkeypatch):
    more = [Problem(key, "later") for key in ("a", "a.b", "a.b.c", "ab", "d")]
    asked = []

    def examine(config, begin, wrong, lines):
        asked.append(wrong)
        return "typed", more

    monkeypatch.setattr(preflight, "examine", examine)
    composed = Composed(problems=[Problem("a.b", "first")], complete=True)
    config, problems = preflight.check_job(composed)
    assert (config, asked) == ("typed", [True])
    assert [problem.key for problem in problems] == ["a.b", "a.b.c", "ab", "d"]
    preflight.check_job(Composed(complete=True))
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({}, "fit: training Net on Data for 2 epochs; run folder run"),
        ({"resume": "auto"}, "fit: training Net on Data for 2 epochs; run folder run"),
        ({"resume": "old"}, "fit: training Net on Data for 2 epochs; resuming old"),
        ({"epochs": 1}, "fit: training Net on Data for 1 epoch; run folder run"),
        ({"steps": 9}, "fit: training Net on Data for 2 epochs, 9 steps at most; run folder run"),
    ],
)
def test_the_line_of_a_fit(config, line):
    trainer = SimpleNamespace(max_epochs=config.get("epochs", 2), max_steps=config.get("steps"))
    resume = config.get("resume")
    shown = {
        "resume": resume,
        "run_dir": "run",
        "dataset": {"_target_": "a.Data"},
        "model": {"_target_": "a.Net"},
        **dict.fromkeys(("checkpoint", "run", "sample", "runs")),
    }
    run = SimpleNamespace(
        task="fit", trainer=trainer, resume=resume, epoch=0, step=0, written=lambda: shown
    )
    assert announcement.of_run(run) == line
