"""Whether a GPU has to wait for pictures: the loader, the training step, and both together.

    python benchmarks/gpu.py [--rounds 3] [--batch 256] [--batches 120] [--workers 16]

The work: JPEG files of 500 x 375 (generated, 4:2:0, quality 90) to RandomResizedCrop 224, flip,
normalised; ResNet-50, bf16 autocast, channels last, SGD with momentum. Four ways to load:

    default     transform=images in worker processes, floats cross to the device
    fast        transform=images_fast in threads: only the crop is decoded, natively
    packed      256 x 256 pixels decoded beforehand; whole batches are transformed on the device
    nvjpeg      files cross to the device and are decoded there

Printed are images/s of the loader alone (batches on the device), of training on one batch that is
there already, of both together, and the share of time that the GPU waited: 1 - together / training.
A round takes every way in turn, each in a process of its own; medians. The floor is the C program
of benchmarks/images.py (region decode, resize, flip, normalise), times the cores.

`--run NAME` runs one here and prints its figures as JSON. `--device cpu` is for trying it out.
"""

from __future__ import annotations

import argparse
import itertools
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

from images import ROOT, floors, generate

SIZE, SIDE = "500x375", 224
PICTURES, DISTINCT = 16384, 96
AHEAD = 2  # batches a worker
_ON_DEVICE = [
    "transform=images_batch",
    "transform.train.resize=null",
    "transform.val.resize=null",
    f"transform.train_batch.crop.size=[{SIDE},{SIDE}]",
    "transform.train_batch.crop.scale=[0.08,1.0]",
    "transform.train_batch.colors=null",
    "transform.train_batch.mixup=null",
    "transform.train_batch.cutmix=null",
]
WAYS = {
    "default": [
        "transform=images",
        f"transform.train.crop.size=[{SIDE},{SIDE}]",
        "transform.train.crop.scale=[0.08,1.0]",
    ],
    "fast": ["transform=images_fast", "loader=fast"],
    "packed": [*_ON_DEVICE, "data.packed=auto", "pack.size=256", "loader=threads"],
    "nvjpeg": ["transform=images_nvjpeg", "loader=fast"],
}


def batches(name: str, given: argparse.Namespace) -> Iterator[Any]:
    """Pictures and labels on the device, without end."""
    import penstock

    folder = given.data / SIZE
    config = penstock.compose(
        "dataset=image_folder",
        f"dataset.root={folder}",
        "data.split.val=0.0",
        f"batch.size={given.batch}",
        "batch.tail=drop",
        f"trainer.device={given.device}",
        f"cache_dir={given.data / 'cache'}",
        *WAYS[name],
        f"loader.num_workers={given.workers}",
        f"loader.prefetch_factor={AHEAD}",
        "task=digest",
    )
    loader = penstock.build_train_loader(config)
    for epoch in itertools.count():
        for batch in loader.epoch(epoch):
            yield batch["image"], batch["label"]


class Training:
    """Steps of a ResNet-50."""

    def __init__(self, device: str) -> None:
        import torch
        import torchvision

        self._device = torch.device(device)
        torch.backends.cudnn.benchmark = True
        model = torchvision.models.resnet50(num_classes=2).to(self._device)
        self._model = model.to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.1, momentum=0.9)

    def step(self, image: Any, label: Any) -> None:
        import torch

        image = image.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._model(image), label)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()

    def wait(self) -> None:
        """Until everything that was asked for is done."""
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize()


def measure(name: str, given: argparse.Namespace) -> dict[str, float]:
    """Images a second: of the loader, of training, of both."""
    work, training = batches(name, given), Training(given.device)
    first = next(work)
    for _ in range(given.warm):
        training.step(*first)

    def rate(step: Any) -> float:
        for _ in range(
            AHEAD * given.workers
        ):  # what was made while nobody asked counts for nothing
            next(work)
        training.wait()
        start = time.perf_counter()
        for _ in range(given.batches):
            step()
        training.wait()
        return float(given.batches * given.batch / (time.perf_counter() - start))

    def both() -> None:
        training.step(*next(work))

    loaded = rate(lambda: next(work))
    together = rate(both)
    trained = rate(lambda: training.step(*first))
    return {
        "loader": loaded,
        "training": trained,
        "together": together,
        "waited": max(0.0, 1 - together / trained),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "benchmark_gpu")
    parser.add_argument("--run", choices=list(WAYS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(measure(given.run, given)))
        return
    if not (given.data / SIZE).exists():
        width, height = map(int, SIZE.split("x"))
        generate(given.data / SIZE, width, height, DISTINCT, given.pictures)
    import torch

    on = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor()
    print(
        f"{on or platform.machine()}, {given.workers} cores, torch {torch.__version__}, batches "
        f"of {given.batch}"
    )
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _, name in itertools.product(range(given.rounds), WAYS):
        command = [sys.executable, __file__, *sys.argv[1:], "--run", name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
        found[name].append(json.loads(done.stdout.splitlines()[-1]))
    floor = (
        given.workers * 1e3 / next(iter(floors(given.data / SIZE, SIZE, given.workers).values()))
    )
    print("\n| | loader alone | training | together | GPU waited | of the floor |")
    print("|---|---|---|---|---|---|")
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        rates = " | ".join(f"{middle[key]:.0f}" for key in ("loader", "training", "together"))
        share = middle["loader"] / floor
        print(f"| {name} | {rates} | {middle['waited']:.1%} | {share:.2f} |")
    print(f"\nfloor: {floor:.0f} images/s, all cores")


if __name__ == "__main__":
    main()
