"""Loaders and readers that DLIO (benchmarks/dlio.py) takes by class name.

DLIO's readers read and decode a file, and return the same array for each. `read_index` of its base
class also formats a list of all files into a message that nobody sees, for each sample; the readers
here leave that out, for torch's loader and ours alike.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dlio_benchmark.common.enumerations import DataLoaderType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.data_loader.torch_data_loader import (
    TorchDataLoader,
    TorchDataset,
    dlio_sampler,
)
from dlio_benchmark.reader.image_reader import ImageReader
from dlio_benchmark.reader.npz_reader import NPZReader
from dlio_benchmark.reader.reader_factory import ReaderFactory
from torch.utils.data import DataLoader, Dataset
from torchvision import io
from torchvision.transforms import v2

from benchmarks.image_peers import MEAN, STD
from penstock.addons.dataloader import dataloader

STAMPED = os.environ.get("DLIO_STAMPED") == "1"  # samples tell their numbers, to count them
NUMBER = 8  # bytes


class _Lean:
    def read_index(self, image_idx: int, step: int) -> Any:
        filename, sample_index = self.global_index_map[image_idx]
        self.open_file_map[filename] = self.open(filename)
        self.get_sample(filename, sample_index)
        self.preprocess()
        self.close(filename)
        self.open_file_map[filename] = None
        if not STAMPED:
            return self._args.resized_image
        stamped = self._args.resized_image.copy()
        stamped.reshape(-1)[:NUMBER] = np.frombuffer(np.int64(image_idx).tobytes(), np.uint8)
        return stamped


class LeanImageReader(_Lean, ImageReader):
    """DLIO's reader of pictures: Pillow decodes the whole file."""


class LeanNpzReader(_Lean, NPZReader):
    """DLIO's reader of npz files: numpy reads the whole array and checks its checksum."""


def numbers(batch: Any) -> list[int]:
    """Which samples a batch of any of these loaders has."""
    if isinstance(batch, torch.Tensor):
        stamps = batch.reshape(len(batch), -1)[:, :NUMBER].contiguous().numpy()
        return list(stamps.view(np.int64)[:, 0].tolist())
    if isinstance(batch, (list, tuple)):
        return list(batch[1].tolist())
    return list(batch.indices.tolist())


class Torch(TorchDataLoader):
    """DLIO's own use of torch's DataLoader; by name, so that all are started alike."""


class Processes(TorchDataLoader):
    """The same with our class in place of torch's: same dataset, sampler, reader and workers."""

    backend = "process"

    def read(self) -> None:
        args = self._args
        dataset = TorchDataset(
            self.format_type,
            self.dataset_type,
            self.epoch_number,
            self.num_samples,
            args.read_threads,
            self.batch_size,
        )
        kwargs: dict[str, Any] = {}
        if self.backend == "process":
            kwargs = {
                "worker_init_fn": dataset.worker_init,
                "persistent_workers": True,
                "multiprocessing_context": args.multiprocessing_context,
            }
        else:
            dataset.reader = ReaderFactory.get_reader(
                type=self.format_type,
                dataset_type=self.dataset_type,
                thread_index=0,
                epoch_number=self.epoch_number,
            )
        sampler = dlio_sampler(
            args.my_rank,
            args.comm_size,
            self.num_samples,
            args.sample_shuffle,
            args.epochs,
            args.seed,
        )
        self._dataset = dataloader.DataLoader(
            dataset,
            batch_size=self.batch_size,
            sampler=sampler,
            num_workers=args.read_threads,
            prefetch_factor=-(-args.prefetch_size // args.read_threads),
            pin_memory=True,
            drop_last=True,
            backend=self.backend,
            **kwargs,
        )


class Threads(Processes):
    """The same with threads."""

    backend = "thread"


class Crops(BaseDataLoader):
    """What ResNet-50 trains on: a random crop of 224, flipped and normalised; by torch."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)

    def read(self) -> None:
        args = self._args
        self._loader: Any = DataLoader(
            _Pictures(args.file_list_train),
            self.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=args.read_threads,
            persistent_workers=True,
            pin_memory=True,
            prefetch_factor=-(-args.prefetch_size // args.read_threads),
        )

    def next(self) -> Iterator[Any]:
        yield from self._loader

    def finalize(self) -> None:
        """Nothing is left to do after an epoch."""


class _Pictures(Dataset):  # type: ignore[type-arg]
    """torchvision's decoder and transforms; a tuple of a picture and its number."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(224, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file = io.read_file(self.paths[index])
        return self.transform(io.decode_jpeg(file, mode=io.ImageReadMode.RGB)), index


class OurCrops(Crops):
    """The same by our configuration: `dataset=image_folder transform=images_fast loader=fast`."""

    packed = ""

    def read(self) -> None:
        if self.dataset_type.value != "train":
            return
        import penstock

        args, data = self._args, Path(self._args.data_folder)
        level = logging.root.level
        config = penstock.compose(
            "dataset=image_folder",
            f"dataset.root={data / 'train'}",
            "dataset.val_fraction=0.0",
            "transform=images_fast",
            "loader=fast",
            f"loader.num_workers={args.read_threads}",
            f"loader.prefetch_factor={-(-args.prefetch_size // args.read_threads)}",
            f"batch.size={self.batch_size}",
            "batch.tail=drop",
            "trainer.device=cpu",
            "task=digest",
            f"cache_dir={data.parent / 'cache'}",
            *self.packed.split(),
        )
        self._loader = penstock.build_train_loader(config)
        logging.root.setLevel(level)


class OurPackedCrops(OurCrops):
    """The same from squares of 256 pixels, decoded once (`dataset.packed=auto pack.size=256`)."""

    packed = "dataset.packed=auto pack.size=256"
