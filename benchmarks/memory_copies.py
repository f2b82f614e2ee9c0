"""What a copy of a fit's state in memory costs, as ranks that may be started again keep it.

`PYTHONPATH=. python benchmarks/memory_copies.py`. For states of several sizes: how long training
waits for a copy, when it is complete, and how much CPU time it takes, beside a checkpoint that is
written to a disk and flushed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from penstock.addons.memory_copies.memory import Memory
from penstock.distributed.group import Group
from penstock.runs.checkpoint import Checkpoints

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100, 1000], help="in MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disk", type=Path, default=None, help="a folder; default: a new one in .")
    options = parser.parse_args()
    os.environ["TORCHELASTIC_RUN_ID"] = "benchmark"
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {options.rounds}")
    print(f"{'state':>10}  {'':<10} {'waits':>9} {'complete':>9} {'CPU':>9}")
    for size in options.sizes:
        state = {"model": {f"w{i}": torch.randn(size * MIB // 64) for i in range(16)}, "updates": 1}
        memory = Memory("benchmark", 1, Group(), resumed=False)
        with tempfile.TemporaryDirectory(dir=options.disk or ".") as folder:
            disk = Checkpoints(Path(folder), background=True)
            ways: dict[str, tuple[Callable[[int], object], Callable[[], None]]] = {
                "memory": (lambda n, m=memory, s=state: m.keep(lambda: s, n), memory.flush),
                "disk": (lambda n, d=disk, s=state: d.save(s, n), disk.flush),
            }
            for name, (copy, flush) in ways.items():
                waits, complete, cpu = measured(copy, flush, options.rounds)
                print(
                    f"{size:>6} MiB  {name:<10} {waits * 1e3:>6.1f} ms {complete * 1e3:>6.1f} ms "
                    f"{cpu * 1e3:>6.1f} ms",
                    flush=True,
                )
        memory.remove()


def measured(
    copy: Callable[[int], object], flush: Callable[[], None], rounds: int
) -> tuple[float, float, float]:
    """Seconds until training goes on and until the copy is complete, and CPU seconds; medians."""
    found = []
    for number in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        copy(number + 1)
        waited = time.perf_counter() - began
        flush()
        found.append((waited, time.perf_counter() - began, time.process_time() - used))
    waits, complete, cpu = map(statistics.median, zip(*found, strict=True))
    return waits, complete, cpu


if __name__ == "__main__":
    main()
