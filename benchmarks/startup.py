"""How long until the first step of the default run, against a plain script that makes one.

    python benchmarks/startup.py [--rounds 5] [--also FOLDER] [overrides ...]

Runs in turns

    run         the program up to the end of its first training step
    plain       a script that imports torch and torchvision, and makes one step of AdamW with the
                same model and a batch of the same size
    look        `--cfg job`
    help        `--help`
    typo        a run with a mistake in a key
    also        `run` of another checkout, such as the commit before

and prints the medians of their wall and CPU seconds, and for a run when its first line came. What
is drawn on first use is drawn beforehand, by a run that is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The first step ends the process.
STEP = """
import os, sys
sys.path.insert(0, {root!r})
from penstock import command, seams
load = seams.function

def watched(name):
    task = load(name)
    if name != "penstock.tasks.fit:run":
        return task
    from penstock.training.step import TrainStep
    update = TrainStep.update

    def once(self):
        update(self)
        os._exit(0)

    TrainStep.update = once
    return task

seams.function = watched
sys.exit(command.main(sys.argv[1:]))
"""
PLAIN = """
import os
import torch, torchvision
from penstock.training.models import LandmarkNet
model = LandmarkNet(68)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
image, points = torch.rand(32, 3, 64, 64), torch.rand(32, 136)
optimizer.zero_grad()
(model(image) - points).abs().mean().backward()
optimizer.step()
print("a step", flush=True)
os._exit(0)  # as the run does: to take the modules to pieces takes a second, too
"""


def timed(command: list[str], code: int = 0) -> dict[str, float]:
    """Wall and CPU seconds of a command, and wall seconds until its first line."""
    before, start = os.times(), time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        line = time.perf_counter() - start
        output = child.stdout.read()
    wall, after = time.perf_counter() - start, os.times()
    if child.returncode != code:
        sys.exit(f"{command} ended with {child.returncode}:\n{output.decode()}")
    cpu = after.children_user + after.children_system
    return {"line": line, "wall": wall, "cpu": cpu - before.children_user - before.children_system}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--also", type=Path, help="another checkout")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = [f"run_dir={folder}/run-${{now:%H%M%S%f}}", *given.overrides]

        def run(root: Path) -> list[str]:
            return [sys.executable, "-c", STEP.format(root=str(root)), *own]

        commands = {
            "run": run(ROOT),
            "plain": [sys.executable, "-c", PLAIN],
            "look": [sys.executable, "run.py", "--cfg", "job"],
            "help": [sys.executable, "run.py", "--help"],
            "typo": [sys.executable, "run.py", "batch.sise=8"],
        }
        if given.also:
            commands["also"] = run(given.also.resolve())
        timed(commands["run"])
        rounds = [
            {name: timed(words, 2 * (name == "typo")) for name, words in commands.items()}
            for _ in range(given.rounds)
        ]

    def median(name: str, kind: str) -> float:
        return statistics.median(one[name][kind] for one in rounds)

    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"first line after {median('run', 'line'):.2f} s (wall)")
    for kind in ("wall", "cpu"):
        print(f"{kind}: first step {median('run', kind):.2f} s")
        for name in list(commands)[1:]:
            seconds = median(name, kind)
            print(f"    {name} {seconds:.2f} s, ratio {median('run', kind) / seconds:.2f}")


if __name__ == "__main__":
    main()
