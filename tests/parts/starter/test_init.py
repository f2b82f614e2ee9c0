"""`penstock init FOLDER`, and the project that it writes."""

import os
import shlex
import shutil
import stat
import sys

import pytest

from penstock.addons.starter import init
from tests.support import warm
from tests.support.program import ROOT, run

TRUSTED = ["--trust", "my_birds", "--config-dir", "conf"]  # as its run.py says


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A new project, in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("work") / "my birds"
    assert init.run([str(folder)]) == 0
    return folder


@pytest.fixture
def birds(made, tmp_path, monkeypatch):
    """The working folder is a copy of it."""
    folder = tmp_path / "my birds"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    yield folder
    forget("my_birds")


def forget(package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


DIGEST = ["dataset=my_birds", "task=digest", "steps=1"]
QUICK = ["trainer=quick", "run_dir=outputs/first", "loader.num_workers=0"]


def program(folder, *words):
    """A process of the project's run.py."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "run.py", *words]
    return warm.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_new_project_runs_without_an_option(birds):
    done = program(birds, *DIGEST, "loader.num_workers=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("total ")


@pytest.mark.thorough
def test_the_commands_that_it_suggests_work_in_its_folder(birds):
    """And in all processes of a run."""
    diverges = ["dataset=my_birds", *QUICK, "optimizer.lr=1e30"]
    for more in ([], ["distributed=ddp", "distributed.nproc=2", "run_dir=outputs/second"]):
        done = program(birds, *diverges, *more)
        assert done.returncode == 1
        command = next(line for line in done.stderr.splitlines() if "task=replay" in line)
        assert command.startswith("  python run.py dataset=my_birds ")
        again = program(birds, *shlex.split(command)[2:])
        assert again.returncode == 0, again.stderr


TYPED = """
import sibling
import torch
import torchmetrics


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input": torch.full((4,), float(index)), "label": index % 2}
"""


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """The working folder has a module, what it imports, and one with an installed name."""
    (tmp_path / "typed_rows.py").write_text(TYPED)
    (tmp_path / "sibling.py").write_text("")
    (tmp_path / "torchmetrics.py").write_text("raise SystemExit('this is not what is installed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", ".")])
    yield tmp_path
    forget("typed_rows")
    forget("sibling")


ROWS = [
    "~dataset",
    "+dataset={_target_: typed_rows.Rows}",
    "transform=none",
    "batch.size=4",
    "task=digest",
    "steps=1",
]


def test_the_working_folder_counts_for_what_was_typed_only(typed, capsys):
    done = run(capsys, *ROWS)
    assert done.code == 2
    assert "--trust typed_rows" in done.err
    done = run(capsys, "--trust", "sibling_of_none", *ROWS)
    assert done.code == 2
    assert "typed_rows" not in sys.modules
    os.environ.pop("PENSTOCK_TRUST")
    done = run(capsys, "--trust", "typed_rows", *ROWS, "loader.num_workers=0")
    assert done.code == 0, done.err


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").write_text("kept")
    for folder, reason in ((tmp_path, "is not empty"), (tmp_path / "mine", "is not a folder")):
        done = run(capsys, "init", folder)
        assert done.code == 2
        assert reason in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("words", [[], ["a", "b"], ["--fast"], ["-x", "b"]])
def test_init_takes_one_folder(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(capsys, "init", *words)
    assert done.code == 2
    assert "takes one folder, which is new or empty: python run.py init FOLDER" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("faces", "faces"),
        ("My Faces-2", "my_faces_2"),
        ("3d", "my_3d"),
        ("class", "my_class"),
        ("torch", "my_torch"),
        ("datasets", "my_datasets"),
        ("json", "my_json"),
        ("tests", "my_tests"),
        ("conf", "my_conf"),
        ("synthetic_faces", "my_synthetic_faces"),
        ("detection", "my_detection"),
        ("...", "my_project"),
        ("Gesichter für Ü", "gesichter_f_r"),
        ("my_torch", "my_torch"),
    ],
)
def test_a_packages_name_means_nothing_else(folder, name):
    assert init.package_name(folder) == name


FEW = ["loader=debug", "trainer.max_steps=2", "trainer.pictures=false", "trainer.baseline=false"]


def test_it_trains_at_once(birds, capsys):
    done = run(capsys, *TRUSTED, "dataset=my_birds", *FEW, "run_dir=outputs/one")
    assert done.code == 0, done.err
    assert "ended by max_steps" in done.out


def test_the_files_are_whole(made):
    """No word of the template is left, and only its owner can write."""
    for path in made.rglob("*"):
        if path.suffix in (".md", ".py", ".toml", ".yaml"):
            text = path.read_text()
            assert "my_project" not in text + path.name, path
        assert path.suffix != ".txt"
        assert not path.stat().st_mode & stat.S_IWOTH
