"""Whole runs in lanes: on one rank, and on others whose number changes in mid-run."""

import json
import shutil

import pytest

from penstock.addons.lanes.lane_step import kind
from tests.lanes.worlds import QUIET, on_ranks, verify
from tests.program import run

FIT = (
    "experiment=sequences",
    "dataset.count=60",
    "dataset.longest=12",
    "batch.size=9",
    "trainer=quick",
    "scheduler=none",
    "trainer.max_epochs=2",
    "trainer.ema=0.5",
    "distributed.lanes=4",
    *QUIET,
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run on one rank."""
    from penstock import command

    folder = tmp_path_factory.mktemp("lanes") / "alone"
    assert command.main([*FIT, f"run_dir={folder}"]) == 0
    return folder


def test_ranks_that_come_and_go_end_with_the_weights_of_one(alone, tmp_path, capsys):
    folder = tmp_path / "several"
    on_ranks(tmp_path, 4, *FIT, "trainer.max_epochs=1", f"run_dir={folder}")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(kind("cpu"), "an older one"))
    on_ranks(tmp_path, 2, f"resume={folder}", "trainer.max_epochs=2", "distributed.lanes=4")
    done = verify(capsys, alone, folder)
    assert done.code == 0, done.out
    sessions = json.loads(manifest.read_text())["sessions"]
    assert [each["kind"] for each in sessions] == ["an older one", kind("cpu")]
    assert [each.get("world") for each in sessions][-1] == 2
    assert "of another kind" in (tmp_path / "2.log").read_text()


@pytest.mark.parametrize("word", ["distributed.lanes=2", "batch.balance=length"])
def test_what_decides_on_the_work_of_a_lane_stays(word, alone, tmp_path, capsys):
    shutil.copytree(alone, tmp_path / "run")
    other = run(capsys, f"resume={tmp_path / 'run'}", word, "trainer.max_epochs=3")
    assert other.code == 2
    assert word.partition("=")[0] in other.err


def test_validation_of_samples_that_are_compared_sees_whole_batches(tmp_path, capsys):
    views = (
        "experiment=two_views",
        "dataset.count=60",
        "dataset.size=32",
        "transform.train.crop.size=[16,16]",
        "model.width=8",
        "batch.size=8",
        "optimizer.lr=0",
        "trainer.max_steps=1",
        *QUIET,
    )
    on_ranks(tmp_path, 2, *views, "distributed.lanes=4", f"run_dir={tmp_path / 'lanes'}")
    assert run(capsys, *views, f"run_dir={tmp_path / 'none'}").code == 0
    in_lanes, without = (
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("lanes", "none")
    )
    assert without["val/loss"] > 0
    for name in (name for name in without if name.startswith("val/")):
        assert in_lanes[name] == pytest.approx(without[name], rel=1e-5)


def test_what_cannot_be_done_is_refused(capsys):
    words = [word for word in FIT if not word.startswith("distributed")]
    for more, text in (
        (["distributed.lanes=4", "distributed.sync_batchnorm=true"], "distributed.sync_batchnorm"),
        (["distributed.lanes=4", "loader.in_order=false"], "loader.in_order: false mixes"),
        (["distributed.lanes=0"], "distributed.lanes"),
    ):
        done = run(capsys, *words, *more)
        assert done.code == 2, more
        assert text in done.err
