"""A small dataset and transforms that draw from every global generator; importable by workers."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torchvision import tv_tensors

from penstock.order.keys import key_at_hand, uniform_at
from penstock.order.samplers import Random
from tests import port
from tests.port import Loader, Stack, hashes  # noqa: F401


class Pictures(Dataset):
    """Rows tell themselves apart by their pixels."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        pixels = torch.arange(3 * 12 * 16, dtype=torch.int64).reshape(3, 12, 16) * (index + 1)
        return {"image": tv_tensors.Image((pixels % 256).to(torch.uint8)), "label": index % 3}


class Sequences(Dataset):
    """Row i has length 1 + i % 7."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"sequence": torch.full((1 + index % 7, 2), float(index)), "label": index}


class Everywhere:
    """Draws from `random`, `numpy.random` and torch."""

    def __call__(self, sample):
        draws = [random.random(), np.random.rand(), torch.rand(()).item(), random.gauss(0, 1)]
        return {**sample, "draws": torch.tensor(draws)}


class Keyed:
    """Takes its draw from the sample's key."""

    keyed = True

    def __call__(self, sample):
        draws = [uniform_at(key_at_hand(), count) for count in (0, 1)]
        return {**sample, "draws": torch.tensor(draws)}


class WorkerSeen:
    """Says who works: the worker's id and whether it sees the person's own dataset."""

    def __call__(self, sample):
        info = get_worker_info()
        seen = -1 if info is None else info.id
        own = info is None or isinstance(info.dataset, Pictures)
        return {**sample, "worker": seen, "own": own}


def mark_dataset(worker_id):
    """A `worker_init_fn`: changes the worker's copy of the dataset."""
    get_worker_info().dataset.length = 1000 + worker_id


def loader(options=None, transform=None, dataset=None, collate=None, size=8, sampler=None):
    """A loader of hashed batches over the toy data."""
    dataset = dataset or Pictures()
    sampler = sampler or Random(len(dataset), 0)
    return port.loader(
        dataset, sampler, size, transform=transform, collate=collate, options=options
    )
