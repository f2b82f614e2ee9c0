"""Sweeps: every job recorded, a table at the end, the worst exit code out."""

import csv
import json
import math
import re
import shlex
from pathlib import Path

import pytest

import penstock
from penstock import command, seams
from penstock.addons.reports.sweep_report import SweepRecord
from penstock.addons.sweeps.job_result import JobResult, best_of, read_results
from penstock.addons.sweeps.sweep import table
from penstock.errors import ConfigError, DataError
from penstock.runs import resumption


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs a sweep whose task is a function; gives the exit code and the sweep's folder."""
    monkeypatch.chdir(tmp_path)

    def go(task, *words):
        monkeypatch.setattr(seams, "runner", lambda name: task)
        code = command.main(["-m", *words, "hydra.sweep.dir=sweep"])
        return code, tmp_path / "sweep"

    return go


def test_a_sweep_over_parts_and_seeds(sweep, capsys):
    folders = []

    def task(config):
        folders.append(Path(config.run_dir))
        return config.seed / 10

    code, folder = sweep(task, "sampler=random,sequential", "seed=2,1", "batch.size=8")
    assert code == 0
    assert folders == [folder / str(number) for number in range(4)]
    out, err = capsys.readouterr()
    assert "4 jobs in sweep" in out
    assert "best: nme 0.1 by job 1" in out
    assert re.search(r"job 2 \(3 of 4, \d+ s left\): sampler=sequential seed=2\n", err)
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["job"], r["sampler"], r["seed"], r["status"], r["nme"]) for r in rows] == [
        ("0", "random", "2", "done", "0.2"),
        ("1", "random", "1", "done", "0.1"),
        ("2", "sequential", "2", "done", "0.2"),
        ("3", "sequential", "1", "done", "0.1"),
    ]
    result = json.loads((folder / "0" / "result.json").read_text())
    assert result["overrides"] == ["sampler=random", "seed=2", "batch.size=8"]
    assert (result["status"], result["metric"], result["mode"]) == ("done", "nme", "min")
    assert result["value"] == 0.2


@pytest.mark.thorough
def test_a_job_that_fails_is_recorded_and_the_others_go_on(sweep, capsys):
    def task(config):
        if config.seed == 2:
            raise DataError("faces.csv, line 3: no number")
        if config.seed == 3:
            raise ZeroDivisionError("a bug")
        return 0.5

    code, folder = sweep(task, "seed=1,2,3,4")
    assert code == 3, "that of the first job that failed"
    out, err = capsys.readouterr()
    assert "error: faces.csv, line 3: no number" in err
    assert "ZeroDivisionError: a bug" in err
    assert "4 jobs in sweep" in out
    found = [result for _, result in read_results(folder)]
    assert [one.status for one in found] == ["done", "failed", "failed", "done"]
    assert [one.exit_code for one in found] == [0, 3, 1, 0]
    assert found[1].error == "faces.csv, line 3: no number"


def test_an_interrupted_sweep_stops(sweep, capsys):
    def task(config):
        if config.seed == 2:
            raise KeyboardInterrupt
        return 0.5

    code, folder = sweep(task, "seed=1,2,3")
    assert code == 130
    assert [result.status for _, result in read_results(folder)] == ["done", "interrupted"]


def test_a_sweep_that_is_wrong_runs_no_job(sweep, capsys):
    code, folder = sweep(lambda config: pytest.fail("a job ran"), "seed=1,2", "batch.size=8,0")
    assert code == 2
    assert "batch.size: got 0" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.thorough
def test_a_job_that_measures_nothing(sweep, capsys):
    code, folder = sweep(lambda config: None, "task=digest", "seed=1,2")
    assert code == 0
    assert [result.value for _, result in read_results(folder)] == [None, None]
    assert "best" not in capsys.readouterr().out


def result(value, mode="min", **changes):
    fields = {
        "overrides": ["a=1"],
        "status": "done",
        "metric": "nme",
        "mode": mode,
        "value": value,
        "seconds": 1.0,
        "error": None,
        "exit_code": 0,
        "started": 5.0,
    }
    return JobResult(**{**fields, **changes})


def test_results_come_back_from_files_in_the_order_of_jobs(tmp_path):
    for number in (10, 9, 2):
        result(number / 10).write(tmp_path / str(number))
    result(0.0, started=1.0).write(tmp_path / "3")
    found = read_results(tmp_path, since=2.0)
    assert [name for name, _ in found] == ["2", "9", "10"]
    assert found[0][1] == result(0.2)


def test_the_best_by_the_direction_of_the_metric():
    assert best_of([("0", result(0.3)), ("1", result(0.2)), ("2", result(None))]) == "1"
    assert best_of([("0", result(0.3, "max")), ("1", result(0.2, "max"))]) == "0"
    assert best_of([("0", result(None))]) is None


def test_a_table_has_a_column_for_every_key_that_any_job_overrides():
    jobs = [("0", result(0.25)), ("1", result(None, overrides=["b=x=y"], status="failed"))]
    rows = table(jobs)
    assert list(rows[0]) == ["job", "a", "b", "status", "nme", "seconds", "error"]
    assert (rows[0]["a"], rows[0]["b"], rows[0]["nme"]) == ("1", "", "0.25")
    assert (rows[1]["a"], rows[1]["b"], rows[1]["nme"]) == ("", "x=y", "")


@pytest.mark.thorough
def test_a_table_has_the_other_metrics_of_each_run(sweep, capsys):
    def task(config):
        best = {"epoch": 1, "val/nme": 0.1, "val/loss": config.seed / 4, "train/loss": 0.5}
        folder = Path(config.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"best": best}))
        return 0.1

    _, folder = sweep(task, "seed=1,2", "batch.size=8")
    assert [one.others for _, one in read_results(folder)] == [{"loss": 0.25}, {"loss": 0.5}]
    with (folder / "sweep.csv").open() as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["0.25", "0.5"]
    out = capsys.readouterr().out
    assert "0.25" in out
    assert "all: batch.size=8 status=done\n" in out


@pytest.mark.thorough
def test_a_value_that_is_no_number_is_written_as_none(sweep):
    code, folder = sweep(lambda config: math.nan, "seed=1,2")
    assert code == 0
    assert read_results(folder)[0][1].value is None


@pytest.mark.thorough
def test_a_sweep_that_is_left_says_how_far_it_came_and_continues(sweep, capsys, monkeypatch):
    """Ctrl-C in the second of three jobs; the command that is offered does the rest."""
    begun = []

    def task(config, stops=True):
        begun.append(config.seed)
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        if config.seed == 2 and stops:
            raise KeyboardInterrupt
        return config.seed / 10

    code, _ = sweep(task, "seed=1,2,3", "batch.size=8", "model=landmark_net")
    out, err = capsys.readouterr()
    assert code == 130
    assert "1 of 3 jobs in sweep are done" in out
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:3] for row in rows[1:]] == [
        ["0", "1", "done"],
        ["1", "2", "interrupted"],
        ["2", "3", "not"],
    ]
    assert "Traceback" not in err
    line = err.splitlines()[err.splitlines().index("to resume the sweep, the same command:") + 1]
    words = shlex.split(line)
    assert words[0] == "python"
    given = ["-m", "seed=1,2,3", "batch.size=8", "model=landmark_net", "hydra.sweep.dir=sweep"]
    assert words[2:] == given
    begun.clear()
    monkeypatch.setattr(seams, "runner", lambda name: lambda config: task(config, stops=False))
    assert command.main(words[2:]) == 0
    assert begun == [2, 3]
    out, err = capsys.readouterr()
    assert "1 of 3 jobs are done" in err
    assert "3 jobs in sweep" in out
    assert "best: nme 0.1 by job 0" in out
    with pytest.raises(ConfigError, match="is a sweep's folder: type its command again"):
        resumption.source(penstock.compose("resume=sweep"))


@pytest.mark.stress
def test_jobs_are_known_by_their_overrides(sweep):
    begun = []

    def task(config):
        begun.append((Path(config.run_dir).name, config.seed, config.batch.size))
        return config.seed / 10

    for words in (["seed=1,2"], ["seed=3,2,1"], ["seed=1,3", "loader.num_workers=1"], ["seed=2"]):
        code, folder = sweep(task, *words)
        assert code == 0
    assert begun == [("0", 1, 32), ("1", 2, 32), ("2", 3, 32)]
    assert sweep(task, "seed=1,2", "batch.size=32,8")[0] == 0
    assert begun[3:] == [("3", 1, 32), ("4", 1, 8), ("5", 2, 32), ("6", 2, 8)]
    assert [name for name, _ in read_results(folder)] == list("0123456")


def test_long_values_that_differ_at_their_end_are_two(sweep):
    name = "a" * 150
    code, folder = sweep(lambda config: 0.5, f"cache_dir={name}1,{name}2")
    assert code == 0
    record = SweepRecord(folder)
    assert record.varying == ["cache_dir"]
    assert len(record.groups) == 2
