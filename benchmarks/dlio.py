"""DLIO, a third party's benchmark of data loading, with our loaders plugged in beside torch's.

DLIO generates files, "trains" by sleeping for the time that a step would compute, and reports the
accelerator's utilisation: the compute time of an epoch by the time that it took, without its first
step. Here the compute time falls until utilisation falls under 90 % (70 % for CosmoFlow); the
result is the shortest at which a loader still holds. Set it up in an environment of its own, which
reads torch from this one's:

    python -m venv ENV
    echo SITE_PACKAGES_OF_THIS_ENVIRONMENT > ENV/lib/python3.11/site-packages/shared.pth
    ENV/bin/pip install --no-deps dlio-benchmark==2.0.0 mpi4py mpich psutil pydftracer==1.0.4
    PYTHONPATH=. OMP_NUM_THREADS=1 ENV/bin/python -m benchmarks.dlio --data FOLDER [--rounds 3]

It writes 600 MB of files to FOLDER/WORKLOAD, and `--delete` deletes those in the end. All loaders
read the same files, with two workers and four batches ahead; each measurement is a process of its
own, in turns.

    as DLIO has it    files are read and decoded by DLIO's reader, and one array is delivered for
                      all: torch's loader as shipped; the same with a reader that formats no
                      messages (benchmarks/dlio_loaders.py); and our DataLoader with that reader
    real crops        a random crop of 224 of each file is delivered, flipped, normalised, float32:
                      torchvision in torch's loader, and ours, from files and from packed pixels

Files are in the system's cache. Which samples were delivered is counted in epochs of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKERS, AHEAD = 2, 4
FALL = 0.9  # from one compute time to the next


@dataclass(frozen=True)
class Workload:
    """One of DLIO's, scaled down.

    Attributes:
        dataset: keys of DLIO's section of that name.
        batch: samples of a step.
        limit: utilisation that has to be held.
        scale: what was made smaller, for the table.
    """

    dataset: dict[str, Any]
    batch: int
    limit: float
    scale: str


WORKLOADS = {
    "resnet50": Workload(
        {
            "format": "jpeg",
            "num_files_train": 320,
            "num_subfolders_train": 2,
            "record_length": 114660,
            "record_length_resize": 150528,
        },
        16,
        0.9,
        "320 JPEG files of its size in place of 1,281,024 records of TFRecord; batch 16, not 400",
    ),
    "unet3d": Workload(
        {
            "format": "npz",
            "num_files_train": 168,
            "record_length": 146600628 // 64,
            "record_length_stdev": 68341808 // 64,
            "record_length_resize": 2097152 // 64,
        },
        7,
        0.9,
        "records and what is delivered of them 1/64; as many files (168) and batches of 7",
    ),
    "cosmoflow": Workload(
        {
            "format": "npz",
            "num_files_train": 256,
            "record_length": 2828486 // 4,
            "record_length_stdev": 71311 // 4,
        },
        1,
        0.7,
        "records 1/4; 256 npz files in place of 524,288 TFRecords; batch 1",
    ),
}
SHIPPED = "torch, DLIO's reader as shipped"
CONTENDERS = {  # the loader's class; whether it has a lean reader
    SHIPPED: ("Torch", False),
    "torch": ("Torch", True),
    "Penstock DataLoader, processes": ("Processes", True),
    "Penstock DataLoader, threads": ("Threads", True),
    "torch, real crops": ("Crops", False),
    "Penstock, real crops": ("OurCrops", False),
    "Penstock, real crops, packed": ("OurPackedCrops", False),
}


def contenders(workload: str) -> list[str]:
    """Those that there are for a workload; crops are of pictures."""
    return [name for name in CONTENDERS if workload == "resnet50" or "crops" not in name]


def settings(workload: str, name: str, data: Path, epochs: int) -> dict[str, Any]:
    """DLIO's configuration of a run."""
    given, (loader, lean) = WORKLOADS[workload], CONTENDERS[name]
    kind = "Image" if given.dataset["format"] == "jpeg" else "Npz"
    reader: dict[str, Any] = {
        "data_loader": "pytorch",
        "data_loader_sampler": "index",
        "batch_size": given.batch,
        "data_loader_classname": f"benchmarks.dlio_loaders.{loader}",
        "read_threads": WORKERS,
        "prefetch_size": AHEAD,
        "file_shuffle": "seed",
        "sample_shuffle": "seed",
    }
    if lean:
        reader["reader_classname"] = f"benchmarks.dlio_loaders.Lean{kind}Reader"
    folder = data / workload / "files"
    return {
        "framework": "pytorch",
        "model": workload,
        "reader": reader,
        "workflow": {"generate_data": not folder.exists(), "train": True},
        "dataset": {"data_folder": str(folder), **given.dataset},
        "output": {"folder": str(data / workload / "output")},
        "train": {"epochs": epochs, "computation_time": 0.001},
        "metric": {"au": given.limit},
    }


class Run:
    """DLIO in this process, for one loader."""

    def __init__(self, workload: str, name: str, data: Path, epochs: int) -> None:
        os.environ["DFTRACER_ENABLE"] = "0"  # writes no trace of each call
        if find_spec("tensorflow") is None:  # imported for a profiler that does not run
            sys.modules["tensorflow"] = module_from_spec(ModuleSpec("tensorflow", None))
        from dlio_benchmark.main import DLIOBenchmark
        from dlio_benchmark.utils.utility import DLIOMPI
        from omegaconf import OmegaConf

        DLIOMPI.get_instance().initialize()
        self.benchmark = DLIOBenchmark(OmegaConf.create(settings(workload, name, data, epochs)))
        self.benchmark.initialize()

    def utilisation(self, seconds: float) -> float:
        """DLIO's own figure, a mean of its epochs, of steps that compute so long."""
        from dlio_benchmark.utils.statscounter import StatsCounter

        self.benchmark.stats = StatsCounter()
        self.benchmark.computation_time = seconds
        self.benchmark.run()
        return float(self.benchmark.stats.summary["metric"]["train_au_mean_percentage"]) / 100

    def holds(self, seconds: float, limit: float) -> bool:
        """Whether steps that compute so long have the utilisation, once in two trials."""
        return any(self.utilisation(seconds) >= limit for _ in range(2))

    def shortest(self, limit: float) -> float:
        """Seconds: the shortest that holds `limit`, looked for from somewhat above it."""
        brief = 1e-4
        seconds = (
            4 / 3 * limit * brief / self.utilisation(brief)
        )  # a step then takes what data does
        while not self.holds(seconds, limit):
            seconds /= FALL
        while self.holds(seconds * FALL, limit):
            seconds *= FALL
        return seconds

    def cpu(self) -> float:
        """Seconds of CPU a sample, of all processes, from the second epoch alone."""
        self.benchmark.computation_time = 1e-4
        taken = []
        for epochs in (1, 2):
            self.benchmark.epochs = epochs
            before = tree_seconds()
            self.benchmark.run()
            taken.append(tree_seconds() - before)
        one, two = taken
        return (two - one) / self.benchmark.num_files_train

    def delivered(self) -> list[dict[int, int]]:
        """For each epoch, how often each sample was handed to the training."""
        from benchmarks.dlio_loaders import numbers

        epochs: dict[int, Counter[int]] = {}

        def compute(batch: Any, epoch: int, step: int, seconds: float) -> None:
            epochs.setdefault(epoch, Counter()).update(numbers(batch))

        self.benchmark.framework.compute = compute
        self.benchmark.run()
        return list(epochs.values())


def tree_seconds() -> float:
    """User and system time of this process and all below it, with what has ended there."""
    import psutil

    this = psutil.Process()
    return sum(sum(one.cpu_times()[:4]) for one in (this, *this.children(recursive=True)))


def measure(workload: str, name: str, data: Path, epochs: int) -> dict[str, float]:
    """One measurement in a process of its own; seconds."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.dlio",
        "--data",
        str(data),
        "--epochs",
        str(epochs),
        "--run",
        workload,
        name,
    ]
    found: dict[str, float] = call(command, {})
    return found


def call(command: list[str], more: dict[str, str]) -> Any:
    """The JSON in the last line of a program's output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def covered(workload: str, name: str, data: Path) -> str:
    """What two epochs delivered, in words."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.dlio",
        "--data",
        str(data),
        "--epochs",
        "2",
        "--count",
        "--run",
        workload,
        name,
    ]
    found, files = [], WORKLOADS[workload].dataset["num_files_train"]
    for epoch in call(command, {"DLIO_STAMPED": "1"}):
        once = sum(count == 1 for count in epoch.values())
        more = sum(count > 1 for count in epoch.values())
        found.append(f"{once} once, {more} more often, {files - len(epoch)} never")
    return found[0] if len(set(found)) == 1 else "; ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for files; not the repo's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1, help="of each measurement")
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--only", action="append", choices=CONTENDERS, help="these loaders")
    parser.add_argument("--delete", action="store_true", help="the files, in the end")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run = Run(*given.run, given.data, given.epochs)
        limit = WORKLOADS[given.run[0]].limit
        found: Any = run.delivered() if given.count else None
        found = found or {"shortest": run.shortest(limit), "cpu": run.cpu()}
        print("\n" + json.dumps(found))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for workload in given.workload or WORKLOADS:
        scale = WORKLOADS[workload].scale
        names = [name for name in contenders(workload) if name in (given.only or CONTENDERS)]
        print(f"\n### {workload}: {WORKLOADS[workload].limit:.0%}\n\n{scale}\n")
        counts = {name: covered(workload, name, given.data) for name in names if name != SHIPPED}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(given.rounds):
            for name in names:
                runs[name].append(measure(workload, name, given.data, given.epochs))
                print(f"{name}: {runs[name][-1]}", file=sys.stderr, flush=True)
        table(runs, counts)
        if given.delete:
            shutil.rmtree(given.data / workload)


def table(runs: dict[str, list[dict[str, float]]], counts: dict[str, str]) -> None:
    """Medians, and medians of the ratios within a round."""
    print("| | shortest step, ms | range | of torch's | CPU ms a sample | of torch's | delivered |")
    print("|---|---|---|---|---|---|---|")
    for name, found in runs.items():
        base = runs.get("torch, real crops" if "crops" in name else "torch", [])
        cells = []
        for key in ("shortest", "cpu"):
            times = [1e3 * run[key] for run in found]
            cells.append(f"{statistics.median(times):.2f}")
            if key == "shortest":
                cells.append(f"{min(times):.2f} to {max(times):.2f}")
            ratios = [run[key] / other[key] for run, other in zip(found, base, strict=False)]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        print(f"| {name} | {' | '.join(cells)} | {counts.get(name, '')} |", flush=True)


if __name__ == "__main__":
    main()
