"""An epoch through other frameworks' loops, with our loaders and with torch's: CPU time.

    python -P benchmarks/frameworks.py [--frameworks accelerate,lightning,fabric] [--repeats 3]
    python -P benchmarks/frameworks.py --data saved_images,saved_texts --frameworks none

Each measure is a process that is forked when everything is imported, with two worker processes. The
CPU time is its own and that of its workers, the least of several, which take turns. Nothing is
trained. With -P, `datasets` is the library and not the folder of this checkout.

    rows            40,000 small tensors: what a loader costs
    images          2,400 JPEG files of 500 x 375, read by torchvision's ImageFolder into crops of
                    224 x 224 where the loader is one of torch's kind, and by the configured
                    loader with the same crops
    saved_images    the same files in a folder that Hugging Face's `datasets` saved: `datasets`,
                    which decodes by Pillow, with torchvision's crops; and `dataset=huggingface`
    saved_texts     20,000 texts and labels in such a folder: rows of `datasets`, its batches
                    (`with_format("torch")`, read many at once), and `dataset=huggingface`
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from penstock import DataLoader, TorchLoader, build_train_loader, compose

SIZE, WORKERS = 64, 2
TEXTS = 20_000


class Rows(torch.utils.data.Dataset[Any]):
    """Small tensors, made beforehand."""

    def __init__(self) -> None:
        self.rows = torch.rand(40_000, 32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index], index % 2


def pictures(folder: Path) -> None:
    """JPEG files in two classes; with 600 of them the start of the workers is a tenth."""
    random = np.random.default_rng(0)
    for number in range(2400):
        path = folder / "train" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


def save(folder: Path) -> None:
    """The pictures, and texts, as `datasets` saves them."""
    import datasets

    datasets.disable_progress_bars()
    if not hasattr(datasets, "load_from_disk"):
        raise SystemExit("`datasets` is the folder of this checkout: start this with python -P")
    paths = sorted((folder / "train").glob("*/*.jpg"))
    files = {"image": [str(path) for path in paths], "label": [int(p.parent.name) for p in paths]}
    images = datasets.Dataset.from_dict(files).cast_column("image", datasets.Image())
    images.save_to_disk(folder / "images")
    random = np.random.default_rng(0)
    words = [f"word{number}" for number in range(1000)]
    texts = [" ".join(random.choice(words, 40)) for _ in range(TEXTS)]
    labels = [number % 2 for number in range(TEXTS)]
    datasets.Dataset.from_dict({"text": texts, "label": labels}).save_to_disk(folder / "texts")


def saved_loaders(data: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """Those of a folder that `datasets` saved."""
    import datasets

    options: dict[str, Any] = {"batch_size": SIZE, "shuffle": True, "num_workers": WORKERS}
    name = data.removeprefix("saved_")
    rows = datasets.load_from_disk(str(folder / name))
    common = [
        "dataset=huggingface", f"dataset.root={folder}/{name}", "dataset.val_fraction=0",
        "+dataset.val=null", f"batch.size={SIZE}", "loader=fast", f"loader.num_workers={WORKERS}",
    ]  # fmt: skip
    makers: dict[str, Callable[[], Any]] = {}
    if name == "images":
        from torchvision.transforms import v2

        steps = v2.Compose(
            [v2.ToImage(), v2.RandomResizedCrop(224), v2.ToDtype(torch.float32, True)]
        )

        def cropped(batch: dict[str, Any]) -> dict[str, Any]:
            images = [steps(image.convert("RGB")) for image in batch["image"]]
            return {"image": images, "label": batch["label"]}

        theirs = {"torch": rows.with_transform(cropped)}
        words = [*common, "transform=images_fast"]
    else:
        theirs = {"torch": rows, "formatted": rows.with_format("torch")}
        words = [
            *common, "transform=none", "model=linear",
        ]  # fmt: skip
    for key, dataset in theirs.items():
        makers[key] = partial(torch.utils.data.DataLoader, dataset, **options)
        makers[f"DataLoader, {key}"] = partial(DataLoader, dataset, **options, seed=0)
    makers["configured"] = lambda: TorchLoader(build_train_loader(compose(*words)))
    return makers


def loaders(data: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """What makes each loader."""
    if data.startswith("saved_"):
        return saved_loaders(data, folder)
    options: dict[str, Any] = {"batch_size": SIZE, "shuffle": True, "num_workers": WORKERS}
    if data == "rows":
        rows = Rows()
        return {
            "torch": lambda: torch.utils.data.DataLoader(rows, **options),
            "DataLoader": lambda: DataLoader(rows, **options, seed=0),
        }
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(224, antialias=True), v2.ToDtype(torch.float32, True)]
    )
    images = ImageFolder(str(folder / "train"), steps)
    words = [
        "dataset=image_folder", f"dataset.root={folder}/train", "+dataset.val=null",
        "transform=images_fast", f"batch.size={SIZE}", f"loader.num_workers={WORKERS}",
    ]  # fmt: skip
    return {
        "torch": lambda: torch.utils.data.DataLoader(images, **options),
        "DataLoader": lambda: DataLoader(images, **options, seed=0),
        "configured": lambda: TorchLoader(build_train_loader(compose(*words))),
    }


def loop(framework: str, loader: Any) -> None:
    """One epoch of a framework's loop."""
    taken: Iterable[Any] = loader
    if framework == "accelerate":
        from accelerate import Accelerator

        taken = Accelerator(cpu=True).prepare(loader)
    if framework == "fabric":
        from lightning_fabric import Fabric

        taken = Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)
    if framework == "lightning":
        import pytorch_lightning as pl

        class Module(pl.LightningModule):
            def training_step(self, batch: Any, index: int) -> None:
                pass

            def configure_optimizers(self) -> None:
                pass

        quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
        trainer.fit(Module(), loader)
        return
    for _ in taken:
        pass


def measure(framework: str, name: str, make: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds and seconds of an epoch, in a process of its own."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        warnings.simplefilter("ignore")
        try:
            loader = make()
            began, used = time.perf_counter(), os.times()
            loop(framework, loader)
            took = time.perf_counter() - began
            if name == "configured":
                loader.loader.close()  # type: ignore[union-attr]
            del loader
            cpu = sum(os.times()[:4]) - sum(used[:4])  # workers that have ended are counted
            os.write(sending, f"{cpu} {took}".encode())
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sending)
    text = os.read(receiving, 100).decode() or "nan nan"  # of one that failed
    os.waitpid(child, 0)
    cpu, took = map(float, text.split())
    return cpu, took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--frameworks", default="none,accelerate,lightning,fabric")
    parser.add_argument("--data", default="rows,images")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        pictures(folder)
        if "saved_" in options.data:
            save(folder)
        for data in options.data.split(","):
            for framework in options.frameworks.split(","):
                makers = loaders(data, folder)
                measured: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
                for _ in range(options.repeats):
                    for name, make in makers.items():
                        measured[name].append(measure(framework, name, make))
                torchs = min(cpu for cpu, _ in measured["torch"])
                for name, times in measured.items():
                    cpu, took = min(cpu for cpu, _ in times), min(took for _, took in times)
                    print(
                        f"{data:13}{framework:11}{name:22}{cpu:7.2f} s CPU {took:7.2f} s "
                        f"{cpu / torchs:6.2f} of torch's CPU",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
