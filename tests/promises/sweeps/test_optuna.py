"""Sweeps whose values Optuna chooses: real fits, a real journal, real kills."""

import json

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution as Choice
from optuna.distributions import FloatDistribution as Floats
from optuna.distributions import IntDistribution as Integers

from penstock import command
from penstock.addons.sweeps.optuna_sweeper import JOURNAL, distribution
from penstock.addons.sweeps.sweep import jobs_of
from tests.support.program import run

SMALL = (
    "dataset.count=24 dataset.size=32 batch.size=8 trainer.max_epochs=3 tracker=none "
    "trainer.pictures=false trainer.report=false trainer.progress=none trainer.baseline=false "
    "loader=debug"
).split()
LR, WIDTH = "optimizer.lr=tag(log,interval(1e-5,1e-1))", "model.width=choice(4,8)"
SIX = (LR, WIDTH, "sweep.optuna.trials=6", "sweep.optuna.startup=2")
# Random values, of which the first trial can learn by its own and the second one cannot.
TWO = (
    "optimizer.lr=choice(1e-3,1e-12)",
    *("sweep.optuna.sampler=random", "sweep.optuna.seed=4"),
    *("sweep.optuna.startup=1", "sweep.optuna.trials=2"),
)


def words(root, folder, *more):
    return [
        "-m",
        "sweep=optuna",
        f"dataset.root={root}",
        *SMALL,
        f"hydra.sweep.dir={folder}",
        *more,
    ]


@pytest.fixture
def study(faces_root, tmp_path, monkeypatch, capsys):
    """Runs a study in `tmp_path/sweep` in this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *more: run(capsys, *words(faces_root, "sweep", *more))


@pytest.fixture(scope="module")
def whole(faces_root, tmp_path_factory):
    """The folder of a study of six trials that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    assert command.main(words(faces_root, folder, *SIX)) == 0
    return folder


def trials(folder):
    """Number, state, values, value and reports of each trial."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
    study = optuna.load_study(
        study_name="penstock", storage=optuna.storages.JournalStorage(backend)
    )
    return [
        (one.number, one.state.name, one.params, one.value, one.intermediate_values)
        for one in study.trials
    ]


def test_a_study_is_a_sweep_whose_jobs_are_trials(whole):
    found, jobs = trials(whole), {job.settings["optimizer.lr"]: job for job in jobs_of(whole)}
    assert [number for number, *_ in found] == list(range(6))
    assert len(jobs) == 6
    for _, state, params, value, reports in found:
        job = jobs[str(params["optimizer.lr"])]
        assert job.status == {"COMPLETE": "done", "PRUNED": "pruned"}[state]
        assert job.settings["model.width"] == params["model.width"]
        assert 1e-5 <= params["optimizer.lr"] <= 1e-1
        lines = map(json.loads, (job.path / "metrics.jsonl").read_text().splitlines())
        epochs = [one for one in lines if one["event"] == "epoch"]
        assert reports == {one["epoch"] + 1: one["val/nme"] for one in epochs}
        assert value == (job.value if state == "COMPLETE" else epochs[-1]["val/nme"])
    assert (whole / "sweep.csv").read_text().count("\n") == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=choice(4,8)", Choice(["4", "8"])),
        ("x=adamw,sgd", Choice(["adamw", "sgd"])),
        ("x=range(1,9,2)", Integers(1, 7, step=2)),
        ("x=range(0.1,0.4,0.1)", None),
        ("x=interval(0.1,1)", Floats(0.1, 1)),
        ("x=tag(log,interval(1e-5,1e-1))", Floats(1e-5, 1e-1, log=True)),
        ("x=int(interval(8,64))", Integers(8, 64)),
        ("x=tag(log,interval(0,1))", "log"),
    ],
)
def test_what_optuna_chooses_from(text, expected):
    (override,) = OverridesParser.create().parse_overrides([text])
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            distribution(override)
    elif expected is not None:
        assert distribution(override) == expected
    else:
        assert distribution(override).step == pytest.approx(0.1)


def test_what_cannot_be_a_study_is_refused(study):
    done = study("sweep.optuna.trials=1")
    assert done.code == 2
    assert "error in the study sweep/optuna.journal: write a key as choice" in done.err
    done = study("model.width=range(3,1)")
    assert done.code == 2
    assert "model.width: model.width=range(3,1) has no values" in done.err
    assert "Traceback" not in done.err
