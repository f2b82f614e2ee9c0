"""`task=replay` inside this process: a batch by its address, and the files that it becomes."""

import pytest
import torch

import penstock
from penstock.build.data import DataParts
from penstock.distributed.world import World
from penstock.errors import ConfigError
from penstock.tasks.replay import recompute
from tests.support.few_rows import Records, Rows, words
from tests.support.program import run


@pytest.fixture(autouse=True)
def trusted(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.chdir(tmp_path)


def asked(*more, kind=Rows):
    config = penstock.compose(*words(kind), "task=replay", *more)
    return config, DataParts(config, World()).train


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Rows, "step: epoch 0 of the train split has 2 steps, 0 to 1, and no step 2"),
        (Records, "step: epoch 0 of the train split ends before step 2"),
    ],
)
def test_a_batch_is_made_again_by_its_address(kind, message, capsys):
    config, split = asked("step=1", "trainer.skip=[[0,0],[0,1]]", kind=kind)
    torch.manual_seed(0)
    batch = recompute(split, config)
    assert (batch.request.address, len(batch.hashes)) == ((0, 1), 4)
    assert capsys.readouterr().err == ""
    with split.loader() as loader:
        (trained,) = loader.epoch(0)
    assert torch.equal(batch["input"], trained["input"])
    left_out = recompute(split, config.model_copy(update={"step": 0}))
    assert left_out.request.address == (0, 0)
    assert "training leaves this batch out: trainer.skip=" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=message):
        recompute(split, config.model_copy(update={"step": 2}))


def test_a_digest_names_the_batches_that_are_left_out(capsys):
    skipping = [*words(rows=16), "trainer.skip=[[[0,1],[0,3]]]"]
    done = run(capsys, "task=digest", *skipping)
    assert done.code == 0, done.err
    places = [" ".join(line.split()[:3]) for line in done.out.splitlines()]
    assert places[:4] == ["0 0 4", "0 1 skipped", "0 2 skipped", "0 3 4"]
