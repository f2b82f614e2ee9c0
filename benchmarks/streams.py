"""How much faster four workers are than one, over a stream whose records take 5 ms to decode.

    PYTHONPATH=. python benchmarks/streams.py [--rounds 5]

Decoding sleeps, so that cores do not matter; what is left is what reading everything in every
worker costs. The two are measured in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch.utils.data import IterableDataset

from penstock.loading.collate import Stack
from penstock.loading.loader import Loader
from penstock.loading.stream_fetch import StreamFetch
from penstock.loading.workers.options import LoaderOptions
from penstock.order.streams import StreamOrder, StreamPlan

RECORDS, BATCH, SECONDS = 480, 4, 0.005


class Slow(IterableDataset[int]):
    """A stream of numbers that take their time to decode."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS))

    def decode(self, record: int) -> dict[str, Any]:
        time.sleep(SECONDS)
        return {"x": torch.tensor([record])}


def seconds(workers: int) -> float:
    """Of an epoch once the workers have started."""
    options = LoaderOptions("process", workers, persistent_workers=True)
    order = StreamOrder(0)
    fetch = StreamFetch(Slow(), None, Stack(), 0, order=order, batch_size=BATCH)
    with Loader(StreamPlan(order, BATCH), fetch, options) as loader:
        for _ in loader.epoch(0):
            pass
        began = time.perf_counter()
        for _ in loader.epoch(1):
            pass
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    ratios = [seconds(1) / seconds(4) for _ in range(parser.parse_args().rounds)]
    print(
        f"4 workers are {median(ratios):.2f} times as fast as one; "
        f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds"
    )


if __name__ == "__main__":
    main()
