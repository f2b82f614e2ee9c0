"""The loop on small, real loaders: what it learns, when it stops, what it saves."""

import copy
import math
import os
import signal
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from torchmetrics.regression import MeanSquaredError

from penstock.distributed.group import Group
from penstock.distributed.world import World
from penstock.errors import ConfigError
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random, Sequential
from penstock.runs import checkpoint
from penstock.runs.checkpoint import Checkpoints
from penstock.training.adapter import Objective
from penstock.training.loop import (
    Observer,
    Session,
    fit,
    validate,
)
from penstock.training.meter import NonFiniteLossError
from penstock.training.objective import Regression
from penstock.training.step import TrainOptions, TrainStep, with_warmup


class Line(Dataset):
    """y = x . (1, 2, 3), and NaN at one row if asked for."""

    def __init__(self, length=22, broken=None):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(length, 3, generator=generator)
        self.broken = broken

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        y = self.x[index] @ torch.tensor([1.0, 2.0, 3.0])
        return {"x": self.x[index], "y": y * math.nan if index == self.broken else y}


class Fatal(Line):
    """Ends the process that reads its row 3 for the first time."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def __getitem__(self, index):
        if index == 3 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Noise:
    """An augmentation that draws from torch's global generator."""

    def __call__(self, sample):
        return {**sample, "x": sample["x"] + 0.1 * torch.randn(3)}


def loader(dataset=None, size=4, tail="keep", shuffle=False, transform=None, **options):
    dataset = dataset or Line()
    order = Random(len(dataset), 0) if shuffle else Sequential(len(dataset))
    fetch = Fetch(dataset, transform, Stack(), 0)
    return Loader(Plan(order, size, tail), fetch, LoaderOptions(**options))


def objective(reduction="none"):
    loss = nn.MSELoss(reduction=reduction)
    return Objective(Regression(loss, {"mse": MeanSquaredError()}, ["x"], "y"))


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def run(
    train=None,
    model=None,
    lr=0.05,
    scheduler=None,
    val=None,
    observers=(),
    folder=None,
    keep=1,
    seed=0,
    optimizer=torch.optim.SGD,
    reduction="none",
    **options,
):
    """Fit a small network; returns it and the result."""
    model = model or network()
    made = optimizer(model.parameters(), lr=lr)
    train = loader() if train is None else train
    chosen = TrainOptions(**{"max_epochs": 2, **options})
    moved = scheduler(made) if scheduler else None
    group = Group(train.world)
    step = TrainStep(model, objective(reduction), made, moved, chosen, group, seed)
    session = Session(Checkpoints(folder, keep_last=keep) if folder else None)
    result = fit(step, train, val or loader(), session, observers)
    if session.checkpoints:
        session.checkpoints.flush()
    return model, result


def weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


class Seen(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.events, self.records = [], []

    def on_epoch_start(self, epoch, steps, done):
        self.events.append(("start", epoch, steps))

    def on_batch(self, batch, losses):
        self.events.append(("batch", *batch.request.address))

    def on_log(self, record):
        self.events.append(("log", record["step"]))
        self.records.append(record)

    def on_epoch_end(self, record):
        self.events.append(("end", record["epoch"]))
        self.records.append(record)


def test_it_learns():
    _, result = run(max_epochs=20, lr=0.1)
    losses = [record["val/loss"] for record in result.history]
    assert losses[-1] < 0.1 * losses[0]
    assert result.best["val/loss"] == min(losses)
    assert result.reason == "max_epochs"
    assert result.history[-1]["val/mse"] == pytest.approx(losses[-1])


def test_weights_depend_on_the_seed_and_nothing_global():
    def trained(seed, disturb):
        torch.manual_seed(disturb)
        return weights(run(model=copy.deepcopy(start), seed=seed)[0])

    start = network(dropout=0.5)
    assert torch.equal(trained(0, disturb=1), trained(0, disturb=2))
    assert not torch.equal(trained(0, disturb=1), trained(1, disturb=1))


@pytest.mark.parametrize(("tail", "accumulate"), [("keep", 1), ("pad", 1), ("keep", 4), ("pad", 4)])
def test_one_loss_for_a_batch_trains_as_a_loss_for_each_sample(tail, accumulate):
    """Batches of 4 and one of 2, in steps of one batch and of 4 and 2."""
    options = {"max_epochs": 3, "accumulate": accumulate}
    expected, by_sample = run(loader(tail=tail), **options)
    model, result = run(loader(tail=tail), reduction="mean", **options)
    torch.testing.assert_close(weights(model), weights(expected), rtol=1e-5, atol=1e-6)
    for one, other in zip(result.history, by_sample.history, strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], rel=1e-4)
        assert one["val/loss"] == pytest.approx(other["val/loss"], rel=1e-4)


def test_groups_begin_anew_with_each_epoch():
    train, seen = loader(size=4), Seen()  # 6 batches: groups of 4 and 2
    run(train, observers=[seen], accumulate=4, log_every=1)
    logs = [event for event in seen.events if event[0] in ("log", "end")]
    assert logs == [("log", 1), ("log", 2), ("end", 0), ("log", 3), ("log", 4), ("end", 1)]


def test_padding_does_not_change_what_is_learned():
    expected, _ = run(loader(tail="keep"))
    model, result = run(loader(tail="pad"))
    torch.testing.assert_close(weights(model), weights(expected), rtol=1e-5, atol=1e-6)
    _, plain = run(loader(tail="keep"))
    assert result.history[0]["train/loss"] == pytest.approx(plain.history[0]["train/loss"])


def test_the_norm_of_the_gradient_is_clipped():
    before = weights(network())
    model, _ = run(loader(size=22), lr=1.0, max_epochs=1, clip_norm=0.01)
    assert (weights(model) - before).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("log_every", [1, 4, 100])
def test_a_loss_that_is_not_finite_names_its_address(log_every, tmp_path):
    data = Line(broken=17)
    with loader(data, shuffle=True) as train:
        wanted = next(b.request.address for b in train.epoch(0) if 17 in b.indices)
        with pytest.raises(NonFiniteLossError, match="loss is nan at epoch 0, step") as caught:
            run(train, folder=tmp_path, log_every=log_every)
    assert (caught.value.epoch, caught.value.step) == wanted
    assert list(tmp_path.iterdir()) == [], "weights that are NaN were saved"


def test_max_steps_ends_in_the_middle_of_an_epoch():
    seen = Seen()
    _, result = run(observers=[seen], max_epochs=9, max_steps=8, log_every=3)
    assert result.reason == "max_steps"
    assert [event for event in seen.events if event[0] == "batch"][-1] == ("batch", 1, 1)
    assert len(result.history) == 2
    assert result.history[-1]["step"] == 8
    assert "val/loss" in result.history[-1]


def test_the_reason_for_an_end_is_the_one_that_ended_it(tmp_path):
    """An observer that gives a reason in the last epoch has not ended the fit."""
    tired = Observer()
    tired.enough = "it is tired"
    for epochs, reason in ((1, "max_epochs"), (2, "it is tired")):
        _, result = run(observers=[tired], max_epochs=epochs, folder=tmp_path / str(epochs))
        assert (result.reason, len(result.history)) == (reason, 1)
        state = checkpoint.find_newest(tmp_path / str(epochs)).state
        assert state["progress"]["result"]["reason"] == "max_epochs"  # asked again on a resume


def test_nan_is_never_the_best(tmp_path):
    _, result = run(val=loader(Line(broken=3)), folder=tmp_path)
    assert result.best is None
    assert math.isnan(result.history[-1]["val/loss"])
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000012.safetensors"]


def test_observers_learn_in_order():
    seen = Seen()
    run(loader(size=11), max_epochs=2, observers=[seen], log_every=2)
    assert seen.events == [
        ("start", 0, 2),
        ("batch", 0, 0),
        ("batch", 0, 1),
        ("log", 2),
        ("end", 0),
        ("start", 1, 2),
        ("batch", 1, 0),
        ("batch", 1, 1),
        ("log", 4),
        ("end", 1),
    ]
    log, end = seen.records[:2]
    assert log["train/loss"] == pytest.approx(end["train/loss"])
    assert 0 <= end["wait_share"] <= 1
    assert end["samples_per_second"] == pytest.approx(22 / end["seconds"], rel=0.2)


@pytest.mark.thorough
def test_dead_workers_of_both_splits_are_counted(tmp_path):
    train, val = (
        loader(Fatal(tmp_path / name), backend="process", num_workers=1)
        for name in ("train", "val")
    )
    _, result = run(train, val=val, max_epochs=2)
    assert [record["worker_deaths"] for record in result.history] == [2, 0]


def test_a_run_that_an_observer_has_ended_can_be_resumed(tmp_path):
    def fitted(session, *observers):
        model, options = network(), TrainOptions(max_epochs=3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = TrainStep(model, objective(), optimizer, None, options, Group(), 0)
        result = fit(step, loader(), None, session, observers)
        return result.reason, len(result.history)

    tired = Observer()
    tired.enough = "it is tired"
    session = Session(Checkpoints(tmp_path))
    assert fitted(session, tired) == ("it is tired", 1)
    session.checkpoints.flush()
    session = Session(state=checkpoint.find_newest(tmp_path).state)
    loaded = [weakref.ref(weight) for weight in session.state["model"].values()]
    assert fitted(session) == ("max_epochs", 3)
    assert all(weight() is None for weight in loaded)  # it would be one state more in memory


class Scripted(Objective):
    """Its metric is told beforehand."""

    def __init__(self, *values):
        super().__init__(Regression(nn.MSELoss(reduction="none"), {}, ["x"], "y"))
        self.values = iter(values)

    def compute(self, group=None):
        return {"mse": next(self.values)}


def fit_scripted(values, session, **options):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = TrainOptions(monitor="mse", **options)
    step = TrainStep(model, Scripted(*values), optimizer, None, chosen, Group(), 0)
    return fit(step, loader(), loader(), session)


def test_a_resumed_run_knows_its_best_and_how_long_ago_that_was(tmp_path):
    session = Session(Checkpoints(tmp_path))
    first = fit_scripted([3.0, 1.0, 2.0], session, max_epochs=3)
    session.checkpoints.flush()
    state = checkpoint.find_newest(tmp_path).state
    result = fit_scripted([2.5, 2.7], Session(state=state), max_epochs=9, patience=2)
    assert (result.reason, len(result.history)) == ("patience", 4)
    assert result.history[:3] == first.history
    assert result.best == result.history[1]


def test_the_best_is_saved_between_two_saves(tmp_path):
    kept = Checkpoints(tmp_path, keep_last=9, every_epochs=3)
    fit_scripted([3.0, 1.0, 2.0, 2.5], Session(kept), max_epochs=4)
    kept.flush()
    assert checkpoint.load(tmp_path / "best.safetensors")["metrics"]["mse"] == 1.0
    assert len(list(tmp_path.glob("step-*"))) == 4  # two bests, every third, the last


def test_schedulers_move_by_step_or_by_epoch():
    def halve(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    _, by_epoch = run(lr=1e-3, scheduler=halve, schedule="epoch", max_epochs=3)
    assert [r["lr"] for r in by_epoch.history] == pytest.approx([1e-3, 5e-4, 2.5e-4])
    seen = Seen()
    run(lr=1e-3, scheduler=halve, max_epochs=1, observers=[seen], log_every=1)
    rates = [record["lr"] for record in seen.records]
    assert rates[:3] == pytest.approx([5e-4, 2.5e-4, 1.25e-4])


@pytest.mark.parametrize(
    ("steps", "rates"), [(0, [8] * 6), (1, [0.08] + [8] * 5), (4, [0.08, 2.06, 4.04, 6.02, 8, 8])]
)
def test_a_warm_up_rises_in_its_steps_from_a_hundredth(steps, rates):
    optimizer = torch.optim.SGD(network().parameters(), lr=8.0)
    constant = lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0)  # noqa: E731
    scheduler, seen = with_warmup(optimizer, steps, constant), []
    for _ in range(6):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == pytest.approx(rates)


def test_a_plateau_is_followed_by_the_monitored_metric():
    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, eps=0)

    _, result = run(lr=1e-7, scheduler=plateau, max_epochs=5, monitor="mse")
    assert result.history[0]["lr"] == 1e-7
    assert result.history[-1]["lr"] < 1e-7


def test_bfloat16_trains_float32_weights():
    model, result = run(precision="bf16", max_epochs=12, lr=0.1)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert result.history[-1]["val/loss"] < 0.3 * result.history[0]["val/loss"]
    other, _ = run(precision="fp32", max_epochs=12, lr=0.1)
    assert not torch.equal(weights(model), weights(other))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_a_gpu(precision):
    world = World(device="cuda:0")
    fetch = Fetch(Line(), None, Stack(), 0)
    train = Loader(Plan(Sequential(22), 4, "pad"), fetch, world=world)
    val = Loader(Plan(Sequential(22), 4), fetch, world=world)
    _, result = run(
        train,
        network(dropout=0.1),
        lr=0.1,
        val=val,
        max_epochs=30,
        accumulate=2,
        precision=precision,
        clip_norm=1.0,
    )
    assert result.history[-1]["val/loss"] < 0.2 * result.history[0]["val/loss"]


def test_validation_measures_without_dropout():
    first = validate(network(dropout=0.5).train(), objective(), loader())
    assert validate(network(dropout=0.0), objective(), loader()) == first
    assert first["loss"] == pytest.approx(first["mse"])


def test_validation_is_always_of_the_same_samples():
    val = loader(shuffle=True, transform=Noise())
    model = network()
    assert validate(model, objective(), val) == validate(model, objective(), val)


def test_an_epoch_without_a_batch_is_refused():
    with pytest.raises(ConfigError, match=r"batch\.tail: epoch 0 of Line has no full batch"):
        run(loader(Line(3), tail="drop"))
