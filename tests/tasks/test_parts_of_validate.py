"""`task=validate` piece by piece: weights, baselines, the first batch that is tried, the table."""

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

import penstock
from penstock.build.training import TrainingParts
from penstock.distributed.group import Group
from penstock.distributed.world import World
from penstock.errors import ConfigError, PenstockError
from penstock.order.skipped import Skipped
from penstock.runs import checkpoint
from penstock.tasks import validate
from penstock.tasks.validate import baseline, baselines, load_weights, print_table, try_one_batch
from penstock.training.objective_base import Objective
from penstock.training.own_objective import OwnObjective
from penstock.training.train_step import TrainOptions
from tests.tasks import test_empty_epochs
from tests.tasks.test_empty_epochs import Records, Rows

trusted = test_empty_epochs.trusted  # runs for each test


class Goal(Objective):
    """An objective that notes what it is asked for."""

    baseline_name = "a constant"
    failure = None

    def __init__(self):
        super().__init__({}, ["input"])
        self.asked, self.named = [], {"part": torch.tensor(0.0)}

    def __call__(self, model, batch):
        self.asked.append(batch.request.address)
        return torch.zeros(len(batch.request)), batch["input"]

    def update(self, outputs, batch):
        self.asked.append(len(outputs))

    def baseline(self, batches):
        if isinstance(self.failure, Exception):
            raise self.failure
        self.taken = [
            (batch.request.address, batch["input"].flatten().tolist()) for batch in batches
        ]
        return nn.Identity()

    def rendered(self, batch, outputs=None):
        raise NotImplementedError

    def compute(self, group=None):
        if callable(self.failure):
            raise self.failure()
        return {"nme": 0.5}


def parts_of(*more, kind=Rows, world=None, **arguments):
    config = penstock.compose(*test_empty_epochs.words(kind, **arguments), *more)
    return TrainingParts(config, world or World())


@pytest.fixture
def measured(monkeypatch):
    """What is validated, instead of a validation."""
    calls = []

    def measure(model, objective, loader, *words, **more):
        calls.append((model, loader, words, more))
        return {"loss": 0.5}

    monkeypatch.setattr(validate, "validate", measure)
    monkeypatch.setattr(validate, "BASELINE_SAMPLES", 5)
    return calls


def test_a_baseline_is_made_of_rows_spread_over_the_split(measured):
    data, goal = parts_of(rows=41).data, Goal()
    with data.val.loader() as loader:
        assert baseline(data, goal, loader) == {"loss": 0.5}
    assert goal.taken == [((0, 0), [0.0, 10.0, 20.0, 30.0]), ((0, 1), [40.0])]
    ((_, where, _, more),) = measured
    assert where is loader
    assert more["group"] is None
    few = parts_of(rows=3).data
    with few.val.loader() as loader:
        baseline(few, goal, loader)
    assert goal.taken == [((0, 0), [0.0, 1.0, 2.0])]


def test_a_baseline_of_packed_rows_or_a_stream_is_made_of_the_first_ones(measured):
    data, goal = parts_of(rows=41).data, Goal()
    data.train.plan.sampler.packs = True
    with data.train.loader() as loader:
        trained = [batch["input"].flatten().tolist() for batch in loader.epoch(0)]
    with data.val.loader() as loader:
        baseline(data, goal, loader)
    assert goal.taken == [((0, 0), trained[0]), ((0, 1), trained[1])]
    data = parts_of("trainer.skip=[[0,0],[0,1]]", kind=Records, rows=12).data
    with data.val.loader() as loader:
        baseline(data, goal, loader)
    assert [address for address, _ in goal.taken] == [(0, 0), (0, 1)]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("name", ["a constant", ""])
def test_baselines_of_a_result(first, validates, name, monkeypatch):
    monkeypatch.setattr(validate, "baseline", lambda *words: {"loss": 1.0})
    goal = Goal()
    goal.baseline_name = name
    goal.comparisons = lambda train, val: {"of its own": {"loss": len(train) + len(val)}}
    rows = SimpleNamespace(dataset=[0, 1])
    data = SimpleNamespace(train=rows, val=rows, validates=validates)
    found = baselines(data, goal, None, SimpleNamespace(is_first=first))
    expected = {name: {"loss": 1.0}} if name else {}
    if first and validates:
        expected["of its own"] = {"loss": 4}
    assert found == expected


@pytest.mark.parametrize("own", [True, False])
def test_a_baseline_that_fails_is_named(own, monkeypatch, capsys):
    def fail(*words):
        raise ValueError("odd")

    monkeypatch.setattr(validate, "baseline", fail)
    goal = OwnObjective(SimpleNamespace(loss=fail)) if own else Goal()
    goal.baseline_name = "x"
    data = SimpleNamespace(validates=False)
    assert baselines(data, goal, None, Group()) == {}
    name = "the baseline" if own else "the best constant prediction"
    assert capsys.readouterr().err.startswith(f"WARNING: {name} is missing: ValueError: odd")


def tried(goal, monitor="loss", **arguments):
    parts = parts_of(**arguments)
    options = TrainOptions(max_epochs=1, monitor=monitor)
    val = parts.data.val
    with val.loader() as loader:
        try_one_batch(val, nn.Linear(1, 2), goal, loader, options)


def test_one_batch_is_tried():
    goal = Goal()
    tried(goal, val_rows=9)
    assert goal.asked == [(0, 0), 4]
    for monitor in ("loss/part", "nme"):
        tried(goal, monitor)
    message = "is 'x', which validation does not give; it gives loss, loss/part, nme$"
    with pytest.raises(ConfigError, match=message):
        tried(goal, "x")
    goal.validates_loss = False
    with pytest.raises(ConfigError, match=r"is 'loss', which .* it gives nme$"):
        tried(goal)


@pytest.mark.parametrize(
    ("failure", "rows", "raised"),
    [
        (PenstockError("refused"), 4, PenstockError),
        (ValueError("no constant"), 4, None),
        (lambda: ConfigError("refused"), 9, ConfigError),
        (lambda: ValueError("few rows"), 4, ValueError),
        (lambda: ValueError("few rows"), 9, None),
    ],
)
def test_an_objective_that_fails_on_its_first_batch(failure, rows, raised):
    goal = Goal()
    goal.failure = failure
    if raised is None:
        tried(goal, "x", val_rows=rows)
        return
    with pytest.raises(raised, match=r"refused|few rows"):
        tried(goal, val_rows=rows)


@pytest.mark.parametrize("own", [True, False])
def test_a_share_that_is_all_padding_is_not_measured(own):
    goal = Goal()
    if own:
        goal = OwnObjective(SimpleNamespace(loss=lambda model, batch: model(batch["input"]).sum()))
        tried(goal)
        with pytest.raises(ConfigError, match=r"it gives loss$"):
            tried(goal, "x")
    tried(goal, "x", val_rows=1, world=World(0, 2))
    assert own or goal.asked == []


class Opened:
    """What a loader is made of; it has no batches."""

    made = ()

    def __init__(self, plan, fetch, options, world, **more):
        Opened.made = (plan, fetch, options, world)

    def __enter__(self):
        return self

    def __exit__(self, *words):
        pass

    def epoch(self, number):
        assert number == 0
        return []


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Rows, Records])
def test_one_worker_makes_one_batch_to_try(kind, workers, monkeypatch):
    data = parts_of(
        "trainer.skip=[[0,0],[0,1]]", "sampler.buffer=3" * (kind is Records) or "seed=1", kind=kind
    ).data
    with data.train.loader() as loader:
        loader.options = replace(loader.options, num_workers=workers, persistent_workers=True)
        monkeypatch.setattr(validate, "Loader", Opened)
        Opened.made = ()
        validate.try_stream(data.train, loader)
        if kind is Rows:
            assert Opened.made == ()
        else:
            plan, fetch, options, _ = Opened.made
            assert (plan.most, plan.skipped, plan.sampler.buffer) == (1, Skipped(), 0)
            assert (fetch.order, fetch.transform) == (plan.sampler, None)
            assert (options.num_workers, options.persistent_workers) == (min(workers, 1), False)
            assert data.train.plan.sampler.buffer == 3
        options = TrainOptions(max_epochs=1)
        try_one_batch(data.val, nn.Linear(1, 2), Goal(), loader, options)
        plan, _, options, _ = Opened.made
        assert (plan.most, data.val.plan.most) == (1, None)
        assert (options.num_workers, options.persistent_workers) == (min(workers, 1), False)


def test_weights_are_those_of_the_running_mean_where_there_is_one(tmp_path):
    model, mean = nn.Linear(1, 2), nn.Linear(1, 2)
    path = tmp_path / "saved"
    for state, wanted in (
        ({"model": model.state_dict()}, model),
        ({"model": model.state_dict(), "averaged": mean.state_dict()}, mean),
    ):
        checkpoint.save(path, state)
        loaded = nn.Linear(1, 2)
        load_weights(loaded, path)
        assert torch.equal(loaded.weight, wanted.weight)


def test_weights_that_do_not_fit_are_explained(tmp_path):
    config = parts_of().config
    own = validate.recorded(config)
    key = next(key for key in own if key.startswith("model."))
    others = {key: "x" * 99, "seed": "12345"}
    path = tmp_path / "saved"
    weights = nn.Linear(3, 2).state_dict()
    checkpoint.save(path, {"model": weights, "fingerprint": own | others})
    with pytest.raises(PenstockError) as caught:
        load_weights(nn.Linear(1, 2), path, config)
    key_is = rf"{re.escape(key)} is .* here and was x{{80}}; "
    tensor_is = r"weight is \[2, 1\] in the model and \[2, 3\] in the file$"
    assert re.search(f"give the overrides of its run. {key_is}{tensor_is}", str(caught.value))
    for given, known in ((config, {}), (config, {"fingerprint": "x"}), (None, {"fingerprint": {}})):
        checkpoint.save(path, {"model": weights, **known})
        with pytest.raises(PenstockError, match=rf"of its run\. {tensor_is}"):
            load_weights(nn.Linear(1, 2), path, given)


def test_the_monitored_row_stands_out_and_small_numbers_have_their_digits(monkeypatch):
    screen = io.StringIO()
    shown = Console(file=screen, force_terminal=True, color_system="standard", width=80)
    monkeypatch.setattr(validate, "console", lambda *words, **more: shown)
    columns = {"val": {"loss": 0.001, "nme": 0.000999, "r2": -2.5}, "mean": {"loss": 1.0}}
    print_table(columns, "nme")
    lines = screen.getvalue().splitlines()
    assert [line.startswith("\x1b[1m") for line in lines[1:]] == [False, True, False]
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in lines]
    assert plain[1:] == [["loss", "0.0010", "1.0000"], ["nme", "0.000999"], ["r2", "-2.5000"]]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("compared", [True, False])
def test_weights_are_validated_and_the_monitored_metric_is_returned(
    first, compared, monkeypatch, capsys, tmp_path
):
    parts = parts_of(f"trainer.baseline={compared}")
    monkeypatch.setattr(parts, "objective", Goal)
    monkeypatch.setattr(validate, "load_weights", lambda *words: None)
    monkeypatch.setattr(validate, "validate", lambda *words, **more: {"loss": 0.25})
    monkeypatch.setattr(validate, "baselines", lambda *words: {"mean": {"loss": 4.0}})
    group = SimpleNamespace(is_first=first)
    assert validate._run(parts.config, parts, group, tmp_path) == 0.25
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    more = ([["train", "mean"], ["loss", "0.2500", "4.0000"]], [["train"], ["loss", "0.2500"]])
    assert lines == ([*more[not compared], ["checkpoint", str(tmp_path)]] if first else [])
    monkeypatch.setattr(validate, "validate", lambda *words, **more: {"other": 0.25})
    with pytest.raises(PenstockError, match=r"trainer\.monitor is 'loss', which validation does"):
        validate._run(parts.config, parts, group, tmp_path)
