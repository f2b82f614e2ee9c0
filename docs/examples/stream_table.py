"""A stream of 0 .. 15 in batches of 4 with 2 workers: torch's DataLoader, and Penstock.

    python docs/examples/stream_table.py

torch gives every worker the whole stream, so each number is delivered twice unless the person
divides the stream in a worker_init_fn. Penstock lets all workers read and one of them work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.loading.collate import Stack
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions
from penstock.order.plan import StreamOrder, StreamPlan


class Numbers(IterableDataset[dict[str, int]]):
    """0 .. 15, and nothing about workers."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        for number in range(16):
            yield {"number": number}


def with_worker(sample: dict[str, int]) -> dict[str, int]:
    """A transform that says which worker it runs in."""
    info = get_worker_info()
    return {**sample, "worker": -1 if info is None else info.id}


class Told(Numbers):
    """The same for torch, which has no transforms of its own."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return map(with_worker, super().__iter__())


def penstock() -> Loader:
    plan = StreamPlan(StreamOrder(seed=0), batch_size=4)
    fetch = StreamFetch(Numbers(), with_worker, Stack(), seed=0, plan=plan)
    return Loader(plan, fetch, LoaderOptions("process", num_workers=2))


def table(title: str, loader: DataLoader[dict[str, int]] | Loader, dealt: bool) -> None:
    print(title)
    print("  numbers           worker")
    for batch in loader:
        numbers = " ".join(f"{number:2d}" for number in batch["number"].tolist())
        worker = batch["worker"].unique().item()
        print(f"  [{numbers}]     {worker if dealt else 'any free worker'}")


if __name__ == "__main__":
    table("torch.utils.data.DataLoader(num_workers=2)", DataLoader(Told(), 4, num_workers=2), True)
    print()
    table("Penstock, loader.num_workers=2", penstock(), False)
