import json
import math
import shutil

import pytest
import torch

from penstock.runs import checkpoint
from penstock.runs.checkpoint import Checkpoints
from tests.program import run

FIT = (
    "experiment=sequences",
    "dataset.count=120",
    "batch.size=8",
    "trainer=quick",
    "scheduler=none",
    "trainer.max_steps=8",
    "trainer.digest=true",
    "trainer.ledger=true",
    "trainer.progress=none",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "tracker=none",
    "loader.num_workers=0",
    "loader.prefetch_factor=null",
    "loader.persistent_workers=null",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of 8 steps."""
    from penstock import command

    folder = tmp_path_factory.mktemp("runs") / "a"
    assert command.main([*FIT, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def pair(trained, tmp_path):
    """The run, and a copy of it to be changed."""
    shutil.copytree(trained, tmp_path / "b")
    return trained, tmp_path / "b"


def verify(capsys, first, second):
    return run(capsys, "task=verify", f"runs=[{first},{second}]")


def change(path, number, **values):
    """Change values of one line of a .jsonl."""
    lines = path.read_text().splitlines()
    lines[number] = json.dumps({**json.loads(lines[number]), **values})
    path.write_text("".join(line + "\n" for line in lines))


def test_a_run_is_the_same_as_itself_done_again(trained, tmp_path, capsys):
    assert run(capsys, *FIT, f"run_dir={tmp_path / 'again'}").code == 0
    done = verify(capsys, trained, tmp_path / "again")
    assert done.code == 0, done
    assert "samples      the same at 8 steps" in done.out
    assert "losses       the same at 8 steps" in done.out
    assert "digests      the same at 8 steps" in done.out
    assert "weights      the same bits" in done.out
    assert done.out.endswith("the same\n")
    assert "matters" not in done.out


@pytest.mark.thorough
def test_a_resumed_run_is_the_same_as_an_undisturbed_one(trained, tmp_path, capsys):
    parts = [word for word in FIT if "max_steps" not in word]
    assert run(capsys, *parts, "trainer.max_steps=3", f"run_dir={tmp_path / 'b'}").code == 0
    resumed = run(capsys, f"resume={tmp_path / 'b'}", "trainer.max_steps=8")
    assert resumed.code == 0, resumed.err
    done = verify(capsys, trained, tmp_path / "b")
    assert done.code == 0, done
    assert "samples      the same at 8 steps" in done.out
    assert "losses       the same at 8 steps" in done.out
    assert ["starts", "1", "2"] in [line.split() for line in done.out.splitlines()]


def test_other_samples_are_distinguished_from_other_losses(pair, capsys):
    first, second = pair
    change(second / "ledger.jsonl", 5, order="0" * 16)
    change(second / "ledger.jsonl", 6, order="1" * 16)
    done = verify(capsys, first, second)
    assert done.code == 1
    assert (
        "samples      first differ at epoch 0, step 5: other samples, or in another order (8 and 8)"
        in done.out
    )
    assert "; 2 of 8 steps differ\n" in done.out
    assert "losses       the same at 8 steps" in done.out
    assert "not the same" in done.err


def test_losses_are_distinguished_by_one_bit(pair, capsys):
    first, second = pair
    line = json.loads((second / "ledger.jsonl").read_text().splitlines()[2])
    loss = float.fromhex(line["loss"])
    change(second / "ledger.jsonl", 2, loss=math.nextafter(loss, 9).hex())
    done = verify(capsys, first, second)
    assert done.code == 1
    apart = f"{loss!r} and {math.nextafter(loss, 9)!r}"
    assert f"losses       first differ at epoch 0, step 2: {apart}" in done.out
    assert "ulps of float32 apart; 1 of 8 steps differ, by up to" in done.out
    assert "samples      the same at 8 steps" in done.out


def test_samples_made_differently_are_found(pair, capsys):
    first, second = pair
    change(second / "digests.jsonl", 7, hash="ff")
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "samples      the same at 8 steps" in done.out
    assert "losses       the same at 8 steps" in done.out
    assert "digests      first differ at epoch 0, step 7" in done.out


def test_runs_of_unequal_length(pair, capsys):
    first, second = pair
    path = second / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:6]) + '{"epoch": 0, "st')
    (second / "digests.jsonl").unlink()
    shutil.rmtree(second / "checkpoints")
    Checkpoints(second / "checkpoints").save({"updates": 6, "model": {}}, 6)
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "samples      the same at 6 steps" in done.out
    assert f"steps        2 are in {first} only" in done.out
    assert "the last are of optimizer steps 8 and 6" in done.out


def test_without_a_ledger_weights_decide(pair, capsys):
    first, second = pair
    (second / "ledger.jsonl").unlink()
    done = verify(capsys, first, second)
    assert done.code == 0
    assert f"ledger       {second} has none; train with trainer.ledger=true" in done.out


def test_with_nothing_to_compare(pair, capsys):
    first, second = pair
    for name in ("ledger.jsonl", "digests.jsonl"):
        (second / name).unlink()
    shutil.rmtree(second / "checkpoints")
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "nothing to compare" in done.err
    assert "trainer.ledger=true" in done.err


def with_weights(folder, change_weights):
    """Save the run's last state again, changed."""
    state = checkpoint.find_newest(folder).state
    change_weights(state)
    Checkpoints(folder / "checkpoints").save(state, state["updates"])


def test_weights_are_compared_by_the_bit(pair, capsys):
    first, second = pair
    names = []

    def next_number(state):
        name, weight = next(iter(state["model"].items()))
        names.append(name)
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))

    with_weights(second, next_number)
    done = verify(capsys, first, second)
    assert done.code == 1
    assert f"tensors differ, model/{names[0]}" not in done.out
    assert f"tensors differ, {names[0]} by up to" in done.out
    assert "optimizer    the same bits" in done.out


def test_weights_of_other_models_are_not_compared(pair, capsys):
    first, second = pair
    with_weights(second, lambda state: state["model"].update(extra=torch.ones(1)))
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "of different models: only one has extra" in done.out


def test_weights_that_are_no_numbers_are_the_same_as_such(pair, tmp_path, capsys):
    first, second = pair
    shutil.copytree(first, tmp_path / "c")
    for folder in (second, tmp_path / "c"):
        with_weights(folder, lambda state: state["model"].update(x=torch.tensor([math.nan, 1.0])))
    assert verify(capsys, second, tmp_path / "c").code == 0
    assert verify(capsys, first, second).code == 1


def test_what_runs_were_started_with_is_shown_where_it_differs(pair, capsys):
    first, second = pair
    config = (second / "config.yaml").read_text()
    config = config.replace("seed: 0", "seed: 5").replace("num_workers: 0", "num_workers: 3")
    (second / "config.yaml").write_text(config)
    manifest = json.loads((second / "manifest.json").read_text())
    torch_before, manifest["packages"]["torch"] = manifest["packages"]["torch"], "1.0"
    (second / "manifest.json").write_text(json.dumps(manifest))
    rows = [line.split() for line in verify(capsys, first, second).out.splitlines()]
    assert ["seed", "0", "5", "matters"] in rows
    assert ["loader.num_workers", "0", "3"] in rows
    assert ["packages.torch", torch_before, "1.0"] in rows
    assert not any(row[0] == "batch.size" for row in rows)


def test_a_ledger_out_of_order_is_named(pair, capsys):
    first, second = pair
    lines = (second / "ledger.jsonl").read_text().splitlines(keepends=True)
    (second / "ledger.jsonl").write_text("".join([*lines, lines[3]]))
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "ledger.jsonl, line 9: epoch 0, step 3 comes after a later one" in done.err


def test_a_broken_ledger_is_named(pair, capsys):
    first, second = pair
    with (second / "ledger.jsonl").open("a") as file:
        file.write("{\n")
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "ledger.jsonl, line 9 is broken" in done.err


def test_a_damaged_checkpoint_is_left_out(pair, capsys):
    first, second = pair
    newest = checkpoint.find_newest(second).path
    newest.write_bytes(newest.read_bytes()[:-1])
    done = verify(capsys, first, second)
    assert f"weights      cannot use {newest}: the checkpoint is truncated" in done.out
    assert done.code == 0  # the best is the same, and was no link in the copy
    best = second / "checkpoints" / checkpoint.BEST
    best.write_bytes(best.read_bytes()[:-1])
    done = verify(capsys, first, second)
    assert done.code == 1
    assert "none of its checkpoints can be used" in done.err


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("[x]", "needs the folders of two runs, and has 1"),
        ("[x,y,z]", "needs the folders of two runs, and has 3"),
        ("[x,y]", "x is not a run's folder: it has no manifest.json"),
    ],
)
def test_two_runs_have_to_be_given(capsys, tmp_path, monkeypatch, runs, message):
    monkeypatch.chdir(tmp_path)
    done = run(capsys, "task=verify", f"runs={runs}")
    assert done.code == 2
    assert f"runs: {message}" in done.err
    assert not list(tmp_path.iterdir())
