"""What a row of a table costs: from files, arrays and packs, beside other libraries, in turns.

    python benchmarks/tables.py [--rounds 3] [--peers PYTHON] [--root FOLDER] [--rows 1000000]

1,000,000 rows of 20 float32 columns and a class, and a tenth as many of texts and lists (a title of
30 characters, a kind of 12, a list of 0 to 30 numbers, a vector of 16), batches of 1,024 in one
process. Every contender runs in a process of its own, and a round takes each in turn: an epoch that
reads and warms, then another one; CPU time of both, a row. Those that take more than 10 us a row do
20 batches of an epoch. `--peers` is a Python that has torch, `datasets` and `pylance`, which are no
extras of this project.

`--run NAME` runs one here and prints its figures as JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from penstock.datasets.reading.base import Shares

BATCH, COLUMNS = 1024, 20
NAMES = [f"x{number}" for number in range(COLUMNS)]
GROUP = 65_536
JOINED = {"features": {"columns": NAMES}, "label": None}
Epoch = Callable[[int], Iterable[Any]]


def generate(root: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (root / "done").exists() and (root / "done").read_text() == str(rows):
        return
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, COLUMNS), np.float32)
    y = random.integers(0, 10, rows)
    table = pa.table(
        {**{n: np.ascontiguousarray(x[:, i]) for i, n in enumerate(NAMES)}, "label": y}
    )
    few = rows // 10
    lengths = random.integers(0, 31, few)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    vectors = random.standard_normal(few * 16).astype(np.float32)
    mixed = pa.table(
        {
            "title": [f"the title of row number {row:06}" for row in range(few)],
            "kind": pa.array([f"kind {kind}" for kind in random.integers(0, 12, few)]),
            "tokens": pa.ListArray.from_arrays(ends, random.integers(0, 50_000, int(ends[-1]))),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 16),
            "label": pa.array(random.integers(0, 10, few)),
        }
    )
    for name, content in (("numbers", table), ("mixed", mixed)):
        for kind in ("parquet", "arrow"):
            (root / kind / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(content, root / "parquet" / name / "x.parquet", row_group_size=GROUP)
        path = str(root / "arrow" / name / "x.arrow")
        with pa.ipc.new_file(path, content.schema) as writer:
            writer.write_table(content, max_chunksize=GROUP)
    (root / "arrays").mkdir(exist_ok=True)
    np.save(root / "arrays" / "inputs.npy", x)
    np.save(root / "arrays" / "targets.npy", y)
    (root / "done").write_text(str(rows))


def loader_of(dataset: Any, order: str, collate: Any = None) -> Any:
    from penstock.loading.collate import Stack
    from penstock.loading.fetch import Fetch
    from penstock.loading.loader import Loader
    from penstock.order.plan import Plan
    from penstock.order.samplers import Random, Sequential

    count = len(dataset)
    sampler = Random(count, 0) if order == "random" else Sequential(count)
    return Loader(Plan(sampler, BATCH), Fetch(dataset, None, collate or Stack(), 0))


def table_of(kind: str, order: str, name: str = "numbers", **more: Any) -> Callable[[Path], Epoch]:
    def epochs(root: Path) -> Epoch:
        from penstock.addons.tables.table import MappedTable
        from penstock.loading.collate import Pad

        dataset = MappedTable(str(root / kind / name), shares=Shares(0.0), **more)
        collate = Pad(fields=["tokens"]) if name == "mixed" else None
        return loader_of(dataset, order, collate).epoch  # type: ignore[no-any-return]

    return epochs


def stream(buffer: int) -> Callable[[Path], Epoch]:
    def epochs(root: Path) -> Epoch:
        from penstock.addons.tables.table import StreamedTable
        from penstock.loading.collate import Stack
        from penstock.loading.loader import Loader
        from penstock.loading.stream import StreamFetch
        from penstock.order.plan import StreamOrder, StreamPlan

        dataset = StreamedTable(str(root / "parquet" / "numbers"), shares=Shares(0.0))
        order = StreamOrder(0, buffer, shuffle_shards=buffer > 0)
        fetch = StreamFetch(dataset, None, Stack(), 0, plan=StreamPlan(order, BATCH))
        return Loader(fetch.plan, fetch).epoch

    return epochs


def arrays(order: str) -> Callable[[Path], Epoch]:
    def epochs(root: Path) -> Epoch:
        from penstock.datasets.arrays import Arrays

        return loader_of(Arrays(str(root / "arrays"), shares=Shares(0.0)), order).epoch  # type: ignore[no-any-return]

    return epochs


def packed(root: Path) -> Epoch:
    from penstock.addons.packs.folder import Packed
    from penstock.addons.packs.packing import Recipe, pack
    from penstock.addons.tables.table import MappedTable

    # Of one field: packing 1,000,000 rows of 21 fields takes minutes.
    dataset = MappedTable(str(root / "parquet" / "numbers"), shares=Shares(0.0), fields=JOINED)
    folder = pack(dataset, "train", Recipe(None), str(root / "packs"))
    return loader_of(Packed(str(folder)), "random").epoch  # type: ignore[no-any-return]


def tensors(order: str) -> Callable[[Path], Epoch]:
    def epochs(root: Path) -> Epoch:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        x, y = (
            torch.from_numpy(np.load(root / "arrays" / f"{n}.npy")) for n in ("inputs", "targets")
        )
        loader = DataLoader(TensorDataset(x, y), BATCH, shuffle=order == "random")
        return lambda epoch: loader

    return epochs


def hugging_face(order: str, name: str = "numbers") -> Callable[[Path], Epoch]:
    def epochs(root: Path) -> Epoch:
        from torch.nn.utils.rnn import pad_sequence
        from torch.utils.data import DataLoader, default_collate

        datasets: Any = import_module("datasets")  # not this project's folder of that name
        datasets.disable_progress_bars()
        path = str(root / "parquet" / name / "x.parquet")
        cache = str(root / "huggingface")
        dataset = datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=cache)

        def padded(samples: list[Any]) -> Any:
            tokens = pad_sequence([sample.pop("tokens") for sample in samples], batch_first=True)
            return default_collate(samples) | {"tokens": tokens}

        loader: Any = DataLoader(
            dataset.with_format("torch"),
            BATCH,
            shuffle=order == "random",
            collate_fn=padded if name == "mixed" else None,
        )
        return lambda epoch: loader

    return epochs


def lance(root: Path) -> Epoch:
    import lance as library
    import pyarrow.parquet as pq

    path = root / "numbers.lance"
    if not path.exists():
        library.write_dataset(pq.read_table(root / "parquet" / "numbers" / "x.parquet"), str(path))
    dataset = library.dataset(str(path))

    def epoch(number: int) -> Iterable[Any]:
        order = np.random.default_rng(number).permutation(dataset.count_rows())
        for start in range(0, len(order), BATCH):
            table = dataset.take(order[start : start + BATCH])
            yield {name: table[name].to_numpy() for name in table.column_names}

    return epoch


def numpy(root: Path) -> Epoch:
    x = np.load(root / "arrays" / "inputs.npy")
    columns = [*np.ascontiguousarray(x.T), np.load(root / "arrays" / "targets.npy")]

    def epoch(number: int) -> Iterable[Any]:
        order = np.random.default_rng(number).permutation(len(x))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            yield [column[rows] for column in columns]

    return epoch


OURS = {
    "parquet, random": table_of("parquet", "random"),
    "parquet, in order": table_of("parquet", "in order"),
    "arrow, random": table_of("arrow", "random"),
    "arrow, in order": table_of("arrow", "in order"),
    "parquet, one field, random": table_of("parquet", "random", fields=JOINED),
    "parquet, one field, in order": table_of("parquet", "in order", fields=JOINED),
    "parquet_stream": stream(0),
    "parquet_stream, a buffer of 50,000": stream(50_000),
    "arrays, random": arrays("random"),
    "packed, one field, random": packed,
    "texts and lists, parquet, random": table_of("parquet", "random", "mixed"),
    "texts and lists, arrow, random": table_of("arrow", "random", "mixed"),
}
PEERS = {
    "torch DataLoader, TensorDataset, random": tensors("random"),
    "numpy, a gather of 21 columns": numpy,
    "datasets, torch format, random": hugging_face("random"),
    "datasets, torch format, in order": hugging_face("in order"),
    "lance, take": lance,
    "texts and lists, datasets, random": hugging_face("random", "mixed"),
}
SLOW = {name for name in PEERS if "datasets" in name or "lance" in name}  # a share of an epoch


def measured(name: str, root: Path) -> dict[str, float]:
    """CPU microseconds a row of a first and of a second epoch."""
    import torch

    torch.set_num_threads(1)
    epoch = (OURS | PEERS)[name](root)
    figures = {}
    for number, key in enumerate(("first", "us")):
        rows, began = 0, time.process_time()
        for batch in epoch(number):
            values = list(batch.values()) if hasattr(batch, "values") else list(batch)
            rows += len(values[-1])
            if name in SLOW and rows >= 20 * BATCH:
                break
        figures[key] = 1e6 * (time.process_time() - began) / rows
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--root", type=Path, default=Path("outputs/benchmarks/tables"))
    parser.add_argument("--peers", help="a Python with torch, datasets and pylance")
    parser.add_argument("--without", nargs="*", default=[], help="names of contenders")
    parser.add_argument("--run", choices=[*OURS, *PEERS])
    args = parser.parse_args()
    if args.run:
        print(json.dumps(measured(args.run, args.root)))
        return
    generate(args.root, args.rows)
    pythons = dict.fromkeys(OURS, sys.executable) | dict.fromkeys(PEERS, args.peers)
    pythons |= {name: sys.executable for name in PEERS if name not in SLOW}
    figures: dict[str, list[dict[str, float]]] = {
        name: [] for name, py in pythons.items() if py and name not in args.without
    }
    for _ in range(args.rounds):
        for name in figures:
            command = [str(pythons[name]), __file__, "--run", name, "--root", str(args.root)]
            environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
            if name not in SLOW:
                environment["PYTHONPATH"] = str(Path(__file__).parents[1])
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            figures[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(name, figures[name][-1], file=sys.stderr, flush=True)
    libraries = ("torch", "numpy", "pyarrow", "pandas")
    print(platform.machine(), platform.python_version(), end="; ")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in libraries))
    base = statistics.median(f["us"] for f in figures["numpy, a gather of 21 columns"])
    print("\n| | CPU us a row | first epoch | of numpy's gather |\n|---|---|---|---|")
    for name, rounds in figures.items():
        us = sorted(f["us"] for f in rounds)
        first = statistics.median(f["first"] for f in rounds)
        middle = statistics.median(us)
        shown = f"{middle:.2f} ({us[0]:.2f} to {us[-1]:.2f})"
        print(f"| {name} | {shown} | {first:.2f} | {middle / base:.1f} |")


if __name__ == "__main__":
    main()
