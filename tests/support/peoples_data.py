"""Datasets as people have them, written for torch and not for Penstock.

A test copies this file into a folder of its own, as the package `people`, which is trusted by name.
"""

from collections import namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

ROWS = 24
Point = namedtuple("Point", "input label")


def x_of(row):
    return torch.arange(4, dtype=torch.float32) + row


class Rows(Dataset):
    """`(x, y)`; a sample by its row."""

    def __init__(self, train=True):
        self.first = 0 if train else 100

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if not 0 <= row < ROWS:
            raise IndexError(row)
        return self.sample(self.first + row)

    def sample(self, row):
        return x_of(row), row % 3


class Labelled(Rows):
    """Says its labels, as torchvision's do."""

    @property
    def targets(self):
        return [row % 3 for row in range(self.first, self.first + ROWS)]


class Bare(Rows):
    def sample(self, row):
        return x_of(row)


class Lists(Rows):
    def sample(self, row):
        return [x_of(row).numpy(), row % 3]


class Named(Rows):
    def sample(self, row):
        return Point(x_of(row), row % 3)


class Two(Rows):
    def sample(self, row):
        return x_of(row)[:2], x_of(row)[2:], row % 3


class Uneven(Rows):
    def sample(self, row):
        return torch.ones(1 + row % 5, 4) * row, row % 3


class WithNone(Rows):
    def sample(self, row):
        return None


class AtOnce(Rows):
    """Many rows at once, as Hugging Face's tables do."""

    def __getitems__(self, rows):
        return [self[row] for row in rows]


class Damaged(Labelled):
    def sample(self, row):
        if row % 100 == 5:
            raise OSError("cannot be read")
        return super().sample(row)


class Drawing(Rows):
    """Draws from torch, as augmentations in a dataset do."""

    def sample(self, row):
        return x_of(row) + torch.rand(4), row % 3


def tensors(train=True):
    first = 0 if train else 100
    labels = torch.arange(first, first + ROWS) % 3
    return TensorDataset(torch.stack([x_of(row) for row in range(first, first + ROWS)]), labels)


class Itself(IterableDataset):
    """An iterable that is its own iterator."""

    def __init__(self, train=True):
        self.rows, self.at = Rows(train), 0

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == ROWS:
            raise StopIteration
        self.at += 1
        return self.rows[self.at - 1]


class Divided(IterableDataset):
    """Divides itself among workers, as torch's pages advise and as LitData's do."""

    def __init__(self, train=True):
        self.rows = Rows(train)

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return self.rows[row]

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for row in range(first, ROWS, step):
            yield self.rows[row]


def generated(train=True):
    rows = Rows(train)
    for row in range(ROWS):
        yield rows[row]


def made(train=True):
    return generated(train)


def as_tuple(samples):
    inputs, labels = zip(*samples, strict=True)
    return torch.stack(inputs), torch.tensor(labels)


def as_dict(samples):
    inputs, labels = as_tuple(samples)
    return {"input": inputs, "label": labels}


def collating(kind):
    """A function that makes the one that collates."""
    return {"tuple": as_tuple, "dict": as_dict}[kind]


def padded(samples):
    inputs, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(one) for one in inputs])
    return torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True), lengths, torch.tensor(labels)


def one(sample):
    """What `collate_fn` is called with where automatic batching is off."""
    inputs, label = sample
    assert inputs.shape == (4,)
    return inputs[None], torch.tensor([label])


class Sums:
    """A collate function with arguments."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, samples):
        inputs, labels = as_tuple(samples)
        return inputs * self.scale, labels


class Both(torch.nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, first, second):
        return self.linear(torch.cat([first, second], dim=1))


class Summed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, inputs, lengths):
        return self.linear(inputs.sum(1) / lengths[:, None])


class OwnGenerator(Rows):
    """Draws from a numpy generator of its own, whose state nobody else knows."""

    def __init__(self, train=True):
        super().__init__(train)
        self.generator = np.random.default_rng(0)

    def sample(self, row):
        return x_of(row) + torch.from_numpy(self.generator.random(4, dtype=np.float32)), row % 3
