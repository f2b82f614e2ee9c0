"""What an order costs: ours, evaluated at an address, against torch's, which is listed.

    python benchmarks/orders.py [--largest 100000000]
    python benchmarks/orders.py --backwards
    python benchmarks/orders.py --filtered 1000000000
    python benchmarks/orders.py --texts 10000000 [--against FOLDER]

    python benchmarks/orders.py --packed 1000000000 --lengths FILE

For each length: milliseconds from making the sampler to its first batch of 256, milliseconds for a
batch in the middle, and the memory that doing so adds at its peak. torch's samplers have no way to
the middle but through the beginning, so their second figure is left out.

`--backwards` asks where a row stands: milliseconds of CPU for the addresses of a row in an epoch
that was not asked about before, the median of nine, after the sampler has been made.

`--filtered` and `--texts` filter so many rows, by a column of numbers and by one of texts: seconds
of CPU to make the filter, and the memory that it adds at its peak. With `--against`, the code of
another working tree is measured in turns with this one, `--turns` times each.

`--packed` packs so many documents into blocks of 2,048, batches of 8, by a memory map of their
lengths (uint16, written to FILE if it is not there): seconds of CPU to the first batch at the start
and a million steps in, each in a new process; what a later batch costs; and the memory that is not
the map's.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

BATCH = 256


def penstock_random(length: int) -> tuple[Callable[[], object], Callable[[], object]]:
    from penstock.order.plan import Plan
    from penstock.order.samplers import Random

    plan = Plan(Random(length, 0), BATCH)
    return lambda: plan.request(0, 0), lambda: plan.request(0, len(plan) // 2)


def penstock_weighted(length: int) -> tuple[Callable[[], object], Callable[[], object]]:
    import numpy as np

    from penstock.order.plan import Plan
    from penstock.order.samplers import Weighted

    plan = Plan(Weighted(length, 0, weights=np.ones(length)), BATCH)
    return lambda: plan.request(0, 0), lambda: plan.request(0, len(plan) // 2)


def torch_random(length: int) -> tuple[Callable[[], object], None]:
    from torch.utils.data import RandomSampler

    return lambda: list(islice(RandomSampler(range(length)), BATCH)), None


def torch_weighted(length: int) -> tuple[Callable[[], object], None]:
    import torch
    from torch.utils.data import WeightedRandomSampler

    sampler = WeightedRandomSampler(torch.ones(length, dtype=torch.float64), length)
    return lambda: list(islice(sampler, BATCH)), None


KINDS = {
    "penstock random": penstock_random,
    "torch RandomSampler": torch_random,
    "penstock weighted": penstock_weighted,
    "torch WeightedRandomSampler": torch_weighted,
}


def child(kind: str, length: int) -> None:
    """Measure one kind at one length in a process of its own, whose peak memory is its own."""
    import torch  # noqa: F401  both kinds begin with it loaded

    KINDS[kind](10)[0]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    try:
        first, middle = KINDS[kind](length)
        first()
    except RuntimeError as error:
        print(f"{kind:28s} {length:>14,d}   refused: {error}", flush=True)
        return
    times = [f"{(time.perf_counter() - start) * 1e3:10.2f} ms", f"{'-':>13}"]
    if middle is not None:
        start = time.perf_counter()
        middle()
        times[1] = f"{(time.perf_counter() - start) * 1e3:10.2f} ms"
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{kind:28s} {length:>14,d} {times[0]} {times[1]} {memory:10.1f} MiB", flush=True)


def backwards() -> None:
    import numpy as np
    import pandas as pd

    from penstock.addons.mixtures.order import MixtureOrder
    from penstock.addons.mixtures.weights import Mixing
    from penstock.addons.tokens.sequence_packing import SequencePacking
    from penstock.order.composed import Curriculum
    from penstock.order.plan import Plan
    from penstock.order.samplers import Bucket, Identity, Random, Subset, Weighted

    def column(length: int) -> pd.DataFrame:
        return pd.DataFrame({"length": np.random.default_rng(0).integers(1, 1000, length)})

    kinds: dict[str, tuple[Callable[[int], Any], Sequence[int]]] = {
        "random": (lambda n: Random(n, 0), (10**6, 10**9, 10**12)),
        "subset": (lambda n: Subset(n, 0, fraction=0.1), (10**6, 10**7)),
        "weighted": (lambda n: Weighted(n, 0, weights=np.ones(n)), (10**6, 10**7)),
        "weighted, without replacement": (
            lambda n: Weighted(n, 0, weights=np.ones(n), replacement=False),
            (10**6,),
        ),
        "bucket": (lambda n: Bucket(n, 0, column(n), BATCH), (10**6, 10**7)),
        "identity": (lambda n: Identity(n, 0, column(n), "length"), (10**6,)),
        "curriculum": (lambda n: Curriculum(n, 0, column(n)), (10**6, 10**7)),
        "mixture": (
            lambda n: MixtureOrder(Mixing({"a": n // 3, "b": n - n // 3}), 0, BATCH),
            (10**6, 10**9),
        ),
        "packed": (
            lambda n: SequencePacking(n, 0, column(n), 8, 2048),
            (10**6, 10**7),
        ),
    }
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print(f"{'':32s} {'rows':>21} {'an epoch':>13}")
    for name, (make, lengths) in kinds.items():
        for length in lengths:
            plan = Plan(make(length), BATCH)
            times = []
            for epoch in range(9):
                start = time.process_time()
                [plan.request(epoch, step) for step in plan.steps_of(epoch, length // 3)]
                times.append((time.process_time() - start) * 1e3)
            print(f"{name:32s} {length:>21,d} {sorted(times)[4]:10.2f} ms", flush=True)


def mixture() -> None:
    """Time a batch of a mixture of 2 x 10^9 rows at its beginning and at position 10^9."""
    from penstock.addons.mixtures.order import MixtureOrder
    from penstock.addons.mixtures.weights import Mixing
    from penstock.order.plan import Plan

    lengths = {"web": 10**9, "books": 9 * 10**8, "code": 10**8}
    weights = {"web": [(0, 0.9), (10**6, 0.5)], "books": 0.3, "code": 0.1}
    began = time.perf_counter()
    order = MixtureOrder(Mixing(lengths, weights, linear=True, passes={"code": 3}), 0, BATCH)
    made = (time.perf_counter() - began) * 1e3
    plan = Plan(order, BATCH)
    print(f"penstock mixture, 2 x 10^9 rows: made in {made:.0f} ms")
    print(f"CPU time of a batch of {BATCH}, least of 5 x 20 that follow each other:")
    for position in (0, 10**9):
        times = []
        for attempt in range(5):
            first = position // BATCH + 20 * attempt
            began = time.process_time()
            for step in range(first, first + 20):
                plan.request(0, step)
            times.append((time.process_time() - began) / 20 * 1e3)
        print(f"  from position {position:>13,d} {min(times):10.3f} ms", flush=True)


def write_lengths(path: Path, count: int) -> None:
    """Lengths as texts have them, 245 tokens on average: the same 10 million again and again."""
    import numpy as np

    part = np.random.default_rng(0).lognormal(5, 1, 10**7).clip(1, 60_000).astype(np.uint16)
    lengths = np.lib.format.open_memmap(path, "w+", np.uint16, (count,))
    for start in range(0, count, len(part)):
        stop = min(start + len(part), count)
        lengths[start:stop] = part[: stop - start]


def anonymous() -> float:
    """MiB of this process that belong to no file."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def packed_child(path: Path, split: str, step: int) -> None:
    """The first batch at `step`, and the thousand behind it."""
    import numpy as np

    from penstock.addons.tokens.sequence_packing import SequencePacking
    from penstock.order.plan import Plan

    lengths = np.load(path, mmap_mode="r")
    SequencePacking(1000, 0, None, 8, 2048, column=lengths[:1000]).pieces(0, 0)  # imports
    before = anonymous()
    start = time.process_time()
    options = {"column": lengths, "split": split}
    sampler = SequencePacking(len(lengths), 0, None, 8, 2048, **options)  # type: ignore[arg-type]
    plan = Plan(sampler, 8)
    plan.request(0, step)
    first = time.process_time() - start
    most, pieces, times = anonymous(), 0, []
    for later in range(step + 1, step + 1001):
        start = time.process_time()
        pieces += len(plan.request(0, later))
        times.append(time.process_time() - start)
        most = max(most, anonymous())
    each = sum(times)
    print(
        f"{split:8s} {step:>10,d} {first * 1e3:10.1f} ms {each:10.3f} ms "
        f"{each / pieces * 64 * 1e3:16.3f} ms {sorted(times)[500] * 1e3:10.3f} ms "
        f"{max(times) * 1e3:8.1f} ms {most - before:8.1f} MiB",
        flush=True,
    )


def packed(path: Path, count: int) -> None:
    if not path.exists():
        write_lengths(path, count)
    print(f"{count:,d} documents, {platform.machine()}, Python {platform.python_version()}")
    print(
        f"{'split':8s} {'step':>10} {'first':>13} {'each':>13} {'64 documents':>19} "
        f"{'median':>13} {'longest':>11} {'memory':>12}"
    )
    for split in ("never", "tail"):
        for step in (0, 10**6) * 3:
            command = [sys.executable, __file__, "--packed-child", str(path), split, str(step)]
            subprocess.run(command, check=True)


def filtered(length: int) -> None:
    """A filter that leaves out a tenth of `length` rows by a column that is computed.

    Making it, a batch in the middle beside the first one, each of a new plan (medians of 101,
    taken in turns), what finding the rows takes of it, and the peak of memory that is added.
    """
    import numpy as np

    from penstock.addons.filters.kept import RowChoice
    from penstock.order.columns import ColumnView
    from penstock.order.plan import Plan
    from penstock.order.randomness import hash64_array
    from penstock.order.samplers import Random

    class Lengths(ColumnView):
        dtype = np.dtype(np.uint64)

        def __init__(self, rows: int) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return self.rows

        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            return hash64_array(1, rows) % np.uint64(1000)

    class Rows:
        def __init__(self, rows: int) -> None:
            self.lengths = Lengths(rows)

        def __len__(self) -> int:
            return len(self.lengths)

        def __getitem__(self, index: int) -> int:
            return index

    def made(rows: int) -> object:
        return RowChoice({"dataset": {"filter": "length >= 100"}}, "train").of(Rows(rows))[0]

    made(10**5)  # pandas and its expressions are loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, busy = time.perf_counter(), time.process_time()
    kept = made(length)
    making, busy = time.perf_counter() - start, time.process_time() - busy
    spans: dict[str, list[float]] = {"first": [], "middle": [], "select": []}
    for _ in range(101):
        for name in ("first", "middle"):
            plan = Plan(Random(len(kept), 0), BATCH)
            start = time.perf_counter()
            rows = plan.request(0, 0 if name == "first" else len(plan) // 2).indices
            between = time.perf_counter()
            kept.selection.select(rows)
            spans[name].append(time.perf_counter() - start)
            spans["select"].append(time.perf_counter() - between)
    first, middle, select = (sorted(span)[len(span) // 2] * 1e3 for span in spans.values())
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{len(kept):,d} of {length:,d} rows kept; made in {making:.1f} s "
        f"({busy:.1f} s of CPU); first batch "
        f"{first:.2f} ms, middle {middle:.2f} ms ({middle / first:.2f} x), of which rows "
        f"{select:.2f} ms; {memory:.1f} MiB",
        flush=True,
    )


TEXTS = (
    'name != "train/000017.jpg"',
    'name.str.startswith("train/0")',
    'name.str.contains("17") and name.str.len() > 10',
    'name.str.lower().str.endswith("9.jpg") or name in ["train/000003.jpg", "val/000004.jpg"]',
)


def filtered_texts(length: int) -> None:
    """Filters by a column of texts, as pandas holds them by default and as objects."""
    import pandas as pd

    from penstock.addons.filters.kept import RowChoice

    class Files:
        def __init__(self, names: pd.Series) -> None:
            self.metadata = pd.DataFrame({"name": names})

        def __len__(self) -> int:
            return len(self.metadata)

        def __getitem__(self, index: int) -> int:
            return index

    def made(dataset: Files, text: str) -> object:
        return RowChoice({"dataset": {"filter": text}}, "train").of(dataset)[0]

    names = [f"{'val' if row % 10 == 3 else 'train'}/{row:06d}.jpg" for row in range(length)]
    for kind in (None, object):
        dataset = Files(pd.Series(names, dtype=kind))
        some = Files(dataset.metadata["name"].iloc[:1000].reset_index(drop=True))
        for text in TEXTS:
            made(some, text)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before, busy = peak(), time.process_time()
            kept: Any = made(dataset, text)
            busy = time.process_time() - busy
            print(
                f"{len(kept):>12,d} of {length:,d} {dataset.metadata['name'].dtype!s:6s} "
                f"{text:88s} {busy:7.2f} s {peak() - before:7.1f} MiB",
                flush=True,
            )


def peak() -> float:
    """MiB that this process has held at most."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 1024


def against(folder: Path, turns: int, words: Sequence[str]) -> None:
    """The same by the code of `folder` and by this one, in turns, each in a new process."""
    here = Path(__file__).resolve().parent.parent
    for _ in range(turns):
        for root in (folder, here):
            print(root.name, flush=True)
            environment = {**os.environ, "PYTHONPATH": str(root)}
            subprocess.run([sys.executable, __file__, *words], check=True, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--backwards", action="store_true")
    parser.add_argument("--mixture", action="store_true", help="only a mixture's figures")
    parser.add_argument("--filtered", type=int, help="measure a filter of so many rows instead")
    parser.add_argument("--texts", type=int, help="measure filters of so many texts instead")
    parser.add_argument("--against", type=Path, help="another working tree to measure in turns")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--packed", type=int, default=0)
    parser.add_argument("--lengths", type=Path, default=Path("lengths.npy"))
    parser.add_argument("--packed-child", nargs=3)
    arguments = parser.parse_args()
    if arguments.against:
        words = (("--filtered", arguments.filtered), ("--texts", arguments.texts))
        asked = [word for name, rows in words if rows for word in (name, str(rows))]
        against(arguments.against.resolve(), arguments.turns, asked)
        return
    if arguments.backwards:
        backwards()
        return
    if arguments.packed_child:
        path, split, step = arguments.packed_child
        packed_child(Path(path), split, int(step))
        return
    if arguments.packed:
        packed(arguments.lengths, arguments.packed)
        return
    if arguments.filtered:
        filtered(arguments.filtered)
        return
    if arguments.texts:
        filtered_texts(arguments.texts)
        return
    if arguments.child:
        child(arguments.child[0], int(arguments.child[1]))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}")
    mixture()
    if arguments.mixture:
        return
    print(f"{'':28s} {'rows':>14} {'first batch':>13} {'middle batch':>13} {'memory':>14}")
    for kind in KINDS:
        for length in (10**6, 10**7, 10**8, 10**9):
            constant = kind == "penstock random"
            if constant or length <= arguments.largest:
                command = [sys.executable, __file__, "--child", kind, str(length)]
                subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
