"""`task=where`: at which addresses a sample was or will be seen, or which samples an address has.

    task=where sample=17 epochs=0:3           a row; also a path, or the end of one
    task=where sample='label == 3'            rows by an expression over the table
    task=where address=3,1200                 the rows of a batch, with their keys
    ... run=outputs/DATE/TIME                 the same in that run, with what it knows of them

Orders are asked backwards (order/orders.py), so no log is needed and no sample is read. A line has
the position in the epoch's order, the rank, and the key that the sample's random numbers follow
from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice

import numpy as np

from penstock.addons.backwards.backwards import (
    SKIPPED,
    RunHistory,
    compare_data,
    listed_in,
    own_row,
    plan_of,
    rows_of,
    source_of,
)
from penstock.addons.mixtures.order import MixtureOrder
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.world import World, default_processes
from penstock.errors import ConfigError, Problem
from penstock.loading.bad_samples import path_of
from penstock.loading.dataset_facts import table_of
from penstock.order.address import Address
from penstock.order.plan import Plan, Request
from penstock.order.randomness import sample_keys
from penstock.runs import left_out
from penstock.runs.record import RunRecord
from penstock.tasks.folder_config import asked_of
from penstock.tasks.tables import put_rows
from penstock.terminal import one_line, put, say

MOST_ROWS, MOST_LINES = 100, 1000  # that are listed

_COLUMNS = ("path", "class", "label")  # of the dataset's table, where it has them


def run(config: Config) -> None:
    """Answer what `config.sample` or `config.address` asks.

    Raises:
        ConfigError: neither or both are given, or there is no such sample or address.
    """
    if (config.sample is None) == (config.address is None):
        raise ConfigError(
            Problem("sample", "give this or address, one of the two: sample=17, or address=3,1200")
        )
    asked, record = asked_of(config)
    question = _Question(DataParts(asked, World()).split(asked.split), record)
    if config.address is not None:
        question.put_batch(Address(*config.address))
    elif config.sample is not None:
        question.put_samples(rows_of(config.sample, question.split))


class _Question:
    """One split of a configuration, and of a run if there is one.

    Attributes:
        history: of the run; None without one, and of validation, which the ledger leaves out.
    """

    def __init__(self, split: Split, record: RunRecord | None) -> None:
        self.split, self.config, self.record = split, split.config, record
        self.plan: Plan = plan_of(split)
        if record is not None:
            compare_data(record, split)
        trained = record if split.name == "train" else None
        self.history = None if trained is None else RunHistory(trained)

    def put_samples(self, rows: Sequence[int]) -> None:
        shown = rows[:MOST_ROWS]
        for row in shown:
            path, cause = path_of(self.split.dataset, row), self._left_out.get(row)
            names = [one_line(text) for text in (source_of(self.split.dataset, row), path) if text]
            if cause is not None:
                names.append(f"left out wherever it stands: {one_line(cause)}")
            if names:
                put("  ".join([f"row {self._own(row)}", *names]))
        lines = list(islice(chain.from_iterable(map(self._lines, shown)), MOST_LINES + 1))
        loss = ["loss"] if self.history else []
        header = ["row", "epoch", "step", "position", "rank", "key", *self._packed, *loss, ""]
        put_rows([header, *lines[:MOST_LINES]])
        if len(rows) > MOST_ROWS:
            say(f"{len(rows)} samples, of which these are the first {MOST_ROWS}")
        if len(lines) > MOST_LINES:
            say(f"more than {MOST_LINES} lines; ask for fewer epochs (epochs=0:3) or samples")

    def put_batch(self, address: Address) -> None:
        steps = self.plan.steps(address.epoch)
        if address.step >= steps:
            where = f"epoch {address.epoch} of the {self.split.name} split"
            raise ConfigError(
                Problem(
                    "address",
                    f"{where} has {steps} steps, 0 to {steps - 1}, and no step {address.step}",
                )
            )
        world = self._world(address)
        shares = [self.plan.request(*address, rank, world) for rank in range(world)]
        parts = [f"batch {address}", f"{sum(share.valid for share in shares)} rows"]
        if self.history:
            loss = self.history.loss(address)
            parts += [] if loss is None else [f"loss {loss:.6g}"]
        put("  ".join([*parts, self._fate(address)]).rstrip())
        sampler = self.plan.sampler
        order = getattr(sampler, "order", None) if self._packed else sampler
        if isinstance(order, MixtureOrder):
            shares_of = order.shares(address.epoch, int(shares[0].positions[0]))
            put("weights  " + ", ".join(f"{one_line(k)} {v:.4g}" for k, v in shares_of.items()))
        table = table_of(self.split.dataset, self.split.data.fields)
        names = [] if table is None else [name for name in _COLUMNS if name in table.columns]
        mixes = bool(source_of(self.split.dataset, int(shares[0].indices[0])))
        sources = ["source"] if mixes else []
        lines = [["position", "row", "rank", "key", *self._packed, *sources, *names, ""]]
        for rank, share in enumerate(shares):
            for place in range(share.valid):
                row = int(share.indices[place])
                known = [one_line(source_of(self.split.dataset, row))] if mixes else []
                known += (
                    [] if table is None else [one_line(table[name].iloc[row]) for name in names]
                )
                note = "left out" if row in self._left_out else ""
                lines.append(
                    [
                        str(share.positions[place]),
                        str(self._own(row)),
                        str(rank),
                        self._key(share, place),
                        *_part(share, place),
                        *known,
                        note,
                    ]
                )
        put_rows(lines)

    def _lines(self, row: int) -> Iterator[list[str]]:
        """The history of a row, epoch by epoch."""
        own = str(self._own(row))
        for epoch in self._epochs():
            met, steps = self.plan.steps_of(epoch, row), self.plan.steps(epoch)
            if not met or met[0] >= steps:
                empty = [""] * (4 + len(self._packed) + bool(self.history))
                yield [own, str(epoch), *empty, self._why_not(met)]
            for step in met:
                if step < steps:
                    yield from self._at(own, row, Address(epoch, step))

    def _at(self, own: str, row: int, address: Address) -> Iterator[list[str]]:
        """The lines of a row in a batch that has it."""
        world, cells = self._world(address), []
        if self.history:
            loss = self.history.loss(address)
            cells = ["" if loss is None else f"{loss:.6g}"]
        fate = self._fate(address)
        for rank in range(world):
            share = self.plan.request(*address, rank, world)
            for place in np.flatnonzero(share.indices[: share.valid] == row).tolist():
                yield [
                    own,
                    *map(str, address),
                    str(share.positions[place]),
                    str(rank),
                    self._key(share, place),
                    *_part(share, place),
                    *cells,
                    fate,
                ]

    def _fate(self, address: Address) -> str:
        """The fate of an address, past or coming; empty for most."""
        if self.history and self.history.loss(address) is not None:
            return self.history.fate(address)
        if address in self.plan.skipped:
            return SKIPPED
        if self._end is not None and address >= self._end:
            return f"behind the end (trainer.max_steps={self.config.trainer.max_steps})"
        return self.history.fate(address) if self.history else ""

    def _why_not(self, steps: Sequence[int]) -> str:
        """Why an epoch does not have a row that its order has in `steps`."""
        if not steps:
            return "not in this epoch"
        if self.plan.most is not None and steps[0] >= self.plan.most:
            return f"behind the {self.plan.most} batches that an epoch is limited to"
        return "in the rest that is less than a batch (batch.tail=drop)"

    def _epochs(self) -> range:
        epochs = self.config.epochs
        if isinstance(epochs, int):
            return range(epochs, epochs + 1)
        if epochs is not None:
            return range(*map(int, epochs.split(":")))
        if self._end is not None:
            return range(self._end.epoch + (self._end.step > 0))
        # Every epoch of validation has the same order.
        return range(self.config.trainer.max_epochs if self.split.name == "train" else 1)

    @cached_property
    def _end(self) -> Address | None:
        """The first address that is not trained on because of `trainer.max_steps`; None: no such,
        or unknown where batches are left out, which do not count.
        """
        trainer = self.config.trainer
        if trainer.max_steps is None or self.plan.skipped or self.split.name != "train":
            return None
        left = trainer.max_steps  # updates, one for each group of batches, the last one smaller
        for epoch in range(trainer.max_epochs):
            steps = self.plan.steps(epoch)
            if left * trainer.accumulate < steps:
                return Address(epoch, left * trainer.accumulate)
            left -= -(-steps // trainer.accumulate)
        return None

    def _world(self, address: Address) -> int:
        """The ranks that share the batch at `address`."""
        if self.history:
            return self.history.world(address)
        distributed = self.config.distributed
        if distributed.strategy == "none":
            return 1
        return default_processes() if distributed.nproc == "auto" else distributed.nproc

    def _own(self, row: int) -> int:
        return own_row(self.split.dataset, row)

    def _key(self, share: Request, row: int) -> str:
        position = share.positions[row : row + 1]
        return f"{int(sample_keys(self.config.seed, share.epoch, position)[0]):016x}"

    @cached_property
    def _packed(self) -> list[str]:
        """Columns of rows that stand in blocks."""
        return ["tokens", "block"] if getattr(self.plan.sampler, "packs", False) else []

    @cached_property
    def _left_out(self) -> dict[int, str]:
        """Causes by row, from the quarantines that the run reads and writes."""
        paths = [self.config.bad_samples.quarantine]
        if self.record is not None and (self.record.path / left_out.NAME).exists():
            paths.append(str(self.record.path / left_out.NAME))
        causes: dict[int, str] = {}
        for path in filter(None, paths):
            causes |= listed_in(path, self.split)
        return causes


def _part(share: Request, row: int) -> list[str]:
    """Which tokens of its row stand at a place, and in which block of the global batch."""
    if share.parts is None:
        return []
    start, stop, length, block = share.parts[row].tolist()
    return [f"{start}:{stop} of {length}", str(block)]
