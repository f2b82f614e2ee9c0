"""`task=without`: a run goes on as if it had never seen a sample."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline import compose
from pipeline.build.data import DataParts
from pipeline.distributed.world import World
from pipeline.order.randomness import hash64, hash64_each
from pipeline.runs import left_out
from pipeline.runs.record import by_address
from tests.program import run

DATA = ("experiment=sequences", "dataset.count=60", "batch.size=8", "loader=debug")
FIT = (
    *DATA, "trainer=quick", "scheduler=none", "trainer.max_epochs=3", "trainer.max_steps=16",
    "trainer.ledger=true", "trainer.digest=true", "trainer.progress=none",
    "trainer.pictures=false", "trainer.baseline=false", "tracker=none",
    "trainer.checkpoint.every_steps=3", "trainer.checkpoint.keep_last=9",
)  # fmt: skip
SAMPLERS = {
    "random": (),
    "weighted": ("sampler=weighted", "sampler.column=label"),
    "bucket": ("sampler=bucket",),
    "packed": ("sampler=packed", "sampler.tokens=64", "collate=packed"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs and a half with a checkpoint every three steps."""
    from pipeline import command

    folder = tmp_path_factory.mktemp("runs") / "a"
    assert command.main([*FIT, f"run_dir={folder}"]) == 0
    return folder


def told(out):
    """The lines of an answer by their first words, and the words of the command in it."""
    lines = out.splitlines()
    found = {line[:10].strip(): line[11:] for line in lines if line[10:11] == " "}
    return found, shlex.split(lines[-1])[2:]


def parts(*words):
    return DataParts(compose(*words), World()).train


def orders(folder):
    return {at: int(one["order"], 16) for at, one in by_address(folder / "ledger.jsonl")}


def digests(folder):
    return {at: one["hash"] for at, one in by_address(folder / "digests.jsonl")}


def share_in_order(plan, address, row):
    """What a row adds to the hash of its batch in the ledger, modulo 2^64."""
    request = plan.request(*address)
    positions = request.positions[: request.valid][request.indices[: request.valid] == row]
    key = np.full(len(positions), hash64("order", *address), np.uint64)
    rows = np.full(len(positions), row)
    mixed = hash64_each(key, positions.astype(np.uint64) + hash64_each(key + np.uint64(1), rows))
    return sum(mixed.tolist()) % 2**64


CASES = [
    (sampler, on_error) for sampler in SAMPLERS for on_error in ("raise", "skip", "substitute")
]


@pytest.mark.one_in(len(CASES))
@pytest.mark.parametrize(("sampler", "on_error"), CASES)
def test_the_printed_command_makes_a_run_that_never_sees_it(
    sampler, on_error, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = (*FIT, *SAMPLERS[sampler], f"bad_samples.on_error={on_error}")
    if words == (*FIT, "bad_samples.on_error=raise"):
        shutil.copytree(trained, "a")
    else:
        assert run(capsys, *words, "run_dir=a").code == 0
    plan, first = parts(*words).plan, orders(Path("a"))
    having = {row: [at for at in first if row in plan.request(*at).indices] for row in range(48)}
    row = next(row for row, found in having.items() if found and (0, 4) <= found[0] < (0, 6))
    asked = run(capsys, "task=without", f"sample={row}", "run=a")
    assert asked.code == 0, asked.err
    lines, command = told(asked.out)
    assert lines["seen"].startswith(f"first at epoch 0, step {having[row][0][1]}; the run has")
    assert lines["goes on"] == "from a/checkpoints/step-00000003.safetensors, at epoch 0, step 3"
    assert run(capsys, *command).code == 0
    again = orders(Path("a-without"))
    assert min(again) == (0, 3)
    # It is in no batch; every other sample is where it was, in the very same bits.
    for at, order in again.items():
        if at in having[row]:
            left = (first[at] - share_in_order(plan, at, row)) % 2**64
            assert (order == left) == (on_error != "substitute")
            assert order != first[at]
        elif at in first:
            assert order == first[at]
            assert digests(Path("a-without"))[at] == digests(Path("a"))[at]
    assert set(first) - set(again) == {(0, 0), (0, 1), (0, 2)}
    made = left_out.read("a-without/quarantine.csv")
    assert {one.index for one in made} == {row}


def test_without_an_old_checkpoint_it_begins_anew(trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "a")
    row = int(parts(*FIT).plan.request(0, 1).indices[0])
    lines, command = told(run(capsys, "task=without", f"sample={row}", f"run={folder}").out)
    assert lines["goes on"] == "from the beginning: no checkpoint is of before that"
    assert command == [*FIT, f"bad_samples.quarantine={folder}-without.csv",
                       f"run_dir={folder}-without"]  # fmt: skip
    (entry,) = left_out.read(f"{folder}-without.csv")
    assert (entry.split, entry.index, entry.epoch, entry.step) == ("train", row, 0, 1)
    written = Path(f"{folder}-without.csv").read_bytes()
    again = run(capsys, "task=without", "sample=[0,1]", f"run={folder}")
    assert f"left out   {folder}-without-2.csv" in again.out
    assert Path(f"{folder}-without.csv").read_bytes() == written
    assert [one.index for one in left_out.read(f"{folder}-without-2.csv")] == [0, 1]
