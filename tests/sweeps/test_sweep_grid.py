"""Sweeps with seeds, retries, failures and jobs in parallel; stored ones, and other ones."""

import csv
import re
from pathlib import Path

import pytest

from penstock import command, seams
from penstock.addons.sweeps import stored_sweep
from penstock.addons.sweeps.job_result import read_results
from penstock.addons.sweeps.stored_sweep import job_lock
from penstock.errors import DataError
from penstock.runs.run_folder import RunFolder
from tests.program import run


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs a sweep whose task is a function; gives the exit code and the sweep's folder."""
    monkeypatch.chdir(tmp_path)

    def go(task, *words, at=("hydra.sweep.dir=sweep",)):
        monkeypatch.setattr(seams, "runner", lambda name: task)
        code = command.main(["-m", *words, *at])
        return code, tmp_path / "sweep"

    return go


def test_the_same_command_tries_what_failed_again(sweep, capsys):
    begun = []

    def task(config):
        begun.append(config.seed)
        if config.seed == 2 and begun.count(2) < 2:
            raise DataError("the disk is away")
        return 0.5

    assert sweep(task, "seed=range(1,4)")[0] == 3
    code, folder = sweep(task, "seed=range(1,4)")
    assert code == 0
    assert begun == [1, 2, 3, 2]
    assert [one.status for _, one in read_results(folder)] == ["done"] * 3


def test_a_command_has_one_folder(sweep, capsys):
    """It follows from the overrides that change a result, in any order."""
    made = []
    commands = [
        ["seed=1,2", "batch.size=8"],
        ["batch.size=8", "seed=1,2", "loader.num_workers=1", "trainer.progress=none"],
        ["seed=1,2", "batch.size=16"],
        ["seed=1,3", "batch.size=8"],
        ["seed=range(1,3)", "batch.size=8", f"tracker.x={'a' * 300}"],
    ]
    for words in commands[:4]:
        begun = []
        code, _ = sweep(lambda config, begun=begun: begun.append(config.run_dir), *words, at=())
        assert code == 0
        made.append(Path(begun[0]).parent if begun else None)
    assert made[1] is None, "the same command: all is done"
    assert len({*made}) == 4
    assert re.fullmatch(r"seed-[0-9a-f]{8}", made[0].name)
    assert "2 of 2 jobs are done in multirun/seed-" in capsys.readouterr().err
    assert len(stored_sweep.name_of([], commands[4] * 30)) <= 100


@pytest.mark.stress
def test_a_sweep_can_end_at_its_first_failure(sweep, capsys):
    begun = []

    def task(config, fails=True):
        begun.append(config.seed)
        if config.seed == 2 and fails:
            raise DataError("the disk is away")
        return 0.5

    code, _ = sweep(task, "seed=1,2,3", "sweep.on_failure=stop")
    assert (code, begun) == (3, [1, 2])
    out, err = capsys.readouterr()
    assert "1 of 3 jobs in sweep are done" in out
    assert "not started" in out
    assert "-m seed=1,2,3 sweep.on_failure=stop hydra.sweep.dir=sweep\n" in err
    code, _ = sweep(lambda config: task(config, fails=False), "seed=1,2,3")
    assert (code, begun) == (0, [1, 2, 2, 3])


def test_another_sweep_in_the_same_folder_adds_jobs(sweep, capsys):
    begun = []

    def task(config):
        begun.append((config.seed, config.batch.size))
        return 0.5

    assert sweep(task, "seed=1,2", "batch.size=8")[0] == 0
    code, folder = sweep(task, "seed=1,2", "batch.size=16", "trainer.progress=none")
    assert code == 0
    assert begun == [(1, 8), (2, 8), (1, 16), (2, 16)]
    assert [name for name, _ in read_results(folder)] == list("0123")


@pytest.mark.thorough
def test_folds_are_repetitions_and_a_failed_one_is_named(sweep, capsys):
    """Means and deviations by hand; what failed is done by the same command."""
    fails = [True]

    def task(config):
        fold, large = config.dataset["fold"], config.batch.size == 16
        if fold == 2 and large and config.seed == 1 and fails:
            raise DataError("faces.csv is gone")
        return 10.0 * large + fold + config.seed / 10

    words = ("dataset=sequences", "+dataset.folds=3", "batch.size=8,16")
    words = (*words, "seed=range(2)", "+dataset.fold=range(3)")
    code, folder = sweep(task, *words)
    assert code == 3
    # The other setting reached more, but lacks a fold.
    assert "best: accuracy 1.05, the mean of 6 jobs with batch.size=8" in capsys.readouterr().out
    fails.clear()
    rows = read_rows(folder / "means.csv")
    assert [row["jobs"] for row in rows] == ["6 of 6", "5 of 6"]
    assert rows[1]["missing"] == "seed 1, fold 2: failed (job 11)"
    assert sweep(task, *words)[0] == 0
    rows = read_rows(folder / "means.csv")
    assert [row["batch.size"] for row in rows] == ["8", "16"]
    assert [float(row["accuracy, mean"]) for row in rows] == [1.05, 11.05]
    assert [float(row["over folds"]) for row in rows] == [1, 1]
    assert [float(row["over seeds"]) for row in rows] == [0.0707, 0.0707]  # of 0 and 0.1
    assert [row["missing"] for row in rows] == ["", ""]


def read_rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1,2", "sweep.folds=all"], "sweep.folds: is no longer there: sweep over them: +d"),
        (["sweep.seeds=2"], "sweep.seeds: is no longer there: sweep over them: seed=range(5)"),
        (["sweep.on_failure=stop,continue"], "sweep.on_failure: is the same for all jobs of a"),
        (["seed=1,2", "sweep.jobs=2"], "sweep.jobs: is no longer there: hydra/launcher=joblib"),
        (["seed=range(1000000)"], "has more than 100000 values"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(words, message, sweep, capsys):
    code, folder = sweep(lambda config: pytest.fail("a job ran"), *words)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.stress
def test_a_job_of_another_process_is_left_alone(sweep, capsys):
    assert sweep(lambda config: 1 / 0, "seed=1,2")[0] == 1
    with job_lock(Path("sweep/1")) as ours:
        assert ours
        code, folder = sweep(lambda config: 0.5, "seed=1,2")
        assert code == 0
        out, err = capsys.readouterr()
        assert "1 run in other processes" in err
        assert re.search(r"1 +2 +running", out)
        assert "-m seed=1,2 hydra.sweep.dir=sweep" in err
    assert [one.status for _, one in read_results(folder)] == ["done", "failed"]
    assert sweep(lambda config: 0.5, "seed=1,2")[0] == 0
    assert [one.status for _, one in read_results(folder)] == ["done", "done"]


@pytest.mark.stress
def test_folders_named_by_the_jobs(sweep):
    names = []
    pattern = "hydra.sweep.subdir=job-${hydra.job.num}-${hydra.job.override_dirname}"
    for words in ("seed=1,2", "seed=3,2"):
        code, folder = sweep(lambda config: names.append(Path(config.run_dir).name), words, pattern)
        assert code == 0
    assert names == ["job-0-seed=1", "job-1-seed=2", "job-2-seed=3"]
    assert sorted(path.parent.name for path in folder.glob("*/result.json")) == names


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (f"hydra.sweep.subdir={'a' * 300}-${{hydra.job.num}}", "names a folder by more than 255"),
        ("hydra.sweep.dir=/proc/sweep", "/proc/sweep cannot be written"),
        ("hydra.sweep.dir=file/sweep", "file/sweep cannot be written: Not a directory"),
    ],
)
def test_a_folder_that_cannot_be_made_is_one_message(word, message, sweep, capsys, tmp_path):
    (tmp_path / "file").touch()
    code, _ = sweep(lambda config: pytest.fail("a job ran"), "seed=1,2", word, at=())
    assert code != 0
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


DAMAGES = {
    "cut off": (lambda text: text[:100], "is damaged: it is cut off"),
    "version": (lambda text: text.replace('"version": 1', '"version": 2'), "its version is 2"),
    "elsewhere": (
        lambda text: text.replace('"folder": "0"', '"folder": "../0"'),
        "the folder of a job is '../0', which is not one below the sweep's",
    ),
    "twice": (
        lambda text: text.replace('"folder": "0"', '"folder": "1"'),
        "two jobs have the folder '1'",
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stored_sweep_of_a_stranger_is_checked(damage, sweep, capsys):
    assert sweep(lambda config: 0.5, "seed=1,2")[0] == 0
    change, message = DAMAGES[damage]
    path = Path("sweep/sweep.json")
    path.write_text(change(path.read_text()))
    capsys.readouterr()
    assert sweep(lambda config: 0.5, "seed=1,2")[0] == 2
    err = capsys.readouterr().err
    assert message in err
    assert "sweep.json" in err
    assert "Traceback" not in err


@pytest.mark.thorough
def test_a_sweep_replaces_what_it_has_made(sweep):
    for words in ("seed=1,2", "seed=1,2,3"):
        assert sweep(lambda config: 0.5, words)[0] == 0
    assert len(Path("sweep/sweep.csv").read_text().splitlines()) == 4


def test_a_run_that_was_killed_while_it_claimed_its_folder_claims_it_again(tmp_path):
    """There is an empty manifest then, maybe a configuration, and leftovers of writers."""
    path = tmp_path / "run"
    path.mkdir()
    for name in ("manifest.json", "config.yaml", "job.lock", ".config.yaml.12-0123abcd.tmp"):
        (path / name).touch()
    one = RunFolder.claim(path, {"seed": 1})
    assert one.path == path
    other = RunFolder.claim(path, {"seed": 2})
    assert other.path.name == "run-2"
    one.release()
    other.release()
    (path / "metrics.jsonl").touch()
    assert RunFolder.claim(path, {}).path.name == "run-3", "it has begun"


@pytest.mark.stress
def test_jobs_in_parallel_give_what_jobs_in_turn_give(faces, capsys, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = [
        "-m",
        *faces,
        "optimizer.lr=0.01,0.003",
        "trainer.max_epochs=1",
        "seed=range(2)",
        "trainer.pictures=false",
        "tracker=none",
        "trainer.digest=true",
    ]
    found = {}
    for jobs, launcher in {"1": [], "2": ["hydra/launcher=joblib"]}.items():
        done = run(capsys, *words, *launcher, f"hydra.sweep.dir={tmp_path / jobs}")
        assert done.code == 0, done.err
        assert "4 jobs in" in done.out
        found[jobs] = [
            (
                name,
                one.overrides,
                one.value,
                one.others,
                (tmp_path / jobs / name / "digests.jsonl").read_text(),
            )
            for name, one in read_results(tmp_path / jobs)
        ]
    assert found["1"] == found["2"]
