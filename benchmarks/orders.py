"""What an order costs: ours, evaluated at an address, against torch's, which is listed.

    python benchmarks/orders.py [--largest 100000000]
    python benchmarks/orders.py --filtered 1000000000

For each length: milliseconds from making the sampler to its first batch of 256, milliseconds for a
batch in the middle, and the memory that doing so adds at its peak. torch's samplers have no way to
the middle but through the beginning, so their second figure is left out.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice

BATCH = 256


def penstock_random(length: int) -> tuple[Callable[[], object], Callable[[], object]]:
    from pipeline.order.plan import Plan
    from pipeline.order.samplers import Random

    plan = Plan(Random(length, 0), BATCH)
    return lambda: plan.request(0, 0), lambda: plan.request(0, len(plan) // 2)


def penstock_weighted(length: int) -> tuple[Callable[[], object], Callable[[], object]]:
    import numpy as np

    from pipeline.order.plan import Plan
    from pipeline.order.samplers import Weighted

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


def filtered(length: int) -> None:
    """A filter that leaves out a tenth of `length` rows by a column that is computed.

    Making it, a batch in the middle beside the first one, each of a new plan (medians of 101,
    taken in turns), what finding the rows takes of it, and the peak of memory that is added.
    """
    import numpy as np

    from pipeline.build.kept import RowChoice
    from pipeline.order.columns import ColumnView
    from pipeline.order.plan import Plan
    from pipeline.order.randomness import hash64_array
    from pipeline.order.samplers import Random

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
    start = time.perf_counter()
    kept = made(length)
    making = time.perf_counter() - start
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
    print(f"{len(kept):,d} of {length:,d} rows kept; made in {making:.1f} s; first batch "
          f"{first:.2f} ms, middle {middle:.2f} ms ({middle / first:.2f} x), of which rows "
          f"{select:.2f} ms; {memory:.1f} MiB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--filtered", type=int, help="measure a filter of so many rows instead")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.filtered:
        filtered(arguments.filtered)
        return
    if arguments.child:
        child(arguments.child[0], int(arguments.child[1]))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print(f"{'':28s} {'rows':>14} {'first batch':>13} {'middle batch':>13} {'memory':>14}")
    for kind in KINDS:
        for length in (10**6, 10**7, 10**8, 10**9):
            constant = kind == "penstock random"
            if constant or length <= arguments.largest:
                command = [sys.executable, __file__, "--child", kind, str(length)]
                subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
