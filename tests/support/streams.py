"""Streams of every kind, over the numbers 0 .. length-1; importable by workers."""

import random
import time

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Plain(IterableDataset):
    """A generator over samples, as people write it."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for number in range(self.length):
            yield {"x": torch.tensor([number])}


class Decoding(Plain):
    """Raw records, and a decode that only their owner runs."""

    def __iter__(self):
        return iter(range(self.length))

    def decode(self, record):
        return {"x": torch.tensor([record])}


class Working(Decoding):
    """Decoding takes its time and says who does it."""

    def __init__(self, length, seconds=0.0):
        super().__init__(length)
        self.seconds = seconds

    def decode(self, record):
        time.sleep(self.seconds)
        info = get_worker_info()
        return {**super().decode(record), "worker": -1 if info is None else info.id}


class Sharded(Decoding):
    """Pieces whose lengths are known, or not."""

    def __init__(self, length, shards=3, known=True):
        super().__init__(length)
        self.count, self.known = shards, known
        self.opened = []

    def shards(self):
        return [range(self.length)[number :: self.count] for number in range(self.count)]

    def shard_lengths(self):
        return [len(shard) for shard in self.shards()] if self.known else None

    def read_shard(self, shard):
        self.opened.append(shard.start)
        return iter(shard)


class Drawing(Plain):
    """Shuffles itself with a global generator, in another way each time it is asked."""

    def __iter__(self):
        numbers = list(range(self.length))
        random.shuffle(numbers)
        for number in numbers:
            yield {"x": torch.tensor([number]), "noise": random.random()}


class Endless(IterableDataset):
    def __iter__(self):
        number = 0
        while True:
            yield {"x": torch.tensor([number])}
            number += 1


class Rewinding(Plain):
    """Its own iterator, which begins again whenever `iter()` is called on it."""

    at = 0

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return {"x": torch.tensor([self.at - 1])}
