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


class Meeting(Decoding):
    """The first record that a process decodes waits until other processes have one, too."""

    def __init__(self, length, barrier):
        super().__init__(length)
        self.barrier, self.has_met = barrier, False

    def decode(self, record):
        if not self.has_met:
            self.barrier.wait(60)
            self.has_met = True
        return super().decode(record)


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


class SelfSharding(Plain):
    """Divides itself among workers, as torch's documentation tells people to do."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield {"x": torch.tensor([number])}


class Endless(IterableDataset):
    def __iter__(self):
        number = 0
        while True:
            yield {"x": torch.tensor([number])}
            number += 1


class Sliceable(Plain):
    """Holds its records, for a `worker_init_fn` to cut."""

    def __init__(self, length):
        super().__init__(length)
        self.data = list(range(length))

    def __iter__(self):
        for number in self.data:
            yield {"x": torch.tensor([number])}


def cut_share(worker_id):
    """What torch's documentation tells people to do in a `worker_init_fn`."""
    info = get_worker_info()
    size = len(info.dataset.data) // info.num_workers
    info.dataset.data = info.dataset.data[worker_id * size : (worker_id + 1) * size]


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
