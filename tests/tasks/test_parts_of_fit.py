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


@pytest.mark.parametrize(
    ("size", "strategy", "looked", "together"),
    [(1, "none", 1, False), (2, "ddp", 0, True), (1, "ddp", 1, True)],
)
def test_ranks_meet_before_anything_is_built(size, strategy, looked, together, monkeypatch):
    joined, sources = [], []

    @contextmanager
    def join(*words):
        joined.append(words[1:])
        yield "group"

    monkeypatch.setattr(fit, "join", join)
    monkeypatch.setattr(fit, "spare_cores", lambda world: None)
    monkeypatch.setattr(fit.resumption, "source", sources.append)
    world = SimpleNamespace(size=size)
    monkeypatch.setattr(fit, "TrainingParts", lambda config: SimpleNamespace(world=world))
    monkeypatch.setattr(fit, "_run", lambda config, parts, group: group)
    shared = SimpleNamespace(strategy=strategy, backend="gloo", timeout=9)
    assert fit._fit(SimpleNamespace(distributed=shared)) == "group"
    assert joined == [("gloo", 9, together)]
    assert len(sources) == looked


@pytest.mark.parametrize("resume", [None, "auto"])
@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("best", [{"val/nme": 0.5}, None])
def test_loaders_of_a_run(resume, validates, best, monkeypatch):
    tried, begun, trained = [], [], []

    @contextmanager
    def loader(*words, **more):
        yield SimpleNamespace(begin=begun.append)

    split = SimpleNamespace(loader=loader)
    data = SimpleNamespace(train=split, val=split, validates=validates)

    class Whole:
        result = SimpleNamespace(best=best)
        options = SimpleNamespace(monitor="nme")

        def __init__(self, config, parts, group, train, val):
            trained.append(val is not None)

        watched = staticmethod(nothing)
        train = report = staticmethod(lambda: None)

    monkeypatch.setattr(fit, "Fit", Whole)
    monkeypatch.setattr(fit, "try_stream", lambda split, loader: tried.append(loader))
    monkeypatch.setattr(fit.installed, "asked", lambda config, name: [])
    config = SimpleNamespace(trainer=SimpleNamespace(digest=False), resume=resume)
    group = SimpleNamespace(is_first=True, explained=nothing, meet=lambda: None)
    value = fit._run(config, SimpleNamespace(data=data, world=None), group)
    assert value == (best and 0.5)
    assert len(tried) == 1 + validates
    assert begun == ([0] if resume is None else [])
    assert trained == [validates]


@pytest.mark.parametrize(
    ("has", "resume", "begins"),
    [(True, None, True), (False, "auto", True), (True, "auto", False), (False, "old", False)],
)
@pytest.mark.parametrize("scheduler", [None, {"_target_": "a"}])
def test_weights_that_a_run_begins_with(has, resume, begins, scheduler, monkeypatch):
    asked = []
    monkeypatch.setattr(fit.checkpoint, "has_checkpoint", lambda folder: has)
    for name in ("make_options", "prepare"):
        monkeypatch.setattr(fit, name, lambda *words: SimpleNamespace(max_epochs=1))
    monkeypatch.setattr(fit.skipping, "check", lambda plan, epochs: None)
    monkeypatch.setattr(fit, "scheduler_moves", lambda options, plan: 7)
    monkeypatch.setattr(Fit, "_scheduled", lambda self, steps: (steps, None))
    monkeypatch.setattr(Fit, "_open", lambda self, moves: moves)
    shared = SimpleNamespace(strategy="none", find_unused_parameters=False, sync_batchnorm=False)
    run = Fit(
        SimpleNamespace(distributed=shared, run_dir="x", resume=resume, scheduler=scheduler),
        SimpleNamespace(data=None, objective=lambda: None, trained=asked.append),
        None,
        SimpleNamespace(plan=None),
        None,
    )
    assert asked == [begins]
    assert run.opened == run.optimizer == (7 if scheduler else 0)


@pytest.mark.parametrize(
    ("spans", "renewed", "state", "schedule", "scheduled", "changed"),
    [
        ([], None, None, "s", [], False),
        ([7], None, None, "s", [], False),
        ([3, 7], None, "state", "s", [], False),
        ([7, 3], None, "state", "s", [3], False),
        ([7, 3], 3, "state", "s", [3], True),
        ([7], 3, "state", "s", [], True),
        ([7], 3, None, "s", [], False),
        ([7], None, "state", "s", [], False),
        ([7], 3, "state", None, [], False),
    ],
)
@pytest.mark.parametrize("kind", ["none", "plain"])
@pytest.mark.parametrize("first", [True, False])
def test_schedules_of_a_run_that_continues(
    spans, renewed, state, schedule, scheduled, changed, kind, first, monkeypatch, capsys
):
    hints, steps, facts = [], [], []
    opened = SimpleNamespace(
        folder=SimpleNamespace(path="run") if first else None,
        fingerprint=None,
        renewed=renewed,
        state=state,
        checkpoints=SimpleNamespace(folder=fit.Path("run/checkpoints")) if first else None,
    )

    def opening(*words):
        facts.append(words[-1])
        return SimpleNamespace(open=lambda: opened)

    monkeypatch.setattr(fit, "Opening", opening)
    monkeypatch.setattr(fit, "spans", lambda fingerprint: spans)
    monkeypatch.setattr(fit, "renewed", lambda *words: "renewed")
    monkeypatch.setattr(fit, "mode_of", lambda config: "names")
    monkeypatch.setattr(fit, "code_of", lambda config: {})
    monkeypatch.setattr(fit, "how_to_resume", str)
    for name in ("known_by", "left_out"):
        monkeypatch.setattr(fit.outcome, name, lambda data: {})
    monkeypatch.setattr(fit.outcome, "summary", lambda *words: "the summary")
    run = Built(
        config=SimpleNamespace(seed=1, trainer=SimpleNamespace(progress=kind)),
        group=SimpleNamespace(hint=hints.append),
        data=SimpleNamespace(splits=[], validates=first, train=None),
        train_loader=SimpleNamespace(world=SimpleNamespace(device="cpu")),
        options=SimpleNamespace(monitor="nme", mode="min"),
        model=None,
        optimizer="o",
        scheduler=schedule,
        _scheduled=lambda moves: steps.append(moves) or ("new", schedule),
    )
    run._open(7)
    assert steps == scheduled
    assert run.optimizer == ("new" if scheduled else "o")
    assert opened.state == ("renewed" if changed else state)
    assert hints == (["run"] if first else [])
    assert facts[0]["monitor"] == ("nme" if first else None)
    shows = first and kind == "plain"
    assert capsys.readouterr().err == ("the summary\n" if shows else "")
