import json
import math
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from penstock import program
from penstock.errors import ConfigError, PenstockError
from penstock.runs import folder as run_folder
from penstock.runs.folder import RunFolder, same_data

claims = []


@pytest.fixture(autouse=True)
def released():
    """Folders are released with the test that has claimed them."""
    yield
    while claims:
        claims.pop().release()


def claim(path, config, **facts):
    folder = RunFolder.claim(path, config, **facts)
    claims.append(folder)  # threads do so at the same time
    return folder


def manifest(folder):
    return json.loads((folder.path / "manifest.json").read_text())


def test_the_commit_is_that_of_the_persons_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert manifest(claim(tmp_path / "outside", {}))["git"] is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["commit", "-qm", "one", "--allow-empty"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    first = manifest(claim(tmp_path / "first", {}))["git"]
    assert first == {"commit": head, "dirty": False}
    (tmp_path / "mine.py").write_text("")
    subprocess.run([*git, "add", "mine.py"], check=True)
    assert manifest(claim(tmp_path / "second", {}))["git"]["dirty"]


def test_what_a_run_started_with_is_written_at_once(tmp_path):
    config = {"seed": 3, "model": {"_target_": "a.B", "width": 4}, "scheduler": None}
    folder = claim(tmp_path / "runs" / "one", config, seed=3, fingerprint="abc")
    assert folder.path == tmp_path / "runs" / "one"
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == config
    assert list(yaml.safe_load((folder.path / "config.yaml").read_text())) == list(config)
    written = manifest(folder)
    assert written["status"] == "running"
    assert written["seed"] == 3
    assert written["fingerprint"] == "abc"
    for name in ("command", "started", "penstock", "python", "platform", "cpus", "gpus"):
        assert name in written
    assert written["packages"]["torch"]
    assert "ended" not in written


def test_the_end_is_added(tmp_path):
    folder = claim(tmp_path / "one", {})
    folder.manifest["best"] = {"val/nme": math.inf}
    folder.manifest["order"] = "00ff"
    folder.finish("done")
    written = manifest(folder)
    assert (written["status"], written["order"]) == ("done", "00ff")
    assert written["best"] == {"val/nme": None}
    assert written["started"] <= written["ended"]
    names = {path.name for path in folder.path.iterdir()}
    assert names == {"config.yaml", "manifest.json", "holder.txt"}


def test_a_taken_folder_is_left_alone(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "precious.txt").write_text("mine")
    assert claim(tmp_path / "one", {}).path.name == "one-2"
    assert claim(tmp_path / "one", {}).path.name == "one-3"
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["precious.txt"]


def test_an_empty_folder_can_be_claimed(tmp_path):
    assert claim(tmp_path, {}).path == tmp_path  # as hydra makes one for a sweep's job


def test_claims_at_the_same_time_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        claims = [pool.submit(claim, tmp_path / "one", {"n": n}) for n in range(8)]
    folders = [claim.result() for claim in claims]
    assert len({folder.path for folder in folders}) == 8
    for number, folder in enumerate(folders):
        assert yaml.safe_load((folder.path / "config.yaml").read_text()) == {"n": number}


def test_metrics_are_lines_of_strict_json(tmp_path):
    folder = claim(tmp_path / "one", {})
    folder.log({"epoch": 0, "loss": 0.1, "nested": [math.nan, 1.0]})
    folder.log({"epoch": 1, "loss": math.inf})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    read = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in lines]
    assert read == [{"epoch": 0, "loss": 0.1, "nested": [None, 1.0]}, {"epoch": 1, "loss": None}]


def reopen(path, trainer=None, overrides=(), world=1, **facts):
    claims.append(RunFolder.reopen(path, trainer or {}, list(overrides), world, **facts))
    return claims[-1]


def ended(path, **facts):
    """A run's folder whose run has ended."""
    folder = claim(path, {"seed": 0, "trainer": {}}, seed=0, **facts)
    folder.finish("done")
    folder.release()
    return folder


def test_a_run_continues_in_its_own_folder(tmp_path):
    first = ended(tmp_path / "one", fingerprint="abc")
    again = reopen(tmp_path / "one", world=4, resumed="step-8", at=[1, 2])
    assert again.path == first.path
    written = manifest(again)
    assert (written["status"], written["fingerprint"]) == ("running", "abc")
    assert "ended" not in written
    again.finish("preempted")
    written = manifest(again)
    assert written["status"] == "preempted"
    assert written["started"] == first.manifest["started"]
    assert [one["world"] for one in written["sessions"]] == [1, 4]
    assert [one["status"] for one in written["sessions"]] == ["done", "preempted"]
    assert (written["sessions"][1]["resumed"], written["sessions"][1]["at"]) == ("step-8", [1, 2])
    for session in written["sessions"]:
        assert {"command", "started", "ended", "penstock", "git", "python", "packages"} <= {
            *session
        }


def hold(path, again, pipe):
    """Hold a run's folder, with a child as loaders have, until this is killed."""
    if again:
        reopen(path)
    else:
        claim(path, {"trainer": {}})
    child = os.fork()
    if child == 0:
        signal.pause()
    pipe.send((child, program.joined(sys.orig_argv)))
    signal.pause()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("again", [False, True])
def test_a_second_run_is_refused_and_learns_who_holds_the_folder(tmp_path, again):
    path = tmp_path / "one"
    if again:
        ended(path)
    # Not forked: this process has the threads of all libraries that other tests have used.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(path, again, theirs))
    process.start()
    theirs.close()  # so that nothing is waited for if it fails
    child, command = ours.recv()
    try:
        before = (path / "manifest.json").read_bytes()
        with pytest.raises(ConfigError) as refused:
            reopen(path)
        told = f"process {process.pid}", platform.node(), "since 20", f"({command[:40]}", "run_dir"
        for word in told:
            assert word in str(refused.value)
        assert (path / "manifest.json").read_bytes() == before
        process.kill()
        process.join()
        reopen(path).release()  # at once, though its child lives
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "not a run.s folder"),
        ({}, "not a run.s folder"),
        ({"manifest.json": "{"}, "is damaged or unreadable: Expecting property name"),
    ],
)
def test_what_is_no_run_is_not_reopened(tmp_path, files, message):
    path = tmp_path / "one"
    if files is not None:
        path.mkdir()
        for name, text in files.items():
            (path / name).write_text(text)
    for _ in range(2):  # the first has let go again
        with pytest.raises(PenstockError, match=message):
            reopen(path)


def test_reopening_clears_away_what_a_killed_run_left(tmp_path):
    ended(tmp_path / "one")
    (tmp_path / "one" / ".manifest.json.123-0123abcd.tmp").write_text("half")
    reopen(tmp_path / "one").release()
    assert not [path for path in (tmp_path / "one").iterdir() if path.name.startswith(".")]


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def addresses(path):
    read = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["epoch"], line["step"]) for line in read]


def disturbed(tmp_path):
    """A reopened run of 2 epochs of 4 steps, with a step of the optimizer every 2 of them."""
    ended(tmp_path / "one")
    steps = [(epoch, step) for epoch in range(2) for step in range(4)]
    for name in ("ledger.jsonl", "digests.jsonl"):
        lines(tmp_path / "one" / name, *({"epoch": e, "step": s} for e, s in steps))
    logs = [{"event": "log", "epoch": e, "step": u} for e, u in ((0, 1), (0, 2), (1, 3), (1, 4))]
    ends = [{"event": "epoch", "epoch": 0, "step": 2}, {"event": "epoch", "epoch": 1, "step": 4}]
    lines(tmp_path / "one" / "metrics.jsonl", *logs[:2], ends[0], *logs[2:], ends[1])
    with (tmp_path / "one" / "ledger.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    return reopen(tmp_path / "one"), steps


@pytest.mark.parametrize(
    ("address", "updates", "kept"),
    [
        ((0, 0), 0, []),
        ((0, 2), 1, [("log", 1)]),
        ((0, 4), 2, [("log", 1), ("log", 2)]),  # saved before the epoch was validated
        ((1, 0), 2, [("log", 1), ("log", 2), ("epoch", 2)]),
        ((1, 2), 3, [("log", 1), ("log", 2), ("epoch", 2), ("log", 3)]),
        ((2, 0), 4, [("log", 1), ("log", 2), ("epoch", 2), ("log", 3), ("log", 4), ("epoch", 4)]),
    ],
)
def test_what_came_after_the_checkpoint_is_cut(tmp_path, address, updates, kept):
    folder, steps = disturbed(tmp_path)
    folder.rewind(*address, updates)
    for name in ("ledger.jsonl", "digests.jsonl"):
        assert addresses(folder.path / name) == [one for one in steps if one < address]
    read = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in read] == kept


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["config.yaml"], True),
        (["manifest.json", "holder.txt"], True),
        ([".hydra", "job.lock", "holder.txt", "config.yaml"], False),
        ([".config.yaml.123-0123abcd.tmp"], False),
    ],
)
def test_a_folder_of_a_killed_claim_is_claimed_again(names, taken, tmp_path):
    (tmp_path / "one").mkdir()
    for name in names:
        (tmp_path / "one" / name).touch()
    assert claim(tmp_path / "one", {}).path.name == ("one-2" if taken else "one")
    if taken:
        assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(names)


def test_a_session_may_change_the_length(tmp_path):
    ended(tmp_path / "one", overrides=["seed=1"])
    again = reopen(tmp_path / "one", {"max_epochs": 9}, ["trainer.max_epochs=9"], world=2)
    again.note(threads=3)
    assert manifest(again)["overrides"] == ["seed=1", "trainer.max_epochs=9"]
    config = yaml.safe_load((again.path / "config.yaml").read_text())
    assert config == {"seed": 0, "trainer": {"max_epochs": 9}}
    first, second = manifest(again)["sessions"]
    assert len(first["id"]) == len(second["id"]) == 16
    assert first["id"] != second["id"]
    assert (first["world"], second["world"], second["threads"]) == (1, 2, 3)


KNOWN = {"fingerprint": "sizes", "train": "f00d", "identity": {"train": {"labels": "a"}}}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"val": "other"}, True),
        ({"fingerprint": "names"}, None),  # they cannot be compared
        ({"train": "beef"}, False),
        ({"identity": {"train": {"labels": "b"}}}, False),
        ({"identity": {}}, False),
    ],
)
def test_whether_two_runs_had_the_same_data(changes, same):
    assert same_data(KNOWN, {**KNOWN, **changes}) is same
    unproven = {**KNOWN, "identity": {"train": run_folder.UNPROVEN}}
    assert same_data(unproven, unproven) is None
    assert same_data({}, {}) is None
