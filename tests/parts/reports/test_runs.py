"""`task=runs`: what lies in folders of runs."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from penstock.addons.reports.runs import Row
from tests.support.program import run

SMALL = (
    "trainer=quick",
    "loader=debug",
    "trainer.pictures=false",
    "tracker=none",
    "trainer.device=cpu",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, faces_root):
    """The files of a small real run."""
    from penstock import command

    folder = tmp_path_factory.mktemp("trained") / "run"
    words = [f"dataset.root={faces_root}", "dataset.count=60", "dataset.size=48", "batch.size=8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        assert command.main([*words, *SMALL, "trainer.max_steps=6", f"run_dir={folder}"]) == 0
    names = ("manifest.json", "config.yaml", "metrics.jsonl", "holder.txt")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture
def write(trained, tmp_path, monkeypatch):
    """Writes that run into a folder, with changes of its manifest."""
    monkeypatch.chdir(tmp_path)

    def write(folder, **changes):
        place = Path(folder)
        place.mkdir(parents=True)
        for name, content in trained.items():
            (place / name).write_bytes(content)
        manifest = {**json.loads(trained["manifest.json"]), **changes}
        manifest = {name: value for name, value in manifest.items() if value is not None}
        (place / "manifest.json").write_text(json.dumps(manifest))
        return place

    return write


def folders(capsys, *words):
    outcome = run(capsys, "task=runs", *words)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    column = lines[0].index("folder") if lines else 0
    return [line[column:].split()[0] for line in lines[1:]]


def ago(**span):
    return (datetime.now().astimezone() - timedelta(**span)).isoformat(timespec="seconds")


def test_a_line_a_run(write, capsys):
    write("outputs/a", started=ago(minutes=5))
    outcome = run(capsys, "task=runs")
    head, line = outcome.out.splitlines()
    assert head.split() == ["state", "started", "epochs", "steps", "best", "folder", "command"]
    manifest = json.loads(Path("outputs/a/manifest.json").read_text())
    best = f"nme {manifest['best']['val/nme']:.4g}"
    day, minute = manifest["started"][:10], manifest["started"][11:16]
    assert line.split()[:7] == ["done", day, minute, "1", "6", *best.split()]
    assert "outputs/a" in line
    assert line.endswith("trainer.device=cpu trainer.max_steps=6")
    assert "run_dir" not in line
    assert outcome.err.endswith("1 of 1 runs below outputs and multirun\n")
    # A run of the defaults, and a task that keeps no overrides.
    write("outputs/b", overrides=[], command="/a/bin/python /b/run.py task=replay epoch=1")
    assert "outputs/b  python run.py task=replay epoch=1\n" in run(capsys, "task=runs").out


@pytest.mark.thorough
def test_filters(write, capsys):
    write("outputs/new", started=ago(hours=1))
    write("outputs/old", started=ago(days=3), status="failed")
    write("multirun/1/0", started=ago(minutes=1), status="preempted")
    write("multirun/1/1", started=ago(minutes=2), status="running")
    assert folders(capsys) == ["multirun/1/0", "multirun/1/1", "outputs/new", "outputs/old"]
    assert folders(capsys, "find.state=killed") == ["multirun/1/1"]
    assert folders(capsys, "find.state=[failed,preempted]") == ["multirun/1/0", "outputs/old"]
    assert folders(capsys, "find.limit=1") == ["multirun/1/0"]
    assert folders(capsys, "runs=[outputs]") == ["outputs/new", "outputs/old"]


def test_the_best_come_first_whichever_way_is_better(write, capsys):
    for name, value in (("a", 0.3), ("b", 0.1), ("c", 0.2)):
        write(f"outputs/{name}", best={"val/nme": value}, started=ago(minutes=1))
    write("outputs/d", best=None, started=ago(minutes=1))
    order = ["outputs/b", "outputs/c", "outputs/a", "outputs/d"]
    assert folders(capsys, "find.sort=best") == order
    for name in "abcd":
        path = Path("outputs", name, "manifest.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "mode": "max"}))
    assert folders(capsys, "find.sort=best") == ["outputs/a", "outputs/c", "outputs/b", "outputs/d"]


def test_a_run_that_has_not_ended_tells_what_its_epochs_say(write):
    path = write("outputs/a", status="running", best=None, last=None)
    line = {"event": "epoch", "val/nme": 0.5}
    lines = [
        json.dumps({**line, "epoch": at, "step": 10 * at + 10, "val/nme": value})
        for at, value in enumerate([0.5, 0.3, None, 0.4])
    ]
    (path / "metrics.jsonl").write_text("\n".join([*lines, '{"event": "epoch", "epo']))
    found = Row.read(path)
    assert (found.state, found.epochs, found.steps, found.best) == ("killed", 4, 40, 0.3)


def test_damaged_ones_are_listed_as_such(write, capsys):
    damage = [
        ("manifest.json", b"{", "manifest.json"),
        ("manifest.json", b"", "manifest.json"),
        ("metrics.jsonl", b'{"event": "epoch", x}\n', "metrics.jsonl"),
        ("config.yaml", b"[", "config.yaml"),
    ]
    write("outputs/good")
    for number, (name, content, _) in enumerate(damage):
        path = write(f"outputs/bad-{number}", status="running", last=None)
        (path / name).write_bytes(content)
    outcome = run(capsys, "task=runs", "find.state=damaged")
    assert outcome.code == 0
    lines = sorted(outcome.out.splitlines()[1:], key=lambda line: line[line.index("outputs") :])
    assert len(lines) == len(damage)
    for number, line in enumerate(lines):
        assert f"outputs/bad-{number} " in line
        assert damage[number][2] in line
    assert "4 of 5 runs" in outcome.err


def test_mistakes_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["find.since=2d"], "find.limit=20"),
        (["find.state=good"], "find.state: Input should be 'done', 'running'"),
        (["runs=[nowhere]"], "runs: nowhere is not a folder"),
        (["find.limit=0"], "find.limit"),
    ):
        outcome = run(capsys, "task=runs", *words)
        assert outcome.code == 2
        assert said in outcome.err
        assert "Traceback" not in outcome.err
    assert "0 of 0 runs" in run(capsys, "task=runs").err
