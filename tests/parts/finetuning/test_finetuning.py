"""Warm starts, frozen parts, groups of weights, activations that are computed again."""

import json
import math
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock import command, compose
from penstock.build.training import TrainingParts
from penstock.runs import checkpoint
from penstock.training.finetuning import read
from tests.support.program import ROOT, run
from tests.support.torchrun import start

NETS = "tests.parts.finetuning.nets"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    rows = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    np.save(folder / "inputs.npy", rows)
    np.save(folder / "targets.npy", rows[:, :3].argmax(1))
    return folder


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TRUST", NETS)


def words(data, *more):
    given = ["dataset=arrays", f"dataset.root={data}", f"model={{_target_: {NETS}.Net}}"]
    given += ["objective=classification", "objective.inputs=[input]", "objective.target=target"]
    given += ["batch.size=8", "trainer.max_epochs=2", "loader.num_workers=0", "tracker=none"]
    given += ["trainer.pictures=false", "trainer.report=false", "trainer.baseline=false"]
    return [*given, "trainer.checkpoint.every_steps=3", "trainer.checkpoint.keep_last=99", *more]


def state_of(run_folder, step=None):
    path = run_folder / "checkpoints"
    if step is None:
        return checkpoint.find_newest(run_folder).state
    return checkpoint.load(path / f"step-{step:08}.safetensors")


def fitted(capsys, data, folder, *more):
    outcome = run(capsys, *words(data, f"run_dir={folder}", *more))
    assert outcome.code == 0, outcome.err
    return outcome


def refused(capsys, data, folder, *more):
    outcome = run(capsys, *words(data, f"run_dir={folder}", *more))
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err
    return outcome.err


def equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0, msg=name)


def groups_of(config, steps=20):
    parts = TrainingParts(config)
    model = parts.trained()
    optimizer = parts.optimizer(model, steps)
    scheduler = parts.scheduler(optimizer, steps)
    names = {id(weight): name for name, weight in model.named_parameters()}
    return optimizer, scheduler, names


def test_each_setting_comes_from_the_first_group_that_says_it(data):
    config = compose(
        *words(
            data,
            "optimizer.lr=0.01",
            "+trainer.groups.body={names: [stem, 'blocks.?'], lr_scale: 0.5}",
            "+trainer.groups.plain={kinds: [bias, norm], weight_decay: 0}",
            "+trainer.groups.last={names: head, lr: 1, betas: [0.5, 0.9]}",
            "+trainer.groups.none=null",
            "scheduler.max_lr=0.02",
        )
    )
    optimizer, scheduler, names = groups_of(config)
    found = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            found[names[id(weight)]] = group
    assert len(found) == len(names)
    rates = {name: group["max_lr"] for name, group in found.items()}
    assert math.isclose(rates["head.weight"], 2)  # as many times max_lr as its rate is of lr
    assert math.isclose(rates["blocks.0.linear.weight"], 0.01)
    assert math.isclose(rates["stem.1.bias"], 0.01)
    assert found["blocks.1.norm.weight"]["weight_decay"] == 0
    assert found["head.bias"]["weight_decay"] == 0
    assert found["head.weight"]["weight_decay"] == 0.01
    assert found["head.weight"]["betas"][1] == 0.9  # the schedule moves the other
    assert found["head.bias"]["name"] == "plain+last"
    for _ in range(10):
        optimizer.step()
        scheduler.step()
    now = {name: group["lr"] for name, group in found.items()}
    assert math.isclose(now["stem.1.bias"] * 200, now["head.weight"])  # the ratio of the groups


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("{names: haed, lr: 1}", "trainer.groups.x.names: 'haed' names no trained weight of Net"),
        ("{names: [head, 3], lr: 1}", "trainer.groups.x.names: '3' names no trained weight"),
        ("{names: head, learning_rate: 1}", "unexpected keyword argument 'learning_rate'"),
        ("{lr: 1}", "trainer.groups.x: needs names (patterns) or kinds (bias, norm, embedding)"),
        ("{kinds: [gain], lr: 1}", "trainer.groups.x: needs names (patterns) or kinds (bias"),
        ("{kinds: 3, lr: 1}", "trainer.groups.x: needs names (patterns) or kinds (bias"),
        ("{names: head, lr: -1}", "trainer.groups.x: torch.optim.AdamW raises ValueError: Invalid"),
        ("{names: head, lr_scale: 1/3}", "trainer.groups.x: needs names (patterns) or kinds"),
        ("7", "trainer.groups.x: Input should be a valid dictionary, got 7"),
    ],
)
def test_what_is_wrong_with_a_group_is_one_message(capsys, data, tmp_path, word, message):
    assert message in refused(capsys, data, tmp_path / "run", f"+trainer.groups.x={word}")


def test_a_group_without_a_plus_is_answered_with_it(capsys, data, tmp_path):
    said = refused(capsys, data, tmp_path / "run", "trainer.groups.head.lr=3")
    assert "trainer.groups.head.lr: unknown key" in said


FROZEN = ["trainer.freeze.names=[stem,blocks.0]", "trainer.freeze.until=1"]
FROZEN += ["+trainer.groups.body={names: [stem, blocks], lr_scale: 0.5}"]
FROZEN += ["+trainer.groups.plain={kinds: [bias, norm], weight_decay: 0}"]
FROZEN += ["optimizer.weight_decay=0.5"]


@pytest.mark.thorough
def test_frozen_parts_stand_still_until_their_epoch_and_runs_resume(capsys, data, tmp_path):
    outcome = fitted(capsys, data, tmp_path / "whole", *FROZEN)
    assert "frozen    144 parameters in epoch 0" in outcome.err
    assert "body+plain: 10 weights" in outcome.err
    first = TrainingParts(compose(*words(data))).model().state_dict()
    steps = 6
    at_3, at_6, end = (state_of(tmp_path / "whole", step) for step in (3, steps, 2 * steps))
    for name, value in first.items():
        still = name.startswith(("stem", "blocks.0"))
        assert torch.equal(at_6["model"][name], value) == still, name
        assert not torch.equal(end["model"][name], value), name
    assert at_6["model"]["blocks.0.norm.num_batches_tracked"] == 0
    assert at_6["model"]["blocks.1.norm.num_batches_tracked"] == steps
    counts = [int(values["step"]) for values in end["optimizer"]["state"].values()]
    assert sorted(set(counts)) == [steps, 2 * steps]
    assert len(at_3["optimizer"]["state"]) == len(counts) - 6
    for step in (3, 9):  # before and after
        path = tmp_path / "whole" / "checkpoints" / f"step-{step:08}.safetensors"
        fitted(capsys, data, tmp_path / f"from_{step}", f"resume={path}", *FROZEN)
        resumed = state_of(tmp_path / f"from_{step}")
        equal(end["model"], resumed["model"])
        for number, values in end["optimizer"]["state"].items():
            equal(values, resumed["optimizer"]["state"][number])


@pytest.mark.thorough
def test_ranks_freeze_and_thaw_as_one_process(capsys, data, tmp_path):
    """Sums are rounded otherwise; batch norms and dropout would be each rank's own."""
    more = ["optimizer=sgd", "optimizer.weight_decay=0.1", "scheduler=none", "optimizer.lr=0.02"]
    more += ["trainer.freeze.names=[stem,blocks.0]", "trainer.freeze.until=1"]
    more += [f"model={{_target_: {NETS}.Plain}}", "+trainer.groups.head={names: head, lr: 0.01}"]
    ranks = [*words(data, *more), f"run_dir={tmp_path / 'ranks'}", "distributed=ddp"]
    start(2, "run.py", *ranks)
    fitted(capsys, data, tmp_path / "alone", *more)
    for step in (6, 12):
        alone, ranks = (state_of(tmp_path / name, step)["model"] for name in ("alone", "ranks"))
        for name, value in alone.items():
            torch.testing.assert_close(ranks[name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["trainer.freeze.names=[sten]"], "trainer.freeze.names: 'sten' names no weight of Net"),
        (["trainer.freeze.names=['*']"], "trainer.freeze.names: leaves no weight that learns"),
        (["trainer.freeze.names=['*']", "trainer.freeze.until=1"], "leaves no weight that learns"),
        (["trainer.freeze.until=1"], "trainer.freeze.until: 1 needs names that do not learn"),
        (["trainer.recompute=[blocks]"], "call torch.utils.checkpoint in the forward pass"),
        (
            ["trainer.freeze.names=[stem]", "+trainer.groups.x={names: stem, lr: 1}"],
            "'stem' names no trained weight",
        ),
    ],
)
def test_what_does_not_go_is_one_message(capsys, data, tmp_path, more, message):
    assert message in refused(capsys, data, tmp_path / "run", *more)


@pytest.mark.thorough
def test_parts_with_optimizers_of_their_own(capsys, data, tmp_path, monkeypatch):
    example = ROOT / "docs" / "examples" / "gan"
    monkeypatch.syspath_prepend(example)
    gan = ["--trust", "gan", "--config-dir", example / "conf"]
    gan += ["experiment=gan", "dataset.count=32", "batch.size=16", "model.width=8", "model.size=16"]
    gan += ["transform.train.resize.size=16", f"cache_dir={tmp_path / 'cache'}"]
    gan += ["trainer.max_epochs=2", "loader.num_workers=0", "tracker=none", "trainer.report=false"]
    gan += ["trainer.pictures=false", "trainer.baseline=false", "scheduler=none"]
    gan += ["trainer.freeze.names=generator", "trainer.freeze.until=1"]
    gan += ["trainer.checkpoint.keep_last=9", "trainer.checkpoint.every_steps=1"]
    gan += ["+trainer.groups.plain={kinds: [bias, norm], lr_scale: 0.1}"]
    done = run(capsys, *gan, f"run_dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    assert "group     generator.others: " in done.err
    assert "discriminator.plain: " in done.err
    steps = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    first, second, *_, last = (checkpoint.load(path)["model"] for path in steps)
    name = next(name for name in first if name.startswith("generator") and "weight" in name)
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], last[name])
    never = [word for word in gan if "until" not in str(word)]
    said = run(capsys, *never, f"run_dir={tmp_path / 'never'}")
    assert said.code == 2
    assert "optimizer.generator: " in said.err
    assert "empty parameter list" in said.err


@pytest.fixture(scope="module")
def body(data, tmp_path_factory):
    """A run on other classes, four of them, whose body others start from."""
    rows, folder = tmp_path_factory.mktemp("others"), tmp_path_factory.mktemp("runs") / "body"
    shutil.copy(data / "inputs.npy", rows)
    np.save(rows / "targets.npy", np.load(data / "inputs.npy")[:, :4].argmax(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TRUST", NETS)
        assert command.main(words(rows, f"run_dir={folder}", "trainer.max_epochs=1")) == 0
    return folder


def test_a_run_starts_from_another_and_says_what_matched(capsys, data, body, tmp_path):
    start = [f"trainer.warm_start.path={body}"]
    said = refused(capsys, data, tmp_path / "strict", *start)
    assert (
        "does not fit Net: 23 of 25 tensors; of another shape: head.weight float32[4, 8] in" in said
    )
    assert not (tmp_path / "strict").exists()
    still = ["optimizer.lr=0", "trainer.max_epochs=1"]
    without = [*start, "trainer.warm_start.without=head"]
    outcome = fitted(capsys, data, tmp_path / "run", *without, *still)
    assert (
        f"start     23 of 25 tensors; left out: head.weight, head.bias from {body}" in outcome.err
    )
    matched = json.loads((tmp_path / "run" / "manifest.json").read_text())["warm_start"]
    assert matched == f"23 of 25 tensors; left out: head.weight, head.bias from {body}"
    own, theirs = (
        state_of(tmp_path / "run")["model"],
        checkpoint.load(checkpoint.find(body))["model"],
    )
    fresh = TrainingParts(compose(*words(data))).model().state_dict()
    for name, value in own.items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, fresh[name] if name.startswith("head") else theirs[name]), (
                name
            )
    loose = fitted(capsys, data, tmp_path / "loose", *start, "trainer.warm_start.strict=false")
    assert "23 of 25 tensors; of another shape: head.weight float32[4, 8]" in loose.err


@pytest.mark.thorough
def test_a_run_resumes_without_the_file_that_it_started_from(capsys, data, body, tmp_path):
    file = tmp_path / "body.safetensors"
    save_file(read(body), file)
    start = [f"trainer.warm_start.path={file}", "trainer.warm_start.without=head"]
    folder = f"run_dir={tmp_path / 'run'}"
    fitted(capsys, data, tmp_path / "whole", *start)
    fitted(capsys, data, tmp_path / "run", *start, "trainer.max_epochs=1", "scheduler=none")
    fitted(capsys, data, tmp_path / "other", *start, "scheduler=none")
    file.unlink()
    fitted(capsys, data, tmp_path / "run", *start, "resume=auto", folder, "scheduler=none")
    equal(state_of(tmp_path / "other")["model"], state_of(tmp_path / "run")["model"])


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_files_of_weights(capsys, data, body, tmp_path):
    tensors = read(body)
    renamed = {f"module.{name}": value for name, value in tensors.items()}
    torch.save({"state_dict": renamed, "epoch": 3}, tmp_path / "wrapped.pt")
    fits = ["trainer.warm_start.without=head", "trainer.max_steps=1"]
    wrapped = [f"trainer.warm_start.path={tmp_path / 'wrapped.pt'}"]
    wrapped.append("trainer.warm_start.rename={module.: ''}")
    outcome = fitted(capsys, data, tmp_path / "a", *wrapped, *fits)
    assert "23 of 25 tensors" in outcome.err
    torch.save({f"net.{name}": value for name, value in tensors.items()}, tmp_path / "net.pth")
    path = f"trainer.warm_start.path={tmp_path / 'net.pth'}"
    said = refused(capsys, data, tmp_path / "b", path)
    assert "0 of 25 tensors; missing: stem.1.weight" in said
    assert "rename maps names" in said
    fitted(capsys, data, tmp_path / "b", path, "trainer.warm_start.rename={net.: ''}", *fits)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["pickle", "torch", "cut", "text", "list", "missing", "folder"])
def test_a_file_of_a_stranger_runs_nothing_and_is_one_message(capsys, data, body, tmp_path, kind):
    canary, path = tmp_path / "canary", tmp_path / "weights.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"a": Canary(canary)}))
    elif kind == "torch":
        torch.save({"a": Canary(canary)}, path)
    elif kind == "cut":
        torch.save(read(body), path)
        path.write_bytes(path.read_bytes()[:-500])
    elif kind == "text":
        path = path.with_suffix(".safetensors")
        path.write_text("weights")
    elif kind == "list":
        torch.save([torch.ones(2)], path)
    elif kind == "folder":
        path.mkdir()
    said = refused(capsys, data, tmp_path / "run", f"trainer.warm_start.path={path}")
    assert str(path) in said
    assert not canary.exists()
    assert not (tmp_path / "run").exists()
    shutil.rmtree(path, ignore_errors=True)
