"""Packed blocks of a memory map of tokens, beside torch's DataLoader over the same map, in turns.

    python benchmarks/token_files.py [--rounds 5] [--documents 100000]

Batches of 16 (or `--blocks`) blocks of 2,048 tokens, with position and document ids of each token,
from documents of about 500 tokens (uint16). The peer is a Dataset of blocks as one writes it by
hand: slices of the map concatenated into an array of a block's length, stacked by torch's default
collate. Its batch sampler packs windows of 4,096 shuffled documents by the same best fit, of which
ours is the function. Ours gives `cu_seqlens` besides. Given our blocks, the peer's batches are
compared with ours, token by token.

Every contender runs in a process of its own; a round takes each in turn. CPU time is that of the
process tree. `--run NAME` runs one here and prints its figures as JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
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

TOKENS, WINDOW, WARM = 2048, 4096, 30
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


def loader_of(folder: Path, workers: int, blocks: int) -> Any:
    import penstock

    return penstock.build_train_loader(
        penstock.compose(
            "dataset=token_files",
            f"dataset.root={folder}",
            "dataset.val_fraction=0.0",
            f"batch.size={blocks}",
            f"sampler.tokens={TOKENS}",
            f"collate.pad_to={TOKENS}",
            "trainer.device=cpu",
            f"cache_dir={folder.parent / 'cache'}",
            f"loader.num_workers={workers}",
        )
    )


def ours(folder: Path, workers: int, blocks: int) -> Iterator[Any]:
    with loader_of(folder, workers, blocks) as loader:
        while True:
            yield from loader


Spans = list[tuple[int, int]]  # first token and one past the last of each document of a block


class Blocks:
    """Blocks by the spans of their documents, for torch's DataLoader."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.memmap(folder / "web.bin", np.uint16, "r")

    def __getitem__(self, spans: Spans) -> dict[str, Any]:
        import torch

        tokens, positions = np.zeros(TOKENS, np.int64), np.zeros(TOKENS, np.int64)
        documents = np.full(TOKENS, -1)
        lengths = [stop - start for start, stop in spans]
        count = sum(lengths)
        tokens[:count] = np.concatenate([self.tokens[start:stop] for start, stop in spans])
        positions[:count] = np.concatenate([np.arange(length) for length in lengths])
        documents[:count] = np.repeat(np.arange(len(spans)), lengths)
        return {
            "tokens": torch.from_numpy(tokens),
            "position_ids": torch.from_numpy(positions),
            "document_ids": torch.from_numpy(documents),
        }


def bounds_of(folder: Path) -> tuple[Any, Any]:
    """The first token of each document, and one past its last."""
    index = np.fromfile(folder / "web.idx", np.uint8)
    count = int.from_bytes(index[18:26].tobytes(), "little")
    lengths = np.frombuffer(index[34 : 34 + 4 * count].tobytes(), "<i4").astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return starts, starts + lengths


def packed_by_hand(folder: Path, size: int) -> Iterator[list[Spans]]:
    """Batches of blocks: shuffled documents, packed in windows; long ones are cut."""
    from penstock.addons.tokens.sequence_packing import best_fit

    starts, stops = bounds_of(folder)
    draw = np.random.default_rng(0)
    while True:
        order = draw.permutation(len(starts))
        for at in range(0, len(order), WINDOW):
            pieces = []
            for row in order[at : at + WINDOW].tolist():
                start, stop = int(starts[row]), int(stops[row])
                pieces += [(one, min(one + TOKENS, stop)) for one in range(start, stop, TOKENS)]
            where = best_fit(np.array([stop - start for start, stop in pieces]), TOKENS)
            blocks: list[Spans] = [[] for _ in range(int(where.max()) + 1)]
            for piece, block in zip(pieces, where.tolist(), strict=True):
                blocks[block].append(piece)
            draw.shuffle(blocks)  # type: ignore[arg-type]
            yield from (blocks[one : one + size] for one in range(0, len(blocks) - size, size))


def as_ours(folder: Path, size: int) -> Iterator[list[Spans]]:
    """The blocks of our first batches."""
    plan, (first, _) = loader_of(folder, 0, size).plan, bounds_of(folder)
    for step in range(20):
        request = plan.request(0, step)
        blocks: list[Spans] = [[] for _ in range(int(request.parts[-1, 3]) + 1)]
        for row, (start, stop, _, block) in zip(request.indices, request.parts, strict=True):
            blocks[block].append((int(first[row] + start), int(first[row] + stop)))
        yield blocks


def by_hand(folder: Path, workers: int, blocks: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    batches: Any = packed_by_hand(folder, blocks)
    dataset: Any = Blocks(folder)
    yield from DataLoader(dataset, batch_sampler=batches, num_workers=workers)


def measure(name: str, folder: Path, batches: int, blocks: int) -> dict[str, float]:
    """Tokens a second and CPU nanoseconds a token, padding counted, after a few batches."""
    import torch

    torch.set_num_threads(1)
    who, how = name.split(", ")
    work = (ours if who == OURS else by_hand)(folder, WORKERS[how], blocks)
    for _ in range(WARM):
        next(work)
    tokens, before, start = 0, cpu_seconds(), time.perf_counter()
    for _ in range(batches):
        tokens += next(work)["tokens"].numel()
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - before
    return {"rate": tokens / seconds / 1e6, "cpu": cpu / tokens * 1e9}


def compare(folder: Path, blocks: int) -> None:
    """Raise unless the peer makes our batches of our blocks."""
    from torch.utils.data import default_collate

    dataset = Blocks(folder)
    for mine, spans in zip(ours(folder, 0, blocks), as_ours(folder, blocks), strict=False):
        plain = default_collate([dataset[one] for one in spans])
        kept = plain["document_ids"] >= 0
        for name in ("tokens", "position_ids"):
            assert mine[name].shape == plain[name].shape
            assert (mine[name][kept] == plain[name][kept]).all(), name
        begins = mine["document_ids"].diff(dim=1) != 0  # ours are counted through the batch
        assert (begins == (plain["document_ids"].diff(dim=1) != 0)).all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "benchmark_tokens")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.data / str(given.documents)
    if given.run:
        print(json.dumps(measure(given.run, folder, given.batches, given.blocks)), flush=True)
        return
    if not folder.exists():
        generate(folder, given.documents)
    compare(folder, given.blocks)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {importlib.metadata.version('torch')}"
    )
    found: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    arguments = [
        "--data",
        str(given.data),
        "--documents",
        str(given.documents),
        "--batches",
        str(given.batches),
        "--blocks",
        str(given.blocks),
    ]
    for _ in range(given.rounds):
        for name in NAMES:
            found[name].append(one(name, sys.executable, arguments, __file__))
            print(f"{name}: {found[name][-1]}", file=sys.stderr)
    print("\n| | million tokens/s | range | CPU ns/token |\n|---|---|---|---|")
    for name, runs in found.items():
        rates, cpu = sorted(run["rate"] for run in runs), [run["cpu"] for run in runs]
        print(
            f"| {name} | {statistics.median(rates):.1f} | {rates[0]:.1f} to {rates[-1]:.1f} | "
            f"{statistics.median(cpu):.2f} |"
        )
    for how in WORKERS:
        both = [found[f"{who}, {how}"] for who in (OURS, TORCH)]
        for key, turned in (("rate", False), ("cpu", True)):
            ratios = sorted(
                (b[key] / a[key]) if turned else a[key] / b[key] for a, b in zip(*both, strict=True)
            )
            what = "less CPU time a token" if turned else "the tokens/s"
            print(
                f"\n{how}: {statistics.median(ratios):.2f} times {what} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
