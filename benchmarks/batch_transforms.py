"""What transforms of whole batches cost, against torchvision's v2 on samples and on batches.

    python benchmarks/batch_transforms.py [--device cuda] [--batch 64] [--rounds 7]

Each round runs all three in turns on the same uint8 pictures; printed are medians of the time per
sample (of the processor on a CPU, of the clock on a GPU) and of the ratios in one round. On a
batch, torchvision draws once for all samples, so that column is what sameness would save; its MixUp
takes floats only. One thread, as in a worker process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.transforms.batch import BatchCompose
from penstock.transforms.batch_colors import BatchNormalize, ColorJitter, RandomErasing
from penstock.transforms.batch_geometry import Affine, HorizontalFlip, RandomResizedCrop
from penstock.transforms.mixing import CutMix, MixUp

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
Run = Callable[[], Any]


def steps() -> Mapping[str, tuple[Any, v2.Transform | None]]:
    """Ours and torchvision's, by name; None where v2 has it for batches only."""
    turned = {"degrees": 15, "translate": [0.1, 0.1], "scale": [0.9, 1.1], "shear": 5}
    return {
        "random resized crop": (RandomResizedCrop(224), v2.RandomResizedCrop(224, antialias=True)),
        "flip": (HorizontalFlip(), v2.RandomHorizontalFlip()),
        "affine": (
            Affine(**turned),
            v2.RandomAffine(**turned, interpolation=v2.InterpolationMode.BILINEAR),
        ),
        "color jitter": (ColorJitter(0.4, 0.4, 0.4), v2.ColorJitter(0.4, 0.4, 0.4)),
        "color jitter with hue": (
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ),
        "erasing": (RandomErasing(0.5), v2.RandomErasing(0.5)),
        "mixup": (MixUp(1000), v2.MixUp(num_classes=1000)),
        "cutmix": (CutMix(1000), v2.CutMix(num_classes=1000)),
        "normalize": (
            BatchNormalize(),
            v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(**IMAGENET)]),
        ),
    }


def pictures(rows: int, side: int, device: str) -> Tensor:
    """uint8[rows, 3, side, side]: smooth parts and noise."""
    coarse = torch.rand(rows, 3, 16, 16) * 255
    smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")
    return (smooth + torch.randn(rows, 3, side, side) * 8).clamp(0, 255).byte().to(device)


def runs(ours: Any, theirs: Any, images: Tensor, labels: Tensor) -> dict[str, Run]:
    """What is timed: a name and something to call."""
    rows = len(images)
    places = np.arange(rows)
    compose = BatchCompose({"step": ours}, 0)

    def batch() -> Batch:
        request = Request(0, 0, places, places, rows)
        fields = {"image": images, "label": labels}
        return Batch(fields, request, places, kinds={"image": "image"})

    found: dict[str, Run] = {"ours": lambda: compose(batch())}
    if isinstance(theirs, (v2.MixUp, v2.CutMix)):
        taken = images.float() if isinstance(theirs, v2.MixUp) else images
        return found | {"v2, batch": lambda: theirs(taken, labels)}
    samples = [tv_tensors.Image(image) for image in images]
    return found | {
        "v2, samples": lambda: torch.stack([theirs(sample) for sample in samples]),
        "v2, batch": lambda: theirs(tv_tensors.Image(images)),
    }


def seconds(run: Run, device: str) -> float:
    """Of the processor, or on a GPU of the clock."""
    if device == "cpu":
        began = time.process_time()
        run()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(found: Mapping[str, Run], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each round by name; one more round before them counts for nothing."""
    taken: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds + 1):
        for name, run in found.items():
            spent = seconds(run, device)
            if number:
                taken[name].append(spent)
    return taken


def line(name: str, taken: Mapping[str, list[float]], rows: int) -> str:
    """A row of the table: microseconds a sample and ratios."""
    cells = [name]
    for column in ("ours", "v2, samples", "v2, batch"):
        times = taken.get(column)
        cells.append(f"{statistics.median(times) / rows * 1e6:.0f}" if times else "-")
    for column in ("v2, samples", "v2, batch"):
        pairs = zip(taken["ours"], taken.get(column, []), strict=False)
        ratios = [mine / other for mine, other in pairs]
        cells.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    large = pictures(options.batch, options.side, options.device)
    small = pictures(options.batch, 224, options.device)
    labels = torch.arange(options.batch, device=options.device)
    print(f"torch {torch.__version__}, {options.device}, {options.batch} pictures; us a sample")
    print("| step | ours | v2, samples | v2, batch | ours / samples | ours / batch |")
    print("|---|---|---|---|---|---|")
    for name, (ours, theirs) in steps().items():
        images = large if name == "random resized crop" else small
        taken = measure(runs(ours, theirs, images, labels), options.rounds, options.device)
        print(line(name, taken, options.batch), flush=True)


if __name__ == "__main__":
    main()
