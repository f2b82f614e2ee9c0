"""Sweeps: a folder that follows from overrides, jobs that are done once, a table, an exit code."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from penstock import command, seams
from penstock.addons.sweeps.sweep import LOCK, job_name, jobs_of
from penstock.errors import DataError
from penstock.files.locks import lock
from tests.support.program import run


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs a sweep whose task is a function; gives the exit code, and the jobs by their seeds."""
    monkeypatch.chdir(tmp_path)

    def go(task, *words, at=("hydra.sweep.dir=sweep",)):
        monkeypatch.setattr(seams, "function", lambda name: task)
        code = command.main(["-m", *words, *at])
        return code, list(jobs_of(tmp_path / "sweep"))

    return go


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_name_follows_from_what_changes_a_result():
    words = ["optimizer.lr=0.01", "seed=1", "dataset.root=/data/faces"]
    name = job_name(words)
    assert re.fullmatch(r"seed_1-lr_0\.01-[0-9a-f]{8}", name)
    harmless = ["loader.num_workers=3", "resume=auto", "run_dir=x", "trainer.progress=none"]
    assert job_name([*reversed(words), *harmless]) == name
    for other in ("seed=2", "optimizer.lr=0.001", "+model.depth=3", "loader=foreign", "~scheduler"):
        assert job_name([*words, other]) != name, other
    assert len(job_name([f"tracker.x={'a' * 300}", *(f"model.a{n}={n}" for n in range(99))])) < 150


def test_a_sweep_over_parts_and_seeds(sweep, capsys):
    folders = []

    def task(config):
        folders.append(Path(config.run_dir))
        return config.seed / 10

    code, jobs = sweep(task, "sampler=random,sequential", "seed=10,2", "batch.size=8")
    assert code == 0
    assert sorted(folders) == sorted(job.path for job in jobs)
    out, _ = capsys.readouterr()
    assert "4 of 4 jobs in sweep are done" in out
    assert "best: mean value 0.6 with sampler=random" in out
    rows = rows_of(Path("sweep/sweep.csv"))
    assert [(row["sampler"], row["seed"], row["value"], row["status"]) for row in rows] == [
        ("random", "2", "0.2", "done"),
        ("random", "10", "1", "done"),
        ("sequential", "2", "0.2", "done"),
        ("sequential", "10", "1", "done"),
    ]


def test_a_command_has_one_folder_and_does_its_jobs_once(sweep):
    """It follows from the overrides that change a result, in any order."""
    made = []
    for words in (
        ["seed=1,2", "batch.size=8"],
        ["batch.size=8", "seed=1,2", "loader.num_workers=1", "trainer.progress=none"],
        ["seed=1,2", "batch.size=16"],
        ["seed=1,3", "batch.size=8"],
    ):
        begun = []
        code, _ = sweep(lambda config, begun=begun: begun.append(config.run_dir), *words, at=())
        assert code == 0
        made.append(Path(begun[0]).parent if begun else None)
    assert made[1] is None, "the same command: all is done"
    assert len({*made}) == 4


def test_jobs_that_fail_are_told_and_tried_again(sweep, capsys):
    begun = []

    def task(config):
        begun.append(config.seed)
        if config.seed == 2 and begun.count(2) < 2:
            raise DataError("faces.csv, line 3: no number\nsee there")
        if config.seed == 3 and begun.count(3) < 2:
            raise ZeroDivisionError("a bug")
        return 0.5

    code, jobs = sweep(task, "seed=range(1,5)")
    assert code == 3, "that of the first job that failed"
    assert [job.status for job in jobs] == ["done", "failed", "failed", "done"]
    assert jobs[1].error == "faces.csv, line 3: no number"
    out, err = capsys.readouterr()
    assert "ZeroDivisionError: a bug" in err
    assert "2 of 4 jobs in sweep are done" in out
    code, jobs = sweep(task, "seed=range(1,5)")
    assert code == 0
    assert begun == [1, 2, 3, 4, 2, 3]
    assert [job.status for job in jobs] == ["done"] * 4


def test_a_sweep_can_end_at_its_first_failure(sweep, capsys):
    begun = []

    def task(config):
        begun.append(config.seed)
        raise DataError("the disk is away")

    assert sweep(task, "seed=1,2,3", "sweep.on_failure=stop")[0] == 3
    assert begun == [1]
    assert "0 of 3 jobs in sweep" in capsys.readouterr().out


def test_an_interrupted_sweep_stops(sweep, capsys):
    def task(config):
        if config.seed == 2:
            raise KeyboardInterrupt
        return 0.5

    code, jobs = sweep(task, "seed=1,2,3")
    assert code == 130
    assert [job.settings["seed"] for job in jobs] == ["1"]
    assert (
        "1 of 3 jobs in sweep are done; the same command runs the others" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["seed=1,2", "batch.size=8,0"], ["batch.size: ", "got 0"]),
        (["seed=1,x", "batch.size=8,16"], ["seed: ", "(in the job seed=x batch.size=16)"]),
        (["seed=range(30)", "batch.size=8,0"], ["batch.size: ", "got 0"]),
        (["seed=1,2", "run_dir=here"], ["run_dir: a sweep names", "hydra.sweep.dir="]),
    ],
)
def test_a_sweep_that_is_wrong_runs_no_job(words, messages, sweep, capsys):
    code, jobs = sweep(lambda config: pytest.fail("a job ran"), *words)
    assert (code, jobs) == (2, [])
    err = capsys.readouterr().err
    assert all(message in err for message in messages), err
    assert "Traceback" not in err


def test_a_job_of_another_process_is_left_alone(sweep, capsys):
    assert sweep(lambda config: 1 / 0, "seed=1,2")[0] == 1
    held = lock(next(Path("sweep").glob("seed_2*")) / LOCK)
    code, jobs = sweep(lambda config: 0.5, "seed=1,2")
    assert code == 1
    assert "another process runs it" in capsys.readouterr().err
    assert [job.status for job in jobs] == ["done", "failed"]
    held.close()
    code, jobs = sweep(lambda config: 0.5, "seed=1,2")
    assert [job.status for job in jobs] == ["done", "done"]


def test_another_grid_in_the_same_folder_adds_jobs(sweep):
    begun = []

    def task(config):
        begun.append((config.seed, config.batch.size))
        return 0.5

    assert sweep(task, "seed=1,2", "batch.size=8")[0] == 0
    code, jobs = sweep(task, "seed=1,2", "batch.size=8,16", "trainer.progress=none")
    assert code == 0
    assert begun == [(1, 8), (2, 8), (1, 16), (2, 16)] or begun[2:] == [(1, 16), (2, 16)]
    assert len(jobs) == 4


@pytest.mark.thorough
def test_folds_are_repetitions_and_a_failed_one_is_named(sweep, capsys):
    """Means and deviations by hand; what failed is done by the same command."""
    fails = [True]

    def task(config):
        fold, large = (
            int(Path(config.run_dir).name.partition("fold_")[2][0]),
            config.batch.size == 16,
        )
        if fold == 2 and large and config.seed == 1 and fails:
            raise DataError("faces.csv is gone")
        return 10.0 * large + fold + config.seed / 10

    words = ("dataset=sequences", "data.folds=3", "batch.size=8,16")
    words = (*words, "seed=range(2)", "data.fold=range(3)")
    assert sweep(task, *words)[0] == 3
    # The other setting lacks a fold.
    assert "best: mean value 1.05 with batch.size=8" in capsys.readouterr().out
    fails.clear()
    rows = rows_of(Path("sweep/means.csv"))
    assert [row["jobs"] for row in rows] == ["6", "5"]
    (missing,) = (row for row in rows_of(Path("sweep/sweep.csv")) if row["error"])
    assert missing["job"].startswith("dataset_sequences-seed_1-size_16-fold_2")
    assert sweep(task, *words)[0] == 0
    rows = rows_of(Path("sweep/means.csv"))
    assert [float(row["mean value"]) for row in rows] == [1.05, 11.05]
    assert [float(row["over folds"]) for row in rows] == [1, 1]
    assert [float(row["over seeds"]) for row in rows] == pytest.approx([0.0707107] * 2)  # 0 and 0.1


def test_values_that_are_not_finite_are_no_values(sweep, capsys):
    code, jobs = sweep(lambda config: float("nan") if config.seed == 1 else None, "seed=1,2")
    assert code == 0
    assert [(job.status, job.value) for job in jobs] == [("done", None)] * 2
    assert "best" not in capsys.readouterr().out


def test_a_job_whose_yaml_has_changed_is_not_taken_for_done(faces, capsys, tmp_path, monkeypatch):
    """Its overrides are the same, and its configuration is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    recipe = tmp_path / "conf" / "experiment" / "mine.yaml"
    words = ["-m", "--config-dir", "conf", "experiment=mine", *faces, "trainer.max_epochs=1"]
    words += ["seed=1,2", "tracker=none", "trainer.pictures=false", "trainer.report=false"]
    text = "# @package _global_\noptimizer: {{lr: {}}}\n"
    recipe.write_text(text.format(0.01))
    assert run(capsys, *words).code == 0
    recipe.write_text(text.format(0.02))
    told = run(capsys, *words)
    assert told.code == 2
    assert "optimizer.lr: is 0.02 here and was 0.01 when this job was done" in told.err
    recipe.write_text(text.format(0.01))
    told = run(capsys, *words)
    assert told.code == 0, told.err
    assert "2 of 2 jobs" in told.out


def test_a_damaged_manifest_costs_its_job(sweep, capsys):
    _, jobs = sweep(lambda config: 0.5, "seed=1,2")
    (jobs[0].path / "manifest.json").write_text("{")
    code, jobs = sweep(lambda config: 0.5, "seed=1,2")
    assert (code, {job.status for job in jobs}) == (2, {"failed", "done"})
    err = capsys.readouterr().err
    assert "manifest.json is damaged" in err
    assert "Traceback" not in err
    shutil.rmtree(next(Path("sweep").glob("seed_1*")))
    code, jobs = sweep(lambda config: 0.5, "seed=1,2")
    assert (
        code,
        [json.loads((job.path / "manifest.json").read_text())["status"] for job in jobs],
    ) == (0, ["done"] * 2)
