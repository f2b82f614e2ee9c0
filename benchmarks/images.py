"""From JPEG files to batches: Penstock beside its peers, in turns, in one run.

    python benchmarks/images.py [--rounds 3] [--peer dali=/path/to/python] [--peer ffcv=...]

The work: read, RandomResizedCrop to 224, flip, normalise, a float32 batch of 64. Two sets of
photograph-like pictures are generated: 500 x 375 and 1600 x 1200, 4:2:0, quality 90. Every peer
runs in a process of its own, with two workers; a round takes each in turn. After a few batches to
warm up it counts CPU time over the whole process tree, images a second, the time to the first batch
after the loader is made, and the tree's memory. Peers that are not installed are left out.

`--run NAME` runs one peer in this process and prints its figures as JSON: that is how the others'
Pythons are used.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import image_peers
from image_peers import BATCH, PACKAGES, PEERS

ROOT = Path(__file__).resolve().parent.parent
SETS = {"500x375": (500, 375, 96, 2048, 40), "1600x1200": (1600, 1200, 32, 640, 10)}
WARM = 4
SETTLE = 3.0  # seconds in which all that is made ahead is made
OURS = ["penstock native", "penstock pure"]
FLOORS = ["floor", "floor, full decode alone"]


def generate(folder: Path, width: int, height: int, distinct: int, count: int) -> None:
    """Pictures with about the spectrum of photographs (f^-1.45), and a little noise."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    for number in range(distinct):
        fields = []
        for _ in range(3):
            phase = random.normal(size=frequency.shape) + 1j * random.normal(size=frequency.shape)
            field = np.fft.irfft2(phase / frequency**1.45, (height, width))
            fields.append(field / field.std())
        pixels = 120 + 45 * (0.75 * fields[0][..., None] + 0.35 * np.stack(fields, -1))
        pixels += random.normal(size=(height, width, 1)) * 1.2
        path = folder / f"class{number % 2}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        picture.save(path, quality=90, subsampling="4:2:0")
        for copy in range(number + distinct, count, distinct):
            os.link(path, path.with_name(f"{copy:05}.jpg"))


def tree() -> list[int]:
    """This process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [os.getpid()]
    for process in found:
        found += parents.get(process, [])
    return found


def cpu_seconds() -> float:
    """User and system time of the tree, with what has ended in it."""
    ticks = 0
    for process in tree():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def shared() -> int:
    """KiB of shared memory in the whole system."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:"))


SHARED_BEFORE = shared()


def memory() -> float:
    """What the tree takes, in MiB: PSS, and shared memory as the system counts it.

    Batches on their way from worker processes lie in shared memory that no process has mapped, so
    that PSS alone would leave them out.
    """
    total = shared() - SHARED_BEFORE
    for process in tree():
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        total += sizes["Pss"] - sizes.get("Pss_Shmem", 0)
    return total / 1024


def ours(name: str, folder: Path, workers: int) -> Iterator[Any]:
    import penstock

    config = penstock.compose(
        "dataset=image_folder",
        f"dataset.root={folder}",
        "data.split.val=0.0",
        "transform=images_fast",
        f"transform.train.decode.decoder={name.split()[1]}",
        "loader=fast",
        f"loader.num_workers={workers}",
        "batch.size=64",
        "batch.tail=drop",
        "trainer.device=cpu",
        "task=digest",  # which imports no metrics
    )
    from penstock import build_train_loader

    yield None
    loader = build_train_loader(config)
    while True:
        for batch in loader:
            assert batch["image"].shape == (BATCH, 3, 224, 224)
            yield batch


def measure(name: str, folder: Path, workers: int, batches: int) -> dict[str, float]:
    """Figures of one peer in this process."""
    run = ours if name in OURS else getattr(image_peers, PEERS[name])
    work = run(name, folder, workers)
    next(work)  # everything is imported
    start = time.perf_counter()
    next(work)
    first = time.perf_counter() - start
    return {"first": first, **steady(work, WARM, batches)}


def steady(work: Iterator[Any], warm: int, batches: int) -> dict[str, float]:
    """CPU milliseconds an image, images/s and memory, after `warm` batches that do not count.

    Memory is taken while nothing is asked for and everything that is made ahead lies there: in the
    middle of the work it would depend on how far each has come just then.
    """
    for _ in range(warm):
        next(work)
    before, start = cpu_seconds(), time.perf_counter()
    for _ in range(batches):
        next(work)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - before
    images = batches * BATCH
    time.sleep(SETTLE)
    return {"cpu": cpu / images * 1e3, "rate": images / seconds, "memory": memory()}


def floors(folder: Path, size: str, workers: int) -> dict[str, float]:
    """CPU milliseconds an image of benchmarks/floor.c, with as many at work as there are workers.

    Cores share their memory and perhaps their arithmetic units: alone, one is faster.
    """
    program = folder.parent / "floor"
    source = [
        str(ROOT / "pipeline/native" / name)
        for name in ("region.c", "resample.c", "resample_avx2.c")
    ]
    flags = ["-O3", "-std=gnu11", "-ffp-contract=off", f"-I{ROOT}/pipeline/native"]
    source.append(str(ROOT / "benchmarks/floor.c"))
    command = ["gcc", *flags, *source, "-o", str(program), "-ljpeg", "-lm"]
    subprocess.run(command, check=True)
    files = sorted(map(str, folder.rglob("*.jpg")))[:128]
    found = {}
    for full, name in enumerate(FLOORS):
        command = [str(program), *size.split("x"), "4", str(full), *files]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(workers)]
        found[name] = statistics.fmean(float(one.communicate()[0]) for one in running)
    return found


def here(package: str, python: str) -> str | None:
    """The version of a package in another Python; None if it is not there."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def one(name: str, python: str, arguments: list[str], script: str = __file__) -> dict[str, float]:
    """Figures of one contender, which a Python of its own measures."""
    command = [python, script, "--run", name, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(size: str, found: dict[str, list[dict[str, float]]]) -> None:
    """A table of medians."""
    middle = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    print(f"\n### {size}\n\n| | CPU ms/image | images/s | first batch, s | memory, MiB |")
    print("|---|---|---|---|---|")
    for name, figures in middle.items():
        rest = [
            f"{figures[k]:{f}}" if k in figures else ""
            for k, f in (("rate", ".0f"), ("first", ".2f"), ("memory", ".0f"))
        ]
        print(f"| {name} | {figures['cpu']:.3f} | {' | '.join(rest)} |")
    best = [figures for name, figures in middle.items() if name.startswith("DALI")]
    for name in OURS:
        ratios = [f"{middle[name]['cpu'] / middle['floor']['cpu']:.2f} of the floor"]
        if best:
            cpu, rate = min(b["cpu"] for b in best), max(b["rate"] for b in best)
            ratios.append(f"{middle[name]['cpu'] / cpu:.2f} of DALI's best CPU time")
            ratios.append(f"{middle[name]['rate'] / rate:.2f} of its images/s")
        plain = middle.get("torchvision, decode_jpeg + v2")
        if plain:
            ratios.append(f"{middle[name]['cpu'] / plain['cpu']:.2f} of decode_jpeg's CPU time")
        print(f"\n{name}: {', '.join(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "benchmark_images")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--only", help="peers by name, separated by ';'; default: all")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(measure(given.run, given.folder, given.workers, given.batches)))
        return
    pythons = dict(peer.split("=", 1) for peer in given.peer)
    names = dict.fromkeys(OURS, sys.executable)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {importlib.metadata.version('torch')}, "
        f"Pillow {importlib.metadata.version('pillow')}"
    )
    for name, kind in PEERS.items():
        python = pythons.get(kind, sys.executable)
        version = here(PACKAGES[kind], python)
        if version and (given.only is None or name in given.only.split(";")):
            names[name] = python
            print(f"{name}: {PACKAGES[kind]} {version}")
    for size, (width, height, distinct, count, batches) in SETS.items():
        folder = given.data / size
        if not folder.exists():
            generate(folder, width, height, distinct, count)
        arguments = [
            "--folder",
            str(folder),
            "--workers",
            str(given.workers),
            "--batches",
            str(batches),
        ]
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(given.rounds):
            for name, milliseconds in floors(folder, size, given.workers).items():
                found.setdefault(name, []).append({"cpu": milliseconds})
            for name, python in names.items():
                found.setdefault(name, []).append(one(name, python, arguments))
        show(size, found)


if __name__ == "__main__":
    main()
