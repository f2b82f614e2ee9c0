"""Runs in lanes on several ranks of this machine, and what must be equal at their ends."""

import json
import math
import os
import sys

import torch

from penstock.runs import checkpoint
from tests import warm
from tests.ports import free_port
from tests.program import ROOT, run

QUIET = (
    "tracker=none",
    "trainer.pictures=false",
    "trainer.report=false",
    "trainer.baseline=false",
    "trainer.progress=none",
    "trainer.ledger=true",
    "trainer.checkpoint.background=false",
    "loader.num_workers=0",
    "loader.prefetch_factor=null",
    "loader.persistent_workers=null",
)
# What is measured by the clock, or counts ranks.
MEASURED = ("seconds", "waited", "wait_share", "per_second", "ranks_", "rank_wait", "ms/")


class World:
    """Ranks of one program, started as a launcher does.

    Args:
        log: gets what they write.
    """

    def __init__(self, log, count, *words):
        self.log = log
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        place |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "run.py", "distributed=ddp", *words]
        with log.open("a") as output:
            self.ranks = [
                warm.start(
                    command,
                    cwd=ROOT,
                    env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=output,
                    stderr=output,
                )
                for rank in range(count)
            ]

    def wait(self):
        """The exit codes of all; that of a signal is negative."""
        return [rank.wait() for rank in self.ranks]

    def runs(self):
        return all(rank.poll() is None for rank in self.ranks)

    def signal(self, number, ranks):
        for rank in ranks:
            self.ranks[rank].send_signal(number)


def on_ranks(folder, count, *words):
    """Run the program on that many ranks, to its end."""
    world = World(folder / f"{count}.log", count, *words)
    assert set(world.wait()) == {0}, world.log.read_text()


def verify(capsys, first, second):
    """What `task=diff` says of two runs."""
    return run(capsys, "task=diff", f"runs=[{first},{second}]")


def steps_of(folder):
    """How many batches its ledger has."""
    path = folder / "ledger.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def differences(first, second):
    """How many tensors the last checkpoint of a run has; where it, the metrics and the ledger
    differ from another's by a bit, as texts.
    """
    one, other = (dict(_everything(folder)) for folder in (first, second))
    keys = [key for key in one | other if not any(word in key for word in MEASURED)]
    pairs = {key: (one.get(key), other.get(key)) for key in keys}
    tensors = sum(isinstance(value, torch.Tensor) for value, _ in pairs.values())
    return tensors, [f"{key}: {pair}"[:300] for key, pair in pairs.items() if not _same(*pair)]


def _everything(folder):
    yield from _leaves(checkpoint.find_newest(folder).state, "state")
    for name in ("metrics.jsonl", "ledger.jsonl"):
        lines = (folder / name).read_text().splitlines()
        yield from _leaves([json.loads(line) for line in lines], name)


def _leaves(value, key):
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _leaves(item, f"{key}.{name}")
    else:
        yield key, value


def _same(first, second):
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        alike = first.shape == second.shape and first.dtype == second.dtype
        return alike and _bytes(first) == _bytes(second)
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    return type(first) is type(second) and first == second


def _bytes(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
