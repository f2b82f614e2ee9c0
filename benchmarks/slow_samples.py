"""The share of the time that a consumer waits where 1 % of the samples are 50 times slower.

    PYTHONPATH=. python benchmarks/slow_samples.py [--rounds 5] [--kind stall|compute]

A sample takes `--sample` milliseconds, a slow one 50 times as long: asleep, as a stalled read is
("stall"), or on a core ("compute"). The consumer sleeps for a step: the mean time of a batch over
the workers, over `--load`, so that it would not wait at all if all batches were equal.
Loaders take turns, round by round, over the same samples in the same order:

    torch        torch's DataLoader, in order
    process      Penstock's loader, backend=process; thread likewise
      0, 4       `slow_memory` for so many batches
      costs      knows the time of each sample beforehand

Another checkout takes part by `--other name=FOLDER`. Each loader runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils import data

SLOWER = 50
SHARE = 100  # one in so many
WORKERS = 4
WIDTH = 256
_LATE = 0.02  # seconds
KINDS = ("", " 0", " 4", " 4 costs")


local = threading.local()  # when the last sample of this worker was due


class Slow(data.Dataset[Any]):
    """Samples of which one in a hundred takes long, at rows that do not repeat themselves."""

    draws = False

    def __init__(self, rows: int, seconds: float, computes: bool) -> None:
        slow = torch.rand(rows, generator=torch.Generator().manual_seed(7)) < 1 / SHARE
        self.seconds = torch.where(slow, SLOWER * seconds, seconds).tolist()
        self.computes = computes

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        seconds = self.seconds[index]
        if self.computes:
            ends = time.thread_time() + seconds
            while time.thread_time() < ends:
                pass
        else:
            # Where the machine is busy it wakes late, which the next sample makes up for.
            now = time.perf_counter()
            due = max(getattr(local, "due", 0.0), now - _LATE) + seconds
            local.due = due
            time.sleep(max(due - now, 0.0))
        return {"x": torch.full((WIDTH,), index)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=["stall", "compute"], default="stall")
    parser.add_argument("--sample", type=float, default=3.0, help="milliseconds")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--other", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(waited(args, args.one)))
        return
    here = ("torch", *(f"{one}{more}" for one in ("process", "thread") for more in KINDS))
    loaders = {name: (name, str(Path.cwd())) for name in here}
    for other in args.other:
        name, _, folder = other.partition("=")
        loaders |= {f"{name} {kind}": (kind, folder) for kind in ("process", "thread")}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in loaders}
    for number in range(args.rounds):
        for name in sorted(loaders, reverse=bool(number % 2)):
            kind, folder = loaders[name]
            command = [sys.executable, __file__, *sys.argv[1:], "--one", kind]
            done = subprocess.run(
                command,
                env=os.environ | {"PYTHONPATH": folder},
                check=True,
                capture_output=True,
                text=True,
                cwd=folder,
            )
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(number, name, done.stdout.strip(), file=sys.stderr, flush=True)
    base = statistics.median(one["share"] for one in found["torch"])
    print(f"{args.kind}, {args.workers} workers, batches of {args.batch}, load {args.load}")
    for name, runs in found.items():
        share = statistics.median(one["share"] for one in runs)
        spread = " ".join(f"{one['share']:.3f}" for one in sorted(runs, key=lambda r: r["share"]))
        cpu = statistics.median(one["cpu"] for one in runs)
        print(f"| {name} | {100 * share:.1f} % | {share / base:.2f} | {cpu:.1f} | {spread}")
    sums = {one["sum"] for runs in found.values() for one in runs}
    print("the same batches" if len(sums) == 1 else f"DIFFERENT batches: {sums}")


def waited(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Share of the time waited, seconds of CPU, a number that depends on all batches in order."""
    torch.set_num_threads(1)
    dataset = Slow(args.batch * args.steps, args.sample / 1000, args.kind == "compute")
    step = sum(dataset.seconds) / args.steps / args.workers / args.load
    batches = opened(dataset, args, kind)
    waiting, total = 0.0, 0
    began = asked = time.perf_counter()
    for number, batch in enumerate(batches):
        waiting += time.perf_counter() - asked if number else 0.0
        began = began if number else time.perf_counter()  # workers have started
        total = (total * 31 + int(batch["x"][:, 0].sum())) % (1 << 61)
        time.sleep(step)
        asked = time.perf_counter()
    share = waiting / (time.perf_counter() - began)
    del batches
    used = os.times()
    cpu = used.user + used.system + used.children_user + used.children_system
    return {"share": share, "sum": total, "cpu": cpu}


def opened(dataset: Slow, args: argparse.Namespace, kind: str) -> Iterable[Any]:
    if kind == "torch":
        return data.DataLoader(dataset, args.batch, num_workers=args.workers)
    from penstock.loading.collate import Stack
    from penstock.loading.fetch import Fetch
    from penstock.loading.loader import Loader
    from penstock.loading.workers.options import LoaderOptions
    from penstock.order.plan import Plan
    from penstock.order.samplers import Sequential

    backend, *words = kind.split()
    room = next((int(word) for word in words if word.isdigit()), None)
    more: Any = {} if room is None else {"slow_memory": room * args.batch * WIDTH * 8}
    options = LoaderOptions(backend, args.workers, **more)  # type: ignore[arg-type]
    known: Any = {"costs": dataset.seconds} if "costs" in words else {}
    loader = Loader(
        Plan(Sequential(len(dataset)), args.batch),
        Fetch(dataset, None, Stack(), 0),
        options,
        **known,
    )
    return loader.epoch(0)


if __name__ == "__main__":
    main()
