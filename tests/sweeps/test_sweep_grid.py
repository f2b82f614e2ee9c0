"""Sweeps with seeds, retries, failures and jobs in parallel; stored ones, and other ones."""

import csv
import re
from pathlib import Path

import pytest

from penstock import command, seams
from penstock.addons.sweeps import sweep_grid
from penstock.addons.sweeps.job_result import read_results
from penstock.addons.sweeps.stored_sweep import job_lock, read_sweep, resumed
from penstock.distributed import world
from penstock.errors import ConfigError, DataError
from penstock.runs.run_folder import RunFolder
from tests.program import run


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs a sweep whose task is a function; gives the exit code and the sweep's folder."""
    monkeypatch.chdir(tmp_path)

    def go(task, *words):
        monkeypatch.setattr(seams, "runner", lambda name: task)
        code = command.main(["-m", *words])
        return code, tmp_path / "sweep"

    return lambda task, *words: go(task, *words, "hydra.sweep.dir=sweep")


@pytest.mark.thorough
def test_seeds_are_the_axis_that_varies_fastest(sweep):
    begun = []
    words = ("sampler=random,sequential", "seed=3", "sweep.seeds=2")
    code, folder = sweep(
        lambda config: begun.append((config.sampler["_target_"], config.seed)), *words
    )
    assert code == 0
    assert [seed for _, seed in begun] == [3, 4, 3, 4]
    assert len({name for name, _ in begun[:2]}) == 1
    overrides = [one.overrides for _, one in read_results(folder)]
    assert overrides[0] == ["sampler=random", "seed=3"], "what the sweep does is no part of a job"
    assert sweep(lambda config: begun.append(config.seed), *words[:-1], "sweep.seeds=3")[0] == 0
    assert begun[4:] == [5, 5]


def test_a_job_that_fails_is_tried_again(sweep, capsys):
    begun = []

    def task(config):
        begun.append(config.seed)
        if config.seed == 2 and begun.count(2) < 3:
            raise DataError("the disk is away")
        if config.seed == 3:
            raise ConfigError("this never works")
        return 0.5

    code, folder = sweep(task, "seed=1,2,3", "sweep.retries=2")
    assert code == 2
    assert begun == [1, 2, 2, 2, 3]
    assert [one.status for _, one in read_results(folder)] == ["done", "done", "failed"]
    assert capsys.readouterr().err.count("job 1: tried again") == 2


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
    assert "-m resume=sweep\n" in err
    code, _ = sweep(lambda config: task(config, fails=False), "seed=1,2,3")
    assert (code, begun) == (0, [1, 2, 2, 3])


def test_another_sweep_in_the_same_folder_is_refused_by_key(sweep, capsys):
    words = ("seed=1,2", "batch.size=8", "trainer.max_epochs=3")
    assert sweep(lambda config: 0.5, *words)[0] == 0
    before = Path("sweep/sweep.json").read_bytes()
    code, folder = sweep(
        lambda config: pytest.fail("a job ran"),
        "seed=1,2,3",
        "batch.size=16",
        "model=linear",
        "trainer.progress=none",
    )
    assert code == 2
    err = capsys.readouterr().err
    assert "batch.size: is 16 here and 8 in the sweep in sweep" in err
    assert "model: is linear here and not given in the sweep" in err
    assert "trainer.max_epochs: is not given here and 3 in the sweep" in err
    assert "trainer.progress" not in err
    assert (folder / "sweep.json").read_bytes() == before


@pytest.mark.thorough
def test_folds_are_repetitions_and_a_failed_one_is_named(sweep, capsys):
    """Means and deviations by hand; what failed is done by the same command."""
    fails = [True]

    def task(config):
        fold, large = config.dataset["fold"], config.batch.size == 16
        if fold == 2 and large and config.seed == 1 and fails:
            raise DataError("faces.csv is gone")
        return 10.0 * large + fold + config.seed / 10

    words = ("dataset=sequences", "+dataset.folds=3", "sweep.folds=all", "sweep.seeds=2")
    words = (*words, "batch.size=8,16", "sweep.out_of_fold=null")
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
        (["+dataset.folds=2,3", "sweep.folds=all"], "sweep.folds: runs all folds of one dataset.f"),
        (["sweep.folds=all"], "sweep.folds: runs all folds, and dataset.folds says of how many"),
        (["seed=1,2", "sweep.seeds=2"], "sweep.seeds: adds an axis of seeds, and seed is swept"),
        (["sweep.retries=1,2"], "sweep.retries: is the same for all jobs of a sweep"),
        (["seed=1,2", "sweep.jobs=0"], "sweep.jobs: got 0"),
        (["seed=1,2", "sweep.jobs=2", "hydra/launcher=joblib"], "sweep.jobs: is for jobs that"),
        (["sweep.seeds=1000000"], "a sweep of 100001 jobs; 100000 is the most"),
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
        assert "-m resume=sweep" in err
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
    "of hydra": (
        lambda text: text.replace('"seed=1,2"', '"hydra.launcher.setup=[evil]"'),
        "Launchers are taken from a command line only",
    ),
    "a launcher": (
        lambda text: text.replace('"seed=1,2"', '"hydra/launcher=submitit_slurm"'),
        "holds 'hydra/launcher=submitit_slurm'. Launchers are taken from",
    ),
    "a sweeper": (
        lambda text: text.replace('"seed=1,2"', '"++hydra/sweeper=basic"'),
        "Launchers are taken from a command line only",
    ),
    "a key": (lambda text: text.replace('"seed=1,2"', '"evil.key=1"'), "is not a key of a run"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_stored_sweep_of_a_stranger_is_checked(damage, sweep, capsys):
    assert sweep(lambda config: 0.5, "seed=1,2")[0] == 0
    change, message = DAMAGES[damage]
    path = Path("sweep/sweep.json")
    path.write_text(change(path.read_text()))
    capsys.readouterr()
    assert command.main(["resume=sweep"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "sweep.json" in err
    assert "Traceback" not in err


@pytest.mark.thorough
def test_a_sweep_replaces_what_it_has_made(sweep):
    for words in ("seed=1,2", "seed=1,2,3"):
        assert sweep(lambda config: 0.5, words)[0] == 0
    assert len(Path("sweep/sweep.csv").read_text().splitlines()) == 4


def test_what_is_not_written_down_is_asked_for_again(sweep):
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    folder = Path("sweep")
    folder.mkdir()
    stored = sweep_grid.StoredSweep(words=["seed=1,2", *launcher])
    asked = sweep_grid.stored_sweep.extend(folder, stored)[0]
    assert read_sweep(folder) == asked
    with pytest.raises(ConfigError, match=r"holds 'hydra/launcher=joblib', 'hydra\.launcher\.n_j"):
        resumed(["resume=sweep", "seed=3"])
    for again in (launcher, ["hydra/launcher=basic"]):
        words, _ = resumed(["resume=sweep", "seed=3", *again])
        assert words == ["seed=3", *again, "hydra.sweep.dir=sweep"]
    (folder / "sweep.json").unlink()
    sweep_grid.stored_sweep.extend(folder, sweep_grid.StoredSweep(words=["seed=1,2"]))
    with pytest.raises(ConfigError, match=r"hydra\.sweep\.dir: resume=sweep continues"):
        resumed(["resume=sweep", "hydra.sweep.dir=other"])


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


def test_jobs_share_the_cores_of_the_machine(monkeypatch):
    monkeypatch.setattr(world, "cores", lambda: 16)
    assert (world.usable_cpus(), world.jobs_at_once(), world.threads_of_job()) == (16, 1, None)
    monkeypatch.setenv(world.JOBS, "3")
    monkeypatch.setenv(world.THREADS, "2")
    assert (world.usable_cpus(), world.jobs_at_once(), world.threads_of_job()) == (5, 3, 2)
    monkeypatch.setattr(sweep_grid, "available", lambda: 9 << 30)
    assert sweep_grid.at_once_of("auto", 64, "cpu") == 4
    assert sweep_grid.at_once_of("auto", 3, "cpu") == 3
    assert sweep_grid.at_once_of(8, 64, "cpu") == 8
    monkeypatch.setattr(sweep_grid, "available", lambda: 0)  # not known
    assert sweep_grid.at_once_of("auto", 64, "cpu") == 16


@pytest.mark.stress
def test_jobs_in_parallel_give_what_jobs_in_turn_give(faces, capsys, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = [
        "-m",
        *faces,
        "optimizer.lr=0.01,0.003",
        "trainer.max_epochs=1",
        "sweep.seeds=2",
        "trainer.pictures=false",
        "tracker=none",
        "trainer.digest=true",
    ]
    found = {}
    for jobs in ("1", "2"):
        done = run(capsys, *words, f"sweep.jobs={jobs}", f"hydra.sweep.dir={tmp_path / jobs}")
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
    assert run(capsys, f"resume={tmp_path / '2'}").code == 0
