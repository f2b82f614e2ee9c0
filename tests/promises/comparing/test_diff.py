"""task=diff: keys by their effect, which two runs really had; and where runs part."""

import json
import math
import re
import shutil

import pytest
import torch
import yaml

from penstock import command
from penstock.addons.comparing import settings_of
from penstock.config.schema import Effect
from penstock.runs import checkpoint
from penstock.runs.run import Run
from tests.support.program import run

FIT = (
    "dataset.count=42 dataset.size=32 batch.size=8 model.width=4 loader=debug "
    "trainer.max_epochs=2 trainer.digest=true trainer.ledger=true trainer.progress=none "
    "trainer.pictures=false trainer.baseline=false tracker=none"
).split()
NOTHING, ROUNDING, RESULTS, VALIDATION, WEIGHTS, TRAINING, BATCHES, DATA = Effect


@pytest.fixture(scope="module")
def fit(faces_root, tmp_path_factory):
    """Trains with overrides; gives the run."""
    folder = tmp_path_factory.mktemp("runs")

    def go(*overrides):
        own = folder / str(len(list(folder.iterdir())))
        assert command.main([*FIT, f"dataset.root={faces_root}", *overrides, f"run_dir={own}"]) == 0
        return own

    return go


@pytest.fixture(autouse=True)
def elsewhere(first, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def first(fit):
    return fit()


@pytest.fixture
def pair(first, tmp_path):
    """A run, and a copy of it to be changed."""
    shutil.copytree(first, tmp_path / "b")
    return first, tmp_path / "b"


def hashes(folder):
    lines = map(json.loads, (folder / "digests.jsonl").read_text().splitlines())
    return {(one["epoch"], one["step"]): one["hash"] for one in lines}


def weights(folder):
    """The bytes of the last weights by name, and of their mean."""
    state = checkpoint.find_newest(folder).state
    parts = {**state["model"], **{f"mean {k}": v for k, v in state.get("averaged", {}).items()}}
    return {
        name: one.contiguous().reshape(-1).view(torch.uint8).tolist() for name, one in parts.items()
    }


def diff(capsys, first, second, code=1):
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert done.code == code, done.out + done.err
    return done.out + done.err


def test_the_answer_of_two_runs(first, fit, capsys):
    second = fit("optimizer.lr=0.02", "loader.generator=5")
    lines = diff(capsys, first, second).splitlines()
    assert lines[0].split() == ["A", str(first), "done"]
    assert "keys that change batches: none" in lines
    changing = lines.index("keys that change weights, and no batch")
    assert lines[changing + 2].split() == ["optimizer.lr", "0.005", "0.02"]
    neither = lines.index("keys that change nothing")
    assert lines[neither + 2].split() == ["loader.generator", "-", "5"]
    assert "digests      the same at 10 steps" in lines
    assert "the same batches, other weights" in lines
    assert lines[-1] == "error: the two runs are not the same"
    assert "\nother batches, other weights\n" in diff(capsys, first, fit("seed=3"))
    same = diff(capsys, first, fit(), 0)
    assert "\nthe same batches, the same weights\n" in same
    assert "samples      the same at 10 steps" in same


def started(folder, **facts):
    """Change the manifest of a run."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **facts}))


def change(path, number, **values):
    """Change values of one line of a .jsonl."""
    lines = path.read_text().splitlines()
    lines[number] = json.dumps({**json.loads(lines[number]), **values})
    path.write_text("".join(line + "\n" for line in lines))


def with_weights(folder, change_weights):
    """Save the run's last state again, changed."""
    state = checkpoint.find_newest(folder).state
    change_weights(state)
    kept = checkpoint.Checkpoints(folder / "checkpoints")
    kept.save(state, state["updates"])
    kept.flush()


def test_differences_that_no_key_explains(pair, capsys):
    first, second = pair
    change(second / "digests.jsonl", 3, hash="ff")
    said = diff(capsys, *pair)
    assert "digests      first differ at epoch 0, step 3: other contents" in said
    started(second, penstock="0.0.1")
    said = diff(capsys, *pair)
    assert ["penstock", "0.1.0", "0.0.1"] in [line.split() for line in said.splitlines()]
    (second / "digests.jsonl").write_text((first / "digests.jsonl").read_text())
    with_weights(second, lambda state: next(iter(state["model"].values())).view(-1)[0].add_(1))
    started(second, gpus=["one"])
    said = diff(capsys, *pair)
    assert "\nthe same batches, other weights\n" in said
    assert ["gpus", "[]", '["one"]'] in [line.split() for line in said.splitlines()]


def test_a_run_in_progress_of_an_older_version(pair, capsys):
    """It has no weights yet, half a line, and neither the keys nor the facts of today."""
    first, second = pair
    shutil.rmtree(second / "checkpoints")
    for name in ("ledger.jsonl", "digests.jsonl"):
        text = "".join((second / name).read_text().splitlines(keepends=True)[:4])
        (second / name).write_text(text + '{"epoch": 0, "st')
    config = (second / "config.yaml").read_text()
    config = "older: 5\n" + config.replace("  clip_norm: 1.0\n", "")
    (second / "config.yaml").write_text(config)
    manifest = json.loads((second / "manifest.json").read_text())
    kept = {name: manifest[name] for name in ("sessions", "overrides")}
    (second / "manifest.json").write_text(json.dumps({**kept, "status": "running"}))
    said = diff(capsys, *pair)
    rows = [line.split() for line in said.splitlines()]
    assert ["B", str(second), "killed"] in rows
    assert ["older", "-", "5"] in rows
    assert ["trainer.clip_norm", "1.0", "-"] in rows
    assert "rows         the same rows at 4 steps; only a dataset with a `finger" in said
    assert ["digests", "the", "same", "at", "4", "steps"] in rows
    assert f"steps        6 are in {first} only" in said
    assert f"weights      not compared: {second}: it holds no checkpoint" in said
    assert "\nthe same batches, weights not compared\n" in said


def test_what_is_damaged_is_reported_and_the_rest_compared(pair, capsys):
    second = pair[1]
    with (second / "ledger.jsonl").open("a") as file:
        file.write("{\n")
    newest = checkpoint.find_newest(second).path
    newest.unlink()
    newest.write_bytes(b"x" * 100)
    said = diff(capsys, *pair)
    assert f"ledger       not compared: {second}/ledger.jsonl, line 11 is broken" in said
    assert "digests      the same at 10 steps" in said
    assert f"checkpoint   cannot use {newest}: the checkpoint is truncated" in said
    for path in (second / "checkpoints").iterdir():
        path.unlink()
        path.write_bytes(b"x" * 100)
    assert "weights      not compared: " in diff(capsys, *pair)


def test_other_samples_are_distinguished_from_other_losses(pair, capsys):
    ledger = pair[1] / "ledger.jsonl"
    loss = float.fromhex(json.loads(ledger.read_text().splitlines()[2])["loss"])
    change(ledger, 2, loss=math.nextafter(loss, 9).hex())
    said = diff(capsys, *pair)
    apart = f"{loss!r} and {math.nextafter(loss, 9)!r}"
    assert f"losses       first differ at epoch 0, step 2: {apart}" in said
    assert f"{apart}; 1 of 10 steps differ" in said
    assert "samples      the same at 10 steps" in said
    change(ledger, 2, loss=loss.hex())
    change(ledger, 4, order="0" * 16)
    change(ledger, 6, order="1" * 16)
    said = diff(capsys, *pair)
    assert "samples      first differ at epoch 0, step 4: other samples, or in another" in said
    assert "; 2 of 10 steps differ\n" in said
    assert "losses       the same at 10 steps" in said


def test_weights_are_compared_by_the_bit(pair, capsys, tmp_path):
    first, second = pair
    nan, one = torch.tensor([math.nan, 1.0]), torch.ones(1)
    name, weight = next(iter(checkpoint.find_newest(first).state["model"].items()))
    weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
    with_weights(second, lambda state: state["model"].update({name: weight}))
    said = diff(capsys, *pair)
    assert re.search(rf"weights      1 of \d+ tensors differ, {name} by up to ", said)
    assert "optimizer    the same bits" in said
    shutil.copytree(first, tmp_path / "c")
    for folder in (second, tmp_path / "c"):
        with_weights(folder, lambda state: state["model"].update({name: weight, "x": nan}))
    diff(capsys, second, tmp_path / "c", 0)
    with_weights(second, lambda state: state["model"].update(extra=one))
    assert "tensors differ, x by up to inf" in diff(capsys, *pair)


def test_steps_in_another_order_change_batches(pair):
    first, second = pair
    config = yaml.safe_load((second / "config.yaml").read_text())
    steps = config["transform"]["train"]
    config["transform"]["train"] = dict(reversed(steps.items()))
    (second / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    found = settings_of(Run(first), Run(second))
    one, *others = [one for some in found.values() for one in some]
    assert not others
    assert found[TRAINING] == [one]
    assert one == ("transform.train", "resize, flip, normalize", "normalize, flip, resize")


def test_two_runs_have_to_be_given(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for runs, message in (
        ("[x]", "needs the folders of two runs: runs=["),
        ("[x,y]", "x is not a run's folder: it has no manifest.json"),
    ):
        done = run(capsys, "task=diff", f"runs={runs}")
        assert done.code == 2
        assert f"runs: {message}" in done.err


def test_a_loss_that_is_no_number_is_the_same_in_both(pair, capsys, tmp_path):
    first, second = pair
    shutil.copytree(first, tmp_path / "c")
    for folder in (second, tmp_path / "c"):
        change(folder / "ledger.jsonl", 8, loss="nan")
    assert "losses       the same at 10 steps" in diff(capsys, second, tmp_path / "c", 0)
