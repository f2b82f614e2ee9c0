"""How long until the first line of output and the first step, against the imports alone.

    python benchmarks/startup.py [--rounds 5] [--also FOLDER] [overrides ...]

Runs in turns

    run         the program up to the end of its first training step
    imports     an interpreter that imports the very modules of others that the run had by then, in
                the same order, with `late_imports` as the run has it
    packages    a bare interpreter that imports the same packages, as their own code has it
    look        `--cfg job`
    also        `run` of another checkout, such as the commit before

and prints the medians of their wall and CPU seconds; for a run, when its first line came, and the
ratio to the imports. What is drawn on first use is drawn beforehand, by a run that is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The first step ends the process, after the names of the modules were written down.
STEP = """
import json, os, sys
sys.path.insert(0, {root!r})
from penstock import command, seams
load = seams.runner

def watched(name):
    task = load(name)
    from penstock.training.train_step import TrainStep
    update = TrainStep.update

    def once(self):
        update(self)
        ours = ("penstock", "__main__")
        late = sys.modules.get("penstock.late_imports")
        waiting = late._waiting if late else ()  # they are there, and their code has not run
        names = [name for name in sys.modules if name.split(".")[0] not in ours]
        json.dump([name for name in names if name not in waiting], open({names!r}, "w"))
        os._exit(0)

    TrainStep.update = once
    return task

seams.runner = watched
sys.exit(command.main(sys.argv[1:]))
"""
IMPORTS = """
import contextlib, importlib, json, os, sys
if {late!r}:
    sys.path.insert(0, {root!r})
    from penstock import late_imports
    late_imports.install()
for name in json.load(open({names!r})):
    with contextlib.suppress(Exception):  # made by its package, or a stand-in for another
        importlib.import_module(name)
os._exit(0)  # as the run does: to take the modules to pieces takes a second, too
"""


def timed(command: list[str]) -> dict[str, float]:
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
    if child.returncode:
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
        names = str(Path(folder) / "names.json")
        own = [f"run_dir={folder}/run-${{now:%H%M%S%f}}", *given.overrides]

        def run(root: Path) -> list[str]:
            step = STEP.format(root=str(root), names=names if root == ROOT else os.devnull)
            return [sys.executable, "-c", step, *own]

        def imports(late: bool) -> list[str]:
            code = IMPORTS.format(names=names, late=late, root=str(ROOT))
            return [sys.executable, "-c", code]

        commands = {
            "run": run(ROOT),
            "imports": imports(True),
            "packages": imports(False),
            "look": [sys.executable, "run.py", "--cfg", "job"],
        }
        if given.also:
            commands["also"] = run(given.also.resolve())
        timed(commands["run"])
        print(f"{len(json.loads(Path(names).read_text()))} modules of others until the first step")
        rounds = [
            {name: timed(words) for name, words in commands.items()} for _ in range(given.rounds)
        ]

    def median(name: str, kind: str) -> float:
        return statistics.median(one[name][kind] for one in rounds)

    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"first line after {median('run', 'line'):.2f} s (wall)")
    for kind in ("wall", "cpu"):
        run_seconds, *others = (median(name, kind) for name in commands)
        print(f"{kind}: first step {run_seconds:.2f} s")
        for name, seconds in zip(list(commands)[1:], others, strict=True):
            print(f"    {name} {seconds:.2f} s, ratio {run_seconds / seconds:.2f}")


if __name__ == "__main__":
    main()
