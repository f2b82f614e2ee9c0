"""What a request costs through Ray beside worker processes, and what lies in the object store.

    python -m benchmarks.ray_actors [--workers 2] [--rounds 7] [--pictures 512] [--size 256]

Both backends work on the same requests in turns, round by round, and their batches are compared.

    requests    rows of 16 floats: CPU time of this process, its workers and all of Ray's processes
                over the batches of an epoch, so nearly all of it is the way there and back; less
                what Ray's processes take while nothing is asked
    JPEG        decoded, cropped and normalised: batches a second of an epoch
    window      a consumer that waits, and a window that holds a third of what the actors may be
                ahead: the most bytes that Ray's object store held, beside the window
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch.utils.data import Dataset

from penstock.addons.ray import cluster as ray_cluster
from penstock.addons.ray.cluster import GIB, RayOptions
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.terminal import put

TICKS = os.sysconf("SC_CLK_TCK")


class Rows(Dataset):  # type: ignore[type-arg]
    """Rows of `width` floats, made in a microsecond."""

    def __init__(self, length: int, width: int = 16) -> None:
        self.length = length
        self._row = torch.arange(width, dtype=torch.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self._row + index}


class Pictures(Dataset):  # type: ignore[type-arg]
    """JPEG files in a folder, each decoded to uint8[3, size, size] and made floats."""

    def __init__(self, folder: str, count: int, size: int) -> None:
        self.paths = [f"{folder}/{number}.jpg" for number in range(count)]
        random = np.random.default_rng(0)
        for path in self.paths:
            coarse = random.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
            PIL.Image.fromarray(coarse).resize((size, size)).save(path, quality=90)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        with PIL.Image.open(self.paths[index]) as picture:
            pixels = np.array(picture.convert("RGB"))
        return {"image": torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255)}


def loader_of(dataset: Any, size: int, backend: Any, workers: int, **ray: Any) -> Loader:
    options = LoaderOptions(backend, workers, persistent_workers=True, own=RayOptions(**ray))
    return Loader(Plan(Random(len(dataset), 0), size), Fetch(dataset, None, Stack(), 0), options)


def tree(root: int) -> Iterator[int]:
    """A process and all below it."""
    yield root
    for task in Path(f"/proc/{root}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def cpu_seconds() -> float:
    """CPU time of this process and of all below it that are there."""
    total = 0
    for process in tree(os.getpid()):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def epoch(loader: Loader, number: int) -> tuple[float, float, float]:
    """CPU seconds and seconds of an epoch, and the sum of what came."""
    began, cpu, total = time.perf_counter(), cpu_seconds(), 0.0
    for batch in loader.epoch(number):
        total += float(next(iter(batch.values())).flatten()[::97].double().sum())
    return cpu_seconds() - cpu, time.perf_counter() - began, total


def in_turns(
    loaders: dict[str, Loader], rounds: int
) -> dict[str, list[tuple[float, float, float]]]:
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in loaders}
    for loader in loaders.values():
        epoch(loader, 0)  # starts the workers
    for number in range(1, rounds + 1):
        for name, loader in loaders.items():
            found[name].append(epoch(loader, number))
        sums = {results[-1][2] for results in found.values()}
        assert len(sums) == 1, f"epoch {number} differs: {sums}"
    return found


def requests(workers: int, rounds: int) -> None:
    steps, size = 1000, 8
    data = Rows(steps * size)
    names = ("process", "ray")
    loaders = {name: loader_of(data, size, name, workers) for name in names}
    found = in_turns(loaders, rounds)
    idle = cpu_seconds()
    time.sleep(5)
    idle = (cpu_seconds() - idle) / 5
    each = {
        name: [1e3 * (cpu - idle * wall) / steps for cpu, wall, _ in found[name]] for name in names
    }
    more = [ray - process for ray, process in zip(each["ray"], each["process"], strict=True)]
    walls = {name: statistics.median(wall for _, wall, _ in found[name]) for name in names}
    put(
        f"requests: CPU ms each, process {statistics.median(each['process']):.2f}, ray "
        f"{statistics.median(each['ray']):.2f}; more by {statistics.median(more):.2f} "
        f"({min(more):.2f} to {max(more):.2f}); idle {1e3 * idle:.0f} ms/s; "
        f"wall ms each {1e3 * walls['process'] / steps:.2f} and "
        f"{1e3 * walls['ray'] / steps:.2f}"
    )
    for loader in loaders.values():
        loader.close()


def jpeg(workers: int, rounds: int, pictures: int, side: int, folder: str) -> None:
    size, data = 32, Pictures(folder, pictures, side)
    names = ("process", "ray")
    loaders = {name: loader_of(data, size, name, workers) for name in names}
    found = in_turns(loaders, rounds)
    rate = {name: [pictures / wall for _, wall, _ in found[name]] for name in names}
    ratio = [ray / process for ray, process in zip(rate["ray"], rate["process"], strict=True)]
    cpu = {name: statistics.median(1e3 * c / pictures for c, _, _ in found[name]) for name in names}
    put(
        f"JPEG: pictures/s, process {statistics.median(rate['process']):.0f}, ray "
        f"{statistics.median(rate['ray']):.0f}; ratio {statistics.median(ratio):.3f} "
        f"({min(ratio):.3f} to {max(ratio):.3f}); CPU ms a picture {cpu['process']:.2f} and "
        f"{cpu['ray']:.2f}"
    )
    for loader in loaders.values():
        loader.close()


def window(workers: int) -> None:
    import ray

    size, width = 16, 1 << 18  # 16 MiB a batch
    data = Rows(size * 60, width)
    most = workers * 6 * size * width * 4
    with loader_of(data, size, "ray", workers, window=most / 3 / GIB) as loader:
        held = 0
        for batch in loader.epoch(0):
            time.sleep(0.05)
            there, free = ray.cluster_resources(), ray.available_resources()
            name = "object_store_memory"
            held = max(held, int(there[name] - free.get(name, 0)))
            del batch
    put(
        f"window: {most / 3 / 2**20:.0f} MiB, batches of {size * width * 4 / 2**20:.0f}; the store "
        f"held {held / 2**20:.0f} MiB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--only", choices=["requests", "jpeg", "window"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ray_cluster.kept():
        if given.only in (None, "requests"):
            requests(given.workers, given.rounds)
        if given.only in (None, "jpeg"):
            jpeg(given.workers, given.rounds, given.pictures, given.size, folder)
        if given.only in (None, "window"):
            window(given.workers)


if __name__ == "__main__":
    main()
