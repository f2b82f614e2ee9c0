"""Ranks whose shares cost the same: how even `batch.balance` makes them, and what that saves.

    python benchmarks/balance.py [--messages data/sms/SMSSpamCollection] [--steps 120] [--rounds 3]

First the dealing alone, for eight simulated ranks: the largest rank's cost over the mean, in
contiguous shares and as dealt by cost, mean and worst of 200 batches. The lengths are real: of the
docstrings of Python's standard library in bytes, and of the messages that are given. No dealing
can get below the largest row over the mean, which stands beside it. The last column is for ranks
that pad their rows to the longest: the largest rank's work, dealt by length, over that in
contiguous shares.

Then two real ranks (gloo, a thread each) that train a small transformer on the docstrings, each
attending to itself alone, concatenated: contiguous and balanced in turns. It prints the share of
forward and backward passes in which ranks waited for each other, as each epoch's line has it, what
the costs predict, and the seconds a step took. Both must have trained on the same samples.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parent.parent))

from penstock.addons.filters.costs import Arithmetic, PartCosts, RowCosts
from penstock.addons.tokens.flatten import Flatten
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.distributed.group import join
from penstock.distributed.parallel import Parallel
from penstock.distributed.world import from_environment
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.order.balance import contiguous, least_loaded
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.training.runner import fit
from penstock.training.train_step import TrainOptions, TrainStep

RANKS = 8
SIZES = (32, 64, 128, 256, 512, 1024)
BATCHES = 200
WIDTH, HEADS, LAYERS, LONGEST = 64, 4, 2, 1000
BATCH = 32  # of the real ranks
COST = "length + length ** 2 / 1000"


def docstrings() -> list[bytes]:
    """Every docstring of the standard library, in the order of the files' names."""
    found = []
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    found.append(text.encode())
    return found


def dealing(name: str, lengths: np.ndarray) -> None:
    """Print the largest rank over the mean, contiguous and dealt by cost."""
    print(
        f"\n{name}: {len(lengths):,} of {lengths.mean():.0f} bytes on average, "
        f"{lengths.max():,} at most; {RANKS} ranks"
    )
    print(f"{'':>12} {'':>6} | {'contiguous':>14} | {'by cost':>14} | {'bound':>6} |")
    print(
        f"{'cost':>12} {'batch':>6} | {'mean':>7} {'worst':>6} | {'mean':>7} {'worst':>6} | "
        f"{'mean':>6} | padded"
    )
    for power in (1, 2):
        costs = lengths.astype(np.float64) ** power
        for size in SIZES:
            order = Random(len(lengths), 0)
            per_epoch = len(lengths) // size
            ratios = []
            for batch in range(BATCHES):
                epoch, step = divmod(batch, per_epoch)
                rows = costs[order.indices(epoch, step * size, (step + 1) * size)]
                ranks = contiguous(size, RANKS), least_loaded(rows, RANKS)
                loads = [np.bincount(one, rows, RANKS) for one in ranks]
                cut, by_length = (padded(rows, one).max() for one in ranks)
                bound = max(1.0, rows.max() * RANKS / rows.sum())
                ratios.append(
                    [*(load.max() / load.mean() for load in loads), bound, by_length / cut]
                )
            mean, worst = np.mean(ratios, axis=0), np.max(ratios, axis=0)
            print(
                f"{'length' if power == 1 else 'length ** 2':>12} {size:>6} | "
                f"{mean[0]:7.3f} {worst[0]:6.2f} | {mean[1]:7.4f} {worst[1]:6.3f} | "
                f"{mean[2]:6.3f} | " + (f"{mean[3]:6.3f}" if power == 1 else "")
            )


def packing(name: str, lengths: np.ndarray) -> None:
    """Print the same for blocks of 2,048 bytes, by what attention within documents costs."""
    print(f"\n{name} packed into blocks of 2,048, by tokens ** 2")
    table = pd.DataFrame({"length": np.minimum(lengths, 2048)})
    costs = PartCosts(Arithmetic("tokens ** 2", "batch.balance"))
    for size in (16, 32, 64):
        sampler = SequencePacking(len(table), 0, table, size, tokens=2048)
        ratios = []
        for given in (None, costs):
            plan = Plan(sampler, size, costs=given)
            for epoch in range(20):
                for step in range(plan.steps(epoch) - 1):
                    requests = (plan.request(epoch, step, rank, RANKS) for rank in range(RANKS))
                    loads = [costs(one.indices, one.parts).sum() for one in requests]
                    ratios.append(max(loads) / np.mean(loads))
        cut, dealt = np.array(ratios).reshape(2, -1)
        print(
            f"{'tokens ** 2':>12} {size:>6} | {cut.mean():7.3f} {cut.max():6.2f} | "
            f"{dealt.mean():7.4f} {dealt.max():6.3f} |"
        )


def padded(rows: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The work of each rank if it pads its rows to its longest."""
    longest = np.zeros(RANKS)
    np.maximum.at(longest, ranks, rows)
    return longest * np.bincount(ranks, minlength=RANKS)


class Documents:
    """Texts as their bytes."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = [text[:LONGEST] for text in texts]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": torch.tensor(list(self.texts[index]))}


class ByteModel(nn.Module):
    """A small transformer of bytes, in which documents see themselves only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.attention = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x, spans = self.embedding(tokens), (edges[1:] - edges[:-1]).tolist()
        for attention, feed in zip(self.attention, self.feed, strict=True):
            parts = attention(x).view(len(x), 3, HEADS, -1).transpose(0, 2).split(spans, dim=2)
            seen = [
                scaled_dot_product_attention(*one.transpose(0, 1), is_causal=True) for one in parts
            ]
            x = x + torch.cat(seen, dim=1).transpose(0, 1).reshape(len(x), WIDTH)
            x = x + feed(x)
        return self.head(x)


class NextByte:
    """Cross-entropy of each document's next bytes, the mean over the document."""

    def to(self, device: torch.device) -> NextByte:
        return self

    def __call__(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        edges, labels = batch["cu_seqlens"].long(), batch["labels"]
        found = model(batch["tokens"], edges)[:-1]
        each = nn.functional.cross_entropy(found, labels[1:], ignore_index=-100, reduction="none")
        each = torch.cat([each, each.new_zeros(1)])
        rows = torch.repeat_interleave(edges[1:] - edges[:-1])
        losses = each.new_zeros(len(edges) - 1).index_add(0, rows, each)
        losses = losses / (edges[1:] - edges[:-1])
        if batch.valid is not None:
            losses = losses[batch.valid]
        return losses, found


def rank(steps: int, balanced: bool, out: Path) -> None:
    """What each of the two ranks does; the first leaves the record of the epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = Documents(docstrings())
    columns = {"length": np.array([len(text) for text in dataset.texts])}
    costs = RowCosts(Arithmetic(COST, "batch.balance"), columns)
    with join(from_environment("cpu"), timeout=120) as group:
        plan = Plan(Random(len(dataset), 0), BATCH, "drop", costs=costs if balanced else None)
        fetch = Fetch(dataset, None, Flatten(labels=True), 0, hashed=True)
        model = ByteModel()
        objective: Any = NextByte()
        options = TrainOptions(max_epochs=1, max_steps=steps, log_every=20)
        with Loader(plan, fetch, world=group.world) as loader:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            step = TrainStep(model, objective, optimizer, None, options, group, 0, Parallel("ddp"))
            result = fit(step, loader, None)
        if group.is_first:
            whole = Plan(Random(len(dataset), 0), BATCH, "drop", costs=costs)
            found = {
                **result.history[-1],
                "order": result.order,
                "predicted": whole.predicted_waiting(0, group.world.size),
            }
            out.write_text(json.dumps(found))
        group.meet()


def training(steps: int, rounds: int) -> None:
    """Print what two real ranks did."""
    print(f"\ntwo ranks, batches of {BATCH} docstrings, {steps} steps; balanced by {COST!r}")
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            both = []
            for balanced in (False, True):
                out = Path(folder) / f"{turn}-{balanced}.json"
                subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "torch.distributed.run",
                        "--standalone",
                        "--nproc-per-node=2",
                        __file__,
                        "--rank",
                        str(out),
                        "--steps",
                        str(steps),
                        *(["--balanced"] if balanced else []),
                    ],
                    check=True,
                    stderr=subprocess.DEVNULL,
                )
                both.append(json.loads(out.read_text()))
            assert both[0]["order"] == both[1]["order"], "other samples"
            for name, found, predicted in zip(
                ("contiguous", "balanced"), both, both[0]["predicted"], strict=True
            ):
                print(
                    f"{name:>12}: waiting for the other rank {found['rank_wait_share']:6.1%} "
                    f"(predicted {predicted:5.1%}), {1000 * found['seconds'] / steps:6.1f} ms a "
                    f"step, loss {found['train/loss']:.5f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--balanced", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank(args.steps, args.balanced, args.rank)
        return
    if args.messages is not None:
        lines = args.messages.read_bytes().splitlines()[1:]
        lengths = np.array([len(line.partition(b"\t")[2]) for line in lines])
        dealing("messages", lengths)
        packing("messages", lengths)
    lengths = np.array([len(text) for text in docstrings()])
    dealing("docstrings", lengths)
    packing("docstrings", lengths)
    if args.rounds:
        training(args.steps, args.rounds)


if __name__ == "__main__":
    main()
