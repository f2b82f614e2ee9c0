"""Checkpoints to which several real ranks (gloo) wrote their parts; see tests/shards.py."""

import json
import pickle
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import hf_storage
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from penstock.distributed.group import Group
from penstock.runs import checkpoint, sharded_checkpoint
from penstock.runs.checkpoint import CheckpointError, Checkpoints
from tests import warm
from tests.shard_files import network, state_of, step

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder in which worlds of 1, 2, 4 and 3 ranks have followed each other."""
    folder = tmp_path_factory.mktemp("shards")
    done = warm.run(
        [sys.executable, "-m", "tests.shard_files", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_each_world_went_on_from_the_checkpoint_of_the_one_before(ran):
    seen = [json.loads((ran / f"world-{size}.json").read_text()) for size in (1, 2, 4, 3)]
    assert [one["updates"] for one in seen] == [2, 4, 6, 8]
    assert seen[0]["saved"] == ["step-00000001", "step-00000002-2"]
    assert seen[3]["saved"] == ["step-00000003", "step-00000007", "step-00000008-2"]


def test_each_rank_wrote_a_shard(ran):
    shards = sorted((ran / "legs" / "step-00000007").glob("*.safetensors"))
    assert len(shards) == 3
    assert (ran / "legs" / checkpoint.BEST_FOLDER).resolve().name == "step-00000003"


def test_an_unsharded_model_continues_from_it(ran):
    state = checkpoint.find_newest(ran / "legs").state
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(8):
        step(model, optimizer)
    for name, tensor in model.state_dict().items():  # the worlds have taken the same steps
        torch.testing.assert_close(state["model"][name], tensor)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step(model, optimizer)
    assert torch.isnan(torch.tensor(state["metrics"]["loss"]))
    assert state["betas"] == (0.9, 0.999)


def test_a_run_may_go_on_with_and_without_shards(ran, tmp_path):
    """A file of a later step comes before a folder, and replaces it when it is too old."""
    shutil.copytree(ran / "legs", tmp_path / "legs", symlinks=True)
    kept = Checkpoints(tmp_path / "legs", keep_last=1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    kept.save(state_of(model, optimizer, 9), 9)
    assert checkpoint.find_newest(tmp_path / "legs").state["updates"] == 9
    names = ["step-00000003", "step-00000009.safetensors"]  # the first is the best
    assert [path.name for path in kept.saved()] == names
    kept.save(state_of(model, optimizer, 10), 10, best=True)
    assert kept.best().name == checkpoint.BEST
    assert [path.name for path in kept.saved()] == ["step-00000010.safetensors"]
    assert not (tmp_path / "legs" / checkpoint.BEST_FOLDER).exists()


@pytest.fixture
def saved(ran, tmp_path):
    """A copy of a checkpoint of three ranks."""
    folder = tmp_path / "step-00000007"
    shutil.copytree(ran / "legs" / "step-00000007", folder)
    checkpoint.load(folder)
    return folder


class NamedOtherwise(HuggingFaceStorageWriter):
    """As another version of torch might name its files."""

    def finish(self, metadata, results):
        super().finish(metadata, results)
        for file in Path(self.path).glob("shard-*"):
            file.rename(file.with_name(f"part-{file.name}"))


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_shards_that_no_load_would_find_are_no_checkpoint(tmp_path, monkeypatch):
    tensors = {"weight": torch.ones(3)}
    sharded_checkpoint.write_folder(tmp_path / "1", "{}", tensors, Group(), None)
    monkeypatch.setattr(hf_storage, "HuggingFaceStorageWriter", NamedOtherwise)
    with pytest.raises(CheckpointError, match="has other shards than the ranks have written"):
        sharded_checkpoint.write_folder(tmp_path / "2", "{}", tensors, Group(), None)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_every_flipped_byte_is_noticed(saved):
    rng = random.Random(0)
    for path in sorted(saved.iterdir()):
        data = path.read_bytes()
        for place in [0, len(data) - 1, *rng.sample(range(len(data)), 60)]:
            damaged = bytearray(data)
            damaged[place] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="step-00000007"):
                checkpoint.load(saved)
        path.write_bytes(data)
    checkpoint.load(saved)


def test_what_is_missing_or_cut_off_is_named(saved):
    shard = sorted(saved.glob("*.safetensors"))[1]
    data = shard.read_bytes()
    for length in (0, 7, len(data) // 2, len(data) - 1):
        shard.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=f"damaged: {shard.name} does not match"):
            checkpoint.load(saved)
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"damaged: {shard.name} is missing.*earlier one"):
        checkpoint.load(saved)
    (saved / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"it has no state.json. Use an earlier one"):
        checkpoint.load(saved)


def test_a_shard_too_many_is_named(saved):
    shard = next(saved.glob("*.safetensors"))
    shutil.copyfile(shard, saved / "shard-00009-model-00001-of-00001.safetensors")
    with pytest.raises(CheckpointError, match=r"shard-00009.* is missing or unexpected"):
        checkpoint.load(saved)


def test_a_newer_version_is_refused(saved):
    content = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(CheckpointError, match=r"format 2 by a newer Penstock.*Update"):
        checkpoint.load(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"format": 1}', '{"format": "x"}'])
def test_a_state_that_is_none_is_damaged(saved, text):
    (saved / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(saved)


class Bomb:
    exploded = False

    def __reduce__(self):
        return setattr, (Bomb, "exploded", True)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "extra.pt"])
def test_pickles_beside_the_shards_are_never_read(saved, name):
    (saved / name).write_bytes(pickle.dumps(Bomb()))
    checkpoint.load(saved)
    assert not Bomb.exploded


@pytest.mark.parametrize("name", ["state.json", "shard-00001-model-00001-of-00001.safetensors"])
def test_pickles_instead_of_its_files_are_refused_unread(saved, name):
    (saved / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(saved)
    assert not Bomb.exploded


def test_a_damaged_one_falls_back_to_the_one_before(ran, tmp_path):
    shutil.copytree(ran / "legs", tmp_path / "legs", symlinks=True)
    shard = next((tmp_path / "legs" / "step-00000008-2").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    found = checkpoint.find_newest(tmp_path / "legs")
    assert found.path.name == "step-00000007"
    assert [path.name for path, _ in found.skipped] == ["step-00000008-2"]
