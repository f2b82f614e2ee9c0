"""What asking for batches, and the runner, cost beside the work itself.

    PYTHONPATH=. python benchmarks/overhead.py [--rounds 7]

    request   the plan's address -> request, a batch of 64 of 10^6 rows in random order
    fetch     request -> batch, of rows that cost nothing, without collating them: us a batch and us
              a sample, from batches of 64 and of 256; of a dataset that says it draws nothing
              (`draws = False`), and of one that does not say
    runner    epochs of 2 ms steps through `fit` against a bare loop over the same batches:
              forward, backward, optimizer; in turns, median of the ratios
    lightning the same through Lightning's Trainer without logger, checkpoints and progress bar,
              where it is installed

Times are of the processor, which other programs take less part in.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock.distributed.group import Group
from penstock.distributed.world import World
from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.order.plan import Plan, Request
from penstock.order.samplers import Random
from penstock.training.adapter import Objective
from penstock.training.loop import fit
from penstock.training.objective import Regression
from penstock.training.step import TrainOptions, TrainStep

ROWS = 1_000_000
ROW = {"x": torch.zeros(3), "y": torch.zeros(())}


class Unsaid:
    """Rows that are there already."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return ROW


class Nothing(Unsaid):
    """The same, and draws nothing."""

    draws = False


class One:
    """Collates nothing: what is left is everything around it."""

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        return {"x": samples[0]["x"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan(Random(ROWS, 0), 64)
    asked = each(lambda step: plan.request(0, step), range(1000), args.rounds)
    print(f"request      {1e6 * asked:.1f} us a batch of 64")
    for dataset, name in ((Nothing(), "draws nothing"), (Unsaid(), "may draw")):
        batch, sample = fetching(dataset, args.rounds)
        print(f"fetch        {name}: {1e6 * batch:.1f} us a batch, {1e6 * sample:.2f} us a sample")
    running(args.rounds)


def each(work: Callable[[Any], Any], items: Iterable[Any], rounds: int) -> float:
    """Seconds of this process's CPU per item: the least of some rounds."""
    items = list(items)
    times = []
    for _ in range(rounds):
        began = time.process_time()
        for item in items:
            work(item)
        times.append(time.process_time() - began)
    return min(times) / len(items)


def fetching(dataset: Unsaid, rounds: int) -> tuple[float, float]:
    """Seconds a batch and a sample."""
    fetch = Fetch(dataset, None, One(), 0)
    costs = {}
    for size in (64, 256):
        plan = Plan(Random(ROWS, 0), size)
        requests = [plan.request(0, step) for step in range(100)]
        costs[size] = each(fetch, requests, rounds)
    sample = (costs[256] - costs[64]) / (256 - 64)
    return costs[64] - 64 * sample, sample


class Busy(nn.Module):
    """Linear, after a fixed amount of computing."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.linear, self.times = nn.Linear(3, 1), times
        self.numbers = torch.rand(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            torch.mm(self.numbers, self.numbers)
        return self.linear(x).squeeze(-1)


def calibrated(seconds: float) -> int:
    """How many of its products make a bare step of about so many seconds."""
    batches = made(60)
    few, many = (
        statistics.median(bare_epoch(batches, times) for _ in range(9)) / 60 for times in (5, 25)
    )
    return max(round(5 + 20 * (seconds - few) / (many - few)), 0)


class Ready(Loader):
    """Batches that are there already, so that loading counts for nothing."""

    def epoch(self, epoch: int, start: int = 0) -> Any:
        return (batch for batch in self.ready)

    ready: list[Batch]


def made(count: int) -> list[Batch]:
    batches = []
    for step in range(count):
        places = np.arange(8) + 8 * step
        fields = {"x": torch.randn(8, 3), "y": torch.randn(8)}
        batches.append(Batch(fields, Request(0, step, places, places, 8), np.arange(8)))
    return batches


def running(rounds: int) -> None:
    batches, times = made(300), calibrated(0.002)
    others = {"runner": our_epoch} | (
        {"lightning": lightning_epoch} if find_spec("lightning") else {}
    )
    taken: dict[str, list[float]] = {name: [] for name in ("bare", *others)}
    for _ in range(rounds):
        for name, epoch in ({"bare": bare_epoch} | others).items():
            taken[name].append(epoch(batches, times) / len(batches))
    print(f"bare         a step {1e3 * statistics.median(taken['bare']):.3f} ms")
    for name in others:
        pairs = list(zip(taken[name], taken["bare"], strict=True))
        ratio = statistics.median(one / bare for one, bare in pairs)
        more = statistics.median(one - bare for one, bare in pairs)
        print(f"{name:<12} {ratio:.3f} of it ({1e6 * more:.0f} us more)")


def bare_epoch(batches: list[Batch], times: int) -> float:
    model = Busy(times)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model.train()
    began = time.process_time()
    for batch in batches:
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - began


def our_epoch(batches: list[Batch], times: int) -> float:
    model = Busy(times)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    objective = Objective(Regression(nn.MSELoss(reduction="none"), {}, ["x"], "y"))
    train_step = TrainStep(model, objective, optimizer, None, TrainOptions(1), Group(World()), 0)
    loader = Ready(Plan(Random(8 * len(batches), 0), 8), Fetch(Nothing(), None, One(), 0))
    loader.ready = batches
    began = time.process_time()
    fit(train_step, loader, None)
    return time.process_time() - began


def lightning_epoch(batches: list[Batch], times: int) -> float:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Busy(times)

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.model(batch["x"]), batch["y"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )

    class Plain:  # a list would be taken for several loaders
        def __init__(self, batches: list[Batch]) -> None:
            self.batches = [dict(batch) for batch in batches]

        def __iter__(self) -> Any:
            return iter(self.batches)

        def __len__(self) -> int:
            return len(self.batches)

    module = Module()
    trainer.fit(module, Plain(batches[:2]))  # what it does once
    trainer.fit_loop.max_epochs = 2
    plain = Plain(batches)
    began = time.process_time()
    trainer.fit(module, plain)
    return time.process_time() - began


if __name__ == "__main__":
    main()
