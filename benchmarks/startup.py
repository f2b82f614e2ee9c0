"""How long until the first batch's hash, against importing the libraries alone.

    python benchmarks/startup.py [--rounds 5]

Runs `python run.py task=digest steps=1 loader.num_workers=0` and a bare interpreter that imports
torch, torchvision and hydra, in turns, and prints the medians of their wall and CPU seconds and
the ratio. The embedded data is drawn beforehand, by one run that is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIGEST = [sys.executable, "run.py", "task=digest", "steps=1", "loader.num_workers=0"]
IMPORTS = [sys.executable, "-c", "import torch, torchvision, hydra"]


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    return wall, cpu - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    timed(DIGEST)
    runs = [(timed(IMPORTS), timed(DIGEST)) for _ in range(rounds)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for number, kind in enumerate(("wall", "cpu")):
        imports = statistics.median(run[0][number] for run in runs)
        digest = statistics.median(run[1][number] for run in runs)
        print(
            f"{kind}: imports {imports:.2f} s, digest {digest:.2f} s, ratio {digest / imports:.2f}"
        )


if __name__ == "__main__":
    main()
