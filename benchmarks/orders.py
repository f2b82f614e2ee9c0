"""What an order costs: ours, evaluated at an address, against torch's, which is listed.

    python benchmarks/orders.py [--largest 100000000]
    python benchmarks/orders.py --backwards

For each length: milliseconds from making the sampler to its first batch of 256, milliseconds for a
batch in the middle, and the memory that doing so adds at its peak. torch's samplers have no way to
the middle but through the beginning, so their second figure is left out.

`--backwards` asks where a row stands: milliseconds of CPU for the addresses of a row in an epoch
that was not asked about before, the median of nine, after the sampler has been made.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

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


def backwards() -> None:
    import numpy as np
    import pandas as pd

    from pipeline.order.composed import Curriculum
    from pipeline.order.plan import Plan
    from pipeline.order.samplers import Bucket, Identity, Random, Subset, Weighted

    def column(length: int) -> pd.DataFrame:
        return pd.DataFrame({"length": np.random.default_rng(0).integers(1, 1000, length)})

    kinds: dict[str, tuple[Callable[[int], Any], Sequence[int]]] = {
        "random": (lambda n: Random(n, 0), (10**6, 10**9, 10**12)),
        "subset": (lambda n: Subset(n, 0, fraction=0.1), (10**6, 10**7)),
        "weighted": (lambda n: Weighted(n, 0, weights=np.ones(n)), (10**6, 10**7)),
        "weighted, without replacement": (
            lambda n: Weighted(n, 0, weights=np.ones(n), replacement=False), (10**6,),
        ),
        "bucket": (lambda n: Bucket(n, 0, column(n), BATCH), (10**6, 10**7)),
        "identity": (lambda n: Identity(n, 0, column(n), "length"), (10**6,)),
        "curriculum": (lambda n: Curriculum(n, 0, column(n)), (10**6, 10**7)),
    }  # fmt: skip
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print(f"{'':32s} {'rows':>21} {'an epoch':>13}")
    for name, (make, lengths) in kinds.items():
        for length in lengths:
            plan = Plan(make(length), BATCH)
            times = []
            for epoch in range(9):
                start = time.process_time()
                plan.addresses_of(epoch, length // 3)
                times.append((time.process_time() - start) * 1e3)
            print(f"{name:32s} {length:>21,d} {sorted(times)[4]:10.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--backwards", action="store_true")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.backwards:
        backwards()
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
