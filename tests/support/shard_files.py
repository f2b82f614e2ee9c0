"""Ranks that save what they hold in parts; `python -m tests.support.shard_files FOLDER` runs all.

Worlds of 1, 2, 4 and 3 processes follow each other, forked from one that has imported torch. Each
goes on from the checkpoint of the world before and leaves its own. <folder>/result.json has what
rank 0 of each saw.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from penstock.distributed.group import Group
from penstock.distributed.parallel import like
from penstock.distributed.world import World
from penstock.runs import checkpoint
from penstock.runs.checkpoint import Checkpoints

PATIENCE = 100  # seconds for a checkpoint on a busy machine; ranks end after twice as many
WORLDS = (1, 2, 4, 3)


def network():
    """Shapes that no number of ranks divides, a weight that is used twice, and a buffer.

    No bias before the batch norm, which takes it away again: of a gradient that is nothing but
    rounding, AdamW makes full steps.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 7), nn.Linear(7, 1)
    )
    model[1].running_mean += 0.5
    return model


def sharded(group):
    import torch._dynamo
    from torch.distributed.fsdp import fully_shard

    model = network()
    mesh = init_device_mesh("cpu", (group.world.size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model, optimizer):
    """The same on every rank, so that the mean over ranks is that of one."""
    torch.manual_seed(1)
    model(torch.randn(6, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model, optimizer, updates):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "updates": updates,
        "metrics": {"loss": float("nan")},
        "betas": (0.9, 0.999),
    }


def restore(model, optimizer, state):
    model.load_state_dict(like(state["model"], model.state_dict()))
    weights = list(model.parameters())
    parts = {
        number: like(values, dict.fromkeys(("exp_avg", "exp_avg_sq"), weights[number]))
        for number, values in state["optimizer"]["state"].items()
    }
    optimizer.load_state_dict({**state["optimizer"], "state": parts})


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def same_as_saved(saved, model, optimizer):
    """Every bit that was saved is what the ranks hold together."""
    for name, tensor in model.state_dict().items():
        assert torch.equal(saved["model"][name], whole(tensor)), name
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            assert torch.equal(saved["optimizer"]["state"][number][name], whole(value)), name


def leg(folder, group):
    """Go on from the last checkpoint, take two steps, save after each."""
    model, optimizer = sharded(group)
    updates = 0
    if checkpoint.saved(folder):
        found = checkpoint.find_newest(folder)
        restore(model, optimizer, found.state)
        updates = found.state["updates"]
        same_as_saved(found.state, model, optimizer)
    group.agree(False)  # nobody deletes what another still reads
    checkpoints = Checkpoints(folder, group, keep_last=2)
    for _ in range(2):
        step(model, optimizer)
        updates += 1
        checkpoints.save(state_of(model, optimizer, updates), updates, best=updates == 3)
    before = state_of(model, optimizer, updates)
    checkpoints.save(before, updates)  # once more, in the place of the first
    kept = {name: whole(t).clone() for name, t in before["model"].items()}
    step(model, optimizer)  # while it is written
    checkpoints.flush()
    group.agree(False)  # the first rank has written it
    for name, tensor in checkpoint.find_newest(folder).state["model"].items():
        assert torch.equal(tensor, kept[name]), name
    group.agree(False)
    return {"saved": [path.name for path in checkpoint.saved(folder)[1:]], "updates": updates}


def world(size, work, folder, store):
    """Fork `size` ranks that do `work`. Returns whether all were done."""
    ranks = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            signal.alarm(2 * PATIENCE)
            os._exit(_rank(rank, size, work, folder, store))
        ranks.append(child)
    return all(os.waitpid(child, 0)[1] == 0 for child in ranks)


def _rank(rank, size, work, folder, store):
    # torch makes its pool of threads anew after a fork; when two threads are first, one fails.
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
        found = work(folder, Group(World(rank, size), dist.new_group(backend="gloo")))
        if rank == 0 and found is not None:
            (folder.parent / f"{store.name}.json").write_text(json.dumps(found))
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(folder):
    torch.set_num_threads(1)
    for size in WORLDS:
        assert world(size, leg, folder / "legs", folder / f"world-{size}"), size


if __name__ == "__main__":
    main(Path(sys.argv[1]))
