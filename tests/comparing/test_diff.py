"""task=diff: keys in three groups, checked against what two runs really did."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

from penstock import command
from penstock.addons.comparing.comparison import Difference, compare
from penstock.config.schema import Changes
from penstock.runs import checkpoint
from penstock.runs.record import RunRecord
from tests.program import ROOT, run

FIT = (
    "dataset.count=42",
    "dataset.size=32",
    "batch.size=8",
    "model.width=4",
    "loader=debug",
    "trainer.max_epochs=2",
    "trainer.digest=true",
    "trainer.ledger=true",
    "trainer.progress=none",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "tracker=none",
)
NOTHING, ROUNDING, RESULTS, WEIGHTS, BATCHES, DATA = Changes


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


PAIRS = {  # with what digests and weights have to tell; every second one is in the default suite
    "seed=1": BATCHES,
    "sampler=sequential": BATCHES,
    "transform.train.flip.p=1.0": BATCHES,
    "batch.size=7": BATCHES,
    "trainer.overfit_batches=2": BATCHES,
    "dataset.val_fraction=0.3": DATA,
    "optimizer.lr=0.02": WEIGHTS,
    "objective.loss.beta=0.2": WEIGHTS,
    "trainer.max_epochs=1": WEIGHTS,
    "trainer.clip_norm=0.01": WEIGHTS,
    "trainer.ema=0.9": WEIGHTS,
    "trainer.accumulate=2": WEIGHTS,
    "trainer.limit_batches.train=3": WEIGHTS,
    "scheduler=none": WEIGHTS,
    "loader.num_workers=1": NOTHING,
    "loader.generator=5": NOTHING,
    "batch.val_size=3": RESULTS,
    "transform.val.normalize.statistics=dataset": RESULTS,
    "trainer.checkpoint.every_steps=2": NOTHING,
    "trainer.device=cpu": ROUNDING,
    "cache_dir=elsewhere": NOTHING,
}


@pytest.mark.thorough
@pytest.mark.one_in(17)
@pytest.mark.parametrize("word", PAIRS)
def test_a_key_is_in_the_group_that_digests_and_weights_tell(word, first, fit):
    second = fit(word)
    found = compare(RunRecord.read(first), RunRecord.read(second))
    key = word.partition("=")[0]
    groups = [
        effect
        for effect, some in found.settings.items()
        for one in some
        if one.key == key or one.key.startswith(f"{key}.")
    ]
    assert set(groups) == {PAIRS[word]}
    one, other = hashes(first), hashes(second)
    common = one.keys() & other.keys()
    changed = any(one[address] != other[address] for address in common)
    learned = weights(first) != weights(second)
    assert common
    said = min(BATCHES, PAIRS[word])
    assert said == BATCHES if changed else said == WEIGHTS if learned else said < WEIGHTS


def test_the_answer_of_two_runs(first, fit, capsys):
    second = fit("optimizer.lr=0.02", "loader.generator=5")
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["A", str(first), "done"]
    assert "keys that change batches: none" in lines
    changing = lines.index("keys that change weights, and no batch")
    assert lines[changing + 2].split() == ["optimizer.lr", "0.005", "0.02"]
    neither = lines.index("keys that change nothing")
    assert lines[neither + 2].split() == ["loader.generator", "null", "5"]
    assert "digests       the same at 10 steps" in lines
    assert lines[-1] == "the same batches, other weights"
    other = fit("seed=3")
    done = run(capsys, "task=diff", f"runs=[{first},{other}]")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "other batches, other weights"
    same = fit()
    done = run(capsys, "task=diff", f"runs=[{first},{same}]")
    assert done.out.splitlines()[-1] == "the same batches, the same weights"


def started(folder, **facts):
    """Change the manifest of a run."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **facts}))


def test_differences_that_no_key_explains(pair, capsys):
    first, second = pair
    lines = (second / "digests.jsonl").read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace('"hash": "', '"hash": "0')
    (second / "digests.jsonl").write_text("".join(lines))
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert "no key explains other batches; nothing else that was noted differs" in done.out
    started(second, penstock="0.0.1")
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert done.out.endswith("no key explains other batches; look at versions\n")
    assert ["penstock", "0.1.0", "0.0.1"] in [line.split() for line in done.out.splitlines()]
    (second / "digests.jsonl").write_text((first / "digests.jsonl").read_text())
    state = checkpoint.find_newest(second).state
    next(iter(state["model"].values())).view(-1)[0] += 1
    checkpoint.Checkpoints(second / "checkpoints").save(state, state["updates"])
    started(second, gpus=["one"])
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert done.out.endswith("no key explains other weights; look at versions and hardware\n")


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
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert ["B", str(second), "killed"] in rows
    assert ["older", "-", "5"] in rows
    assert ["trainer.clip_norm", "1.0", "-"] in rows
    assert ["digests", "the", "same", "at", "4", "steps"] in rows
    assert f"steps         6 are in {first} only" in done.out
    assert "weights       not compared: a run has no checkpoints" in done.out
    assert done.out.endswith("the same batches, weights not compared\n")


@pytest.mark.thorough
def test_without_digests_and_ledgers(pair, capsys):
    first, second = pair
    (second / "digests.jsonl").unlink()
    done = run(capsys, "task=diff", f"runs=[{first},{second}]", "diff.weights=false")
    assert done.out.endswith("\nthe same samples, weights not compared\n")
    (second / "ledger.jsonl").unlink()
    done = run(capsys, "task=diff", f"runs=[{first},{second}]", "diff.weights=false")
    assert "order         the same samples at all steps" in done.out
    started(second, order="0" * 32)
    done = run(capsys, "task=diff", f"runs=[{first},{second}]", "diff.weights=false")
    assert "order         other samples, or in another order, at some step" in done.out
    assert "other batches, weights not compared" in done.out
    started(second, order="")
    done = run(capsys, "task=diff", f"runs=[{first},{second}]", "diff.weights=false")
    assert "batches not compared, weights not compared" in done.out
    assert "only trainer.digest=true tells whether the batches are the same" in done.out


def test_what_is_damaged_is_reported_and_the_rest_compared(pair, capsys):
    first, second = pair
    with (second / "ledger.jsonl").open("a") as file:
        file.write("{\n")
    for path in (second / "checkpoints").iterdir():
        path.unlink()
        path.write_bytes(b"x" * 100)
    done = run(capsys, "task=diff", f"runs=[{first},{second}]")
    assert done.code == 0
    assert f"ledger        not compared: {second}/ledger.jsonl, line 11 is broken" in done.out
    assert "digests       the same at 10 steps" in done.out
    assert "weights       not compared: " in done.out


@pytest.mark.parametrize("name", ["ledger.jsonl", "digests.jsonl"])
def test_steps_that_cannot_be_read(name, pair):
    first, second = pair
    (second / name).unlink()
    (second / name).mkdir()
    found = compare(RunRecord.read(first), RunRecord.read(second))
    assert any("cannot be read" in one.text and one.same is None for one in found.findings)
    (second / name).rmdir()
    (second / name).write_text("")
    found = compare(RunRecord.read(first), RunRecord.read(second))
    assert any(one.text == "no step in common" and one.same is None for one in found.findings)


def test_steps_in_another_order_change_batches(pair):
    first, second = pair
    config = yaml.safe_load((second / "config.yaml").read_text())
    steps = config["transform"]["train"]
    config["transform"]["train"] = dict(reversed(steps.items()))
    (second / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    found = compare(RunRecord.read(first), RunRecord.read(second)).settings
    one, *others = [one for some in found.values() for one in some]
    assert not others
    assert found[BATCHES] == [one]
    assert (one.key, one.first) == ("transform.train", "resize, flip, normalize")
    assert one.second == "normalize, flip, resize"


def test_two_runs_have_to_be_given(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for runs, message in (
        ("[x]", "needs the folders of two runs, and has 1"),
        ("[x,y]", "x is not a run's folder: it has no manifest.json"),
    ):
        done = run(capsys, "task=diff", f"runs={runs}")
        assert done.code == 2
        assert f"runs: {message}" in done.err


def test_long_values_are_shown_where_they_part():
    one, other = Difference("key", "a" * 100 + "b" + "c" * 100, "a" * 100 + "d").texts()
    assert "b" in one
    assert "d" in other
    assert one.startswith("...a")
    assert one.endswith("c...")
    assert max(map(len, (one, other))) < 70
    assert Difference("key", None, "x\ny").texts() == ("null", "x\\ny")


@pytest.mark.thorough
def test_no_torch_without_weights(pair):
    first, second = pair
    program = (
        "import sys; from penstock import command; code = command.main(sys.argv[1:]); "
        "assert not {'torch', 'matplotlib'} & set(sys.modules); sys.exit(code)"
    )
    words = ["task=diff", f"runs=[{first},{second}]", "diff.weights=false"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the same batches, weights not compared" in done.stdout
