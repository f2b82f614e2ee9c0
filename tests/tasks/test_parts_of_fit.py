"""A fit piece by piece: its options, a trial of one step, its weights, and its results."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import penstock
from penstock.distributed.preemption import Preempted, Stop
from penstock.distributed.world import World
from penstock.tasks import fit
from penstock.tasks.fit import Fit, make_options, scheduler_moves, spare_cores
from penstock.training.runner import Result
from penstock.training.train_step import TrainOptions


def test_one_step_is_tried():
    config = penstock.compose(
        "trainer.max_epochs=3",
        "trainer.max_steps=9",
        "scheduler=cosine",
        "scheduler.warmup=2",
        "resume=auto",
    )
    tried = fit._tried(config, "folder")
    assert (tried.trainer.max_epochs, tried.trainer.max_steps) == (1, None)
    assert tried.trainer.checkpoint is None
    assert tried.scheduler == {**config.scheduler, "warmup": 0}
    assert (tried.run_dir, tried.resume) == ("folder/run", None)
    without = fit._tried(config.model_copy(update={"scheduler": None}), "folder")
    assert without.scheduler is None


@pytest.mark.parametrize("quick", [True, False])
def test_a_trial_has_a_folder_for_a_time(quick, monkeypatch):
    config = penstock.compose(f"trainer.fast_dev_run={quick}", "run_dir=mine")
    folders = []
    monkeypatch.setattr(fit, "_fit", lambda config: folders.append(config.run_dir) or 0.5)
    assert fit.run(config) == 0.5
    assert (folders == ["mine"]) == (not quick)
    assert folders[0].endswith("/run") == quick


def test_options_of_a_training():
    config = penstock.compose(
        "trainer.checkpoint.every_epochs=2",
        "trainer.checkpoint.every_steps=30",
        "trainer.checkpoint.every_minutes=4",
        "trainer.max_epochs=7",
    )
    objective = SimpleNamespace(monitor="nme", mode="min", metrics={})
    fit_options = make_options(config, objective)
    assert (fit_options.save_every, fit_options.save_every_steps) == (2, 30)
    assert (fit_options.save_every_minutes, fit_options.max_epochs) == (4, 7)
    assert (fit_options.schedule, fit_options.mode) == ("step", "min")
    by_epoch = config.model_copy(
        update={
            "scheduler": {"interval": "epoch"},
            "trainer": config.trainer.model_copy(update={"checkpoint": None}),
        }
    )
    fit_options = make_options(by_epoch, objective)
    assert fit_options.schedule == "epoch"
    assert fit_options.save_every_steps == TrainOptions(max_epochs=1).save_every_steps
    none = make_options(config.model_copy(update={"scheduler": None}), objective)
    assert none.schedule == "step"


def plan(*steps):
    return SimpleNamespace(steps=lambda epoch: steps[epoch])


def test_moves_of_a_scheduler_end_with_the_run():
    assert scheduler_moves(TrainOptions(max_epochs=3, max_steps=20), plan(10, 10)) == 20
    assert scheduler_moves(TrainOptions(max_epochs=2, max_steps=21), plan(10, 11, 10)) == 21
    by_epoch = TrainOptions(max_epochs=3, max_steps=20, schedule="epoch")
    assert scheduler_moves(by_epoch, plan(10, 10)) == 2
    with pytest.raises(penstock.errors.ConfigError, match="needs the length of the run"):
        scheduler_moves(TrainOptions(max_epochs=1, max_steps=5, schedule="epoch"), plan(None))


def test_threads_of_a_job_are_the_same_on_any_machine(monkeypatch):
    asked = []
    monkeypatch.setattr(fit.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(fit.torch, "set_num_threads", asked.append)
    monkeypatch.setattr(fit, "usable_cpus", lambda: 64)
    monkeypatch.setattr(fit, "threads_of_job", lambda: 6)
    spare_cores(World())
    spare_cores(World(0, 2, local_size=2))
    monkeypatch.setattr(fit, "threads_of_job", lambda: None)
    spare_cores(World())
    assert asked == [6, 3, 2]


def test_the_place_where_a_run_is_stopped():
    text = "SIGTERM: stopped after the last step; nothing was lost"
    with pytest.raises(Preempted, match=text), fit._placed("after the last step"):
        raise Stop("SIGTERM")


class Built(Fit):
    """A fit of which nothing but what a test names is there."""

    def __init__(self, **parts):
        vars(self).update(parts)


def test_the_best_model():
    trained = object()
    for checkpoints in (None, SimpleNamespace(best=lambda: None)):
        opened = SimpleNamespace(checkpoints=checkpoints)
        assert Built(opened=opened, model=trained).best is None
        assert Built(opened=opened, model=trained).best_model() is trained


def test_weights_of_the_best_checkpoint(monkeypatch):
    loaded = []
    new = SimpleNamespace(to=lambda device: ("on", device))
    monkeypatch.setattr(fit, "load_weights", lambda *words: loaded.append(words))
    run = Built(
        opened=SimpleNamespace(checkpoints=SimpleNamespace(best=lambda: "path")),
        parts=SimpleNamespace(model=lambda: new, world=SimpleNamespace(device="cpu")),
    )
    assert run.best_model() == ("on", "cpu")
    assert loaded == [(("on", "cpu"), "path")]


class Seen:
    def __init__(self):
        self.files, self.done = [], 0

    def on_file(self, name, path):
        self.files.append((name, path))

    def on_done(self):
        self.done += 1


@pytest.mark.parametrize(
    ("baseline", "validates", "first", "measured"),
    [
        (True, True, True, True),
        (True, True, False, True),
        (False, True, True, False),
        (True, False, True, False),
    ],
)
def test_results(baseline, validates, first, measured, monkeypatch, capsys):
    levels = {"mean": {"nme": 2.0}, "none": {"nme": 3.0}}
    monkeypatch.setattr(fit, "baselines", lambda *words: levels)
    reported = []
    monkeypatch.setattr(fit.outcome, "print_report", lambda *words: reported.append(words))
    history = [{"worker_deaths": 1}, {"worker_deaths": 2}]
    result = Result(history, {"val/nme": 1.0}, "patience")
    manifest, seen = {"monitor": "nme"}, Seen()
    folder = SimpleNamespace(manifest=manifest, path="run")
    run = Built(
        config=SimpleNamespace(trainer=SimpleNamespace(baseline=baseline)),
        val_loader="loader" if validates else None,
        data=None,
        objective=SimpleNamespace(baseline_name="mean"),
        group=None,
        display=None,
        result=result,
        levels={},
        observers=[seen],
        opened=SimpleNamespace(
            folder=folder if first else None, checkpoints=SimpleNamespace(best=lambda: "best")
        ),
    )
    run.report()
    assert (run.levels == levels) == measured
    if not first:
        assert (seen.done, reported, manifest) == (0, [], {"monitor": "nme"})
        return
    assert reported == [(result, run.levels, "nme")]
    assert manifest["worker_deaths"] == 3
    assert manifest["last"] == history[-1]
    assert manifest["baseline"] == (levels["mean"] if measured else {})
    assert manifest["comparisons"] == ({"none": {"nme": 3.0}} if measured else {})
    assert (seen.done, seen.files) == (1, [("run", "run"), ("checkpoint", "best")])
    assert capsys.readouterr().out == "run          run\ncheckpoint   best\n"


@contextmanager
def nothing():
    yield


@pytest.mark.parametrize(
    ("mine", "validates", "baseline", "tried"),
    [
        (False, True, False, True),
        (True, True, False, False),
        (True, True, True, True),
        (False, False, True, False),
    ],
)
def test_a_batch_of_validation_is_tried_first(mine, validates, baseline, tried, monkeypatch):
    kind = type("Objective", (), {"__module__": "mine" if mine else "penstock.training.objective"})
    flushed, steps = [], []
    monkeypatch.setattr(fit, "try_one_batch", lambda *words: steps.append("tried"))
    monkeypatch.setattr(fit, "make_train_step", lambda *words, **more: steps.append("made"))
    monkeypatch.setattr(fit, "fit", lambda *words: "result")
    waits = []

    @contextmanager
    def preemption(echo, say, tell):
        waits.append((echo, say is not None))
        yield

    monkeypatch.setattr(fit, "Preemption", preemption)
    monkeypatch.setattr(fit.installed, "asked", lambda config, name: [])
    for alone in (True, False):
        run = Built(
            config=SimpleNamespace(trainer=SimpleNamespace(baseline=baseline), seed=1),
            group=SimpleNamespace(
                alone=alone, is_first=alone, tell=None, ends_with_others=nothing, explained=nothing
            ),
            opened=SimpleNamespace(
                checkpoints=SimpleNamespace(flush=lambda: flushed.append("saved"))
                if alone
                else None,
                copies=None if alone else SimpleNamespace(remove=lambda: flushed.append("removed")),
            ),
            objective=kind(),
            data=SimpleNamespace(val=None),
            val_loader="loader" if validates else None,
            train_loader=SimpleNamespace(lanes=None),
            model=None,
            optimizer=None,
            scheduler=None,
            options=None,
            parallel=None,
            observers=[],
        )
        run.train()
        assert run.result == "result"
    assert steps == (["tried"] * tried + ["made"]) * 2
    assert flushed == ["saved", "removed"]
    assert waits == [(0.0, True), (fit._REPEATS_AFTER, False)]
