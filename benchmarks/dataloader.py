"""CPU time of a batch: our DataLoader beside torch's, on a dataset of tensors.

    python -m benchmarks.dataloader [--rounds 15]

Both read the same TensorDataset in turns, round by round, so that what else the machine does meets
both. A round's figure is the CPU time of this process and of its workers, over the batches of whole
epochs; the ratio is the median of the rounds' ratios. The draws of `draws` come from torch.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from torch.utils import data

from penstock.loading.dataloader import DataLoader

CASES = [(0, 1, False), (0, 32, False), (0, 256, False), (2, 256, False), (0, 32, True)]
KINDS = {"torch": data.DataLoader, "ours": DataLoader}


class Noisy(data.TensorDataset):
    """Rows with noise on them."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(one + torch.rand(()) for one in super().__getitem__(index))


def used() -> float:
    """Seconds of CPU time of this process and of its children that have ended."""
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, both))


def batch_time(loader: Any, epochs: int) -> float:
    """CPU microseconds a batch."""
    began, batches = used(), 0
    for _ in range(epochs):
        for _ in loader:
            batches += 1
    return (used() - began) / batches * 1e6


def case(workers: int, size: int, draws: bool, rounds: int, rows: int) -> None:
    dataset = (Noisy if draws else data.TensorDataset)(torch.rand(rows, 16), torch.arange(rows))
    epochs = 1 if workers else 4
    times: dict[str, list[float]] = {name: [] for name in KINDS}
    for number in range(rounds + 1):
        for name in sorted(KINDS, reverse=bool(number % 2)):
            loader = KINDS[name](dataset, size, num_workers=workers)
            took = batch_time(loader, epochs)
            if number:  # the first round warms up
                times[name].append(took)
    ratios = [a / b for a, b in zip(times["ours"], times["torch"], strict=True)]
    middle = {name: statistics.median(took) for name, took in times.items()}
    what = "draws" if draws else "draws nothing"
    print(
        f"| {workers} | {size} | {what} | {middle['torch']:.0f} | {middle['ours']:.0f} "
        f"| {statistics.median(ratios):.2f} |"
    )


def start_time(name: str, module: str, rounds: int) -> None:
    """CPU time and memory of a program that imports a class."""
    program = (
        f"import resource; from {module} import DataLoader; "
        "r = resource.getrusage(resource.RUSAGE_SELF); "
        "print(r.ru_utime + r.ru_stime, r.ru_maxrss / 1024)"
    )
    found = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        found.append([float(number) for number in done.stdout.split()])
    seconds, memory = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"| {name} | {seconds:.2f} | {memory:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--imports", type=int, default=5, help="rounds of the imports")
    parser.add_argument("--rows", type=int, default=51_200, help="with workers; else a part of it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("python -m benchmarks.dataloader", *sys.argv[1:])
    print(
        f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, {torch.get_num_threads()} thread"
    )
    print("\n| workers | batch | dataset | torch, us | ours, us | ratio |\n|--|--|--|--|--|--|")
    for workers, size, draws in CASES:
        rows = given.rows if workers else min(given.rows, 128 * max(size, 8))
        case(workers, size, draws, given.rounds, rows)
    print("\n| import | CPU s | MiB |\n|--|--|--|")
    for name, module in {
        "torch": "torch.utils.data",
        "ours": "penstock.loading.dataloader",
    }.items():
        start_time(name, module, given.imports)


if __name__ == "__main__":
    main()
