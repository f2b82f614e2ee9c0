"""The one file of the acceptance suite that knows the product's internal names.

Whoever moves or renames one of them changes it here. Public names (`penstock`, `penstock.errors`,
samplers, collate functions, datasets) are imported where they are used.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from copy import copy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from penstock.addons.filters.expressions import Expression, PartCosts, RowCosts
from penstock.addons.tokens.language_model import next_tokens, token_losses
from penstock.build.data import DataParts
from penstock.distributed.group import Group, join
from penstock.distributed.parallel import Parallel, prepare
from penstock.distributed.stop import Preempted
from penstock.distributed.world import World, from_environment, is_launched
from penstock.errors import ConfigError
from penstock.loading.bad_samples import BadSamples, Budget, SampleError
from penstock.loading.batch import batch_hash, hash_of_rows, row_hashes
from penstock.loading.collate import Stack
from penstock.loading.facts import table_of
from penstock.loading.fetch import Fetch
from penstock.loading.loader import Loader
from penstock.loading.stream import StreamFetch
from penstock.loading.workers.executors import LoaderOptions as Options
from penstock.loading.workers.executors import WorkerError
from penstock.order.keys import hash64, hash64_array
from penstock.order.plan import Plan, StreamOrder, StreamPlan, is_stream
from penstock.order.seeding import SharedGeneratorError
from penstock.order.torch_samplers import adapt
from penstock.runs import checkpoint
from penstock.runs.checkpoint import Checkpoints
from penstock.training.adapter import Objective
from penstock.training.loop import Observer, Session
from penstock.training.loop import fit as _fit
from penstock.training.loop import validate as _validate
from penstock.training.objective import Regression, Supervised
from penstock.training.step import TrainOptions, TrainStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "ConfigError",
    "Group",
    "Loader",
    "Observer",
    "Options",
    "Regression",
    "SampleError",
    "SharedGeneratorError",
    "Stack",
    "Supervised",
    "WorkerError",
    "World",
    "batch_hash",
    "hash_of_rows",
    "next_tokens",
    "row_hashes",
    "token_losses",
]

# Programs.


def main(words: Sequence[object]) -> int:
    """Run a command line in this process; returns its exit code."""
    from penstock import command

    return command.main([str(word) for word in words])


def fork(
    words: Sequence[object],
    out: Path,
    log: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    port: int = 0,
    before: Callable[[], None] = lambda: None,
) -> int:
    """Run a command line in a fork of this process, as one of `ranks` that torchrun would start.

    Args:
        out, log: what stdout and stderr are appended to.
        port: where the ranks meet.
        before: called in the new process.
    """
    if child := os.fork():
        return child
    code = 1
    try:
        redirect(out, log)
        torch.set_num_threads(1)
        if ranks > 1:
            os.environ |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "localhost",
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_PORT": str(port),
            }
        before()
        code = main(words)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ranks(count: int, words: Sequence[object], log: Path, **more: object) -> list[int]:
    """Run a command line as that many ranks; returns their pids."""
    from tests.support.ports import free_port

    port = free_port() if count > 1 else 0
    return [
        fork(words, log, log, rank=rank, ranks=count, port=port, **more) for rank in range(count)
    ]


def redirect(out: Path, log: Path) -> None:
    """Append what this process prints to two files."""
    for path, number in ((out, 1), (log, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def run_quietly(words: Sequence[object], out: Path, log: Path) -> int:
    """Run a command line in this process with its output in two files; returns its exit code."""
    with (
        out.open("w") as stdout,
        log.open("w") as stderr,
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        return main(words)


# Loaders.


def loader(
    dataset,
    sampler=None,
    size: int = 8,
    *,
    transform=None,
    collate=None,
    seed: int = 0,
    tail: str = "keep",
    on_error: str | None = None,
    known: dict[int, str] | None = None,
    budget: float | None = None,
    buffer: int = 0,
    shuffle_shards: bool = False,
    balance: str | None = None,
    columns=None,
    options: Options | None = None,
    world: World | None = None,
) -> Loader:
    """A loader of hashed batches over a dataset or a stream.

    Args:
        sampler: for a dataset; one of torch's, too, as a function that makes it.
        on_error, known, budget: of bad samples, with the meaning of `bad_samples`.
        buffer, shuffle_shards: of a stream.
        balance: what a row costs, as an expression over `columns`; of parts, over `tokens`.
        options: who makes the batches.
    """
    collate = collate or Stack()
    if is_stream(dataset):
        order = StreamOrder(seed, buffer=buffer, shuffle_shards=shuffle_shards)
        bad = BadSamples(on_error, known or {}) if on_error else None
        fetch = StreamFetch(
            dataset,
            transform,
            collate,
            seed,
            True,
            **({} if bad is None else {"bad": bad}),
            plan=StreamPlan(order, size, tail),
        )
        return Loader(fetch.plan, fetch, options, world)
    length = len(dataset)
    if callable(sampler):
        sampler = adapt(sampler, seed, length)
    costs = None
    if balance is not None:
        arithmetic = Expression(balance, "batch.balance", costs=True)
        costs = PartCosts(arithmetic) if columns is None else RowCosts(arithmetic, columns)
    more = {}
    if on_error is not None:
        more["bad"] = BadSamples(on_error, known or {}, copy(sampler), seed)
    fetch = Fetch(dataset, transform, collate, seed, True, **more)
    limit = None if budget is None else Budget(budget, "train", lambda epoch: length)
    return Loader(Plan(sampler, size, tail, costs=costs), fetch, options, world, budget=limit)


def hashes(loader: Loader, epoch: int = 0, start: int = 0) -> list[str]:
    """One hash a batch of an epoch."""
    return [batch_hash([batch]) for batch in loader.epoch(epoch, start)]


def worker_pids(loader: Loader) -> list[int]:
    return [process.pid for process in loader.workers.processes() if process.is_alive()]


def shares(sampler, size: int, epoch: int, step: int, world: int = 1, tail: str = "keep"):
    """Positions and rows of one batch without padding, rank by rank."""
    plan = Plan(sampler, size, tail)
    asked = [plan.request(epoch, step, rank, world) for rank in range(world)]
    return [(one.positions[: one.valid], one.indices[: one.valid]) for one in asked]


def steps(sampler, size: int, epoch: int, tail: str = "keep") -> int:
    """How many batches an epoch has."""
    return Plan(sampler, size, tail).steps(epoch)


# Batches of a configuration.


@dataclass
class Step:
    """A global batch: positions and rows in the order of the request, without padding."""

    epoch: int
    step: int
    positions: list
    rows: list
    parts: list | None = None


class Parts:
    """The splits of a configuration: datasets, transforms, tables, orders."""

    def __init__(self, config) -> None:
        self._parts = DataParts(config, World())
        self.dataset = self._parts.train.dataset
        self.transform = self._parts.train.transform
        self.is_stream = is_stream(self.dataset)

    def table(self):
        return table_of(self.dataset, self._parts.fields)

    def sources(self) -> dict[str, int]:
        """Rows of a mixture by source."""
        return dict(self.dataset.source_lengths)

    def planned(self, split: str, epoch: int) -> list[Step]:
        """All batches of an epoch of rows, without loading any."""
        plan = getattr(self._parts, split).plan
        found = []
        for step in range(plan.steps(epoch)):
            request = plan.request(epoch, step)
            parts = None if request.parts is None else request.parts[: request.valid].tolist()
            positions, rows = request.positions, request.indices
            rows = rows[: request.valid].tolist()
            found.append(Step(epoch, step, positions[: request.valid].tolist(), rows, parts))
        return found

    def val_rows(self) -> int | None:
        """How many rows validate; None where blocks of parts do."""
        return None if self._parts.val.packs else len(self._parts.val.dataset)


def unlimited(config):
    """A configuration without what leaves batches out."""
    trainer = config.trainer.model_copy(
        update={"limit_batches": {}, "overfit_batches": None, "skip": None}
    )
    return config.model_copy(update={"trainer": trainer})


def loaded(config, split: str, epoch: int, most: int, ranks: int = 1, kill=None):
    """The batches of an epoch: (Step, its row hashes, content of each share).

    Args:
        most: batches after which it ends.
        kill: (batch, place): after so many batches the worker at that place is killed.
    """
    parts = [DataParts(config, World(rank, ranks, rank, "cpu", ranks)) for rank in range(ranks)]
    loaders = [getattr(one, split).loader(hashed=True) for one in parts]
    found = []
    try:
        for batches in islice(zip(*(one.epoch(epoch) for one in loaders), strict=True), most):
            if kill is not None and len(found) == kill[0]:
                pids = worker_pids(loaders[0])
                os.kill(pids[kill[1] % len(pids)], signal.SIGKILL)
            found.append(_whole(batches))
    finally:
        for one in loaders:
            one.close()
    return found


def _whole(batches):
    """A global batch of its shares."""
    rows, hashes, contents = [], [], []
    for batch in batches:
        valid = [True] * len(batch.positions) if batch.valid is None else batch.valid.tolist()
        parts = batch.request.parts
        pieces = [None] * len(valid) if parts is None else parts.tolist()
        share = zip(batch.positions.tolist(), batch.indices.tolist(), pieces, valid, strict=True)
        share = [one[:3] for one in share if one[3]]
        rows += share
        hashes += row_hashes(batch)
        contents.append((share, valid, dict(batch)))
    rows.sort(key=lambda one: (one[2][3] if one[2] else 0, one[0]))
    address = batches[0].request.address
    has_parts = bool(rows) and rows[0][2] is not None
    step = Step(
        *address,
        [one[0] for one in rows],
        [one[1] for one in rows],
        [one[2] for one in rows] if has_parts else None,
    )
    return step, hashes, contents


def order_hash(step: Step) -> str:
    """The hash of a batch's positions and rows, as the ledger has it."""
    key, total = hash64("order", step.epoch, step.step), 0
    for position, row in zip(step.positions, step.rows, strict=True):
        inner = int(hash64_array(key + 1, [row])[0])
        total += int(hash64_array(key, [(position + inner) % 2**64])[0])
    return f"{total % 2**64:016x}"


# Fits.


class StopAfter:
    """A request to stop, as a signal makes it, once that many steps of a process are done."""

    def __init__(self, steps: int | None) -> None:
        self.steps, self.seen = steps, 0

    def __call__(self) -> str | None:
        self.seen += 1
        return "SIGTERM" if self.steps is not None and self.seen > self.steps else None


def fit(
    case,
    folder: Path,
    stop: int | None = None,
    resume: dict | None = None,
    options: dict | None = None,
    size: int | None = None,
    group: Group | None = None,
    strategy: str = "none",
    val_loading: dict | None = None,
    observers: Sequence[Observer] = (),
    **loading,
):
    """Train a case; returns weights (those of this rank), result, stopped, requests looked at.

    Args:
        case: has `model()`, `objective()`, `optimizer(weights)`, `scheduler(optimizer)`, `options`
            and `loader(world, size, val, **loading)`.
        stop: steps after which a request to stop comes.
        resume: the state of a checkpoint, from `newest`.
        val_loading, loading: options of the loaders.
    """
    group = group or Group()
    parallel = Parallel(strategy)
    model = prepare(case.model(), parallel, group)
    optimizer = case.optimizer_of(model.parameters())
    scheduler = case.scheduler_of(optimizer)
    chosen = TrainOptions(**{**case.options, **(options or {})})
    asked, world = StopAfter(stop), group.world
    with (
        case.loader(world, size, **loading) as train,
        case.loader(world, val=True, **(val_loading or {})) as val,
    ):
        checkpoints = Checkpoints(folder, group, keep_last=2)
        objective = Objective(case.objective())
        step = TrainStep(model, objective, optimizer, scheduler, chosen, group, 0, parallel)
        try:
            session = Session(checkpoints, resume)
            result, stopped = _fit(step, train, val, session, list(observers), asked), False
        except Preempted:
            result, stopped = None, True
        checkpoints.flush()
    whole = [
        value.full_tensor() if hasattr(value, "full_tensor") else value
        for value in model.state_dict().values()
    ]
    weights = torch.cat([value.flatten().double() for value in whole])
    return weights, result, stopped, asked.seen


def validate(model, objective, loader: Loader, group: Group) -> dict[str, float]:
    """Loss and metrics over all ranks."""
    return _validate(model, Objective(objective), loader, group=group)


def joined():
    """The group of the processes that torchrun has started, as a context."""
    return join(from_environment("cpu"), together=is_launched(), timeout=120)


def newest(folder: Path) -> dict:
    """The state of a run's newest checkpoint."""
    return checkpoint.find_newest(folder).state


def has_checkpoint(folder: Path) -> bool:
    return bool(checkpoint.saved(folder))


def unreadable(folder: Path) -> list:
    """The checkpoints that were passed over, being damaged, to find the newest."""
    return checkpoint.find_newest(folder).skipped


def weights_of(folder: Path) -> torch.Tensor:
    """All weights of a run's newest checkpoint, to the bit."""
    values: Iterator[torch.Tensor] = newest(folder)["model"].values()
    return torch.cat([value.flatten().double() for value in values])
