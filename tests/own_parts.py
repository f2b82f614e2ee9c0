"""Parts as a person's own package would have them; trusted by the tests that name it."""

import os  # noqa: F401  (something a configuration must not reach through this module)

import torch
from hydra.experimental.callback import Callback
from torch.utils.data import Dataset, IterableDataset, Sampler
from torchvision.models import resnet18  # noqa: F401  (a part of somebody else, handed on)

from pipeline.order.samplers import Sequential

# conf/dataset/numbers.yaml of a folder of one's own.
NUMBERS = """# @package _global_
defaults:
  - override /transform: none
  - override /model: linear
  - override /objective: classification
dataset: {_target_: tests.own_parts.Numbers, size: 32, packed: null}
objective: {inputs: [x], target: label}
"""


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


class Backwards(Sampler):
    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))

    def __len__(self):
        return len(self.data_source)


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


class WithItsOwnLoop(torch.nn.Linear):
    """As a LightningModule: a model that says how it is trained."""

    def training_step(self, batch, batch_idx):
        return self(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)
