"""Orders of every kind, by name, of so many rows."""

import numpy as np
import pandas as pd
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from penstock.addons.mixtures.mixture import Mixture
from penstock.addons.mixtures.order import MixtureOrder
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.order.samplers import (
    Bucket,
    Curriculum,
    Identity,
    Order,
    Random,
    Repeated,
    Sequential,
    Subset,
    Weighted,
)
from penstock.order.torch_samplers import adapt

SEED = 3


def table(length):
    numbers = np.random.default_rng(length)
    return pd.DataFrame(
        {"length": numbers.integers(1, 30, length), "label": numbers.integers(0, 4, length)}
    )


class EachThird(Order):
    """An order of somebody's own."""

    def __init__(self, length):
        self.length = length

    def size(self, epoch):
        return 2 * self.length

    def indices(self, epoch, start, stop):
        return (np.arange(start, stop) * 3 + epoch) % self.length


def weighted(length, **given):
    weights = np.random.default_rng(length).integers(0, 3, length).astype(float)
    weights[length // 2] = 2.0
    return Weighted(length, SEED, weights=weights, **given)


def mixture(first, length, weights):
    sources = {"a": range(first), "b": range(length - first)}
    return MixtureOrder(Mixture(sources, weights), SEED, 4)


ORDERS = {
    "sequential": Sequential,
    "random": lambda n: Random(n, SEED),
    "subset": lambda n: Subset(n, SEED, fraction=0.5),
    "subset of a list": lambda n: Subset(n, SEED, indices=[0, n // 2, n - 1, 1, 0], shuffle=False),
    "weighted": lambda n: weighted(n, num_samples=3 * n),
    "weighted without replacement": lambda n: weighted(n, replacement=False),
    "bucket": lambda n: Bucket(n, SEED, table(n), 4, num_buckets=min(3, n)),
    "bucket of tokens": lambda n: Bucket(n, SEED, table(n), 4, "drop", tokens=60),
    "identity": lambda n: Identity(n, SEED, table(n), identities=1, samples=3, batches=7),
    "curriculum": lambda n: Curriculum(n, SEED, table(n), stages=min(3, n)),
    "repeated": lambda n: Repeated(n, SEED, 4, 2),
    "repeated, weighted": lambda n: Repeated(n, SEED, 4, 4, weighted(n), shorten=False),
    "packed": lambda n: SequencePacking(n, SEED, table(n), 2, tokens=40, window=8),
    "packed, cut": lambda n: SequencePacking(n, SEED, table(n), 2, tokens=16, split="tail"),
    "packed, weighted": lambda n: SequencePacking(
        n, SEED, table(n), 2, tail="drop", tokens=20, window=16, order=weighted(n)
    ),
    "mixture": lambda n: mixture(n // 3, n, {"a": [[0, 3], [4, 0], [9, 2]], "b": 1}),
    "packed mixture": lambda n: SequencePacking(
        n, SEED, table(n), 2, tokens=40, window=8, order=mixture(n // 4, n, {"a": 1, "b": 1})
    ),
    "torch's": lambda n: adapt(lambda: RandomSampler(range(n)), SEED, n),
    "torch's batches": lambda n: adapt(
        lambda: BatchSampler(SequentialSampler(range(n)), 4, drop_last=False), SEED, n
    ),
    "somebody's": EachThird,
}
