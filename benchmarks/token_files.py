"""Packed blocks of a memory map of tokens, beside torch's DataLoader over the same map, in turns.

    python benchmarks/token_files.py [--rounds 5] [--documents 100000]

Batches of 16 blocks of 2,048 tokens, with position and document ids of each token, from documents
of about 500 tokens (uint16). The peer is a Dataset of blocks as one writes it by hand: slices of
the map concatenated, cast, padded, and stacked by torch's default collate. It is given our packing
as a list that was made before the clock starts; ours packs while it runs, and gives `cu_seqlens`
besides. The first batches of both are compared, token by token.

Every contender runs in a process of its own; a round takes each in turn. CPU time is that of the
process tree. `--run NAME` runs one here and prints its figures as JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from images import ROOT, cpu_seconds, one

BLOCKS, TOKENS, WARM = 16, 2048, 30
TORCH, OURS = "torch's DataLoader", "token_files"
WORKERS = {"no workers": 0, "2 workers": 2}
NAMES = [f"{who}, {how}" for how in WORKERS for who in (TORCH, OURS)]


def generate(folder: Path, documents: int) -> None:
    """A pair of files as Megatron writes them: documents of about 500 tokens, some much longer."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(500) - 0.5, 1.0, documents), 1, 50_000).astype("<i4")
    pointers = 2 * (np.cumsum(lengths, dtype="<i8") - lengths)
    draw.integers(0, 50257, int(lengths.sum()), np.uint16).tofile(folder / "web.bin")
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1)
    bounds = np.arange(documents + 1, dtype="<i8")
    index = [header, lengths.tobytes(), pointers.tobytes(), bounds.tobytes()]
    (folder / "web.idx").write_bytes(b"".join(index))


def loader_of(folder: Path, workers: int) -> Any:
    import pipeline

    return pipeline.build_train_loader(pipeline.compose(
        "dataset=token_files", f"dataset.root={folder}", "dataset.val_fraction=0.0",
        f"batch.size={BLOCKS}", f"sampler.tokens={TOKENS}", f"collate.pad_to={TOKENS}",
        "trainer.device=cpu", f"cache_dir={folder.parent / 'cache'}",
        f"loader={'default' if workers else 'debug'}", f"loader.num_workers={workers}",
    ))  # fmt: skip


def ours(folder: Path, workers: int) -> Iterator[Any]:
    with loader_of(folder, workers) as loader:
        while True:
            yield from loader


def by_hand(folder: Path, workers: int, steps: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    plan, blocks = loader_of(folder, 0).plan, []
    pointers = np.memmap(folder / "web.idx", np.uint8, "r")[34:]
    count = int.from_bytes(np.memmap(folder / "web.idx", np.uint8, "r")[18:26].tobytes(), "little")
    first = np.frombuffer(pointers[4 * count : 12 * count].tobytes(), "<i8") // 2
    for step in range(steps):
        request = plan.request(0, step)
        start = first[request.indices]
        spans = np.stack([start + request.parts[:, 0], start + request.parts[:, 1]], axis=1)
        edges = np.searchsorted(request.parts[:, 3], np.arange(request.parts[-1, 3] + 2))
        blocks.append([spans[a:b].tolist() for a, b in itertools.pairwise(edges)])

    class Blocks(Dataset[dict[str, Any]]):
        def __init__(self, blocks: list[list[list[int]]]) -> None:
            self.tokens = np.memmap(folder / "web.bin", np.uint16, "r")
            self.blocks = blocks

        def __len__(self) -> int:
            return len(self.blocks)

        def __getitem__(self, index: int) -> dict[str, Any]:
            spans = self.blocks[index]
            tokens = np.concatenate([self.tokens[a:b] for a, b in spans]).astype(np.int64)
            positions = np.concatenate([np.arange(b - a) for a, b in spans])
            documents = np.repeat(np.arange(len(spans)), [b - a for a, b in spans])
            gap = TOKENS - len(tokens)
            return {
                "tokens": torch.from_numpy(np.pad(tokens, (0, gap))),
                "position_ids": torch.from_numpy(np.pad(positions, (0, gap))),
                "document_ids": torch.from_numpy(np.pad(documents, (0, gap), constant_values=-1)),
            }

    # Batches differ by a few blocks, so a batch sampler says which ones stand together.
    edges = np.cumsum([0, *map(len, blocks)]).tolist()
    groups = [range(a, b) for a, b in itertools.pairwise(edges)]
    dataset = Blocks([block for batch in blocks for block in batch])
    loader = DataLoader(dataset, batch_sampler=groups, num_workers=workers)  # type: ignore[arg-type]
    while True:
        yield from loader


def measure(name: str, folder: Path, batches: int) -> dict[str, float]:
    """Tokens a second and CPU nanoseconds a token, padding not counted, after a few batches."""
    import torch

    torch.set_num_threads(1)
    who, how = name.split(", ")
    work = (ours(folder, WORKERS[how]) if who == OURS
            else by_hand(folder, WORKERS[how], WARM + batches))  # fmt: skip
    for _ in range(WARM):
        next(work)
    tokens, before, start = 0, cpu_seconds(), time.perf_counter()
    for _ in range(batches):
        tokens += next(work)["tokens"].numel()
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - before
    return {"rate": tokens / seconds / 1e6, "cpu": cpu / tokens * 1e9}


def compare(folder: Path) -> None:
    """Raise unless both give the same batches."""
    for _, mine, plain in zip(range(20), ours(folder, 0), by_hand(folder, 0, 20), strict=False):
        for name in ("tokens", "position_ids"):
            kept = plain["document_ids"] >= 0
            assert mine[name].shape == plain[name].shape
            assert (mine[name][kept] == plain[name][kept]).all(), name
        same = mine["document_ids"].diff(dim=1) != 0
        assert (same == (plain["document_ids"].diff(dim=1) != 0)).all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "benchmark_tokens")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.data / str(given.documents)
    if given.run:
        print(json.dumps(measure(given.run, folder, given.batches)), flush=True)
        return
    if not folder.exists():
        generate(folder, given.documents)
    compare(folder)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"torch {importlib.metadata.version('torch')}")  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    arguments = ["--data", str(given.data), "--documents", str(given.documents),
                 "--batches", str(given.batches)]  # fmt: skip
    for _ in range(given.rounds):
        for name in NAMES:
            found[name].append(one(name, sys.executable, arguments, __file__))
            print(f"{name}: {found[name][-1]}", file=sys.stderr)
    print("\n| | million tokens/s | range | CPU ns/token |\n|---|---|---|---|")
    for name, runs in found.items():
        rates, cpu = sorted(run["rate"] for run in runs), [run["cpu"] for run in runs]
        print(f"| {name} | {statistics.median(rates):.1f} | {rates[0]:.1f} to {rates[-1]:.1f} | "
              f"{statistics.median(cpu):.2f} |")  # fmt: skip
    for how in WORKERS:
        both = [found[f"{who}, {how}"] for who in (OURS, TORCH)]
        for key, turned in (("rate", False), ("cpu", True)):
            ratios = sorted((b[key] / a[key]) if turned else a[key] / b[key]
                            for a, b in zip(*both, strict=True))  # fmt: skip
            what = "less CPU time a token" if turned else "the tokens/s"
            print(f"\n{how}: {statistics.median(ratios):.2f} times {what} "
                  f"({ratios[0]:.2f} to {ratios[-1]:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
