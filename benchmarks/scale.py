"""The size of the internet on one machine: real addresses, simulated machines and failures.

    PYTHONPATH=. python benchmarks/scale.py [--ranks 1024] [--workers 8] [--rows 1000000000]

Real: every request comes from a `Plan`, and every replayed batch from a `Loader` that was made anew
and given the state of a checkpoint. Simulated: the ranks (all of them are asked in this process,
one after the other), the rows (a dataset that is only a number), and in the day of failures the
clock: steps, saves, failures and restarts take the seconds that they are said to.

    shares     random steps of all ranks: shares disjoint, together the global batch; no row twice
    inverse    random rows: the order is run backwards to the place of each, and the rank that has
               that place by its address is asked for it
    epoch      a whole epoch of a smaller set over all ranks: each row once
    request    CPU of a request of one rank at random addresses, and of the step after it
    jump       a new loader, given a state: CPU to its first batch, at step 0 and anywhere
    workers    a real loader of one rank with so many worker processes, from a random address on
    day        of exponential failures, one an hour: the share of the time in which training came
               forward, by interval and restart; the ledger is compared with that of a day without
               failures
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.failures import SECONDS, Clock, Policy, day, failures_of
from penstock.addons.tuning.profile import daly, useful_share
from penstock.distributed.world import World
from penstock.loading.collate import Stack
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.workers.options import LoaderOptions
from penstock.order.permutation import Permutation
from penstock.order.plan import Plan, Request
from penstock.order.randomness import hash64, hash64_array
from penstock.order.samplers import Bucket, Random, Sequential, Subset, Weighted

EACH = 32  # rows of a rank's share
STEP = 20.0  # simulated seconds of a step
HOUR = 3600.0
POLICIES = (  # seconds: a save stops the training, until it is on the disk, of a restart
    (30.0, 30.0, 60.0),
    (30.0, 30.0, 600.0),
    (1.0, 30.0, 60.0),
    (1.0, 30.0, 600.0),
)
MINUTES: tuple[float | None, ...] = (1, 2, 5, None, 15, 30, 60)  # None: as Daly has it


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """So many rows, each of which is its number."""

    draws = False

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"row": torch.tensor(index)}


class Ledger:
    """One rank's training by a real loader: what each step saw, cut back when it is resumed."""

    def __init__(self, rows: int, rank: int, ranks: int) -> None:
        self.rows, self.world = rows, World(rank, ranks)
        self.steps: list[tuple[int, int, int]] = []  # epoch, step, hash of the rows
        self.made = 0
        self._begin()

    def step(self) -> None:
        batch = next(self._batches)
        request = batch.request
        seen = int(hash64_array(hash64(0), request.indices).sum())
        self.steps.append((*request.address, seen))
        self.made += 1

    def state(self) -> tuple[int, str]:
        """Steps so far, and what a checkpoint holds of the loader, as text."""
        return len(self.steps), json.dumps(self.loader.state_dict())

    def restore(self, state: tuple[int, str]) -> None:
        """Everything in memory is gone; a new loader begins where `state` says."""
        steps, text = state
        del self.steps[steps:]
        self.loader.close()
        self._begin()
        self.loader.load_state_dict(json.loads(text))

    def _begin(self) -> None:
        self.loader = loader_of(self.rows, self.world)
        self._batches = self._epochs()

    def _epochs(self) -> Iterator[object]:
        while True:
            yield from self.loader


def loader_of(rows: int, world: World, options: LoaderOptions | None = None) -> Loader:
    """A new loader of one rank, with nothing evaluated yet."""
    fetch = Fetch(Rows(rows), None, Stack(), 0)
    return Loader(Plan(Random(rows, 0), EACH * world.size), fetch, options, world)


def all_shares(plan: Plan, epoch: int, step: int, ranks: int) -> list[Request]:
    """What every rank asks for at one address."""
    return [plan.request(epoch, step, rank, ranks) for rank in range(ranks)]


def check_shares(plan: Plan, addresses: list[tuple[int, int]], ranks: int) -> int:
    """Shares of all ranks are disjoint and complete; no row comes twice in all of the steps.

    Args:
        addresses: different steps of one epoch, of an order that has each row once.

    Returns:
        Rows that were looked at.
    """
    seen = []
    for epoch, step in addresses:
        shares = all_shares(plan, epoch, step, ranks)
        whole = plan.request(epoch, step)
        for name in ("positions", "indices"):
            together = np.concatenate([getattr(share, name)[: share.valid] for share in shares])
            assert np.array_equal(together, getattr(whole, name)), (epoch, step, name)
        seen.append(whole.indices)
    rows = np.concatenate(seen)
    assert len(np.unique(rows)) == len(rows), "a row came twice"
    return len(rows)


def place_of(order: Permutation, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where an order has these rows: its network backwards, written apart from the product."""
    values = _backwards(order, rows.astype(np.uint64))
    while (outside := values >= np.uint64(order.length)).any():
        values[outside] = _backwards(order, values[outside])
    return values.astype(np.int64)


def _backwards(order: Permutation, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = (order._low_bits, order._high_bits)  # after an even number of rounds as before them
    high, low = values >> np.uint64(bits[0]), values & np.uint64((1 << bits[0]) - 1)
    for number in reversed(range(order.ROUNDS)):
        mask = np.uint64((1 << bits[1 - number % 2]) - 1)
        mixed = high + np.uint64(order._round_keys[number])
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        high, low = (low ^ mixed) & mask, high
    return (high << np.uint64(bits[0])) | low


def check_inverse(plan: Plan, seed: int, ranks: int, count: int) -> None:
    """Random rows are at the address, on the rank and in the place that the inverse gives."""
    rows = np.random.default_rng(seed).integers(0, plan.sampler.size(0), count)
    for epoch in (0, 7):
        order = Permutation(plan.sampler.size(0), hash64(0, "order", epoch))
        for row, place in zip(rows, place_of(order, rows), strict=True):
            step, within = divmod(int(place), plan.batch_size)
            if step < plan.steps(epoch) - 1:  # shares of the last batch are smaller
                share = plan.request(epoch, step, within // EACH, ranks)
                assert share.indices[within % EACH] == row, (epoch, row)


def check_epoch(rows: int, ranks: int) -> int:
    """Every row of an epoch comes once, over all ranks; returns the number of requests."""
    plan, seen, asked = Plan(Random(rows, 0), EACH * ranks), np.zeros(rows, np.uint8), 0
    for step in range(plan.steps(3)):
        for share in all_shares(plan, 3, step, ranks):
            np.add.at(seen, share.indices[: share.valid], 1)
            asked += 1
    assert (seen == 1).all()
    return asked


def microseconds(work: Callable[[], object], rounds: int) -> float:
    """Median CPU of this process."""
    times = []
    for _ in range(rounds):
        began = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - began) / 1e3)
    return statistics.median(times)


def request_cost(plan: Plan, ranks: int, seed: int, rounds: int = 200) -> tuple[float, float]:
    """Microseconds of a request after a jump, and of the next step's."""
    random = np.random.default_rng(seed)
    jumps, nexts = [], []
    for _ in range(rounds):
        rank, epoch = int(random.integers(ranks)), int(random.integers(100))
        step = int(random.integers(plan.steps(epoch) - 1))
        jumps.append(microseconds(lambda: plan.request(epoch, step, rank, ranks), 1))  # noqa: B023
        nexts.append(microseconds(lambda: plan.request(epoch, step + 1, rank, ranks), 1))  # noqa: B023
    return statistics.median(jumps), statistics.median(nexts)


def jump_cost(rows: int, ranks: int, seed: int, rounds: int = 100) -> tuple[float, float]:
    """Microseconds from making a loader to its first batch: at step 0 and at random addresses."""
    random = np.random.default_rng(seed)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        world = World(int(random.integers(ranks)), ranks)
        steps = rows // (EACH * ranks)
        address = (int(random.integers(100)), int(random.integers(steps)))
        for jumps, (epoch, step) in ((False, (0, 0)), (True, address)):

            def first(epoch: int = epoch, step: int = step, world: World = world) -> None:
                loader = loader_of(rows, world)
                loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "step": step})
                batch = next(iter(loader))
                assert batch.request.address == (epoch, step)

            taken[jumps].append(microseconds(first, 1))
    return statistics.median(taken[False]), statistics.median(taken[True])


def check_workers(rows: int, ranks: int, workers: int, seed: int, steps: int = 24) -> None:
    """A real loader with worker processes, resumed somewhere, gives what the plan says."""
    random = np.random.default_rng(seed)
    world = World(int(random.integers(ranks)), ranks)
    start = int(random.integers(rows // (EACH * ranks) - steps))
    plan = Plan(Random(rows, 0), EACH * ranks)
    with loader_of(rows, world, LoaderOptions("process", workers)) as loader:
        loader.load_state_dict({**loader.state_dict(), "epoch": 5, "step": start})
        for step, batch in zip(range(start, start + steps), loader, strict=False):
            wanted = plan.request(5, step, world.rank, ranks).indices
            assert np.array_equal(batch["row"].numpy(), wanted)


class Quiet(dict[int, list[tuple[int, int, int]]]):
    """By rank: the ledger of a training without failures, of so many steps."""

    def __init__(self, rows: int, ranks: int, steps: int) -> None:
        self.rows, self.ranks, self.steps = rows, ranks, steps

    def __missing__(self, rank: int) -> list[tuple[int, int, int]]:
        run = Ledger(self.rows, rank, self.ranks)
        for _ in range(self.steps):
            run.step()
        self[rank] = run.steps
        return run.steps


def replayed(
    policy: Policy, quiet: Quiet, rank: int, failures: list[float], seconds: float
) -> Ledger:
    """A day through a real loader.

    Raises:
        AssertionError: an address of the ledger is missing, came twice or has other rows than in a
            day without failures.
    """
    run = Ledger(quiet.rows, rank, quiet.ranks)
    day(run, policy, failures, STEP, seconds)
    assert run.steps == quiet[rank][: len(run.steps)]
    return run


def table_of_days(rows: int, ranks: int, days: int, seconds: float = SECONDS) -> Iterator[str]:
    """Lines of a table: replayed day, mean of many days by the clock alone, Daly's model; in %."""
    quiet, failures = Quiet(rows, ranks, int(seconds / STEP)), failures_of(1, HOUR, seconds)
    columns = np.random.default_rng(1).integers(ranks, size=len(POLICIES)).tolist()
    head = [f"{cost:g} s, restart {restart:g} s" for cost, _, restart in POLICIES]
    yield f"| save every | {' | '.join(head)} |"
    yield "|" + "---|" * (len(head) + 1)
    again = []
    for minutes in MINUTES:
        cells = []
        for rank, (cost, written, restart) in zip(columns, POLICIES, strict=True):
            interval = daly(cost, HOUR) if minutes is None else 60.0 * minutes
            every = max(round(interval / STEP), 1)
            policy = Policy(every, cost, written, restart)
            run = replayed(policy, quiet, rank, failures, seconds)
            again.append(run.made - len(run.steps))
            clocks = [Clock() for _ in range(days)]
            for seed, clock in enumerate(clocks):
                day(clock, policy, failures_of(seed, HOUR, seconds), STEP, seconds)
            mean = statistics.fmean(clock.steps for clock in clocks)
            shares = [steps * STEP / seconds for steps in (len(run.steps), mean)]
            shares.append(useful_share(every * STEP, cost, restart, HOUR))
            at = f" ({every * STEP / 60:.3g} min)" if minutes is None else ""
            cells.append(", ".join(f"{100 * share:.1f}" for share in shares) + at)
        yield f"| {'Daly' if minutes is None else f'{minutes:g} min'} | {' | '.join(cells)} |"
    yield (
        f"ledgers   {len(again)} days with {len(failures)} failures, {min(again)} to "
        f"{max(again)} steps made again: each address once, as without failures"
    )


def memory() -> float:
    """MiB of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def held(rows: int) -> dict[str, Callable[[], Plan]]:
    """Plans of samplers that hold something a row."""
    import pandas as pd

    table = pd.DataFrame({"length": np.arange(rows) % 100})
    return {
        "weighted": lambda: Plan(Weighted(rows, 0, weights=np.ones(rows)), 32768),
        "subset, a tenth": lambda: Plan(Subset(rows, 0, fraction=0.1), 32768),
        "bucket": lambda: Plan(Bucket(rows, 0, table, 32768), 32768),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--largest", type=int, default=10**12, help="rows of orders alone")
    parser.add_argument("--days", type=int, default=20, help="for the mean of the last table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, ranks = time.perf_counter(), given.ranks
    print(
        f"{platform.platform()}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"{ranks} ranks x {given.workers} workers, {EACH} rows a share"
    )
    print(f"memory    {memory():.0f} MiB before")
    random = np.random.default_rng(0)
    for rows in (given.rows, given.largest):
        for order in (Random(rows, 0), Sequential(rows)):
            plan = Plan(order, EACH * ranks)
            steps = random.choice(plan.steps(7) - given.workers, 4, replace=False)
            addresses = {(7, int(step) + ahead) for step in steps for ahead in range(given.workers)}
            looked = check_shares(plan, sorted(addresses), ranks)
            jump, following = request_cost(plan, ranks, 1)
            print(
                f"shares    {rows:.0e} rows, {type(order).__name__}: {len(addresses) * ranks:,} "
                f"requests, {looked:,} rows, none twice, none missing; {jump:.0f} us a request "
                f"after a jump, {following:.0f} the next; {memory():.0f} MiB"
            )
        check_inverse(Plan(Random(rows, 0), EACH * ranks), 2, ranks, 500)
        print(f"inverse   {rows:.0e} rows: 1,000 rows where the order run backwards has them")
        zero, jump = jump_cost(rows, ranks, 3)
        print(
            f"jump      {rows:.0e} rows: loader to first batch {zero:.0f} us at step 0, "
            f"{jump:.0f} us at random addresses: {jump / zero:.2f}"
        )
    few = 3_000_001
    print(f"epoch     {few:,} rows: each once in {check_epoch(few, ranks):,} requests")
    check_workers(given.rows, ranks, given.workers, 4)
    print(f"workers   one rank with {given.workers} processes, resumed: as the plan says")
    for name, make in held(4_000_000).items():
        tracemalloc.start()
        plan = make()
        took, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        jump, _ = request_cost(plan, ranks, 5, 20)
        print(f"holds     {name}: {took / 4e6:.1f} bytes a row, {jump:.0f} us a request")
    print(f"memory    {memory():.0f} MiB; {time.perf_counter() - began:.0f} s so far")
    print(
        f"day       steps of {STEP:g} s, a failure an hour; saves of 1 s are on the disk after 30"
    )
    print(f"useful %: a day replayed by a loader, mean of {given.days} days, Daly's model")
    for line in table_of_days(50_000_000, ranks, given.days):
        print(line, flush=True)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory    {memory():.0f} MiB at the end, {most:.0f} at most")
    print(f"took      {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
