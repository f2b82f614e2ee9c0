"""From making a loader to its first batch: Penstock, a commit before, and DALI, in turns.

    python benchmarks/first_batch.py [--rounds 7] [--before CHECKOUT] [--dali PYTHON]

The work and the pictures of benchmarks/images.py, two threads. Imports and the composition of the
configuration are not counted; listing the folder, building plan, fetch and loader, and starting
threads are. Each round takes everyone once, in a process of its own. Prints seconds until the first
batch, and CPU seconds of the process tree until then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import images

ROOT = Path(__file__).resolve().parent.parent


def measure(name: str, folder: Path) -> tuple[float, float]:
    """Seconds and CPU seconds until the first batch, in this process."""
    run = images.ours if name in images.OURS else getattr(images.image_peers, images.PEERS[name])
    work = run(name, folder, 2)
    next(work)  # everything is imported
    cpu, start = images.cpu_seconds(), time.perf_counter()
    next(work)
    return time.perf_counter() - start, images.cpu_seconds() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="another checkout, with its C built")
    parser.add_argument("--dali", help="a Python that has nvidia-dali")
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "benchmark_images")
    parser.add_argument("--sizes", nargs="*", default=list(images.SETS))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(measure(given.run[0], Path(given.run[1]))), flush=True)
        os._exit(0)  # what is made ahead is nobody's
    who = {"Penstock": (ROOT, images.OURS[0], sys.executable)}
    if given.before:
        who["before"] = (given.before.resolve(), images.OURS[0], sys.executable)
    if given.dali:
        for name in ("DALI", "DALI, fast IDCT"):
            who[name] = (ROOT, name, given.dali)
    print("| | first batch, s | shortest | longest | CPU s |\n|---|---|---|---|---|")
    for size in given.sizes:
        folder = given.data / size
        if not folder.exists():
            width, height, distinct, count, _ = images.SETS[size]
            images.generate(folder, width, height, distinct, count)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in who}
        for _ in range(given.rounds):
            for name, (root, kind, python) in who.items():
                command = [python, __file__, "--run", kind, str(folder)]
                environment = {**os.environ, "PYTHONPATH": str(root)}
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, env=environment
                )
                taken[name].append(json.loads(done.stdout.splitlines()[-1]))
        for name, runs in taken.items():
            seconds, cpu = zip(*runs, strict=True)
            middle = statistics.median(seconds)
            print(
                f"| {name}, {size} | {middle:.3f} | {min(seconds):.3f} | {max(seconds):.3f} | "
                f"{statistics.median(cpu):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
