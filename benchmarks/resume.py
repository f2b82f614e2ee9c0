"""What going on in the middle of an epoch costs: time to the first batch, there and at the start.

    python benchmarks/resume.py --rows 1000000000 --rounds 7

Each measurement is a process of its own that makes a loader over a dataset of that many rows, gets
one batch and ends; those at the two addresses take turns. Imports are timed apart.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRATEGIES = ("random", "sequential", "weighted", "bucket")

CHILD = """
import sys, time
import numpy as np, pandas as pd, torch
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.order.plan import Plan
from penstock.order.samplers import Bucket, Random, Sequential, Weighted

class Rows(torch.utils.data.Dataset):
    def __init__(self, length): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, index): return {"x": torch.tensor(float(index))}

strategy, share = sys.argv[1], float(sys.argv[4])
rows, epoch, workers = (int(sys.argv[place]) for place in (2, 3, 5))
began, cpu = time.perf_counter(), time.process_time()
if strategy == "bucket":
    order = Bucket(rows, 0, pd.DataFrame({"length": np.arange(rows) % 100}), 64)
elif strategy == "weighted":
    order = Weighted(rows, 0, weights=np.ones(rows))
else:
    order = {"random": lambda: Random(rows, 0), "sequential": lambda: Sequential(rows)}[strategy]()
plan = Plan(order, 64)
options = LoaderOptions("process" if workers else "main", workers)
with Loader(plan, Fetch(Rows(rows), None, Stack(), 0), options) as loader:
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "step": int(share * len(plan))})
    next(iter(loader))
    print(time.perf_counter() - began, time.process_time() - cpu)
"""


def first_batch(strategy: str, rows: int, epoch: int, share: float, workers: int) -> list[float]:
    """Wall and CPU seconds of a fresh process from making the loader to its first batch."""
    command = [sys.executable, "-c", CHILD, strategy, *map(str, (rows, epoch, share, workers))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--held-rows", type=int, default=10**7, help="weighted, bucket")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, workers {options.workers}")
    print(
        f"{'strategy':<12} {'rows':>13} {'start':>9} {'resumed':>9} {'ratio':>6} {'CPU ratio':>9}"
    )
    for strategy in STRATEGIES:
        rows = options.rows if strategy in ("random", "sequential") else options.held_rows
        taken: dict[bool, list[list[float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for resumed in (False, True):
                address = (3, 0.5) if resumed else (0, 0.0)
                taken[resumed].append(first_batch(strategy, rows, *address, options.workers))
        wall = [statistics.median(one[0] for one in taken[resumed]) for resumed in (False, True)]
        cpu = [statistics.median(one[1] for one in taken[resumed]) for resumed in (False, True)]
        print(
            f"{strategy:<12} {rows:>13,} {1000 * wall[0]:>6.1f} ms {1000 * wall[1]:>6.1f} ms "
            f"{wall[1] / wall[0]:>6.2f} {cpu[1] / cpu[0]:>9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
