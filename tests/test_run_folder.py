import json
import math
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from pipeline.run_folder import RunFolder, git_state


def manifest(folder):
    return json.loads((folder.path / "manifest.json").read_text())


def test_what_a_run_started_with_is_written_at_once(tmp_path):
    config = {"seed": 3, "model": {"_target_": "a.B", "width": 4}, "scheduler": None}
    folder = RunFolder.claim(tmp_path / "runs" / "one", config, seed=3, fingerprint="abc")
    assert folder.path == tmp_path / "runs" / "one"
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == config
    assert list(yaml.safe_load((folder.path / "config.yaml").read_text())) == list(config)
    written = manifest(folder)
    assert written["status"] == "running"
    assert written["seed"] == 3
    assert written["fingerprint"] == "abc"
    for name in ("command", "started", "penstock", "git", "python", "platform", "cpus", "gpus"):
        assert name in written
    assert written["packages"]["torch"]
    assert "ended" not in written


def test_the_end_is_added(tmp_path):
    folder = RunFolder.claim(tmp_path / "one", {})
    folder.manifest["best"] = {"val/nme": math.inf}
    folder.finish("done", order="00ff")
    written = manifest(folder)
    assert (written["status"], written["order"]) == ("done", "00ff")
    assert written["best"] == {"val/nme": None}
    assert written["started"] <= written["ended"]
    assert {path.name for path in folder.path.iterdir()} == {"config.yaml", "manifest.json"}


def test_a_taken_folder_is_left_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "precious.txt").write_text("mine")
    assert RunFolder.claim(tmp_path / "one", {}).path.name == "one-2"
    assert RunFolder.claim(tmp_path / "one", {}).path.name == "one-3"
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["precious.txt"]


def test_an_empty_folder_can_be_claimed(tmp_path):
    assert RunFolder.claim(tmp_path, {}).path == tmp_path  # as hydra makes one for a sweep's job


def test_claims_at_the_same_time_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        claims = [pool.submit(RunFolder.claim, tmp_path / "one", {"n": n}) for n in range(8)]
    folders = [claim.result() for claim in claims]
    assert len({folder.path for folder in folders}) == 8
    for number, folder in enumerate(folders):
        assert yaml.safe_load((folder.path / "config.yaml").read_text()) == {"n": number}


def test_metrics_are_lines_of_strict_json(tmp_path):
    folder = RunFolder.claim(tmp_path / "one", {})
    folder.log({"epoch": 0, "loss": 0.1, "nested": [math.nan, 1.0]})
    folder.log({"epoch": 1, "loss": math.inf})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    read = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in lines]
    assert read == [{"epoch": 0, "loss": 0.1, "nested": [None, 1.0]}, {"epoch": 1, "loss": None}]


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_git_state(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first", "--no-verify")
    clean = git_state(tmp_path)
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == {**clean, "dirty": True}


def test_without_git_there_is_no_state(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_state(Path(__file__).parent) is None
