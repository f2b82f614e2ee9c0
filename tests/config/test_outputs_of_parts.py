"""Places that arguments of parts and sweeps name, and folders that are remembered."""

import json

import pytest

from penstock.config import outputs
from penstock.config.outputs import Place, check_allowed, check_sweep, of_part

FACES = "penstock.datasets.synthetic_faces.SyntheticFaces"
VISION = "torchvision.datasets.MNIST"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working folder and a cache of its own, beside folders elsewhere."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    monkeypatch.delenv(outputs.VARIABLE, raising=False)
    monkeypatch.delenv(outputs.NAMED, raising=False)
    return folder


@pytest.mark.parametrize(
    ("key", "node", "refused"),
    [
        ("dataset", {"_target_": FACES, "root": "/a"}, ["dataset.root"]),
        ("dataset", {"_target_": FACES, "root": "faces"}, []),
        ("dataset", {"_target_": FACES, "root": None}, []),
        ("dataset", {"_target_": FACES, "file": "/a"}, []),
        ("dataset", {"_target_": "mine.Data", "root": "/a"}, []),
        ("dataset", {"_target_": "mine.Data", "cache_dir": "/a"}, ["dataset.cache_dir"]),
        ("dataset", {"_target_": VISION, "root": "/a", "download": True}, ["dataset.root"]),
        ("dataset", {"_target_": VISION, "root": "/a", "download": False}, []),
        ("dataset", {"_target_": VISION, "root": "/a"}, []),
        ("dataset", {"_target_": "mine.Data", "root": "/a", "download": True}, []),
        ("dataset", {"_target_": "mine.Data", "folder": "/a", "uri": "/a"}, []),
        ("tracker", {"_target_": "mine.Tracker", "folder": "/a"}, ["tracker.folder"]),
        ("tracker.x", {"_target_": "mine.Tracker", "folder": "here"}, ["tracker.x.folder"]),
        ("tracker.x", {"_target_": "mine.Tracker", "uri": "file:/a"}, ["tracker.x.uri"]),
        ("tracker.x", {"_target_": "mine.Tracker", "uri": "here"}, []),
        ("tracker.x", {"_target_": "mine.Tracker", "uri": "https://a.b/c"}, []),
        ("tracker.x", {"_target_": "mine.Tracker", "uri": "a%2f..%2f..%2fb"}, ["tracker.x.uri"]),
        ("tracker.x", {"_target_": "mine.Tracker", "name": "/a"}, []),
    ],
)
def test_arguments_that_name_a_place(key, node, refused):
    assert [problem.key for problem in of_part(key, node)] == refused


def test_a_file_is_refused_in_other_words_than_a_folder():
    (folder,) = of_part("dataset", {"_target_": FACES, "root": "/a"})
    (file,) = of_part("tracker", {"_target_": "mine.Tracker", "folder": "/a"})
    assert "is outside of the working folder" in folder.message
    assert "is a file to write, which only the command line names" in file.message


@pytest.mark.parametrize(
    ("folder", "subdir", "refused"),
    [
        ("multirun", "0", []),
        ("multirun", "a/0", []),
        ("multirun", None, []),
        ("multirun", ".", ["hydra.sweep.subdir"]),
        ("multirun", "../0", ["hydra.sweep.subdir"]),
        ("multirun", "/a", ["hydra.sweep.subdir"]),
        ("/a", None, ["hydra.sweep.dir"]),
        ("/a", "0", ["hydra.sweep.dir"]),
        ("/a\0", "0", ["hydra.sweep.dir"]),
        ("multirun", "0\0", []),
    ],
)
def test_folders_of_sweeps(folder, subdir, refused):
    assert [problem.key for problem in check_sweep(folder, subdir)] == refused


def test_folders_that_may_be_written_to(here, monkeypatch):
    assert [problem.key for problem in check_allowed(["/", "/a", "a/.."])] == ["--allow-write"]
    assert list(check_sweep("/a/b")) != []
    monkeypatch.setenv(outputs.VARIABLE, " , /c, /a ")
    assert list(check_sweep("/a/b")) == []
    assert list(check_sweep("/b")) != []
    monkeypatch.delenv(outputs.VARIABLE)
    with outputs.naming([Place("", str(here)), Place("resume", "/a")]):
        assert list(check_sweep("/a/b")) == [], "a sweep that is resumed"
    monkeypatch.setenv(outputs.NAMED, outputs.as_variable([Place("", "/w"), Place("dir", "/a")]))
    assert list(check_sweep("/a/b")) == list(check_sweep("/w")) == []
    assert list(check_sweep("here")) != [], "the working folder is that of the first process"


def test_folders_that_are_remembered(here, tmp_path):
    kept = tmp_path / "own" / "named.json"
    named = [Place("", str(here)), Place("cache_dir", str(here / "x")), Place("page", "/a")]
    with outputs.naming(named):
        outputs.remember()
    assert not kept.exists(), "below the working folder, or of one key alone"
    with outputs.naming([*named, Place("out", "/b")]):
        outputs.remember()
        assert list(check_sweep("/b")) == []
    assert json.loads(kept.read_text()) == [["out", "/b"]]
    assert list(outputs.of_part("a", {"_target_": "b", "cache_dir": "/b/c"})) == []
    before = kept.stat().st_mtime_ns
    with outputs.naming([Place("", str(here)), Place("out", "/b")]):
        outputs.remember()
    assert kept.stat().st_mtime_ns == before, "it is known"
    with outputs.naming([Place("", str(here)), Place("run_dir", "/d")]):
        outputs.remember()
    assert json.loads(kept.read_text()) == [["out", "/b"], ["run_dir", "/d"]]
    kept.write_text(json.dumps([["page", "/e"], ["root", "/f"]]))
    assert outputs._remembered() == [Place("root", "/f")]
