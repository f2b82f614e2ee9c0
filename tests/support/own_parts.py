"""Parts as a person's own package would have them; trusted by the tests that name it."""

import math
import os  # something a configuration must not reach through this module
import time

import torch
from hydra.experimental.callback import Callback
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Sampler
from torchvision.models import resnet18  # noqa: F401  (a part of somebody else, handed on)

from penstock.order.samplers import Sequential

# conf/dataset/numbers.yaml of a folder of one's own.
NUMBERS = """# @package _global_
defaults:
  - override /transform: none
  - override /model: linear
  - override /objective: classification
dataset: {_target_: tests.support.own_parts.Numbers, size: 32}
objective: {inputs: [x], target: label}
"""


class Targets(Dataset):
    """Rows of 4 numbers, and targets of a shape: the sum of a row, times 1, 2, 3 ..."""

    def __init__(self, shape=(), split: str = "train", told=True):
        self.shape, self.first = tuple(shape), 0 if split == "train" else 50
        self.facts = {"num_features": 4}
        if told:
            self.facts["num_outputs"] = math.prod(self.shape)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        row = torch.sin(torch.arange(4.0) + self.first + index)
        factors = torch.arange(1.0, 1 + math.prod(self.shape)).reshape(self.shape)
        return {"input": row, "target": row.sum() * factors}


class Photos(Dataset):
    """A Pillow picture and its class, in a tuple as of a dataset that was written for torch."""

    classes = ("dark", "light")

    def __init__(self, train=True):
        self.train = train

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return Image.new("RGB", (60, 40), (index % 2 * 200, 20 * index, 90)), index % 2


class Numbers(Dataset):
    """A row is its own index; two classes."""

    columns = ("label", "length")

    def __init__(self, root: str = "", split: str = "train", size: int = 12, scale: float = 1.0):
        if size < 1:
            raise ValueError(f"size {size} is below 1")
        self.split, self.size, self.scale = split, size, scale
        self.classes = ["even", "odd"]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"x": torch.tensor([index * self.scale]), "label": index % 2}

    @property
    def metadata(self):
        import pandas as pd

        rows = range(self.size)
        return pd.DataFrame({"label": [row % 2 for row in rows], "length": list(rows)})

    @property
    def facts(self):
        return {"num_classes": 2, "num_outputs": 2, "num_features": 1}

    @property
    def fingerprint(self):
        return f"numbers-{self.size}"


class Unsplit(Numbers):
    def __init__(self, size: int = 12):
        super().__init__(size=size)


class Stream(IterableDataset):
    def __init__(self, split: str = "train"):
        pass

    def __iter__(self):
        return iter(())


class Backwards(Sampler):
    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))

    def __len__(self):
        return len(self.data_source)


class Pause:
    """Makes reading a sample take as many seconds as a variable says."""

    def __call__(self, sample):
        time.sleep(float(os.environ.get("PENSTOCK_TEST_PAUSE", 0)))
        return sample


class Holder:
    """Keeps what it was built with."""

    def __init__(self, *args, inner=None, **kwargs):
        self.args, self.inner, self.kwargs = args, inner, kwargs

    @classmethod
    def made(cls, inner=None):
        return cls(inner=inner)


class Seen(Callback):
    """A callback of hydra's."""

    def __init__(self, folder: str = ""):
        self.folder = folder


class Broken:
    def __init__(self):
        raise TypeError("a mistake of its own")


def sequential(length):
    return Sequential(length)


def add(sample, amount=1):
    return {**sample, "x": sample["x"] + amount}


def noted(sample, note="", api_token="", amount=0):
    return sample


def start_worker(worker_id):
    pass


LIMIT = 3
