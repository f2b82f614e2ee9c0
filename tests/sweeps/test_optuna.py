"""Sweeps whose values optuna chooses: real fits, a real journal, real kills."""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution as Choice
from optuna.distributions import FloatDistribution as Floats
from optuna.distributions import IntDistribution as Integers
from optuna.trial import TrialState

from penstock import command
from penstock.addons.sweeps.job_result import JobResult
from penstock.addons.sweeps.optuna_sweeper import distribution
from penstock.addons.sweeps.study import JOURNAL, Study, held, importance
from penstock.config.schema import StudySection
from penstock.errors import ConfigError, PenstockError
from tests import warm
from tests.program import ROOT, run

SMALL = (
    "dataset.count=24",
    "dataset.size=32",
    "batch.size=8",
    "trainer.max_epochs=3",
    "tracker=none",
    "trainer.pictures=false",
    "trainer.progress=none",
    "trainer.baseline=false",
    "loader=debug",
)
LR, WIDTH = "optimizer.lr=tag(log,interval(1e-5,1e-1))", "model.width=choice(4,8)"
SIX = (LR, WIDTH, "sweep.optuna.trials=6", "sweep.optuna.startup=2")
OPTIONS = {
    "trials": 9,
    "sampler": "random",
    "pruner": "median",
    "startup": 2,
    "warmup": 1,
    "timeout": None,
    "seed": 0,
}


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
    """Number, state, values and reports of each trial."""
    return [
        (
            one.number,
            one.state.name,
            one.params,
            one.value,
            one.intermediate_values,
            one.system_attrs,
        )
        for one in Study(folder).trials
    ]


def results(folder):
    found = {path.parent.name: JobResult.read(path) for path in folder.glob("*/result.json")}
    return {
        name: (one.status, one.value, [word for word in one.overrides if "resume" not in word])
        for name, one in found.items()
    }


def test_a_study_is_a_sweep_whose_jobs_are_trials(whole):
    found = trials(whole)
    assert [number for number, *_ in found] == list(range(6))
    assert len({params["optimizer.lr"] for _, _, params, *_ in found}) == 6
    assert {state for _, state, *_ in found} == {"COMPLETE", "PRUNED"}
    for number, state, params, value, reports, _ in found:
        status, reached, overrides = results(whole)[str(number)]
        assert status == {"COMPLETE": "done", "PRUNED": "pruned"}[state]
        assert f"optimizer.lr={params['optimizer.lr']}" in overrides
        assert f"model.width={params['model.width']}" in overrides
        assert 1e-5 <= params["optimizer.lr"] <= 1e-1
        lines = (whole / str(number) / "metrics.jsonl").read_text().splitlines()
        epochs = [one for one in map(json.loads, lines) if one["event"] == "epoch"]
        assert reports == {one["epoch"] + 1: one["val/nme"] for one in epochs}
        assert reached == min(reports.values())
        assert value == (reached if state == "COMPLETE" else epochs[-1]["val/nme"])
    shares = importance(whole)
    assert list(shares) in (["optimizer.lr", "model.width"], ["model.width", "optimizer.lr"])
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize("pruner", ["median", "asha"])
@pytest.mark.one_in(2)
def test_a_trial_that_cannot_learn_is_ended_early(pruner, study, capsys):
    done = study(
        "optimizer.lr=choice(1e-3,1e-12)",
        "sweep.optuna.sampler=grid",
        f"sweep.optuna.pruner={pruner}",
        "sweep.optuna.startup=1",
        "sweep.optuna.trials=5",
    )
    assert done.code == 0, done.err
    assert "ended after 1 epoch, as nme is behind that of other trials" in done.err
    assert "2 jobs in sweep" in done.out, "all combinations, once"
    assert "best: nme" in done.out
    assert "by job 0" in done.out
    manifest = json.loads(Path("sweep/1/manifest.json").read_text())
    assert (manifest["status"], manifest["reason"]) == ("done", "pruning")
    assert manifest["pruned"].startswith("ended after 1 epoch")
    assert manifest["last"]["epoch"] == 0
    assert [state for _, state, *_ in trials(Path("sweep"))] == ["COMPLETE", "PRUNED"]
    assert json.loads(Path("sweep/0/manifest.json").read_text())["reason"] == "max_epochs"
    further = run(capsys, "resume=sweep/1")
    assert further.code == 0, further.err
    manifest = json.loads(Path("sweep/1/manifest.json").read_text())
    assert (manifest["last"]["epoch"], manifest["reason"]) == (2, "max_epochs")
    assert "pruned" not in manifest
    assert [state for _, state, *_ in trials(Path("sweep"))] == ["COMPLETE", "PRUNED"]


@pytest.mark.stress
def test_without_a_pruner_all_trials_train_to_their_end(study):
    assert (
        study(
            "optimizer.lr=choice(1e-3,1e-12)",
            "sweep.optuna.sampler=grid",
            "sweep.optuna.pruner=none",
            "sweep.optuna.startup=1",
        ).code
        == 0
    )
    assert [len(reports) for *_, reports, _ in trials(Path("sweep"))] == [3, 3]


def disturbed(faces_root, folder, stop, number):
    """Start the six trials in a process of their own, and send it a signal when `stop` says so."""
    program = warm.start(
        [sys.executable, "run.py", *words(faces_root, folder, *SIX)],
        cwd=ROOT,
        stdout=-3,
        stderr=-3,
    )
    journal = folder / JOURNAL
    while program.poll() is None and not (journal.exists() and stop(journal)):
        time.sleep(0.002)
    program.send_signal(number)
    return program.wait(60)


def lines_of(journal):
    return journal.read_bytes().count(b"\n")


def go_on(faces_root, folder, whole, capsys):
    """Start a disturbed study again, and compare it with that which nothing has disturbed."""
    before = {name: one for name, one in results(folder).items() if one[0] in ("done", "pruned")}
    capsys.readouterr()
    assert command.main(words(faces_root, folder, *SIX)) == 0
    said = capsys.readouterr()
    for name in before:
        assert f"job {name}:" not in said.err or f"job {name}: done before" in said.err
    assert trials(folder) == trials(whole)
    after = results(folder)
    assert after == results(whole)
    assert {name: after[name] for name in before} == before
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == list("012345")
    assert "6 jobs in" in said.out
    for number in range(6):  # no epoch is there twice, none is missing
        ledgers = [(one / str(number) / "metrics.jsonl").read_text() for one in (folder, whole)]
        epochs = [
            [
                (line["epoch"], line["val/nme"])
                for line in map(json.loads, text.splitlines())
                if line["event"] == "epoch"
            ]
            for text in ledgers
        ]
        assert epochs[0] == epochs[1]


@pytest.mark.parametrize(("line", "number"), [(12, signal.SIGKILL), (17, signal.SIGTERM)])
@pytest.mark.stress
def test_a_study_that_is_stopped_continues_as_if_it_had_not(
    line, number, faces_root, whole, tmp_path, capsys
):
    folder = tmp_path / "sweep"
    code = disturbed(faces_root, folder, lambda journal: lines_of(journal) >= line, number)
    assert code == (-9 if number == signal.SIGKILL else 75)
    assert lines_of(folder / JOURNAL) < lines_of(whole / JOURNAL)
    go_on(faces_root, folder, whole, capsys)


@pytest.mark.stress
@pytest.mark.parametrize("draw", range(6))
def test_a_study_that_is_killed_five_times(draw, faces_root, whole, tmp_path, capsys):
    moment, folder = random.Random(draw), tmp_path / "sweep"
    codes = []
    for _ in range(5):
        there = lines_of(folder / JOURNAL) if (folder / JOURNAL).exists() else 0
        line, more = there + moment.randrange(6), moment.uniform(0, 0.5)

        def stop(journal, line=line, more=more):
            if lines_of(journal) < line:
                return False
            time.sleep(more)
            return True

        codes.append(disturbed(faces_root, folder, stop, signal.SIGKILL))
    assert codes.count(-9) >= 3, codes
    go_on(faces_root, folder, whole, capsys)


@pytest.mark.stress
def test_a_trial_of_several_ranks_is_ended_by_all_of_them(study):
    done = study(
        "optimizer.lr=choice(1e-3,1e-12)",
        "sweep.optuna.sampler=grid",
        "sweep.optuna.startup=1",
        "distributed=ddp",
        "distributed.nproc=2",
    )
    assert done.code == 0, done.err
    assert [state for _, state, *_ in trials(Path("sweep"))] == ["COMPLETE", "PRUNED"]


@pytest.fixture
def again(whole, study):
    """The same study again, in a copy of its folder."""
    shutil.copytree(whole, "sweep")
    return lambda *more: study(*SIX, *more)


@pytest.mark.thorough
def test_more_trials_are_added_to_those_that_are_there(again, whole):
    done = again("sweep.optuna.trials=7")
    assert done.code == 0, done.err
    assert "of 7 trials, 6 are finished and 0 were begun" in done.err
    began = [line for line in done.err.splitlines() if line.startswith("job ")]
    assert [line.split()[1].rstrip(":") for line in began] == ["6"]
    assert trials(Path("sweep"))[:6] == trials(whole)
    assert "7 jobs in sweep" in done.out


@pytest.mark.parametrize("change", ["batch.size=4", "model.width=choice(4,16)", "seed=1"])
@pytest.mark.one_in(3)
def test_another_sweep_does_not_go_on_with_it(change, again):
    done = again(change)
    assert done.code == 2
    key = change.partition("=")[0]
    assert key in done.err
    assert "another" in done.err
    assert "Traceback" not in done.err


def test_a_line_that_was_written_in_part_is_dropped(again, whole):
    with Path("sweep", JOURNAL).open("a") as file:
        file.write('{"op_code":6,"trial_id":5,"sta')
    assert again().code == 0
    assert trials(Path("sweep")) == trials(whole)


def foreign(path):
    path.unlink()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    optuna.create_study(study_name="of-another", storage=storage)


def begun_elsewhere(path):
    path.unlink()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.create_study(study_name="penstock", storage=storage)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)


def line(text):
    return lambda path: path.write_text(path.read_text() + text + "\n")


DAMAGES = {
    "foreign": foreign,
    "begun elsewhere": begun_elsewhere,
    "not JSON": line("hello"),
    "a list": line("[1]"),
    "nested": line("[" * 100_000),
    "an unknown operation": line('{"op_code": 77, "worker_id": "a"}'),
    "no study": line('{"op_code": 4, "worker_id": "a"}'),
    "no trial": line('{"op_code": 6, "worker_id": "a"}'),
    "another distribution": line(
        '{"op_code": 4, "worker_id": "a", "study_id": 0, "datetime_start": null, "distributions": '
        '{"x": "{\\"name\\": \\"os.system\\", \\"attributes\\": {}}"}, "params": {"x": 1}}'
    ),
    "bytes": lambda path: path.write_bytes(os.urandom(5000) + b"\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_journal_is_refused(damage, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(whole / JOURNAL, JOURNAL)
    DAMAGES[damage](Path(JOURNAL))
    before = Path(JOURNAL).read_bytes() if Path(JOURNAL).is_file() else None
    options = StudySection(**OPTIONS)
    with pytest.raises(PenstockError, match=JOURNAL) as said, held(Path()):
        Study.open(Path(), options, "min", {"of": "a test"})
    assert said.value.exit_code == 2
    assert before is None or Path(JOURNAL).read_bytes() == before
    if damage != "a link":
        with pytest.raises(ConfigError, match=JOURNAL):
            importance(Path())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("damage", ["bytes"])
def test_a_sweep_with_a_damaged_journal_ends_with_one_message(damage, again):
    DAMAGES[damage](Path("sweep", JOURNAL))
    done = again("sweep.optuna.trials=7")
    assert done.code == 2
    assert JOURNAL in done.err
    assert "Traceback" not in done.err
    assert not Path("sweep/6").exists()


def test_two_processes_do_not_run_one_study(again):
    with held(Path("sweep")):
        done = again("sweep.optuna.trials=7")
    assert done.code == 2
    assert "another process runs the study in sweep" in done.err


@pytest.mark.stress
def test_a_trial_that_fails_counts_and_the_others_go_on(study):
    done = study("optimizer.lr=choice(1e30,1e-3)", "sweep.optuna.sampler=grid")
    assert done.code == 1
    assert [state for _, state, *_ in trials(Path("sweep"))] == ["FAIL", "COMPLETE"]
    assert [one[0] for _, one in sorted(results(Path("sweep")).items())] == ["failed", "done"]


def test_optuna_is_imported_for_studies_only(tmp_path):
    code = (
        "import sys, penstock.command, penstock.tasks.fit, penstock.addons.sweeps.optuna_sweeper\n"
        "print(sorted({'optuna', 'sqlalchemy', 'alembic'} & {*sys.modules}))"
    )
    done = warm.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_without_optuna_a_message_says_what_to_install(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = study(LR)
    assert done.code == 2
    assert "pip install" in done.err
    assert "Traceback" not in done.err
    assert not Path("sweep").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([LR, "batch.size=choice(8,0)"], "batch.size: got 0"),
        (["batch.size=int(interval(0,8))"], "batch.size: got 0"),
        (["optimizer.lr=interval(1,0.1)"], "the smaller one first"),
        (["optimizer.lr=tag(log,interval(0,1))"], "optimizer.lr"),
        (["optimizer.lr=tag(log,choice(0.1,1))"], "a choice has no log scale"),
        (["optimizer.lr=range(1,1)"], "optimizer.lr"),
        ([LR, "sweep.optuna.sampler=grid"], "grid goes over all combinations"),
        ([], "optuna has nothing to choose"),
        ([WIDTH, "task=digest"], "digest measures nothing"),
        ([WIDTH, "hydra.sweep.subdir=a"], "hydra.sweep.subdir"),
        ([WIDTH, "sweep.optuna.trials=0"], "sweep.optuna.trials"),
        ([WIDTH, "hydra.sweeper.max_batch_size=3"], "hydra.sweeper.max_batch_size"),
        ([LR, "sweep=grid"], "choose sweep=optuna"),
    ],
)
@pytest.mark.one_in(3)
def test_what_cannot_be_chosen_from_is_reported_before_anything_runs(given, said, study):
    done = study(*given)
    assert done.code == 2, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert not Path("sweep", JOURNAL).exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("x=a,b", Choice(["a", "b"])),
        ("x=choice(1,true,[1,2])", Choice(["1", "True", "[1,2]"])),
        ("x=range(1,9)", Integers(1, 8)),
        ("x=range(8,0,-2)", Integers(2, 8, step=2)),
        ("x=range(0,1,0.25)", Floats(0, 0.75, step=0.25)),
        ("x=tag(log,range(1,1000))", Integers(1, 999, log=True)),
        ("x=interval(0,1)", Floats(0, 1)),
        ("x=tag(log,interval(1e-4,1e-1))", Floats(1e-4, 1e-1, log=True)),
        ("x=int(interval(1,64))", Integers(1, 64)),
    ],
)
def test_a_sweep_in_hydras_syntax_becomes_a_distribution(given, expected):
    (override,) = OverridesParser.create().parse_overrides([given])
    assert distribution(override) == expected


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("pruner", ["median", "asha"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_trials_are_ended_as_optuna_itself_would_end_them(pruner, mode, tmp_path):
    options = StudySection(**{**OPTIONS, "pruner": pruner})
    made = {
        "median": optuna.pruners.MedianPruner(2, 1),
        "asha": optuna.pruners.SuccessiveHalvingPruner(1, 3),
    }[pruner]
    theirs = optuna.create_study(
        direction={"min": "minimize", "max": "maximize"}[mode], pruner=made
    )
    draw, ends, space = random.Random(0), [], {"x": Floats(0, 1)}
    Study.open(tmp_path, options, mode, {"of": "a test"})
    for number in range(30):
        reference, level = theirs.ask(), draw.random()
        ours = Study(tmp_path, options)
        assert ours.begin(space, lambda values: None).number == number
        for epochs in range(1, 12):
            value = level + draw.random() / 5
            reference.report(value, epochs)
            ours.report(number, epochs, value)
            if draw.random() < 0.3:  # killed before it was judged
                ours = Study(tmp_path, options)
            over = ours.is_hopeless(number)
            assert over == reference.should_prune()
            if over:
                break
        ends.append(over)
        ours.end(number, None if over else value, over)
        theirs.tell(reference, **({"state": TrialState.PRUNED} if over else {"values": value}))
    assert 3 < sum(ends) < 30
    assert [one.system_attrs for one in ours.trials] == [one.system_attrs for one in theirs.trials]


def test_what_a_trial_tries_depends_on_the_seed_and_the_trials_before_it(tmp_path):
    def chosen(folder, seed, sampler):
        folder.mkdir()
        options = StudySection(**{**OPTIONS, "seed": seed, "sampler": sampler})
        space = {"x": Floats(1e-5, 1, log=True), "y": Choice(["a", "b"]), "z": Integers(1, 9)}
        Study.open(folder, options, "min", {"of": "a test"})
        for number in range(8):
            study = Study(folder, options)  # each one a new start
            trial = study.begin(space, lambda values: None)
            study.end(number, abs(trial.params["x"] - 0.01), False)
        return [one.params for one in study.trials]

    for sampler in ("tpe", "random"):
        first = chosen(tmp_path / f"{sampler}1", 0, sampler)
        assert chosen(tmp_path / f"{sampler}2", 0, sampler) == first
        assert chosen(tmp_path / f"{sampler}3", 1, sampler) != first
        assert len({one["x"] for one in first}) == 8
