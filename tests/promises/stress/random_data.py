"""Datasets of a person's own for random configurations; most samples tell which row they are."""

import random

import numpy as np
import pandas as pd
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, get_worker_info


def numbers(row):
    return torch.tensor([row % 3, row % 5, row % 7], dtype=torch.float32)


def table(first, count):
    """Columns of rows first .. first + count - 1; `note` has gaps, and `label` is not balanced."""
    rows = np.arange(first, first + count)
    return pd.DataFrame(
        {
            "label": (rows % 7 > 2).astype(np.int64) + (rows % 7 > 4),
            "length": 1 + rows * 5 % 11,
            "weight": rows % 4 / 2 + 0.25 * (rows % 5 == 0),
            "name": [f"n{row % 9}" for row in rows],
            "note": [None if row % 4 else f"g{row % 12}" for row in rows],
        }
    )


class Bare(Dataset):
    """Nothing but rows. Validation has rows of its own, from 10,000 on."""

    def __init__(self, rows=40, val_rows=12, start=0, split="train"):
        self.first, self.rows = start, rows
        if split == "val":
            self.first, self.rows = start + 10_000, val_rows

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return self.sample(self.first + int(row))

    def sample(self, row):
        return {"x": numbers(row), "y": numbers(row).sum()[None] / 10, "row": row}


class Table(Bare):
    """With everything that a dataset may tell."""

    columns = ("label", "length", "weight", "name", "note")
    facts = {"num_features": 3, "num_outputs": 1}

    @property
    def metadata(self):
        return table(self.first, self.rows)

    @property
    def fingerprint(self):
        return f"table {self.first} {self.rows}"


class AtOnce(Table):
    """Many rows at once."""

    def __getitems__(self, rows):
        return [self[row] for row in rows]


class Damaged(Table):
    """Some rows cannot be read."""

    def sample(self, row):
        if row % 13 == 5:
            raise OSError("cannot be read")
        return super().sample(row)


class Drawing(Table):
    """Draws from all generators, and from one of its own."""

    def __init__(self, rows=40, val_rows=12, start=0, split="train"):
        super().__init__(rows, val_rows, start, split)
        self.own = np.random.default_rng(0)

    def sample(self, row):
        drawn = [random.random(), np.random.rand(), torch.rand(()).item(), self.own.random()]
        return super().sample(row) | {"drawn": torch.tensor(drawn)}


class Pairs(Bare):
    """`(x, row)`, with torch's names; all arguments are torchvision's."""

    def __init__(self, train=True, rows=40):
        super().__init__(rows, split="train" if train else "val")

    @property
    def targets(self):
        return [int(label) for label in table(self.first, self.rows)["label"]]

    def sample(self, row):
        return numbers(row), self.targets[row - self.first]


class Texts(Bare):
    """Documents of tokens that begin with their row; some are empty."""

    def __init__(self, rows=40, val_rows=12, start=0, split="train"):
        super().__init__(rows, val_rows, start, split)
        self.lengths = np.array([row * 7 % 23 for row in range(self.first, self.first + self.rows)])

    def sample(self, row):
        return {"tokens": row * 31 % 50 + torch.arange(row * 7 % 23), "row": row}


class TextTable(Texts):
    """The same with a table."""

    columns = ("length", "label")

    @property
    def metadata(self):
        return table(self.first, self.rows).assign(length=self.lengths)[["length", "label"]]


def subset(split="train", rows=40):
    whole = Pairs(split == "train", 2 * rows)
    return Subset(whole, list(range(len(whole) - 1, -1, -2)))


def joined(split="train", rows=40):
    return ConcatDataset([Pairs(split == "train", rows), Pairs(split == "train", rows // 2)])


class Forward(IterableDataset):
    """A stream whose records are rows of `Bare`."""

    def __init__(self, split="train", rows=40, val_rows=12):
        self.data = Bare(rows, val_rows, split=split)

    def __iter__(self):
        return iter([self.data[row] for row in range(len(self.data))])


class Rewinding(Forward):
    """Its own iterator."""

    at = 0

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == len(self.data):
            raise StopIteration
        self.at += 1
        return self.data[self.at - 1]


class Divided(Forward):
    """Divides itself among workers, as torch's pages advise."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for row in range(first, len(self.data), step):
            yield self.data[row]


class Sharded(Forward):
    """In pieces of unequal length."""

    def shards(self):
        return [range(len(self.data))[number::3] for number in range(3)]

    def read_shard(self, shard):
        return iter(shard)

    def __iter__(self):
        return (row for shard in self.shards() for row in shard)

    def decode(self, row):
        return self.data[row]


def generated(split="train", rows=40):
    yield from Forward(split, rows)


class Noise:
    """A transform that draws from all generators."""

    def __call__(self, sample):
        drawn = random.random() + np.random.rand() + torch.randn(3)
        return sample | {"x": sample["x"] + 0.1 * drawn}


class Bag(torch.nn.Module):
    """A number for each document, from the mean of its tokens."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = torch.nn.EmbeddingBag(512, 8), torch.nn.Linear(8, 1)

    def forward(self, tokens, edges):
        return self.head(self.tokens(tokens.flatten(), edges[:-1].long()))[:, 0]
