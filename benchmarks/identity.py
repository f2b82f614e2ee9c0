"""What it costs to know whose data a run trains on, at its start and per batch.

    PYTHONPATH=. python benchmarks/identity.py [--rows 1000000] [--rounds 5]

Datasets of a person's own, of 10^6 rows:

    told      says what it is by a `fingerprint`
    table     has a table of a column of text and one of numbers (`metadata`), and no fingerprint
    bare      has nothing; 18 of its samples are looked at beside the workers' start

start   ms of wall time for all that identity asks: class, code, arguments, fingerprint, table
look    ms to look at samples, by a worker that is there; and to make as many samples
batch   us a batch of 64, with and without having looked, in turns
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import closing
from functools import cached_property
from itertools import islice

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

from penstock import compose
from penstock.build.data import DataParts
from penstock.distributed.world import World
from penstock.runs.identity.sources import code_of

BATCHES = 300
QUIET = ["transform=none", "collate=stack", "sampler=random", "batch.size=64"]


class Bare(Dataset):
    """Rows of 16 numbers."""

    draws = False

    def __init__(self, rows: int, split: str = "train") -> None:
        self.values = np.zeros((rows if split == "train" else 64, 16), np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.from_numpy(self.values[index])}


class Told(Bare):
    """One that says what it is."""

    fingerprint = "zeros"


class Table(Bare):
    """One that has a table."""

    @cached_property
    def metadata(self) -> pd.DataFrame:
        """A name and a number a row."""
        numbers = np.arange(len(self))
        return pd.DataFrame({"name": numbers.astype(str), "number": numbers})


def parts_of(kind: str, rows: int, *words: str) -> DataParts:
    """The data of a configuration with that dataset."""
    node = f"+dataset={{_target_: identity.{kind}, rows: {rows}}}"
    return DataParts(compose("~dataset", node, *QUIET, *words), World())


def start(kind: str, rows: int) -> float:
    """Seconds that identity takes where a run starts."""
    parts = parts_of(kind, rows)
    split = parts.train
    getattr(split.dataset, "metadata", None)  # made by whoever needs it first
    began = time.perf_counter()
    code_of(parts.config)
    _ = split.identity.beside, split.identity.known_by, split.identity.data("sizes")
    return time.perf_counter() - began


def look(kind: str, rows: int) -> tuple[float, float]:
    """Seconds to look at samples in a worker, and to make 18 here."""
    split = parts_of(kind, rows, "loader.backend=process", "loader.num_workers=1").train
    getattr(split.dataset, "metadata", None)
    with split.loader(sampled=True) as loader:
        request = loader._sample
        for _ in islice(loader.epoch(0), 3):  # the worker is there, and has looked
            pass
        assert loader.seen
        loader._sample, loader.seen = request, None
        began = time.perf_counter()
        assert loader.look()
        took = time.perf_counter() - began
    began = time.perf_counter()
    for row in range(18):
        split.dataset[row]
    return took, time.perf_counter() - began


def batches(rows: int, sampled: bool) -> float:
    """Processor seconds a batch, in this process."""
    split = parts_of("Bare", rows, "loader.backend=main", "loader.num_workers=0").train
    with split.loader(sampled=sampled) as loader, closing(loader.epoch(0)) as epoch:
        next(epoch)
        began = time.process_time()
        assert sum(1 for _ in islice(epoch, BATCHES)) == BATCHES
        return (time.process_time() - began) / BATCHES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ["PENSTOCK_TRUST"] = "identity"
    for kind in ("Told", "Table", "Bare"):
        times = [1e3 * start(kind, given.rows) for _ in range(given.rounds)]
        print(
            f"start  {kind.lower():6} {statistics.median(times):7.1f} ms ({times[0]:.1f} at first)"
        )
    for kind in ("Table", "Bare"):
        looks = [look(kind, given.rows) for _ in range(given.rounds)]
        took, made = (1e3 * statistics.median(values) for values in zip(*looks, strict=True))
        print(f"look   {kind.lower():6} {took:7.1f} ms; 18 samples take {made:.2f} ms")
    turns = [(batches(given.rows, True), batches(given.rows, False)) for _ in range(given.rounds)]
    with_it, without = (1e6 * statistics.median(values) for values in zip(*turns, strict=True))
    ratio = statistics.median(one / other for one, other in turns)
    print(f"batch  bare   {with_it:7.1f} us having looked, {without:.1f} us without: {ratio:.3f} x")


if __name__ == "__main__":
    main()
