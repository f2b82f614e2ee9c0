"""The table [tool.penstock] of the working folder's pyproject.toml."""

import json
import sys

import pytest

from penstock.config import project
from penstock.config.project import NAME, Project
from penstock.errors import ConfigError


@pytest.fixture
def table(tmp_path):
    """Write a pyproject.toml; gives the folder."""

    def write(text):
        (tmp_path / NAME).write_text(text)
        return tmp_path

    (tmp_path / "conf").mkdir()
    return write


@pytest.mark.parametrize(
    ("text", "trust", "config_dir"),
    [
        ("[tool.penstock]\n", (), None),
        ("[tool.penstock]\ntrust = ['a', 'b']\nconfig_dir = 'conf'\n", ("a", "b"), "conf"),
        ("[tool.penstock]\nconfig_dir = '.'\n", (), "."),
    ],
)
def test_tables(table, text, trust, config_dir):
    folder = table(text)
    found = project.find(folder)
    expected = None if config_dir is None else str((folder / config_dir).resolve())
    assert found == Project(str(folder.resolve()), trust, expected)


@pytest.mark.parametrize(
    "text", ["", "[tool.other]\n", "[tool.other]\na = 'penstock'\n", "# penstock"]
)
def test_files_without_the_table(table, text):
    assert project.find(table(text)) is None


def test_files_that_are_not_there(tmp_path):
    assert project.find(tmp_path) is None
    (tmp_path / NAME).mkdir()
    assert project.find(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("penstock", "is not TOML"),
        ("tool = 'penstock'\n", "is not TOML"),
        ("[tool]\npenstock = 3\n", "tool.penstock: got 3, expected a table"),
        (
            "[tool.penstock]\ntrsut = []\n",
            r"trsut: is not one of trust, config_dir \(did you mean 'tr",
        ),
        ("[tool.penstock]\ntrust = 'a'\n", "trust: got 'a', expected a list of names"),
        ("[tool.penstock]\ntrust = [1]\n", r"trust: got \[1\], expected a list of names"),
        ("[tool.penstock]\nconfig_dir = 3\n", "config_dir: got 3, expected a folder inside of"),
        ("[tool.penstock]\nconfig_dir = ''\n", "config_dir: got '', expected"),
        ('[tool.penstock]\nconfig_dir = "a\\u0000"\n', "config_dir: got .*, expected a folder"),
        ("[tool.penstock]\nconfig_dir = '..'\n", "config_dir: got '..', expected"),
        ("[tool.penstock]\nconfig_dir = 'none'\n", "config_dir: got 'none', expected"),
    ],
)
def test_tables_that_are_refused(table, text, message):
    with pytest.raises(ConfigError, match=message):
        project.find(table(text))


def test_packages_that_were_typed_and_lie_in_the_folder(tmp_path):
    found = project.of_trusted(tmp_path, ["pytest", "torch.nn", "no_such_package"])
    assert found is None
    (tmp_path / "mine_alone").mkdir()
    (tmp_path / "mine_alone" / "__init__.py").touch()
    expected = Project(str(tmp_path.resolve()), last=True)
    assert project.of_trusted(tmp_path, ["no_such_package", "mine_alone.parts"]) == expected


def test_announcements():
    whole = Project("/a", ("b", "c"), "/a/conf")
    assert whole.said(True, True) == f"trusting b, c and reading conf/, as {NAME} says"
    assert whole.said(True, False) == f"trusting b, c, as {NAME} says"
    assert whole.said(False, True) == f"reading conf/, as {NAME} says"
    assert whole.said(False, False) == Project("/a").said(True, True) == ""


def test_a_project_travels_in_a_variable(monkeypatch):
    whole = Project("/a", ("b",), "/a/conf", last=True)
    monkeypatch.setenv(project.VARIABLE, project.as_variable(whole))
    assert project.current() == whole
    assert json.loads(project.as_variable(whole))["trust"] == ["b"]
    monkeypatch.setenv(project.VARIABLE, project.as_variable(None))
    assert project.current() is None


@pytest.mark.parametrize(("last", "place"), [(False, 0), (True, -1)])
def test_a_folder_is_importable_for_a_time(last, place, monkeypatch):
    before = list(sys.path)
    monkeypatch.setenv(project.VARIABLE, project.as_variable(Project("/a", last=last)))
    with project.importable():
        assert sys.path[place] == "/a"
        with project.importable():
            assert sys.path.count("/a") == 1
        assert sys.path.count("/a") == 1
    assert sys.path == before
    monkeypatch.delenv(project.VARIABLE)
    with project.importable():
        assert sys.path == before
