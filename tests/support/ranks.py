"""What each rank does in distributed/test_ranks.py; torchrun starts it with a folder.

Rank 0 leaves what it has seen in <folder>/<world size>.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from torchmetrics.regression import MeanSquaredError, SpearmanCorrCoef

from penstock.order.samplers import Sequential
from tests import port
from tests.port import Group, Regression
from tests.support.resuming import SAMPLERS, STREAMS, Case

# By default a world that divides no batch evenly, and a few cases; all with `make stress`.
ALL = bool(os.environ.get("PENSTOCK_TEST_ALL_RANKS"))
ORDER_OF_WORLDS = (1, 2, 4, 3) if ALL else (1, 3)
LENGTHS = (1, 2, 7, 97, 1000) if ALL else (1, 2, 7, 97)
SIZES = (1, 3, 64)
ALL_CASES = {
    **{f"sampler {name}": Case(name, plain=True) for name in SAMPLERS},
    **{f"stream {name}": Case(stream=name, plain=True) for name in STREAMS},
    "stream shuffled": Case(stream="sharded", buffer=7, plain=True),
    "gradients added up": Case(options={"accumulate": 3}, plain=True),
    "a mean of the weights": Case(options={"ema": 0.8}, plain=True),
    "packed": Case(packed={"split": "tail"}, plain=True),
    "packed, padded, added up": Case(
        packed={}, pad_to=16, options={"accumulate": 3}, balance="tokens ** 2", plain=True
    ),
    "one loss for all": Case(options={"accumulate": 3}, reduction="mean", plain=True),
    "balanced": Case(balance="length ** 2", options={"accumulate": 2}, plain=True),
}
FEW = (
    "sampler random",
    "stream sharded",
    "gradients added up",
    "packed, padded, added up",
    "one loss for all",
    "balanced",
)
CASES = {name: case for name, case in ALL_CASES.items() if ALL or name in FEW}
# Resumed by worlds of other sizes, ranks balanced; validated at its end only, where nobody is asked
# to stop.
LEGS = Case(
    optimizer="adamw", scheduler="one cycle", plain=True, options={"val_every": 3}, balance="length"
)
LEG_STEPS = 3


class Points(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = torch.tensor([index % 3, index % 5, index % 7]) / 7
        return {"x": x, "y": x.sum() + 0.1 * (index % 11)}


def plain_steps(written):
    return [[s.epoch, s.step, s.samples, f"{s.order:016x}", s.digest, s.loss] for s in written]


def fits(folder, group):
    """The steps of every case, by name; and the weights."""
    found = {}
    for name, case in CASES.items():
        weights, written, result, _ = case.fit(
            folder / name, options={"max_epochs": 2}, group=group, strategy="ddp"
        )
        found[name] = {
            "steps": plain_steps(written.steps),
            "order": result.order,
            "weights": weights.tolist(),
            "best": result.best["val/mse"],
        }
    return found


def sharded(folder, group):
    """The same under FSDP."""
    few = {"max_epochs": 1}
    weights, written, _, _ = LEGS.fit(folder / "fsdp", options=few, group=group, strategy="fsdp")
    return {"steps": plain_steps(written.steps), "weights": weights.tolist()}


def validations(group):
    """Loss and metrics of an untrained model for lengths and batch sizes that do not divide."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    found = {}
    for length in LENGTHS:
        for size in SIZES:
            metrics = {"mse": MeanSquaredError()}
            if length > 2:  # a metric that keeps every prediction; it needs a few
                metrics["rank"] = SpearmanCorrCoef()
            objective = Regression(nn.MSELoss(reduction="none"), metrics, ["x"], "y")
            points, order = Points(length), Sequential(length)
            with port.loader(points, order, size, world=group.world) as loader:
                found[f"{length} by {size}"] = port.validate(model, objective, loader, group)
    return found


def leg(folder, group, strategy):
    """Go on where the world before left off, and leave after a few steps."""
    size = group.world.size
    place = ORDER_OF_WORLDS.index(size)
    where = folder / f"leg-{strategy}"
    resume = port.newest(where) if place else None
    last = place + 1 == len(ORDER_OF_WORLDS)
    _, written, _, _ = LEGS.fit(
        where, None if last else LEG_STEPS, resume, group=group, strategy=strategy
    )
    return plain_steps(written.steps)


def work(folder, group: Group):
    return {
        "fits": fits(folder / f"of-{group.world.size}", group),
        "validations": validations(group),
        "ddp leg": leg(folder, group, "ddp"),
    }


def main(folder):
    torch.set_num_threads(1)
    with port.joined() as group:
        found = work(folder, group)
        found["fsdp"] = sharded(folder / f"of-{group.world.size}", group)
        found["fsdp leg"] = leg(folder, group, "fsdp")
        if group.is_first:
            (folder / f"{group.world.size}.json").write_text(json.dumps(found))
        group.agree(False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
