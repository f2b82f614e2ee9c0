"""Each decision of a fit: when it validates, saves, stops and resumes, in runs of milliseconds."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchmetrics import MeanSquaredError

from penstock.distributed.group import Group
from penstock.distributed.preemption import Preempted
from penstock.errors import DataError, PenstockError
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.order.address import Address
from penstock.order.plan import Plan
from penstock.order.samplers import Sequential
from penstock.order.skipped import Skipped
from penstock.training import runner
from penstock.training.epoch_metrics import EpochMetrics
from penstock.training.objective import Regression
from penstock.training.runner import Observer, Session, _is_best, fit, train_epoch
from penstock.training.speed import predicted_waiting, speed
from penstock.training.train_step import TrainOptions, TrainStep
from penstock.training.validation import validate

ROWS = torch.arange(18.0).reshape(6, 3).sin()


class Line:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"x": ROWS[index], "y": ROWS[index].sum()}


class Counted(Loader):
    """Three batches of two; of as many dead workers as a test says."""

    died = 0

    @property
    def deaths(self):
        return self.died


def loader(skip=()):
    made = Counted(Plan(Sequential(6), 2), Fetch(Line(), None, Stack(), 0))
    made.plan.skipped = Skipped.of(list(skip))
    return made


class Scripted(Regression):
    """Its metric is given beforehand."""

    def __init__(self, values):
        super().__init__(nn.MSELoss(reduction="none"), {}, ["x"], "y")
        self.values = iter(values)

    def compute(self, group=None):
        return {"m": next(self.values)}


class Saves:
    """Instead of files: the address and the steps of each save, and whether it was the best."""

    def __init__(self):
        self.made, self.states = [], []

    def save(self, state, updates, improved):
        self.states.append(copy.deepcopy(state))
        self.made.append((state["loader"]["epoch"], state["loader"]["step"], updates, improved))

    def flush(self):
        self.made.append("flushed")


class Copies:
    def __init__(self, due=()):
        self.due, self.kept = due, []

    def is_due(self, updates):
        return updates in self.due

    def keep(self, state, updates):
        self.kept.append((state()["loader"]["step"], updates))

    def flush(self):
        self.kept.append("flushed")


def step_of(values=(), epochs=(), scheduler=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    chosen = TrainOptions(**{"monitor": "m", **options})
    moved = scheduler(optimizer) if scheduler else None
    made = Scripted(values)
    return TrainStep(model, made, optimizer, moved, chosen, Group(), 0, epochs=epochs)


def fitted(values=(), session=None, observers=(), preemption=None, train=None, **options):
    """A fit, and the saves that it made."""
    saves = Saves()
    session = session or Session()
    session.checkpoints = saves
    val = loader() if values else None
    step = step_of(values, **options)
    result = fit(step, train or loader(), val, session, observers, preemption)
    return result, saves, step


def test_epochs_are_validated_and_saved_every_few_and_where_they_are_best():
    values = [3.0, 1.0, 1.0]
    result, saves, _ = fitted(values, max_epochs=5, val_every=2, save_every=3)
    assert ["val/m" in one for one in result.history] == [False, True, False, True, True]
    assert saves.made == [(2, 0, 6, True), (3, 0, 9, False), (4, 0, 12, True), (5, 0, 15, False)]
    assert (result.stale, result.best is result.history[3], result.reason) == (
        1,
        True,
        "max_epochs",
    )
    result, saves, _ = fitted(values, max_epochs=3, mode="max")
    assert [improved for *_, improved in saves.made] == [True, False, False]
    assert (result.stale, result.best["epoch"]) == (2, 0)


@pytest.mark.parametrize(("patience", "epochs"), [(1, 2), (2, 3), (3, 5), (None, 5)])
def test_patience_counts_the_validations_since_the_best(patience, epochs):
    values = [2.0, 2.0, 3.0, 1.0, 1.0]
    result, _, _ = fitted(values, max_epochs=5, patience=patience)
    assert len(result.history) == epochs
    assert result.reason == ("patience" if epochs < 5 else "max_epochs")


def test_without_validation_only_the_last_and_every_few_are_saved():
    result, saves, _ = fitted(max_epochs=5, save_every=2)
    assert saves.made == [(2, 0, 6, False), (4, 0, 12, False), (5, 0, 15, False)]
    assert (result.best, result.stale) == (None, 0)
    assert [one["worker_deaths"] for one in result.history] == [0] * 5


@pytest.mark.parametrize(
    ("accumulate", "made"),
    [
        (1, [(0, 2, 2, False), (1, 1, 4, False), (1, 3, 6, False), (2, 0, 6, False)]),
        (2, [(0, 3, 2, False), (1, 3, 4, False), (2, 0, 4, False)]),
    ],
)
def test_a_state_every_few_steps_is_of_the_batch_behind_them(accumulate, made):
    options = {"max_epochs": 2, "save_every": 9, "save_every_steps": 2}
    _, saves, _ = fitted(accumulate=accumulate, **options)
    assert saves.made == made
    assert [state["progress"]["begun"] for state in saves.states][-2:] == [True, False]


class Passing(Observer):
    """Each batch takes so many seconds of `runner`'s clock."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 1000.0, seconds
        monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: self.now))

    def on_batch(self, batch):
        self.now += self.seconds


@pytest.mark.parametrize(
    ("seconds", "accumulate", "steps"),
    [(30.0, 1, [2]), (29.9, 1, [3]), (60.0, 1, [1, 2, 3]), (60.0, 2, [2]), (10.0, 1, [])],
)
def test_a_state_every_few_minutes_is_of_whole_steps(seconds, accumulate, steps, monkeypatch):
    passing = Passing(monkeypatch, seconds)
    options = {"max_epochs": 1, "save_every_minutes": 1.0, "accumulate": accumulate}
    _, saves, _ = fitted(observers=[passing], **options)
    assert [step for _, step, *_ in saves.made[:-1]] == steps
    assert saves.made[-1][:2] == (1, 0)


@pytest.mark.parametrize(("accumulate", "kept"), [(1, [(1, 1), (3, 3)]), (2, [(2, 1)])])
def test_copies_are_made_when_they_are_due_and_of_whole_steps(accumulate, kept):
    copies = Copies(due=(1, 3))
    fitted(session=Session(copies=copies), max_epochs=1, accumulate=accumulate)
    assert copies.kept == kept


class Asks(Observer):
    """Asks for a stop after so many batches, or once a validation has begun."""

    def __init__(self, batches=None):
        self.asked, self.batches, self.seen, self.steps = None, batches, [], []

    def on_batch(self, batch):
        self.seen.append(batch.request.address)
        if len(self.seen) == self.batches:
            self.asked = "SIGTERM"

    def on_steps(self, steps):
        self.steps += [(one.epoch, one.step) for one in steps]

    def on_validation(self, done, steps):
        if self.batches is None and done == 1:
            self.asked = "SIGTERM"


@pytest.mark.parametrize(
    ("batches", "accumulate", "at"),
    [
        (1, 1, (0, 1)),
        (3, 1, (0, 3)),
        (4, 1, (1, 1)),
        (1, 2, (0, 0)),
        (2, 2, (0, 2)),
        (4, 2, (1, 0)),
    ],
)
def test_a_stop_leaves_the_state_of_the_last_step(batches, accumulate, at):
    asks, copies, saves = Asks(batches), Copies(), Saves()
    session = Session(saves, copies=copies)
    step = step_of(accumulate=accumulate, max_epochs=2)
    with pytest.raises(Preempted, match=rf"stopped before epoch {at[0]}, step {at[1]}"):
        fit(step, loader(), None, session, [asks], asks)
    assert saves.made[-2][:2] == at
    assert saves.made[-1] == "flushed"
    assert copies.kept == [(at[1], step.updates), "flushed"]
    assert all(one < at for one in asks.steps)
    assert len(asks.steps) == 3 * at[0] + at[1]
    state = saves.states[-1]
    assert state["progress"]["begun"] is True
    rest = Asks()
    result, _, resumed = fitted(
        session=Session(state=state), observers=[rest], accumulate=accumulate, max_epochs=2
    )
    straight, _, whole = fitted(accumulate=accumulate, max_epochs=2)
    assert rest.seen[0] == (at if at[1] < 3 else (1, 0))
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert result.order == straight.order
    for one, other in zip(result.history, straight.history, strict=True):
        assert one["train/loss"] == other["train/loss"]


def test_a_stop_before_a_saved_state_is_one_without_folders():
    asks = Asks(1)
    with pytest.raises(Preempted, match="epoch 0, step 1"):
        fit(step_of(), loader(), None, Session(), [asks], asks)


def test_a_stop_in_validation_repeats_it():
    asks, saves = Asks(), Saves()
    with pytest.raises(Preempted, match="stopped before epoch 0, step 3"):
        fit(step_of([1.0], max_epochs=2), loader(), loader(), Session(saves), [asks], asks)
    assert saves.made == [(0, 3, 3, False), "flushed"]
    state = saves.states[-1]
    assert (state["progress"]["begun"], state["progress"]["result"]["history"]) == (True, [])
    rest = Asks(99)
    result, _, _ = fitted([2.0, 1.0], Session(state=state), [rest], max_epochs=2)
    assert rest.seen == [(1, 0), (1, 1), (1, 2)]
    assert [one["val/m"] for one in result.history] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("steps", "reason", "records"), [(1, "max_steps", 1), (3, "max_steps", 1), (4, "max_steps", 2)]
)
def test_steps_that_are_raised_continue_in_the_same_epoch(steps, reason, records):
    first, saves, _ = fitted(max_epochs=2, max_steps=steps)
    assert (first.reason, len(first.history), first.history[-1]["step"]) == (reason, records, steps)
    state = saves.states[-1]
    asks = Asks(99)
    result, _, _ = fitted(
        session=Session(state=copy.deepcopy(state)), observers=[asks], max_epochs=2
    )
    assert len(asks.seen) == 6 - steps
    assert [(one["epoch"], one["step"]) for one in result.history] == [(0, 3), (1, 6)]
    assert (result.reason, result.order) == ("max_epochs", fitted(max_epochs=2)[0].order)
    straight = fitted(max_epochs=2)[0].history
    assert [one["train/loss"] for one in result.history] == [one["train/loss"] for one in straight]
    again, saves, _ = fitted(session=Session(state=state), max_epochs=2, max_steps=steps)
    assert (again.reason, len(again.history), saves.made) == ("max_steps", records, [])


def test_more_epochs_may_be_asked_for_later():
    _, saves, _ = fitted(max_epochs=1)
    state = saves.states[-1]
    assert fitted(session=Session(state=state), max_epochs=1)[1].made == []
    result, saves, _ = fitted(session=Session(state=state), max_epochs=2)
    assert (len(result.history), [one[:2] for one in saves.made]) == (2, [(2, 0)])


def test_a_range_that_is_set_where_a_run_stopped_moves_its_beginning():
    asks, saves = Asks(3), Saves()
    with pytest.raises(Preempted):
        fit(step_of(max_epochs=3), loader(), None, Session(saves), [asks], asks)
    at_start = {**saves.states[-1], "loader": {"epoch": 1, "step": 0}}
    rest = Asks(99)
    train = loader([[[1, 0], [2, 0]]])
    result, _, _ = fitted(
        session=Session(state=at_start), observers=[rest], train=train, max_epochs=3
    )
    assert rest.seen == [(2, 0), (2, 1), (2, 2)]
    assert [one["epoch"] for one in result.history] == [2]


def test_workers_that_died_are_those_since_the_last_record():
    train, val = loader(), loader()

    class Dies(Observer):
        def on_batch(self, batch):
            train.died += batch.request.address == (0, 1)

        def on_validation(self, done, steps):
            val.died += done == 2

    result = fit(step_of([1.0, 1.0], max_epochs=2), train, val, None, [Dies()])
    assert [one["worker_deaths"] for one in result.history] == [2, 1]


def test_an_observers_reason_counts_only_while_there_is_more_to_do():
    class Tired(Observer):
        enough = "tired"

    result, saves, _ = fitted(observers=[Observer(), Tired()], max_epochs=3, save_every=9)
    assert (result.reason, len(result.history)) == ("tired", 1)
    assert saves.made == [(1, 0, 3, False)]
    assert saves.states[-1]["progress"]["result"]["reason"] == "max_epochs"
    assert fitted(observers=[Tired()], max_epochs=1)[0].reason == "max_epochs"


@pytest.mark.parametrize(
    ("value", "best", "mode", "expected"),
    [
        (1.0, None, "min", True),
        (float("nan"), None, "min", False),
        (float("nan"), 1.0, "max", False),
        (1.0, 1.0, "min", False),
        (1.0, 1.0, "max", False),
        (0.5, 1.0, "min", True),
        (0.5, 1.0, "max", False),
        (1.5, 1.0, "min", False),
        (1.5, 1.0, "max", True),
    ],
)
def test_only_more_is_better(value, best, mode, expected):
    options = TrainOptions(monitor="m", mode=mode)
    assert _is_best({"val/m": value}, best and {"val/m": best}, options) is expected
    with pytest.raises(PenstockError, match="monitor is 'm', but validation gives loss, mse"):
        _is_best({"train/m": 1.0, "val/loss": 1.0, "val/mse": 1.0}, None, options)


@pytest.mark.parametrize(
    ("accumulate", "behind"),
    [(1, [(0, 0), (0, 1), (0, 2)]), (2, [(0, 1), (0, 2)]), (3, [(0, 2)]), (9, [(0, 2)])],
)
def test_each_step_is_told_by_its_last_batch(accumulate, behind):
    steps = []
    step = step_of(accumulate=accumulate)
    record = train_epoch(
        step, loader(), 0, after_step=lambda one: steps.append(one.request.address)
    )
    assert steps == behind
    assert record["step"] == len(behind)
    assert train_epoch(step_of(accumulate=accumulate), loader(), 0)["step"] == len(behind)


class Empty:
    """A loader whose epoch has no batch."""

    exchange, seen, deaths = None, None, 0
    stats = SimpleNamespace(wait_seconds=0.0, stages={"read": 3.0}, samples=0, deaths=0, shared=0)

    def __init__(self, skip=()):
        self.plan = SimpleNamespace(skipped=Skipped.of(list(skip)), steps=lambda epoch: 0)

    def epoch(self, epoch, start):
        yield from ()


@pytest.mark.parametrize(
    ("start", "skip", "refused"), [(0, (), True), (1, (), False), (0, ([[0, 0], [0, 1]],), False)]
)
def test_an_epoch_without_a_sample_is_refused_unless_that_was_asked_for(start, skip, refused):
    step, steps = step_of(), []
    seen = SimpleNamespace(on_epoch_start=lambda *_: None, on_steps=lambda one: steps.append(one))
    if refused:
        with pytest.raises(DataError, match="every sample of epoch 4 was left out"):
            train_epoch(step, Empty(skip), 4, [seen], start)
    else:
        assert train_epoch(step, Empty(skip), 4, [seen], start)["ms/read"] == 3000.0
    assert steps == []


@pytest.mark.parametrize(
    ("log_every", "logs"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (7, [])]
)
def test_logs_come_every_few_steps(log_every, logs):
    seen = []
    watcher = Observer()
    watcher.on_log = seen.append
    fitted(observers=[watcher], max_epochs=2, log_every=log_every)
    assert [one["step"] for one in seen] == logs
    assert all(one["epoch"] == (one["step"] - 1) // 3 for one in seen)


def test_what_ranks_would_wait_is_known_of_costs_alone():
    plan = Plan(Sequential(6), 2)
    group = SimpleNamespace(world=SimpleNamespace(size=2))
    assert predicted_waiting(group, SimpleNamespace(plan=plan), 0) == {}
    plan.predicted_waiting = lambda epoch, ranks: (0.5, 0.25) if (epoch, ranks) == (3, 2) else None
    assert predicted_waiting(group, SimpleNamespace(plan=plan), 3) == {
        "rank_wait_share_contiguous": 0.5,
        "rank_wait_share_by_cost": 0.25,
    }
    alone = SimpleNamespace(world=SimpleNamespace(size=1))
    assert predicted_waiting(alone, SimpleNamespace(plan=plan), 3) == {}
    other = SimpleNamespace(predicted_waiting=plan.predicted_waiting)  # as of a stream
    assert predicted_waiting(group, SimpleNamespace(plan=other), 3) == {}


def test_workers_and_shared_batches_are_summed_over_the_ranks():
    class Twins(Group):
        def gather(self, value):
            return [value, value]

    stats = SimpleNamespace(wait_seconds=0.0, stages={"read": 0.5}, samples=5, deaths=2, shared=3)
    step = SimpleNamespace(group=Twins())
    made = SimpleNamespace(stats=stats, exchange=None)
    record = speed(step, made, EpochMetrics(Group()))
    assert (record["ms/read"], record["worker_deaths"]) == (100.0, 4)
    assert "shared_batches" not in record
    made.exchange = object()
    assert speed(step, made, EpochMetrics(Group()))["shared_batches"] == 6


def test_weights_that_learn_in_an_epoch_are_asked_for_in_it():
    seen, wrapped = [], []

    def begin(model, epoch):
        seen.append(epoch)
        return epoch == 1

    step = step_of(epochs=[begin], max_epochs=3)
    make = step._wrapped
    step._wrapped = lambda objective: wrapped.append(len(seen)) or make(objective)
    step.model.eval()
    fit(step, loader(), None)
    assert seen == [0, 1, 2]
    assert wrapped == [2]  # only where others learn than before
    assert step.model.training


def test_validation_is_told_of_its_progress_and_measures_the_parts_of_a_loss():
    seen = []
    watcher = Observer()
    watcher.on_validation = lambda *told: seen.append(told)
    watcher.on_validation_batch = lambda batch, losses: seen.append(len(losses))
    watcher.on_validated = lambda left_out: seen.append(left_out)
    made = Regression(nn.MSELoss(reduction="none"), {"mse": MeanSquaredError()}, ["x"], "y")
    measured = made.measure

    def with_parts(model, batch):
        losses, outputs = measured(model, batch)
        made.named = {"half": losses.sum() / 2, f"at{batch.request.step}": losses.sum()}
        return losses, outputs

    made.measure = with_parts
    model = nn.Linear(3, 1)
    result = validate(model, made, loader(), observers=[watcher])
    assert seen == [(0, 3), 2, (1, 3), 2, (2, 3), 2, (3, 3), []]
    assert result["loss"] == pytest.approx(result["mse"])
    assert result["loss/half"] == pytest.approx(result["loss"] / 2)
    parts = [result[f"loss/at{step}"] for step in range(3)]
    assert sum(parts) == pytest.approx(result["loss"])
    turns = []
    assert validate(model, made, loader(), turn=turns.append) == result
    assert turns == [False] * 4
    made.validates_loss = False
    assert "loss" not in validate(model, made, loader())
    empty = loader([[[0, 0], [1, 0]]])
    with pytest.raises(DataError, match="validation has nothing to measure"):
        validate(model, made, empty)


def test_the_place_where_a_fit_resumes_is_not_an_epoch_that_is_left_out():
    place = Address(1, 0)
    train = loader([[[1, 0], [2, 0]]])
    run = runner._Fit(step_of(max_epochs=2), train, None, Session(), (), None)
    run.address = place
    assert run.coming == (2, 0)
    run.address = Address(1, 1)
    assert run.coming == (1, 1)
    run.train = loader([[[1, 0], [1, 2]]])
    run.address = place
    assert run.coming == place  # its last batch is left
