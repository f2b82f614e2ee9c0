from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from penstock.errors import PenstockError
from penstock.runs import checkpoint
from penstock.runs.checkpoint import CheckpointError, Checkpoints
from tests.support import shard_files, warm


def small_state() -> dict[str, Any]:
    return {"model": {"w": torch.arange(6.0).view(2, 3)}, "step": 3, "lr": 0.1}


def saved(folder: Path, state: Any, step: int = 1) -> Path:
    kept = Checkpoints(folder)
    path = kept.save(state, step)
    kept.flush()
    return path


def trained() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedulers = torch.optim.lr_scheduler
    scheduler = schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1), schedulers.MultiStepLR(optimizer, [2, 4])],
        [1],
    )
    for _ in range(3):
        model(torch.randn(8, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


def test_plain_values_come_back_exactly(tmp_path: Path) -> None:
    state = {
        "none": None,
        "yes": True,
        "int": -(2**70),
        "float": 0.1 + 0.2,
        "whole": 3.0,
        "inf": math.inf,
        1.5: [math.nan],
        (1, "a"): False,
        "minus": -math.inf,
        "text": 'ä\n"',
        "list": [1, [2.5, None], []],
        "tuple": (1, (2,)),
        "empty": {},
        0: {"int key": 1},
        "$tensor": "a trap",
        "nested": {"$float": "inf"},
    }
    back = checkpoint.load(saved(tmp_path, state))
    assert repr(back) == repr(state)  # 3.0 is not 3, True not 1, a tuple not a list


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_tensors_come_back_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    full = torch.randn(4, 6).mul(3).to(dtype)
    state = {
        "full": full,
        "scalar": full[0, 0],
        "empty": full[:0],
        "also empty": full[:, :0],
        "strided": full[:, ::2],
        "transposed": full.T,
        "part": full[1:3],
        "channels_last": full.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "conjugate": full.conj(),  # a view, which differs by a flag
    }
    path = saved(tmp_path, state)
    back, theirs = checkpoint.load(path), load_file(path)
    for name, tensor in state.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], tensor), name
        assert torch.equal(theirs[name], tensor), "safetensors reads the same"


def test_paths_that_collide_stay_apart(tmp_path: Path) -> None:
    one, two = torch.tensor(1), torch.tensor(2)
    path = saved(tmp_path, {"a/b": one, "a": {"b": two}, 1: {0: one, "0": two}})
    back = checkpoint.load(path)
    assert (back["a/b"].item(), back["a"]["b"].item()) == (1, 2)
    assert (back[1][0].item(), back[1]["0"].item()) == (1, 2)


def test_optimizer_and_scheduler_go_on_as_before(tmp_path: Path) -> None:
    first = trained()
    path = saved(tmp_path, {str(i): part.state_dict() for i, part in enumerate(first)})
    second = trained()
    back = checkpoint.load(path)
    for i, part in enumerate(second):
        part.load_state_dict(back[str(i)])
    batch = torch.randn(8, 3)
    for model, optimizer, scheduler in (first, second):
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
            scheduler.step()
    assert first[2].get_last_lr() == second[2].get_last_lr()
    for a, b in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"model/x is <object object.*\(object\): no checkpoint can hold it"),
        ({int: 0}, r"model/x/<class 'int'> is <class 'int'> \(type\)"),
        (torch.eye(2).to_sparse(), r"model/x is tensor\(indices"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        saved(tmp_path, {"model": {"x": value}})
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_of_any_byte_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, small_state())
    data = path.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"step-00000001\.safetensors"):
            checkpoint.load(path)


def test_truncation_is_noticed_at_every_length(tmp_path: Path) -> None:
    path = saved(tmp_path, small_state())
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="truncated, damaged or"):
            checkpoint.load(path)


def with_format(data: bytes, version: str) -> bytes:
    """The same file with another format version in its header."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"]["format"] = version
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


@pytest.mark.parametrize(
    ("version", "reader"),
    [
        ("9", "a later version of Penstock"),
        ("1", "commit 56af455b"),
        ("2", "commit fe76f2f2"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, version: str, reader: str) -> None:
    path = saved(tmp_path, small_state())
    path.write_bytes(with_format(path.read_bytes(), version))
    with pytest.raises(PenstockError, match=f"a checkpoint of format {version}, which {reader} "):
        checkpoint.load(path)


class Bomb:
    exploded = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return setattr, (Bomb, "exploded", True)


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(PenstockError, match="no checkpoint of Penstock's"):
        checkpoint.load(tmp_path / "weights.safetensors")
    with pytest.raises(PenstockError, match="there is no such checkpoint"):
        checkpoint.load(tmp_path / "absent")


def test_best_and_last_are_kept(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "c", keep_last=2)
    for step in range(5):
        kept.save({"step": step}, step, best=step in (0, 1))
    best = kept.best()
    assert [checkpoint.load(p)["step"] for p in checkpoint.saved(tmp_path / "c")] == [1, 3, 4]
    assert best is not None
    assert checkpoint.load(best) == {"step": 1}
    best.unlink()
    best.mkdir()
    kept.save({"step": 5}, 5, best=True)
    with pytest.raises(CheckpointError, match=f"{checkpoint.BEST} cannot be written"):
        kept.flush()
    # A run that is resumed does not take for saved what no file holds.
    assert checkpoint.find_newest(tmp_path / "c").state == {"step": 4}


def test_find_takes_a_file_a_run_and_their_folder(tmp_path: Path) -> None:
    assert not checkpoint.saved(tmp_path)
    path = saved(tmp_path / "checkpoints", {}, 7)
    assert checkpoint.saved(tmp_path) == checkpoint.saved(tmp_path / "checkpoints") == [path]
    for given in (path, tmp_path, tmp_path / "checkpoints"):
        assert checkpoint.find(given) == path  # none was the best: the last one
    with pytest.raises(PenstockError, match="elsewhere: it is missing"):
        checkpoint.find(tmp_path / "elsewhere")


def test_pickles_under_other_names_are_refused_unread(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save({"x": Bomb()}, folder / "step-00000002.safetensors")
    (folder / "step-00000003.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=r"none of its checkpoints.*damaged.*damaged"):
        checkpoint.find_newest(tmp_path)
    kept = Checkpoints(folder, keep_last=9)
    kept.save({"x": 1}, 1)
    kept.flush()
    assert checkpoint.find_newest(tmp_path).state == {"x": 1}
    assert not Bomb.exploded


def forged(path: Path, state: str) -> None:
    """A file with a valid checksum over a state's text of somebody's own."""
    checkpoint.write(
        path, state, {"bomb": torch.frombuffer(bytearray(pickle.dumps(Bomb())), dtype=torch.uint8)}
    )


def test_nothing_in_a_forged_state_is_called(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    call = {"$call": "os.system", "_target_": "os.system", "__reduce__": ["os.system", ["true"]]}
    forged(path, json.dumps({"$pairs": [["x", call], ["y", {"$tensor": "bomb"}]]}))
    back = checkpoint.load(path)
    assert back["x"] == call
    assert back["y"].dtype == torch.uint8
    assert not Bomb.exploded


@pytest.mark.parametrize(
    "state",
    [
        '{"$pairs": [["x", {"$tensor": "os.system"}]]}',
        '{"$pairs": 3}',
        '{"$pairs": [["x", {"$tuple": 3}]]}',
        '{"$pairs": [[[], 1]]}',
        "{",
        "[" * 100_000,
    ],
)
def test_a_forged_state_that_means_nothing_is_damaged(tmp_path: Path, state: str) -> None:
    forged(tmp_path / "a", state)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(tmp_path / "a")


def test_a_state_may_change_as_soon_as_it_was_saved(tmp_path: Path) -> None:
    weights = torch.zeros(1_000_000)
    state = {"w": weights, "history": [1]}
    kept = Checkpoints(tmp_path, keep_last=3)
    for step in range(3):
        kept.save(state, step)
        weights += 1
        state["history"].append(step)  # type: ignore[union-attr]
    kept.flush()
    for step, path in enumerate(checkpoint.saved(tmp_path)):
        back = checkpoint.load(path)
        assert back["w"].unique().tolist() == [step]
        assert len(back["history"]) == step + 1


def failing(tmp_path: Path) -> Checkpoints:
    """Checkpoints in the background, with a save under way that will fail."""
    kept = Checkpoints(tmp_path / "c")
    kept.save({"step": 1}, 1)
    kept.flush()
    (tmp_path / "c" / "step-00000002.safetensors").mkdir()
    (tmp_path / "c" / "step-00000002.safetensors" / "in the way").touch()
    kept.save({"step": 2}, 2)
    return kept


def test_an_error_in_the_background_is_that_of_the_next_save(tmp_path: Path) -> None:
    kept = failing(tmp_path)
    with pytest.raises(CheckpointError, match=r"step-00000002.* cannot be written"):
        kept.save({"step": 3}, 3)
    kept.flush()  # it has been told
    assert checkpoint.load(tmp_path / "c" / "step-00000001.safetensors") == {"step": 1}
    assert [path.name for path in (tmp_path / "c").iterdir() if path.name.startswith(".")] == []


def test_old_ones_go_only_when_the_new_one_is_there(tmp_path: Path) -> None:
    kept = failing(tmp_path)
    with pytest.raises(CheckpointError):
        kept.flush()
    shutil.rmtree(tmp_path / "c" / "step-00000002.safetensors")
    kept.save({"step": 3}, 3)
    kept.flush()
    names = [path.name for path in checkpoint.saved(tmp_path / "c")]
    assert names == ["step-00000003.safetensors"]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def test_the_newest_good_one_is_found(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "checkpoints", keep_last=4)
    for step in (1, 2, 3, 4):
        kept.save({"updates": step, "w": torch.ones(9)}, step)
    kept.flush()
    assert checkpoint.find_newest(tmp_path).state["updates"] == 4
    paths = checkpoint.saved(tmp_path)
    damage(paths[3])
    os.truncate(paths[2], 40)
    found = checkpoint.find_newest(tmp_path)
    assert found.path == paths[1]
    assert found.state["updates"] == 2
    assert [path for path, _ in found.skipped] == [paths[3], paths[2]]
    assert "checksum" in found.skipped[0][1]
    assert "truncated" in found.skipped[1][1]
    os.truncate(paths[1], 0)
    paths[0].write_bytes(with_format(paths[0].read_bytes(), "9"))
    with pytest.raises(
        CheckpointError, match=r"none of its checkpoints.*step-00000001.*a later version"
    ):
        checkpoint.find_newest(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="truncated"):  # and one that is named is an error
        checkpoint.load(paths[1])


def test_the_best_is_resumed_from_where_no_other_is_good(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep_last=1)
    kept.save({"updates": 1}, 1, best=True)
    kept.save({"updates": 2}, 2)
    kept.flush()
    os.truncate(checkpoint.saved(tmp_path)[1], 0)
    found = checkpoint.find_newest(tmp_path)
    assert (found.path.name, found.state["updates"]) == (checkpoint.BEST, 1)
    kept.set_aside(path for path, _ in found.skipped)
    assert [path.name for path in checkpoint.saved(tmp_path)] == [checkpoint.BEST]
    with pytest.raises(checkpoint.NoCheckpointError):
        checkpoint.find_newest(tmp_path / "nowhere")


def test_damaged_ones_are_set_aside_and_not_deleted(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep_last=2)
    for step in (1, 2):
        kept.save({"updates": step, "w": torch.ones(9)}, step, best=True)
    kept.flush()
    damage(checkpoint.saved(tmp_path)[2])
    newest = checkpoint.find_newest(tmp_path)
    assert newest.state["updates"] == 1
    kept.set_aside(path for path, _ in newest.skipped)
    (aside,) = tmp_path.glob("damaged-*")
    assert not (tmp_path / checkpoint.BEST).exists()  # the very same damaged file
    for step in (2, 3, 4):
        kept.save({"updates": step, "w": torch.ones(9)}, step)
    kept.flush()
    assert aside.exists()
    names = [path.name[:13] for path in checkpoint.saved(tmp_path)]
    assert names == ["step-00000003", "step-00000004"]
    assert checkpoint.find_newest(tmp_path).skipped == []


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which worlds of 1, 2, 4 and 3 ranks with parts have followed each other."""
    folder = tmp_path_factory.mktemp("shards")
    done = warm.run(
        [sys.executable, "-m", "tests.support.shard_files", str(folder)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_each_world_went_on_from_the_checkpoint_of_the_one_before(worlds: Path) -> None:
    seen = [json.loads((worlds / f"world-{size}.json").read_text()) for size in (1, 2, 4, 3)]
    assert [one["updates"] for one in seen] == [2, 4, 6, 8]
    assert seen[3]["saved"] == ["step-00000007.safetensors", "step-00000008.safetensors"]
    best = Checkpoints(worlds / "legs").best()
    assert best is not None
    assert checkpoint.load(best)["updates"] == 3


def test_a_model_in_one_piece_continues_from_what_ranks_held_in_parts(worlds: Path) -> None:
    state = checkpoint.find_newest(worlds / "legs").state
    model = shard_files.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(8):
        shard_files.step(model, optimizer)
    for name, tensor in model.state_dict().items():  # the worlds have taken the same steps
        torch.testing.assert_close(state["model"][name], tensor)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    shard_files.step(model, optimizer)
