"""What packed data costs to make and to read, beside decoding JPEG files and beside FFCV, in turns.

    python benchmarks/packed.py [--rounds 3] [--ffcv /path/to/python]

Reading: RandomResizedCrop to 224, flip, normalise, a float32 batch of 64, from JPEG files of
500 x 375 and from their packed 256 x 256 pixels. FFCV reads its own raw pixels of the same squares.
The floor is numpy alone: rows gathered from a mapped file and cropped at random to float32, without
resizing.

Packing: images a second of `task=pack`, full size and at 256, beside decoding the same files with
the same reader and as many threads, which keeps nothing.

Every contender runs in a process of its own; a round takes each in turn. CPU time is that of the
process tree. `--run NAME` runs one here and prints its figures as JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from image_peers import BATCH, MEAN, STD
from images import ROOT, SETS, WARM, cpu_seconds, generate, here, memory, one, steady

SIDE, CROP = 256, 224
_FILES = ["transform.train.crop.size=[224,224]", "transform.train.crop.scale=[0.08,1.0]"]
_BATCHES = [
    "transform=images_batch",
    "transform.train.resize=null",
    "transform.val.resize=null",
    "transform.train_batch.crop.size=[224,224]",
    "transform.train_batch.crop.scale=[0.08,1.0]",
    "transform.train_batch.colors=null",
    "transform.train_batch.mixup=null",
    "transform.train_batch.cutmix=null",
]
_PACKED = ["data.packed=auto", f"pack.size={SIDE}"]
OURS = {
    "files, loader=default": ["transform=images", *_FILES],
    "files, loader=fast transform=images_fast": ["transform=images_fast", "loader=fast"],
    "packed, sample by sample, 2 processes": ["transform=images", *_FILES, *_PACKED],
    "packed, transform=images_fast, 2 threads": ["transform=images_fast", "loader=fast", *_PACKED],
    "packed, transform=images_fast, no workers": [
        "transform=images_fast",
        "loader=debug",
        *_PACKED,
    ],
    "packed, whole batches, 2 threads": [*_BATCHES, *_PACKED, "loader=threads"],
    "packed, whole batches, no workers": [*_BATCHES, *_PACKED, "loader=debug"],
}
FLOOR, FFCV = "floor: numpy, gather and crop", "FFCV raw"
PACKING = {"packing, full size": [], f"packing, {SIDE}": [f"pack.size={SIDE}"]}
DECODING = "decoding alone"


def overrides(folder: Path, workers: int) -> list[str]:
    return [
        "dataset=image_folder",
        f"dataset.root={folder}",
        "data.split.val=0.0",
        f"batch.size={BATCH}",
        "batch.tail=drop",
        "trainer.device=cpu",
        f"cache_dir={folder.parent / 'cache'}",
        f"loader.num_workers={workers}",
    ]


def ours(name: str, folder: Path, workers: int) -> Iterator[Any]:
    import penstock
    from penstock import build_train_loader

    own = overrides(folder, 0 if "no workers" in name else workers)
    loader = build_train_loader(penstock.compose(*own[:-1], *OURS[name], own[-1]))
    while True:
        for batch in loader:
            assert batch["image"].shape == (BATCH, 3, CROP, CROP)
            assert str(batch["image"].dtype) == "torch.float32"
            yield batch


def floor(folder: Path) -> Iterator[Any]:
    import numpy as np

    path = next((folder.parent / "cache" / "packed").glob("*/image.npy"))
    pixels = np.load(path, mmap_mode="r")
    random = np.random.default_rng(0)
    while True:
        out = np.empty((BATCH, CROP, CROP, 3), np.float32)
        for place, row in enumerate(np.sort(random.integers(0, len(pixels), BATCH))):
            top, left = random.integers(0, SIDE - CROP, 2)
            out[place] = pixels[row, top : top + CROP, left : left + CROP]
        yield out


def ffcv(folder: Path, workers: int) -> Iterator[Any]:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from numpy import array, float32
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    path = folder.with_suffix(".raw.beton")
    if not path.exists():
        square = v2.Compose([v2.Resize(SIDE), v2.CenterCrop(SIDE)])
        fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(
            ImageFolder(str(folder), square)
        )
    normalize = NormalizeImage(255 * array(MEAN), 255 * array(STD), float32)
    steps = [
        RandomResizedCropRGBImageDecoder((CROP, CROP)),
        RandomHorizontalFlip(),
        normalize,
        ToTensor(),
        ToTorchImage(convert_back_int16=False),
    ]
    loader = Loader(
        str(path),
        batch_size=BATCH,
        num_workers=workers,
        order=OrderOption.RANDOM,
        drop_last=True,
        os_cache=True,
        pipelines={"image": steps, "label": [IntDecoder(), ToTensor()]},
    )
    while True:
        yield from loader


def reading(name: str, folder: Path, workers: int, batches: int) -> dict[str, float]:
    if "no workers" in name:  # one thread, as for a rank beside others
        import torch

        torch.set_num_threads(1)
    work = (
        ours(name, folder, workers)
        if name in OURS
        else ffcv(folder, workers)
        if name == FFCV
        else floor(folder)
    )
    # Once through: then all is compiled, and in the system's cache.
    return steady(work, WARM + folder_batches(folder), batches)


def folder_batches(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.jpg")) // BATCH


def packing(name: str, folder: Path, workers: int) -> dict[str, float]:
    """Once with the clock running, after the same without: imports, files in the cache."""
    import torch

    import penstock
    from penstock.addons.packs.packing import pack_of
    from penstock.build.data import DataParts
    from penstock.distributed.world import World

    torch.set_num_threads(1)
    out = folder.parent / "out"
    config = penstock.compose(
        *overrides(folder, workers),
        *PACKING.get(name, []),
        "task=pack",
        "split=train",
        f"pack.out={out}",
    )
    parts = DataParts(config, World())
    dataset = DataParts(config, World()).train.dataset
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        before, start = cpu_seconds(), time.perf_counter()
        if name == DECODING:
            with ThreadPoolExecutor(workers) as pool:
                for _ in pool.map(lambda row: len(dataset[row]), range(len(dataset))):
                    pass
        else:
            pack_of(parts.train)
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - before
    shutil.rmtree(out, ignore_errors=True)
    return {"cpu": cpu / len(dataset) * 1e3, "rate": len(dataset) / seconds, "memory": memory()}


def show(found: dict[str, list[dict[str, float]]]) -> None:
    print("\n| | CPU ms/image | images/s | range | memory, MiB |\n|---|---|---|---|---|")
    for name, runs in found.items():
        cpu, rate, pss = (
            statistics.median(run[key] for run in runs) for key in ("cpu", "rate", "memory")
        )
        low, high = min(run["rate"] for run in runs), max(run["rate"] for run in runs)
        print(f"| {name} | {cpu:.3f} | {rate:.0f} | {low:.0f} to {high:.0f} | {pss:.0f} |")
    pairs = [(name, FFCV) for name in found if name.startswith("packed")]
    pairs += [(name, DECODING) for name in PACKING]
    for name, peer in pairs:
        if name in found and peer in found:
            both = zip(found[name], found[peer], strict=True)
            ratios = sorted(mine["rate"] / its["rate"] for mine, its in both)
            print(
                f"\n{name}: {statistics.median(ratios):.2f} times the images/s of {peer} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "benchmark_packed")
    parser.add_argument("--ffcv", default=sys.executable, help="a Python that has FFCV")
    parser.add_argument("--only", choices=("reading", "packing"))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.data / "500x375"
    if given.run in (*PACKING, DECODING):
        print(json.dumps(packing(given.run, folder, given.workers)))
        return
    if given.run:
        print(json.dumps(reading(given.run, folder, given.workers, given.batches)), flush=True)
        os._exit(0)  # FFCV's threads now and then abort at the interpreter's end
    width, height, distinct, count, _ = SETS["500x375"]
    if not folder.exists():
        generate(folder, width, height, distinct, count)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {importlib.metadata.version('torch')}"
    )
    version = here("ffcv", given.ffcv)
    if version:
        print(f"FFCV {version}")
    names = dict.fromkeys([*OURS, FLOOR], sys.executable) | ({FFCV: given.ffcv} if version else {})
    groups = {"reading": names, "packing": dict.fromkeys([*PACKING, DECODING], sys.executable)}
    arguments = [
        "--data",
        str(given.data),
        "--workers",
        str(given.workers),
        "--batches",
        str(given.batches),
    ]
    for group, members in groups.items():
        if given.only in (None, group):
            found: dict[str, list[dict[str, float]]] = {name: [] for name in members}
            for _ in range(given.rounds):
                for name, python in members.items():
                    found[name].append(one(name, python, arguments, __file__))
                    print(f"{name}: {found[name][-1]}", file=sys.stderr)
            show(found)


if __name__ == "__main__":
    main()
