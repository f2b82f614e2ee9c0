"""Whole runs in lanes: on one rank, and on others whose number changes in mid-run."""

import json
import os
import shutil
import sys

import pytest

from penstock.addons.lanes import kinds
from penstock.config.changes import Known, between
from penstock.config.sections import Changes
from tests.ports import free_port
from tests.program import run

FIT = (
    "experiment=sequences",
    "dataset.count=60",
    "batch.size=9",
    "trainer=quick",
    "scheduler=none",
    "trainer.max_epochs=2",
    "trainer.ledger=true",
    "trainer.ema=0.5",
    "trainer.progress=none",
    "trainer.pictures=false",
    "trainer.baseline=false",
    "trainer.checkpoint.background=false",
    "tracker=none",
    "loader.num_workers=0",
    "loader.prefetch_factor=null",
    "loader.persistent_workers=null",
    "distributed.lanes=4",
)


def on_ranks(folder, count, *words):
    """Run the program on that many ranks, forked from this process as a launcher starts them."""
    log, port = folder / f"{count}.log", free_port()
    ranks = [os.fork() or rank_of(log, port, rank, count, words) for rank in range(count)]
    codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks}
    assert codes == {0}, log.read_text()


def rank_of(log, port, rank, count, words):
    from penstock import command

    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {name: str(number) for name, number in place.items()}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        code = command.main(["distributed=ddp", *words])
    finally:
        os._exit(code)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run on one rank."""
    from penstock import command

    folder = tmp_path_factory.mktemp("lanes") / "alone"
    assert command.main([*FIT, f"run_dir={folder}"]) == 0
    return folder


def verify(capsys, first, second):
    return run(capsys, "task=verify", f"runs=[{first},{second}]")


def test_ranks_that_come_and_go_end_with_the_weights_of_one(alone, tmp_path, capsys):
    folder = tmp_path / "several"
    on_ranks(tmp_path, 4, *FIT, "trainer.max_epochs=1", f"run_dir={folder}")
    on_ranks(tmp_path, 2, f"resume={folder}", "trainer.max_epochs=2", "distributed.lanes=4")
    done = verify(capsys, alone, folder)
    assert (done.code, done.out.splitlines()[-1]) == (0, "the same"), done.out
    sessions = json.loads((folder / "manifest.json").read_text())["sessions"]
    assert {each["kind"] for each in sessions} == {kinds.kind("cpu")}
    assert [each.get("world") for each in sessions][-1] == 2


def test_another_order_of_two_lanes_is_found(alone, tmp_path, capsys, monkeypatch):
    from penstock.addons.lanes import tree

    split = tree.split
    monkeypatch.setattr(
        tree, "split", lambda node: split(node)[::-1] if node[1] == 4 else split(node)
    )
    monkeypatch.setattr(tree, "_plus", lambda left, right: right if left is None else left)
    assert run(capsys, *FIT, f"run_dir={tmp_path / 'other'}").code == 0
    done = verify(capsys, alone, tmp_path / "other")
    assert done.code == 1
    assert "weights" in done.out


def test_a_run_goes_on_in_as_many_lanes(alone, tmp_path, capsys):
    shutil.copytree(alone, tmp_path / "run")
    other = run(capsys, f"resume={tmp_path / 'run'}", "distributed.lanes=2", "trainer.max_epochs=3")
    assert other.code == 2
    assert "distributed.lanes" in other.err


def test_what_cannot_be_done_is_refused(capsys):
    words = [word for word in FIT if not word.startswith("distributed")]
    for more, text in (
        (["distributed=fsdp", "distributed.lanes=4"], "distributed.strategy: fsdp adds gradients"),
        (["distributed=ddp", "distributed.nproc=3", "distributed.lanes=4"], "1, 2, 4 can"),
        (["distributed.lanes=4", "loader.in_order=false"], "loader.in_order: false mixes"),
        (["distributed.lanes=4", "loader.share=some"], "loader.share: hands over"),
        (["distributed.lanes=0"], "distributed.lanes"),
    ):
        done = run(capsys, *words, *more)
        assert done.code == 2, more
        assert text in done.err


def test_what_ranks_change():
    four, eight, none = ({"distributed.lanes": lanes} for lanes in ("4", "8", "None"))
    for first, second, nproc, balance in (
        (four, four, Changes.NOTHING, Changes.WEIGHTS),
        (four, eight, Changes.WEIGHTS, Changes.WEIGHTS),
        (none, none, Changes.WEIGHTS, Changes.WEIGHTS),
    ):
        runs = Known(first, alone=False), Known(second, alone=False)
        assert between("distributed.nproc", *runs)[0] == nproc
        assert between("batch.balance", *runs)[0] == balance
    assert between("batch.balance", Known(none, alone=True), Known(none, alone=True))[0] == 0
